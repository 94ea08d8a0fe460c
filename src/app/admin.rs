//! The listener of people: how it is guarded, bound and served. It stays to the end of a drain, so that people see it.

use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::{Gateway, StartError};
use crate::admin::{Access, Admin, MAX_CONNECTIONS, PolicyView, Process, Reloaded, Token, tokens};
use crate::config::{Config, Listen};
use crate::server::{Limits, Listener, Server, bind_tcp, bind_unix_private};

/// A policy on a slow mount is read within this, or the asker is told to look later.
const RELOAD_TIME: Duration = Duration::from_secs(30);
/// Longest file of tokens.
const MAX_TOKEN_FILE: u64 = 64 * 1024;

/// What the settings say of who may come in.
pub(super) struct Guarded {
    listen: Listen,
    tokens: Vec<Token>,
}

pub(super) struct BoundAdmin {
    listen: Listen,
    listener: Listener,
    access: Access,
}

/// Nothing is bound where anybody could come in. `None`: there is no such listener.
pub(super) fn guard(config: &Config) -> Result<Option<Guarded>, StartError> {
    let Some(listen) = config.admin.clone() else { return Ok(None) };
    let tokens = match &config.admin_token_file {
        Some(path) => read_tokens(path)?,
        None => Vec::new(),
    };
    let refused = |why: String| Err(StartError::Admin(why));
    match &listen {
        Listen::Tcp(address) if !address.ip().is_loopback() => refused(format!(
            "{address} can be reached from other machines, and it speaks no TLS; use 127.0.0.1 or unix:PATH"
        )),
        Listen::Tcp(address) if tokens.is_empty() => refused(format!(
            "on {address} an agent of this machine could come in; it needs --admin-token-file, or use unix:PATH"
        )),
        Listen::Tcp(_) | Listen::Unix(_) => Ok(Some(Guarded { listen, tokens })),
    }
}

fn read_tokens(path: &Path) -> Result<Vec<Token>, StartError> {
    let bad = |why: String| StartError::Admin(format!("the tokens in {}: {why}", path.display()));
    let meta = fs::metadata(path).map_err(|error| bad(error.to_string()))?;
    if !meta.is_file() || meta.len() > MAX_TOKEN_FILE {
        return Err(bad(format!("not a file of at most {MAX_TOKEN_FILE} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    tokens(&text).map_err(|error| bad(error.to_string()))
}

pub(super) fn bind(guarded: Guarded) -> Result<BoundAdmin, StartError> {
    let Guarded { listen, tokens } = guarded;
    let address = listen.to_string();
    let failed = |source| StartError::Listen { what: "admin", address: address.clone(), source };
    match listen {
        Listen::Tcp(wanted) => {
            let socket = bind_tcp(wanted, false).map_err(failed)?;
            let address = socket.local_addr().map_err(failed)?;
            let listener = Listener::tcp(socket).map_err(failed)?;
            let access = Access::Tcp { address, tokens };
            Ok(BoundAdmin { listen: Listen::Tcp(address), listener, access })
        }
        Listen::Unix(path) => {
            let socket = bind_unix_private(&path).map_err(failed)?;
            // Our own effective uid: who makes a file owns it.
            let uid = fs::symlink_metadata(&path).map_err(failed)?.uid();
            let listener = Listener::unix(socket).map_err(failed)?;
            let access = Access::Unix { uid, tokens };
            Ok(BoundAdmin { listen: Listen::Unix(path), listener, access })
        }
    }
}

impl Gateway {
    /// Serves people on the current runtime until the gateway stops; where they connect.
    pub(super) fn serve_people(&self, bound: BoundAdmin) -> Listen {
        let admin = Admin {
            access: Arc::new(bound.access),
            engine: self.engine.clone(),
            metrics: self.metrics.clone(),
            recorder: self.records.recorder(),
            process: Arc::new(self.clone()),
        };
        let server = Server {
            limits: Limits::new(MAX_CONNECTIONS),
            http2: false,
            metrics: self.metrics.clone(),
            shutdown: self.stop.clone(),
            tasks: TaskTracker::new(),
        };
        // It ends with `stop`.
        drop(server.serve(bound.listener, move |peer, request| {
            let admin = admin.clone();
            async move { admin.answer(peer, request).await }
        }));
        bound.listen
    }

    /// For a gateway without a process of its own around it.
    pub(super) async fn drain_when_asked(self) {
        tokio::select! {
            () = self.drain_asked.cancelled() => {}
            () = self.stop.cancelled() => return,
        }
        self.drain(std::future::pending()).await;
    }
}

impl Process for Gateway {
    fn policy(&self) -> PolicyView {
        let heard = self.heard.borrow().clone();
        PolicyView {
            file: self.config.policy.clone(),
            loaded_at: heard.loaded_at,
            failing: heard.failing,
        }
    }

    fn reload(&self) -> Pin<Box<dyn Future<Output = Option<Reloaded>> + Send + '_>> {
        Box::pin(async move {
            let mut heard = self.heard.subscribe();
            self.read_policy();
            timeout(RELOAD_TIME, heard.changed()).await.ok()?.ok()?;
            let heard = heard.borrow().clone();
            Some(Reloaded { result: heard.result, failing: heard.failing })
        })
    }

    fn drain(&self) {
        self.drain_asked.cancel();
    }
}
