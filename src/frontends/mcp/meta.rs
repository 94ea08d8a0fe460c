//! `_meta` of a request: what is ours is taken out of it, what is the protocol's is rebuilt for the next hop, the rest
//! goes on to a server.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Asking;
use super::wire::RpcError;
use crate::call::{CallerKey, RunId};
use crate::frontends::request::TIMEOUT_MOST;
use crate::mcp::jsonrpc::INVALID_PARAMS;

const RUN: &str = "io.checkrein/run";
const KEY: &str = "io.checkrein/idempotency-key";
const TIMEOUT: &str = "io.checkrein/timeout-ms";

/// Bytes of what goes on to a server.
const MAX_PASSED: usize = 8 * 1024;

/// What a request says of its call beside its arguments.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) run: Option<RunId>,
    pub(super) timeout: Option<Duration>,
    pub(super) caller_key: Option<CallerKey>,
    /// Goes on to a server.
    pub(super) passed: Map<String, Value>,
}

/// Reads it, together with the head's fields. What stands in both must be the same.
pub(super) fn read(asking: &Asking, meta: Option<&Map<String, Value>>) -> Result<Said, RpcError> {
    let mut said = Said {
        run: asking.run.clone(),
        timeout: asking.timeout,
        caller_key: asking.caller_key.clone(),
        passed: Map::new(),
    };
    let Some(meta) = meta else { return Ok(said) };
    if let Some(value) = meta.get(RUN) {
        let run = RunId::new(text(RUN, value)?).map_err(|bad| wrong(RUN, &bad.to_string()))?;
        agree(RUN, &mut said.run, run)?;
    }
    if let Some(value) = meta.get(KEY) {
        let key = CallerKey::new(text(KEY, value)?).map_err(|bad| wrong(KEY, &bad.to_string()))?;
        agree(KEY, &mut said.caller_key, key)?;
    }
    if let Some(value) = meta.get(TIMEOUT) {
        let ms = value.as_u64().filter(|ms| *ms > 0);
        let ms = ms.ok_or_else(|| wrong(TIMEOUT, "must be a whole number, 1 or more"))?;
        agree(TIMEOUT, &mut said.timeout, Duration::from_millis(ms).min(TIMEOUT_MOST))?;
    }
    let others = meta.iter().filter(|(key, _)| goes_on(key));
    said.passed = others.map(|(key, value)| (key.clone(), value.clone())).collect();
    let bytes: usize = said.passed.iter().map(|(k, v)| k.len() + v.to_string().len()).sum();
    if bytes > MAX_PASSED {
        let words = format!("/_meta: {bytes} bytes are more than the {MAX_PASSED} that go on");
        return Err(RpcError::new(INVALID_PARAMS, words).status(400));
    }
    Ok(said)
}

fn goes_on(key: &str) -> bool {
    let taken = matches!(key, "progressToken" | "baggage");
    !taken && !key.starts_with("io.checkrein/") && !key.starts_with("io.modelcontextprotocol/")
}

fn text<'v>(key: &str, value: &'v Value) -> Result<&'v str, RpcError> {
    value.as_str().ok_or_else(|| wrong(key, "must be a string"))
}

fn agree<T: PartialEq>(key: &str, known: &mut Option<T>, told: T) -> Result<(), RpcError> {
    if known.as_ref().is_some_and(|known| *known != told) {
        return Err(wrong(key, "is not what the head of the request says"));
    }
    *known = Some(told);
    Ok(())
}

fn wrong(key: &str, why: &str) -> RpcError {
    RpcError::new(INVALID_PARAMS, format!("/_meta/{}: {why}", key.replace('/', "~1"))).status(400)
}
