//! THE page: the order of governance. STUB of the contract; the layers part owns it.
use std::future::Future;
use std::sync::Arc;

use tokio_util::task::TaskTracker;
use tower::Service;

use super::state::State;
use crate::call::{CallError, Failed, ToolCall, ToolResult};
use crate::ledger::Ledger;
use crate::policy::snapshot::{Snapshot, Tool};
use crate::run::Runs;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::record::Recorder;

/// A finished stack: always ready, refuses instead of waiting.
pub type CallService = tower::util::BoxCloneSyncService<ToolCall, ToolResult, CallError>;

/// The innermost service: a back end, or a test's. Its only error is `Failed`.
pub trait Inner:
    Service<
        ToolCall,
        Response = ToolResult,
        Error = Failed,
        Future: Future<Output = Result<ToolResult, Failed>> + Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
}
impl<S> Inner for S where
    S: Service<
            ToolCall,
            Response = ToolResult,
            Error = Failed,
            Future: Future<Output = Result<ToolResult, Failed>> + Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// What all stacks of one snapshot share.
#[derive(Debug, Clone)]
pub struct Gates {
    pub snapshot: Arc<Snapshot>,
    pub state: Arc<State>,
    pub runs: Arc<Runs>,
    pub ledger: Arc<Ledger>,
    pub metrics: Arc<Metrics>,
    pub recorder: Arc<Recorder>,
    /// Detached writes and drains; shutdown waits for it.
    pub tasks: TaskTracker,
    /// Cancelled when draining begins: no new retry attempts.
    pub draining: tokio_util::sync::CancellationToken,
}

pub fn read_stack<S: Inner>(_tool: &Arc<Tool>, _gates: &Gates, _inner: S) -> CallService {
    unimplemented!()
}
pub fn write_stack<S: Inner>(_tool: &Arc<Tool>, _gates: &Gates, _inner: S) -> CallService {
    unimplemented!()
}
/// For names no tool has, tools this agent may not know, and arguments that did not parse.
pub fn refusal_stack(_gates: &Gates) -> CallService {
    unimplemented!()
}
