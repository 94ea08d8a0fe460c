//! Promises of tools that cannot hold: keys without a place, reads that are none, questions that cannot be asked
//! (CR2007, CR2009, CR2011, CR3016).

use http::{HeaderName, Method};

use super::shape::{Shape, Standing, standing};
use super::{View, entries};
use crate::call::Effect;
use crate::policy::diagnostic::{Place, Problem};
use crate::policy::document::{At, Idempotency, KeyMode, Maybe, Probe, StatusQuery, Tool};

pub(super) fn find(view: &View<'_>, problems: &mut Vec<Problem>) {
    for probe in probes(view) {
        let Probe::Call { tool, arguments } = &probe.value else { continue };
        if is_read(view, tool, "`probe`", problems) {
            let given: Vec<_> = arguments.keys().map(|name| (name.as_str(), probe.place)).collect();
            takes(view, &tool.value, &given, probe.key, problems);
        }
    }
    for (name, tool) in view.tools() {
        let Some(write) = &tool.value.write else { continue };
        if let Some(idempotency) = &write.value.idempotency {
            key(view, name, &tool.value, &idempotency.value, problems);
        }
        if let Some(query) = &write.value.status_query {
            question(view, name, query, problems);
        }
    }
}

/// Reads that the gateway asks itself; they need no agent that may call them.
pub(super) fn asked<'d>(view: &View<'d>) -> Vec<&'d str> {
    let writes = view.tools().filter_map(|(_, tool)| tool.value.write.as_ref());
    let queries = writes.filter_map(|write| write.value.status_query.as_ref());
    let queries = queries.filter_map(|query| Some(query.value.tool.as_ref()?.value.as_str()));
    queries.chain(probed(view).map(|tool| tool.value.as_str())).collect()
}

/// Every `breaker.probe`.
fn probes<'d>(view: &View<'d>) -> impl Iterator<Item = &'d At<Probe>> {
    let document = view.document;
    let profiles = document.profiles.values().filter_map(|at| at.value.breaker.as_ref());
    let upstreams = document.all_upstreams().filter_map(|(_, one)| one.breaker.as_ref());
    let tools = view.tools().filter_map(|(_, at)| at.value.breaker.as_ref());
    profiles.chain(upstreams).chain(tools).filter_map(|breaker| breaker.value.probe.as_ref())
}

/// The tools they name.
pub(super) fn probed<'d>(view: &View<'d>) -> impl Iterator<Item = &'d At<String>> {
    probes(view).filter_map(|probe| match &probe.value {
        Probe::Call { tool, .. } => Some(tool),
        Probe::Connect | Probe::Discover => None,
    })
}

/// The question goes to a read, with arguments that it takes, made of arguments that the write has.
fn question(view: &View<'_>, name: &str, query: &At<StatusQuery>, problems: &mut Vec<Problem>) {
    let query_key = query.key;
    let query = &query.value;
    let Some(tool) = &query.tool else { return };
    if !is_read(view, tool, "`status_query`", problems) {
        return;
    }
    let arguments: Vec<_> = query.arguments.iter().flat_map(|all| &all.value).collect();
    let given: Vec<(&str, Place)> =
        arguments.iter().map(|(name, at)| (name.as_str(), at.key)).collect();
    takes(view, &tool.value, &given, query_key, problems);
    let Some(schema) = view.schema(name) else { return };
    for from in arguments.iter().filter_map(|(_, at)| at.value.from.as_ref()) {
        if standing(schema, from.value.tokens()) == Standing::NotDeclared {
            let message = format!("`{}` is not in the schema of `{name}`", from.value);
            problems.push(Problem::new("CR2009", from.place, message));
        }
    }
}

/// False: it is a write, which is told, or no tool, which is told elsewhere.
fn is_read(view: &View<'_>, tool: &At<String>, whose: &str, problems: &mut Vec<Problem>) -> bool {
    let Some(found) = view.find(&tool.value) else { return false };
    if found.value.effect() == Effect::Read {
        return true;
    }
    let message = format!("{whose} names `{}`, which is a write", tool.value);
    let hint = "name a read: it is asked as often as need be";
    problems.push(Problem::new("CR2011", tool.place, message).hint(hint));
    false
}

/// Arguments that the gateway will give to a read are ones it takes, and none that it needs is missing.
fn takes(
    view: &View<'_>,
    tool: &str,
    given: &[(&str, Place)],
    at: Place,
    problems: &mut Vec<Problem>,
) {
    let Some(schema) = view.schema(tool) else { return };
    let shape = Shape::of(schema);
    for (name, place) in given {
        if shape.step(name).is_none() && !shape.is_open() {
            let message = format!("`{name}` is no argument of `{tool}`");
            problems.push(Problem::new("CR2009", *place, message));
        }
    }
    for member in shape.members() {
        if shape.requires(member) && !given.iter().any(|(name, _)| *name == member) {
            let message = format!("`{tool}` needs the argument `{member}`");
            problems.push(Problem::new("CR2009", at, message));
        }
    }
}

fn key(
    view: &View<'_>,
    name: &str,
    tool: &Tool,
    idempotency: &Idempotency,
    problems: &mut Vec<Problem>,
) {
    let Some(mode) = &idempotency.mode else { return };
    match mode.value {
        KeyMode::Natural => {
            meaningless(&idempotency.name, "name", "no key is sent", problems);
            meaningless(&idempotency.quoted, "quoted", "no key is sent", problems);
            let unsafe_again =
                |method: &&At<Method>| matches!(method.value, Method::POST | Method::PATCH);
            if let Some(method) = tool.methods().find(unsafe_again) {
                let message = format!(
                    "`{name}` sends {} and says that repeating it changes nothing",
                    method.value
                );
                let hint = "a POST or PATCH rarely is so; a key that the tool recognises is safer";
                problems.push(Problem::new("CR3016", mode.place, message).hint(hint));
            }
        }
        KeyMode::Argument => {
            meaningless(&idempotency.quoted, "quoted", "only headers are quoted", problems);
            argument(view, name, tool, idempotency, problems);
        }
        KeyMode::Meta => {
            meaningless(&idempotency.quoted, "quoted", "only headers are quoted", problems);
        }
        KeyMode::Header => header(view, name, tool, idempotency, mode, problems),
    }
}

fn meaningless<T>(key: &Maybe<T>, word: &str, why: &str, problems: &mut Vec<Problem>) {
    if let Some(key) = key {
        problems.push(Problem::new(
            "CR2007",
            key.key,
            format!("`{word}` means nothing here: {why}"),
        ));
    }
}

/// The argument is declared, may be hidden, and names no operation.
fn argument(
    view: &View<'_>,
    name: &str,
    tool: &Tool,
    idempotency: &Idempotency,
    problems: &mut Vec<Problem>,
) {
    let (Some(member), Some(at)) = (idempotency.argument(), &idempotency.name) else { return };
    if let Some(schema) = view.schema(name) {
        let declared = schema.get("properties").is_some_and(|all| all.get(&member).is_some());
        if !declared {
            let message = format!("`{}` is not in the schema of `{name}`", at.value);
            let hint = "declare it in `properties`; models are not shown it";
            problems.push(Problem::new("CR2009", at.place, message).hint(hint));
        } else if Shape::of(schema).requires_below_the_top(&member) {
            let message = format!("a part of the schema of `{name}` requires its key `{member}`");
            let hint = "require it beside `properties` or nowhere: models are not shown it";
            problems.push(Problem::new("CR2009", at.place, message).hint(hint));
        }
    }
    let pointers = tool.write.iter().flat_map(|write| entries(&write.value.fingerprint));
    for pointer in pointers.chain(entries(&tool.volatile)) {
        if pointer.value.tokens().first() == Some(&member) {
            let message =
                format!("`{}` is the key of `{name}`, which no call brings", pointer.value);
            problems.push(Problem::new("CR2009", pointer.place, message));
        }
    }
}

/// Nothing else sets the header.
fn header(
    view: &View<'_>,
    name: &str,
    tool: &Tool,
    idempotency: &Idempotency,
    mode: &At<KeyMode>,
    problems: &mut Vec<Problem>,
) {
    let written = idempotency.name.as_ref();
    let text = written.map_or("idempotency-key", |name| name.value.as_str());
    let Ok(header) = HeaderName::from_bytes(text.as_bytes()) else { return };
    let http = tool.http.as_ref().map(|http| &http.value);
    let upstream = tool.upstream();
    let upstream = upstream.and_then(|name| view.document.upstreams.get(&name.value));
    let upstream = upstream.map(|upstream| &upstream.value);
    let names = |name: &HeaderName| *name == header;
    let of_arguments = http.and_then(|http| http.headers.as_ref());
    let fixed = upstream.and_then(|upstream| upstream.headers.as_ref());
    let auth = upstream.and_then(|upstream| upstream.auth.as_ref());
    let auth = auth.and_then(|auth| auth.value.header.as_ref()?.value.name.as_ref());
    let timeout = upstream.and_then(|upstream| upstream.timeout_header.as_ref());
    let other = [
        of_arguments.is_some_and(|all| all.value.iter().any(|(n, _)| names(n))),
        fixed.is_some_and(|all| all.value.iter().any(|(n, _)| names(n))),
        auth.is_some_and(|at| names(&at.value)),
        timeout.is_some_and(|at| names(&at.value)),
    ];
    if other.contains(&true) {
        let message = format!("the header `{header}` of `{name}` is set by something else as well");
        let place = written.map_or(mode.place, |name| name.place);
        problems.push(Problem::new("CR2007", place, message));
    }
}
