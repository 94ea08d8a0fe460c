//! A tool that plain HTTP clients reach by a route: one request, passed on as it came, and its answer the same way.
//!
//! Sent once and never followed. The answer of a read goes on as it comes; that of a write is read whole, so that it can
//! be told again.

mod answer;
mod blot;
mod request;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use tower::Service;

use self::answer::{Now, Passing, now};
use super::classify::{self, Kind, Promises};
use super::credentials;
use crate::call::{
    Arriving, Broken, Content, Effect, Failed, Form, Head, HttpRequest, Notes, Payload, Phase,
    Source, ToolCall, ToolResult, Turn, Verdict,
};
use crate::egress::{Answer, AnswerBody, Ask, Egress, SendError, Way};
use crate::policy::snapshot::{ProxyRoute, Tool};
use crate::telemetry::record::wall_clock;

/// Of an answer's own text so much stands in messages and records.
const TOLD: usize = 2 * 1024;
/// Stands for the text of an answer that did not come to its end.
const CUT_TEXT: &str = "(its text was cut)";

/// The way to one route's tool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Proxy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tool: Arc<Tool>,
    way: Arc<Way>,
    /// Most bytes of an answer that is read whole.
    response_bytes: usize,
    blots: credentials::Blots,
}

impl Proxy {
    /// `response_bytes`: most bytes of an answer that is read whole.
    pub fn new(tool: &Arc<Tool>, egress: &Egress, response_bytes: usize) -> Self {
        let way = egress.way(&tool.upstream);
        let blots = credentials::Blots::of(tool.upstream.auth.as_ref());
        Self(Arc::new(Inner { tool: tool.clone(), way, response_bytes, blots }))
    }
}

impl Service<ToolCall> for Proxy {
    type Response = ToolResult;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let inner = self.0.clone();
        Box::pin(async move {
            let mut outcome = inner.attempt(&call).await;
            match &mut outcome {
                Err(failed) => inner.blots.over_text(&mut failed.message),
                // The attempt goes on with its body.
                Ok(result) if result.arriving().is_some() => return outcome,
                Ok(_) => {}
            }
            if let Some(progress) = &call.progress {
                progress.mark(Phase::Ended);
            }
            outcome
        })
    }
}

impl Inner {
    async fn attempt(&self, call: &ToolCall) -> Result<ToolResult, Failed> {
        let (Payload::Request(request), Some(route)) = (&call.payload, self.tool.route()) else {
            return Err(classify::not_sent("a call by arguments reached a route"));
        };
        let outgoing = request::outgoing(&self.tool, route, request, call)?;
        let pooled = self.tool.write.as_ref().is_none_or(|write| write.pooled);
        let read = self.tool.effect == Effect::Read;
        let ask = Ask {
            // What can be sent only once is not tried on a connection that may have died.
            fresh: !(read && request.replayable() || !read && pooled),
            gate: call.send_gate.as_ref(),
            progress: call.progress.as_ref(),
        };
        let sent = self.way.send(outgoing, ask).await;
        let Answer { head, body } = sent.map_err(|error| unanswered(request, error))?;
        let status = head.status.as_u16();
        match (classify::kind(status), self.tool.effect) {
            // Where to go instead is an answer, and so is that nothing has changed: the client goes there, or not.
            (Kind::Success | Kind::Redirect, Effect::Read) => {
                self.passed(route, status, head.headers, body).await
            }
            (Kind::Success, Effect::Write) => self.whole(call, status, head.headers, body).await,
            (Kind::Redirect, Effect::Write) | (Kind::Failure, _) => {
                Err(self.failure(call, status, head.headers, body).await)
            }
        }
    }

    /// The answer of a read: at once where all of it is here, else as it comes.
    async fn passed(
        &self,
        route: &ProxyRoute,
        status: u16,
        headers: HeaderMap,
        mut body: AnswerBody,
    ) -> Result<ToolResult, Failed> {
        let most = route.response_bytes.unwrap_or(u64::MAX);
        if body.expected() > most {
            let why = format!("the tool's answer is over the limit of {most} bytes");
            return Err(classify::too_large(status, &why, Verdict::Neutral));
        }
        let mut blotter = self.blotter(&headers);
        let headers = self.headers(headers);
        let cut = |why: &str| classify::cut(status, Effect::Read, why);
        match now(&mut body).await.map_err(|why| cut(&why))? {
            Now::Whole(bytes) => Ok(result(status, headers, blotter.whole(bytes), None)),
            Now::Later(first) => {
                let passing = Passing::new(first, body, blotter, (status, most));
                let arriving = Arriving::new(Box::new(passing));
                Ok(result(status, headers, Bytes::new(), Some(arriving)))
            }
        }
    }

    /// The answer of a write, kept to be told again.
    async fn whole(
        &self,
        call: &ToolCall,
        status: u16,
        headers: HeaderMap,
        body: AnswerBody,
    ) -> Result<ToolResult, Failed> {
        let why = "its end did not come in time";
        head_came(call, move || classify::cut(status, Effect::Write, why));
        let read = answer::read(body, self.response_bytes).await;
        crash_point!("backend: the passed answer is read");
        match read {
            Ok(Some(bytes)) => {
                let bytes = self.blotter(&headers).whole(bytes);
                let mut result = result(status, self.headers(headers), bytes, None);
                result.notes.accepted = classify::is_accepted(status);
                Ok(result)
            }
            Ok(None) => {
                let why =
                    format!("the tool's answer is over the limit of {} bytes", self.response_bytes);
                Err(classify::too_large(status, &why, Verdict::Neutral))
            }
            Err(why) => Err(classify::cut(status, Effect::Write, &why)),
        }
    }

    /// A status that is no success, and the whole answer, which goes to the client where it says what became of it.
    async fn failure(
        &self,
        call: &ToolCall,
        status: u16,
        headers: HeaderMap,
        body: AnswerBody,
    ) -> Failed {
        let judge = |text: &str| {
            classify::status(status, &headers, text, Promises::of(&self.tool), wall_clock())
        };
        let if_cut = judge(CUT_TEXT);
        head_came(call, move || if_cut.clone());
        match answer::read(body, self.response_bytes).await {
            Ok(Some(bytes)) => {
                let bytes = self.blotter(&headers).whole(bytes);
                let text = String::from_utf8_lossy(bytes.get(..TOLD).unwrap_or(&bytes));
                let failed = judge(if answer::is_text(&headers) { &text } else { "" });
                let head = Head { status, headers: self.headers(headers), arriving: None };
                let answer = Content { bytes, form: Form::Text };
                Failed { answer: Some(answer), head: Some(Box::new(head)), ..failed }
            }
            Ok(None) => judge(&format!("(its text is over {} bytes)", self.response_bytes)),
            Err(_) => judge(CUT_TEXT),
        }
    }

    fn blotter(&self, headers: &HeaderMap) -> blot::Blotter<'_> {
        // What is coded does not show what it holds.
        let coded = headers.contains_key(http::header::CONTENT_ENCODING);
        blot::Blotter::new((!coded).then_some(&self.blots))
    }

    fn headers(&self, headers: HeaderMap) -> HeaderMap {
        let cookies = self.tool.route().is_some_and(request::takes_cookies);
        let mut headers = answer::end_to_end(headers, cookies);
        answer::locate(&mut headers, &self.tool.upstream);
        self.blots.over_headers(&mut headers);
        headers
    }
}

fn result(status: u16, headers: HeaderMap, bytes: Bytes, arriving: Option<Arriving>) -> ToolResult {
    ToolResult {
        head: Some(Head { status, headers, arriving }),
        content: Content { bytes, form: Form::Text },
        source: Source::Tool,
        notes: Notes::default(),
    }
}

/// From the head on a body that stalls leaves no more doubt than one that is cut.
fn head_came(call: &ToolCall, if_cut: impl Fn() -> Failed + Send + 'static) {
    if let Some(progress) = &call.progress {
        progress.head_came(if_cut);
    }
}

/// No head came. Where the client's own body was what broke, the tool is not to blame.
fn unanswered(request: &HttpRequest, error: SendError) -> Failed {
    let failed = classify::unanswered(error);
    let why = match request.turn() {
        Some(Turn::Broken(Broken::Client)) => "the request's own body broke off",
        Some(Turn::Broken(Broken::TooLong)) => "the request's body went over its limit",
        Some(Turn::Tool | Turn::Client | Turn::Over) | None => return failed,
    };
    Failed {
        class: crate::call::Class::Permanent,
        health: Verdict::Neutral,
        message: why.to_owned(),
        ..failed
    }
}
