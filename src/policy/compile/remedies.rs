//! Keys that tools recognise and questions that they answer, compiled.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use crate::call::ToolName;
use crate::policy::document::{self as written, KeyMode, Maybe};
use crate::policy::merge::{get, narrow};
use crate::policy::snapshot::{Idempotency, QueryArgument, SentAs, StatusQuery};

/// Time a tool is given to know of a write itself.
const DEFAULT_SETTLE: Duration = Duration::from_secs(2);
const DEFAULT_TRIES: u64 = 3;

/// The header that carries a key where the policy names none (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

pub(super) fn idempotency(section: &Maybe<written::Idempotency>) -> Option<Idempotency> {
    let written = &section.as_ref()?.value;
    let sent_as = match get(&written.mode)? {
        KeyMode::Header => {
            let name = written.name.as_ref().map(|name| name.value.as_str());
            let name = name.and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok());
            SentAs::Header {
                name: name.unwrap_or(IDEMPOTENCY_KEY),
                quoted: get(&written.quoted).unwrap_or(false),
            }
        }
        KeyMode::Argument => SentAs::Argument(written.argument()?),
        KeyMode::Meta => SentAs::Meta(written.name.as_ref()?.value.as_str().into()),
        KeyMode::Natural => SentAs::Natural,
    };
    Some(Idempotency { sent_as, window: get(&written.window) })
}

/// The key of `_meta` that carries it.
pub(super) fn meta_key(section: &Maybe<written::Idempotency>) -> Option<Arc<str>> {
    match idempotency(section)?.sent_as {
        SentAs::Meta(name) => Some(name),
        SentAs::Header { .. } | SentAs::Argument(_) | SentAs::Natural => None,
    }
}

pub(super) fn status_query(section: &Maybe<written::StatusQuery>) -> Option<StatusQuery> {
    let written = &section.as_ref()?.value;
    let all = written.arguments.iter().flat_map(|arguments| &arguments.value);
    let mut arguments: Vec<(String, QueryArgument)> =
        all.filter_map(|(name, at)| Some((name.clone(), argument(&at.value)?))).collect();
    // The order of keys in a policy means nothing.
    arguments.sort_by(|a, b| a.0.cmp(&b.0));
    Some(StatusQuery {
        tool: ToolName::new(&written.tool.as_ref()?.value).ok()?,
        arguments,
        executed_when: get(&written.executed_when)?,
        not_executed_when: get(&written.not_executed_when),
        settle: get(&written.settle).unwrap_or(DEFAULT_SETTLE),
        tries: narrow(get(&written.tries).unwrap_or(DEFAULT_TRIES)),
    })
}

fn argument(written: &written::QueryArgument) -> Option<QueryArgument> {
    match (&written.from, &written.value) {
        (Some(from), _) => Some(QueryArgument::From(from.value.clone())),
        (None, Some(value)) => Some(QueryArgument::Value(value.value.clone())),
        (None, None) => written.key.then_some(QueryArgument::Key),
    }
}
