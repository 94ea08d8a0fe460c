//! One request to a running child: written whole or not at all, answered, or over at once when the child is.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::line::{Fate, Left, Line};
use super::pending::Waiting;
use super::pipes::MAX_LINE;
use super::process::Process;
use crate::backends::mcp::link::{Inbound, Lost, Reply};
use crate::call::{Phase, Progress, SendGate};
use crate::egress::SendError;
use crate::mcp::jsonrpc::{self, Id};
use crate::mcp::messages::List;

/// A caller that leaves while its line is being written: if it is not out after this, the child reads no more.
const TO_BE_OUT: Duration = Duration::from_secs(1);

/// What is asked, and by whom.
pub(super) struct Ask<'a> {
    pub(super) method: &'a str,
    pub(super) params: &'a Value,
    pub(super) inbound: &'a Arc<dyn Inbound>,
    pub(super) gate: Option<&'a SendGate>,
    pub(super) progress: Option<&'a Progress>,
    pub(super) cancelled: Option<&'a CancellationToken>,
    /// It begins the session.
    pub(super) opens: bool,
}

impl Process {
    pub(super) async fn ask(self: &Arc<Self>, ask: Ask<'_>) -> Result<Reply, Lost> {
        if !self.serves() {
            return Err(Lost::ChildGone { written: false });
        }
        let slot = self.lines.try_reserve().map_err(|full| match full {
            mpsc::error::TrySendError::Full(()) => Lost::Busy,
            mpsc::error::TrySendError::Closed(()) => Lost::ChildGone { written: false },
        })?;
        let id = self.next_id();
        let message = jsonrpc::write_request(&Id::from(id), ask.method, Some(ask.params));
        let line = Line::new(message, ask.progress);
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            answer,
            inbound: ask.inbound.clone(),
            progress: ask.progress.cloned(),
            token: ask.params.pointer("/_meta/progressToken").and_then(Value::as_u64),
            most: match ask.method {
                "tools/call" => self.nursery.response_bytes(),
                _ => MAX_LINE,
            },
            list: List::of_method(ask.method).is_some(),
            subscription: ask.method == "subscriptions/listen",
            fate: line.fate.clone(),
        };
        self.pending.add(id, waiting, ask.opens)?;
        let takes_back = ask.gate.is_none() && !ask.opens;
        let _ticket = Ticket { process: self, id, fate: line.fate.clone(), takes_back };
        mark(ask.progress, Phase::Connected);
        if let Some(gate) = ask.gate {
            gate.open().await.map_err(|why| Lost::Send(SendError::GateShut(Box::new(why))))?;
        }
        mark(ask.progress, Phase::Sending);
        slot.send(line);
        self.wait(id, answered, ask.cancelled).await
    }

    async fn wait(
        &self,
        id: u64,
        answered: oneshot::Receiver<super::pending::Answered>,
        cancelled: Option<&CancellationToken>,
    ) -> Result<Reply, Lost> {
        let mut answered = std::pin::pin!(answered);
        let taken_back = async {
            match cancelled {
                Some(cancelled) => cancelled.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            answer = &mut answered => answer,
            () = taken_back => {
                self.take_back(id, "the agent took the call back");
                answered.await
            }
        };
        // A sender that is dropped unsent cannot be: every way out of the table answers.
        answer.unwrap_or(Err(Lost::ChildGone { written: true }))
    }

    /// Tells the server that nobody waits for a request any more.
    fn take_back(&self, id: u64, reason: &str) {
        let params = json!({"requestId": id, "reason": reason});
        self.say(jsonrpc::write_notification("notifications/cancelled", Some(&params)));
    }
}

fn mark(progress: Option<&Progress>, phase: Phase) {
    if let Some(progress) = progress {
        progress.mark(phase);
    }
}

/// A request's place in the table. Who leaves before the answer leaves no half line behind.
struct Ticket<'a> {
    process: &'a Arc<Process>,
    id: u64,
    fate: Arc<Fate>,
    takes_back: bool,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.process.pending.remove(self.id) {
            return;
        }
        let reason = "nobody waits for it any more";
        match self.fate.leave() {
            Left::Unwritten => {}
            Left::Written if self.takes_back => self.process.take_back(self.id, reason),
            Left::Written => {}
            Left::Midway => {
                let (process, fate) = (self.process.clone(), self.fate.clone());
                let (id, takes_back) = (self.id, self.takes_back);
                drop(self.process.nursery.run(async move {
                    tokio::select! {
                        out = tokio::time::timeout(TO_BE_OUT, fate.out()) => match out {
                            Ok(()) if takes_back => process.take_back(id, reason),
                            Ok(()) => {}
                            Err(_) => process.kill("it did not read a request in the time of its call"),
                        },
                        () = process.gone.cancelled() => {}
                    }
                }));
            }
        }
    }
}
