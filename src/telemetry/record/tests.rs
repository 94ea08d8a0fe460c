use std::sync::mpsc;
use std::thread;
use std::time::UNIX_EPOCH;

use super::*;
use crate::call::{
    AgentId, Arguments, CallId, Content, Denied, ErrorClass, FrontEnd, Notes, Payload, RunId,
    Source, ToolName, ToolResult, Trace, code::DenyCode,
};
use crate::strict_json::{self, Limits};

/// A sink that keeps what it was given.
#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);
impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
impl Kept {
    fn lines(&self) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| line.parse().expect("one JSON object a line")).collect()
    }
}

#[derive(Debug)]
struct Broken;
impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("no space"))
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn call(text: &str) -> ToolCall {
    let now = tokio::time::Instant::now();
    let arguments = Arguments::parse(text.as_bytes(), Limits::arguments(1 << 16, 32)).unwrap();
    ToolCall {
        home: None,
        id: CallId::new("call_1\n\"x").unwrap(),
        agent: AgentId::new("default").unwrap(),
        run: RunId::new("run-1").unwrap(),
        tool: ToolName::new("check_order").unwrap(),
        front_end: FrontEnd::OpenaiChat,
        payload: Payload::Arguments(arguments),
        caller_key: None,
        side: None,
        began: now,
        deadline: now + Duration::from_secs(60),
        admitted: None,
        single_attempt: false,
        place: None,
        send_gate: None,
        sent_key: None,
        progress: None,
        entry: None,
        handoff: None,
        identical: false,
        consent: None,
        trace: Trace::default(),
    }
}

fn attempt(number: u32) -> AttemptNote {
    AttemptNote {
        number,
        delay: Duration::from_millis(1250),
        error_class: ErrorClass::Http5xx,
        status: Some(503),
        timed_out_by: None,
        connect: Some(Duration::from_micros(1500)),
        first_byte: None,
        total: Duration::from_millis(20),
        circuit: "closed",
    }
}

fn record(outcome: &Outcome, label: &'static str, noted: &Noted) -> serde_json::Value {
    let kept = Kept::default();
    let (recorder, writer) = Recorder::channel(Metrics::new());
    let call = call(r#"{"order_id":"secret-A17"}"#);
    recorder.call(&CallFacts {
        call: &call,
        effect: "read",
        revision: "0123456789ab",
        outcome: label,
        executed: "no",
        result: Some(outcome),
        duration: Duration::from_millis(7),
        noted,
    });
    let sink = kept.clone();
    let thread = thread::spawn(move || writer.run(sink));
    assert!(recorder.close(Duration::from_secs(10)));
    thread.join().unwrap();
    let bytes = kept.0.lock().unwrap().clone();
    assert!(!String::from_utf8(bytes).unwrap().contains("A17"), "arguments and results stay out");
    kept.lines().remove(0)
}

#[test]
fn a_refused_call_names_its_rule_and_sends_nothing() {
    let noted =
        Noted { rule: Some("allowlist agents.default.allow :31".into()), ..Noted::default() };
    let outcome = Err(Denied::new(DenyCode::UnknownTool, "no such tool").into());
    let line = record(&outcome, "unknown_tool", &noted);
    for (field, expected) in [
        ("kind", serde_json::json!("call")),
        ("decision", serde_json::json!("deny")),
        ("outcome", serde_json::json!("unknown_tool")),
        ("error_type", serde_json::json!("unknown_tool")),
        ("rule", serde_json::json!("allowlist agents.default.allow :31")),
        ("attempt", serde_json::json!(0)),
        ("call_id", serde_json::json!("call_1\n\"x")),
        ("front_end", serde_json::json!("openai_chat")),
        ("executed", serde_json::json!("no")),
    ] {
        assert_eq!(line[field], expected, "{field}");
    }
}

#[test]
fn a_retried_call_tells_its_attempts_delay_and_circuit() {
    let noted = Noted {
        attempts: vec![attempt(1), attempt(2)],
        backoff: Duration::from_millis(1250),
        circuit: Some("half_open"),
        retry_stopped_by: Some("attempts"),
        ..Noted::default()
    };
    let result = ToolResult {
        head: None,
        content: Content {
            bytes: bytes::Bytes::from_static(b"{\"id\":\"A17\"}"),
            form: crate::call::Form::Json,
        },
        source: Source::Tool,
        notes: Notes::default(),
    };
    let line = record(&Ok(result), "ok", &noted);
    assert_eq!(line["tool_name"], "check_order");
    assert_eq!(line["attempt"], 2);
    assert_eq!(line["delay_ms"].as_f64(), Some(1250.0));
    assert_eq!(line["circuit_status"], "half_open");
    assert_eq!(line["retry_stopped_by"], "attempts");
    assert_eq!(line["error_type"], "none");
    assert_eq!(line["result_bytes"], 12);
    assert_eq!(line["duration_ms"].as_f64(), Some(7.0));
}

#[test]
fn an_attempt_has_a_line_of_its_own() {
    let kept = Kept::default();
    let (recorder, writer) = Recorder::channel(Metrics::new());
    let sink = kept.clone();
    let thread = thread::spawn(move || writer.run(sink));
    recorder.attempt(&call("{}"), &attempt(2));
    assert!(recorder.close(Duration::from_secs(10)));
    thread.join().unwrap();
    let line = kept.lines().remove(0);
    assert_eq!((&line["kind"], &line["attempt"]), (&"attempt".into(), &2.into()));
    assert_eq!(line["error_type"], "http_5xx");
    assert_eq!(line["connect_ms"].as_f64(), Some(1.5));
    assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn a_full_buffer_drops_and_counts_and_never_waits() {
    let metrics = Metrics::new();
    let (recorder, writer) = Recorder::channel(metrics.clone());
    let call = call("{}");
    let lines = 2 * MAX_BUFFERED / 200;
    for _ in 0..lines {
        recorder.attempt(&call, &attempt(1)); // nobody writes yet
    }
    let text = metrics.encode();
    let count = |series: &str| -> usize {
        text.lines().find_map(|line| line.strip_prefix(series)).unwrap().trim().parse().unwrap()
    };
    let written = count("checkrein_audit_records_total ");
    assert!(written > 0);
    assert_eq!(written + count("checkrein_audit_dropped_total "), lines);
    let kept = Kept::default();
    let sink = kept.clone();
    let thread = thread::spawn(move || writer.run(sink));
    assert!(recorder.close(Duration::from_secs(10)));
    thread.join().unwrap();
    assert_eq!(kept.lines().len(), written, "whole lines only");
}

#[test]
fn a_sink_that_fails_is_counted_and_stops_nothing() {
    let metrics = Metrics::new();
    let (recorder, writer) = Recorder::channel(metrics.clone());
    recorder.attempt(&call("{}"), &attempt(1));
    let thread = thread::spawn(move || writer.run(Broken));
    assert!(recorder.close(Duration::from_secs(10)));
    thread.join().unwrap();
    assert!(metrics.encode().contains("checkrein_audit_write_errors_total 1"));
}

#[test]
fn after_a_full_disk_only_the_line_it_cut_is_lost() {
    /// Takes ten bytes of the first writing, refuses the rest, then takes everything.
    struct Disk(Arc<Mutex<Vec<u8>>>, mpsc::Sender<()>, bool);
    impl io::Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut kept = self.0.lock().unwrap();
            if self.2 {
                kept.extend_from_slice(bytes);
                return Ok(bytes.len());
            }
            if kept.is_empty() {
                kept.extend_from_slice(&bytes[..10]);
                return Ok(10);
            }
            self.2 = true;
            self.1.send(()).unwrap();
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (recorder, writer) = Recorder::channel(Metrics::new());
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (refused, was_refused) = mpsc::channel();
    let disk = Disk(kept.clone(), refused, false);
    let thread = thread::spawn(move || writer.run(disk));
    recorder.attempt(&call("{}"), &attempt(1));
    was_refused.recv_timeout(Duration::from_secs(10)).unwrap();
    recorder.attempt(&call("{}"), &attempt(2));
    assert!(recorder.close(Duration::from_secs(10)));
    thread.join().unwrap();
    let text = String::from_utf8(kept.lock().unwrap().clone()).unwrap();
    let whole: Vec<serde_json::Value> = text.lines().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(whole.len(), 1, "{text}");
    assert_eq!(whole[0]["attempt"], 2);
}

#[test]
fn times_are_rfc_3339_in_utc_with_microseconds() {
    let at = |seconds: u64, micros: u64| {
        rfc3339(UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros))
    };
    assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000Z");
    assert_eq!(at(951_782_400, 1), "2000-02-29T00:00:00.000001Z");
    assert_eq!(at(1_709_251_199, 999_999), "2024-02-29T23:59:59.999999Z");
    assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000000Z");
    assert_eq!(at(4_107_542_400, 120_034), "2100-03-01T00:00:00.120034Z");
    assert_eq!(at(300_000_000_000, 5), "9999-12-31T23:59:59.000005Z");
}

#[test]
fn every_field_of_a_record_stands_in_docs_operations_md() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md");
    let page = std::fs::read_to_string(path).unwrap();
    let call = call("{}");
    let noted = Noted::default();
    let facts = CallFacts {
        call: &call,
        effect: "read",
        revision: "",
        outcome: "ok",
        executed: "yes",
        result: None,
        duration: Duration::ZERO,
        noted: &noted,
    };
    let first = attempt(1);
    let (mut of_call, mut of_attempt) = (Line::default(), Line::default());
    call_line(&facts, &mut of_call);
    attempt_line(&call, &first, &mut of_attempt);
    let lines = [of_call.bytes(), of_attempt.bytes()]
        .map(|line| strict_json::parse(line, Limits::answer(line.len())).expect("one object"));
    for field in lines.iter().flat_map(|line| line.as_object().unwrap().keys()) {
        assert!(page.contains(&format!("`{field}`")), "{field}");
    }
}
