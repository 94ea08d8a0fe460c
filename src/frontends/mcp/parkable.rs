//! A call of an agent of 2026-07-28 that its server may ask about in the middle: carried by a task of its own, so that
//! it can wait for the request that brings the answers.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::calls::{Asked, PARKED, asker, refused, side};
use super::parking::{Ended, Parked, Word};
use super::{Asking, Mcp};
use crate::call::code::{DenyCode, FailCode};
use crate::call::{
    CallError, CallId, Class, Content, Continuation, Delivery, Denied, Effect, Failed, Form,
    MAX_ROUNDS, Notes, Outcome, RunId, Side, Source, ToolResult, Verdict,
};
use crate::engine::{Answer, Single};
use crate::mcp::messages::ClientCapabilities;

/// Whether a server could ask this agent anything, in a revision that has no requests of servers.
pub(super) fn may_be_parked(asking: &Asking) -> bool {
    let can = ClientCapabilities::of(&asking.capabilities);
    asking.modern() && (can.elicitation_form || can.elicitation_url || can.sampling || can.roots)
}

impl Mcp {
    /// The call's end, or a result that asks for input and names the parked call.
    pub(super) async fn parkable(
        &self,
        asking: &Asking,
        call: &Asked<'_>,
        continuation: Option<Arc<Continuation>>,
    ) -> (Option<RunId>, Answer) {
        // A call that waits passes no layer again, where others are counted.
        if continuation.as_ref().is_some_and(|c| c.parked.is_some() && c.round > MAX_ROUNDS) {
            let words = format!("this call has asked for input {MAX_ROUNDS} times");
            let denied = Denied::new(DenyCode::RepeatBlocked, words);
            return (call.said.run.clone(), refused(asking, call, denied));
        }
        let goes_on = continuation.as_ref().and_then(|c| Some((c.parked.clone()?, &c.responses)));
        let parked = match goes_on {
            Some((id, responses)) => match self.lot.find(&asking.agent, &id) {
                Some(parked) => {
                    parked.go_on(responses, asking.line.clone());
                    parked
                }
                None => return self.gone(asking, call, &id).await,
            },
            None => self.begin(asking, call, continuation),
        };
        match parked.word(&asking.cancelled).await {
            Word::Ended(ended) => of(asking, call, ended),
            Word::Asks(asks, run) => (run, asks_for(call, &parked.id, &asks)),
            Word::Lost => self.gone(asking, call, parked.id.as_str()).await,
        }
    }

    fn begin(
        &self,
        asking: &Asking,
        call: &Asked<'_>,
        continuation: Option<Arc<Continuation>>,
    ) -> Arc<Parked> {
        let line = asking.line.clone();
        let parked = Parked::new(&self.lot, &asking.agent, &asking.call, &asking.cancelled, line);
        let channel = parked.clone();
        let side = Side { channel: Some(channel), ..side(asking, &call.said, continuation) };
        let single = self.single(asking, call, Arc::new(side), asking.call.clone());
        let (engine, told) = (self.engine.clone(), parked.clone());
        let carried = async move { engine.call_told(single, |run| told.entered(run)).await };
        let task = self.engine.tasks().spawn(parked.clone().carry(carried));
        parked.runs_as(task.abort_handle());
        parked
    }

    fn single(&self, asking: &Asking, call: &Asked<'_>, side: Arc<Side>, id: CallId) -> Single {
        Single {
            asker: asker(asking, &call.said, side, call.said.run.clone()),
            id,
            tool: call.tool.clone(),
            payload: call.payload.clone(),
            caller_key: call.said.caller_key.clone(),
        }
    }

    /// The parked call is not here any more. Of a read nothing is known; what became of a write the ledger tells, asked
    /// for the very same call.
    async fn gone(&self, asking: &Asking, call: &Asked<'_>, id: &str) -> (Option<RunId>, Answer) {
        let tool = self.engine.tool_for(&asking.agent, &call.tool);
        let read = tool.is_none_or(|tool| tool.effect == Effect::Read);
        let id = CallId::new(id).ok().filter(|_| !read);
        let Some(id) = id else {
            let words = "the call that waited for this answer is not there any more";
            let failed = Failed::new(
                FailCode::UpstreamReset,
                Class::Transient,
                Delivery::Unknown,
                Verdict::Neutral,
                words,
            );
            let answer = answer(call, asking.call.clone(), Err(CallError::Failed(failed)));
            return (call.said.run.clone(), answer);
        };
        let side = Arc::new(side(asking, &call.said, None));
        of(asking, call, self.engine.call(self.single(asking, call, side, id)).await)
    }
}

fn of(asking: &Asking, call: &Asked<'_>, ended: Ended) -> (Option<RunId>, Answer) {
    match ended {
        Ok((run, answer)) => (Some(run), answer),
        Err(denied) => (None, refused(asking, call, denied)),
    }
}

fn asks_for(call: &Asked<'_>, id: &CallId, asks: &Map<String, Value>) -> Answer {
    let result = json!({
        "resultType": "input_required",
        "inputRequests": asks,
        "_meta": { PARKED: id.as_str() },
    });
    let result = ToolResult {
        head: None,
        content: Content { bytes: result.to_string().into(), form: Form::Mcp },
        source: Source::Tool,
        notes: Notes { attempts: 1, ..Notes::default() },
    };
    answer(call, id.clone(), Ok(result))
}

fn answer(call: &Asked<'_>, id: CallId, outcome: Outcome) -> Answer {
    Answer {
        id,
        tool: call.tool.clone(),
        outcome,
        attempts: 1,
        operation: None,
        alternatives: Vec::new(),
    }
}
