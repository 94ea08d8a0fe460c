//! A person's yes before a call is sent, bound to this very operation. Without one nothing is sent, and the call is told
//! whom it waits for.
//!
//! [`Approval`] looks for the yes, or asks for it; [`Spend`] uses it up, on record, before the first attempt of a read.
//! A write's yes is used up by `journal`, together with its intent.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tower::{Layer, Service, ServiceExt};

use super::gate::{Answering, Below, take_ready};
use crate::call::code::DenyCode;
use crate::call::{AgentId, CallError, Consent, Denied, Detail, LimitedBy, ToolCall, ToolResult};
use crate::ledger::approvals::{NotYet, Wish, Yes};
use crate::ledger::{Ledger, LedgerError};
use crate::policy::snapshot::{ApprovalPolicy, Tool};

/// When to come back where too many questions wait, or another call holds the yes.
const FULL_BACK: Duration = Duration::from_secs(60);
const IN_USE_BACK: Duration = Duration::from_secs(1);
/// When to come back to a store that could not be written.
const LEDGER_BACK: Duration = Duration::from_secs(1);
/// Longest arguments that a refusal tells, bytes.
const MAX_TOLD: usize = 8 << 10;

/// Of tools whose policy asks people.
#[derive(Debug, Clone)]
pub struct ApprovalLayer {
    pub tool: Arc<Tool>,
    pub policy: Arc<ApprovalPolicy>,
    pub ledger: Arc<Ledger>,
    /// Agents that only rehearse: nothing is sent for them, so nobody is asked.
    pub rehearsing: Arc<HashSet<AgentId>>,
}

impl<S> Layer<S> for ApprovalLayer {
    type Service = Approval<S>;
    fn layer(&self, inner: S) -> Approval<S> {
        Approval { with: self.clone(), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Approval<S> {
    with: ApprovalLayer,
    inner: S,
}

impl<S: Below> Service<ToolCall> for Approval<S> {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut call: ToolCall) -> Answering {
        let inner = take_ready(&mut self.inner);
        let with = self.with.clone();
        Box::pin(async move {
            if let Some(why) = with.needs(&call) {
                call.consent = Some(with.consent(&call, why).await?);
            }
            inner.oneshot(call).await.map_err(Into::into)
        })
    }
}

impl ApprovalLayer {
    /// The rule by which the call needs a yes; `None` = it needs none.
    fn needs(&self, call: &ToolCall) -> Option<&'static str> {
        // It goes on with what was let through before: the yes stays given.
        if call.continuation().is_some() || self.rehearsing.contains(&call.agent) {
            return None;
        }
        let nothing = serde_json::Value::Null;
        let arguments = call.arguments().map_or(&nothing, |arguments| arguments.tree());
        self.policy.asks(arguments, call.identical)
    }

    async fn consent(&self, call: &ToolCall, why: &'static str) -> Result<Consent, CallError> {
        let rule = format!("{}.{why} :{}", self.tool.rule.path, self.tool.rule.line);
        let Some(arguments) = call.arguments() else {
            return Err(self.unrecorded(&LedgerError { doing: "read the arguments" }).into());
        };
        let wish = Wish {
            agent: call.agent.clone(),
            tool: self.tool.name.clone(),
            run: call.run.clone(),
            call: call.id.clone(),
            arguments: arguments.clone(),
            section: self.tool.section,
            why: rule.clone(),
            ttl: self.policy.expires,
        };
        let denied = match self.ledger.approvals().ask(wish).await {
            Ok(yes) => return Ok(Consent::new(yes)),
            Err(asked) => self.denied(asked),
        };
        call.trace.note().rule = Some(rule.into());
        Err(denied.into())
    }

    fn denied(&self, asked: NotYet) -> Denied {
        let tool = &self.tool.name;
        let told = |code, message, id, left| {
            Denied::new(code, message).detail(Detail::Approval { id, left })
        };
        match asked {
            NotYet::Waits { id, left } => {
                let message = format!(
                    "`{tool}` needs a person's approval, which is asked for ({id}); nothing was sent. It stands for {}",
                    spelt(left)
                );
                told(DenyCode::ApprovalRequired, message, id, Some(left))
            }
            NotYet::Expired { id } => {
                let message = format!(
                    "nobody approved this call of `{tool}` in time ({id}); nothing was sent"
                );
                told(DenyCode::ApprovalExpired, message, id, None)
            }
            NotYet::Rejected { id, comment } => {
                let message = format!(
                    "a person rejected this call of `{tool}` ({id}); nothing was sent{}",
                    said(&comment)
                );
                told(DenyCode::ApprovalRejected, message, id, None)
            }
            NotYet::Edited { id, arguments, comment, left } => {
                let text = arguments.tree().to_string();
                let instead = match text.len() <= MAX_TOLD {
                    true => format!("approved are exactly these arguments: {text}"),
                    false => "approved are other arguments, which are too long to be told here"
                        .to_owned(),
                };
                let message = format!(
                    "a person changed this call of `{tool}` ({id}); nothing was sent, and {instead}{}",
                    said(&comment)
                );
                told(DenyCode::ApprovalEdited, message, id, Some(left))
            }
            NotYet::InUse => {
                let message = format!("another call of `{tool}` is using its approval");
                Denied::new(DenyCode::ConcurrencyLimited, message).retry_after(IN_USE_BACK)
            }
            NotYet::TooMany { whose, most } => {
                let message = format!(
                    "{most} questions {whose} wait for a person already; nobody was asked about this call, and nothing was sent"
                );
                Denied::new(DenyCode::RateLimited, message)
                    .retry_after(FULL_BACK)
                    .detail(Detail::Limited { by: LimitedBy::Gateway, rate: None })
            }
            NotYet::Unrecorded(error) => self.unrecorded(&error),
        }
    }

    fn unrecorded(&self, error: &LedgerError) -> Denied {
        unrecorded(&self.tool, error)
    }
}

fn unrecorded(tool: &Tool, error: &LedgerError) -> Denied {
    let message =
        format!("`{}` needs a person's approval, and {error}; nothing was sent", tool.name);
    Denied::new(DenyCode::LedgerUnavailable, message).retry_after(LEDGER_BACK)
}

fn said(comment: &str) -> String {
    match comment.trim() {
        "" => String::new(),
        comment => format!(". The person says: {comment}"),
    }
}

/// Whole seconds, or minutes where that is exact.
fn spelt(time: Duration) -> String {
    match time.as_secs() {
        0 => "less than a second".to_owned(),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// Uses up the yes of a read before its first attempt; further attempts of the same call need no other.
#[derive(Debug, Clone)]
pub struct SpendLayer {
    pub tool: Arc<Tool>,
}

impl<S> Layer<S> for SpendLayer {
    type Service = Spend<S>;
    fn layer(&self, inner: S) -> Spend<S> {
        Spend { tool: self.tool.clone(), inner }
    }
}

#[derive(Debug, Clone)]
pub struct Spend<S> {
    tool: Arc<Tool>,
    inner: S,
}

impl<S: Below> Service<ToolCall> for Spend<S> {
    type Response = ToolResult;
    type Error = CallError;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: ToolCall) -> Answering {
        let inner = take_ready(&mut self.inner);
        let tool = self.tool.clone();
        Box::pin(async move {
            if let Some(yes) = call.consent.as_ref().and_then(Consent::get::<Yes>) {
                yes.spend().await.map_err(|error| unrecorded(&tool, &error))?;
            }
            inner.oneshot(call).await.map_err(Into::into)
        })
    }
}
