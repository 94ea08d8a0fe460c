//! `checkrein approvals list|show|approve|edit|reject`: calls that wait for a person.

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::client::{Answer, Client};
use super::table::table;
use super::{Failure, Page, Target, change, piece, query, told, word};
use crate::cli::Exit;
use crate::strict_json::{self, Limits};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Calls that wait for a person, newest first
    List {
        #[arg(long, value_enum, default_value = "open")]
        state: State,
        /// Of this tool only
        #[arg(long)]
        tool: Option<String>,
        /// Of this agent only
        #[arg(long)]
        agent: Option<String>,
        #[command(flatten)]
        page: Page,
    },
    /// One of them: what would happen, with every argument
    Show {
        /// As the agent was told it: apr_…
        approval: String,
    },
    /// Let the agent make this very call, once
    Approve {
        approval: String,
        /// Recorded
        #[arg(long)]
        comment: Option<String>,
        #[command(flatten)]
        seen: SeenVersion,
    },
    /// Let the agent make it with other arguments, once
    Edit {
        approval: String,
        /// All arguments, as JSON; what was shown as hidden and is left so stays as it was
        #[arg(long, value_name = "JSON")]
        arguments: String,
        /// Why; recorded, and told to the agent
        #[arg(long)]
        comment: String,
        #[command(flatten)]
        seen: SeenVersion,
    },
    /// Say no to it
    Reject {
        approval: String,
        /// Why; recorded, and told to the agent
        #[arg(long)]
        comment: String,
        #[command(flatten)]
        seen: SeenVersion,
    },
}

/// What was decided on.
#[derive(Debug, clap::Args)]
struct SeenVersion {
    /// The version you decided on, as `show` prints it [default: the present one]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    Open,
    Over,
    All,
}

pub(in crate::cli) fn run(args: &Args) -> Exit {
    let target = &args.target;
    match &args.verb {
        Verb::List { state, tool, agent, page } => {
            let limit = page.limit.map(|limit| limit.to_string());
            let state = match state {
                State::Open => "open",
                State::Over => "over",
                State::All => "all",
            };
            let pairs = [
                ("state", Some(state)),
                ("tool", tool.as_deref()),
                ("agent", agent.as_deref()),
                ("limit", limit.as_deref()),
                ("cursor", page.cursor.as_deref()),
            ];
            let columns = ["approval", "state", "tool", "agent", "run", "asked", "expires"];
            told(
                target,
                |client| client.get(&format!("approvals{}", query(&pairs)?)),
                |body| table(body, "approvals", &columns, "nothing waits"),
            )
        }
        Verb::Show { approval } => {
            told(target, |client| client.get(&format!("approvals/{}", piece(approval)?)), card)
        }
        Verb::Approve { approval, comment, seen } => {
            let members = [
                ("decision", Some(json!("approve"))),
                ("comment", comment.as_ref().map(|comment| json!(comment))),
            ];
            decide(target, approval, seen, &members, None)
        }
        Verb::Edit { approval, arguments, comment, seen } => {
            let members = [("decision", Some(json!("edit"))), ("comment", Some(json!(comment)))];
            decide(target, approval, seen, &members, Some(arguments))
        }
        Verb::Reject { approval, comment, seen } => {
            let members = [("decision", Some(json!("reject"))), ("comment", Some(json!(comment)))];
            decide(target, approval, seen, &members, None)
        }
    }
}

fn decide(
    target: &Target,
    approval: &str,
    seen: &SeenVersion,
    members: &[(&str, Option<Value>)],
    arguments: Option<&String>,
) -> Exit {
    let ask = |client: &Client| {
        let mut members = members.to_vec();
        if let Some(text) = arguments {
            members.push(("arguments", Some(parsed(text)?)));
        }
        let path = format!("approvals/{}", piece(approval)?);
        decided(client, &path, seen.version.as_deref(), &change(client, &members))
    };
    told(target, ask, |body| match word(body, "state").as_str() {
        "approved" => "approved; the agent may make the call once, if it asks in time".to_owned(),
        state => state.to_owned(),
    })
}

/// Without a version the present one is decided on: read first, so that of two who decide at once one is refused.
fn decided(
    client: &Client,
    path: &str,
    version: Option<&str>,
    body: &Value,
) -> Result<Answer, Failure> {
    let version = match version {
        Some(version) => format!("\"{}\"", piece(version)?),
        None => {
            let now = client.get(path)?;
            match now.etag {
                Some(etag) if now.status == 200 => etag,
                Some(_) | None => return Ok(now),
            }
        }
    };
    client.post(&format!("{path}/decide"), Some(&version), body)
}

fn parsed(text: &str) -> Result<Value, Failure> {
    strict_json::parse(text.as_bytes(), Limits::answer(text.len()))
        .map_err(|fault| Failure::Usage(format!("--arguments is not JSON: {fault}")))
}

/// The card, in the order in which a person reads it.
fn card(body: &Value) -> String {
    let mut text = format!("{}\n\n", word(body, "sentence"));
    for name in ["approval", "state", "version", "tool", "effect", "agent", "run", "call", "why"] {
        text.push_str(&format!("{name:<10}{}\n", plain(&word(body, name))));
    }
    text.push_str(&format!("{:<10}{}\n", "asked", word(body, "asked")));
    let expires = word(body, "expires");
    if !expires.is_empty() {
        let left = body.get("left_ms").and_then(Value::as_u64).unwrap_or_default() / 1000;
        text.push_str(&format!("{:<10}{expires} (in {left} s)\n", "expires"));
    }
    for (title, name) in [("arguments", "lines"), ("edited to", "edited_lines")] {
        let Some(lines) = body.get(name).and_then(Value::as_array) else { continue };
        text.push_str(&format!("{title}\n"));
        for line in lines {
            text.push_str(&format!("  {} = {}\n", word(line, "at"), word(line, "value")));
        }
    }
    if let Some(by) = body.get("decided").filter(|by| by.is_object()) {
        let (decision, who) = (word(by, "decision"), plain(&word(by, "who")));
        text.push_str(&format!("decided   {decision} by {who}: {}\n", plain(&word(by, "comment"))));
    }
    if body.get("void") == Some(&Value::Bool(true)) {
        text.push_str(
            "void      the tool's rules have changed since it was asked: a yes is worth nothing\n",
        );
    }
    text
}

/// What is not shown line by line: ids and words of people.
fn plain(text: &str) -> String {
    crate::people::visible::visible(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_is_read_from_the_top_and_holds_nothing_invisible() {
        let text = card(&json!({
            "sentence": "Pay (tool pay), for agent a, with to = \"x\".", "approval": "apr_0011223344556677",
            "state": "pending", "version": "pending", "tool": "pay", "effect": "write", "agent": "a", "run": "r",
            "call": "c\u{202e}1", "why": "tools.pay.approval.when: always :5", "asked": "2026-01-01T00:00:00Z",
            "expires": "2026-01-01T00:15:00Z", "left_ms": 61_500, "lines": [{ "at": "/to", "value": "\"x\"" }],
            "decided": null, "void": false,
        }));
        assert!(text.starts_with("Pay (tool pay)"), "{text}");
        assert!(text.contains("call      c⟨U+202E⟩1\n") && text.contains("(in 61 s)"), "{text}");
        assert!(text.ends_with("arguments\n  /to = \"x\"\n"), "{text}");
    }
}
