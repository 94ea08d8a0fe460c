//! Who may knock at `/mcp`: web pages reach loopback too, by `Origin` of their own or by a name that was made to point
//! here (DNS rebinding). On by default, in every revision, before anything is parsed.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderValue};

use crate::identity::Peer;

/// What the listener answers to beside its own names.
#[derive(Debug, Clone, Default)]
pub struct Doors {
    /// The port that was bound; `None`: none, or any.
    pub port: Option<u16>,
    /// Further hosts, as they stand in `Host`: `gateway.example:7411`.
    pub hosts: Vec<String>,
    /// Further origins, as they stand in `Origin`: `https://console.example`.
    pub origins: Vec<String>,
    /// Where people decide: https, or this machine; without a `/` at its end.
    pub console: Option<String>,
    /// Streams by GET are not offered.
    pub no_get_stream: bool,
}

/// Names by which a listener on this machine is its own.
const OWN: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Why a request is not let in, in one sentence.
pub(super) type Foreign = &'static str;

const FOREIGN_ORIGIN: Foreign = "this origin is not allowed; see --allowed-origin";
const FOREIGN_HOST: Foreign = "this host is not the gateway's own name; see --allowed-host";

impl Doors {
    /// Lets a request in, or says why not. The names are compared as texts, without regard to case.
    pub(super) fn admit(&self, peer: Peer, headers: &HeaderMap) -> Result<(), Foreign> {
        let mut origins = headers.get_all(ORIGIN).iter();
        if let Some(origin) = origins.next() {
            let text = origin.to_str().unwrap_or_default();
            if origins.next().is_some() || !self.is_origin(text) {
                return Err(FOREIGN_ORIGIN);
            }
        }
        match peer {
            Peer::Unix { .. } => Ok(()),
            Peer::Loopback | Peer::Remote => {
                let mut hosts = headers.get_all(HOST).iter();
                let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
                let own = hosts.next().is_none() && self.is_host(host);
                own.then_some(()).ok_or(FOREIGN_HOST)
            }
        }
    }

    /// Whether a request without a credential may come by this name: a web page may have made one that points here.
    pub(in crate::frontends) fn admits_host(&self, peer: Peer, host: &str) -> bool {
        match peer {
            Peer::Unix { .. } => true,
            Peer::Loopback | Peer::Remote => self.is_host(host),
        }
    }

    /// The same names on another port.
    #[must_use]
    pub(in crate::frontends) fn at_port(&self, port: Option<u16>) -> Self {
        Self { port, ..self.clone() }
    }

    /// An origin that was named, and not only the listener's own.
    pub(super) fn is_named(&self, origin: &HeaderValue) -> bool {
        let origin = origin.to_str().unwrap_or_default();
        self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }

    fn is_origin(&self, origin: &str) -> bool {
        let named = self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin));
        let own = origin.split_once("://").is_some_and(|(scheme, authority)| {
            matches!(scheme, "http" | "https") && self.is_own(authority)
        });
        named || own
    }

    fn is_host(&self, host: &str) -> bool {
        self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host)) || self.is_own(host)
    }

    fn is_own(&self, authority: &str) -> bool {
        OWN.iter().any(|own| {
            let rest = authority
                .get(..own.len())
                .filter(|name| name.eq_ignore_ascii_case(own))
                .and_then(|_| authority.get(own.len()..));
            match (rest, self.port) {
                (None, _) => false,
                (Some(rest), Some(port)) => rest.strip_prefix(':') == Some(&port.to_string()),
                (Some(""), None) => true,
                (Some(rest), None) => {
                    rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_str(value).expect("value"));
        }
        headers
    }

    #[test]
    fn only_its_own_names_and_those_it_was_told_are_let_in() {
        let doors = Doors {
            port: Some(7411),
            hosts: vec!["gateway.svc:7411".into()],
            origins: vec!["https://console.example".into()],
            console: None,
            no_get_stream: false,
        };
        let admit = |fields: &[(&'static str, &str)]| doors.admit(Peer::Loopback, &head(fields));
        for host in
            ["localhost:7411", "LOCALHOST:7411", "127.0.0.1:7411", "[::1]:7411", "gateway.svc:7411"]
        {
            assert_eq!(admit(&[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost",
            "localhost:80",
            "localhost.evil.example:7411",
            "127.0.0.1:7411:7411",
            "",
        ] {
            assert_eq!(admit(&[("host", host)]), Err(FOREIGN_HOST), "{host}");
        }
        assert_eq!(admit(&[]), Err(FOREIGN_HOST));
        assert_eq!(
            admit(&[("host", "localhost:7411"), ("host", "localhost:7411")]),
            Err(FOREIGN_HOST)
        );
        for origin in ["http://localhost:7411", "http://127.0.0.1:7411", "https://console.example"]
        {
            assert_eq!(
                admit(&[("host", "localhost:7411"), ("origin", origin)]),
                Ok(()),
                "{origin}"
            );
        }
        for origin in [
            "null",
            "http://evil.example",
            "http://localhost",
            "http://localhost:7412",
            "file://localhost:7411",
            "",
        ] {
            let got = admit(&[("host", "localhost:7411"), ("origin", origin)]);
            assert_eq!(got, Err(FOREIGN_ORIGIN), "{origin}");
        }
    }

    #[test]
    fn on_a_unix_socket_the_host_says_nothing_and_the_origin_does() {
        let (doors, peer) = (Doors::default(), Peer::Unix { uid: None });
        assert_eq!(doors.admit(peer, &head(&[("host", "evil.example")])), Ok(()));
        assert_eq!(
            doors.admit(peer, &head(&[("origin", "http://evil.example")])),
            Err(FOREIGN_ORIGIN)
        );
        assert_eq!(doors.admit(peer, &head(&[("origin", "http://localhost:3000")])), Ok(()));
    }
}
