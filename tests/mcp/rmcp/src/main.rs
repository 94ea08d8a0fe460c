//! One session of the official Rust client: lists the tools, makes the calls, prints one JSON document.
//!
//! usage: checkrein-rmcp-driver '{"url": URL | "command": [ARGV], "calls": [[TOOL, ARGUMENTS], …],
//!                                "mode": "modern" for a session of revision 2026-07-28}'
//! → {"protocol": REVISION, "tools": {NAME: DESCRIPTION}, "results": [{"text", "is_error", "raised"}]}

use std::error::Error;

use rmcp::model::{CallToolRequestParams, ProtocolVersion};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, RoleClient, RunningService,
};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use serde_json::{Value, json};
use tokio::process::Command;

type Client = RunningService<RoleClient, ()>;
type Failed = Box<dyn Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let wish: Value = serde_json::from_str(&std::env::args().nth(1).ok_or("no wish")?)?;
    let client = opened(&wish).await?;
    let protocol = client.peer_info().map(|info| info.protocol_version.to_string());
    let tools = client.list_all_tools().await?;
    let tools = tools.iter().map(|tool| (tool.name.to_string(), json!(tool.description)));
    let tools: serde_json::Map<String, Value> = tools.collect();
    let mut results = Vec::new();
    for call in wish["calls"].as_array().ok_or("no calls")? {
        results.push(called(&client, call).await);
    }
    println!("{}", json!({"protocol": protocol, "tools": tools, "results": results}));
    client.cancel().await?;
    Ok(())
}

async fn opened(wish: &Value) -> Result<Client, Failed> {
    let mode = match wish["mode"].as_str() {
        Some("modern") => ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        },
        _ => ClientLifecycleMode::Initialize,
    };
    let client: Result<Client, ClientInitializeError> = match wish["url"].as_str() {
        Some(url) => {
            ().serve_with_lifecycle(StreamableHttpClientTransport::from_uri(url), mode).await
        }
        None => {
            let mut words = wish["command"]
                .as_array()
                .ok_or("neither url nor command")?
                .iter()
                .filter_map(Value::as_str);
            let mut command = Command::new(words.next().ok_or("an empty command")?);
            command.args(words);
            ().serve_with_lifecycle(TokioChildProcess::new(command)?, mode).await
        }
    };
    Ok(client?)
}

async fn called(client: &Client, call: &Value) -> Value {
    let name = call[0].as_str().unwrap_or_default().to_owned();
    let mut params = CallToolRequestParams::new(name);
    params.arguments = call[1].as_object().cloned();
    match client.call_tool(params).await {
        Ok(result) => {
            let blocks = result.content.iter().filter_map(|block| block.as_text());
            let text: Vec<&str> = blocks.map(|block| block.text.as_str()).collect();
            json!({"text": text.join("\n"), "is_error": result.is_error.unwrap_or(false), "raised": null})
        }
        Err(error) => json!({"text": "", "is_error": null, "raised": error.to_string()}),
    }
}
