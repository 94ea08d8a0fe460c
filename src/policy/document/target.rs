//! Where calls go: URLs, path templates, hosts, networks.

use ipnet::IpNet;
use serde_json::json;

use super::kinds::Text;
use crate::policy::snapshot::PathPiece;

/// Which non-public addresses an upstream may resolve to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    Loopback,
    Private,
    LinkLocal,
    Net(IpNet),
}

pub(crate) const ADDRESS: Text<Address> = Text {
    expected: "`loopback`, `private`, `link_local` or a network such as `10.0.0.0/8`",
    parse: |text| match text {
        "loopback" => Ok(Address::Loopback),
        "private" => Ok(Address::Private),
        "link_local" => Ok(Address::LinkLocal),
        net => net
            .parse::<IpNet>()
            .map(|net| Address::Net(net.trunc()))
            .map_err(|_| "`loopback`, `private`, `link_local` or a network such as `10.0.0.0/8`"),
    },
    schema: || {
        json!({ "anyOf": [
            { "enum": ["loopback", "private", "link_local"] },
            { "type": "string", "pattern": "^[0-9a-fA-F.:]+/[0-9]{1,3}$" },
        ] })
    },
};

/// A URL that calls may go to.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub tls: bool,
    /// As a URL spells it, IPv6 in brackets; lower case.
    pub host: String,
    pub port: u16,
    pub path: Vec<PathPiece>,
}

impl Target {
    /// IPv6 without brackets.
    pub fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// `host`, or `host:port` where the port is not the scheme's own.
    pub fn authority(&self) -> String {
        let own = if self.tls { 443 } else { 80 };
        if self.port == own { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// `scheme://host:port`.
    pub fn origin(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }
}

const A_URL: &str = "an `http://` or `https://` URL without user, query and fragment";

fn target(text: &str) -> Result<Target, &'static str> {
    let after = text.split_once("://").map_or("", |(_, after)| after);
    let (authority, path) = match after.find('/') {
        Some(at) => after.split_at(at),
        None => (after, "/"),
    };
    let scheme = text.split("://").next().unwrap_or_default();
    let origin = url::Url::parse(&format!("{scheme}://{authority}/")).map_err(|_| A_URL)?;
    let tls = match origin.scheme() {
        "http" => false,
        "https" => true,
        _other => return Err(A_URL),
    };
    if !origin.username().is_empty() || origin.password().is_some() || authority.contains('@') {
        return Err("a URL without a user: credentials belong in `auth`");
    }
    if authority.contains(['?', '#']) {
        return Err(A_URL);
    }
    let host = origin.host_str().ok_or(A_URL)?.to_owned();
    let port = origin.port_or_known_default().filter(|port| *port != 0).ok_or(A_URL)?;
    Ok(Target { tls, host, port, path: template(path)? })
}

pub(crate) const URL: Text<Target> = Text {
    expected: A_URL,
    parse: target,
    schema: || json!({ "type": "string", "pattern": "^https?://" }),
};

/// As [`URL`], with a fixed path.
pub(crate) const BASE_URL: Text<Target> = Text {
    expected: A_URL,
    parse: |text| {
        let target = target(text)?;
        let fixed = target.path.iter().all(|piece| matches!(piece, PathPiece::Literal(_)));
        fixed.then_some(target).ok_or("a URL without `{…}`: nothing in it comes from arguments")
    },
    schema: || json!({ "type": "string", "pattern": "^https?://[^/{}]+(/[^{}]*)?$" }),
};

const A_PATH: &str = "a path that begins with `/`, with `{argument}` for whole or part segments";

/// `/orders/{order_id}` in pieces.
fn template(text: &str) -> Result<Vec<PathPiece>, &'static str> {
    if !text.starts_with('/') {
        return Err(A_PATH);
    }
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((literal, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or("a path whose `{` is closed by `}`")?;
        if name.is_empty() || name.contains(['{', '/']) {
            return Err(A_PATH);
        }
        if !literal.is_empty() {
            pieces.push(PathPiece::Literal(path_literal(literal)?));
        }
        if pieces.contains(&PathPiece::Argument(name.to_owned())) {
            return Err("a path that names each argument once");
        }
        pieces.push(PathPiece::Argument(name.to_owned()));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(PathPiece::Literal(path_literal(rest)?));
    }
    let whole = text.split('/').all(|segment| segment != "." && segment != "..");
    whole.then_some(pieces).ok_or("a path without `.` and `..`")
}

/// Characters of RFC 3986's `pchar` and `/`, and whole percent-encodings.
fn path_literal(text: &str) -> Result<String, &'static str> {
    let expected = "a path of URL characters; anything else percent-encoded, no `?` and no `#`";
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let sound = match byte {
            b'%' => {
                let hex = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_hexdigit());
                hex(bytes.next()) && hex(bytes.next())
            }
            other => other.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&other),
        };
        if !sound {
            return Err(expected);
        }
    }
    let dots = text.to_ascii_lowercase().contains("%2e");
    if dots { Err("a path without encoded dots") } else { Ok(text.to_owned()) }
}

pub(crate) const PATH: Text<Vec<PathPiece>> = Text {
    expected: A_PATH,
    parse: template,
    schema: || json!({ "type": "string", "pattern": "^/" }),
};

/// An entry of `egress.allow_hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Lower case, without `*.`.
    pub host: String,
    pub wildcard: bool,
    /// `None` = the scheme's own.
    pub port: Option<u16>,
}

pub(crate) const HOST: Text<Host> = Text {
    expected: "a host such as `api.example.org`, `*.example.org` or `10.1.2.3:8080`",
    parse: |text| {
        let expected = "a host such as `api.example.org`, `*.example.org` or `10.1.2.3:8080`";
        let (rest, wildcard) = match text.strip_prefix("*.") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let parsed = url::Url::parse(&format!("http://{rest}/")).map_err(|_| expected)?;
        let host = parsed.host_str().ok_or(expected)?.to_owned();
        let (spelt, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, Some(port.parse::<u16>().ok().filter(|p| *p > 0).ok_or(expected)?))
            }
            _no_port => (rest, None),
        };
        let sound = spelt.eq_ignore_ascii_case(&host) && !(wildcard && spelt.starts_with('['));
        sound.then_some(Host { host, wildcard, port }).ok_or(expected)
    },
    schema: || json!({ "type": "string", "pattern": r"^(\*\.)?[A-Za-z0-9.:\[\]-]+$" }),
};
