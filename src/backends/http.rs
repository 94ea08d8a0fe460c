//! A templated HTTP tool: arguments → request → one exchange → result, or how it failed.
//!
//! Sends once; only a read may follow a redirect, to its own origin, at most three times.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Method};
use tower::Service;
use url::Url;

use super::body::{self, BodyEnd};
use super::classify::{self, Follow, Kind, Promises};
use super::key::Key;
use super::template::{Outline, outline};
use super::{answer, credentials};
use crate::call::{Effect, Failed, Payload, Phase, ToolCall, ToolResult, Verdict};
use crate::egress::{Answer, Ask, Egress, Way};
use crate::policy::snapshot::Tool;
use crate::telemetry::record::wall_clock;

/// Hops of one read.
const MAX_REDIRECTS: usize = 3;
/// Of an answer that is no success this much is read, for its text.
const MAX_ERROR_BODY: usize = 64 * 1024;
/// Why a success that stalls is cut.
const LATE_END: &str = "its end did not come in time";
/// Stands for the text of an answer that did not come to its end.
const CUT_TEXT: &str = "(its text was cut)";

/// The way to one HTTP tool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Http(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tool: Arc<Tool>,
    way: Arc<Way>,
    response_bytes: usize,
    blots: credentials::Blots,
}

impl Http {
    /// `response_bytes`: most decoded bytes read of an answer.
    pub fn new(tool: &Arc<Tool>, egress: &Egress, response_bytes: usize) -> Self {
        let way = egress.way(&tool.upstream);
        let blots = credentials::Blots::of(tool.upstream.auth.as_ref());
        Self(Arc::new(Inner { tool: tool.clone(), way, response_bytes, blots }))
    }
}

impl Service<ToolCall> for Http {
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
            if let Err(failed) = &mut outcome {
                // Bodies are blotted where they are read; this is for words about heads and broken answers.
                inner.blots.over_text(&mut failed.message);
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
        let mut request = self.request(call)?;
        // Only what may be sent on elsewhere is kept.
        let upstream = &self.tool.upstream;
        let follows = self.tool.effect == Effect::Read && upstream.follow_same_origin;
        let pooled = self.tool.write.as_ref().is_none_or(|write| write.pooled);
        let ask = Ask {
            fresh: self.tool.effect == Effect::Write && !pooled,
            gate: call.send_gate.as_ref(),
            progress: call.progress.as_ref(),
        };
        let mut hops = 0;
        loop {
            let kept = follows.then(|| request.without_headers());
            let sent = self.way.send(request.into_http()?, ask).await;
            let Answer { head, body } = sent.map_err(classify::unanswered)?;
            let status = head.status.as_u16();
            match classify::kind(status) {
                Kind::Success => {
                    let effect = self.tool.effect;
                    let late = move || classify::cut(status, effect, LATE_END);
                    self.head_came(call, late);
                    return self.success(status, head.headers, body).await;
                }
                Kind::Redirect if hops < MAX_REDIRECTS => {
                    let before = kept.map(|kept| self.whole_again(kept, call)).transpose()?;
                    let next = before.and_then(|b| self.next_hop(status, &head.headers, &b));
                    match next {
                        Some(next) => {
                            // Its body is of no use, but its connection is.
                            drop(body::read(body, &head.headers, MAX_ERROR_BODY).await);
                            request = next;
                            hops += 1;
                        }
                        None => return Err(self.failure(call, status, &head.headers, body).await),
                    }
                }
                Kind::Redirect | Kind::Failure => {
                    return Err(self.failure(call, status, &head.headers, body).await);
                }
            }
        }
    }

    /// The whole request, credential included.
    fn request(&self, call: &ToolCall) -> Result<Outline, Failed> {
        let arguments = match &call.payload {
            Payload::Arguments(arguments) => arguments,
            Payload::Request(_) | Payload::Malformed(_) | Payload::Unsupported { .. } => {
                return Err(classify::not_sent(
                    "arguments that did not parse reached the back end",
                ));
            }
        };
        let key = Key::of(&self.tool, call)?;
        let keyed = key.and_then(|key| key.in_arguments(arguments.tree()));
        let tree = keyed.as_ref().unwrap_or(arguments.tree());
        let Some(http) = self.tool.http() else {
            return Err(classify::not_sent("a tool of another kind reached the HTTP back end"));
        };
        let mut outline = outline(&self.tool, http, tree).map_err(|fault| {
            classify::not_sent(&format!("{}: expected {}", fault.at, fault.expected))
        })?;
        if let Some(name) = &self.tool.upstream.timeout_header {
            let left = call.deadline.saturating_duration_since(tokio::time::Instant::now());
            let left = left.min(self.tool.timeout.total).as_millis().max(1);
            let left = u64::try_from(left).unwrap_or(u64::MAX);
            outline.headers.insert(name, HeaderValue::from(left));
        }
        if let Some(key) = key {
            key.in_headers(&mut outline.headers)?;
        }
        credentials::inject(&mut outline.headers, self.tool.upstream.auth.as_ref())?;
        Ok(outline)
    }

    async fn success(
        &self,
        status: u16,
        headers: HeaderMap,
        body: crate::egress::AnswerBody,
    ) -> Result<ToolResult, Failed> {
        let read = body::read(body, &headers, self.response_bytes).await;
        crash_point!("backend: the answer is read");
        match read {
            BodyEnd::Whole(bytes) => {
                answer::result(&self.tool, status, headers, &self.blots.over(bytes))
            }
            BodyEnd::TooLarge => {
                let why =
                    format!("the tool's answer is over the limit of {} bytes", self.response_bytes);
                Err(classify::too_large(status, &why, Verdict::Neutral))
            }
            BodyEnd::Cut(why) => Err(classify::cut(status, self.tool.effect, &why)),
            BodyEnd::Coded(name) => {
                let why = format!(
                    "HTTP status {status}, in the content coding `{name}` that was not asked for"
                );
                Err(classify::protocol(Some(status), &why))
            }
        }
    }

    /// From the head on a body that stalls leaves no more doubt than one that is cut.
    fn head_came(&self, call: &ToolCall, if_cut: impl Fn() -> Failed + Send + 'static) {
        if let Some(progress) = &call.progress {
            progress.head_came(if_cut);
        }
    }

    /// A status that is no success, with the tool's own text as far as it could be had: a cut body changes nothing.
    async fn failure(
        &self,
        call: &ToolCall,
        status: u16,
        headers: &HeaderMap,
        body: crate::egress::AnswerBody,
    ) -> Failed {
        let judge = |text: &str| {
            classify::status(status, headers, text, Promises::of(&self.tool), wall_clock())
        };
        let if_cut = judge(CUT_TEXT);
        self.head_came(call, move || if_cut.clone());
        let limit = self.response_bytes.min(MAX_ERROR_BODY);
        let text = match body::read(body, headers, limit).await {
            BodyEnd::Whole(bytes) => answer::error_text(&self.tool.result, &self.blots.over(bytes)),
            BodyEnd::TooLarge => format!("(its text is over {limit} bytes)"),
            BodyEnd::Cut(_) => CUT_TEXT.into(),
            BodyEnd::Coded(name) => format!("(its text is coded as `{name}`)"),
        };
        judge(&text)
    }

    /// A request that was sent, with the fields it had: they are made anew, because there is seldom a use for them.
    fn whole_again(&self, mut sent: Outline, call: &ToolCall) -> Result<Outline, Failed> {
        sent.headers = self.request(call)?.headers;
        if sent.body.is_empty() {
            sent.headers.remove(CONTENT_TYPE);
        }
        Ok(sent)
    }

    /// Where a read goes next; `None` = the redirect is the answer.
    fn next_hop(&self, status: u16, headers: &HeaderMap, before: &Outline) -> Option<Outline> {
        let upstream = &self.tool.upstream;
        if self.tool.effect != Effect::Read || !upstream.follow_same_origin {
            return None;
        }
        let safe = matches!(before.method, Method::GET | Method::HEAD);
        let get = match classify::follow(status) {
            Follow::Same => false,
            Follow::SameIfSafe if safe => false,
            Follow::Get => before.method != Method::HEAD,
            Follow::SameIfSafe | Follow::No => return None,
        };
        let scheme = if upstream.tls { "https" } else { "http" };
        let authority = upstream.authority.to_str().ok()?;
        let here = Url::parse(&format!("{scheme}://{authority}{}", before.target)).ok()?;
        let mut locations = headers.get_all(LOCATION).iter();
        let location = locations.next()?.to_str().ok()?;
        let there = here.join(location).ok()?;
        let plain = there.username().is_empty() && there.password().is_none();
        if locations.next().is_some() || there.origin() != here.origin() || !plain {
            self.way.refuse_redirect();
            return None;
        }
        let mut next = before.clone();
        next.target = match there.query() {
            Some(query) => format!("{}?{query}", there.path()),
            None => there.path().to_owned(),
        };
        if get {
            next.method = Method::GET;
            next.body = Bytes::new();
            next.headers.remove(CONTENT_TYPE);
        }
        Some(next)
    }
}

#[cfg(test)]
pub(crate) mod tests;
