//! One look at a server: met as the gateway meets it, listed whole, left again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::backends::mcp::{MemoryPins, Parts, ServerView, Servers, own_program};
use crate::call::UpstreamName;
use crate::egress::guard::class_of;
use crate::egress::{AddressClass, Egress};
use crate::policy::import::Heard;
use crate::policy::snapshot::Snapshot;
use crate::telemetry::metrics::Metrics;

/// For a whole look; the crawl has a limit of its own within.
const PATIENCE: Duration = Duration::from_secs(70);
/// Between two questions whether it is done.
const AGAIN: Duration = Duration::from_millis(10);

/// What the policy's one server offers. The error says why that is not to be had.
pub(super) fn at(way: &Arc<Snapshot>, name: &UpstreamName) -> Result<Heard, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    let heard = runtime.block_on(async {
        let metrics = Metrics::new();
        let parts = Parts {
            metrics: metrics.clone(),
            runtime: tokio::runtime::Handle::current(),
            pins: Arc::new(MemoryPins::default()),
            program: own_program(),
        };
        let servers = Servers::new(parts);
        servers.adopt(way, &Egress::new(way, None, metrics));
        let heard = heard(&servers, name).await;
        servers.shutdown().await;
        heard
    });
    runtime.shutdown_background();
    heard
}

async fn heard(servers: &Servers, name: &UpstreamName) -> Result<Heard, String> {
    let waiting = tokio::time::timeout(PATIENCE, async {
        loop {
            let view = servers.views().into_iter().find(|view| view.up || view.why.is_some());
            match view {
                Some(ServerView { why: Some(why), .. }) => return Err(why),
                Some(view) => return Ok(view),
                None => {}
            }
            #[expect(clippy::disallowed_methods, reason = "a verb that waits for its one server")]
            tokio::time::sleep(AGAIN).await;
        }
    });
    let view = waiting
        .await
        .map_err(|_| format!("the server `{name}` was not listed within {PATIENCE:?}"))?
        .map_err(|why| format!("the server `{name}` cannot be listed: {why}"))?;
    let tools = servers.catalogs().remove(name).map(|catalog| catalog.tools.clone());
    Ok(Heard {
        revision: view.revision.unwrap_or_default().to_owned(),
        tools: tools.unwrap_or_default(),
        left_out: view.left_out,
    })
}

/// The classes of addresses that the policy has to name before the server may be dialled: whoever gives the URL wants
/// them to be.
pub(super) fn addresses(url: &str) -> Result<Vec<&'static str>, String> {
    let uri: http::Uri = url.parse().map_err(|error| format!("`{url}` is no URL: {error}"))?;
    let host = uri.host().ok_or_else(|| format!("`{url}` names no host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let found = std::net::ToSocketAddrs::to_socket_addrs(&(host, port))
        .map_err(|error| format!("`{host}` has no address: {error}"))?;
    let mut words: Vec<&'static str> = found.filter_map(class).collect();
    words.sort_unstable();
    words.dedup();
    Ok(words)
}

/// `None`: needs no word, or no word helps and the dial will say so.
fn class(address: SocketAddr) -> Option<&'static str> {
    match class_of(address.ip()) {
        AddressClass::Loopback => Some("loopback"),
        AddressClass::Private => Some("private"),
        AddressClass::LinkLocal => Some("link_local"),
        AddressClass::Public
        | AddressClass::Metadata
        | AddressClass::Unspecified
        | AddressClass::Multicast
        | AddressClass::Reserved => None,
    }
}
