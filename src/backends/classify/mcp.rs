//! The same judgement for a server that speaks MCP: what a JSON-RPC error, a lost session, a broken stream or a child
//! that has ended say of one call.

use super::{Promises, clean, protocol, status_told, unanswered};
use crate::backends::mcp::Lost;
use crate::call::code::FailCode;
use crate::call::{Class, Delivery, Effect, ErrorClass, Evidence, Failed, Verdict};
use crate::mcp::jsonrpc::{
    ErrorReply, HEADER_MISMATCH, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY, PARSE_ERROR, UNSUPPORTED_PROTOCOL_VERSION, URL_ELICITATION_REQUIRED,
};

/// How a call ended whose exchange got no answer.
pub(in crate::backends) fn lost(lost: Lost, promises: Promises<'_>) -> Failed {
    match lost {
        Lost::Send(error) => unanswered(error),
        Lost::Status { status, retry_after, text } => {
            status_told(status, retry_after, &text, promises)
        }
        Lost::StreamEnded(why) => Failed {
            error_class: ErrorClass::ResetAfterSend,
            ..Failed::new(
                FailCode::UpstreamReset,
                Class::Transient,
                Delivery::Unknown,
                Verdict::Bad,
                clean(&format!("the server's answer broke off: {why}")),
            )
        },
        Lost::NotMcp(why) => {
            protocol(None, &format!("the server's answer is not what was due: {why}"))
        }
        Lost::TooLarge(limit) => super::too_large(
            200,
            &format!("the server's answer is over the limit of {limit} bytes"),
            Verdict::Neutral,
        ),
        Lost::SessionGone(status) => Failed {
            evidence: Some(Evidence::Session(status)),
            error_class: ErrorClass::Http4xx,
            status: Some(status),
            // It did not run: a read goes on in the session that its next attempt opens.
            never_ran: true,
            ..Failed::new(
                FailCode::UpstreamRefusedStream,
                Class::Transient,
                Delivery::Refused,
                Verdict::Neutral,
                "the server had forgotten the session, and did nothing; the next call opens another",
            )
        },
        Lost::ChildGone { written: false } => Failed {
            evidence: Some(Evidence::ChildGoneBeforeLine),
            error_class: ErrorClass::ResetBeforeSend,
            never_ran: true,
            ..Failed::new(
                FailCode::UpstreamRefusedStream,
                Class::Transient,
                Delivery::NotSent,
                Verdict::Bad,
                "the server's process had ended before the request was written",
            )
        },
        Lost::ChildGone { written: true } => Failed {
            error_class: ErrorClass::ResetAfterSend,
            ..Failed::new(
                FailCode::UpstreamReset,
                Class::Transient,
                Delivery::Unknown,
                Verdict::Bad,
                "the server's process ended before it answered",
            )
        },
        Lost::Busy => before_sending(Failed::new(
            FailCode::ToolUnavailable,
            Class::Transient,
            Delivery::NotSent,
            Verdict::Neutral,
            "all sessions that the policy allows with this server are in use",
        )),
        Lost::Down(inner) => before_sending(self::lost(*inner, promises)),
        Lost::Unusable(why) => before_sending(Failed::new(
            FailCode::UpstreamUnreachable,
            Class::Transient,
            Delivery::NotSent,
            Verdict::Bad,
            clean(&why),
        )),
    }
}

/// Whatever it was, it befell the opening of a session: nothing of the call itself was sent.
fn before_sending(failed: Failed) -> Failed {
    Failed {
        delivery: Delivery::NotSent,
        evidence: Some(Evidence::ConnectFailed),
        never_ran: false,
        ..failed
    }
}

/// A JSON-RPC error in answer to `tools/call`. Some codes are given only before anything is done.
/// `had_spoken`: it had asked or told something of this call before. Then it had begun, and its answer may be another's
/// refusal of that question, passed on.
pub(in crate::backends) fn error(error: &ErrorReply, had_spoken: bool) -> Failed {
    let ErrorReply { code, message, data, .. } = error;
    let told = match message.trim() {
        "" => format!("the server answered with the error {code} and no text"),
        message => format!("the server answered with the error {code}: {message}"),
    };
    let before = matches!(
        *code,
        PARSE_ERROR
            | INVALID_REQUEST
            | METHOD_NOT_FOUND
            | INVALID_PARAMS
            | HEADER_MISMATCH
            | MISSING_CLIENT_CAPABILITY
            | UNSUPPORTED_PROTOCOL_VERSION
            | URL_ELICITATION_REQUIRED
    );
    if before && had_spoken {
        let failed = Failed::new(
            FailCode::ToolError,
            Class::Permanent,
            Delivery::Unknown,
            Verdict::Neutral,
            clean(&told),
        );
        return Failed { error_class: ErrorClass::None, ..failed };
    }
    if !before {
        let failed = Failed::new(
            FailCode::ToolUnavailable,
            Class::Transient,
            Delivery::Unknown,
            Verdict::Bad,
            clean(&told),
        );
        return Failed { error_class: ErrorClass::Http5xx, ..failed };
    }
    let told = match *code {
        MISSING_CLIENT_CAPABILITY => {
            format!("the tool needs a person's input, which this client cannot give ({message})")
        }
        URL_ELICITATION_REQUIRED => {
            format!("the tool needs a person to visit a page first: {message}")
        }
        _ => told,
    };
    let failed = Failed::new(
        FailCode::ToolError,
        Class::Permanent,
        Delivery::Refused,
        Verdict::Neutral,
        clean(&told),
    );
    let evidence = Some(Evidence::JsonRpc(*code));
    let requires = data.as_ref().filter(|_| *code == MISSING_CLIENT_CAPABILITY);
    let requires = requires.and_then(|data| data.get("requiredCapabilities"));
    let requires = requires.filter(|requires| requires.is_object()).cloned().map(Box::new);
    Failed { evidence, requires, error_class: ErrorClass::Protocol, ..failed }
}

/// Whether an error says that the server has no such tool: what we know of its tools is out of date.
pub(in crate::backends) fn is_unknown_tool(error: &ErrorReply) -> bool {
    let text = error.message.to_ascii_lowercase();
    matches!(error.code, INVALID_PARAMS | METHOD_NOT_FOUND)
        && text.contains("tool")
        && (text.contains("unknown") || text.contains("not found") || text.contains("no such"))
}

/// The agent took its call back: nobody is ill, and nothing is tried again.
pub(in crate::backends) fn taken_back(effect: Effect, sent: bool) -> Failed {
    let (delivery, evidence) = match (effect, sent) {
        (Effect::Read | Effect::Write, false) => (Delivery::NotSent, Some(Evidence::ConnectFailed)),
        (Effect::Read | Effect::Write, true) => (Delivery::Unknown, None),
    };
    let words = "the agent took the call back";
    let code = FailCode::UpstreamReset;
    let failed = Failed::new(code, Class::Permanent, delivery, Verdict::Neutral, words);
    Failed { evidence, error_class: ErrorClass::None, ..failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promises(effect: Effect) -> Promises<'static> {
        Promises { effect, not_executed_on: &[], unknown_on: &[] }
    }

    fn of(code: i64) -> Failed {
        error(&ErrorReply { id: None, code, message: "x".into(), data: None }, false)
    }

    #[test]
    fn an_error_after_a_word_of_the_server_proves_nothing_whatever_its_code() {
        for code in [-32700, -32600, -32601, -32602, -32020, -32021, -32022, -32042] {
            let error = ErrorReply { id: None, code, message: "x".into(), data: None };
            let failed = super::error(&error, true);
            assert_eq!((failed.delivery, failed.evidence), (Delivery::Unknown, None), "{code}");
            assert_eq!(failed.class, Class::Permanent, "{code}");
        }
    }

    #[test]
    fn errors_given_before_anything_is_done_prove_it_and_the_others_prove_nothing() {
        for code in [-32700, -32600, -32601, -32602, -32020, -32021, -32022, -32042] {
            let failed = of(code);
            assert_eq!(failed.delivery, Delivery::Refused, "{code}");
            assert_eq!(failed.evidence.map(|e| e.to_string()), Some(format!("jsonrpc_{code}")));
            assert_eq!(failed.class, Class::Permanent, "{code}");
        }
        for code in [-32603, -32000, -32019, -32002, 1, 0, i64::MIN] {
            let failed = of(code);
            assert_eq!((failed.delivery, failed.evidence), (Delivery::Unknown, None), "{code}");
            assert_eq!(failed.class, Class::Transient, "{code}");
            assert_eq!(failed.health, Verdict::Bad, "{code}");
        }
    }

    #[test]
    fn what_befell_the_opening_of_a_session_sent_nothing() {
        let status = || Lost::Status { status: 500, retry_after: None, text: String::new() };
        let opening = lost(Lost::Down(Box::new(status())), promises(Effect::Write));
        assert_eq!(opening.delivery, Delivery::NotSent);
        assert!(opening.evidence.is_some());
        let call = lost(status(), promises(Effect::Write));
        assert_eq!((call.delivery, call.evidence), (Delivery::Unknown, None));
    }

    #[test]
    fn a_lost_session_proves_that_nothing_was_done_and_a_broken_stream_proves_nothing() {
        let gone = lost(Lost::SessionGone(404), promises(Effect::Write));
        assert_eq!(gone.evidence.map(|e| e.to_string()).as_deref(), Some("session_404"));
        assert!(gone.never_ran && gone.health == Verdict::Neutral);
        let cut = lost(Lost::StreamEnded("x".into()), promises(Effect::Write));
        assert_eq!((cut.delivery, cut.evidence), (Delivery::Unknown, None));
        assert!(!cut.never_ran);
    }

    #[test]
    fn what_an_agent_would_have_to_declare_is_kept() {
        let of = |code, data: Option<serde_json::Value>| {
            let reply = ErrorReply { id: None, code, message: "no".into(), data };
            error(&reply, false).requires.map(|requires| *requires)
        };
        let data = serde_json::json!({"requiredCapabilities": {"sampling": {}}});
        let required = of(MISSING_CLIENT_CAPABILITY, Some(data.clone()));
        assert_eq!(required, Some(serde_json::json!({"sampling": {}})));
        assert_eq!(of(INVALID_PARAMS, Some(data)), None);
        let wrong = serde_json::json!({"requiredCapabilities": ["sampling"]});
        assert_eq!(of(MISSING_CLIENT_CAPABILITY, Some(wrong)), None);
    }
}
