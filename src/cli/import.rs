//! `checkrein import mcp URL | -- COMMAND…`: asks a server what it offers and writes that down as part of a policy, for a
//! person to decide on. Nothing of what the server offers is ever called.

mod look;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};

use clap::Subcommand;

use super::{Exit, complain, say};
use crate::call::UpstreamName;
use crate::policy::diagnostic::{self, Level};
use crate::policy::document::SecretRef;
use crate::policy::import::{self, Auth, By, Decided, Env, Heard, Reached, Stub};
use crate::policy::{self, LoadOptions, pins};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// What an MCP server offers, as an entry of `mcp_servers`; every tool is a write until a person says otherwise
    Mcp(Mcp),
}

#[derive(Debug, clap::Args)]
struct Mcp {
    /// Where the server speaks Streamable HTTP
    #[arg(value_name = "URL", required_unless_present = "command", conflicts_with = "command")]
    url: Option<String>,
    /// Or the server itself: a program that speaks MCP on its standard streams, and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Name of the server in the policy [default: of its host or program]
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<UpstreamName>,
    /// What agents see before each of its tools' names
    #[arg(long, value_name = "PREFIX", default_value = "")]
    prefix: String,
    /// Write the hashes of all definitions to this file, as reviewed
    #[arg(long, value_name = "FILE")]
    pins: Option<PathBuf>,
    /// Call these reads: a name, or a pattern of names; may be repeated
    #[arg(long, value_name = "TOOL")]
    read: Vec<String>,
    /// Call these writes, and be done with it; may be repeated
    #[arg(long, value_name = "TOOL")]
    write: Vec<String>,
    /// Only these tools; may be repeated
    #[arg(long, value_name = "TOOL")]
    only: Vec<String>,
    /// The variable that holds the bearer token for the server
    #[arg(long, value_name = "VARIABLE", group = "credential", conflicts_with = "command")]
    bearer_env: Option<String>,
    /// The file that holds the bearer token for the server
    #[arg(long, value_name = "FILE", group = "credential", conflicts_with = "command")]
    bearer_file: Option<PathBuf>,
    /// A header with a credential, and the variable that holds it: X-Api-Key=API_KEY
    #[arg(long, value_name = "NAME=VARIABLE", group = "credential", conflicts_with = "command", value_parser = pair)]
    header: Option<(String, String)>,
    /// A variable of the program: NAME=TEXT, or NAME to take it from here, which the policy then does too
    #[arg(long, value_name = "NAME[=TEXT]", conflicts_with = "url")]
    env: Vec<String>,
    /// The directory of the program
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    cwd: Option<String>,
    /// Fail while anything is left for a person to decide
    #[arg(long)]
    strict: bool,
}

fn name(text: &str) -> Result<UpstreamName, String> {
    UpstreamName::new(text).map_err(|error| error.to_string())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, variable) = text.split_once('=').ok_or("it has no `=`: NAME=VARIABLE")?;
    Ok((name.to_owned(), variable.to_owned()))
}

pub(super) fn run(args: &Args) -> Exit {
    let From::Mcp(args) = &args.from;
    match args.import() {
        Ok((stub, _)) if stub.todo > 0 && args.strict => {
            say(&stub.text);
            complain(&format!("{} places are left to decide on: see TODO", stub.todo));
            Exit::Findings
        }
        Ok((stub, left_out)) => {
            say(&stub.text);
            let todo = stub.todo;
            complain(&format!(
                "{} tools, {todo} to decide on (TODO), {left_out} left out",
                stub.tools
            ));
            Exit::Ok
        }
        Err((exit, why)) => {
            complain(&format!("error: {why}"));
            exit
        }
    }
}

type Refused = (Exit, String);

impl Mcp {
    /// The stub, and how many definitions are not in it.
    fn import(&self) -> Result<(Stub, usize), Refused> {
        let mut reached = self.reached()?;
        let way = examine(&import::way(&reached)).map_err(|why| (Exit::Usage, why))?;
        let mut heard = look::at(&way, &reached.name)
            .map_err(|why| (Exit::Usage, format!("{why}\n{}", mend(&reached.by))))?;
        let decided = Decided {
            reads: self.read.clone(),
            writes: self.write.clone(),
            only: self.only.clone(),
        };
        let stub = sound(&reached, &mut heard, &decided).map_err(|why| (Exit::Findings, why))?;
        let left_out = heard.left_out.len();
        let Some(file) = &self.pins else { return Ok((stub, left_out)) };
        keep(file, &import::pins(&heard))
            .map_err(|error| (Exit::Usage, format!("{}: {error}", file.display())))?;
        reached.pin = Some(beside(file));
        let stub = import::stub(&reached, &heard, &decided).map_err(|why| (Exit::Findings, why))?;
        Ok((stub, left_out))
    }

    fn reached(&self) -> Result<Reached, Refused> {
        let by = match &self.url {
            Some(url) => By::Url {
                url: url.clone(),
                addresses: look::addresses(url).map_err(|why| (Exit::Usage, why))?,
                auth: self.auth(),
            },
            None => By::Command {
                argv: self.command.clone(),
                env: self.env.iter().map(|text| variable(text)).collect(),
                cwd: self.cwd.clone(),
            },
        };
        let name = self.name.clone().or_else(|| named_after(&by));
        let name = name
            .ok_or_else(|| (Exit::Usage, "say by `--name` what to call the server".to_owned()))?;
        Ok(Reached { name, by, prefix: self.prefix.clone(), pin: None })
    }

    fn auth(&self) -> Option<Auth> {
        let header = self.header.as_ref().map(|(name, variable)| Auth::Header {
            name: name.clone(),
            value: SecretRef::Env(variable.clone()),
        });
        let bearer = self.bearer_env.clone().map(SecretRef::Env);
        let bearer = bearer.or_else(|| self.bearer_file.clone().map(SecretRef::File));
        bearer.map(Auth::Bearer).or(header)
    }
}

fn variable(text: &str) -> (String, Env) {
    match text.split_once('=') {
        Some((name, text)) => (name.to_owned(), Env::Text(text.to_owned())),
        None => (text.to_owned(), Env::Secret(SecretRef::Env(text.to_owned()))),
    }
}

/// Where it was looked for, and what to look at next.
fn mend(by: &By) -> String {
    match by {
        By::Url { url, .. } => format!(
            "asked at {url}: is the server running there, and is this the address of its MCP endpoint?"
        ),
        By::Command { argv, .. } => {
            format!("started as `{}`: does it speak MCP on its standard streams?", argv.join(" "))
        }
    }
}

/// The host of a URL, or the name of a program, with the characters that a name has.
fn named_after(by: &By) -> Option<UpstreamName> {
    let text = match by {
        By::Url { url, .. } => url.parse::<http::Uri>().ok()?.host()?.to_owned(),
        By::Command { argv, .. } => Path::new(argv.first()?).file_stem()?.to_str()?.to_owned(),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let name: String = text.trim_matches(['[', ']']).chars().map(plain).take(64).collect();
    UpstreamName::new(&name).ok()
}

/// A stub that the check has nothing against, without the definitions that no tool can be made of.
fn sound(reached: &Reached, heard: &mut Heard, decided: &Decided) -> Result<Stub, String> {
    let stub = import::stub(reached, heard, decided)?;
    let base = examine(&stub.text)?;
    if !import::judge(&base, &reached.name, heard) {
        return Ok(stub);
    }
    let stub = import::stub(reached, heard, decided)?;
    examine(&stub.text).map(|_| stub)
}

fn examine(part: &str) -> Result<std::sync::Arc<policy::snapshot::Snapshot>, String> {
    let text = import::wrapped(part);
    let options = LoadOptions { offline: false };
    let examined = policy::examine_text(text.as_bytes(), "imported", Path::new("."), options);
    examined.snapshot.ok_or_else(|| {
        let errors: Vec<_> =
            examined.problems.into_iter().filter(|one| one.level == Level::Error).collect();
        format!("no policy can say this\n{}", diagnostic::pretty(&errors, &examined.sources))
    })
}

/// The file as a policy beside it names it.
fn beside(file: &Path) -> String {
    let below = file.components().all(|part| matches!(part, Component::Normal(_)));
    let named = if below { Some(file.as_os_str()) } else { file.file_name() };
    named.unwrap_or_default().to_string_lossy().into_owned()
}

/// Whoever reads it meanwhile finds the old file or the new one.
fn keep(file: &Path, all: &BTreeMap<String, String>) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = folder.unwrap_or(Path::new(".")).join(name);
    let mut written = std::fs::File::create(&new)?;
    written.write_all(pins::render(all).as_bytes())?;
    written.sync_all()?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_after_its_host_or_its_program() {
        let url = |url: &str| By::Url { url: url.into(), addresses: Vec::new(), auth: None };
        let program = |word: &str| By::Command {
            argv: vec![word.into(), "--x".into()],
            env: Vec::new(),
            cwd: None,
        };
        for (by, name) in [
            (url("https://mcp.example.com:8443/mcp"), Some("mcp_example_com")),
            (url("http://[::1]:9/mcp"), Some("__1")),
            (url("not a url"), None),
            (program("/usr/bin/notes-server"), Some("notes-server")),
            (program("server.py"), Some("server")),
            (program("/"), None),
        ] {
            assert_eq!(named_after(&by).as_ref().map(UpstreamName::as_str), name, "{by:?}");
        }
    }

    #[test]
    fn a_file_of_pins_is_named_as_the_policy_beside_it_will() {
        for (file, named) in [
            ("p.json", "p.json"),
            ("a/p.json", "a/p.json"),
            ("/a/p.json", "p.json"),
            ("../p.json", "p.json"),
        ] {
            assert_eq!(beside(Path::new(file)), named);
        }
    }
}
