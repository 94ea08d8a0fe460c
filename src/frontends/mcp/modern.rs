//! Requests of revision 2026-07-28 and later: who speaks is said on every one of them, and their headers must say what
//! the body says. What is obeyed is the body.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::wire::RpcError;
use crate::mcp::headers::{self, Standard};
use crate::mcp::jsonrpc::{HEADER_MISMATCH, INVALID_PARAMS, UNSUPPORTED_PROTOCOL_VERSION};
use crate::mcp::meta::{
    CLIENT_CAPABILITIES as CAPABILITIES, LOG_LEVEL, PROTOCOL_VERSION as VERSION,
};
use crate::mcp::version::{Era, Revision, SUPPORTED};

/// What a request says of its sender.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) revision: Revision,
    pub(super) capabilities: Arc<Value>,
    pub(super) log_level: Option<Arc<str>>,
}

fn meta(params: Option<&Value>) -> Option<&Map<String, Value>> {
    params?.get("_meta")?.as_object()
}

/// Whether a body speaks for itself as such a request.
pub(super) fn names_version(params: Option<&Value>) -> bool {
    meta(params).is_some_and(|meta| meta.contains_key(VERSION))
}

/// The revisions spoken here, newest first.
pub(super) fn supported() -> Value {
    SUPPORTED.iter().map(|revision| revision.as_str()).collect()
}

/// Reads who speaks. `headers`: those of HTTP, to be compared with the body.
pub(super) fn sender(
    headers: Option<Standard<'_>>,
    method: &str,
    params: Option<&Value>,
) -> Result<Sender, RpcError> {
    let lacks = |name: &str| {
        let at = name.replace('/', "~1");
        RpcError::new(INVALID_PARAMS, format!("/_meta/{at}: is missing")).status(400)
    };
    let meta = meta(params).ok_or_else(|| lacks(VERSION))?;
    let version = meta.get(VERSION).and_then(Value::as_str).ok_or_else(|| lacks(VERSION))?;
    let declared = meta.get(CAPABILITIES).filter(|declared| declared.is_object());
    let declared = declared.ok_or_else(|| lacks(CAPABILITIES))?;
    let known = Revision::parse(version).filter(|revision| revision.era() == Era::Modern);
    if let Some(headers) = headers {
        let told = headers.protocol_version;
        if known.is_some() || told != Some(version.as_bytes()) {
            headers::check_standard(headers, version, method, params)
                .map_err(|bad| mismatch(&bad))?;
        }
    }
    let revision = known.ok_or_else(|| unsupported(version))?;
    Ok(Sender {
        revision,
        capabilities: Arc::new(declared.clone()),
        log_level: meta.get(LOG_LEVEL).and_then(Value::as_str).map(Arc::from),
    })
}

pub(super) fn mismatch(mismatch: &headers::Mismatch) -> RpcError {
    RpcError::new(HEADER_MISMATCH, mismatch.to_string()).status(400)
}

fn unsupported(requested: &str) -> RpcError {
    RpcError::new(UNSUPPORTED_PROTOCOL_VERSION, "this revision is not spoken here")
        .data(json!({"supported": supported(), "requested": requested}))
        .status(400)
}
