//! Every revision before the gateway with every revision behind it: each side sees its own era and nothing of the other.

use std::time::Duration;

use checkrein::policy::snapshot::{MayAsk, Pass};
use serde_json::{Value, json};

use super::desk::{Agent, Desk};
use super::peer::Got;
use super::rig::{Rig, Stands, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::wait_for;

const S: Duration = Duration::from_secs(1);
const ALL: [&str; 3] = ["2025-06-18", "2025-11-25", "2026-07-28"];
const TOOLS: [&str; 6] = ["look", "fail", "note", "ask", "hold", "list"];

/// One agent, one server.
struct Pair {
    of_server: &'static str,
    server: ScriptedServer,
    _desk: Desk,
    agent: Agent,
}

impl Pair {
    async fn new(of_agent: &str, of_server: &'static str) -> Self {
        let tools = TOOLS.map(|name| tool(name, json!({"n": {}}))).to_vec();
        let server = match of_server {
            "2026-07-28" => ScriptedServer::modern(tools).await,
            _ => ScriptedServer::legacy(of_server, tools).await,
        };
        server.set_capabilities(json!({"tools": {}, "logging": {}}));
        let stand = Stands {
            reads: TOOLS.to_vec(),
            writes: Vec::new(),
            may_ask: MayAsk { elicitation: true, ..MayAsk::default() },
            pass: Pass { logging: true, ..Pass::default() },
            keys: "timeout: { connect: 1s, first_byte: 5s, total: 10s }",
            ..stands("srv", &server)
        };
        let desk = Desk::new(Rig::ready(&[stand]).await);
        let agent = desk.agent_as(of_agent, None, json!({"elicitation": {}})).await;
        Self { of_server, server, _desk: desk, agent }
    }

    /// A result in the words of the server's era.
    fn result(&self, mut members: Value) -> Value {
        if self.of_server == "2026-07-28" {
            members["resultType"] = json!("complete");
        }
        members
    }

    fn is_right(&self, got: &Got) {
        let kind = got.result().get("resultType");
        assert_eq!(kind.is_some(), self.agent.modern, "{got:?}");
    }

    async fn call(&self, name: &str, meta: Value) -> Got {
        let params = json!({"name": name, "arguments": {"n": meta.clone()}, "_meta": meta});
        let got = self.agent.ask("tools/call", &params).await;
        self.is_right(&got);
        got
    }

    async fn lists_and_calls(&self) {
        let listed = self.agent.ask("tools/list", &json!({})).await;
        self.is_right(&listed);
        assert_eq!(listed.result()["tools"].as_array().map(Vec::len), Some(TOOLS.len()));
        assert_eq!(listed.result().get("ttlMs").is_some(), self.agent.modern);
        let content = json!([{"type": "text", "text": "x"}]);
        let given = self.result(json!({"content": content}));
        self.server.script("look", [Does::Result(given)]);
        let got = self.call("look", json!({})).await;
        assert_eq!((&got.result()["content"], got.status), (&content, 200), "{got:?}");
        let failed = self.result(json!({"content": content, "isError": true}));
        self.server.script("fail", [Does::Result(failed)]);
        let got = self.call("fail", json!({})).await;
        assert_eq!((&got.result()["content"], &got.result()["isError"]), (&content, &json!(true)));
        let outcome = &got.result()["_meta"]["io.checkrein/outcome"];
        assert_eq!(outcome["error"], "tool_error", "{outcome}");
    }

    async fn structure_that_is_no_object(&self) {
        let given = json!({"content": [], "structuredContent": [1, 2]});
        self.server.script("list", [Does::Result(self.result(given))]);
        let got = self.call("list", json!({})).await;
        let structured = &got.result()["structuredContent"];
        if self.agent.modern {
            assert_eq!(structured, &json!([1, 2]), "{got:?}");
        } else {
            assert!(structured.is_null(), "{got:?}");
            assert_eq!(got.result()["content"][0]["text"], "[1,2]", "{got:?}");
        }
    }

    async fn progress_and_logs(&self) {
        let log = |level: &str| {
            Piece::Message(json!({"jsonrpc": "2.0", "method": "notifications/message",
                "params": {"level": level, "data": level}}))
        };
        let answer = self.result(json!({"content": []}));
        let pieces = vec![
            Piece::Progress(json!({"progress": 1})),
            log("debug"),
            log("error"),
            Piece::Answer(answer),
        ];
        self.server.script("note", [Does::Stream(pieces)]);
        if !self.agent.modern {
            self.agent.ask("logging/setLevel", &json!({"level": "warning"})).await.result();
        }
        let level = "io.modelcontextprotocol/logLevel";
        let mut meta = json!({"progressToken": "p"});
        if self.agent.modern {
            meta[level] = json!("warning");
        }
        let got = self.call("note", meta).await;
        let told: Vec<(&str, &Value)> = got
            .messages
            .iter()
            .filter_map(|m| Some((m["method"].as_str()?, &m["params"])))
            .collect();
        let [(progress, of), (message, said)] = &told[..] else { panic!("{got:?}") };
        assert_eq!((*progress, &of["progressToken"]), ("notifications/progress", &json!("p")));
        assert_eq!((*message, &said["level"]), ("notifications/message", &json!("error")));
        let call = self.server.of("tools/call").pop().expect("sent");
        let sent = &call.body["params"]["_meta"];
        assert!(sent["progressToken"].is_u64(), "our own: {sent}");
        assert_eq!(sent.get(level).is_some(), self.of_server == "2026-07-28", "{sent}");
    }

    async fn elicitation(&self) {
        let question = json!({"message": "sure?", "requestedSchema": {"type": "object"}});
        let done = || self.result(json!({"content": [{"type": "text", "text": "thanks"}]}));
        if self.of_server == "2026-07-28" {
            let needs = json!({"resultType": "input_required", "requestState": "theirs",
                "inputRequests": {"k": {"method": "elicitation/create", "params": question}}});
            self.server.script("ask", [Does::Result(needs), Does::Result(done())]);
        } else {
            let asks = json!({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": question});
            let pieces = vec![Piece::Message(asks), Piece::Held, Piece::Answer(done())];
            self.server.script("ask", [Does::Stream(pieces)]);
        }
        let yes = json!({"action": "accept", "content": {"yes": 1}});
        let params = json!({"name": "ask", "arguments": {}});
        let told = if self.agent.modern {
            let got = self.agent.ask("tools/call", &params).await;
            assert_eq!(got.result()["resultType"], "input_required", "{got:?}");
            let (key, asked) = got.result()["inputRequests"]
                .as_object()
                .and_then(|asked| asked.iter().next())
                .unwrap_or_else(|| panic!("{got:?}"));
            assert_eq!(asked["params"]["message"], "sure?");
            let mut more = params.clone();
            more["requestState"] = got.result()["requestState"].clone();
            more["inputResponses"] = json!({key: yes});
            let (got, ()) = tokio::join!(self.agent.ask("tools/call", &more), self.goes_on(&yes));
            got.result().clone()
        } else {
            let mut stream = self.agent.open("tools/call", &params).await;
            let asked = stream.next().await.expect("a question");
            assert_eq!(asked["params"]["message"], "sure?", "{asked}");
            let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": yes});
            assert_eq!(self.agent.say(&answer).await, 202);
            self.goes_on(&yes).await;
            stream.next().await.expect("an answer")["result"].clone()
        };
        assert_eq!(told["content"][0]["text"], "thanks", "{told}");
        assert_eq!(told.get("resultType").is_some(), self.agent.modern, "{told}");
    }

    /// The answer is at the server.
    async fn goes_on(&self, yes: &Value) {
        let heard = async || {
            self.server.seen().iter().any(|seen| {
                seen.body["result"] == *yes || seen.body["params"]["inputResponses"]["k"] == *yes
            })
        };
        wait_for("the answer at the server", 5 * S, heard).await;
        self.server.go();
    }

    async fn cancellation(&self) {
        self.server.script("hold", [Does::Stream(vec![Piece::Run, Piece::Comment, Piece::Told])]);
        let before = self.server.hearers();
        let token = json!({"progressToken": "c"});
        let params = json!({"name": "hold", "arguments": {}, "_meta": token});
        let stream = self.agent.open("tools/call", &params).await;
        let id = self.agent.ids.load(std::sync::atomic::Ordering::Relaxed) - 1;
        wait_for("the call", 5 * S, async || self.server.runs("hold") == 1).await;
        if !self.agent.modern {
            let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
            assert_eq!(self.agent.say(&note).await, 202);
        }
        drop(stream);
        if self.of_server == "2026-07-28" {
            wait_for("the end of its stream", 5 * S, async || self.server.hearers() == before)
                .await;
            assert!(self.server.of("notifications/cancelled").is_empty());
        } else {
            let told = async || !self.server.of("notifications/cancelled").is_empty();
            wait_for("the word", 5 * S, told).await;
            let call = self.server.of("tools/call").pop().expect("sent");
            let word = self.server.of("notifications/cancelled").remove(0);
            assert_eq!(word.body["params"]["requestId"], call.body["id"]);
        }
    }

    /// What the server has seen of all this is its own era.
    fn sees_its_own(&self) {
        let modern = self.of_server == "2026-07-28";
        for call in self.server.of("tools/call") {
            assert_eq!(call.header("mcp-protocol-version"), Some(self.of_server));
            assert_eq!(call.session().is_empty(), modern);
            assert!(modern || call.session().starts_with("session-"), "not the agent's");
            assert_eq!(call.header("mcp-method").is_some(), modern);
            let meta = &call.body["params"]["_meta"];
            let version = meta.get("io.modelcontextprotocol/protocolVersion");
            assert_eq!(version.and_then(Value::as_str), modern.then_some(self.of_server));
            let client = &meta["io.modelcontextprotocol/clientInfo"]["name"];
            assert!(!modern || client == "checkrein", "{meta}");
        }
        for hello in self.server.of("initialize") {
            assert_eq!(hello.body["params"]["clientInfo"]["name"], "checkrein");
        }
        let begun = self.server.of("initialize").len();
        assert_eq!(begun == 0, modern, "the server's era is asked for, not the agent's");
    }
}

#[tokio::test]
async fn era_matrix() {
    for of_server in ALL {
        for of_agent in ALL {
            let pair = Pair::new(of_agent, of_server).await;
            pair.lists_and_calls().await;
            pair.structure_that_is_no_object().await;
            pair.progress_and_logs().await;
            pair.elicitation().await;
            pair.cancellation().await;
            pair.sees_its_own();
        }
    }
}
