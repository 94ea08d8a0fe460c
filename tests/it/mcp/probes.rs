//! A broken tool is tested by asking its server, where the policy says so: no call of an agent is spent on it.

use std::time::Duration;

use serde_json::json;

use super::rig::{Rig, Stands, ended, stands};
use crate::support::mcp::{Does, ScriptedServer, tool};
use crate::support::wait_for;

const SOON: Duration = Duration::from_secs(20);

/// A listener takes connections whatever is behind it: only an answer says that the server is well.
#[tokio::test]
async fn a_probe_that_discovers_asks_the_server_and_closes_the_circuit_when_it_answers() {
    for (era, asked) in [("legacy", "tools/list"), ("modern", "server/discover")] {
        let tools = vec![tool("look", json!({}))];
        let server = match era {
            "legacy" => ScriptedServer::legacy("2025-11-25", tools).await,
            _ => ScriptedServer::modern(tools).await,
        };
        let stand = Stands {
            writes: Vec::new(),
            keys: "timeout: { connect: 1s, first_byte: 2s, total: 3s }\n    retry: { max_retries: 0 }\n    breaker: { consecutive_failures: 1, open_for: 1h, open_max: 1h, probe: discover, probe_every: 50ms }",
            ..stands("s", &server)
        };
        let rig = Rig::ready(&[stand]).await;
        server.script("look", [Does::Status(503, "down")]);
        server.script(asked, [Does::Status(503, "down")]);
        let failed = rig.call("look", "{}").await;
        assert_eq!(ended(&failed.outcome).0, "tool_unavailable", "{era}");
        let refused = rig.call("look", "{}").await;
        assert_eq!(ended(&refused.outcome).0, "circuit_open", "{era}");

        let said = |line: &str| rig.metrics.encode().contains(line);
        let before = server.of(asked).len();
        wait_for("probes", SOON, async || server.of(asked).len() > before + 2).await;
        assert!(said(r#"checkrein_breaker_state{state="closed",tool="look"} 0"#), "{era}");

        server.script("look", []);
        server.script(asked, []);
        let closed = r#"checkrein_breaker_state{state="closed",tool="look"} 1"#;
        wait_for("the circuit to close", SOON, async || said(closed)).await;
        assert_eq!(server.of("tools/call").len(), 1, "{era}: no call was spent");
        assert_eq!(ended(&rig.call("look", "{}").await.outcome).0, "ok", "{era}");
    }
}
