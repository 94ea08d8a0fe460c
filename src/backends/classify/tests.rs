use http::HeaderValue;

use super::*;
use crate::egress::{AddressClass, Blocked};

const READ: Promises<'_> = Promises { effect: Effect::Read, not_executed_on: &[], unknown_on: &[] };
const WRITE: Promises<'_> =
    Promises { effect: Effect::Write, not_executed_on: &[], unknown_on: &[] };

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).expect("a value"));
    }
    headers
}

/// One row of the table: statuses and what each of them means.
struct Row {
    statuses: Vec<u16>,
    code: FailCode,
    class: Class,
    delivery: Delivery,
    health: Verdict,
    error_class: ErrorClass,
    evidence: fn(u16) -> Option<Evidence>,
    cooldown: bool,
}

fn by_status(status: u16) -> Option<Evidence> {
    Some(Evidence::Status(status))
}
fn redirect(_: u16) -> Option<Evidence> {
    Some(Evidence::Redirect)
}
fn none(_: u16) -> Option<Evidence> {
    None
}

/// The table as it is written, not as it is coded.
fn table() -> Vec<Row> {
    use Class::{Permanent, Transient};
    use Delivery::{Refused, Unknown};
    use FailCode::{
        RateLimited, ToolError, ToolUnavailable, UpstreamProtocolError, UpstreamRedirect,
    };
    use Verdict::{Bad, Good, Neutral};
    let row = |statuses: Vec<u16>, code, class, delivery, health, error_class, evidence| Row {
        statuses,
        code,
        class,
        delivery,
        health,
        error_class,
        evidence,
        cooldown: false,
    };
    let other_4xx =
        (400..500).filter(|s| ![401, 403, 407, 408, 425, 429, 499].contains(s)).collect();
    let other_5xx = (500..600).filter(|s| ![501, 505].contains(s)).collect();
    vec![
        row(
            (100..200).collect(),
            UpstreamProtocolError,
            Permanent,
            Unknown,
            Bad,
            ErrorClass::Protocol,
            none,
        ),
        row(
            (300..400).collect(),
            UpstreamRedirect,
            Permanent,
            Refused,
            Good,
            ErrorClass::Protocol,
            redirect,
        ),
        row(
            vec![401, 403, 407],
            ToolError,
            Permanent,
            Refused,
            Neutral,
            ErrorClass::HttpAuth,
            by_status,
        ),
        row(
            vec![408, 499],
            ToolUnavailable,
            Transient,
            Unknown,
            Neutral,
            ErrorClass::Http4xx,
            none,
        ),
        row(vec![425], RateLimited, Transient, Refused, Neutral, ErrorClass::Http4xx, by_status),
        Row {
            cooldown: true,
            ..row(
                vec![429],
                RateLimited,
                Transient,
                Refused,
                Neutral,
                ErrorClass::Http429,
                by_status,
            )
        },
        row(other_4xx, ToolError, Permanent, Refused, Neutral, ErrorClass::Http4xx, by_status),
        row(vec![501, 505], ToolError, Permanent, Refused, Neutral, ErrorClass::Http5xx, by_status),
        row(other_5xx, ToolUnavailable, Transient, Unknown, Bad, ErrorClass::Http5xx, none),
    ]
}

#[test]
fn every_status_from_100_to_599_has_exactly_one_row_for_reads_and_writes() {
    let table = table();
    for number in 100..600_u16 {
        let rows: Vec<&Row> = table.iter().filter(|row| row.statuses.contains(&number)).collect();
        if kind(number) == Kind::Success {
            assert!(rows.is_empty(), "{number}");
            continue;
        }
        assert_eq!(rows.len(), 1, "{number}");
        let row = rows[0];
        for promises in [READ, WRITE] {
            let failed = status(number, &HeaderMap::new(), "", promises, now());
            let effect = promises.effect;
            // To a write most redirects may show what it has done.
            let seen = kind(number) == Kind::Redirect && ![307, 308].contains(&number);
            let doubt = seen && effect == Effect::Write;
            let delivery = if doubt { Delivery::Unknown } else { row.delivery };
            let evidence = if doubt { None } else { (row.evidence)(number) };
            assert_eq!(failed.code, row.code, "{number} {effect:?}");
            assert_eq!(failed.class, row.class, "{number} {effect:?}");
            assert_eq!(failed.delivery, delivery, "{number} {effect:?}");
            assert_eq!(failed.health, row.health, "{number} {effect:?}");
            assert_eq!(failed.error_class, row.error_class, "{number} {effect:?}");
            assert_eq!(failed.evidence, evidence, "{number} {effect:?}");
            assert_eq!(failed.cooldown, row.cooldown, "{number} {effect:?}");
            assert_eq!(failed.status, Some(number));
            assert!(!failed.never_ran && failed.timed_out_by.is_none());
            assert!(failed.message.contains(&number.to_string()), "{}", failed.message);
        }
    }
}

#[test]
fn not_executed_always_has_named_evidence() {
    for number in (100..200).chain(300..1000) {
        for promises in [READ, WRITE] {
            let failed = status(number, &HeaderMap::new(), "x", promises, now());
            let settled = matches!(failed.delivery, Delivery::Refused | Delivery::NotSent);
            assert_eq!(settled, failed.evidence.is_some(), "{number}");
        }
    }
}

#[test]
fn the_policys_promises_hold_for_writes_alone_and_a_doubt_beats_a_promise() {
    let promises = Promises {
        effect: Effect::Write,
        not_executed_on: &[503, 404, 500],
        unknown_on: &[429, 500],
    };
    let of = |number, promises| status(number, &HeaderMap::new(), "", promises, now());
    let refused = of(503, promises);
    assert_eq!(refused.delivery, Delivery::Refused);
    assert_eq!(refused.evidence.map(|e| e.to_string()).as_deref(), Some("policy_status_503"));
    assert_eq!(of(404, promises).evidence, Some(Evidence::Status(404)));
    for doubtful in [429, 500] {
        assert_eq!(of(doubtful, promises).delivery, Delivery::Unknown, "{doubtful}");
        assert_eq!(of(doubtful, promises).evidence, None, "{doubtful}");
    }
    let of_a_read = Promises { effect: Effect::Read, ..promises };
    assert_eq!(of(503, of_a_read).delivery, Delivery::Unknown);
    assert_eq!(of(429, of_a_read).delivery, Delivery::Refused);
}

#[test]
fn every_end_without_an_answer_has_its_row() {
    use Class::{Permanent, Transient};
    use Delivery::{NotSent, Unknown};
    use Verdict::{Bad, Neutral};
    let text = || "why".to_owned();
    let connect = Some(Evidence::ConnectFailed);
    let zero = Some(Evidence::ZeroBytes);
    let table = [
        (
            SendError::Blocked(Blocked::Host),
            (FailCode::EgressBlocked, Permanent, NotSent, Neutral, connect),
        ),
        (
            SendError::Blocked(Blocked::Address(AddressClass::Metadata)),
            (FailCode::EgressBlocked, Permanent, NotSent, Neutral, connect),
        ),
        (SendError::Dns(text()), (FailCode::UpstreamUnreachable, Transient, NotSent, Bad, connect)),
        (
            SendError::Connect(text()),
            (FailCode::UpstreamUnreachable, Transient, NotSent, Bad, connect),
        ),
        (
            SendError::TlsCut(text()),
            (FailCode::UpstreamUnreachable, Transient, NotSent, Bad, connect),
        ),
        (
            SendError::Untrusted(text()),
            (FailCode::UpstreamUntrusted, Permanent, NotSent, Bad, connect),
        ),
        (
            SendError::ZeroBytes { reused: true },
            (FailCode::UpstreamRefusedStream, Transient, NotSent, Neutral, zero),
        ),
        (
            SendError::ZeroBytes { reused: false },
            (FailCode::UpstreamRefusedStream, Transient, NotSent, Bad, zero),
        ),
        (
            SendError::RefusedStream,
            (
                FailCode::UpstreamRefusedStream,
                Transient,
                NotSent,
                Neutral,
                Some(Evidence::RefusedStream),
            ),
        ),
        (
            SendError::GoneAway,
            (FailCode::UpstreamRefusedStream, Transient, NotSent, Neutral, Some(Evidence::GoAway)),
        ),
        (SendError::Calm, (FailCode::UpstreamReset, Transient, Unknown, Neutral, None)),
        (SendError::Reset(text()), (FailCode::UpstreamReset, Transient, Unknown, Bad, None)),
        (
            SendError::NotHttp { first: text() },
            (FailCode::UpstreamProtocolError, Permanent, Unknown, Bad, None),
        ),
        (SendError::HeadTooLarge, (FailCode::UpstreamProtocolError, Permanent, Unknown, Bad, None)),
    ];
    for (error, (code, class, delivery, health, evidence)) in table {
        let shown = format!("{error:?}");
        let never_ran = matches!(
            error,
            SendError::ZeroBytes { .. } | SendError::RefusedStream | SendError::GoneAway
        );
        let failed = unanswered(error);
        assert_eq!(failed.code, code, "{shown}");
        assert_eq!(failed.class, class, "{shown}");
        assert_eq!(failed.delivery, delivery, "{shown}");
        assert_eq!(failed.health, health, "{shown}");
        assert_eq!(failed.evidence, evidence, "{shown}");
        assert_eq!(failed.never_ran, never_ran, "{shown}");
        assert!(!failed.message.is_empty(), "{shown}");
    }
}

#[test]
fn a_cut_success_ran_and_only_a_read_may_ask_again() {
    let read = cut(200, Effect::Read, "reset");
    assert_eq!((read.class, read.delivery), (Class::Transient, Delivery::Done));
    let write = cut(200, Effect::Write, "reset");
    assert_eq!((write.class, write.delivery), (Class::Permanent, Delivery::Done));
    assert_eq!((read.health, write.health), (Verdict::Bad, Verdict::Bad));
}

#[test]
fn ra_01_retry_after_is_told_as_the_tool_told_it() {
    let soon = httpdate::fmt_http_date(now() + Duration::from_secs(60));
    let table = [
        (429, Some("120"), Some(120)),
        (429, Some("3600"), Some(3600)),
        (503, Some("120"), Some(120)),
        (429, Some(soon.as_str()), Some(60)),
        // Zero and the past: the computed back-off stands, and the tool needs no rest from anybody.
        (429, Some("0"), None),
        (503, Some("0"), None),
        (429, Some("Wed, 01 Jan 2020 00:00:00 GMT"), None),
        (429, None, None),
        (429, Some("not-a-number"), None),
        // Only 429 and 503 say it.
        (500, Some("120"), None),
        (404, Some("120"), None),
    ];
    for (number, header, seconds) in table {
        let headers = header.map_or_else(HeaderMap::new, |text| headers(&[("retry-after", text)]));
        let failed = status(number, &headers, "", READ, now());
        assert_eq!(failed.retry_after, seconds.map(Duration::from_secs), "{number} {header:?}");
        let at_once = [Some("0"), Some("Wed, 01 Jan 2020 00:00:00 GMT")].contains(&header);
        let cools = (number == 429 && !at_once) || (number == 503 && seconds.is_some());
        assert_eq!(failed.cooldown, cools, "{number} {header:?}");
    }
}

#[test]
fn ra_04_every_form_of_retry_after_and_nothing_else() {
    let date = Duration::from_secs(1_445_412_480);
    let before = SystemTime::UNIX_EPOCH + date - Duration::from_secs(100);
    for text in [
        "Wed, 21 Oct 2015 07:28:00 GMT",
        "Wednesday, 21-Oct-15 07:28:00 GMT",
        "Wed Oct 21 07:28:00 2015",
    ] {
        let wait = retry_after(&headers(&[("retry-after", text)]), before);
        assert_eq!(wait, Some(Duration::from_secs(100)), "{text}");
    }
    let wait = retry_after(&headers(&[("retry-after", " 120 ")]), before);
    assert_eq!(wait, Some(Duration::from_secs(120)));
    for text in [
        "1.5",
        "-1",
        "",
        "+5",
        "5 s",
        "2015-10-21T07:28:00Z",
        "Wed, 21 Oct 2015 07:28:00 UTC",
        "Thu, 21 Oct 2015 07:28:00 GMT",
        "99999999999999999999999999",
    ] {
        assert_eq!(retry_after(&headers(&[("retry-after", text)]), before), None, "{text:?}");
    }
}

#[test]
fn bb_r01_a_wait_that_is_malformed_repeated_or_past_is_no_wait() {
    let now = now();
    let soon = httpdate::fmt_http_date(now + Duration::from_secs(1));
    let past = httpdate::fmt_http_date(now - Duration::from_secs(100));
    let of = |values: &[&str]| {
        let pairs: Vec<(&'static str, &str)> =
            values.iter().map(|value| ("retry-after", *value)).collect();
        status(503, &headers(&pairs), "", READ, now).retry_after
    };
    assert_eq!(of(&["1"]), Some(Duration::from_secs(1)));
    assert_eq!(of(&[&soon]), Some(Duration::from_secs(1)));
    for ignored in [&["-5"][..], &[&past], &[""], &["abc"], &["1.5"], &["1", "1"], &["1", &soon]] {
        assert_eq!(of(ignored), None, "{ignored:?}");
    }
}

#[test]
fn a_retry_after_date_is_measured_against_the_answers_own_clock() {
    let theirs = now() - Duration::from_secs(3600);
    let headers = headers(&[
        ("retry-after", &httpdate::fmt_http_date(theirs + Duration::from_secs(7))),
        ("date", &httpdate::fmt_http_date(theirs)),
    ]);
    assert_eq!(retry_after(&headers, now()), Some(Duration::from_secs(7)));
}

#[test]
fn bb_p09_an_error_is_never_without_words() {
    for number in (300..=599).step_by(1) {
        let failed = status(number, &HeaderMap::new(), " \n", WRITE, now());
        assert!(failed.message.contains("HTTP status"), "{}", failed.message);
    }
}

#[test]
fn a_message_is_one_bounded_printable_line() {
    let nasty = format!("a\u{0}b\r\n\tc\u{1b}[31m\u{202e}d{}", "é".repeat(2000));
    let failed = status(422, &HeaderMap::new(), &nasty, READ, now());
    assert!(failed.message.chars().count() <= MAX_MESSAGE, "{}", failed.message.chars().count());
    assert!(!failed.message.chars().any(char::is_control));
    assert!(failed.message.contains("422: a b c [31m d"), "{}", failed.message);
    assert_eq!(clean("  "), "");
}
