//! Routes of plain HTTP clients against each other and against what a passed request can be (CR2005, CR2007, CR3007).

use http::Method;

use super::{View, entries};
use crate::policy::diagnostic::Problem;
use crate::policy::document::{At, KeyMode, Maybe, Probe, Proxy, Tool};
use crate::policy::snapshot::{RoutePiece, When};

pub(super) fn find(view: &View<'_>, problems: &mut Vec<Problem>) {
    let mut seen: Vec<(&str, &Proxy)> = Vec::new();
    for (name, at) in &view.document.tools {
        asked_by_the_gateway(view, &at.value, problems);
        let Some(proxy) = &at.value.proxy else { continue };
        unfit(name, &at.value, problems);
        own_headers(view, name, &at.value, &proxy.value, problems);
        if let Some((other, _)) = seen.iter().find(|(_, other)| meets(other, &proxy.value)) {
            let message = format!("the routes of `{name}` and `{other}` take the same requests");
            let place = proxy.value.path.as_ref().map_or(proxy.key, |path| path.place);
            problems.push(
                Problem::new("CR2005", place, message)
                    .hint("give them other methods, or paths that differ in a literal segment"),
            );
        }
        seen.push((name, &proxy.value));
    }
}

/// Same upstream, a method in common, and paths that no literal tells apart.
fn meets(one: &Proxy, two: &Proxy) -> bool {
    let upstream = |proxy: &Proxy| proxy.upstream.as_ref().map(|at| at.value.clone());
    let methods = |proxy: &Proxy| -> Vec<Method> {
        entries(&proxy.methods).map(|at| at.value.clone()).collect()
    };
    let path = |proxy: &Proxy| proxy.path.as_ref().map(|at| at.value.clone());
    let (Some(first), Some(second)) = (path(one), path(two)) else { return false };
    let alike = first.len() == second.len()
        && first.iter().zip(&second).all(|pair| match pair {
            (RoutePiece::Literal(a), RoutePiece::Literal(b)) => a == b,
            (RoutePiece::One(_), RoutePiece::One(_)) => true,
            (RoutePiece::Rest(_), RoutePiece::Rest(_)) => true,
            (RoutePiece::Literal(_) | RoutePiece::One(_) | RoutePiece::Rest(_), _) => false,
        });
    let other = methods(two);
    alike && upstream(one) == upstream(two) && methods(one).iter().any(|m| other.contains(m))
}

/// Keys that a request which is passed on cannot honour.
fn unfit(name: &str, tool: &Tool, problems: &mut Vec<Problem>) {
    fn refuse<T>(name: &str, key: &Maybe<T>, what: &str, why: &str, problems: &mut Vec<Problem>) {
        if let Some(at) = key {
            let message = format!("`{what}` means nothing for the route `{name}`: {why}");
            problems.push(Problem::new("CR2007", at.key, message).hint("remove the key"));
        }
    }
    let as_it_comes = "its answer goes to the client as the tool sent it";
    refuse(name, &tool.result, "result", as_it_comes, problems);
    refuse(name, &tool.cache, "cache", as_it_comes, problems);
    let when = tool.approval.as_ref().and_then(|approval| approval.value.when.as_ref());
    if let (Some(At { value: When::If(_), place, .. }), None) = (when, &tool.schema) {
        let message =
            format!("`approval.when` of `{name}` looks into parts that no schema says are there");
        let hint =
            "what is asked in another form would need no approval; add a `schema`, or say `always`";
        problems.push(Problem::new("CR2009", *place, message).hint(hint));
    }
    let Some(write) = tool.write.as_ref().map(|write| &write.value) else { return };
    let key = write.idempotency.as_ref();
    if let Some(mode) = key.and_then(|key| key.value.mode.as_ref())
        && mode.value == KeyMode::Argument
    {
        let message = format!("the key of the route `{name}` can only be sent in a header");
        problems.push(Problem::new("CR2007", mode.place, message).hint("say `mode: header`"));
    }
    if let (Some(fingerprint), None) = (&write.fingerprint, &tool.schema) {
        let message =
            format!("the fingerprint of `{name}` names parts that no schema says are there");
        let hint = "add a `schema` that requires them, of `path`, `query` and `body`";
        problems.push(Problem::new("CR3007", fingerprint.place, message).hint(hint));
    }
}

/// Fields that both the client and the gateway would set.
fn own_headers(
    view: &View<'_>,
    name: &str,
    tool: &Tool,
    proxy: &Proxy,
    problems: &mut Vec<Problem>,
) {
    let upstream = tool.upstream().and_then(|at| view.document.upstreams.get(&at.value));
    let Some(upstream) = upstream.map(|at| &at.value) else { return };
    let auth = upstream.auth.as_ref().and_then(|auth| auth.value.header.as_ref());
    let auth = auth.and_then(|header| header.value.name.as_ref()).map(|at| &at.value);
    let write = tool.write.as_ref().and_then(|write| write.value.idempotency.as_ref());
    let key = write.and_then(|key| key.value.name.as_ref()).map(|at| at.value.as_str());
    for header in entries(&proxy.request_headers) {
        let fixed = upstream.headers.iter().flat_map(|all| &all.value);
        let twice = auth == Some(&header.value)
            || upstream.timeout_header.as_ref().is_some_and(|at| at.value == header.value)
            || key.is_some_and(|key| key.eq_ignore_ascii_case(header.value.as_str()))
            || fixed.into_iter().any(|(fixed, _)| *fixed == header.value);
        if twice {
            let message =
                format!("the header `{}` of `{name}` is set by the gateway itself", header.value);
            problems.push(Problem::new("CR2007", header.place, message));
        }
    }
}

/// The gateway asks tools by arguments; a route is asked by clients alone.
fn asked_by_the_gateway(view: &View<'_>, tool: &Tool, problems: &mut Vec<Problem>) {
    let query = tool.write.as_ref().and_then(|write| write.value.status_query.as_ref());
    let query = query.and_then(|query| query.value.tool.as_ref());
    let probe = tool.breaker.as_ref().and_then(|breaker| breaker.value.probe.as_ref());
    let probe = probe.and_then(|probe| match &probe.value {
        Probe::Call { tool, .. } => Some(tool),
        Probe::Connect | Probe::Discover => None,
    });
    for asked in query.into_iter().chain(probe) {
        let route =
            view.document.tools.get(&asked.value).is_some_and(|at| at.value.proxy.is_some());
        if route {
            let message = format!(
                "`{}` is a route of plain HTTP clients: the gateway cannot ask it",
                asked.value
            );
            problems
                .push(Problem::new("CR2007", asked.place, message).hint("name a tool with `http`"));
        }
    }
}
