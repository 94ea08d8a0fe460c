//! `checkrein mcp-tools list|show|approve`: tools of MCP servers whose definition has changed since it was trusted.

use clap::Subcommand;
use serde_json::{Value, json};

use super::table::table;
use super::{Target, change, piece, told, word};
use crate::cli::Exit;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Every changed tool
    List,
    /// What was trusted and what is offered now, side by side
    Show {
        server: String,
        /// The server's own name of one tool; all of them without it
        tool: Option<String>,
    },
    /// Trust what is offered now
    Approve {
        server: String,
        /// The server's own name of it
        tool: String,
        /// The definition you looked at, as `show` names it
        #[arg(long, value_name = "sha256:…")]
        pin: String,
        /// Recorded
        #[arg(long)]
        why: String,
    },
}

pub(in crate::cli) fn run(args: &Args) -> Exit {
    let target = &args.target;
    match &args.verb {
        Verb::List => told(
            target,
            |client| client.get("mcp-tools"),
            |body| {
                let columns = ["server", "tool", "state", "approve_by", "why"];
                table(body, "tools", &columns, "no tool has changed")
            },
        ),
        Verb::Show { server, tool } => told(
            target,
            |client| client.get(&format!("mcp-tools/{}", piece(server)?)),
            |body| shown(body, tool.as_deref()),
        ),
        Verb::Approve { server, tool, pin, why } => told(
            target,
            |client| {
                let said = [
                    ("tool", Some(json!(tool))),
                    ("pin", Some(json!(pin))),
                    ("why", Some(json!(why))),
                ];
                let body = change(client, &said);
                client.post(&format!("mcp-tools/{}/approve", piece(server)?), None, &body)
            },
            |_| "trusted".to_owned(),
        ),
    }
}

/// Members that differ, the old one above the new. Definitions are a server's words: what could move a cursor is not
/// printed.
fn shown(body: &Value, wanted: Option<&str>) -> String {
    let tools = body.get("tools").and_then(Value::as_array);
    let mut text = String::new();
    for tool in tools.into_iter().flatten() {
        let name = word(tool, "tool");
        if wanted.is_some_and(|wanted| wanted != name) {
            continue;
        }
        text.push_str(&format!("{name}  {}\n", word(tool, "why")));
        text.push_str(&format!("pin  {}\n", word(tool, "pin")));
        let old = tool.get("old").filter(|old| !old.is_null());
        if old.is_none() {
            text.push_str("what was trusted was not kept\n");
        }
        let new = tool.get("new").unwrap_or(&Value::Null);
        let none = serde_json::Map::new();
        let members = |of: Option<&Value>| of.and_then(Value::as_object).cloned();
        let (old, new) = (members(old).unwrap_or_default(), members(Some(new)).unwrap_or(none));
        let names = new.keys().chain(old.keys().filter(|name| !new.contains_key(*name)));
        for name in names.filter(|name| old.get(*name) != new.get(*name)) {
            for (mark, side) in [('-', &old), ('+', &new)] {
                if let Some(value) = side.get(name) {
                    text.push_str(&format!("{mark} {name}: {value}\n"));
                }
            }
        }
        text.push('\n');
    }
    if text.is_empty() {
        return "no tool has changed".to_owned();
    }
    // Nothing in a definition hides, turns text around or moves the cursor.
    let lines = text.trim_end().lines().map(crate::people::visible::visible);
    lines.collect::<Vec<String>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_shown_and_nothing_moves_the_cursor() {
        let body = json!({"tools": [
            {"tool": "a", "why": "changed", "pin": "sha256:1", "old": {"name": "a", "description": "Looks."},
             "new": {"name": "a", "description": "\u{1b}[2J", "title": "T"}},
            {"tool": "b", "why": "new", "pin": "sha256:2", "old": null, "new": {"name": "b"}},
        ]});
        assert_eq!(
            shown(&body, Some("a")),
            "a  changed\npin  sha256:1\n- description: \"Looks.\"\n+ description: \"\\u001b[2J\"\n+ title: \"T\""
        );
        assert!(shown(&body, None).contains("what was trusted was not kept\n+ name: \"b\""));
        assert_eq!(shown(&body, Some("c")), "no tool has changed");
    }
}
