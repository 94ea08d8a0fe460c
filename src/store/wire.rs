//! Rows as columns and back. What does not come back is a damaged row, never a guess.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answer, Caller, Resolved, Row, Standing, Which};
use crate::call::code::FailCode;
use crate::call::{
    AgentId, Arguments, CallId, Class, Content, Delivery, Digest, ErrorClass, Evidence, Failed,
    Form, Head, IdempotencyKey, Notes, RunId, Source, TimedOutBy, ToolName, ToolResult, Truncated,
    Verdict,
};

/// What stands in a row of `entries`, column by column.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Columns {
    pub(super) identity: Vec<u8>,
    pub(super) occurrence: i64,
    pub(super) claim: i64,
    pub(super) operation: String,
    pub(super) state: String,
    pub(super) tool: String,
    pub(super) agent: String,
    pub(super) arguments_hash: Vec<u8>,
    pub(super) arguments: Option<String>,
    pub(super) calls: String,
    pub(super) failures: String,
    pub(super) ttl_ms: i64,
    pub(super) changed_ms: i64,
    pub(super) why: String,
    pub(super) answer: String,
    pub(super) error: Option<String>,
    pub(super) resolved: Option<String>,
    pub(super) task: Option<String>,
}

/// A failure as it is kept. Words, not numbers: the file is read by people too.
#[derive(Debug, Serialize, Deserialize)]
struct Failure {
    code: String,
    transient: bool,
    delivery: String,
    health: String,
    class: String,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evidence: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timed_out_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ResultHead {
    json: bool,
    /// Absent in rows of older builds.
    #[serde(default)]
    mcp: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    headers: Vec<(String, String)>,
    attempts: u32,
    accepted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    truncated: Option<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ResolvedText {
    by: String,
    who: String,
    why: String,
    evidence: String,
}

const DELIVERIES: [(Delivery, &str); 4] = [
    (Delivery::NotSent, "not_sent"),
    (Delivery::Refused, "refused"),
    (Delivery::Done, "done"),
    (Delivery::Unknown, "unknown"),
];
const VERDICTS: [(Verdict, &str); 3] =
    [(Verdict::Good, "good"), (Verdict::Bad, "bad"), (Verdict::Neutral, "neutral")];
const LIMITS: [TimedOutBy; 7] = [
    TimedOutBy::Connect,
    TimedOutBy::FirstByte,
    TimedOutBy::Idle,
    TimedOutBy::Total,
    TimedOutBy::Loop,
    TimedOutBy::Call,
    TimedOutBy::Run,
];

fn word<T: PartialEq>(all: &[(T, &'static str)], value: &T) -> String {
    all.iter().find(|(one, _)| one == value).map_or("", |(_, word)| word).to_owned()
}

fn value<T: Copy>(all: &[(T, &'static str)], word: &str) -> Option<T> {
    all.iter().find(|(_, one)| *one == word).map(|(value, _)| *value)
}

/// A system that cannot write JSON of strings and numbers does not exist; an empty text reads back as damaged.
pub(super) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// What this program wrote, and an operator may have touched: other members or types make it damaged.
#[expect(clippy::disallowed_methods, reason = "the store's own text, no agent's or tool's bytes")]
pub(super) fn parsed<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

pub(super) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub(super) fn time(millis: i64) -> SystemTime {
    let after = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    UNIX_EPOCH.checked_add(after).unwrap_or(UNIX_EPOCH)
}

fn failure(failed: &Failed) -> Failure {
    Failure {
        code: failed.code.as_str().to_owned(),
        transient: failed.class == Class::Transient,
        delivery: word(&DELIVERIES, &failed.delivery),
        health: word(&VERDICTS, &failed.health),
        class: failed.error_class.as_str().to_owned(),
        message: failed.message.clone(),
        evidence: failed.evidence.map(|evidence| evidence.to_string()),
        status: failed.status,
        timed_out_by: failed.timed_out_by.map(|by| by.as_str().to_owned()),
        retry_after_ms: failed
            .retry_after
            .map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
    }
}

fn failed(kept: Failure) -> Option<Failed> {
    let code = FailCode::ALL.iter().copied().find(|code| code.as_str() == kept.code)?;
    let class = if kept.transient { Class::Transient } else { Class::Permanent };
    let delivery = value(&DELIVERIES, &kept.delivery)?;
    let health = value(&VERDICTS, &kept.health)?;
    Some(Failed {
        error_class: ErrorClass::ALL.iter().copied().find(|one| one.as_str() == kept.class)?,
        evidence: match kept.evidence {
            Some(text) => Some(evidence(&text)?),
            None => None,
        },
        status: kept.status,
        timed_out_by: match kept.timed_out_by {
            Some(text) => Some(*LIMITS.iter().find(|one| one.as_str() == text)?),
            None => None,
        },
        retry_after: kept.retry_after_ms.map(Duration::from_millis),
        ..Failed::new(code, class, delivery, health, kept.message)
    })
}

fn evidence(text: &str) -> Option<Evidence> {
    let fixed = [
        Evidence::ConnectFailed,
        Evidence::ZeroBytes,
        Evidence::RefusedStream,
        Evidence::GoAway,
        Evidence::Redirect,
        Evidence::Query,
        Evidence::ChildGoneBeforeLine,
        Evidence::InputRequired,
        Evidence::PolicyIsError,
    ];
    let status = |prefix: &str| text.strip_prefix(prefix)?.parse::<u16>().ok();
    let code = text.strip_prefix("jsonrpc_").and_then(|code| code.parse().ok());
    fixed
        .into_iter()
        .find(|one| one.to_string() == text)
        .or_else(|| status("policy_status_").map(Evidence::PolicyStatus))
        .or_else(|| status("status_").map(Evidence::Status))
        .or_else(|| status("session_").map(Evidence::Session))
        .or_else(|| code.map(Evidence::JsonRpc))
}

/// 64 hexadecimal digits.
fn digest_of(hex: &str) -> Option<Digest> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(Digest::restored(bytes))
}

pub(super) fn calls(calls: &[Caller]) -> String {
    let pairs: Vec<(&str, &str)> =
        calls.iter().map(|(run, call)| (run.as_str(), call.as_str())).collect();
    json(&pairs)
}

/// A row as it is written.
pub(super) fn columns(row: &Row) -> Columns {
    let (state, why, answer, error) = match &row.standing {
        Standing::Intent => ("intent", "", "", None),
        Standing::Executed(Answer::Result) => ("executed", "", "result", None),
        Standing::Executed(Answer::Lost) => ("executed", "", "lost", None),
        Standing::Executed(Answer::Error(failed)) => ("executed", "", "error", Some(failed)),
        Standing::NotExecuted { evidence } => ("not_executed", evidence.as_str(), "", None),
        Standing::Unknown { why } => ("unknown", why.as_str(), "", None),
        Standing::Compensated => ("compensated", "", "", None),
    };
    let failures: Vec<(&str, &str, String, Failure)> = row
        .failures
        .iter()
        .map(|((run, call), digest, failed)| {
            (run.as_str(), call.as_str(), digest.short_hex(32), failure(failed))
        })
        .collect();
    Columns {
        identity: row.which.key.as_bytes().to_vec(),
        occurrence: i64::from(row.which.occurrence),
        claim: claim(row.which),
        operation: row.which.key.id().to_string(),
        state: state.to_owned(),
        tool: row.tool.as_str().to_owned(),
        agent: row.agent.as_str().to_owned(),
        arguments_hash: row.digest.as_bytes().to_vec(),
        arguments: row.arguments.as_ref().map(|arguments| json(arguments.tree())),
        calls: calls(&row.calls),
        failures: json(&failures),
        ttl_ms: i64::try_from(row.ttl.as_millis()).unwrap_or(i64::MAX),
        changed_ms: millis(row.changed),
        why: why.to_owned(),
        answer: answer.to_owned(),
        error: error.map(|failed| json(&failure(failed))),
        resolved: row.resolved.as_ref().map(|resolved| {
            json(&ResolvedText {
                by: resolved.by.clone(),
                who: resolved.who.clone(),
                why: resolved.why.clone(),
                evidence: resolved.evidence.clone(),
            })
        }),
        task: row.task.as_deref().map(str::to_owned),
    }
}

/// Claims are counted from 1, a few a second: 63 bits are enough.
pub(super) fn claim(which: Which) -> i64 {
    i64::try_from(which.claim).unwrap_or(i64::MAX)
}

/// The row that was written so. `Err` = its identity cannot be told, so nothing can be blocked by it.
pub(super) fn row(columns: &Columns) -> Result<Row, String> {
    let key = <[u8; 32]>::try_from(columns.identity.as_slice()).map_err(|_| "an identity")?;
    let which = Which {
        key: IdempotencyKey::restored(key),
        occurrence: u32::try_from(columns.occurrence).map_err(|_| "an occurrence")?,
        claim: u64::try_from(columns.claim).map_err(|_| "a claim")?,
    };
    Ok(whole(columns, which).unwrap_or_else(|| damaged(columns, which)))
}

fn whole(columns: &Columns, which: Which) -> Option<Row> {
    let digest = <[u8; 32]>::try_from(columns.arguments_hash.as_slice()).ok()?;
    let arguments = match &columns.arguments {
        Some(text) => {
            Some(Arguments::from_tree(parsed::<Value>(text)?, u64::try_from(text.len()).ok()?)?)
        }
        None => None,
    };
    let calls: Vec<(String, String)> = parsed(&columns.calls)?;
    let failures: Vec<(String, String, String, Failure)> = parsed(&columns.failures)?;
    Some(Row {
        which,
        tool: ToolName::new(&columns.tool).ok()?,
        agent: AgentId::new(&columns.agent).ok()?,
        digest: Digest::restored(digest),
        arguments,
        calls: calls.iter().map(|(run, call)| caller(run, call)).collect::<Option<_>>()?,
        failures: failures
            .into_iter()
            .map(|(run, call, hash, kept)| {
                Some((caller(&run, &call)?, digest_of(&hash)?, failed(kept)?))
            })
            .collect::<Option<_>>()?,
        ttl: Duration::from_millis(u64::try_from(columns.ttl_ms).ok()?),
        changed: time(columns.changed_ms),
        standing: standing(columns)?,
        resolved: match &columns.resolved {
            Some(text) => Some(resolved(text)?),
            None => None,
        },
        task: columns.task.as_deref().map(Into::into),
    })
}

fn resolved(text: &str) -> Option<Resolved> {
    let ResolvedText { by, who, why, evidence } = parsed(text)?;
    Some(Resolved { by, who, why, evidence })
}

fn standing(columns: &Columns) -> Option<Standing> {
    Some(match (columns.state.as_str(), columns.answer.as_str()) {
        ("intent", _) => Standing::Intent,
        ("executed", "result") => Standing::Executed(Answer::Result),
        ("executed", "lost") => Standing::Executed(Answer::Lost),
        ("executed", "error") => {
            let kept = parsed(columns.error.as_deref()?)?;
            Standing::Executed(Answer::Error(failed(kept)?))
        }
        ("not_executed", _) => Standing::NotExecuted { evidence: columns.why.clone() },
        ("unknown", _) => Standing::Unknown { why: columns.why.clone() },
        ("compensated", _) => Standing::Compensated,
        (_, _) => return None,
    })
}

/// Blocks its operation until a person has looked: what cannot be read may have happened.
fn damaged(columns: &Columns, which: Which) -> Row {
    let agent = AgentId::new(&columns.agent).or_else(|_| AgentId::new("damaged"));
    Row {
        which,
        tool: ToolName::asked(&columns.tool),
        agent: agent.expect("a plain name"),
        digest: Digest::of(&columns.arguments_hash),
        arguments: None,
        calls: Vec::new(),
        failures: Vec::new(),
        ttl: Duration::ZERO,
        changed: time(columns.changed_ms),
        standing: Standing::Unknown { why: "damaged".into() },
        resolved: None,
        task: None,
    }
}

fn caller(run: &str, call: &str) -> Option<Caller> {
    Some((RunId::new(run).ok()?, CallId::new(call).ok()?))
}

/// The head of a kept result; its body is kept as it is. A header that is no text is left out.
pub(super) fn result_head(result: &ToolResult) -> String {
    let headers = result.head.iter().flat_map(|head| head.headers.iter());
    json(&ResultHead {
        json: result.content.form == Form::Json,
        mcp: result.content.form == Form::Mcp,
        status: result.head.as_ref().map(|head| head.status),
        headers: headers
            .filter_map(|(name, value)| {
                Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
            })
            .collect(),
        attempts: result.notes.attempts,
        accepted: result.notes.accepted,
        truncated: result.notes.truncated.map(|cut| (cut.total, cut.kept)),
    })
}

fn form(kept: &ResultHead) -> Form {
    match (kept.mcp, kept.json) {
        (true, _) => Form::Mcp,
        (false, true) => Form::Json,
        (false, false) => Form::Text,
    }
}

pub(super) fn result(head: &str, body: Vec<u8>) -> Option<ToolResult> {
    let kept: ResultHead = parsed(head)?;
    let head = match kept.status {
        Some(status) => {
            let mut headers = HeaderMap::new();
            for (name, value) in &kept.headers {
                let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
                headers.append(name, HeaderValue::from_str(value).ok()?);
            }
            Some(Head { status, headers, arriving: None })
        }
        None => None,
    };
    Some(ToolResult {
        head,
        content: Content { bytes: Bytes::from(body), form: form(&kept) },
        source: Source::Ledger,
        notes: Notes {
            attempts: kept.attempts,
            accepted: kept.accepted,
            truncated: kept.truncated.map(|(total, kept)| Truncated { total, kept }),
            ..Notes::default()
        },
    })
}
