//! `/mcp-tools`: tools of MCP servers whose definition is not the one that was trusted, the old one beside the new, and
//! the word of a person that the new one is.

use serde_json::{Value, json};

use super::answer::{Problem, response};
use super::ask::Ask;
use super::{Admin, Answered, named};
use crate::engine::{Drift, NotApproved, ServerView};
use crate::people::Person;
use crate::telemetry::record::PersonFacts;

impl Admin {
    /// Every such tool, by server and name.
    pub(super) fn list_mcp_tools(&self) -> Answered {
        let servers = self.engine.mcp_servers();
        let tools: Vec<Value> = servers
            .iter()
            .flat_map(|server| server.drifts.iter().map(|drift| row(server, drift)))
            .collect();
        Ok(response(&json!({ "tools": tools })))
    }

    /// One server's, with the definitions.
    pub(super) fn show_mcp_tools(&self, server: &str) -> Answered {
        let servers = self.engine.mcp_servers();
        let found = servers.iter().find(|one| one.server.as_str() == server);
        let found = found.ok_or_else(|| Problem::not_found("the policy has no such MCP server"))?;
        let tools: Vec<Value> = found.drifts.iter().map(|drift| whole(found, drift)).collect();
        Ok(response(&json!({ "server": server, "tools": tools })))
    }

    pub(super) async fn approve_mcp_tool(
        &self,
        ask: &Ask,
        person: Person,
        server: &str,
    ) -> Answered {
        ask.only(&["tool", "pin", "who", "why"])?;
        let must = |name: &str| {
            let text = ask.text(name)?.filter(|text| !text.trim().is_empty());
            text.ok_or_else(|| Problem::invalid(format!("`/{name}` must be there")))
        };
        let (tool, pin, why) = (must("tool")?, must("pin")?, must("why")?);
        let who = named(person, ask.text("who")?)?.to_string();
        self.engine.approve_mcp_tool(server, &tool, &pin).await.map_err(refused)?;
        let full = format!("{server}/{tool}");
        self.record(&PersonFacts {
            kind: "admin",
            action: "approve",
            who: &who,
            why: &why,
            evidence: Some(&pin),
            tool: Some(&full),
            ..PersonFacts::default()
        });
        Ok(response(&json!({ "server": server, "tool": tool, "pin": pin })))
    }
}

fn refused(not: NotApproved) -> Problem {
    match not {
        NotApproved::NoDrift => Problem::not_found(not.to_string()),
        NotApproved::Changed | NotApproved::ByFile | NotApproved::NotKept => {
            Problem::conflict(not.to_string())
        }
    }
}

fn row(server: &ServerView, drift: &Drift) -> Value {
    json!({
        "server": server.server.as_str(),
        "tool": drift.tool,
        "state": if server.quarantines { "quarantined" } else { "warned" },
        "approve_by": if server.by_file { "file" } else { "person" },
        "was": drift.was.as_ref().map(|was| was.pin.clone()),
        "pin": drift.pin,
        "why": drift.why.as_ref(),
    })
}

fn whole(server: &ServerView, drift: &Drift) -> Value {
    let mut whole = row(server, drift);
    if let Value::Object(members) = &mut whole {
        let was = drift.was.as_ref().and_then(|was| was.definition.as_deref());
        members.insert("old".to_owned(), was.cloned().unwrap_or(Value::Null));
        members.insert("new".to_owned(), drift.definition.as_ref().clone());
    }
    whole
}
