//! A call that waits for a person, over MCP: the agent hears the question, and its word decides nothing.

use std::net::SocketAddr;

use checkrein::call::ApprovalId;
use checkrein::config::Listen;
use checkrein::frontends::{Doors, FrontEnds};
use checkrein::identity::Peer;
use checkrein::ledger::approvals::Decision;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::peer::{Stream, as_pairs, build, got, initialize, modern};
use super::rig::{Rig, parsed, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::{Fixture, Gateway, ScriptedTool, http};

const META: &str = "io.modelcontextprotocol/clientCapabilities";
const ADA: &str = "token-of-ada-0123456789";
const CONSOLE: &str = "https://console.example/checkrein";

struct House {
    tool: ScriptedTool,
    gateway: Gateway,
    admin: SocketAddr,
}

impl House {
    async fn start(console: Option<&str>) -> Self {
        let tool = ScriptedTool::start().await;
        let fixture = Fixture::new()
            .with("wall_clock: 10s", "wall_clock: 30m")
            .tool("pay", "approval: { when: always }");
        let gateway = Gateway::start_with(&fixture.text(&tool.url()), |folder, config| {
            let file = folder.join("people");
            std::fs::write(&file, format!("ada {ADA}\n")).expect("written");
            config.admin = Some(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))));
            config.admin_token_file = Some(file);
            config.allowed_hosts.push("gateway".into());
            config.console_url = console.map(str::to_owned);
        })
        .await;
        let Some(Listen::Tcp(admin)) = gateway.admin else { panic!("told to listen on TCP") };
        Self { tool, gateway, admin }
    }

    async fn decide(&self, id: &str, said: &Value) {
        let bearer = format!("Bearer {ADA}");
        let fields = [("authorization", &*bearer), ("if-match", "*")];
        let path = format!("/admin/v1/approvals/{id}/decide");
        let bytes = http::bytes_of("POST", &path, &fields, said.to_string().as_bytes());
        let text = String::from_utf8(bytes).expect("text");
        let text = text.replacen("host: gateway", &format!("host: {}", self.admin), 1);
        let mut stream = TcpStream::connect(self.admin).await.expect("it listens");
        stream.write_all(text.as_bytes()).await.expect("taken");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("an answer");
        let answer = http::parse(&answer);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// `pay`, as an agent of 2026-07-28 asks for it with these capabilities and what it brings to go on with.
    async fn pay(&self, capabilities: &Value, brought: Option<(&str, &Value)>) -> Value {
        let meta = json!({META: capabilities, "io.checkrein/run": "r"});
        let mut params = json!({"name": "pay", "arguments": {"account_id": 7}, "_meta": meta});
        if let Some((state, responses)) = brought {
            params["requestState"] = state.into();
            params["inputResponses"] = responses.clone();
        }
        let (mut fields, body) = modern("1", "tools/call", &params);
        fields.push(("accept".into(), "application/json, text/event-stream".into()));
        let got =
            http::request(self.gateway.data, "POST", "/mcp", &as_pairs(&fields), body.as_bytes())
                .await;
        let said = got.text();
        let message = said.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&said);
        let message = parsed(message);
        if got.status == 200 { message["result"].clone() } else { message["error"].clone() }
    }

    fn paid(&self) -> usize {
        self.tool.hits("/pay")
    }
}

fn shows() -> Value {
    json!({"elicitation": {"url": {}}})
}

fn says(action: &str) -> Value {
    json!({"approval": {"action": action}})
}

/// What the agent was asked, and the state to go on with.
#[track_caller]
fn asked(result: &Value) -> (String, String) {
    assert_eq!(result["resultType"], "input_required", "{result}");
    let request = &result["inputRequests"]["approval"];
    assert_eq!(
        (&request["method"], &request["params"]["mode"]),
        (&json!("elicitation/create"), &json!("url"))
    );
    let outcome = &result["_meta"]["io.checkrein/outcome"];
    assert_eq!(
        (&outcome["error"], &outcome["executed"]),
        (&json!("approval_required"), &json!("no")),
        "{result}"
    );
    let id = outcome["approval"].as_str().expect("a name").to_owned();
    assert_eq!(request["params"]["url"], json!(format!("{CONSOLE}/approvals/{id}")));
    let message = request["params"]["message"].as_str().expect("a message");
    assert!(message.contains("pay") && message.contains(&id), "{message}");
    (id, result["requestState"].as_str().expect("a state").to_owned())
}

#[track_caller]
fn waits(result: &Value) -> String {
    assert_eq!(
        (&result["resultType"], &result["isError"]),
        (&json!("complete"), &json!(true)),
        "{result}"
    );
    let told = &result["structuredContent"];
    assert_eq!(
        (&told["error"], &told["retry"]),
        (&json!("approval_required"), &json!("person")),
        "{result}"
    );
    told["approval"].as_str().expect("a name").to_owned()
}

#[tokio::test]
async fn approval_is_not_the_agents_to_give() {
    let house = House::start(Some(CONSOLE)).await;
    let (id, mut state) = asked(&house.pay(&shows(), None).await);
    // It says yes at once, again and again: it was shown, no more.
    for _ in 0..2 {
        let again = house.pay(&shows(), Some((&state, &says("accept")))).await;
        let (same, next) = asked(&again);
        assert_eq!(same, id);
        state = next;
    }
    assert_eq!(
        waits(&house.pay(&shows(), Some((&state, &says("accept")))).await),
        id,
        "three times"
    );
    assert_eq!(house.paid(), 0);
    house.decide(&id, &json!({"decision": "approve"})).await;
    let done = house.pay(&shows(), Some((&state, &says("accept")))).await;
    assert_eq!(done["isError"], false, "{done}");
    assert_eq!(house.paid(), 1);
    // The same state once more brings nothing: the yes is used up.
    let (other, _) = asked(&house.pay(&shows(), None).await);
    assert_ne!(other, id);
    let again = house.pay(&shows(), Some((&state, &says("accept")))).await;
    assert_eq!(waits(&again), other);
    assert_eq!(house.paid(), 1);
}

#[tokio::test]
async fn a_yes_lets_the_call_through_with_or_without_our_state() {
    for with_state in [true, false] {
        let house = House::start(Some(CONSOLE)).await;
        let (id, state) = asked(&house.pay(&shows(), None).await);
        house.decide(&id, &json!({"decision": "approve"})).await;
        let says = says("accept");
        let done = house.pay(&shows(), with_state.then_some((&*state, &says))).await;
        assert_eq!(done["isError"], false, "{done}");
        assert_eq!(house.paid(), 1);
    }
}

#[tokio::test]
async fn who_would_not_look_or_cannot_be_shown_a_page_is_told_plainly() {
    let house = House::start(Some(CONSOLE)).await;
    let (id, state) = asked(&house.pay(&shows(), None).await);
    for action in ["decline", "cancel", "approve"] {
        assert_eq!(
            waits(&house.pay(&shows(), Some((&state, &says(action)))).await),
            id,
            "{action}"
        );
    }
    for capabilities in
        [json!({}), json!({"elicitation": {}}), json!({"elicitation": {"form": {}}})]
    {
        assert_eq!(waits(&house.pay(&capabilities, None).await), id, "{capabilities}");
    }
    house.decide(&id, &json!({"decision": "reject", "comment": "not today"})).await;
    let no = house.pay(&shows(), Some((&state, &says("accept")))).await;
    assert_eq!(no["structuredContent"]["error"], "approval_rejected", "{no}");
    assert!(
        no["structuredContent"]["message"]
            .as_str()
            .is_some_and(|words| words.contains("not today"))
    );
    // Without a console nobody is shown anything.
    let house = House::start(None).await;
    waits(&house.pay(&shows(), None).await);
    assert_eq!(house.paid(), 0);
}

#[tokio::test]
async fn a_state_of_an_approval_is_no_continuation_and_goes_with_its_own_call_alone() {
    let house = House::start(Some(CONSOLE)).await;
    let (_, state) = asked(&house.pay(&shows(), None).await);
    // Its own answers make no call that goes on: it would need no yes.
    let went = house.pay(&shows(), Some((&state, &json!({"x": {"action": "accept"}})))).await;
    waits(&went);
    // Its first character: of the last one a part may say nothing.
    let first = if state.starts_with('A') { 'B' } else { 'A' };
    let forged = format!("{first}{}", &state[1..]);
    let refused = house.pay(&shows(), Some((&forged, &says("accept")))).await;
    assert_eq!(refused["code"], -32602, "{refused}");
    assert_eq!(house.paid(), 0);
}

/// A tool of an MCP server, and an agent of a session: asked on its open call, once.
#[tokio::test]
async fn an_agent_of_a_session_is_shown_the_page_once_on_its_open_call() {
    let server = ScriptedServer::modern(vec![tool("make", json!({"n": {}}))]).await;
    let done = json!({"resultType": "complete", "content": []});
    server.script("make", [Does::Stream(vec![Piece::Run, Piece::Answer(done)])]);
    let mut stand = stands("srv", &server);
    (stand.reads, stand.keys) = (Vec::new(), "approval: { when: always }");
    let rig = Rig::ready(&[stand]).await;
    let doors = Doors { console: Some(CONSOLE.to_owned()), ..Doors::default() };
    let front_ends = FrontEnds::new(rig.engine.clone(), rig.metrics.clone(), doors);
    let send = async |fields: &[(&str, &str)], body: &str| {
        front_ends.clone().answer(Peer::Loopback, build("POST", fields, body)).await
    };
    let hello = got(send(&[], &initialize("2025-11-25", &shows())).await).await;
    let session = hello.header("mcp-session-id").to_owned();
    let fields = [("mcp-session-id", &*session)];
    let call = |id: u32| {
        let params = json!({"name": "make", "arguments": {"n": 1}});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
    };
    let mut stream = Stream::new(send(&fields, &call(3)).await.into_body());
    let question = stream.next().await.expect("a question");
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["mode"], "url");
    let id = question["params"]["url"].as_str().and_then(|url| url.rsplit('/').next());
    let id = ApprovalId::parse(id.expect("a URL")).expect("an approval");
    let accept = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}});
    assert_eq!(got(send(&fields, &accept.to_string()).await).await.status, 202);
    let told = stream.next().await.expect("an answer");
    assert_eq!(told["id"], 3, "asked once only: {told}");
    assert_eq!(told["result"]["structuredContent"]["error"], "approval_required", "{told}");
    assert_eq!(server.runs("make"), 0);
    let yes = rig.ledger.approvals().decide(&id, Decision::Approve, "ada", "").await;
    assert_eq!(yes, Ok(()));
    let mut stream = Stream::new(send(&fields, &call(4)).await.into_body());
    let done = stream.next().await.expect("an answer");
    let outcome = &done["result"]["_meta"]["io.checkrein/outcome"];
    assert_eq!((&done["id"], &outcome["ok"]), (&json!(4), &json!(true)), "{done}");
    assert_eq!(server.runs("make"), 1);
}
