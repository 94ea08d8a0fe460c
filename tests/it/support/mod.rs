//! What the whole-gateway tests share: a scripted tool, a gateway on free ports, an agent in each wire form.

#![expect(unreachable_pub, reason = "one binary: what is public here is public to the tests")]

pub mod agent;
pub mod fixture;
pub mod gateway;
pub mod http;
pub mod http2;
pub mod mcp;
pub mod process;
pub mod tool;

pub use agent::{Agent, Form};
pub use fixture::Fixture;
pub use gateway::Gateway;
pub use process::Process;
pub use tool::{Reply, ScriptedTool};

use std::time::Duration;

/// Waits until `level` holds, asking every few milliseconds; fails after `within`, naming `what`.
pub async fn wait_for(what: &str, within: Duration, mut level: impl AsyncFnMut() -> bool) {
    let end = tokio::time::Instant::now() + within;
    while !level().await {
        assert!(tokio::time::Instant::now() < end, "{what} did not come within {within:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
