//! `checkrein approvals`, `reviews`, `runs`, `breakers`, `mcp-tools`: what people ask of a running gateway, over its admin listener.
//!
//! Exit 0 = done, 1 = refused (also: somebody else was first), 2 = usage, 3 = nobody there, or no such id.

pub(super) mod approvals;
pub(super) mod breakers;
mod client;
pub(super) mod mcp_tools;
pub(super) mod reviews;
pub(super) mod runs;
mod table;

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Map, Value};

use self::client::{Answer, Client};
use super::{Exit, complain, say};
use crate::config::Listen;

/// Where the gateway is and who asks.
#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// The gateway's admin listener, as the gateway was given it
    #[arg(
        long,
        env = "CHECKREIN_ADMIN",
        value_name = "unix:PATH|ADDRESS:PORT",
        default_value = "127.0.0.1:7413",
        global = true
    )]
    admin: Listen,
    /// A file with your token, or with several, `NAME TOKEN` a line
    #[arg(long, env = "CHECKREIN_ADMIN_TOKEN_FILE", value_name = "FILE", global = true)]
    admin_token_file: Option<PathBuf>,
    /// Your name, for the record; it picks the token where the file holds several
    #[arg(long = "as", value_name = "NAME", global = true)]
    name: Option<String>,
    /// How the answer is printed
    #[arg(short, long, value_enum, default_value = "text", value_name = "FORM", global = true)]
    output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// The page of a list.
#[derive(Debug, clap::Args)]
struct Page {
    /// At most this many, 1 to 200
    #[arg(long, value_name = "N")]
    limit: Option<u16>,
    /// Go on where an earlier list ended
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// Why a verb did not come to an answer.
enum Failure {
    Usage(String),
    Unreachable(String),
}

/// Sends one request and prints what came of it.
fn told(
    target: &Target,
    ask: impl FnOnce(&Client) -> Result<Answer, Failure>,
    text: impl FnOnce(&Value) -> String,
) -> Exit {
    let client = match Client::new(
        &target.admin,
        target.admin_token_file.as_deref(),
        target.name.as_deref(),
    ) {
        Ok(client) => client,
        Err(why) => {
            complain(&format!("error: {why}"));
            return Exit::Usage;
        }
    };
    match ask(&client) {
        Ok(answer) => shown(target.output, &answer, text),
        Err(Failure::Usage(why)) => {
            complain(&format!("error: {why}"));
            Exit::Usage
        }
        Err(Failure::Unreachable(why)) => {
            complain(&format!("no gateway answers on {}: {why}", target.admin));
            Exit::Unreachable
        }
    }
}

fn shown(form: Form, answer: &Answer, text: impl FnOnce(&Value) -> String) -> Exit {
    if (200..300).contains(&answer.status) {
        say(&match form {
            Form::Json => answer.body.to_string(),
            Form::Text => text(&answer.body),
        });
        return Exit::Ok;
    }
    if form == Form::Json {
        say(&answer.body.to_string());
    }
    complain(&format!("refused ({}): {}", answer.status, word(&answer.body, "detail")));
    if answer.status == 404 { Exit::Unreachable } else { Exit::Findings }
}

/// A member as people read it; nothing for one that is not there.
fn word(value: &Value, name: &str) -> String {
    match value.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Ids and names stand in paths as they are: what could be more than one piece of a path is none.
fn piece(text: &str) -> Result<&str, Failure> {
    let sound =
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b));
    let why = || Failure::Usage(format!("`{text}` is no id and no name"));
    if sound { Ok(text) } else { Err(why()) }
}

/// A query of what was given; values are names and cursors.
fn query(pairs: &[(&str, Option<&str>)]) -> Result<String, Failure> {
    let mut query = String::new();
    for (name, value) in pairs {
        let Some(value) = value else { continue };
        let start = if query.is_empty() { '?' } else { '&' };
        query.push_str(&format!("{start}{name}={}", piece(value)?));
    }
    Ok(query)
}

/// The body of a change, with the name of who asks where the token does not say it.
fn change(client: &Client, members: &[(&str, Option<Value>)]) -> Value {
    let mut body = Map::new();
    for (name, value) in members {
        if let Some(value) = value {
            body.insert((*name).to_owned(), value.clone());
        }
    }
    if let Some(who) = client.who() {
        body.insert("who".to_owned(), who.into());
    }
    Value::Object(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_one_piece_of_a_path_is_sent_as_one() {
        for sound in ["op_0123456789abcdef", "run:1.a-b", "send_notice"] {
            assert!(piece(sound).is_ok(), "{sound}");
        }
        for bad in ["", "a/b", "a?b", "..%2f", "a b", "ä", "a\r\nb"] {
            assert!(piece(bad).is_err(), "{bad:?}");
        }
        let pairs = [("a", Some("1")), ("b", None), ("c", Some("x-1"))];
        assert_eq!(query(&pairs).ok().as_deref(), Some("?a=1&c=x-1"));
    }
}
