//! The process: one thread for probes, policy and signals, one single-threaded runtime a worker for calls.
//!
//! Each worker has a listener of its own on the same address, so no lock stands between a connection and its core;
//! a worker that is busy does not keep a probe waiting.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::{fs, io};

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::doors::Door;
use super::{Gateway, StartError, prepare};
use crate::call::UpstreamName;
use crate::config::{Config, Listen};
use crate::telemetry::redact::Secrets;

/// Runs a gateway until it is told to stop. `Ok` = it drained, with unfinished calls or without.
pub fn run(config: Config, secrets: Secrets) -> Result<(), StartError> {
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?; // first: a SIGTERM during the start must not kill half a gateway
        let workers = config.worker_count();
        let prepared = tokio::select! {
            prepared = prepare(config, workers, secrets) => prepared?,
            // A start may hang on a mount: whoever waits for it must be able to end it.
            () = signals.stop() => {
                tracing::info!("told to stop before it was ready");
                return Ok(());
            }
        };
        let gateway = prepared.gateway;
        let ended = CancellationToken::new();
        let threads = start_workers(&gateway, prepared.listeners, &ended).await?;
        gateway.health.listeners_bound();
        let admin = prepared.admin.as_ref();
        let bound = (&prepared.data, prepared.proxies.as_slice());
        tell_ready(&gateway.config, bound, prepared.health, admin)?;
        let people = admin.map_or_else(|| "none".to_owned(), Listen::to_string);
        tracing::info!(data = %prepared.data, health = %prepared.health, admin = people, workers, "ready");
        obey(&gateway, signals).await;
        ended.cancel();
        for thread in threads {
            // A worker that panicked has said so itself; the drain is over either way.
            drop(thread.join());
        }
        gateway.records.close();
        Ok(())
    });
    // A look at a policy on a mount that hangs must not hold the process.
    runtime.shutdown_background();
    ended
}

/// Written beside its place and renamed, so that whoever finds the file finds all of it.
fn tell_ready(
    config: &Config,
    (data, proxies): (&Listen, &[(UpstreamName, Listen)]),
    health: SocketAddr,
    admin: Option<&Listen>,
) -> Result<(), StartError> {
    let Some(path) = &config.ready_file else { return Ok(()) };
    let draft = path.with_extension("draft");
    let admin = admin.map_or_else(String::new, |admin| format!("admin={admin}\n"));
    let proxies: String =
        proxies.iter().map(|(upstream, listen)| format!("proxy.{upstream}={listen}\n")).collect();
    fs::write(&draft, format!("data={data}\nhealth={health}\n{admin}{proxies}"))
        .and_then(|()| fs::rename(&draft, path))
        .map_err(|source| StartError::ReadyFile { path: path.clone(), source })
}

pub(super) fn runtime() -> Result<Runtime, StartError> {
    let built = Builder::new_current_thread().enable_all().build();
    built.map_err(|source| StartError::System { what: "a runtime", source })
}

/// A thread a listener. Returns once every one of them serves.
async fn start_workers(
    gateway: &Gateway,
    listeners: Vec<Vec<Door>>,
    ended: &CancellationToken,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let mut threads = Vec::with_capacity(listeners.len());
    for (worker, doors) in listeners.into_iter().enumerate() {
        let runtime = runtime()?;
        let (gateway, ended) = (gateway.clone(), ended.clone());
        let (serving, served) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(format!("worker-{worker}"))
            .spawn(move || work(runtime, &gateway, doors, worker, (serving, ended)))
            .map_err(|source| StartError::System { what: "a thread", source })?;
        threads.push(thread);
        let gone = |_| io::Error::other("a worker ended before it served");
        served
            .await
            .map_err(|error| StartError::System { what: "a worker", source: gone(error) })??;
    }
    Ok(threads)
}

type Serving = (oneshot::Sender<Result<(), StartError>>, CancellationToken);

/// One worker, until the drain is over: detached writes and connections live on its runtime.
fn work(
    runtime: Runtime,
    gateway: &Gateway,
    doors: Vec<Door>,
    worker: usize,
    (serving, ended): Serving,
) {
    runtime.block_on(async {
        let told = serving.send(gateway.serve(doors, worker));
        if told.is_ok() {
            ended.cancelled().await;
        }
    });
    // Neither must a name that is being looked up.
    runtime.shutdown_background();
}

pub(super) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, StartError> {
        let listen = |kind| {
            signal(kind).map_err(|source| StartError::System { what: "a signal handler", source })
        };
        Ok(Self {
            hangup: listen(SignalKind::hangup())?,
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// SIGHUP reads the policy; the first SIGTERM or SIGINT, or a person's word, drains; the next signal stops at once.
async fn obey(gateway: &Gateway, mut signals: Signals) {
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            () = gateway.drain_asked.cancelled() => break,
            _ = signals.hangup.recv() => gateway.read_policy(),
        }
    }
    gateway.drain(signals.stop()).await;
}
