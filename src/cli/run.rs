//! `checkrein run`: the gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::{Exit, complain};
use crate::app;
use crate::config::{self, Audit, Config, Keeps, Listen};
use crate::telemetry::logs;

/// Every flag has a variable, so that a container needs no command line.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The policy to obey; it is read again whenever it changes
    #[arg(short, long, env = "CHECKREIN_POLICY", value_name = "FILE")]
    policy: PathBuf,
    /// Where agents connect
    #[arg(
        long,
        env = "CHECKREIN_LISTEN",
        value_name = "ADDRESS:PORT|unix:PATH",
        default_value = "127.0.0.1:7411"
    )]
    listen: Listen,
    /// Where clients of one upstream connect that only change their base URL; may be repeated
    #[arg(long, env = "CHECKREIN_PROXY_LISTEN", value_name = "UPSTREAM=ADDRESS:PORT|unix:PATH", value_delimiter = ',', value_parser = config::proxy)]
    proxy_listen: Vec<(String, Listen)>,
    /// Where probes and scrapes connect
    #[arg(long, env = "CHECKREIN_HEALTH", value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7412", value_parser = config::address)]
    health: SocketAddr,
    /// Where people connect; nowhere unless told. Over TCP on loopback only, and with --admin-token-file
    #[arg(long, env = "CHECKREIN_ADMIN", value_name = "unix:PATH|ADDRESS:PORT")]
    admin: Option<Listen>,
    /// Tokens of people, `NAME TOKEN` a line
    #[arg(long, env = "CHECKREIN_ADMIN_TOKEN_FILE", value_name = "FILE", requires = "admin")]
    admin_token_file: Option<PathBuf>,
    /// How long to go on serving, not ready, once told to stop
    #[arg(long, env = "CHECKREIN_DRAIN_DELAY", value_name = "TIME", default_value = "0s", value_parser = config::duration)]
    drain_delay: Duration,
    /// How long to wait for calls in flight after that
    #[arg(long, env = "CHECKREIN_DRAIN_TIMEOUT", value_name = "TIME", default_value = "25s", value_parser = config::duration)]
    drain_timeout: Duration,
    /// Where records of calls go
    #[arg(
        long,
        env = "CHECKREIN_AUDIT",
        value_name = "stdout|stderr|file:PATH|none",
        default_value = "stdout"
    )]
    audit: Audit,
    /// What keeps the memory of writes; `memory` forgets it with the process
    #[arg(long, env = "CHECKREIN_STORE", value_name = "sqlite|memory", default_value = "sqlite")]
    store: Keeps,
    /// The folder of the store, this process's alone
    #[arg(long, env = "CHECKREIN_STATE", value_name = "DIR", default_value = config::DEFAULT_STATE)]
    state: PathBuf,
    /// Bytes the store may take; past it writes are refused
    #[arg(long, env = "CHECKREIN_STATE_MAX", value_name = "SIZE", default_value = "128MiB", value_parser = config::state_max)]
    state_max: u64,
    /// Threads that take calls [default: the cores it may use, at most 2]
    #[arg(long, env = "CHECKREIN_WORKERS", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: Option<u8>,
    /// Most samples of one scrape; names past it share `_overflow`
    #[arg(long, env = "CHECKREIN_METRICS_MAX_SERIES", value_name = "N", default_value_t = 20_000)]
    metrics_max_series: usize,
    /// How often to look whether the policy has changed
    #[arg(long, env = "CHECKREIN_POLICY_POLL", value_name = "TIME", default_value = "1s", value_parser = poll)]
    policy_poll: Duration,
    /// A further name by which MCP may be reached here, as it stands in `Host`: NAME:PORT
    #[arg(long, env = "CHECKREIN_ALLOWED_HOST", value_name = "HOST", value_delimiter = ',')]
    allowed_host: Vec<String>,
    /// The origin of web pages that may speak MCP here: https://console.example
    #[arg(long, env = "CHECKREIN_ALLOWED_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    allowed_origin: Vec<String>,
    /// Where people decide about calls that wait; shown to users of agents that speak MCP: https://console.example
    #[arg(long, env = "CHECKREIN_CONSOLE_URL", value_name = "URL", value_parser = config::console_url)]
    console_url: Option<String>,
    /// Offer MCP sessions no stream by GET
    #[arg(long, env = "CHECKREIN_NO_MCP_GET_STREAM")]
    no_mcp_get_stream: bool,
    /// Write the bound addresses to this file once ready (`data=…`, `health=…`, `admin=…`), for port 0
    #[arg(long, env = "CHECKREIN_READY_FILE", value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// error, warn, info, debug, trace, or TARGET=LEVEL pairs
    #[arg(long, env = "CHECKREIN_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
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

/// A poll that never rests would be a busy loop.
pub(super) fn poll(text: &str) -> Result<Duration, config::BadSetting> {
    let time = config::duration(text)?;
    if time < Duration::from_millis(10) {
        return Err(config::BadSetting(format!("`{text}` is too often: at least 10ms")));
    }
    Ok(time)
}

pub(super) fn run(args: &Args) -> Exit {
    let format = match args.log_format {
        LogFormat::Text => logs::Format::Text,
        LogFormat::Json => logs::Format::Json,
    };
    let secrets = crate::telemetry::redact::Secrets::default();
    if let Err(error) = logs::init(&args.log_level, format, secrets.clone()) {
        complain(&format!("error: {error}"));
        return Exit::Usage;
    }
    match app::run(args.config(), secrets) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            complain(&error.to_string());
            Exit::Findings
        }
    }
}

impl Args {
    fn config(&self) -> Config {
        Config {
            policy: self.policy.clone(),
            listen: self.listen.clone(),
            proxies: self.proxy_listen.clone(),
            health: self.health,
            admin: self.admin.clone(),
            admin_token_file: self.admin_token_file.clone(),
            drain_delay: self.drain_delay,
            drain_timeout: self.drain_timeout,
            audit: self.audit.clone(),
            store: self.store,
            state: self.state.clone(),
            state_max: self.state_max,
            workers: self.workers.map(usize::from),
            max_series: self.metrics_max_series,
            policy_poll: self.policy_poll,
            allowed_hosts: self.allowed_host.clone(),
            allowed_origins: self.allowed_origin.clone(),
            console_url: self.console_url.clone(),
            mcp_get_stream: !self.no_mcp_get_stream,
            ready_file: self.ready_file.clone(),
        }
    }
}
