//! A call that waits for a person, told to an agent whose user can be shown a page: the question and the wait, never the
//! decision. What comes back over the agent's connection is the agent's word, so it decides nothing: the call is made
//! again, and the approval is looked for where people decide.

use serde_json::{Value, json};

use super::calls::{Asked, bound};
use super::methods::Answered;
use super::state::Kept;
use super::wire::{self, RpcError};
use super::{Asking, Mcp};
use crate::call::code::DenyCode;
use crate::call::{CallError, Denied, Detail, RunId};
use crate::engine::Answer;
use crate::mcp::messages::ClientCapabilities;

/// Our key among the questions of a result.
const KEY: &str = "approval";
/// Times that the page is shown for one call; after that the plain refusal says it.
const MOST: u32 = 3;
/// An agent of a session waits on its open call, and would be asked three times in a row.
const MOST_OF_SESSION: u32 = 1;

/// What became of showing it.
pub(super) enum Showing {
    /// There is nothing to show: the answer stands.
    No,
    /// It was shown; the call is to be made again.
    Again,
    Told(Result<Answered, RpcError>),
}

impl Mcp {
    /// `shown`: how often the page was shown for this call before.
    pub(super) async fn show_approval(
        &self,
        asking: &Asking,
        call: &mut Asked<'_>,
        run: Option<&RunId>,
        answer: &Answer,
        shown: &mut u32,
    ) -> Showing {
        let most = if asking.modern() { MOST } else { MOST_OF_SESSION };
        let Some(question) = self.question(asking, answer).filter(|_| *shown < most) else {
            return Showing::No;
        };
        *shown += 1;
        if asking.modern() {
            let caller_key = call.said.caller_key.as_ref();
            let kept = Kept { run, caller_key, shown: *shown, ..Kept::default() };
            let sealed = self.with_our_state(question, &bound(asking, call), &kept);
            let told = sealed.map(|sealed| Answered {
                result: wire::question(answer, sealed),
                run: run.cloned(),
            });
            return Showing::Told(told);
        }
        match self.given(asking, &call.said, &question).await {
            Ok(responses) => {
                *shown = shown_after(*shown, Some(&responses));
                call.said.run = run.cloned();
                Showing::Again
            }
            Err(_) => Showing::No,
        }
    }

    /// The result that shows the approval's page. `None`: nothing waits, there is no page, or nobody can be shown one.
    fn question(&self, asking: &Asking, answer: &Answer) -> Option<Value> {
        let console = self.doors.console.as_ref()?;
        let Err(CallError::Denied(Denied {
            code: DenyCode::ApprovalRequired,
            detail: Detail::Approval { id, .. },
            ..
        })) = &answer.outcome
        else {
            return None;
        };
        if !ClientCapabilities::of(&asking.capabilities).elicitation_url {
            return None;
        }
        let message = format!(
            "`{}` waits for a person's approval ({id}). The page shows what it would do; nothing is sent before somebody \
             has approved it there.",
            answer.tool
        );
        let params =
            json!({"mode": "url", "message": message, "url": format!("{console}/approvals/{id}")});
        let request = json!({"method": "elicitation/create", "params": params});
        Some(json!({"resultType": "input_required", "inputRequests": {KEY: request}}))
    }
}

/// Whoever would not look is not shown it again.
pub(super) fn shown_after(shown: u32, responses: Option<&Value>) -> u32 {
    let action = responses.and_then(|all| all.get(KEY)?.get("action")?.as_str());
    if action == Some("accept") { shown } else { MOST }
}
