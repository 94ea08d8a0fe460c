//! The end of a write that cannot be put on record: nobody may take it for known.

use bytes::Bytes;
use tokio::time::Instant;

use super::*;
use crate::call::operation::{OperationKey, OperationScope, operation};
use crate::call::{
    AgentId, Arguments, CallId, Class, Content, Notes, RunId, Source, ToolName, Verdict,
};
use crate::ledger::{Begin, Intent, Joined};
use crate::strict_json::Limits;
use crate::telemetry::metrics::{Labels, Metrics, ToolLabel};

fn intent() -> Intent {
    let arguments = Arguments::parse(b"{}", Limits::arguments(64, 4)).expect("sound");
    let (agent, tool) =
        (AgentId::new("support").expect("a name"), ToolName::new("pay").expect("a name"));
    let scope = OperationScope::Agent(&agent);
    Intent {
        operation: operation(scope, &tool, OperationKey::Arguments, &arguments, &[]),
        run: RunId::new("run-1").expect("an id"),
        call: CallId::new("call-1").expect("an id"),
        arguments,
        refuse_identical: false,
        global_scope: false,
        ttl: Duration::from_secs(60),
        continues: None,
        agent,
        tool,
    }
}

fn metrics() -> Arc<Metrics> {
    let metrics = Metrics::new();
    metrics.load(&Labels {
        policy: "test".into(),
        revision: "0".into(),
        tools: vec![ToolLabel { name: "pay".into(), write: true }],
        agents: Vec::new(),
        upstreams: Vec::new(),
        agent_label: false,
    });
    metrics
}

fn done() -> Result<ToolResult, Failed> {
    Ok(ToolResult {
        head: None,
        content: Content { bytes: Bytes::from_static(b"{}"), form: crate::call::Form::Json },
        source: Source::Tool,
        notes: Notes::default(),
    })
}

fn refused() -> Result<ToolResult, Failed> {
    let (class, delivery) = (Class::Permanent, Delivery::Refused);
    let code = crate::call::code::FailCode::ToolError;
    let mut failed = Failed::new(code, class, delivery, Verdict::Neutral, "no such order");
    failed.evidence = Some(Evidence::Status(404));
    Err(failed)
}

/// The claim lies in another book than the one that is asked to write its end: that one cannot, as a full disk could
/// not. Whatever the tool said, what is not on record is not known.
#[tokio::test(start_paused = true)]
async fn an_end_that_cannot_be_recorded_is_unknown_to_everybody() {
    for ended in [done(), refused()] {
        let (kept, failing) = (Ledger::in_memory(), Ledger::in_memory());
        let metrics = metrics();
        let journal = JournalLayer { ledger: failing, metrics: metrics.tool("pay") };
        let Ok(Begin::Fresh(ticket)) = kept.begin(intent()).await else { panic!("a claim") };
        kept.intend(&ticket, None).await.expect("on record");
        let joiner = Intent { call: CallId::new("call-2").expect("an id"), ..intent() };
        let Ok(Begin::InProgress(join)) = kept.begin(joiner.clone()).await else {
            panic!("in flight")
        };
        let trace = Trace::default();
        trace.note().sent = true;

        let outcome = journal.finish(ticket, true, &trace, ended).await;
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
        assert_eq!(trace.note().evidence, None, "no evidence is claimed for it");
        let text = metrics.encode();
        let counted = |end: &str| text.contains(&format!("{end}\",tool=\"pay\"}} 1"));
        assert!(counted("unknown"), "{text}");
        assert!(!counted("executed"), "{text}");
        let told = join.end(Instant::now()).await;
        assert!(matches!(told, Joined::Ended(Err(CallError::Unknown(_)))), "{told:?}");
        let again = kept.begin(joiner).await.expect("in memory");
        assert!(
            matches!(&again, Begin::Refused(denied) if denied.code == DenyCode::ReviewRequired)
        );
    }
}

/// What was never sent needs no record to be known.
#[tokio::test(start_paused = true)]
async fn a_write_that_was_not_sent_did_not_happen_whether_or_not_it_is_written_down() {
    let (kept, failing) = (Ledger::in_memory(), Ledger::in_memory());
    let metrics = metrics();
    let journal = JournalLayer { ledger: failing, metrics: metrics.tool("pay") };
    let Ok(Begin::Fresh(ticket)) = kept.begin(intent()).await else { panic!("a claim") };
    let outcome = journal.finish(ticket, false, &Trace::default(), Err(not_sent("no way"))).await;
    let Err(CallError::Failed(failed)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(failed.delivery, Delivery::NotSent);
    assert!(matches!(kept.begin(intent()).await, Ok(Begin::Fresh(_))), "the operation is free");
}
