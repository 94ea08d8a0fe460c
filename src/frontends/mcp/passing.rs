//! What servers offer besides tools, where the policy passes it: resources, prompts, completion. There is no result for
//! a refusal here, so it is a JSON-RPC error with the same object in it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::calls::{asker, bad_params, side};
use super::methods::{Answered, finished, unknown_method};
use super::state::{Bound, Kept};
use super::wire::{OUTCOME, RpcError, Wire, outcome_of, wire_of};
use super::{Asking, Mcp, lists, meta};
use crate::call::code::DenyCode;
use crate::call::{CallError, Denied, Digest, MAX_ROUNDS};
use crate::engine::mcp::{Offers, PassError, PassMethod};
use crate::frontends::render;
use crate::mcp::jsonrpc::{self, INTERNAL_ERROR, INVALID_PARAMS, RESOURCE_NOT_FOUND};
use crate::mcp::messages::{List, ReadParams, ResultKind};
use crate::mcp::meta::to_agent;
use crate::mcp::translate::{ErrorImage, error_for};
use crate::mcp::version::Era;
use crate::strict_json::{self, Limits};

fn is_offered(offers: Offers, method: PassMethod) -> bool {
    match method {
        PassMethod::ResourcesList
        | PassMethod::ResourceTemplatesList
        | PassMethod::ResourcesRead => offers.resources,
        PassMethod::ResourcesSubscribe | PassMethod::ResourcesUnsubscribe => {
            offers.resources && offers.subscribe
        }
        PassMethod::PromptsList | PassMethod::PromptsGet => offers.prompts,
        PassMethod::Complete => offers.completion,
        PassMethod::SetLevel => offers.logging,
    }
}

fn name_of(method: PassMethod) -> &'static str {
    match method {
        PassMethod::ResourcesList => "resources/list",
        PassMethod::ResourceTemplatesList => "resources/templates/list",
        PassMethod::ResourcesRead => "resources/read",
        PassMethod::ResourcesSubscribe => "resources/subscribe",
        PassMethod::ResourcesUnsubscribe => "resources/unsubscribe",
        PassMethod::PromptsList => "prompts/list",
        PassMethod::PromptsGet => "prompts/get",
        PassMethod::Complete => "completion/complete",
        PassMethod::SetLevel => "logging/setLevel",
    }
}

impl Mcp {
    /// A list, merged over servers, in pages of ours.
    pub(super) async fn list(
        &self,
        asking: &Asking,
        list: List,
        params: Option<&Value>,
    ) -> Result<Answered, RpcError> {
        let method = match list {
            List::Tools => return Err(unknown_method(list.method())),
            List::Resources => PassMethod::ResourcesList,
            List::ResourceTemplates => PassMethod::ResourceTemplatesList,
            List::Prompts => PassMethod::PromptsList,
        };
        let mut whole = self.passed(asking, method, None, None).await?;
        let items = match whole.get_mut(list.member()).map(Value::take) {
            Some(Value::Array(items)) => items,
            Some(_) | None => Vec::new(),
        };
        let page = lists::page(&self.seal, &asking.agent, list, items, params)?;
        Ok(finished(list.method(), page, asking.modern()).into())
    }

    pub(super) async fn pass(
        &self,
        asking: &Asking,
        method: PassMethod,
        params: Option<&Value>,
    ) -> Result<Answered, RpcError> {
        let member = match method {
            PassMethod::ResourcesRead => Some("uri"),
            PassMethod::PromptsGet => Some("name"),
            PassMethod::ResourcesList
            | PassMethod::ResourceTemplatesList
            | PassMethod::ResourcesSubscribe
            | PassMethod::ResourcesUnsubscribe
            | PassMethod::PromptsList
            | PassMethod::Complete
            | PassMethod::SetLevel => None,
        };
        let read = member.map(|member| ReadParams::of(params, member)).transpose();
        let read = read.map_err(|wrong| bad_params(&wrong))?;
        let bound = read.map(|read| Bound {
            agent: &asking.agent,
            method: name_of(method),
            target: read.name,
            digest: digest(params),
        });
        let mut continuation = None;
        if let (Some(read), Some(bound)) = (read, &bound)
            && asking.modern()
        {
            let (state, responses) = (read.request_state, read.input_responses);
            continuation = self.gone_on(bound, state, responses, None)?.continuation;
        }
        let round = continuation.as_ref().map_or(0, |continuation| continuation.round);
        if round > MAX_ROUNDS {
            let words = format!("this request has asked for input {MAX_ROUNDS} times");
            return Err(refused(&Denied::new(DenyCode::RepeatBlocked, words)));
        }
        let mut result = self.passed(asking, method, params, continuation).await?;
        if ResultKind::of(&result) == ResultKind::InputRequired
            && let Some(bound) = bound
        {
            result = self.with_our_state(result, &bound, &Kept { round, ..Kept::default() })?;
        }
        to_agent(&mut result);
        let result = match result {
            Value::Object(result) => result,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Map::new(),
        };
        Ok(finished(name_of(method), result, asking.modern()).into())
    }

    async fn passed(
        &self,
        asking: &Asking,
        method: PassMethod,
        params: Option<&Value>,
        continuation: Option<crate::call::Continuation>,
    ) -> Result<Value, RpcError> {
        if !is_offered(self.engine.mcp_offers(&asking.agent), method) {
            return Err(unknown_method(name_of(method)));
        }
        let own = params.and_then(|params| params.get("_meta")).and_then(Value::as_object);
        let said = meta::read(asking, own)?;
        let mut passed = params.cloned().unwrap_or_else(|| json!({}));
        if let Value::Object(members) = &mut passed {
            for ours in ["_meta", "cursor", "requestState", "inputResponses"] {
                members.shift_remove(ours);
            }
        }
        let session = asking.session.as_ref().map(|session| session.run());
        let run = said.run.clone().or(session);
        let side = Arc::new(side(asking, &said, continuation.map(Arc::new)));
        let asker = asker(asking, &said, side, run);
        let ended = self.engine.mcp_pass(&asker, method, passed).await;
        ended.map_err(|error| told(error, method, asking.modern()))
    }
}

/// Of everything that is asked but for what changes from round to round.
fn digest(params: Option<&Value>) -> Digest {
    let mut asked = params.cloned().unwrap_or(Value::Null);
    if let Value::Object(members) = &mut asked {
        for ours in ["_meta", "requestState", "inputResponses"] {
            members.shift_remove(ours);
        }
    }
    Digest::of(asked.to_string().as_bytes())
}

fn refused(denied: &Denied) -> RpcError {
    match (denied.code, wire_of(denied.code)) {
        (DenyCode::UnknownTool | DenyCode::ToolNotAllowed, _) => {
            RpcError::refused(INVALID_PARAMS, denied)
        }
        (_, Wire::Error(code, status)) => RpcError::refused(code, denied).status(status),
        (_, Wire::Status(status)) => {
            RpcError::refused(jsonrpc::INVALID_REQUEST, denied).status(status)
        }
        (_, Wire::Result) => RpcError::refused(INTERNAL_ERROR, denied),
    }
}

fn told(error: PassError, method: PassMethod, modern: bool) -> RpcError {
    match error {
        PassError::Denied(denied) => refused(&denied),
        PassError::NotFound(what) => {
            let resource = matches!(
                method,
                PassMethod::ResourcesRead
                    | PassMethod::ResourcesSubscribe
                    | PassMethod::ResourcesUnsubscribe
            );
            let code = if resource && !modern { RESOURCE_NOT_FOUND } else { INVALID_PARAMS };
            RpcError::new(code, format!("not found: {what}"))
        }
        PassError::Rpc { code, message, data } => {
            let era = if modern { Era::Modern } else { Era::Legacy };
            let code = match error_for(era, name_of(method), code) {
                ErrorImage::Code(code) => code,
                ErrorImage::OurHop | ErrorImage::InputRequired => INTERNAL_ERROR,
            };
            RpcError { code, message, data, status: 200 }
        }
        PassError::Failed(failed) => {
            let message = failed.message.clone();
            let object = render::whole(&CallError::Failed(failed));
            let object = strict_json::parse(&object, Limits::answer(object.len()));
            let data = json!({ OUTCOME: object.unwrap_or(Value::Null) });
            RpcError::new(INTERNAL_ERROR, message).data(data)
        }
    }
}

/// The answer object that a refusal of a whole message carries; for messages that never became a request.
pub(super) fn error_data(denied: &Denied) -> Value {
    json!({ OUTCOME: outcome_of(denied) })
}
