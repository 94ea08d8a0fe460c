//! The real front end over a rig, and agents of every revision before it, by hand.

use std::sync::atomic::{AtomicU64, Ordering};

use checkrein::frontends::{Doors, FrontEnds};
use checkrein::identity::Peer;
use serde_json::{Value, json};

use super::peer::{Got, Stream, as_pairs, build, got, initialize, modern};
use super::rig::Rig;

/// A revision that has sessions, and one that has none.
pub(crate) const ERAS: [&str; 2] = ["2025-11-25", "2026-07-28"];

pub(crate) struct Desk {
    pub(crate) rig: Rig,
    pub(crate) front_ends: FrontEnds,
}

/// One agent; ids rise.
#[derive(Debug)]
pub(crate) struct Agent {
    front_ends: FrontEnds,
    pub(crate) modern: bool,
    capabilities: Value,
    fields: Vec<(String, String)>,
    pub(crate) ids: AtomicU64,
}

impl Desk {
    pub(crate) fn new(rig: Rig) -> Self {
        let front_ends = FrontEnds::new(rig.engine.clone(), rig.metrics.clone(), Doors::default());
        Self { rig, front_ends }
    }

    pub(crate) async fn agent(&self, revision: &str) -> Agent {
        self.agent_as(revision, None, json!({})).await
    }

    /// `name`: of an agent of the policy with a token, else its `default` one.
    pub(crate) async fn agent_as(
        &self,
        revision: &str,
        name: Option<&str>,
        capabilities: Value,
    ) -> Agent {
        let token = name.map(|name| ("authorization".to_owned(), format!("Bearer token-{name}")));
        let mut agent = Agent {
            front_ends: self.front_ends.clone(),
            modern: revision == "2026-07-28",
            capabilities,
            fields: token.into_iter().collect(),
            ids: AtomicU64::new(1),
        };
        if !agent.modern {
            let begun = agent.raw("POST", &[], &initialize(revision, &agent.capabilities)).await;
            assert_eq!(begun.result()["protocolVersion"], revision, "{begun:?}");
            let session = begun.header("mcp-session-id").to_owned();
            agent.fields.push(("mcp-session-id".to_owned(), session));
        }
        agent
    }
}

impl Agent {
    pub(crate) async fn raw(&self, method: &str, more: &[(&str, &str)], body: &str) -> Got {
        got(self.response(method, more, body).await).await
    }

    async fn response(
        &self,
        method: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> http::Response<checkrein::frontends::Body> {
        let mut fields = as_pairs(&self.fields);
        fields.extend_from_slice(more);
        self.front_ends.clone().answer(Peer::Loopback, build(method, &fields, body)).await
    }

    fn written(&self, id: u64, method: &str, params: &Value) -> (Vec<(String, String)>, String) {
        if !self.modern {
            let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
            return (Vec::new(), body.to_string());
        }
        let mut params = params.clone();
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        modern(&id.to_string(), method, &params)
    }

    /// The stream, or the one answer read as one, of a request.
    pub(crate) async fn open(&self, method: &str, params: &Value) -> Stream {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (fields, body) = self.written(id, method, params);
        let response = self.response("POST", &as_pairs(&fields), &body).await;
        assert_eq!(response.status(), 200, "{method}");
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{method}");
        Stream::new(response.into_body())
    }

    pub(crate) async fn ask(&self, method: &str, params: &Value) -> Got {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (fields, body) = self.written(id, method, params);
        self.raw("POST", &as_pairs(&fields), &body).await
    }

    pub(crate) async fn call(&self, tool: &str, arguments: &Value) -> Got {
        self.ask("tools/call", &json!({"name": tool, "arguments": arguments})).await
    }

    /// A notification or an answer.
    pub(crate) async fn say(&self, message: &Value) -> u16 {
        self.raw("POST", &[], &message.to_string()).await.status
    }

    /// The stream of a session, or one that listens to these.
    pub(crate) async fn listen(&self, filter: &Value) -> Stream {
        if self.modern {
            return self.open("subscriptions/listen", &json!({ "notifications": filter })).await;
        }
        let response = self.response("GET", &[("accept", "text/event-stream")], "").await;
        assert_eq!(response.status(), 200);
        Stream::new(response.into_body())
    }
}
