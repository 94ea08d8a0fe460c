//! `checkrein demo`: a small tool server, the real gateway and a scripted order agent on loopback; no network.
//!
//! Every step checks what it shows, so `--once` is a test too: it exits 1 when an answer is not what it should be.

mod agent;
mod script;
mod tools;

use std::io::Write;
use std::path::Path;

use super::{Exit, complain};
use crate::app;
use crate::config::{Config, Listen};

/// The demo's own policy: short times, so that all of it takes seconds.
const POLICY: &str = include_str!("../../../policies/demo.yaml");
/// The port that stands for the tool server in [`POLICY`].
const PLACEHOLDER: &str = "127.0.0.1:9090";

/// What can go wrong before the first step, or in one.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("cannot {doing}: {source}")]
    Io { doing: &'static str, source: std::io::Error },
    #[error("the gateway does not start: {0}")]
    Start(String),
    #[error("{step}: expected {expected}, got {got}")]
    Unexpected { step: &'static str, expected: String, got: String },
    #[error("{0}")]
    Http(String),
}

fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> DemoError {
    move |source| DemoError::Io { doing, source }
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// End after the story instead of staying up
    #[arg(long)]
    once: bool,
}

/// Tells the story; findings where an answer is not what it should be.
pub(super) fn run(args: &Args) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("error: the system refused a runtime: {error}\n"));
            return Exit::Findings;
        }
    };
    match runtime.block_on(show(args.once, &mut std::io::stdout())) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            complain(&format!("error: {error}\n"));
            Exit::Findings
        }
    }
}

/// `once` ends after the script, else it stays up until it is interrupted.
async fn show(once: bool, out: &mut (dyn Write + Send)) -> Result<(), DemoError> {
    let tools = tools::Tools::start().await.map_err(io("start the tool server"))?;
    let folder = Folder::make().map_err(io("make a folder for the policy"))?;
    let file = folder.0.join("demo.yaml");
    let policy = POLICY.replace(PLACEHOLDER, &tools.address().to_string());
    std::fs::write(&file, policy).map_err(io("write the policy"))?;
    let running = app::start(config(&file, once))
        .await
        .map_err(|error| DemoError::Start(error.to_string()))?;
    let Listen::Tcp(data) = running.data else {
        return Err(DemoError::Start("the data listener is no TCP one".into()));
    };
    let told = script::tell(data, &tools, out).await;
    if once || told.is_err() {
        running.shutdown().await;
        return told;
    }
    script::invite(data, running.health, tools.address(), out).map_err(io("print"))?;
    told_to_stop().await.map_err(io("wait for a signal"))?;
    running.shutdown().await;
    Ok(())
}

/// Until SIGINT or SIGTERM.
async fn told_to_stop() -> std::io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

/// Free ports for `--once`; else the usual ones where they are free.
fn config(policy: &Path, once: bool) -> Config {
    let usual = |port: u16| {
        let free = !once && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free { port } else { 0 }
    };
    let mut config = Config::loopback(policy);
    config.listen = Listen::Tcp(([127, 0, 0, 1], usual(7411)).into());
    config.health = ([127, 0, 0, 1], usual(7412)).into();
    config.drain_timeout = std::time::Duration::from_secs(1);
    config
}

/// A folder of this process alone, gone when dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn make() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("checkrein-demo-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing can be done about a folder that will not go; it holds a policy and no secret.
        drop(std::fs::remove_dir_all(&self.0));
    }
}
