//! A server that answers a call with a task (2026-07-28, extension `io.modelcontextprotocol/tasks`): the handle is put on
//! record, then the task is asked for until it has ended. The call itself is never sent again.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::Servers;
use super::caller::STILL;
use super::link::{Inbound, Reply};
use super::result::{self, Judged, not_due};
use super::server::Server;
use super::sessions::{Held, Key as Owner};
use super::silent::Silent;
use crate::backends::classify::{clean, mcp as judge};
use crate::call::code::FailCode;
use crate::call::{
    Class, Delivery, Effect, Failed, Phase, Polled, Progress, TaskId, TaskOf, TaskWay, ToolCall,
    ToolResult, Verdict,
};
use crate::mcp::jsonrpc::{INVALID_PARAMS, METHOD_NOT_FOUND};
use crate::mcp::messages::{TaskState, TaskStatus};
use crate::mcp::version::Era;
use crate::policy::snapshot::{McpTool, Target, Tool};

/// Between two questions: the server's wish, within these.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// The same of a server that names none, and after a question without an answer.
const UNNAMED: Duration = Duration::from_secs(1);
/// One question, and the word that nobody wants a task any more.
const QUESTION: Duration = Duration::from_secs(10);

/// A call that was answered with a task.
pub(super) struct Begun<'a> {
    pub(super) tool: &'a Tool,
    pub(super) mcp: &'a McpTool,
    pub(super) server: &'a Arc<Server>,
    pub(super) held: &'a Held,
    pub(super) call: &'a ToolCall,
    pub(super) inbound: Arc<dyn Inbound>,
}

/// What a server says of a task.
enum Told {
    Working(Duration),
    /// It waits for answers. Nobody gives them.
    InputRequired,
    Ended(Box<Result<ToolResult, Failed>>),
    Cancelled(String),
    /// The server does not know it, or has no such method.
    Gone(String),
    NoAnswer,
}

impl Begun<'_> {
    /// Until the task has ended, as the call itself would have. Ended by the attempt's own time; a read that nobody waits
    /// for any more is cancelled.
    pub(super) async fn follow(&self, handle: &Value) -> Result<ToolResult, Failed> {
        let (id, first) = TaskState::handle(handle)
            .map_err(|wrong| not_due(&format!("a task that cannot be asked for: {wrong}")))?;
        let (id, first) = (TaskId::from(id), within(first));
        let unwanted = Unwanted {
            of: (self.tool.effect == Effect::Read).then_some((self.server, self.held)),
            id: &id,
        };
        if let Some(entry) = &self.call.entry {
            // Before anything else: what is known from here on is known after a crash, too.
            entry.task.keep(id.clone()).await;
        }
        let ended = alive(self.until_it_ends(&id, first), self.call.progress.as_ref()).await;
        unwanted.has_ended();
        ended
    }

    async fn until_it_ends(&self, id: &TaskId, first: Duration) -> Result<ToolResult, Failed> {
        let mut wait = first;
        loop {
            pause(wait).await;
            let question = (self.held, &self.inbound, id);
            match ask(self.tool, self.mcp, question).await {
                Told::Working(next) => wait = next,
                Told::NoAnswer => wait = wait.max(UNNAMED),
                Told::Ended(ended) => return *ended,
                Told::InputRequired => {
                    return Err(unknown(
                        "the tool's task needs input, which nobody can give it here",
                    ));
                }
                Told::Cancelled(why) | Told::Gone(why) => return Err(unknown(&why)),
            }
        }
    }
}

/// The server wants the task no longer, or nobody knows it: of a write nothing is known.
fn unknown(why: &str) -> Failed {
    let (class, delivery) = (Class::Permanent, Delivery::Unknown);
    Failed::new(FailCode::ToolError, class, delivery, Verdict::Neutral, clean(why))
}

fn within(wish: Option<Duration>) -> Duration {
    let (least, most) = INTERVAL;
    wish.unwrap_or(UNNAMED).clamp(least, most)
}

async fn pause(time: Duration) {
    // Only the clock ends it.
    drop(timeout(time, std::future::pending::<()>()).await);
}

/// Between questions nothing comes, and nothing is wrong with that: only the attempt's whole time counts.
async fn alive<T>(work: impl Future<Output = T>, progress: Option<&Progress>) -> T {
    let Some(progress) = progress else { return work.await };
    let mut work = std::pin::pin!(work);
    loop {
        progress.mark(Phase::Progress);
        if let Ok(done) = timeout(STILL, &mut work).await {
            return done;
        }
    }
}

/// Asks once.
async fn ask(
    tool: &Tool,
    mcp: &McpTool,
    (held, inbound, id): (&Held, &Arc<dyn Inbound>, &TaskId),
) -> Told {
    let asked = timeout(QUESTION, held.link.ask_of_task("tasks/get", id, inbound)).await;
    let result = match asked {
        Ok(Ok(Reply::Result(result))) => result,
        Ok(Ok(Reply::Error(error))) if matches!(error.code, INVALID_PARAMS | METHOD_NOT_FOUND) => {
            return Told::Gone(format!("the server does not know its task: {}", error.message));
        }
        failed => {
            tracing::debug!(server = %mcp.server.name, task = %id, ?failed, "a task was asked for in vain");
            return Told::NoAnswer;
        }
    };
    match TaskState::of(&result) {
        Ok(state) if state.id != &**id => Told::Gone("the server told of another task".into()),
        Ok(state) => told(tool, mcp, &state),
        Err(wrong) => {
            Told::Ended(Box::new(Err(not_due(&format!("a task that makes no sense: {wrong}")))))
        }
    }
}

fn told(tool: &Tool, mcp: &McpTool, state: &TaskState<'_>) -> Told {
    let ended = match &state.status {
        TaskStatus::Working => return Told::Working(within(state.poll)),
        TaskStatus::InputRequired => return Told::InputRequired,
        TaskStatus::Cancelled => {
            let words = state.message.unwrap_or("it says no more");
            return Told::Cancelled(format!("the tool's task was cancelled: {words}"));
        }
        TaskStatus::Completed(result) => match result::judge(tool, mcp, true, (*result).clone()) {
            Judged::Ended(ended) => ended.map_err(|failed| *failed),
            Judged::Asks(_) | Judged::Task(_) => {
                Err(not_due("a completed task whose result is none"))
            }
        },
        TaskStatus::Failed(error) => Err(judge::error(error, false)),
    };
    Told::Ended(Box::new(ended))
}

/// A task of a read: dropped before it has ended, its server is told that nobody wants it.
struct Unwanted<'a> {
    of: Option<(&'a Arc<Server>, &'a Held)>,
    id: &'a TaskId,
}

impl Unwanted<'_> {
    fn has_ended(mut self) {
        self.of = None;
    }
}

impl Drop for Unwanted<'_> {
    fn drop(&mut self) {
        let Some((server, held)) = self.of else { return };
        let (held, id) = (held.clone(), self.id.clone());
        server.beside(async move {
            let inbound: Arc<dyn Inbound> = Arc::new(Silent);
            let told =
                timeout(QUESTION, held.link.ask_of_task("tasks/cancel", &id, &inbound)).await;
            tracing::debug!(task = %id, ?told, "a task that nobody waits for was cancelled");
        });
    }
}

impl Servers {
    /// The way to ask for the tasks of a write. `None`: it takes none.
    pub fn tasks(&self, tool: &Arc<Tool>) -> Option<TaskWay> {
        let Target::Mcp(mcp) = &tool.target else { return None };
        if !mcp.tasks || tool.effect == Effect::Read {
            return None;
        }
        let (server, tool) = (self.named(&mcp.server.name)?, tool.clone());
        Some(TaskWay::new(move |of| {
            let (server, tool) = (server.clone(), tool.clone());
            Box::pin(async move {
                let polling = timeout(QUESTION * 2, poll(&server, &tool, &of)).await;
                polling.unwrap_or(Polled::NoAnswer)
            })
        }))
    }
}

/// For nobody who waits: in a session of the same owner.
async fn poll(server: &Arc<Server>, tool: &Tool, of: &TaskOf) -> Polled {
    let Target::Mcp(mcp) = &tool.target else { return Polled::NoAnswer };
    let owner = Owner::of(&of.agent, &of.run, None, mcp.server.share, mcp.server.may_ask);
    let Ok(held) = server.hold(owner) else { return Polled::NoAnswer };
    match held.link.open().await {
        Ok(met) if met.revision.era() == Era::Modern => {}
        // Perhaps another one is behind the address for a while.
        Ok(_) | Err(_) => return Polled::NoAnswer,
    }
    let inbound: Arc<dyn Inbound> = Arc::new(Silent);
    match ask(tool, mcp, (&held, &inbound, &of.task)).await {
        Told::Working(wait) => Polled::Working(wait),
        // It may be cancelled or give up some day.
        Told::InputRequired => Polled::Working(INTERVAL.1),
        Told::NoAnswer => Polled::NoAnswer,
        Told::Cancelled(mut why) | Told::Gone(mut why) => {
            server.blot(&mut why);
            Polled::Over(clean(&why))
        }
        Told::Ended(mut ended) => {
            if let Err(failed) = &mut *ended {
                server.blot(&mut failed.message);
            }
            Polled::Ended(ended)
        }
    }
}
