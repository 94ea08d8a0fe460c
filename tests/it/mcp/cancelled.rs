//! A call that its agent takes back: the one server that has it hears so under the id it knows, and nothing is answered.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::desk::Desk;
use super::rig::{Rig, Stands, stands};
use crate::support::mcp::{Does, Piece, ScriptedServer, tool};
use crate::support::wait_for;

const S: Duration = Duration::from_secs(1);

/// Holds its answer back for ever.
fn held() -> Does {
    Does::Stream(vec![Piece::Run, Piece::Held])
}

#[tokio::test]
async fn bb_w26_a_call_taken_back_is_taken_back_from_its_server_alone_and_by_the_id_it_knows() {
    for (what, of_agent) in [
        ("look", "2025-06-18"),
        ("look", "2025-11-25"),
        ("make", "2025-06-18"),
        ("make", "2025-11-25"),
    ] {
        let tools = vec![tool("look", json!({})), tool("make", json!({}))];
        let one = ScriptedServer::legacy("2025-11-25", tools).await;
        let two = ScriptedServer::legacy("2025-11-25", vec![tool("see", json!({}))]).await;
        one.script("look", [held()]);
        one.script("make", [held()]);
        two.script(
            "see",
            [Does::Stream(vec![Piece::Run, Piece::Held, Piece::Answer(json!({"content": []}))])],
        );
        let keys = "timeout: { connect: 1s, first_byte: 1s, total: 1500ms }";
        let first = Stands { keys, ..stands("one", &one) };
        let long = "timeout: { connect: 1s, first_byte: 20s, total: 30s }";
        let second =
            Stands { reads: vec!["see"], writes: Vec::new(), keys: long, ..stands("two", &two) };
        let desk = Desk::new(Rig::ready(&[first, second]).await);
        let agent = desk.agent(of_agent).await;
        // Ids of the gateway's own are not the agent's.
        agent.ids.store(101, std::sync::atomic::Ordering::Relaxed);
        let (got, other, told) = tokio::join!(
            async { agent.call(what, &json!({})).await },
            async { agent.call("see", &json!({})).await },
            async {
                wait_for("both calls", 5 * S, async || one.runs(what) == 1 && two.runs("see") == 1)
                    .await;
                let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                    "params": {"requestId": 101, "reason": "enough"}});
                let began = Instant::now();
                assert_eq!(agent.say(&note).await, 202);
                wait_for("the word", 5 * S, async || !one.of("notifications/cancelled").is_empty())
                    .await;
                let took = began.elapsed();
                // Nothing of the other call is touched.
                two.go();
                took
            }
        );
        assert!(told < S, "{told:?}");
        assert_eq!((got.status, got.bytes, got.messages.len()), (202, 0, 0), "no answer: {got:?}");
        assert!(other.result()["isError"].is_null(), "{other:?}");
        let call = one.of("tools/call").remove(0).body["id"].clone();
        let word = one.of("notifications/cancelled").remove(0);
        assert_eq!(word.body["params"]["requestId"], call, "the id it knows");
        assert_ne!(call, json!(101));
        assert!(two.of("notifications/cancelled").is_empty());
        if what == "make" {
            let unknown = async || desk.rig.reviews() == 1;
            wait_for("the unknown write on record", 10 * S, unknown).await;
            let again = agent.call("make", &json!({})).await;
            assert_eq!(again.refusal()["error"], "review_required");
        } else {
            assert_eq!(desk.rig.reviews(), 0);
        }
        assert_eq!(one.runs(what), 1);
    }
}
