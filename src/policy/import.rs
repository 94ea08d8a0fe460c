//! What an MCP server says of its tools, written down as a part of a policy for a person to decide on.
//!
//! Pure. Nothing a server says becomes a rule: its words stand in comments, its names in quotes, and every tool is a
//! write until a person calls it a read.

mod text;
mod tool;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use self::text::{cleaned, quoted};
use super::bind::{Offered, bind};
use super::document::SecretRef;
use super::document::mcp::MAX_OWN_NAME;
use super::document::tree;
use super::glob::{glob_matches, is_glob};
use super::pins::pin_of;
use super::snapshot::Snapshot;
use crate::call::{ToolName, UpstreamName};

/// Room that is left for the rest of a policy, bytes.
const REST: usize = 64 * 1024;
/// Characters of a description, the most first: less where the whole would not fit into a policy.
const DESCRIPTIONS: [usize; 3] = [2_000, 200, 0];
/// Definitions that are left out and told of one by one.
const MAX_TOLD: usize = 100;

/// How the server is reached, as the policy will say.
#[derive(Debug, Clone)]
pub struct Reached {
    pub name: UpstreamName,
    pub by: By,
    pub prefix: String,
    /// The file of pins, as it stands in the policy.
    pub pin: Option<String>,
}

#[derive(Debug, Clone)]
pub enum By {
    Url { url: String, addresses: Vec<&'static str>, auth: Option<Auth> },
    Command { argv: Vec<String>, env: Vec<(String, Env)>, cwd: Option<String> },
}

#[derive(Debug, Clone)]
pub enum Auth {
    Bearer(SecretRef),
    Header { name: String, value: SecretRef },
}

#[derive(Debug, Clone)]
pub enum Env {
    Text(String),
    Secret(SecretRef),
}

/// What a person has said before anything is written: patterns over the server's own names.
#[derive(Debug, Clone, Default)]
pub struct Decided {
    pub reads: Vec<String>,
    pub writes: Vec<String>,
    /// Only these; empty = all.
    pub only: Vec<String>,
}

/// What a server offers, as it was heard.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    pub revision: String,
    pub tools: Vec<Offered>,
    /// Definitions that are no tools: name, and why.
    pub left_out: Vec<(String, String)>,
}

/// A part of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// `mcp_servers:` with one server; as it stands it is part of a sound policy.
    pub text: String,
    pub tools: usize,
    /// Places where a person has to decide, each marked `TODO`.
    pub todo: usize,
}

/// Only the way to the server, for asking it.
pub fn way(reached: &Reached) -> String {
    let without = Reached { pin: None, ..reached.clone() };
    format!("{}    tools: {{}}\n", head(&without))
}

/// A whole policy around a part of one: it permits nothing.
pub fn wrapped(part: &str) -> String {
    format!(
        "apiVersion: checkrein/v1\nkind: Policy\nname: imported\n{part}\nagents:\n  default: {{ allow: [] }}\n"
    )
}

/// Writes the stub. The error says why it cannot be part of any policy.
pub fn stub(reached: &Reached, heard: &Heard, decided: &Decided) -> Result<Stub, String> {
    let (named, unnamed) = sorted(heard, decided);
    let exposed = exposed(&reached.prefix, &named);
    for most in DESCRIPTIONS {
        let mut written = Stub { text: intro(reached, heard), tools: named.len(), todo: 0 };
        written.text.push_str(&head(reached));
        written.text.push_str(if named.is_empty() { "    tools: {}\n" } else { "    tools:\n" });
        for (offered, exposed) in named.iter().zip(&exposed) {
            written.todo += usize::from(tool::entry(
                &mut written.text,
                offered,
                exposed.as_deref(),
                decided,
                most,
            ));
        }
        left_out(&mut written.text, heard.left_out.iter().chain(&unnamed));
        if written.text.len() + REST <= tree::MAX_BYTES {
            return Ok(written);
        }
    }
    Err(format!(
        "{} tools do not fit into a policy of {} bytes: name those you need by `--only`",
        named.len(),
        tree::MAX_BYTES
    ))
}

/// Hashes of what is offered, for a file of pins: all of it, so that a later `expose` needs no new review.
pub fn pins(heard: &Heard) -> BTreeMap<String, String> {
    let one = |tool: &Offered| (tool.own_name.to_string(), pin_of(&tool.definition));
    heard.tools.iter().map(one).collect()
}

/// What the rules of `base`, a snapshot with the stub in it, would not make tools of: taken out of `heard`, each with
/// its reason. `true`: there was any.
pub fn judge(base: &Arc<Snapshot>, server: &UpstreamName, heard: &mut Heard) -> bool {
    let catalog = super::bind::Catalog { tools: heard.tools.clone() };
    let bound = bind(base, &[(server.clone(), Arc::new(catalog))].into());
    let Some(rules) = base.mcp_servers.get(server) else { return false };
    let patterns: HashMap<ToolName, &Arc<str>> = rules
        .entries
        .iter()
        .filter_map(|e| Some((e.exposed_name(&rules.prefix, &e.pattern).ok()?, &e.pattern)))
        .collect();
    let why: HashMap<&str, &str> = bound
        .broken_tools
        .iter()
        .filter_map(|broken| Some((patterns.get(&broken.name)?.as_ref(), broken.why.as_str())))
        .collect();
    let (kept, broken): (Vec<_>, Vec<_>) =
        heard.tools.drain(..).partition(|tool| !why.contains_key(&*tool.own_name));
    heard.tools = kept;
    let told = broken.iter().filter_map(|tool| {
        why.get(&*tool.own_name).map(|why| (tool.own_name.to_string(), (*why).to_owned()))
    });
    heard.left_out.extend(told);
    !broken.is_empty()
}

fn fits(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern == name || glob_matches(pattern, name))
}

/// Tools that an entry can name, and the others with the reason; those that are not wanted are neither.
fn sorted<'h>(heard: &'h Heard, decided: &Decided) -> (Vec<&'h Offered>, Vec<(String, String)>) {
    let (mut named, mut unnamed) = (Vec::new(), Vec::new());
    for tool in &heard.tools {
        let name = &*tool.own_name;
        if !decided.only.is_empty() && !fits(&decided.only, name) {
            continue;
        }
        let why = if name.len() > MAX_OWN_NAME {
            "its name is longer than a policy can hold"
        } else if name.contains(|c: char| c.is_control() || c.is_whitespace()) {
            "its name has a space or a control character, which no entry of a policy can hold"
        } else if is_glob(name) {
            "its name has `*` or `?`, which a policy reads as a pattern"
        } else {
            named.push(tool);
            continue;
        };
        unnamed.push((name.to_owned(), why.to_owned()));
    }
    (named, unnamed)
}

/// A `rename` for each tool that needs one: what models know it by has other characters and 64 of them at most.
fn exposed(prefix: &str, tools: &[&Offered]) -> Vec<Option<String>> {
    let whole = |tool: &Offered| format!("{prefix}{}", tool.own_name);
    let mut taken: HashSet<String> =
        tools.iter().map(|tool| whole(tool)).filter(|name| ToolName::new(name).is_ok()).collect();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    tools
        .iter()
        .map(|tool| {
            let name = whole(tool);
            if ToolName::new(&name).is_ok() {
                return None;
            }
            let mut short: String = name.chars().map(plain).take(64).collect();
            let mut count = 1_u32;
            while !taken.insert(short.clone()) {
                count += 1;
                let tail = format!("_{count}");
                short = name.chars().map(plain).take(64 - tail.len()).collect();
                short.push_str(&tail);
            }
            Some(short)
        })
        .collect()
}

fn intro(reached: &Reached, heard: &Heard) -> String {
    let place = match &reached.by {
        By::Url { url, .. } => url.clone(),
        By::Command { argv, .. } => argv.join(" "),
    };
    format!(
        "# What {} offers, in revision {}. Lines with `|` are the server's own words: claims, not facts.\n\
         # Effects are yours to decide: a read is asked again when it fails, a write never is.\n\
         # No agent may call any of it yet: name tools under `agents`.\n",
        cleaned(&place, 200),
        cleaned(&heard.revision, 40)
    )
}

fn head(reached: &Reached) -> String {
    let mut text = format!("mcp_servers:\n  {}:\n", text::key(reached.name.as_str()));
    let mut line = |words: String| {
        text.push_str("    ");
        text.push_str(&words);
        text.push('\n');
    };
    match &reached.by {
        By::Url { url, addresses, auth } => {
            line(format!("url: {}", quoted(url)));
            if !addresses.is_empty() {
                line(format!("addresses: [{}]", addresses.join(", ")));
            }
            match auth {
                Some(Auth::Bearer(value)) => {
                    line(format!("auth: {{ bearer: {} }}", secret(value)));
                }
                Some(Auth::Header { name, value }) => line(format!(
                    "auth: {{ header: {{ name: {}, value: {} }} }}",
                    quoted(name),
                    secret(value)
                )),
                None => {}
            }
        }
        By::Command { argv, env, cwd } => {
            let argv: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
            line(format!("command: [{}]", argv.join(", ")));
            if let Some(cwd) = cwd {
                line(format!("cwd: {}", quoted(cwd)));
            }
            if !env.is_empty() {
                line("env:".to_owned());
            }
            for (name, value) in env {
                let value = match value {
                    Env::Text(text) => quoted(text),
                    Env::Secret(value) => secret(value),
                };
                line(format!("  {}: {value}", text::key(name)));
            }
        }
    }
    if !reached.prefix.is_empty() {
        line(format!("prefix: {}", quoted(&reached.prefix)));
    }
    if let Some(pin) = &reached.pin {
        line(format!("pin: {{ file: {} }}", quoted(pin)));
    }
    text
}

fn secret(reference: &SecretRef) -> String {
    match reference {
        SecretRef::File(path) => format!("{{ file: {} }}", quoted(&path.display().to_string())),
        SecretRef::Env(name) => format!("{{ env: {} }}", quoted(name)),
    }
}

fn left_out<'a>(text: &mut String, all: impl Iterator<Item = &'a (String, String)>) {
    let mut more = 0_usize;
    for (told, (name, why)) in all.enumerate() {
        if told >= MAX_TOLD {
            more += 1;
            continue;
        }
        let line =
            format!("      # left out: {}: {}\n", quoted(&cleaned(name, 128)), cleaned(why, 300));
        text.push_str(&line);
    }
    if more > 0 {
        text.push_str(&format!("      # left out: {more} more\n"));
    }
}

/// A member of a definition's `annotations`, where it is a boolean.
fn hint(definition: &Value, name: &str) -> Option<bool> {
    definition.get("annotations")?.get(name)?.as_bool()
}

#[cfg(test)]
mod tests;
