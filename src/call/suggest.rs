//! Nearest names first: what a model most likely meant when it asked for a tool that it cannot have.

use super::names::ToolName;

/// `names`, the nearest to `asked` first (edit distance, case ignored), ties in order of name.
pub fn nearest<'a>(asked: &str, names: impl Iterator<Item = &'a ToolName>) -> Vec<ToolName> {
    let asked = asked.to_lowercase();
    let mut ranked: Vec<(usize, ToolName)> =
        names.map(|name| (distance(&asked, &name.as_str().to_lowercase()), name.clone())).collect();
    ranked.sort();
    ranked.into_iter().map(|(_, name)| name).collect()
}

/// Levenshtein distance: the fewest insertions, deletions and replacements of characters. Names are bounded
/// (64 characters), so the quadratic table stays small.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut corner = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, to) in row.iter_mut().skip(1).zip(&b) {
            let replaced = corner + usize::from(from != *to);
            corner = *cell;
            left = replaced.min(corner + 1).min(left + 1);
            *cell = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_textbook() {
        for (a, b, expected) in [
            ("kitten", "sitting", 3),
            ("", "abc", 3),
            ("abc", "", 3),
            ("flaw", "lawn", 2),
            ("a", "a", 0),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn the_nearest_name_comes_first_and_ties_go_by_name() {
        let names: Vec<ToolName> =
            ["send_notice", "check_orders", "check_order"].map(ToolName::asked).to_vec();
        let found = nearest("Check_Order", names.iter());
        let found: Vec<&str> = found.iter().map(ToolName::as_str).collect();
        assert_eq!(found, ["check_order", "check_orders", "send_notice"]);
    }
}
