//! A gateway with an admin listener on a free loopback port, two people with tokens, and their requests.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::http::{self, Answer};
use crate::support::{Fixture, Form, Gateway, Reply, ScriptedTool};
use checkrein::config::{Keeps, Listen};

pub(super) const ADA: &str = "token-of-ada-0123456789";
pub(super) const GRACE: &str = "token-of-grace-0123456789";
/// A person whose name is an agent's.
pub(super) const DEFAULT: &str = "token-of-default-0123456789";
pub(super) const TOKENS: &str = "# people\nada token-of-ada-0123456789\ngrace token-of-grace-0123456789\n\
                          default token-of-default-0123456789\n";

pub(super) fn any() -> Listen {
    Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))
}

pub(super) struct House {
    pub(super) tool: ScriptedTool,
    pub(super) gateway: Gateway,
    pub(super) admin: SocketAddr,
}

impl House {
    pub(super) async fn start(fixture: &Fixture) -> Self {
        Self::over(fixture, Keeps::Memory).await
    }

    /// Over a store of its own.
    pub(super) async fn over(fixture: &Fixture, store: Keeps) -> Self {
        let tool = ScriptedTool::start().await;
        let gateway = Gateway::start_with(&fixture.text(&tool.url()), |folder, config| {
            let file = folder.join("people");
            std::fs::write(&file, TOKENS).expect("written");
            config.store = store;
            config.state = folder.join("state");
            config.admin = Some(any());
            config.admin_token_file = Some(file);
        })
        .await;
        let Some(Listen::Tcp(admin)) = gateway.admin else { panic!("told to listen on TCP") };
        Self { tool, gateway, admin }
    }

    /// A write whose reply is lost, as agent `default` in run `r`, call `c1`. Its operation.
    pub(super) async fn lose(&self, reference: &str) -> String {
        self.tool.script("/create", [Reply::ApplyThenHang, Reply::Ok]);
        let answer = self.create("c1", reference).await;
        assert_eq!(answer["error"], "outcome_unknown", "{answer}");
        self.tool.script("/create", [Reply::Ok]);
        answer["operation"].as_str().expect("an operation").to_owned()
    }

    pub(super) async fn create(&self, call: &str, reference: &str) -> Value {
        let arguments = format!(r#"{{"order_ref":"{reference}","sku":"A","qty":1}}"#);
        self.gateway
            .agent(Form::OpenaiChat, "r")
            .call("create_order", call, &arguments)
            .await
            .json()
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, Some(ADA), &[], b"").await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, Some(ADA), &[], body.to_string().as_bytes()).await
    }

    pub(super) async fn ask(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        more: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let mut headers = more.to_vec();
        if let Some(bearer) = &bearer {
            headers.push(("authorization", bearer));
        }
        let host = self.admin.to_string();
        let stream = tokio::net::TcpStream::connect(self.admin).await.expect("it listens");
        exchange(stream, &host, method, path, &headers, body).await
    }

    pub(super) async fn etag(&self, operation: &str) -> String {
        let answer = self.get(&format!("/admin/v1/reviews/{operation}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("etag").expect("an ETag").to_owned()
    }

    /// Settles as ada, on the present version.
    pub(super) async fn resolve(&self, operation: &str, said: &Value) -> Answer {
        let etag = self.etag(operation).await;
        self.resolve_as(ADA, operation, &[("if-match", &etag)], said).await
    }

    pub(super) async fn resolve_as(
        &self,
        token: &str,
        operation: &str,
        headers: &[(&str, &str)],
        said: &Value,
    ) -> Answer {
        let path = format!("/admin/v1/reviews/{operation}/resolve");
        self.ask("POST", &path, Some(token), headers, said.to_string().as_bytes()).await
    }
}

pub(super) fn said(resolution: &str) -> Value {
    json!({ "resolution": resolution, "evidence": "the shop's own list of orders" })
}

/// One request with a `Host` of its own.
pub(super) async fn exchange(
    mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin,
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let bytes = http::bytes_of(method, path, headers, body);
    let text = String::from_utf8(bytes).expect("text").replacen(
        "host: gateway",
        &format!("host: {host}"),
        1,
    );
    stream.write_all(text.as_bytes()).await.expect("taken");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    http::parse(&answer)
}
