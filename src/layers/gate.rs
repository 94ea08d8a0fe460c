//! Gates: they say yes or no before a call, without awaiting, and hear how it ended.
//!
//! [`GateLayer`] turns one into a tower layer. A permit that is dropped unsettled (agent gone, a layer below
//! refused by panic) gives back what it holds and counts nothing.

use std::future::{Future, Ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{Layer, Service};

use crate::call::stream::at_end;
use crate::call::{CallError, Denied, Ended, Failed, Outcome, ToolCall, ToolResult};
use crate::policy::snapshot::Timeouts;

/// A decision before the call. Pure but for its own state: nothing here waits.
pub trait Gate: Send + Sync + 'static {
    type Permit: Permit;
    fn admit(&self, call: &ToolCall) -> Result<Self::Permit, Denied>;
}

/// Held while the call runs.
pub trait Permit: Send + 'static {
    /// A mark on the call, for the layers below.
    fn stamp(&self, _call: &mut ToolCall) {}
    /// A mark on the result, for the answer.
    fn mark(&self, _result: &mut ToolResult) {}
    /// False: it neither marks nor hears, so nothing is kept for it while the call runs.
    const HEARS: bool = true;
    /// How the call ended. Dropped unsettled = nobody waits for it any more.
    fn settle(self, ended: &Ended);
}

/// Of gates that hold nothing.
impl Permit for () {
    const HEARS: bool = false;
    fn settle(self, _ended: &Ended) {}
}

/// A call on its way back up.
pub type Answering = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What a service of calls answers with, as the layers above take it.
pub trait Answers {
    fn answering(self) -> Answering;
}

impl Answers for Answering {
    fn answering(self) -> Answering {
        self
    }
}

/// Of the attempt, which cannot be refused any more.
impl Answers for Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>> {
    fn answering(self) -> Answering {
        Box::pin(async move { self.await.map_err(CallError::from) })
    }
}

impl Answers for Ready<Outcome> {
    fn answering(self) -> Answering {
        Box::pin(self)
    }
}

/// The layers below: any service of calls whose error is, or becomes, a [`CallError`]. A bound with a blanket
/// implementation.
pub trait Below:
    Service<
        ToolCall,
        Response = ToolResult,
        Error: Into<CallError> + Send,
        Future: Future<Output = Result<ToolResult, Self::Error>> + Answers + Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
}
impl<S> Below for S where
    S: Service<
            ToolCall,
            Response = ToolResult,
            Error: Into<CallError> + Send,
            Future: Future<Output = Result<ToolResult, Self::Error>> + Answers + Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Takes the service that was polled ready and leaves a clone in its place.
pub fn take_ready<S: Clone>(slot: &mut S) -> S {
    let fresh = slot.clone();
    std::mem::replace(slot, fresh)
}

/// A gate as a layer: admit, stamp, call, mark, settle.
#[derive(Debug)]
pub struct GateLayer<G>(Arc<G>);

impl<G> Clone for GateLayer<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G: Gate> GateLayer<G> {
    pub fn new(gate: G) -> Self {
        Self(Arc::new(gate))
    }
}

impl<G, S> Layer<S> for GateLayer<G> {
    type Service = Gated<G, S>;
    fn layer(&self, inner: S) -> Gated<G, S> {
        Gated { gate: self.0.clone(), inner }
    }
}

#[derive(Debug)]
pub struct Gated<G, S> {
    gate: Arc<G>,
    inner: S,
}

impl<G, S: Clone> Clone for Gated<G, S> {
    fn clone(&self) -> Self {
        Self { gate: self.gate.clone(), inner: self.inner.clone() }
    }
}

impl<G: Gate, S: Below> Service<ToolCall> for Gated<G, S> {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut call: ToolCall) -> Answering {
        let permit = match self.gate.admit(&call) {
            Ok(permit) => permit,
            Err(denied) => return Box::pin(std::future::ready(Err(denied.into()))),
        };
        permit.stamp(&mut call);
        let answer = self.inner.call(call);
        if !G::Permit::HEARS {
            return answer.answering();
        }
        Box::pin(async move {
            let mut outcome = answer.await.map_err(Into::into);
            if let Ok(result) = &mut outcome {
                permit.mark(result);
            }
            at_end(&outcome, move |ended, _| permit.settle(ended));
            outcome
        })
    }
}

/// A time to come back, in whole milliseconds, rounded up, never zero: who comes then is not too early.
pub fn come_back(wait: Duration) -> Duration {
    let ms = wait.as_nanos().div_ceil(1_000_000).max(1);
    Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
}

/// No attempt starts with less time than this left.
const MIN_ATTEMPT: Duration = Duration::from_millis(250);

/// Least time that makes an attempt worth starting: no more than all the time it may take.
pub fn min_attempt(timeouts: &Timeouts) -> Duration {
    MIN_ATTEMPT.min(timeouts.total)
}
