//! Servers behind tools: the named ones, and the origins of tools with `url:`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use super::upstream_name;
use crate::call::{Digest, UpstreamName};
use crate::policy::check::Checked;
use crate::policy::document::kinds::{Address, SecretRef, Target};
use crate::policy::document::{self as written, At, Document, Maybe};
use crate::policy::material::resolve;
use crate::policy::merge::{self, get, narrow};
use crate::policy::profiles;
use crate::policy::snapshot::{Addresses, Auth, PathPiece, Rule, Secret, SecretText, Upstream};

/// The longest total of the tools behind an upstream: how long its probe may take.
fn longest_total(document: &Document, upstream: &UpstreamName) -> Duration {
    let behind = document.tools.values().filter(|tool| {
        let http = tool.value.http.as_ref().and_then(|http| upstream_name(&http.value));
        let named = || UpstreamName::new(&tool.value.upstream()?.value).ok();
        http.or_else(named).as_ref() == Some(upstream)
    });
    behind
        .map(|tool| merge::tool(document, &tool.value).timeout.total)
        .max()
        .unwrap_or(profiles::EXTERNAL_HTTP.total)
}

pub(super) fn upstreams(checked: &Checked<'_>) -> HashMap<UpstreamName, Arc<Upstream>> {
    let document = checked.document;
    let mut out = HashMap::new();
    for (text, section) in &document.upstreams {
        if let (Ok(name), Some(url)) = (UpstreamName::new(text), &section.value.base_url) {
            let rule = Rule { path: format!("upstreams.{text}").into(), line: section.key.line };
            let longest = longest_total(document, &name);
            let written = Some(&section.value);
            let upstream = upstream(checked, name.clone(), rule, &url.value, written, longest);
            out.insert(name, Arc::new(upstream));
        }
    }
    for (text, section) in &document.tools {
        let Some(http) = section.value.http.as_ref().map(|at| &at.value) else { continue };
        if let (Some(name), Some(url)) = (upstream_name(http), &http.url) {
            let path = format!("tools.{text}.http.url").into();
            let rule = Rule { path, line: url.key.line };
            out.entry(name.clone()).or_insert_with(|| {
                let longest = longest_total(document, &name);
                Arc::new(upstream(checked, name, rule, &url.value, None, longest))
            });
        }
    }
    out
}

/// The fixed path of a URL.
pub(super) fn exact_path(target: &Target) -> String {
    let mut path = String::new();
    for piece in &target.path {
        if let PathPiece::Literal(text) = piece {
            path.push_str(text);
        }
    }
    path
}

/// `longest` is the longest total of what is behind it.
pub(super) fn upstream(
    checked: &Checked<'_>,
    name: UpstreamName,
    rule: Rule,
    target: &Target,
    written: Option<&written::Upstream>,
    longest: Duration,
) -> Upstream {
    let limit_name = format!("upstream:{name}");
    let mut headers: Vec<_> = written
        .and_then(|upstream| upstream.headers.as_ref())
        .map(|headers| &headers.value)
        .into_iter()
        .flatten()
        .map(|(header, value)| (header.clone(), value.value.clone()))
        .collect();
    headers.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
    let base_path = match written {
        Some(_) => exact_path(target).trim_end_matches('/').to_owned(),
        None => String::new(),
    };
    let mut upstream = Upstream {
        tls: target.tls,
        host: target.bare_host().into(),
        port: target.port,
        // A host that a URL holds is visible ASCII.
        authority: HeaderValue::from_str(&target.authority())
            .unwrap_or(HeaderValue::from_static("")),
        base_path: base_path.into(),
        auth: written.and_then(|upstream| auth(checked, &upstream.auth)),
        headers,
        ca: written.and_then(|upstream| ca(checked, &upstream.ca)),
        addresses: addresses(written.and_then(|upstream| upstream.addresses.as_ref())),
        http_version: written.and_then(|upstream| get(&upstream.http_version)).unwrap_or_default(),
        timeout_header: written.and_then(|upstream| get(&upstream.timeout_header)),
        follow_same_origin: written
            .and_then(|upstream| get(&upstream.follow_same_origin))
            .unwrap_or(false),
        bulkhead: narrow(
            written
                .and_then(|upstream| get(&upstream.bulkhead))
                .unwrap_or(merge::DEFAULT_UPSTREAM_BULKHEAD),
        ),
        rate_limit: written
            .and_then(|upstream| merge::rate_limit(&upstream.rate_limit, &limit_name)),
        breaker: merge::upstream_breaker(written, longest),
        retry_budget: merge::retry_budget(written),
        section: Digest::of(b""),
        name,
        rule,
    };
    upstream.section = upstream_section(&upstream);
    upstream
}

/// A secret prints as nothing, so its rotation leaves the state of an upstream alone.
pub(super) fn upstream_section(u: &Upstream) -> Digest {
    let place = format!("{:?}", (&u.name, u.tls, &u.host, u.port, &u.base_path, &u.headers));
    let trust = format!("{:?}", (&u.auth, u.ca.is_some(), &u.addresses, u.follow_same_origin));
    let limits = format!("{:?}", (u.bulkhead, &u.rate_limit, &u.breaker, u.retry_budget));
    let header = format!("{:?}", (&u.timeout_header, u.http_version));
    Digest::of_parts(&[place.as_bytes(), trust.as_bytes(), limits.as_bytes(), header.as_bytes()])
}

fn auth(checked: &Checked<'_>, auth: &Maybe<written::Auth>) -> Option<Auth> {
    let auth = &auth.as_ref()?.value;
    let secret = |reference| resolve(checked.material, reference);
    if let Some(bearer) = secret(&auth.bearer) {
        return Some(Auth::Bearer(bearer));
    }
    if let Some(basic) = auth.basic.as_ref().map(|at| &at.value) {
        let username = secret(&basic.username)?;
        let password = secret(&basic.password)?;
        return Some(basic_auth(username, password));
    }
    let header = &auth.header.as_ref()?.value;
    Some(Auth::Header {
        name: get(&header.name)?,
        prefix: get(&header.prefix).unwrap_or_default(),
        value: secret(&header.value)?,
    })
}

/// Without its user name a password is no credential: it counts as missing, and the call says so.
fn basic_auth(username: Secret, password: Secret) -> Auth {
    match username.value {
        Some(SecretText(name)) => Auth::Basic { username: name.as_ref().to_owned(), password },
        None => Auth::Basic {
            username: String::new(),
            password: Secret { origin: username.origin, value: None },
        },
    }
}

/// A bundle that is missing or empty trusts nobody; it never falls back to the system's roots.
fn ca(checked: &Checked<'_>, reference: &Maybe<SecretRef>) -> Option<Arc<[u8]>> {
    let secret = resolve(checked.material, reference)?;
    Some(secret.value.map_or_else(|| Arc::from([]), |text| text.0.as_bytes().into()))
}

fn addresses(written: Option<&At<Vec<At<Address>>>>) -> Addresses {
    let mut out = Addresses::default();
    for address in written.iter().flat_map(|list| &list.value) {
        match address.value {
            Address::Loopback => out.loopback = true,
            Address::Private => out.private = true,
            Address::LinkLocal => out.link_local = true,
            Address::Net(net) => out.nets.push(net),
        }
    }
    out
}
