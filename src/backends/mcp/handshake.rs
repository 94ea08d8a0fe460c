//! How we meet a server, as a client of either era: what is said, and what its answer comes to. Pure; links carry it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::link::{Lost, Met, Reply};
use crate::mcp::jsonrpc::{self, ErrorReply, UNSUPPORTED_PROTOCOL_VERSION};
use crate::mcp::messages::{DiscoverResult, InitializeResult, TASKS};
use crate::mcp::version::{Era, Revision};

/// Keys of `_meta` that a modern request carries (2026-07-28, basic).
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// How long a server may be silent on the question of its era.
pub(super) const PROBE: Duration = Duration::from_secs(5);

/// What the question of the era came to.
#[derive(Debug)]
pub(super) enum Probed {
    Modern(Arc<Met>),
    /// Perhaps legacy: only `initialize` tells.
    Perhaps,
}

/// Who we are; it decides nothing anywhere.
fn client_info() -> Value {
    json!({"name": "checkrein", "version": env!("CARGO_PKG_VERSION")})
}

/// Revisions a policy offers to a server, newest first. Words that name none are the policy's to refuse.
pub(super) fn offered(protocol: &[Arc<str>]) -> Vec<Revision> {
    let mut revisions: Vec<Revision> =
        protocol.iter().filter_map(|text| Revision::parse(text)).collect();
    revisions.sort_unstable_by(|a, b| b.cmp(a));
    revisions.dedup();
    revisions
}

/// The newest offered revision of an era.
pub(super) fn newest(offered: &[Revision], era: Era) -> Option<Revision> {
    offered.iter().copied().find(|revision| revision.era() == era)
}

/// The `params` of `initialize`.
pub(super) fn initialize(revision: Revision, capabilities: &Value) -> Value {
    json!({
        "protocolVersion": revision.as_str(),
        "capabilities": capabilities,
        "clientInfo": client_info(),
    })
}

/// What an answer to `initialize` agrees on. A server may answer with a revision that it was not asked for; what we do
/// not speak ends it. The two oldest are read like their successors (the wire is the same for what we use).
pub(super) fn initialized(result: &Value) -> Result<Met, String> {
    let answer = InitializeResult::of(result).map_err(|wrong| format!("`initialize`: {wrong}"))?;
    let revision = Revision::parse(answer.protocol_version)
        .filter(|revision| revision.era() == Era::Legacy)
        .ok_or_else(|| {
            let told: String = answer.protocol_version.chars().take(40).collect();
            format!(
                "`initialize` was answered with the revision `{told}`, which is not spoken here"
            )
        })?;
    Ok(Met { revision, capabilities: result.get("capabilities").cloned().unwrap_or_else(empty) })
}

/// What an answer to `server/discover` agrees on: the newest revision of both. `Ok(None)`: a modern server with which
/// we share none.
pub(super) fn discovered(result: &Value, offered: &[Revision]) -> Result<Option<Met>, String> {
    let answer =
        DiscoverResult::of(result).map_err(|wrong| format!("`server/discover`: {wrong}"))?;
    let shared = |revision: &&Revision| answer.supported_versions.contains(&revision.as_str());
    let Some(revision) = offered.iter().find(shared).copied() else { return Ok(None) };
    Ok(Some(Met {
        revision,
        capabilities: result.get("capabilities").cloned().unwrap_or_else(empty),
    }))
}

/// `params` as a modern server wants them: who speaks, which revision, what can be asked, on every request.
pub(super) fn modern(params: Value, revision: Revision, capabilities: &Value) -> Value {
    let mut members = match params {
        Value::Object(members) => members,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    };
    let meta = members.entry("_meta").or_insert_with(empty);
    if !meta.is_object() {
        *meta = empty();
    }
    if let Some(meta) = meta.as_object_mut() {
        meta.insert(VERSION.into(), revision.as_str().into());
        meta.insert(CLIENT.into(), client_info());
        meta.insert(CAPABILITIES.into(), capabilities.clone());
    }
    Value::Object(members)
}

/// Among what a request declares: that its server may answer with a task, or that it is about one (SEP-2663).
pub(super) fn declare_tasks(capabilities: &mut Value) {
    if let Some(members) = capabilities.as_object_mut() {
        members.insert("extensions".into(), json!({ TASKS: {} }));
    }
}

/// What an answer to `server/discover` proves. `Err`: a modern server with which we share no revision.
pub(super) fn probed(
    answer: &Reply,
    modern: Revision,
    offered: &[Revision],
) -> Result<Probed, Lost> {
    match answer {
        Reply::Result(result) => match discovered(result, offered) {
            Ok(Some(met)) if met.revision.era() == Era::Modern => Ok(Probed::Modern(Arc::new(met))),
            Ok(Some(_)) => Ok(Probed::Perhaps),
            Ok(None) => Err(no_revision_shared(result)),
            Err(_) => Ok(Probed::Perhaps),
        },
        Reply::Error(error) => told_by_error(error, modern, offered),
    }
}

/// A modern error proves a modern server; any other one proves nothing.
fn told_by_error(
    error: &ErrorReply,
    modern: Revision,
    offered: &[Revision],
) -> Result<Probed, Lost> {
    let data = error.data.clone().unwrap_or_default();
    if error.code == UNSUPPORTED_PROTOCOL_VERSION {
        let supported = data.get("supported").and_then(Value::as_array);
        let supports = |revision: &Revision| {
            supported.is_some_and(|texts| texts.iter().any(|text| text == revision.as_str()))
        };
        return match offered.iter().find(|revision| supports(revision)) {
            Some(revision) if revision.era() == Era::Modern => Ok(assumed(*revision)),
            Some(_) => Ok(Probed::Perhaps),
            None => Err(no_revision_shared(&data)),
        };
    }
    if jsonrpc::is_modern_code(error.code) {
        return Ok(assumed(modern));
    }
    Ok(Probed::Perhaps)
}

/// A modern server that would not say what it offers: its lists will.
fn assumed(revision: Revision) -> Probed {
    let capabilities = json!({"tools": {}});
    Probed::Modern(Arc::new(Met { revision, capabilities }))
}

fn no_revision_shared(told: &Value) -> Lost {
    let mut supported = told
        .get("supportedVersions")
        .or_else(|| told.get("supported"))
        .map(Value::to_string)
        .unwrap_or_default();
    if let Some((end, _)) = supported.char_indices().nth(120) {
        supported.truncate(end);
    }
    Lost::Unusable(format!("the server speaks none of the revisions it is offered: {supported}"))
}

fn empty() -> Value {
    Value::Object(Map::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_a_revision_that_is_not_spoken_ends_the_session() {
        for version in ["2099-01-01", "2026-07-28", "1.0", ""] {
            let answer = json!({"protocolVersion": version, "capabilities": {}});
            assert!(initialized(&answer).is_err(), "{version}");
        }
        let answer = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}});
        let met = initialized(&answer).expect("spoken");
        assert_eq!(met.revision, Revision::V2025_06_18);
        assert_eq!(met.capabilities, json!({"tools": {}}));
    }

    #[test]
    fn the_newest_revision_of_both_is_taken_and_none_is_no_fault() {
        let offered = offered(&["2025-11-25".into(), "2026-07-28".into()]);
        assert_eq!(offered, [Revision::V2026_07_28, Revision::V2025_11_25]);
        let answer = json!({"supportedVersions": ["2031-01-01", "2026-07-28"]});
        let met = discovered(&answer, &offered).expect("a discovery").expect("shared");
        assert_eq!(met.revision, Revision::V2026_07_28);
        let strange = json!({"supportedVersions": ["2031-01-01"]});
        assert!(discovered(&strange, &offered).expect("a discovery").is_none());
        assert!(discovered(&json!({"ok": true}), &offered).is_err());
    }

    #[test]
    fn a_modern_request_says_who_speaks_and_keeps_what_was_there() {
        let text = br#"{"name":"x","_meta":{"a.example/k":1.50}}"#;
        let params = crate::strict_json::parse(text, crate::strict_json::Limits::answer(100));
        let params = params.expect("sound");
        let params = modern(params, Revision::V2026_07_28, &json!({"sampling": {}}));
        let meta = params.get("_meta").expect("there");
        assert_eq!(meta.get("a.example/k").map(ToString::to_string).as_deref(), Some("1.50"));
        assert_eq!(meta.get(VERSION), Some(&json!("2026-07-28")));
        assert_eq!(meta.get(CAPABILITIES), Some(&json!({"sampling": {}})));
    }
}
