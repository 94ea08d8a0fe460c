//! `checkrein mcp`: an MCP server on standard streams, for agents that start their servers themselves. Either a bridge to
//! a running gateway, or a gateway of its own with its own policy. Stdout carries messages and nothing else.

mod bridge;
mod client;
mod pipes;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use tokio_util::sync::CancellationToken;

use self::client::Place;
use super::run::poll;
use super::{Exit, complain};
use crate::app::{self, Pipes};
use crate::config::{self, Audit, Config, Keeps};
use crate::telemetry::logs;
use crate::telemetry::redact::Secrets;

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["gateway", "policy"])))]
pub(super) struct Args {
    /// Bridge to this running gateway
    #[arg(long, env = "CHECKREIN_GATEWAY", value_name = "URL|unix:PATH")]
    gateway: Option<Place>,
    /// A file with the agent's token for that gateway
    #[arg(long, env = "CHECKREIN_TOKEN_FILE", value_name = "FILE", conflicts_with = "policy")]
    token_file: Option<PathBuf>,
    /// Obey this policy in this process; no gateway is needed
    #[arg(short, long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Which agent of the policy asks
    #[arg(long, env = "CHECKREIN_AGENT", value_name = "NAME", default_value = "default")]
    agent: String,
    /// Where records of calls go; stdout is taken
    #[arg(long, env = "CHECKREIN_AUDIT", value_name = "stderr|file:PATH|none", default_value = "none", value_parser = audit)]
    audit: Audit,
    /// What keeps the memory of writes; `memory` forgets it with the process
    #[arg(long, env = "CHECKREIN_STORE", value_name = "sqlite|memory", default_value = "sqlite")]
    store: Keeps,
    /// The folder of the store, this process's alone
    #[arg(long, env = "CHECKREIN_STATE", value_name = "DIR", default_value = config::DEFAULT_STATE)]
    state: PathBuf,
    /// How long to wait for calls in flight at the end of the input
    #[arg(long, env = "CHECKREIN_DRAIN_TIMEOUT", value_name = "TIME", default_value = "25s", value_parser = config::duration)]
    drain_timeout: Duration,
    /// How often to look whether the policy has changed
    #[arg(long, env = "CHECKREIN_POLICY_POLL", value_name = "TIME", default_value = "1s", value_parser = poll)]
    policy_poll: Duration,
    /// error, warn, info, debug, trace, or TARGET=LEVEL pairs; written to stderr
    #[arg(long, env = "CHECKREIN_LOG_LEVEL", value_name = "LEVEL", default_value = "warn")]
    log_level: String,
    /// How diagnostics are written
    #[arg(long, env = "CHECKREIN_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Stdout belongs to the protocol.
fn audit(text: &str) -> Result<Audit, config::BadSetting> {
    match text.parse::<Audit>()? {
        Audit::Stdout => {
            Err(config::BadSetting("stdout carries messages: use stderr, file:PATH or none".into()))
        }
        audit @ (Audit::Stderr | Audit::File(_) | Audit::None) => Ok(audit),
    }
}

pub(super) fn run(args: &Args) -> Exit {
    let format = match args.log_format {
        LogFormat::Text => logs::Format::Text,
        LogFormat::Json => logs::Format::Json,
    };
    let secrets = Secrets::default();
    if let Err(error) = logs::init(&args.log_level, format, secrets.clone()) {
        complain(&format!("error: {error}"));
        return Exit::Usage;
    }
    match (&args.gateway, &args.policy) {
        (Some(place), _) => bridged(args, place, &secrets),
        (None, Some(policy)) => own(args, policy, secrets),
        (None, None) => Exit::Usage,
    }
}

fn own(args: &Args, policy: &std::path::Path, secrets: Secrets) -> Exit {
    let config = Config {
        drain_timeout: args.drain_timeout,
        audit: args.audit.clone(),
        store: args.store,
        state: args.state.clone(),
        policy_poll: args.policy_poll,
        ..Config::new(policy)
    };
    let gone = CancellationToken::new();
    let lines = pipes::input(pipes::MAX_LINE);
    let (writer, written) = pipes::output(&gone);
    let ended = app::run_stdio(config, secrets, &args.agent, Pipes { lines, writer });
    written.wait(&gone);
    match ended {
        Ok(()) => Exit::Ok,
        Err(error) => {
            complain(&error.to_string());
            Exit::Findings
        }
    }
}

fn bridged(args: &Args, place: &Place, secrets: &Secrets) -> Exit {
    let token = match args.token_file.as_deref().map(token_of).transpose() {
        Ok(token) => token,
        Err(why) => {
            complain(&why);
            return Exit::Usage;
        }
    };
    if let Some(token) = &token {
        secrets.set([std::sync::Arc::from(&**token)]);
    }
    let gone = CancellationToken::new();
    let lines = pipes::input(pipes::MAX_LINE);
    let (writer, written) = pipes::output(&gone);
    let ended = bridge::run(place.clone(), token, lines, writer, args.drain_timeout);
    written.wait(&gone);
    match ended {
        Ok(()) => Exit::Ok,
        Err(error) => {
            complain(&format!("error: {error}"));
            Exit::Findings
        }
    }
}

fn token_of(path: &std::path::Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("error: {} cannot be read: {error}", path.display()))?;
    let token = text.trim();
    if crate::identity::is_token(token.as_bytes()) {
        Ok(token.to_owned())
    } else {
        Err(format!("error: {} holds no token", path.display()))
    }
}
