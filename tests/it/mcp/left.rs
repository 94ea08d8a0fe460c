//! Unknown writes that an earlier process left, of a server that is not there when the gateway starts.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::support::mcp::{Does, ScriptedServer, tool};
use crate::support::{Process, http, wait_for};

const S: Duration = Duration::from_secs(1);

/// A write that `look` can tell of.
fn policy(server: &ScriptedServer) -> String {
    let times = "timeout: { connect: 500ms, first_byte: 500ms, total: 600ms }";
    let query = "status_query: { tool: look, arguments: { n: { from: /n } }, executed_when: { pointer: /value/done, equals: true }, settle: 100ms }";
    format!(
        "apiVersion: checkrein/v1\nkind: Policy\nmcp_servers:\n  srv:\n    url: \"http://127.0.0.1:{}/mcp\"\n    \
         addresses: [loopback]\n    profile: internal_rpc\n    tools:\n      look: {{ effect: read, {times} }}\n      \
         make: {{ {times}, write: {{ drain: 100ms, fingerprint: [/n], {query} }} }}\nagents:\n  \
         default: {{ allow: [look, make] }}\n",
        server.port()
    )
}

async fn start(server: &ScriptedServer, state: &Path) -> Process {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy(server)).expect("written");
    let state = state.display().to_string();
    Process::start_at(folder, &file, &["--state", &state], &[]).await
}

#[tokio::test]
async fn writes_left_of_a_server_that_comes_late_are_asked_about_once_it_is_heard_of() {
    let mut make = tool("make", json!({"n": {"type": "integer"}}));
    make["inputSchema"]["required"] = json!(["n"]);
    let server = ScriptedServer::modern(vec![tool("look", json!({"n": {}})), make]).await;
    server.script("make", [Does::RunThenClose]);
    server.script("look", [Does::Hang]);
    let state = tempfile::tempdir().expect("a folder");
    let process = start(&server, state.path()).await;
    let listed = async || http::get(process.data, "/v1/tools").await.text().contains("make");
    wait_for("the tool", 10 * S, listed).await;
    let made = http::request(process.data, "POST", "/v1/tools/make", &[], br#"{"n":1}"#).await;
    assert_eq!(made.json()["error"], "outcome_unknown", "{}", made.text());
    process.signal("KILL");
    drop(process);
    server.stop();
    let structure = json!({"done": true});
    let text = json!([{"type": "text", "text": structure.to_string()}]);
    let told = json!({"resultType": "complete", "content": text, "structuredContent": structure});
    server.script("look", [Does::Result(told)]);
    let process = start(&server, state.path()).await;
    let open = async || process.metrics().await.sum("checkrein_reviews_open", &[]);
    assert_eq!(open().await, 1.0);
    // It was looked for and is not there: what is asked about it now would be asked of nobody.
    let lists = async || process.metrics().await.sum("checkrein_mcp_server_up", &[]);
    assert_eq!(lists().await, 0.0);
    server.restart().await;
    wait_for("the review to be settled", 20 * S, async || open().await == 0.0).await;
    assert_eq!(server.runs("make"), 1, "asked, not made again");
}
