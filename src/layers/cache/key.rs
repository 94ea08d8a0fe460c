//! What "the same question" is: everything that an answer may depend on.

use serde_json::{Map, Value};

use crate::call::canonical::canonical;
use crate::call::{Digest, Side, ToolCall};
use crate::policy::snapshot::{MayAsk, McpTool, Reach, Share, Target, Tool};

/// Members of `_meta` that follow a call and change no answer (W3C Trace Context, Baggage).
const TRACES: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// Of one question; tells scopes, tools, editions of a tool's policy and arguments apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(pub(super) Digest);

/// `None`: what it is answered hangs on more than can be told apart, so nothing of it is kept.
pub(super) fn key(tool: &Tool, global: bool, call: &ToolCall) -> Option<Key> {
    let mut parts: Vec<Vec<u8>> = vec![b"checkrein/cache/v1".to_vec()];
    // Another number of parts: no agent's name runs into it.
    parts.extend((!global).then(|| call.agent.as_str().into()));
    // Also the tool's own definition, its upstream, and every key of its policy.
    parts.push(tool.section.as_bytes().to_vec());
    parts.push(tool.name.as_str().into());
    let mut side = None;
    match &tool.target {
        Target::Http(_) => {}
        Target::Mcp(mcp) => side = Some(of_server(mcp, global, call)?),
        Target::Proxy(_) | Target::Passed => return None,
    }
    parts.push(call.arguments()?.digest(&tool.volatile).as_bytes().to_vec());
    parts.extend(side.map(|digest| digest.as_bytes().to_vec()));
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Some(Key(Digest::of_parts(&parts)))
}

/// A server may answer by whose session it is in, and by what comes with the call.
fn of_server(mcp: &McpTool, global: bool, call: &ToolCall) -> Option<Digest> {
    let side = call.side.as_deref();
    if let Some(side) = side
        && (side.continuation.is_some() || may_be_asked(mcp.server.may_ask, side))
    {
        return None;
    }
    let child = matches!(mcp.server.reach, Reach::Child(_));
    // One child serves all sessions of its owner.
    let session = side.and_then(|side| side.session.as_deref()).filter(|_| !child);
    let (session, run) = match mcp.server.share {
        // The policy says that the answer is the same for everybody.
        _ if global => (None, None),
        Share::All => (None, None),
        Share::Agent => (session, None),
        Share::Run => (session, Some(call.run.as_str())),
    };
    let (meta, fields) = side.map(brought).unwrap_or_default();
    let text = |text: Option<&str>| text.map_or(Vec::new(), |text| format!(".{text}").into_bytes());
    Some(Digest::of_parts(&[&text(session), &text(run), &meta, &fields]))
}

/// What goes on to the server beside the arguments.
fn brought(side: &Side) -> (Vec<u8>, Vec<u8>) {
    let kept = side.meta.iter().filter(|(name, _)| !TRACES.contains(&name.as_str()));
    let meta: Map<String, Value> =
        kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    let fields = side.param_headers.iter();
    let fields = fields.map(|(name, value)| Value::from(vec![name.as_str(), value.as_str()]));
    (canonical(&Value::Object(meta)), canonical(&Value::Array(fields.collect())))
}

/// Whether the server may put a question to this call's agent: the answer is then to what it was answered.
fn may_be_asked(may_ask: MayAsk, side: &Side) -> bool {
    let MayAsk { elicitation, sampling, roots } = may_ask;
    let declares = |name: &str| side.capabilities.get(name).is_some();
    (elicitation && declares("elicitation"))
        || (sampling && declares("sampling"))
        || (roots && declares("roots"))
}
