//! What a server wants from the agent before it goes on (2026-07-28, multi round-trip requests).

use serde_json::{Map, Value};

use super::Wrong;

/// Questions one result may ask: each becomes a request to a person or a model.
pub const MAX_ASKS: usize = 64;

/// What kind of thing is asked; each needs a capability the client declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AskKind {
    /// `elicitation/create`, by form (also where no mode is named).
    ElicitForm,
    /// `elicitation/create` with `mode: url`.
    ElicitUrl,
    /// `sampling/createMessage`.
    Sampling,
    /// `roots/list`.
    Roots,
}

impl AskKind {
    /// The kind of a request by its method and `params`; `None` for any other method or mode.
    pub fn of(method: &str, params: Option<&Value>) -> Option<Self> {
        match method {
            "elicitation/create" => match params.and_then(|params| params.get("mode")) {
                None => Some(Self::ElicitForm),
                Some(mode) => match mode.as_str() {
                    Some("form") => Some(Self::ElicitForm),
                    Some("url") => Some(Self::ElicitUrl),
                    _ => None,
                },
            },
            "sampling/createMessage" => Some(Self::Sampling),
            "roots/list" => Some(Self::Roots),
            _ => None,
        }
    }

    pub const fn method(self) -> &'static str {
        match self {
            Self::ElicitForm | Self::ElicitUrl => "elicitation/create",
            Self::Sampling => "sampling/createMessage",
            Self::Roots => "roots/list",
        }
    }
}

/// One question of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask<'r> {
    /// The server's key; the answer goes back under it.
    pub key: &'r str,
    pub kind: AskKind,
    pub params: Option<&'r Value>,
}

/// A result with `resultType: input_required`.
#[derive(Debug, Clone, PartialEq)]
pub struct InputRequired<'r> {
    /// In the server's order; empty where it only wants to be asked again.
    pub requests: Vec<Ask<'r>>,
    /// To be given back exactly; `None` means none may be sent.
    pub state: Option<&'r str>,
}

impl<'r> InputRequired<'r> {
    /// Reads such a result: at least one of questions and state, at most [`MAX_ASKS`] questions of the known kinds.
    pub fn of(result: &'r Value) -> Result<Self, Wrong> {
        let requests = match result.get("inputRequests") {
            None => None,
            Some(Value::Object(requests)) => Some(asks(requests)?),
            Some(
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_),
            ) => return Err(Wrong::new("/inputRequests", "must be an object")),
        };
        let state = match result.get("requestState") {
            None => None,
            Some(Value::String(state)) => Some(state.as_str()),
            Some(
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::Array(_)
                | Value::Object(_),
            ) => return Err(Wrong::new("/requestState", "must be a string")),
        };
        if requests.is_none() && state.is_none() {
            return Err(Wrong::new("", "has neither `inputRequests` nor `requestState`"));
        }
        Ok(Self { requests: requests.unwrap_or_default(), state })
    }
}

fn asks(requests: &Map<String, Value>) -> Result<Vec<Ask<'_>>, Wrong> {
    if requests.len() > MAX_ASKS {
        let words = format!("{} questions are more than {MAX_ASKS}", requests.len());
        return Err(Wrong::new("/inputRequests", words));
    }
    requests
        .iter()
        .map(|(key, request)| {
            let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
            let params = request.get("params");
            match AskKind::of(method, params) {
                Some(kind) => Ok(Ask { key, kind, params }),
                None => {
                    let words =
                        "must be `elicitation/create`, `sampling/createMessage` or `roots/list`";
                    Err(Wrong::new("/inputRequests", words))
                }
            }
        })
        .collect()
}
