//! Protections that are missing, switched off or contradict what a tool is (CR3001 to CR3015, but for what looks at
//! arguments: requests.rs).

use std::net::IpAddr;

use http::Method;

use super::{View, merge};
use crate::call::Effect;
use crate::policy::diagnostic::{Level, Place, Problem};
use crate::policy::document::kinds::{Address, Target};
use crate::policy::document::{At, Breaker, Maybe, Run, Tool, Upstream};
use crate::policy::snapshot::{BreakerMode, Identical};

pub(super) fn find(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, tool) in view.tools() {
        effect_and_keys(name, tool, problems);
        write_promises(view, name, tool, problems);
        method_and_effect(name, &tool.value, problems);
    }
    addresses(view, problems);
    switched_off(view, problems);
}

fn effect_and_keys(name: &str, tool: &At<Tool>, problems: &mut Vec<Problem>) {
    let effect = tool.value.effect();
    if effect == Effect::Write
        && let Some(retry) = &tool.value.retry
    {
        let message = format!("`retry` on the write `{name}`: a write is sent once");
        let hint = if tool.value.effect.is_none() {
            "a tool without `effect` is a write; say `effect: read` if it changes nothing"
        } else {
            "remove `retry`"
        };
        problems.push(Problem::new("CR3001", retry.key, message).hint(hint));
    }
    if effect == Effect::Write
        && let Some(cache) = &tool.value.cache
    {
        let message =
            format!("`cache` on the write `{name}`: no answer of a write is kept for others");
        let hint = if tool.value.effect.is_none() {
            "a tool without `effect` is a write; say `effect: read` if it changes nothing"
        } else {
            "remove `cache`; a finished write answers again by its `fingerprint`"
        };
        problems.push(Problem::new("CR3002", cache.key, message).hint(hint));
    }
    if effect == Effect::Read
        && let Some(write) = &tool.value.write
    {
        let message = format!("`write` on the read `{name}`");
        problems.push(
            Problem::new("CR3003", write.key, message)
                .hint("remove `write`, or say `effect: write`"),
        );
    }
}

fn write_promises(view: &View<'_>, name: &str, tool: &At<Tool>, problems: &mut Vec<Problem>) {
    if tool.value.effect() == Effect::Read {
        return;
    }
    let write = tool.value.write.as_ref().map(|write| &write.value);
    let refuses = write
        .and_then(|write| write.identical.as_ref())
        .is_some_and(|identical| identical.value != Identical::Allow);
    let fingerprint = write.is_some_and(|write| write.fingerprint.is_some());
    let recognised = write.is_some_and(|write| write.idempotency.is_some());
    if !refuses && !fingerprint && !recognised {
        let message =
            format!("asked twice with the same arguments, the write `{name}` happens twice");
        let hint = "name the operation with `write.fingerprint`, or say `write.identical: refuse` or `approve`";
        problems.push(Problem::new("CR3004", tool.key, message).hint(hint));
    }
    if let Some(pooled) =
        write.and_then(|write| write.pooled.as_ref()).filter(|pooled| pooled.value)
    {
        let message = format!(
            "`{name}` is sent over used connections: some writes will be unknown although nothing happened"
        );
        problems.push(Problem::new("CR3013", pooled.place, message));
    }
    let breaker = merge::tool(view.document, &tool.value).breaker;
    if breaker.mode == BreakerMode::Enforce && breaker.probe.is_none() {
        let message = format!(
            "after an outage the next real call of the write `{name}` is the one that tests it"
        );
        problems.push(Problem::new("CR3012", tool.key, message));
    }
}

fn method_and_effect(name: &str, tool: &Tool, problems: &mut Vec<Problem>) {
    let is_safe = |method: &At<Method>| matches!(method.value, Method::GET | Method::HEAD);
    // Of several methods the one that does not fit the effect.
    let fits = |method: &&At<Method>| is_safe(method) == (tool.effect() == Effect::Read);
    let mut methods: Vec<&At<Method>> = tool.methods().collect();
    methods.sort_by_key(fits);
    // A write may read besides; then all of it counts as a write, and no method of it surprises.
    let mixed = tool.effect() == Effect::Write && methods.iter().any(fits);
    let Some(method) = methods.first().filter(|_| !mixed) else { return };
    let safe = is_safe(method);
    let verb = method.value.as_str();
    match (tool.effect(), safe) {
        (Effect::Write, true) => {
            let message =
                format!("`{name}` sends {verb} and counts as a write: it is never retried");
            let hint = if tool.effect.is_some() {
                "say `effect: read` if it changes nothing"
            } else {
                "a tool without `effect` is a write; say `effect: read` if it changes nothing"
            };
            problems
                .push(Problem::new("CR3014", method.place, message).level(Level::Note).hint(hint));
        }
        (Effect::Read, false) => {
            let message = format!("`{name}` sends {verb} and is called a read: it will be retried");
            let hint =
                "say `effect: write` unless the tool changes nothing, however often it is asked";
            problems.push(Problem::new("CR3014", method.place, message).hint(hint));
        }
        (Effect::Write, false) | (Effect::Read, true) => {}
    }
}

/// What a host's text alone says about where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lies {
    /// Reached from everywhere, or a name of which nothing is known.
    Public,
    Inside(IpAddr),
    /// `localhost`.
    Local,
}

fn lies(target: &Target) -> Lies {
    let host = target.bare_host();
    if host == "localhost" || host.ends_with(".localhost") {
        return Lies::Local;
    }
    match host.parse::<IpAddr>() {
        Ok(address) if !is_public(address) => Lies::Inside(address),
        Ok(_) | Err(_) => Lies::Public,
    }
}

/// Whether a URL leads to a host that anybody may reach.
pub(super) fn is_public_url(target: &Target) -> bool {
    lies(target) == Lies::Public
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            !(v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_broadcast()
                || v4.is_multicast()
                || shared
                || a == 0)
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_public(IpAddr::V4(v4)),
            None => {
                !(v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_multicast()
                    || v6.is_unique_local()
                    || v6.is_unicast_link_local())
            }
        },
    }
}

/// Whether `addresses` names the address. Metadata services need an entry of exactly their own.
fn covered(address: IpAddr, rules: &[At<Address>]) -> bool {
    let address = address.to_canonical();
    let metadata =
        ["169.254.169.254", "fd00:ec2::254"].iter().any(|text| text.parse() == Ok(address));
    rules.iter().any(|rule| match &rule.value {
        Address::Net(net) => {
            net.contains(&address) && (!metadata || net.prefix_len() == net.max_prefix_len())
        }
        Address::Loopback => address.is_loopback(),
        Address::Private => !metadata && is_private(address),
        Address::LinkLocal => !metadata && is_link_local(address),
    })
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            v4.is_private() || (a == 100 && (64..128).contains(&b))
        }
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn addresses(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, upstream) in view.document.all_upstreams() {
        if let Some(url) = &upstream.base_url {
            upstream_address(name, upstream, url, problems);
        }
    }
    for (name, tool) in view.tools() {
        let Some(url) = tool.value.http.as_ref().and_then(|http| http.value.url.as_ref()) else {
            continue;
        };
        match lies(&url.value) {
            Lies::Inside(_) | Lies::Local => {
                let message =
                    format!("`{}`, the host of `{name}`, is not public", url.value.bare_host());
                let hint = "name the server under `upstreams` with its `addresses`, and use `upstream` and `path` here";
                problems.push(Problem::new("CR3005", url.place, message).hint(hint));
            }
            Lies::Public => plain_http(&url.value, url.place, false, problems),
        }
    }
}

fn upstream_address(
    name: &str,
    upstream: &Upstream,
    url: &At<Target>,
    problems: &mut Vec<Problem>,
) {
    let rules = upstream.addresses.as_ref().map_or(&[][..], |addresses| addresses.value.as_slice());
    let named = match lies(&url.value) {
        Lies::Inside(address) => covered(address, rules),
        Lies::Local => rules.iter().any(|rule| match rule.value {
            Address::Loopback => true,
            Address::Net(net) => net.addr().is_loopback(),
            Address::Private | Address::LinkLocal => false,
        }),
        // A name may resolve to what `addresses` allows; then it is taken to lie inside.
        Lies::Public => {
            if rules.is_empty() {
                plain_http(&url.value, url.place, upstream.auth.is_some(), problems);
            }
            true
        }
    };
    if !named {
        let message = format!(
            "`{}`, the host of the upstream `{name}`, is not public and `addresses` does not name it",
            url.value.bare_host()
        );
        let hint = "add `addresses: [loopback]`, `[private]`, `[link_local]` or the network; a metadata address needs its own /32 or /128";
        problems.push(Problem::new("CR3005", url.place, message).hint(hint));
    }
}

fn plain_http(target: &Target, place: Place, with_auth: bool, problems: &mut Vec<Problem>) {
    if target.tls {
        return;
    }
    let host = target.bare_host();
    problems.push(if with_auth {
        let message = format!("the credential for `{host}` would travel in clear text");
        Problem::new("CR3006", place, message)
            .hint("use `https://`, or name its non-public `addresses`")
    } else {
        let message = format!("calls to `{host}` travel in clear text");
        Problem::new("CR3006", place, message)
            .level(Level::Warning)
            .hint("use `https://`, or name its non-public `addresses`")
    });
}

fn switched_off(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, run) in &view.document.runs {
        for (budget, place) in unlimited(&run.value) {
            let message = format!("`{budget}` of the run `{name}` is unlimited");
            problems.push(Problem::new("CR3009", place, message));
        }
    }
    let tools = view.tools().map(|(name, at)| (format!("tool `{name}`"), &at.value.breaker));
    let upstreams = view.document.all_upstreams();
    let upstreams = upstreams.map(|(name, one)| (format!("upstream `{name}`"), &one.breaker));
    let profiles = view.document.profiles.iter();
    let profiles = profiles.map(|(name, at)| (format!("profile `{name}`"), &at.value.breaker));
    for (whose, breaker) in tools.chain(upstreams).chain(profiles) {
        if let Some(mode) = disabled(breaker) {
            let message = format!(
                "the breaker of the {whose} is disabled: a dead server costs every call its whole time"
            );
            problems.push(Problem::new("CR3009", mode, message));
        }
    }
}

fn disabled(breaker: &Maybe<Breaker>) -> Option<Place> {
    let mode = breaker.as_ref()?.value.mode.as_ref()?;
    (mode.value == BreakerMode::Disabled).then_some(mode.place)
}

fn unlimited(run: &Run) -> Vec<(&'static str, Place)> {
    let counts = [
        ("rounds", &run.rounds),
        ("calls", &run.calls),
        ("calls_per_round", &run.calls_per_round),
        ("failures", &run.failures),
        ("argument_bytes", &run.argument_bytes),
        ("result_bytes", &run.result_bytes),
    ];
    let counts = counts.into_iter().filter_map(|(name, at)| {
        at.as_ref().filter(|at| at.value.is_none()).map(|at| (name, at.place))
    });
    let cost = run.cost.as_ref().filter(|at| at.value.is_none()).map(|at| ("cost", at.place));
    counts.chain(cost).collect()
}
