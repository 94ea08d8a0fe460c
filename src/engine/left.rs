//! After a start: of every unknown write whose tool names a read that tells, the read is asked. Nothing is sent again
//! on its own.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::Engine;
use super::together::together;
use crate::call::ToolCall;
use crate::ledger::resolver::{Left, Settled, Waiting, wait};

/// Writes asked about; past it they wait until somebody asks for the same.
const MOST: usize = 10_000;
/// Writes asked about at once, and the least time between two beginnings: a tool that has just come back is not
/// stormed.
const AT_ONCE: usize = 8;
const APART: Duration = Duration::from_millis(100);
/// Longest that is waited for the read to tell of one of them.
const PATIENCE: Duration = Duration::from_secs(600);

impl Engine {
    /// Asks until it is done or the gateway drains: once, before an agent has made a write unknown.
    pub async fn ask_about_left(self: Arc<Self>) {
        let left = self.ledger.left(MOST);
        if left.is_empty() {
            return;
        }
        let began = Instant::now();
        let one = |(at, left): (u32, Left)| self.ask_about(began + APART * at, left);
        let all = (0..).zip(left).map(one).collect();
        let asked = self.draining.run_until_cancelled(together(all, AT_ONCE)).await;
        let settled = asked.map_or(0, |asked| asked.iter().filter(|known| **known).count());
        tracing::info!(settled, "tools were asked about the unknown writes found at the start");
    }

    /// True when it is known now.
    async fn ask_about(&self, from: Instant, left: Left) -> bool {
        // Of the policy in force when its turn comes; before that, tools without a read cost no time.
        let asks = |engine: &Self| engine.current.load().hands.get(&left.tool).cloned();
        if asks(self).is_none_or(|hands| hands.may.query.is_none()) {
            return false;
        }
        wait(from).await;
        let Some(hands) = asks(self) else { return false };
        let Value::Object(arguments) = left.arguments.tree().clone() else { return false };
        let Some(call) = ToolCall::of_the_gateway(&left.tool, arguments, PATIENCE) else {
            return false;
        };
        let waiting = Waiting {
            key: left.key,
            digest: left.digest,
            call: &call,
            sent: None,
            said: None,
            until: call.deadline,
            only_ask: true,
        };
        match self.ledger.resolver().settle(&self.ledger, &hands, waiting).await {
            Settled::Known(_) | Settled::Elsewhere => true,
            Settled::Still => false,
        }
    }
}
