//! What a request says of its call beside its arguments: by `_meta`, by fields of its head, or by both alike.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Asking;
use super::wire::RpcError;
use crate::call::{CallerKey, RunId};
use crate::frontends::request::TIMEOUT_MOST;
use crate::mcp::jsonrpc::INVALID_PARAMS;
use crate::mcp::meta::{
    FromAgent, IDEMPOTENCY_KEY, MAX_TRACESTATE, RUN, TIMEOUT_MS, TRACEPARENT, TRACESTATE,
    is_traceparent,
};

#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) run: Option<RunId>,
    pub(super) timeout: Option<Duration>,
    pub(super) caller_key: Option<CallerKey>,
    /// Goes on to a server.
    pub(super) passed: Map<String, Value>,
    /// `params` of a call of a tool as they were shaped, where that is not the usual way.
    pub(super) shape: Option<std::sync::Arc<Map<String, Value>>>,
}

/// Reads it. What stands in `_meta` and in the head must be the same; nothing is guessed.
pub(super) fn read(asking: &Asking, meta: Option<&Map<String, Value>>) -> Result<Said, RpcError> {
    let meta = FromAgent::of(meta).map_err(|bad| super::calls::bad_params(&bad))?;
    let run = meta.run.map(RunId::new).transpose();
    let run = run.map_err(|bad| wrong(RUN, &bad.to_string()))?;
    let key = meta.idempotency_key.map(CallerKey::new).transpose();
    let key = key.map_err(|bad| wrong(IDEMPOTENCY_KEY, &bad.to_string()))?;
    let timeout = match meta.timeout_ms {
        Some(0) => return Err(wrong(TIMEOUT_MS, "must be 1 or more")),
        Some(ms) => Some(Duration::from_millis(ms).min(TIMEOUT_MOST)),
        None => None,
    };
    let mut passed = meta.pass;
    // A malformed one is absent, wherever it stands.
    let (parent, state) = match meta.traceparent {
        Some(parent) => (Some(parent), meta.tracestate),
        None => {
            let parent = asking.trace.0.as_deref().filter(|parent| is_traceparent(parent));
            let state = asking.trace.1.as_deref().filter(|state| state.len() <= MAX_TRACESTATE);
            (parent, state.filter(|_| parent.is_some()))
        }
    };
    for (name, value) in [(TRACEPARENT, parent), (TRACESTATE, state)] {
        if let Some(value) = value {
            passed.insert(name.to_owned(), value.into());
        }
    }
    Ok(Said {
        run: agreed(RUN, &asking.run, run)?,
        timeout: agreed(TIMEOUT_MS, &asking.timeout, timeout)?,
        caller_key: agreed(IDEMPOTENCY_KEY, &asking.caller_key, key)?,
        passed,
        shape: None,
    })
}

fn agreed<T: PartialEq + Clone>(
    key: &str,
    head: &Option<T>,
    meta: Option<T>,
) -> Result<Option<T>, RpcError> {
    match (head, meta) {
        (Some(head), Some(meta)) if *head != meta => {
            Err(wrong(key, "is not what the head of the request says"))
        }
        (Some(known), _) => Ok(Some(known.clone())),
        (None, meta) => Ok(meta),
    }
}

fn wrong(key: &str, why: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("/_meta/{}: {why}", key.replace('/', "~1"))).status(400)
}
