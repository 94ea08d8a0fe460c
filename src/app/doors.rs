//! Data listeners: the one that serves every front end, and one an upstream for clients that only change their base URL.

use std::io;

use super::{Bound, StartError};
use crate::call::UpstreamName;
use crate::config::{Config, Listen};
use crate::policy::snapshot::Snapshot;
use crate::server::{bind_tcp, bind_unix};

/// A bound socket, and the one upstream that is reached by it; `None` = every front end.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) bound: Bound,
    pub(super) upstream: Option<UpstreamName>,
}

/// Where agents connect, with the ports that were really bound.
#[derive(Debug)]
pub(super) struct Doors {
    pub(super) data: Listen,
    pub(super) proxies: Vec<(UpstreamName, Listen)>,
    /// A socket of each address, for every worker.
    pub(super) of_workers: Vec<Vec<Door>>,
}

/// Binds every address once for each worker. An upstream that the policy does not have is a slip.
pub(super) fn bind(
    config: &Config,
    workers: usize,
    snapshot: &Snapshot,
) -> Result<Doors, StartError> {
    let (data, bound) = bind_one(&config.listen, workers, "data")?;
    let door = |bound| vec![Door { bound, upstream: None }];
    let mut doors =
        Doors { data, proxies: Vec::new(), of_workers: bound.into_iter().map(door).collect() };
    for (name, listen) in &config.proxies {
        let upstream = UpstreamName::new(name).ok();
        let known = upstream.filter(|upstream| snapshot.upstreams.contains_key(upstream));
        let upstream = known.ok_or_else(|| StartError::Upstream(name.clone()))?;
        let (listen, bound) = bind_one(listen, workers, "proxy")?;
        for (worker, bound) in doors.of_workers.iter_mut().zip(bound) {
            worker.push(Door { bound, upstream: Some(upstream.clone()) });
        }
        doors.proxies.push((upstream, listen));
    }
    Ok(doors)
}

/// One address, `count` sockets: over TCP the system spreads connections, a Unix socket is shared.
fn bind_one(
    listen: &Listen,
    count: usize,
    what: &'static str,
) -> Result<(Listen, Vec<Bound>), StartError> {
    let failed = |source| StartError::Listen { what, address: listen.to_string(), source };
    match listen {
        Listen::Tcp(address) => {
            let mut address = *address;
            let mut bound = Vec::with_capacity(count);
            for _ in 0..count.max(1) {
                let socket = bind_tcp(address, count > 1).map_err(failed)?;
                address = socket.local_addr().map_err(failed)?; // the first one decides the port
                bound.push(Bound::Tcp(socket));
            }
            Ok((Listen::Tcp(address), bound))
        }
        Listen::Unix(path) => {
            let first = bind_unix(path).map_err(failed)?;
            let copies: Result<Vec<Bound>, io::Error> =
                (1..count).map(|_| first.try_clone().map(Bound::Unix)).collect();
            let mut bound = copies.map_err(failed)?;
            bound.push(Bound::Unix(first));
            Ok((listen.clone(), bound))
        }
    }
}
