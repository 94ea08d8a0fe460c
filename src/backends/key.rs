//! The key by which a tool recognises a write, put where the policy says. A write that must carry one never goes
//! without it.

use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use super::classify;
use crate::call::{Failed, SentKey, ToolCall};
use crate::policy::snapshot::{SentAs, Tool};

/// A key and its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key<'a> {
    sent_as: &'a SentAs,
    key: &'a SentKey,
}

impl<'a> Key<'a> {
    /// `None`: this tool takes none. `Err`: it does, and the call has none.
    pub(super) fn of(tool: &'a Tool, call: &'a ToolCall) -> Result<Option<Self>, Failed> {
        let idempotency = tool.write.as_ref().and_then(|write| write.idempotency.as_ref());
        let sent_as = match idempotency.map(|idempotency| &idempotency.sent_as) {
            Some(sent_as @ (SentAs::Header { .. } | SentAs::Argument(_))) => sent_as,
            Some(SentAs::Meta(_) | SentAs::Natural) | None => return Ok(None),
        };
        match &call.sent_key {
            Some(key) => Ok(Some(Self { sent_as, key })),
            None => Err(classify::not_sent("a write came to the back end without its key")),
        }
    }

    /// The arguments with the key among them, where it is one.
    pub(super) fn in_arguments(&self, tree: &Value) -> Option<Value> {
        let SentAs::Argument(name) = self.sent_as else { return None };
        let mut members = tree.as_object()?.clone();
        members.insert(name.clone(), Value::String(self.key.as_str().to_owned()));
        Some(Value::Object(members))
    }

    /// Sets the header, where it is one, in place of whatever had its name.
    pub(super) fn in_headers(&self, headers: &mut HeaderMap) -> Result<(), Failed> {
        let SentAs::Header { name, quoted } = self.sent_as else { return Ok(()) };
        let text = self.key.as_str();
        // RFC 8941 §3.3.3: nothing in base64url needs an escape.
        let text = if *quoted { format!("\"{text}\"") } else { text.to_owned() };
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| classify::not_sent("the key of a write cannot stand in a header"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Ok(())
    }
}
