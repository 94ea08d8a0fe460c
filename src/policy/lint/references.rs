//! Names that lead nowhere, entries that do nothing, and one thing said of two (CR2001, CR2002, CR2003, CR2008,
//! CR2010, CR2011, CR2012).

use std::collections::HashMap;

use super::{View, entries, globs_meet, is_denied, is_glob, may_call, merge};
use crate::call::Effect;
use crate::call::suggest::distance;
use crate::policy::diagnostic::{Level, Place, Problem};
use crate::policy::document::kinds::{SecretRef, Target};
use crate::policy::document::{Agent, At};
use crate::policy::profiles;

/// Farthest edit distance of a name that a finding suggests.
const MAX_DISTANCE: usize = 2;

pub(super) fn find(view: &View<'_>, problems: &mut Vec<Problem>) {
    unknown_names(view, problems);
    foundations(view, problems);
    for (name, agent) in &view.document.agents {
        agent_entries(view, name, &agent.value, problems);
    }
    uncallable(view, problems);
    credentials(view, problems);
    hosts(view, problems);
    alternatives(view, problems);
    money(view, problems);
}

fn unknown(what: &str, name: &At<String>, known: &[&str]) -> Problem {
    let message = format!("there is no {what} `{}`", name.value);
    let problem = Problem::new("CR2001", name.place, message);
    match nearest(&name.value, known) {
        Some(near) => problem.label(format!("did you mean `{near}`?")),
        None if known.is_empty() => problem,
        None => problem.hint(format!("there are: {}", listed(known))),
    }
}

pub(super) fn listed(names: &[&str]) -> String {
    const MOST: usize = 12;
    let mut text = names.iter().take(MOST).copied().collect::<Vec<_>>().join(", ");
    if names.len() > MOST {
        text.push_str(", …");
    }
    text
}

pub(super) fn nearest<'n>(name: &str, known: &[&'n str]) -> Option<&'n str> {
    known
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .filter(|(distance, _)| *distance <= MAX_DISTANCE)
        .min()
        .map(|(_, candidate)| candidate)
}

/// A profile of a new name says what it is laid over; a built-in one is laid over itself.
fn foundations(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, profile) in &view.document.profiles {
        match (&profile.value.extends, profiles::find(name)) {
            (None, None) => {
                let message = format!("the profile `{name}` has no `extends`");
                let label = format!("add `extends: {}` or another built-in", profiles::DEFAULT);
                problems.push(Problem::new("CR1003", profile.key, message).label(label));
            }
            (Some(extends), Some(_)) => {
                let message = format!("`{name}` is built in and extends nothing");
                let hint = "remove `extends`, or give the profile a name of its own";
                problems.push(Problem::new("CR1008", extends.key, message).hint(hint));
            }
            (Some(_), None) | (None, Some(_)) => {}
        }
    }
}

fn unknown_names(view: &View<'_>, problems: &mut Vec<Problem>) {
    let document = view.document;
    let builtins: Vec<&str> = profiles::BUILTIN.iter().map(|profile| profile.name).collect();
    let mut known_profiles = builtins.clone();
    known_profiles.extend(document.profiles.keys().map(String::as_str));
    let mut known_runs: Vec<&str> = document.runs.keys().map(String::as_str).collect();
    known_runs.push(merge::DEFAULT_RUN);
    let tool_names: Vec<&str> = view.tools().map(|(name, _)| name).collect();
    let known_upstreams: Vec<&str> = document.upstreams.keys().map(String::as_str).collect();
    let mut check = |what: &str, name: Option<&At<String>>, known: &[&str]| {
        let is_known = |name: &str| match what {
            "tool" => view.find(name).is_some(),
            _other => known.contains(&name),
        };
        if let Some(name) = name.filter(|name| !is_known(&name.value)) {
            problems.push(unknown(what, name, known));
        }
    };
    let defaults = document.defaults.as_ref().map(|defaults| &defaults.value);
    check("profile", defaults.and_then(|defaults| defaults.profile.as_ref()), &known_profiles);
    for profile in document.profiles.values() {
        check("built-in profile", profile.value.extends.as_ref(), &builtins);
    }
    for agent in document.agents.values().map(|agent| &agent.value) {
        check("run", agent.run.as_ref(), &known_runs);
    }
    for server in document.mcp_servers.values().map(|server| &server.value) {
        check("profile", server.profile.as_ref(), &known_profiles);
    }
    let entries_of = document.mcp_servers.values().flat_map(|at| at.value.tools.values());
    let tools = document.tools.values().map(|tool| &tool.value);
    for tool in tools.chain(entries_of.map(|entry| &entry.value.tool)) {
        check("profile", tool.profile.as_ref(), &known_profiles);
        check("upstream", tool.upstream(), &known_upstreams);
        for alternative in entries(&tool.alternatives) {
            check("tool", Some(alternative), &tool_names);
        }
        let query = tool.write.as_ref().and_then(|write| write.value.status_query.as_ref());
        check("tool", query.and_then(|query| query.value.tool.as_ref()), &tool_names);
    }
    for tool in super::remedies::probed(view) {
        check("tool", Some(tool), &tool_names);
    }
    for agent in document.agents.values().map(|agent| &agent.value) {
        for (tool, schema) in agent.constraints.iter().flat_map(|constraints| &constraints.value) {
            let place = schema.key;
            let name = At { value: tool.clone(), key: place, place, last_line: place.line };
            check("tool", Some(&name), &tool_names);
        }
    }
}

/// Entries of `allow` and `deny` that match nothing, or match only what they do not cover.
fn agent_entries(view: &View<'_>, name: &str, agent: &Agent, problems: &mut Vec<Problem>) {
    let names: Vec<&str> = view.tools().map(|(name, _)| name).collect();
    for (list, entry) in entries(&agent.allow)
        .map(|entry| ("allow", entry))
        .chain(entries(&agent.deny).map(|entry| ("deny", entry)))
    {
        let matched: Vec<_> =
            view.tools().filter(|(tool, _)| globs_meet(&entry.value, tool)).collect();
        if matched.is_empty() {
            problems.push(matches_nothing(name, list, entry, &names));
            continue;
        }
        if list == "deny" {
            continue;
        }
        if matched.iter().all(|(tool, _)| is_denied(agent, tool)) {
            let message = format!(
                "`{}` in `agents.{name}.allow` allows nothing: `deny` takes all of it",
                entry.value
            );
            problems.push(Problem::new("CR2003", entry.place, message));
            continue;
        }
        let writes: Vec<&str> = matched
            .iter()
            .filter(|(tool, at)| {
                let effect = at.value.effect();
                effect == Effect::Write && !may_call(agent, tool, effect) && !is_denied(agent, tool)
            })
            .map(|(tool, _)| *tool)
            .collect();
        if is_glob(&entry.value) && !writes.is_empty() {
            let message = format!(
                "the pattern `{}` does not allow the write {}: a write is allowed by its exact name",
                entry.value,
                listed(&writes)
            );
            problems.push(Problem::new("CR2003", entry.place, message));
        }
    }
}

fn matches_nothing(agent: &str, list: &str, entry: &At<String>, names: &[&str]) -> Problem {
    let kind = if is_glob(&entry.value) { "pattern" } else { "name" };
    let message =
        format!("the {kind} `{}` in `agents.{agent}.{list}` matches no tool", entry.value);
    let problem = Problem::new("CR2002", entry.place, message);
    match nearest(&entry.value, names).filter(|_| kind == "name") {
        Some(near) => problem.label(format!("did you mean `{near}`?")),
        None => problem,
    }
}

fn uncallable(view: &View<'_>, problems: &mut Vec<Problem>) {
    let asked = super::remedies::asked(view);
    let idle = |name: &str| view.callers(name).is_empty() && !asked.contains(&name);
    for (name, tool) in view.tools().filter(|(name, _)| idle(name)) {
        let message = format!("no agent may call `{name}`");
        let hint = "name it in an agent's `allow`, or remove it";
        problems.push(Problem::new("CR2003", tool.key, message).hint(hint));
    }
}

fn credentials(view: &View<'_>, problems: &mut Vec<Problem>) {
    let mut seen: HashMap<&SecretRef, &str> = HashMap::new();
    for (name, agent) in &view.document.agents {
        let agent_place = agent.key;
        let agent = &agent.value;
        if name == "default" {
            if let Some(identities) = &agent.identities {
                let message = "the agent `default` is whoever shows no credential, so it takes no `identities`";
                problems.push(Problem::new("CR2008", identities.key, message));
            }
            continue;
        }
        if agent.identities.is_none() {
            let message =
                format!("the agent `{name}` has no `identities`: nobody can prove to be it");
            problems.push(
                Problem::new("CR2008", agent_place, message)
                    .label("add `identities:`; only `default` goes without"),
            );
        }
        for token in entries(&agent.identities).filter_map(|identity| identity.value.token.as_ref())
        {
            match seen.get(&token.value) {
                Some(other) if other == name => {
                    let message = format!("the agent `{name}` names the same credential twice");
                    problems.push(Problem::new("CR2008", token.place, message));
                }
                Some(other) => {
                    let message =
                        format!("the agents `{other}` and `{name}` have the same credential");
                    let hint = "give each agent a credential of its own; with a shared one both are refused";
                    problems.push(Problem::new("CR2008", token.place, message).hint(hint));
                }
                None => {
                    seen.insert(&token.value, name);
                }
            }
        }
    }
}

/// Every place calls may go to, with where it is written.
pub(super) fn targets<'d>(view: &View<'d>) -> Vec<&'d At<Target>> {
    let tools = view.document.tools.values().filter_map(|tool| tool.value.http.as_ref());
    view.document
        .all_upstreams()
        .filter_map(|(_, upstream)| upstream.base_url.as_ref())
        .chain(tools.filter_map(|http| http.value.url.as_ref()))
        .collect()
}

fn hosts(view: &View<'_>, problems: &mut Vec<Problem>) {
    let egress = view.document.egress.as_ref();
    let Some(allowed) = egress.and_then(|egress| egress.value.allow_hosts.as_ref()) else { return };
    for target in targets(view) {
        let scheme_port = if target.value.tls { 443 } else { 80 };
        let covered = allowed.value.iter().any(|rule| {
            let rule = &rule.value;
            let host = if rule.wildcard {
                target
                    .value
                    .host
                    .strip_suffix(&rule.host)
                    .is_some_and(|rest| rest.ends_with('.') && rest.len() > 1)
            } else {
                target.value.host == rule.host
            };
            host && rule.port.unwrap_or(scheme_port) == target.value.port
        });
        if !covered {
            let message =
                format!("`egress.allow_hosts` does not cover `{}`", target.value.authority());
            let hint = "name the host there; without a port an entry means the scheme's own";
            problems.push(Problem::new("CR2010", target.place, message).hint(hint));
        }
    }
}

fn alternatives(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, tool) in view.tools() {
        for entry in entries(&tool.value.alternatives) {
            if entry.value == name {
                let message = format!("`{name}` names itself as its alternative");
                problems.push(Problem::new("CR2011", entry.place, message));
            } else if tool.value.effect() == Effect::Read
                && let Some(other) = view.find(&entry.value)
                && other.value.effect() == Effect::Write
            {
                let message =
                    format!("`{}`, an alternative of the read `{name}`, is a write", entry.value);
                let hint = "a model that only wanted to look may be led to change something";
                problems.push(Problem::new("CR3015", entry.place, message).hint(hint));
            }
        }
    }
}

fn money(view: &View<'_>, problems: &mut Vec<Problem>) {
    let document = view.document;
    let costs = view.tools().filter_map(|(_, tool)| tool.value.cost.as_ref());
    let costs: Vec<(&str, Place)> =
        costs.map(|cost| (cost.value.currency.as_str(), cost.place)).collect();
    let budgets: Vec<(&str, Place)> = document
        .runs
        .values()
        .filter_map(|run| run.value.cost.as_ref())
        .filter_map(|cost| Some((cost.value.as_ref()?.currency.as_str(), cost.place)))
        .collect();
    let mut all: Vec<(&str, Place)> = costs.iter().chain(&budgets).copied().collect();
    all.sort_by_key(|(_, place)| *place);
    if let Some(((first, at), (other, place))) = all
        .first()
        .zip(all.iter().find(|(currency, _)| Some(currency) != all.first().map(|(c, _)| c)))
    {
        let message =
            format!("{other} here, {first} in line {}: a policy has one currency", at.line);
        problems.push(Problem::new("CR2012", *place, message));
    } else if costs.is_empty()
        && let Some((_, place)) = budgets.first()
    {
        let message = "a budget of cost, but no tool has a `cost`";
        problems.push(Problem::new("CR2012", *place, message).level(Level::Warning));
    }
}
