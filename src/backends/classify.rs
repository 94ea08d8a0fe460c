//! What happened on the wire → how it ended: THE one place that reads statuses and transport errors.
//!
//! Three questions, each with its own axis: may the same request do better later (class), did it happen
//! (delivery), what does it say of the tool's health. A write is "not executed" only with named evidence.

pub(super) mod mcp;

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};

use crate::call::code::FailCode;
use crate::call::{Class, Delivery, Effect, ErrorClass, Evidence, Failed, Verdict};
use crate::egress::{MAX_HEAD_BYTES, MAX_HEAD_FIELDS, SendError};
use crate::policy::snapshot::Tool;

/// Longest message, in characters.
pub const MAX_MESSAGE: usize = 500;
/// Longer waits than this are told as this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a tool's policy promises about statuses; empty for a read.
#[derive(Debug, Clone, Copy)]
pub struct Promises<'a> {
    pub effect: Effect,
    /// Sent by this tool only before acting.
    pub not_executed_on: &'a [u16],
    /// The reverse: this tool may have acted all the same.
    pub unknown_on: &'a [u16],
}

impl<'a> Promises<'a> {
    pub fn of(tool: &'a Tool) -> Self {
        let write = tool.write.as_ref();
        Self {
            effect: tool.effect,
            not_executed_on: write.map_or(&[], |write| &write.not_executed_on),
            unknown_on: write.map_or(&[], |write| &write.unknown_on),
        }
    }
}

/// What the status says, before the body is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Success,
    Redirect,
    Failure,
}

pub fn kind(status: u16) -> Kind {
    match status {
        200..=299 => Kind::Success,
        300..=399 => Kind::Redirect,
        _ => Kind::Failure,
    }
}

/// A success without a body by definition (RFC 9110 §15.3.5, §15.3.6), or taken on and not yet done.
pub fn may_be_empty(status: u16) -> bool {
    matches!(status, 202 | 204 | 205)
}

/// The tool took the request on, but has not finished (RFC 9110 §15.3.3).
pub fn is_accepted(status: u16) -> bool {
    status == 202
}

/// How a redirect is followed, where it may be (RFC 9110 §15.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// The same method and body again.
    Same,
    /// The same again for GET and HEAD only.
    SameIfSafe,
    /// GET, without body.
    Get,
    No,
}

pub fn follow(status: u16) -> Follow {
    match status {
        301 | 302 => Follow::SameIfSafe,
        303 => Follow::Get,
        307 | 308 => Follow::Same,
        _ => Follow::No,
    }
}

/// How long a peer that wants less (HTTP/2) is left alone, as it names no time.
const CALM: Duration = Duration::from_secs(1);

/// No head of an answer came.
pub fn unanswered(error: SendError) -> Failed {
    let not_sent = |code, class, health, error_class, message: String| Failed {
        evidence: Some(Evidence::ConnectFailed),
        error_class,
        ..Failed::new(code, class, Delivery::NotSent, health, message)
    };
    match error {
        SendError::Blocked(why) => not_sent(
            FailCode::EgressBlocked,
            Class::Permanent,
            Verdict::Neutral,
            ErrorClass::Blocked,
            why.message().to_owned(),
        ),
        SendError::Dns(why) => not_sent(
            FailCode::UpstreamUnreachable,
            Class::Transient,
            Verdict::Bad,
            ErrorClass::Connect,
            clean(&format!("the tool's host name could not be resolved: {why}")),
        ),
        SendError::Connect(why) => not_sent(
            FailCode::UpstreamUnreachable,
            Class::Transient,
            Verdict::Bad,
            ErrorClass::Connect,
            clean(&format!("the tool could not be reached: {why}")),
        ),
        SendError::TlsCut(why) => not_sent(
            FailCode::UpstreamUnreachable,
            Class::Transient,
            Verdict::Bad,
            ErrorClass::Tls,
            clean(&format!("the TLS handshake with the tool broke off: {why}")),
        ),
        SendError::Untrusted(why) => not_sent(
            FailCode::UpstreamUntrusted,
            Class::Permanent,
            Verdict::Bad,
            ErrorClass::Tls,
            clean(&format!("the tool is not trusted: {why}")),
        ),
        SendError::GateShut(why) => *why,
        SendError::ZeroBytes { reused } => Failed {
            evidence: Some(Evidence::ZeroBytes),
            error_class: ErrorClass::ResetBeforeSend,
            never_ran: true,
            ..Failed::new(
                FailCode::UpstreamRefusedStream,
                Class::Transient,
                Delivery::NotSent,
                // A kept connection that had died says nothing of the tool; a fresh one does.
                if reused { Verdict::Neutral } else { Verdict::Bad },
                "the connection was closed before anything was sent",
            )
        },
        SendError::RefusedStream => refused_stream(Evidence::RefusedStream, "refused this stream"),
        SendError::GoneAway => refused_stream(Evidence::GoAway, "was closing the connection"),
        SendError::Calm => Failed {
            retry_after: Some(CALM),
            cooldown: true,
            error_class: ErrorClass::ResetAfterSend,
            ..Failed::new(
                FailCode::UpstreamReset,
                Class::Transient,
                Delivery::Unknown,
                Verdict::Neutral,
                "the tool wants fewer requests (HTTP/2 ENHANCE_YOUR_CALM)",
            )
        },
        SendError::Reset(why) => Failed {
            error_class: ErrorClass::ResetAfterSend,
            ..Failed::new(
                FailCode::UpstreamReset,
                Class::Transient,
                Delivery::Unknown,
                Verdict::Bad,
                clean(&format!("the connection to the tool broke before it answered: {why}")),
            )
        },
        SendError::NotHttp { first } => {
            protocol(None, &format!("the tool's answer is not HTTP; it begins with: {first}"))
        }
        SendError::HeadTooLarge => protocol(
            None,
            &format!(
                "the head of the tool's answer is over the limit of {MAX_HEAD_FIELDS} fields or \
                 {MAX_HEAD_BYTES} bytes"
            ),
        ),
    }
}

/// The tool says itself that it did not process the request.
fn refused_stream(evidence: Evidence, why: &str) -> Failed {
    Failed {
        evidence: Some(evidence),
        error_class: ErrorClass::ResetBeforeSend,
        never_ran: true,
        ..Failed::new(
            FailCode::UpstreamRefusedStream,
            Class::Transient,
            Delivery::NotSent,
            Verdict::Neutral,
            format!("the tool {why} and did not process the request (HTTP/2)"),
        )
    }
}

/// A status that is no success, with what the tool said (bounded, redacted by the caller).
pub fn status(
    status: u16,
    headers: &HeaderMap,
    text: &str,
    promises: Promises<'_>,
    now: SystemTime,
) -> Failed {
    status_told(status, retry_after(headers, now), text, promises)
}

/// The same, where `Retry-After` has been read already.
fn status_told(
    status: u16,
    retry_after: Option<Duration>,
    text: &str,
    promises: Promises<'_>,
) -> Failed {
    let (code, class, delivery, health) = match status {
        // A read has done nothing. To a write 307 and 308 say that the same request is to go elsewhere, so it was not
        // done here (RFC 9110 §15.4.8, §15.4.9); the others may show what a POST has done (§15.4.2 to §15.4.4).
        300..=399 => {
            let delivery = match (promises.effect, status) {
                (Effect::Read, _) | (Effect::Write, 307 | 308) => Delivery::Refused,
                (Effect::Write, _) => Delivery::Unknown,
            };
            (FailCode::UpstreamRedirect, Class::Permanent, delivery, Verdict::Good)
        }
        // Something on the way gave up, and 499 says so of a request that was passed on.
        499 => (FailCode::ToolUnavailable, Class::Transient, Delivery::Unknown, Verdict::Neutral),
        408 => (FailCode::ToolUnavailable, Class::Transient, Delivery::Unknown, Verdict::Neutral),
        425 | 429 => (FailCode::RateLimited, Class::Transient, Delivery::Refused, Verdict::Neutral),
        400..=499 | 501 | 505 => {
            (FailCode::ToolError, Class::Permanent, Delivery::Refused, Verdict::Neutral)
        }
        500..=599 => (FailCode::ToolUnavailable, Class::Transient, Delivery::Unknown, Verdict::Bad),
        _ => (FailCode::UpstreamProtocolError, Class::Permanent, Delivery::Unknown, Verdict::Bad),
    };
    let (delivery, evidence) = promised(status, delivery, promises);
    let told = retry_after.filter(|_| matches!(status, 429 | 503));
    // Zero and the past tell no time to wait for: the computed back-off stands, and nobody else has to wait.
    let at_once = told.is_some_and(|wait| wait.is_zero());
    let retry_after = told.filter(|wait| !wait.is_zero());
    Failed {
        error_class: error_class(status),
        evidence,
        status: Some(status),
        retry_after,
        cooldown: (status == 429 && !at_once) || (status == 503 && retry_after.is_some()),
        ..Failed::new(code, class, delivery, health, told_by(status, text))
    }
}

/// Where the policy promises or withdraws: a doubt beats a promise.
fn promised(
    status: u16,
    delivery: Delivery,
    promises: Promises<'_>,
) -> (Delivery, Option<Evidence>) {
    let write = promises.effect == Effect::Write;
    if write && promises.unknown_on.contains(&status) {
        return (Delivery::Unknown, None);
    }
    match delivery {
        Delivery::Unknown if write && promises.not_executed_on.contains(&status) => {
            (Delivery::Refused, Some(Evidence::PolicyStatus(status)))
        }
        Delivery::Refused if matches!(status, 300..=399) => {
            (Delivery::Refused, Some(Evidence::Redirect))
        }
        Delivery::Refused => (Delivery::Refused, Some(Evidence::Status(status))),
        Delivery::NotSent | Delivery::Done | Delivery::Unknown => (delivery, None),
    }
}

fn error_class(status: u16) -> ErrorClass {
    match status {
        401 | 403 | 407 => ErrorClass::HttpAuth,
        429 => ErrorClass::Http429,
        400..=499 => ErrorClass::Http4xx,
        500..=599 => ErrorClass::Http5xx,
        _ => ErrorClass::Protocol,
    }
}

fn told_by(status: u16, text: &str) -> String {
    let text = text.trim();
    match (kind(status), text.is_empty()) {
        (Kind::Redirect, _) => {
            format!("the tool answered with HTTP status {status}, a redirect that is not followed")
        }
        (Kind::Success | Kind::Failure, true) => {
            format!("the tool answered with HTTP status {status} and no text")
        }
        (Kind::Success | Kind::Failure, false) => {
            clean(&format!("the tool answered with HTTP status {status}: {text}"))
        }
    }
}

/// A success whose body was cut. It ran; a read may ask again, a write may not.
pub fn cut(status: u16, effect: Effect, why: &str) -> Failed {
    let class = match effect {
        Effect::Read => Class::Transient,
        Effect::Write => Class::Permanent,
    };
    Failed {
        error_class: ErrorClass::ResetAfterSend,
        status: Some(status),
        ..Failed::new(
            FailCode::ResultLost,
            class,
            Delivery::Done,
            Verdict::Bad,
            clean(&format!("the tool's answer (HTTP status {status}) was cut: {why}")),
        )
    }
}

/// Not HTTP, or a success that is not what the tool promised. Nothing tells whether a write ran.
pub fn protocol(status: Option<u16>, why: &str) -> Failed {
    Failed {
        status,
        ..Failed::new(
            FailCode::UpstreamProtocolError,
            Class::Permanent,
            Delivery::Unknown,
            Verdict::Bad,
            clean(why),
        )
    }
}

/// A success that is over one of our limits: it ran. Whole answers that were read and keep the contract are good.
pub fn too_large(status: u16, why: &str, health: Verdict) -> Failed {
    Failed {
        error_class: ErrorClass::None,
        status: Some(status),
        ..Failed::new(
            FailCode::ResultTooLarge,
            Class::Permanent,
            Delivery::Done,
            health,
            clean(why),
        )
    }
}

/// The tool's credential is missing or cannot be a header: nothing was dialled.
pub fn no_credential(origin: &str) -> Failed {
    Failed {
        error_class: ErrorClass::Blocked,
        evidence: Some(Evidence::ConnectFailed),
        ..Failed::new(
            FailCode::CredentialUnavailable,
            Class::Permanent,
            Delivery::NotSent,
            Verdict::Neutral,
            clean(&format!("the tool's credential ({origin}) is missing or unusable")),
        )
    }
}

/// A fault of ours before anything was dialled.
pub fn not_sent(why: &str) -> Failed {
    Failed {
        error_class: ErrorClass::Blocked,
        evidence: Some(Evidence::ConnectFailed),
        ..Failed::new(
            FailCode::Internal,
            Class::Permanent,
            Delivery::NotSent,
            Verdict::Neutral,
            clean(why),
        )
    }
}

/// `Retry-After` (RFC 9110 §10.2.3): seconds, or a date of any of the three forms (§5.6.7) measured against the
/// answer's own `Date` when it has one. Malformed or repeated = as if it were not there. The past is zero.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = only(headers, &RETRY_AFTER)?;
    let wait = if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        Duration::from_secs(text.parse().ok()?)
    } else {
        let then = httpdate::parse_http_date(text).ok()?;
        let base = only(headers, &DATE)
            .and_then(|date| httpdate::parse_http_date(date).ok())
            .unwrap_or(now);
        then.duration_since(base).unwrap_or(Duration::ZERO)
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// The value of a field that stands there once, blanks at its ends removed.
fn only<'h>(headers: &'h HeaderMap, name: &http::HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok().map(str::trim)
}

/// One line, printable, at most [`MAX_MESSAGE`] characters.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_MESSAGE + 8));
    let mut blank = false;
    for (count, c) in text.chars().enumerate() {
        if count >= MAX_MESSAGE - 1 {
            out.push('…');
            break;
        }
        let c = if c.is_control() || c.is_whitespace() || is_unseen(c) { ' ' } else { c };
        if c != ' ' || !blank {
            out.push(c);
        }
        blank = c == ' ';
    }
    out.truncate(out.trim_end().len());
    out
}

/// Marks that change how the text around them reads, unseen: bidirectional controls, zero-width joints, tags.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests;
