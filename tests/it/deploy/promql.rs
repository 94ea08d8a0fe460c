//! Reads PromQL well enough to see which series it names, with which labels and values.

/// One `name{label="value",…}` of an expression; groupings have no name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// (label, value or alternatives of a pattern)
    pub(crate) labels: Vec<(String, Vec<String>)>,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':')
}

/// Every series of ours, or of the process, that the text names; recording rules too.
pub(crate) fn named(text: &str) -> Vec<Named> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_word) {
        rest = &rest[at..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        let ours = word.starts_with("checkrein_")
            || word.starts_with("process_")
            || word.contains(":checkrein_");
        if ours {
            let labels = after.strip_prefix('{').map(labels).unwrap_or_default();
            found.push(Named { name: word.to_owned(), labels });
        }
    }
    found
}

fn labels(text: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.starts_with('}') {
        let Some((label, after)) = rest.split_once('"') else { break };
        let Some((value, after)) = after.split_once('"') else { break };
        let label: String = label.chars().filter(|c| is_word(*c)).collect();
        found.push((label, value.split('|').map(str::to_owned).collect()));
        rest = after.trim_start_matches([',', ' ']);
    }
    found
}

/// Labels in `by (…)`, `on (…)`, `without (…)`, `group_left (…)`.
pub(crate) fn grouped(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for word in ["by", "on", "without", "group_left"] {
        for (at, _) in text.match_indices(&format!("{word} (")) {
            let inner = &text[at + word.len() + 2..];
            let inner = &inner[..inner.find(')').unwrap_or(0)];
            found.extend(
                inner
                    .split(',')
                    .map(|label| label.trim().to_owned())
                    .filter(|label| !label.is_empty()),
            );
        }
    }
    found
}

#[test]
fn names_labels_alternatives_and_groupings_are_read() {
    let text = r#"sum by (tool, le) (rate(checkrein_x_bucket{tool=~"$tool",state=~"open|half_open"}[5m])) / on (pod) a:checkrein_y:rate5m"#;
    let alternatives =
        |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        named(text),
        [
            Named {
                name: "checkrein_x_bucket".into(),
                labels: vec![
                    ("tool".into(), alternatives(&["$tool"])),
                    ("state".into(), alternatives(&["open", "half_open"])),
                ],
            },
            Named { name: "a:checkrein_y:rate5m".into(), labels: vec![] },
        ]
    );
    assert_eq!(grouped(text), ["tool", "le", "pod"]);
}
