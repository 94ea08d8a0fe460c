//! What a person is shown of a call that waits: one sentence, every argument in a line of its own, secrets hidden.

use serde_json::Value;

use super::visible::visible;
use crate::call::pointer::push_token;
use crate::policy::snapshot::Tool;

/// Names whose values are never shown, wherever they stand.
const SECRETS: [&str; 5] = ["password", "token", "secret", "authorization", "api_key"];
/// Lines of the table; the raw arguments have the rest.
const MAX_LINES: usize = 200;
/// Arguments that the sentence names, and characters of each.
const MAX_NAMED: usize = 4;
const MAX_VALUE: usize = 60;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// JSON Pointer.
    pub at: String,
    /// As JSON, nothing in it invisible.
    pub value: String,
    pub hidden: bool,
}

/// Arguments as they are shown.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Exact, but for what is hidden.
    pub arguments: Value,
    pub lines: Vec<Line>,
    /// Pointers of what is hidden.
    pub hidden: Vec<String>,
}

/// `tool`: as the policy in force has it, with its own pointers to secrets (`result.redact`).
pub fn show(tool: Option<&Tool>, arguments: &Value) -> Shown {
    let mut shown = Shown { arguments: arguments.clone(), lines: Vec::new(), hidden: Vec::new() };
    let mut tokens = Vec::new();
    let (lines, hidden) = (&mut shown.lines, &mut shown.hidden);
    walk(&mut shown.arguments, &mut tokens, &|tokens| is_secret(tool, tokens), lines, hidden);
    shown
}

/// Puts back what is hidden, where a person who changed the arguments left it as it was shown.
pub fn unhide(tool: Option<&Tool>, edited: &mut Value, asked: &Value) {
    for at in show(tool, asked).hidden {
        let original = asked.pointer(&at);
        if let (Some(place), Some(original)) = (edited.pointer_mut(&at), original)
            && *place == marker(original)
        {
            *place = original.clone();
        }
    }
}

/// One sentence of what will happen, from the tool's description and the arguments. Plain text.
pub fn sentence(tool: Option<&Tool>, name: &str, agent: &str, shown: &Shown) -> String {
    let words = tool.map(|tool| tool.description.as_ref()).unwrap_or_default();
    let first = words.split(['\n', '\r']).next().unwrap_or_default();
    let first = first.split_once(". ").map_or(first, |(first, _)| first).trim_end_matches('.');
    let does = match first.trim() {
        "" => format!("Call {name}"),
        first => visible(first),
    };
    let mut named: Vec<String> = shown.lines.iter().take(MAX_NAMED).map(named).collect();
    if shown.lines.len() > MAX_NAMED {
        named.push(format!("{} more", shown.lines.len() - MAX_NAMED));
    }
    let with = match named.is_empty() {
        true => "without arguments".to_owned(),
        false => format!("with {}", named.join(", ")),
    };
    format!("{does} (tool {name}), for agent {agent}, {with}.")
}

fn named(line: &Line) -> String {
    let mut value: String = line.value.chars().take(MAX_VALUE).collect();
    if value.len() < line.value.len() {
        value.push('…');
    }
    format!("{} = {value}", line.at.trim_start_matches('/'))
}

/// What stands where a secret stood.
fn marker(value: &Value) -> Value {
    let bytes = value.as_str().map_or_else(|| value.to_string().len(), str::len);
    Value::String(format!("hidden ({bytes} bytes)"))
}

fn is_secret(tool: Option<&Tool>, tokens: &[String]) -> bool {
    let by_name = tokens.last().is_some_and(|last| {
        let name = last.to_ascii_lowercase().replace('-', "_");
        SECRETS.contains(&name.as_str())
    });
    by_name || tool.is_some_and(|tool| tool.result.redact.iter().any(|path| path.leads_to(tokens)))
}

fn walk(
    value: &mut Value,
    tokens: &mut Vec<String>,
    is_secret: &dyn Fn(&[String]) -> bool,
    lines: &mut Vec<Line>,
    hidden: &mut Vec<String>,
) {
    let secret = !tokens.is_empty() && is_secret(tokens);
    if secret {
        hidden.push(pointer(tokens));
        *value = marker(value);
    }
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, member) in members {
                tokens.push(name.clone());
                walk(member, tokens, is_secret, lines, hidden);
                tokens.pop();
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (at, item) in items.iter_mut().enumerate() {
                tokens.push(at.to_string());
                walk(item, tokens, is_secret, lines, hidden);
                tokens.pop();
            }
        }
        // No arguments at all.
        Value::Object(_) if tokens.is_empty() => {}
        leaf @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => {
            if lines.len() < MAX_LINES {
                let (at, value) = (visible(&pointer(tokens)), visible(&leaf.to_string()));
                lines.push(Line { at, value, hidden: secret });
            }
        }
    }
}

fn pointer(tokens: &[String]) -> String {
    let mut text = String::new();
    tokens.iter().for_each(|token| push_token(&mut text, token));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_argument_has_a_line_and_secrets_are_hidden_with_their_size() {
        let asked = json!({
            "to": "a\u{202e}b", "n": 9_007_199_254_740_993_u64, "login": { "Password": "hunter2", "user": "x" },
            "list": [1, {}], "api-key": ["k"],
        });
        let shown = show(None, &asked);
        let lines: Vec<(&str, &str)> =
            shown.lines.iter().map(|line| (line.at.as_str(), line.value.as_str())).collect();
        assert_eq!(
            lines,
            [
                ("/to", "\"a⟨U+202E⟩b\""),
                ("/n", "9007199254740993"),
                ("/login/Password", "\"hidden (7 bytes)\""),
                ("/login/user", "\"x\""),
                ("/list/0", "1"),
                ("/list/1", "{}"),
                ("/api-key", "\"hidden (5 bytes)\""),
            ]
        );
        assert_eq!(shown.hidden, ["/login/Password", "/api-key"]);
        assert!(!shown.arguments.to_string().contains("hunter2"));
        assert_eq!(shown.arguments["to"], asked["to"], "the rest is exact");
    }

    #[test]
    fn what_was_hidden_and_left_alone_is_put_back() {
        let asked = json!({ "token": "abc", "n": 1 });
        let mut edited = show(None, &asked).arguments;
        edited["n"] = json!(2);
        unhide(None, &mut edited, &asked);
        assert_eq!(edited, json!({ "token": "abc", "n": 2 }));
        let mut other = json!({ "token": "new", "n": 1 });
        unhide(None, &mut other, &asked);
        assert_eq!(other["token"], "new");
    }

    #[test]
    fn the_sentence_is_one_plain_line() {
        let shown = show(None, &json!({ "a": "x\ny", "b": 1, "c": 2, "d": 3, "e": 4 }));
        let text = sentence(None, "pay", "billing", &shown);
        assert_eq!(
            text,
            "Call pay (tool pay), for agent billing, with a = \"x\\ny\", b = 1, c = 2, d = 3, 1 more."
        );
        let none = show(None, &json!({}));
        assert!(sentence(None, "pay", "billing", &none).ends_with("without arguments."));
    }
}
