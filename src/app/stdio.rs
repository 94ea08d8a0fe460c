//! A gateway for one agent over standard streams: the same engine, no listener. The end of the input drains it.

use tokio::sync::mpsc;

use super::process::{Signals, runtime};
use super::{StartError, prepare};
use crate::call::AgentId;
use crate::config::Config;
use crate::frontends::{Read, Writer};
use crate::telemetry::redact::Secrets;

/// What is read and what is written.
#[derive(Debug)]
pub struct Pipes {
    pub lines: mpsc::Receiver<Read>,
    pub writer: Writer,
}

/// Serves `agent` until its input ends, nobody reads any more, or a signal. `Ok` = it drained.
pub fn run_stdio(
    config: Config,
    secrets: Secrets,
    agent: &str,
    pipes: Pipes,
) -> Result<(), StartError> {
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let gateway = prepare(config, 0, secrets).await?.gateway;
        let known = AgentId::new(agent).ok();
        let known = known.filter(|agent| gateway.engine.snapshot().agents.contains_key(agent));
        let agent = known.ok_or_else(|| StartError::Agent(agent.to_owned()))?;
        gateway.engine.mcp_settled().await;
        tracing::info!(%agent, "ready on standard streams");
        tokio::select! {
            () = gateway.front_ends.stdio(agent, pipes.lines, pipes.writer) => {}
            () = signals.stop() => {}
        }
        gateway.drain(signals.stop()).await;
        gateway.records.close();
        Ok(())
    });
    runtime.shutdown_background();
    ended
}
