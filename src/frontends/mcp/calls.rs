//! `tools/call`: a batch of one. The call goes through the stack as any; only its words are MCP's.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::approvals::{self, Showing};
use super::aside::Aside;
use super::methods::Answered;
use super::parkable::may_be_parked;
use super::state::{Bound, Kept, VALID};
use super::wire::{self, RpcError};
use super::{Asking, Mcp, meta};
use crate::call::code::DenyCode;
use crate::call::{
    Arguments, CallError, CallId, CallerKey, Channel, Content, Continuation, Denied, Form,
    NoAnswer, Payload, RunId, Side, ToolName,
};
use crate::engine::{Answer, Asker, Single};
use crate::mcp::jsonrpc::INVALID_PARAMS;
use crate::mcp::messages::{AskKind, CallParams, InputRequired, ResultKind, Wrong, check_answer};
use crate::mcp::translate::ask_to_legacy;
use crate::strict_json::{self, Limits, top};

const METHOD: &str = "tools/call";
/// Member of `_meta` that names a call which waits inside the gateway for the answers; it goes into the sealed state.
pub(super) const PARKED: &str = "io.checkrein/parked";

/// One call, read.
pub(super) struct Asked<'p> {
    pub(super) said: meta::Said,
    pub(super) tool: ToolName,
    name: &'p str,
    pub(super) payload: Payload,
}

/// What a request goes on with, and whose run and key it has then.
pub(super) struct GoesOn {
    run: Option<RunId>,
    caller_key: Option<CallerKey>,
    pub(super) continuation: Option<Continuation>,
    /// How often a person's page was shown for this call.
    shown: u32,
}

impl Mcp {
    pub(super) async fn call_tool(
        &self,
        asking: &Asking,
        params: Option<&Value>,
    ) -> Result<Answered, RpcError> {
        let asked = CallParams::of(params).map_err(|wrong| bad_params(&wrong))?;
        let mut call = Asked {
            said: meta::read(asking, asked.meta)?,
            tool: ToolName::asked(asked.name),
            name: asked.name,
            payload: self.payload(asked.arguments),
        };
        call.said.shape = asked.shape().map(Arc::new);
        let (mut continuation, mut shown) = (None, 0);
        if asking.modern() {
            let (state, responses) = (asked.request_state, asked.input_responses);
            let goes_on =
                self.gone_on(&bound(asking, &call), state, responses, Some(&call.said))?;
            (call.said.run, call.said.caller_key) = (goes_on.run, goes_on.caller_key);
            continuation = goes_on.continuation.map(Arc::new);
            shown = goes_on.shown;
        }
        loop {
            let round = continuation.as_ref().map_or(0, |continuation| continuation.round);
            let (run, mut answer) = self.sent(asking, &call, continuation.take()).await;
            match self.show_approval(asking, &mut call, run.as_ref(), &answer, &mut shown).await {
                Showing::No => {}
                Showing::Again => continue,
                Showing::Told(told) => return told,
            }
            let Some(result) = input_required(&answer) else {
                return self.written(asking, &answer, run);
            };
            let occurrence = occurrence_of(&answer);
            if asking.modern() {
                let caller_key = call.said.caller_key.as_ref();
                let kept =
                    Kept { run: run.as_ref(), round, occurrence, caller_key, ..Kept::default() };
                let sealed = self.with_our_state(result, &bound(asking, &call), &kept);
                put(&mut answer, &sealed?);
                return self.written(asking, &answer, run);
            }
            match self.given(asking, &call.said, &result).await {
                Ok(responses) => {
                    let state = result.get("requestState").and_then(Value::as_str).map(Arc::from);
                    let parked = parked(&result).map(Arc::from);
                    let round = round.saturating_add(1);
                    let goes_on = Continuation { responses, state, round, occurrence, parked };
                    continuation = Some(Arc::new(goes_on));
                    // What goes on is the same operation, so the same run.
                    call.said.run = run;
                }
                // It may have happened before it was asked about: the ledger has the words for that.
                Err(_) if acted_before(&answer) => {
                    let (run, answer) = self.sent(asking, &call, None).await;
                    return self.written(asking, &answer, run);
                }
                Err(why) => {
                    answer.outcome = Err(CallError::Failed(cannot_give(&why)));
                    return self.written(asking, &answer, run);
                }
            }
        }
    }

    /// What an agent of a session answers on the stream of its open call, as long as a state of ours would be good for;
    /// who takes its call back, or has less time, is not waited for.
    pub(super) async fn given(
        &self,
        asking: &Asking,
        said: &meta::Said,
        result: &Value,
    ) -> Result<Value, NotGiven> {
        let patience = said.timeout.map_or(VALID, |timeout| timeout.min(VALID));
        tokio::select! {
            given = tokio::time::timeout(patience, asked_of_agent(asking, result)) => {
                given.unwrap_or(Err(NotGiven::Cannot))
            }
            () = asking.cancelled.cancelled() => Err(NotGiven::Cannot),
        }
    }

    /// Absent arguments are no arguments, and judged as such.
    fn payload(&self, arguments: Option<&Value>) -> Payload {
        let limits = self.engine.body_limits();
        let limits = Limits::arguments(limits.argument_bytes, limits.argument_depth);
        let read = match arguments {
            Some(arguments) => Arguments::of_value(arguments, limits),
            None => Arguments::parse(b"", limits),
        };
        match read {
            Ok(arguments) => Payload::Arguments(arguments),
            Err(malformed) => Payload::Malformed(malformed),
        }
    }

    /// What the agent brought to go on with. A state must be one of ours, for this agent, this tool and these
    /// arguments, in the run it began in and under the key it began with. Answers without one go to the server with a call that is new in all else:
    /// a server that keeps no state takes them (SEP-2322), any other asks again.
    pub(super) fn gone_on(
        &self,
        bound: &Bound<'_>,
        sealed: Option<&str>,
        responses: Option<&Map<String, Value>>,
        said: Option<&meta::Said>,
    ) -> Result<GoesOn, RpcError> {
        let responses = responses.cloned().map(Value::Object);
        let named = said.and_then(|said| said.run.as_ref());
        let key = said.and_then(|said| said.caller_key.as_ref());
        let Some(sealed) = sealed else {
            let continuation = responses.map(|responses| Continuation {
                responses,
                state: None,
                round: 0,
                occurrence: 0,
                parked: None,
            });
            let (run, caller_key) = (named.cloned(), key.cloned());
            return Ok(GoesOn { run, caller_key, continuation, shown: 0 });
        };
        let opened = self.states.open(&self.seal, bound, sealed);
        let opened = opened.filter(|opened| {
            named.is_none_or(|named| opened.run.as_ref().is_none_or(|run| run == named))
                && key.is_none_or(|key| opened.caller_key.as_ref() == Some(key))
        });
        let opened = opened.ok_or_else(|| {
            let words =
                "/requestState: is none that was given for this request, or its time is over";
            RpcError::new(INVALID_PARAMS, words).status(400)
        })?;
        let run = opened.run.clone().or_else(|| named.cloned());
        let caller_key = opened.caller_key.clone();
        if opened.shown > 0 {
            let shown = approvals::shown_after(opened.shown, responses.as_ref());
            return Ok(GoesOn { run, caller_key, continuation: None, shown });
        }
        let responses = responses.unwrap_or_else(|| Value::Object(Map::new()));
        let continuation = Some(opened.continuation(responses));
        Ok(GoesOn { run, caller_key, continuation, shown: 0 })
    }

    /// The result that asks for input, with a state of ours in place of the server's.
    pub(super) fn with_our_state(
        &self,
        mut result: Value,
        bound: &Bound<'_>,
        kept: &Kept<'_>,
    ) -> Result<Value, RpcError> {
        let server = result.get("requestState").and_then(Value::as_str);
        let kept = Kept { server, parked: parked(&result), ..*kept };
        let sealed = self.states.seal(&self.seal, bound, &kept).ok_or_else(|| {
            RpcError::new(crate::mcp::jsonrpc::INTERNAL_ERROR, "no state could be made")
        })?;
        if let Value::Object(members) = &mut result {
            members.insert("requestState".to_owned(), sealed.into());
        }
        Ok(result)
    }

    /// Through the stack. Without a run of its own a call goes to its session's, which is followed by another once its
    /// time is over.
    async fn sent(
        &self,
        asking: &Asking,
        call: &Asked<'_>,
        continuation: Option<Arc<Continuation>>,
    ) -> (Option<RunId>, Answer) {
        if may_be_parked(asking) {
            return self.parkable(asking, call, continuation).await;
        }
        let side = Arc::new(side(asking, &call.said, continuation));
        let session = asking.session.as_ref().filter(|_| call.said.run.is_none());
        let mut wanted = call.said.run.clone().or_else(|| session.map(|session| session.run()));
        let mut again = session.is_some();
        loop {
            let single = Single {
                asker: asker(asking, &call.said, side.clone(), wanted.clone()),
                id: asking.call.clone(),
                tool: call.tool.clone(),
                payload: call.payload.clone(),
                caller_key: call.said.caller_key.clone(),
            };
            match self.engine.call(single).await {
                Ok((run, answer)) => {
                    if let Some(session) = session
                        && let Err(CallError::Denied(denied)) = &answer.outcome
                        && denied.code == DenyCode::RunInterrupted
                    {
                        session.run_was_stopped(&run);
                    }
                    return (Some(run), answer);
                }
                Err(denied) => {
                    let over = wanted.as_ref().filter(|_| denied.code == DenyCode::RunUnknown);
                    let next = session.zip(over).filter(|_| again);
                    if let Some(next) = next.and_then(|(session, over)| session.next_run(over)) {
                        again = false;
                        wanted = Some(next);
                        continue;
                    }
                    return (None, refused(asking, call, denied));
                }
            }
        }
    }

    fn written(
        &self,
        asking: &Asking,
        answer: &Answer,
        run: Option<RunId>,
    ) -> Result<Answered, RpcError> {
        let tool = match &answer.outcome {
            Ok(_) => None,
            Err(_) => self.engine.tool_for(&asking.agent, &answer.tool),
        };
        let result = wire::answered(answer, tool.as_ref(), asking.modern(), &asking.capabilities)?;
        Ok(Answered { result, run })
    }
}

pub(super) fn bound<'a>(asking: &'a Asking, call: &'a Asked<'_>) -> Bound<'a> {
    Bound {
        agent: &asking.agent,
        method: METHOD,
        target: call.name,
        digest: call.payload.digest(&[]),
    }
}

pub(super) fn asker(
    asking: &Asking,
    said: &meta::Said,
    side: Arc<Side>,
    run: Option<RunId>,
) -> Asker {
    Asker {
        agent: asking.agent.clone(),
        run,
        timeout: said.timeout,
        front_end: asking.front_end,
        side: Some(side),
    }
}

pub(super) fn side(
    asking: &Asking,
    said: &meta::Said,
    continuation: Option<Arc<Continuation>>,
) -> Side {
    let line = asking.line.clone();
    Side {
        session: asking.session.as_ref().map(|session| session.id.clone()),
        stream: None,
        modern: asking.modern(),
        capabilities: asking.capabilities.clone(),
        meta: Arc::new(said.passed.clone()),
        params: said.shape.clone(),
        param_headers: asking.param_headers.clone(),
        log_level: asking.log_level.clone(),
        progress: line.as_ref().is_some_and(|line| line.token.is_some()),
        continuation,
        cancelled: asking.cancelled.clone(),
        aside: asking.session.as_ref().map(|session| Aside::of(session, line.as_deref())),
        channel: line.map(|line| line as Arc<dyn Channel>),
    }
}

pub(super) fn bad_params(wrong: &Wrong) -> RpcError {
    RpcError::new(INVALID_PARAMS, wrong.to_string()).status(400)
}

pub(super) fn refused(asking: &Asking, call: &Asked<'_>, denied: Denied) -> Answer {
    Answer {
        id: asking.call.clone(),
        tool: call.tool.clone(),
        outcome: Err(CallError::Denied(denied)),
        attempts: 0,
        operation: None,
        alternatives: Vec::new(),
    }
}

/// The occurrence of the write that goes on with the agent's answers; 0 of a read.
fn occurrence_of(answer: &Answer) -> u32 {
    let asks = answer.outcome.as_ref().ok().and_then(|result| result.notes.asks);
    asks.map_or(0, |asks| asks.occurrence)
}

/// Its server is known to act before it asks.
fn acted_before(answer: &Answer) -> bool {
    let asks = answer.outcome.as_ref().ok().and_then(|result| result.notes.asks);
    asks.is_some_and(|asks| asks.after_acting)
}

/// The result, where a server wants input before it goes on.
fn input_required(answer: &Answer) -> Option<Value> {
    let Ok(result) = &answer.outcome else { return None };
    if result.content.form != Form::Mcp || is_plain(&result.content.bytes) {
        return None;
    }
    let bytes = &result.content.bytes;
    let result = strict_json::parse(bytes, Limits::answer(bytes.len())).ok()?;
    (ResultKind::of(&result) == ResultKind::InputRequired).then_some(result)
}

/// Without a `resultType`, as most results are, it asks for nothing; that is seen without reading it.
fn is_plain(result: &[u8]) -> bool {
    let other =
        |member: &top::Member<'_>| member.name != b"resultType" && !member.name.contains(&b'\\');
    top::members(result).is_some_and(|members| members.iter().all(other))
}

pub(super) fn parked(result: &Value) -> Option<&str> {
    result.get("_meta")?.get(PARKED)?.as_str()
}

fn put(answer: &mut Answer, result: &Value) {
    if let Ok(old) = &mut answer.outcome {
        old.content = Content { bytes: result.to_string().into(), form: Form::Mcp };
    }
}

/// Why an agent of a session gave no input.
pub(super) enum NotGiven {
    /// It cannot be asked this.
    Cannot,
    /// What the server asked makes no sense.
    Nonsense,
    /// What the agent answered is no answer to that.
    Unfit(Wrong),
}

/// Asks an agent of a session, one question after another, on the stream of its open call.
async fn asked_of_agent(asking: &Asking, result: &Value) -> Result<Value, NotGiven> {
    let wanted = InputRequired::of(result).map_err(|_| NotGiven::Nonsense)?;
    let mut responses = Map::new();
    for ask in wanted.requests {
        let line = asking.line.as_ref().ok_or(NotGiven::Cannot)?;
        let id = CallId::mint();
        let params = ask_to_legacy(asking.revision, ask.kind, ask.params, id.as_str());
        let params = params.ok_or(NotGiven::Cannot)?;
        let answer = match (line.ask(ask.kind.method(), params).await, ask.kind) {
            (Ok(answer), _) => answer,
            // A refusal is an answer too, where the protocol has words for it.
            (Err(NoAnswer::Refused(..)), AskKind::ElicitForm | AskKind::ElicitUrl) => {
                serde_json::json!({"action": "decline"})
            }
            (Err(_), _) => return Err(NotGiven::Cannot),
        };
        let asked = ask.params.unwrap_or(&Value::Null);
        check_answer(ask.kind, asked, &answer).map_err(NotGiven::Unfit)?;
        responses.insert(ask.key.to_owned(), answer);
    }
    Ok(Value::Object(responses))
}

fn cannot_give(why: &NotGiven) -> crate::call::Failed {
    use crate::call::code::FailCode;
    use crate::call::{Class, Delivery, Failed, Verdict};
    let (code, words) = match why {
        NotGiven::Cannot => (
            FailCode::ToolError,
            "the tool needs input that this client cannot give; nothing was done".to_owned(),
        ),
        NotGiven::Nonsense => (
            FailCode::UpstreamProtocolError,
            "the tool asked for input in a way nobody can answer".to_owned(),
        ),
        NotGiven::Unfit(wrong) => (
            FailCode::ToolError,
            format!("the answer does not fit what the tool asked for: {wrong}; nothing was done"),
        ),
    };
    Failed::new(code, Class::Permanent, Delivery::Refused, Verdict::Neutral, words)
}
