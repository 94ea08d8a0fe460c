//! After a start: of every unknown write whose tool names a read that tells, the read is asked. Nothing is sent again
//! on its own.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::Engine;
use super::routes::Routes;
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

/// How often is looked whether a server has been heard of whose writes wait to be asked about.
const LOOK: Duration = Duration::from_secs(1);

/// What can be done about one of them under the policy in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Ask,
    /// Its tool, or the read that tells, is of a server that has not been heard of yet, or of another policy.
    NotYet,
    /// No read tells.
    None,
}

impl Engine {
    /// Asks until it is done or the gateway drains: once about each write that was unknown before an agent has made one,
    /// and about those of a server once it is heard of.
    pub async fn ask_about_left(self: Arc<Self>) {
        self.draining.run_until_cancelled(self.asking_about(self.ledger.left(MOST))).await;
    }

    async fn asking_about(&self, mut left: Vec<Left>) {
        while !left.is_empty() {
            let routes = self.current.load();
            let mut now = Vec::new();
            let mut later = Vec::new();
            for one in left {
                match way(&routes, &one) {
                    Way::Ask => now.push(one),
                    Way::NotYet => later.push(one),
                    Way::None => {}
                }
            }
            if !now.is_empty() {
                let began = Instant::now();
                let one = |(at, left): (u32, Left)| self.ask_about(began + APART * at, left);
                let asked = together((0..).zip(now).map(one).collect(), AT_ONCE).await;
                let settled = asked.iter().filter(|known| **known).count();
                tracing::info!(
                    settled,
                    "tools were asked about the unknown writes found at the start"
                );
            }
            left = later;
            while !left.is_empty() && Arc::ptr_eq(&routes, &self.current.load()) {
                wait(Instant::now() + LOOK).await;
            }
        }
    }

    /// True when it is known now.
    async fn ask_about(&self, from: Instant, left: Left) -> bool {
        wait(from).await;
        // Of the policy in force when its turn comes.
        let hands = self.current.load().hands.get(&left.tool).cloned();
        let Some(hands) = hands.filter(|hands| hands.may.query.is_some()) else { return false };
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

fn way(routes: &Routes, left: &Left) -> Way {
    let Some(tool) = routes.snapshot.tools.get(&left.tool) else { return Way::NotYet };
    if tool.write.as_ref().is_none_or(|write| write.status_query.is_none()) {
        return Way::None;
    }
    let asks = routes.hands.get(&left.tool).is_some_and(|hands| hands.may.query.is_some());
    if asks { Way::Ask } else { Way::NotYet }
}
