//! Standard streams: the core over channels, and the whole binary as an agent starts it.

use std::io::{BufRead, Write};
use std::process::{Command, Stdio};

use checkrein::call::AgentId;
use checkrein::config::{Config, Listen};
use checkrein::frontends::{Read, Writer};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::peer::{initialize, parse, with_meta};
use super::rig::{policy, stands};
use super::script::house;
use crate::front_ends::kit::House;
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::process::{PROGRAM, filled};
use crate::support::{Fixture, Gateway, Process, ScriptedTool, wait_for};

/// One agent over channels.
struct Wire {
    lines: Option<mpsc::Sender<Read>>,
    written: mpsc::Receiver<bytes::Bytes>,
    served: tokio::task::JoinHandle<()>,
}

impl Wire {
    fn open(house: &House) -> Self {
        let (lines, taken) = mpsc::channel(16);
        let (writer, written) = Writer::new(CancellationToken::new());
        let front_ends = house.front_ends.clone();
        let agent = AgentId::new("default").expect("name");
        let served = tokio::spawn(async move { front_ends.stdio(agent, taken, writer).await });
        Self { lines: Some(lines), written, served }
    }

    async fn say(&self, line: &str) {
        let lines = self.lines.as_ref().expect("open");
        lines.send(Read::Line(line.as_bytes().to_vec())).await.expect("taken");
    }

    async fn ask(&self, id: u64, method: &str, params: &Value) {
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.say(&line.to_string()).await;
    }

    async fn next(&mut self) -> Value {
        parse(&self.written.recv().await.expect("a line"))
    }
}

fn call(order: &str) -> Value {
    json!({"name": "lookup_order", "arguments": {"order_id": order}})
}

#[tokio::test(start_paused = true)]
async fn both_eras_interleave_and_a_slow_call_holds_nobody_up() {
    let (house, held) = house();
    let mut wire = Wire::open(&house);
    wire.ask(1, "tools/list", &json!({})).await;
    let refused = wire.next().await;
    assert_eq!(refused["error"]["data"]["supported"][0], "2026-07-28", "neither era: {refused}");
    wire.say(&initialize("2025-11-25", &json!({}))).await;
    assert_eq!(wire.next().await["result"]["protocolVersion"], "2025-11-25");
    wire.ask(2, "tools/call", &call("held")).await;
    held.begun.notified().await;
    wire.ask(2, "ping", &json!({})).await;
    assert_eq!(wire.next().await["error"]["code"], -32600, "the id is in flight");
    wire.ask(2, "tools/call", &with_meta(call("A17"))).await;
    let modern = wire.next().await;
    assert_eq!(modern["result"]["resultType"], "complete", "another era's 2: {modern}");
    held.go_on.notify_one();
    let slow = wire.next().await;
    assert_eq!((&slow["id"], &slow["result"]["isError"]), (&json!(2), &json!(false)));
    assert!(slow["result"].get("resultType").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_taken_back_gets_no_line_and_the_end_of_input_waits_for_the_rest() {
    let (house, held) = house();
    let mut wire = Wire::open(&house);
    for (id, params) in [(1, call("held")), (2, call("held"))] {
        wire.ask(id, "tools/call", &with_meta(params)).await;
        held.begun.notified().await;
    }
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    wire.say(&cancelled.to_string()).await;
    held.dropped.notified().await;
    wire.lines = None;
    tokio::task::yield_now().await;
    assert!(!wire.served.is_finished(), "a call is under way");
    held.go_on.notify_one();
    assert_eq!(wire.next().await["id"], 2);
    wire.served.await.expect("ended");
    assert!(wire.written.recv().await.is_none(), "nothing of the first");
}

#[tokio::test(start_paused = true)]
async fn changes_are_told_on_the_one_stream() {
    let house = House::new();
    let mut wire = Wire::open(&house);
    wire.say(&initialize("2025-06-18", &json!({}))).await;
    wire.next().await;
    let listen = json!({"notifications": {"toolsListChanged": true}});
    wire.ask(9, "subscriptions/listen", &with_meta(listen)).await;
    assert_eq!(wire.next().await["method"], "notifications/subscriptions/acknowledged");
    let all = "[lookup_order, list_regions, search, create_order, send_notice]";
    assert!(house.reload(all, "[lookup_order]"));
    let mut tags = Vec::new();
    for _ in 0..2 {
        let told = wire.next().await;
        assert_eq!(told["method"], "notifications/tools/list_changed");
        tags.push(told.pointer("/params/_meta/io.modelcontextprotocol~1subscriptionId").cloned());
    }
    tags.sort_by_key(Option::is_some);
    assert_eq!(tags, [None, Some(json!(9))]);
    wire.lines = None;
    wire.served.await.expect("what only listens holds nobody up");
}

/// Runs the program on these lines to its end: exit code, messages, stderr. Every line of stdout must be a message.
async fn spoken(words: Vec<String>, input: Vec<String>) -> (i32, Vec<Value>, String) {
    spoken_with(words, input, None).await
}

/// `crash`: what happens at a point of a call.
async fn spoken_with(
    words: Vec<String>,
    input: Vec<String>,
    crash: Option<&'static str>,
) -> (i32, Vec<Value>, String) {
    let talk = move || {
        let mut child = Command::new(PROGRAM)
            .args(&words)
            .envs(crash.map(|plan| ("CHECKREIN_CRASH_AT", plan)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut stdin = child.stdin.take().expect("piped");
        // A program that refuses to start takes no input.
        drop(stdin.write_all((input.join("\n") + "\n").as_bytes()));
        drop(stdin);
        let output = child.wait_with_output().expect("ended");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let messages: Vec<Value> = text.lines().map(|line| parse(line.as_bytes())).collect();
        assert!(messages.iter().all(|message| message["jsonrpc"] == "2.0"), "{text}");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap_or(-1), messages, err)
    };
    tokio::task::spawn_blocking(talk).await.expect("talked")
}

fn conversation() -> Vec<String> {
    let request = |id: u64, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    vec![
        initialize("2025-11-25", &json!({})),
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned(),
        request(1, "tools/list", json!({})),
        request(2, "tools/call", call("A17")),
        request(3, "tools/call", json!({"name": "no_such"})),
        request(4, "server/discover", with_meta(json!({}))),
        request(5, "tools/call", with_meta(call("A18"))),
        "banner".to_owned(),
        "[".repeat(5000),
    ]
}

fn judge(messages: &[Value]) {
    let of = |id: Value| {
        let found: Vec<&Value> = messages.iter().filter(|message| message["id"] == id).collect();
        assert_eq!(found.len(), 1, "{id}: {messages:?}");
        found[0]["result"].clone()
    };
    assert_eq!(of(json!(0))["protocolVersion"], "2025-11-25");
    assert!(of(json!(1))["tools"].as_array().is_some_and(|tools| tools.len() >= 6));
    assert_eq!(of(json!(2))["isError"], false);
    assert_eq!(of(json!(3))["structuredContent"]["error"], "unknown_tool");
    assert_eq!(of(json!(4))["supportedVersions"][0], "2026-07-28");
    assert_eq!(of(json!(5))["resultType"], "complete");
    let codes: Vec<i64> = messages
        .iter()
        .filter(|message| message["id"].is_null())
        .filter_map(|message| message["error"]["code"].as_i64())
        .collect();
    assert_eq!(codes, [-32700, -32600]);
}

#[tokio::test]
async fn stdout_is_only_jsonrpc() {
    bb_m20().await;
}

#[tokio::test]
async fn bb_m20_every_line_of_stdout_is_a_message_whatever_goes_wrong() {
    bb_m20().await;
}

async fn bb_m20() {
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let text = filled(folder.path(), &Fixture::new().text(&tool.url()));
    std::fs::write(&file, text).expect("written");
    let words = |more: &[&str]| {
        let mut words: Vec<String> =
            ["mcp", "--log-level", "trace", "--store", "memory"].map(str::to_owned).to_vec();
        words.extend(["--policy".to_owned(), file.display().to_string()]);
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    };
    let (code, messages, err) = spoken(words(&["--audit", "stderr"]), conversation()).await;
    assert_eq!(code, 0, "{err}");
    judge(&messages);
    assert!(err.contains("ready on standard streams"), "logs go to stderr");
    // A fault of the gateway in the midst of a call: that call hears of it, and nobody else.
    let order = json!({"order_ref": "R1", "sku": "A", "qty": 1});
    let write = json!({"name": "create_order", "arguments": order});
    let ask = |id: u64, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
    };
    let mut lines = conversation();
    lines.truncate(2);
    lines.extend([ask(1, write.clone()), ask(2, call("A17")), ask(3, with_meta(write))]);
    let panics = Some("panic journal: asked");
    let (code, messages, err) = spoken_with(words(&[]), lines, panics).await;
    assert_eq!((code, messages.len()), (0, 4), "{err}");
    assert!(err.contains("panicked at"), "{err}");
    let of = |id: u64| {
        let found = messages.iter().find(|message| message["id"] == id);
        found.unwrap_or_else(|| panic!("{messages:?}"))["result"].clone()
    };
    for id in [1, 3] {
        assert_eq!(of(id)["isError"], true, "{messages:?}");
    }
    assert_eq!(of(2)["isError"], false, "{messages:?}");
    let (code, messages, err) = spoken(words(&["--agent", "nobody"]), conversation()).await;
    assert_eq!((code, messages.len()), (1, 0), "{err}");
    assert!(err.contains("no agent `nobody`"), "{err}");
    std::fs::write(&file, "apiVersion: checkrein/v9\n").expect("written");
    let (code, messages, err) = spoken(words(&[]), conversation()).await;
    assert_eq!((code, messages.len()), (1, 0), "{err}");
    assert!(err.contains("CR1001"), "{err}");
}

/// An agent that talks to the program line by line.
struct Talk {
    child: std::process::Child,
    stdin: Option<std::process::ChildStdin>,
    said: mpsc::Receiver<Value>,
}

impl Talk {
    fn open(words: &[&str]) -> Self {
        let mut child = Command::new(PROGRAM)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("piped");
        let (says, said) = mpsc::channel(64);
        std::thread::spawn(move || {
            for line in std::io::BufReader::new(stdout).lines() {
                let message = parse(line.expect("UTF-8").as_bytes());
                if says.blocking_send(message).is_err() {
                    return;
                }
            }
        });
        Self { child, stdin, said }
    }

    async fn ask(&mut self, line: &str) -> Value {
        let stdin = self.stdin.as_mut().expect("open");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("taken");
        let said = tokio::time::timeout(std::time::Duration::from_secs(30), self.said.recv());
        said.await.expect("in time").expect("a line")
    }
}

#[tokio::test]
async fn the_bridge_meets_a_restarted_gateway_again() {
    let tool = ScriptedTool::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    let text = filled(folder.path(), &Fixture::new().text(&tool.url()));
    std::fs::write(&file, text).expect("written");
    let socket = folder.path().join("data.sock");
    let config = Config { listen: Listen::Unix(socket.clone()), ..Config::loopback(&file) };
    let gateway = checkrein::app::start(config.clone()).await.expect("started");
    let place = format!("unix:{}", socket.display());
    let mut talk = Talk::open(&["mcp", "--gateway", &place]);
    let begun = talk.ask(&initialize("2025-11-25", &json!({}))).await;
    assert_eq!(begun["result"]["serverInfo"]["name"], "checkrein");
    let request = |id: u64, order: &str| {
        let params = call(order);
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
    };
    let first = talk.ask(&request(1, "A17")).await;
    assert_eq!(first["result"]["isError"], false, "{first}");
    assert!(gateway.shutdown().await, "a stream that listens holds no drain up");
    let nobody = talk.ask(&request(2, "A18")).await;
    assert_eq!(nobody["error"]["code"], -32603, "nobody is there: {nobody}");
    let gateway = checkrein::app::start(config).await.expect("started again");
    let again = talk.ask(&request(3, "A19")).await;
    assert_eq!((&again["id"], &again["result"]["isError"]), (&json!(3), &json!(false)), "{again}");
    talk.stdin = None;
    let mut child = talk.child;
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.expect("waited");
    assert!(ended.expect("ended").success());
    gateway.shutdown().await;
}

#[tokio::test]
async fn the_bridge_says_what_the_gateway_says() {
    let tool = ScriptedTool::start().await;
    let policy = Fixture::new().text(&tool.url());
    let gateway = Process::start(&policy, &[]).await;
    let words = |place: String| vec!["mcp".to_owned(), "--gateway".to_owned(), place];
    let (code, messages, err) =
        spoken(words(format!("http://{}/mcp", gateway.data)), conversation()).await;
    assert_eq!(code, 0, "{err}");
    judge(&messages);
    let (code, messages, _) = spoken(words("127.0.0.1:1".to_owned()), conversation()).await;
    assert_eq!(code, 0);
    assert_eq!(messages.len(), 8, "each request is told that nobody answers: {messages:?}");
}

#[tokio::test]
async fn the_bridge_comes_back_for_the_answer_of_a_call_whose_connection_was_closed() {
    let server = ScriptedServer::legacy("2025-11-25", vec![tool("look", json!({}))]).await;
    server.script("look", [Does::Stream(vec![Piece::Run, Piece::Prime("e1", 20)])]);
    // The id of the call is its session's second.
    let answer = "id: e2\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"content\":[]}}\n\n";
    server.set_get(vec![Piece::Held, Piece::Raw(answer)]);
    let mut stand = stands("srv", &server);
    stand.writes = Vec::new();
    let gateway = Gateway::start(&policy(&[stand]).replace("DIR/b", "TOKEN_B")).await;
    let place = format!("http://{}/mcp", gateway.data);
    let mut talk = Talk::open(&["mcp", "--gateway", &place]);
    talk.ask(&initialize("2025-11-25", &json!({"elicitation": {}}))).await;
    let params = json!({"name": "look"});
    let asked = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let asked = asked.to_string();
    let going = async {
        wait_for("the poll", std::time::Duration::from_secs(20), async || {
            server.seen().iter().any(|seen| seen.header("last-event-id") == Some("e1"))
        })
        .await;
        server.go();
    };
    let (answered, ()) = tokio::join!(talk.ask(&asked), going);
    assert_eq!((&answered["id"], &answered["result"]["content"]), (&json!(7), &json!([])));
    assert_eq!((server.runs("look"), server.of("tools/call").len()), (1, 1));
    talk.stdin = None;
    let mut child = talk.child;
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.expect("waited");
    assert!(ended.expect("ended").success());
}
