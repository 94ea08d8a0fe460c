//! An agent reaches none of it: not on its own listener, not without a person's token, not by a web page.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::kit::{ADA, House, TOKENS, any, exchange};
use crate::support::fixture::TOKEN_A;
use crate::support::{Fixture, Form, Gateway, ScriptedTool, http};
use checkrein::config::{Config, Listen};

/// Every route there is: method, path, a body it would take.
fn routes(operation: &str, approval: &str) -> Vec<(&'static str, String, &'static str)> {
    let why = r#"{"why":"x"}"#;
    let word = r#"{"resolution":"did_not_happen","evidence":"x"}"#;
    vec![
        ("GET", "/admin/v1/version".into(), ""),
        ("GET", "/admin/v1/policy".into(), ""),
        ("POST", "/admin/v1/policy/reload".into(), why),
        ("GET", "/admin/v1/reviews".into(), ""),
        ("GET", format!("/admin/v1/reviews/{operation}"), ""),
        ("POST", format!("/admin/v1/reviews/{operation}/resolve"), word),
        ("GET", "/admin/v1/approvals".into(), ""),
        ("GET", format!("/admin/v1/approvals/{approval}"), ""),
        ("POST", format!("/admin/v1/approvals/{approval}/decide"), r#"{"decision":"approve"}"#),
        ("GET", "/admin/v1/runs".into(), ""),
        ("GET", "/admin/v1/runs/r".into(), ""),
        ("POST", "/admin/v1/runs/r/interrupt".into(), why),
        ("POST", "/admin/v1/runs/r/resume".into(), why),
        ("GET", "/admin/v1/breakers".into(), ""),
        ("POST", "/admin/v1/breakers/lookup_order/isolate".into(), why),
        ("POST", "/admin/v1/breakers/lookup_order/reset".into(), why),
        ("GET", "/admin/v1/mcp-tools".into(), ""),
        ("GET", "/admin/v1/mcp-tools/srv".into(), ""),
        ("POST", "/admin/v1/mcp-tools/srv/approve".into(), r#"{"tool":"t","pin":"p","why":"x"}"#),
        ("POST", "/admin/v1/drain".into(), why),
    ]
}

/// A house where a write was lost and a call waits for a person: their names.
async fn busy() -> (House, String, String) {
    let fixture = Fixture::new().tool("pay", "approval: { when: always, expires: 10m }");
    let house = House::start(&fixture).await;
    let operation = house.lose("R1").await;
    let agent = house.gateway.agent(Form::OpenaiChat, "r");
    let waits = agent.call("pay", "p1", r#"{"account_id":1}"#).await.json();
    let approval = waits["approval"].as_str().expect("it waits").to_owned();
    (house, operation, approval)
}

async fn nothing_changed(house: &House, operation: &str, approval: &str) {
    let waits = house.get(&format!("/admin/v1/approvals/{approval}")).await.json();
    assert_eq!(waits["state"], "pending");
    assert!(house.etag(operation).await.ends_with("-open\""), "the review is open");
    let run = house.get("/admin/v1/runs/r").await.json();
    assert_eq!(run["interrupted"], json!(null));
    let listed = house.get("/admin/v1/breakers").await.text();
    assert!(!listed.contains("isolated\":{"), "{listed}");
    assert_eq!(house.get("/admin/v1/policy").await.json()["draining"], false);
}

#[tokio::test]
async fn admin_is_out_of_reach() {
    let (house, operation, approval) = busy().await;
    let bearer_a = format!("Bearer {TOKEN_A}");
    let bearer_ada = format!("Bearer {ADA}");
    for (method, path, body) in routes(&operation, &approval) {
        // On the listeners an agent reaches, whatever it shows.
        for address in [house.gateway.data, house.gateway.health] {
            for token in [None, Some(&bearer_a), Some(&bearer_ada)] {
                let mut headers = vec![("if-match", "*")];
                headers.extend(token.map(|token| ("authorization", token.as_str())));
                let answer = http::request(address, method, &path, &headers, body.as_bytes()).await;
                // A person is no agent: there is nothing else to tell them on the agents' own listener.
                let person = token == Some(&bearer_ada) && address == house.gateway.data;
                let status = if person { 401 } else { 404 };
                assert_eq!(
                    answer.status,
                    status,
                    "{method} {path} at {address}: {}",
                    answer.text()
                );
            }
        }
        // On the admin listener, without a person's token.
        let any = [("if-match", "*")];
        for (token, status) in
            [(None, 401), (Some("wrong-token-0123456789"), 401), (Some(TOKEN_A), 403)]
        {
            let answer = house.ask(method, &path, token, &any, body.as_bytes()).await;
            assert_eq!(answer.status, status, "{method} {path} with {token:?}: {}", answer.text());
        }
        // By a web page, or by a name of somebody else's.
        let page = [("if-match", "*"), ("origin", "http://localhost:3000")];
        let answer = house.ask(method, &path, Some(ADA), &page, body.as_bytes()).await;
        assert_eq!(answer.status, 403, "{method} {path}");
        assert!(answer.header("access-control-allow-origin").is_none());
        for host in ["evil.example", "gateway", "127.0.0.1:1"] {
            let stream = tokio::net::TcpStream::connect(house.admin).await.expect("it listens");
            let headers = [("if-match", "*"), ("authorization", bearer_ada.as_str())];
            let answer = exchange(stream, host, method, &path, &headers, body.as_bytes()).await;
            assert_eq!(answer.status, 421, "{method} {path} at {host}");
        }
    }
    nothing_changed(&house, &operation, &approval).await;
    assert!(
        house
            .gateway
            .metrics()
            .await
            .value("checkrein_unauthenticated_total", &[("listener", "admin")])
            >= 28.0
    );
}

#[tokio::test]
async fn a_get_changes_nothing_and_a_change_is_json() {
    let (house, operation, approval) = busy().await;
    for (method, path, body) in routes(&operation, &approval) {
        let other = if method == "GET" { "POST" } else { "GET" };
        let answer = house.ask(other, &path, Some(ADA), &[("if-match", "*")], b"{}").await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some(method)), "{other} {path}");
        if method == "POST" {
            let form = [("if-match", "*"), ("content-type", "text/plain")];
            let answer = house.ask(method, &path, Some(ADA), &form, body.as_bytes()).await;
            assert_eq!(answer.status, 415, "{path}");
        }
    }
    for path in [
        "/",
        "/admin/v1",
        "/admin/v1/",
        "/admin/v2/reviews",
        "/admin/v1/reviews/x/y/z",
        "/v1/tools",
    ] {
        assert_eq!(house.get(path).await.status, 404, "{path}");
    }
    nothing_changed(&house, &operation, &approval).await;
}

#[tokio::test]
async fn without_the_setting_there_is_no_admin_listener() {
    let tool = ScriptedTool::start().await;
    let gateway = Fixture::new().start(&tool).await;
    assert_eq!(gateway.admin, None);
}

#[tokio::test]
async fn the_unix_socket_is_for_the_gateways_user_and_takes_a_token_where_there_is_one() {
    for tokens in [None, Some(TOKENS)] {
        let tool = ScriptedTool::start().await;
        let gateway = Gateway::start_with(&Fixture::new().text(&tool.url()), |folder, config| {
            config.admin = Some(Listen::Unix(folder.join("admin.sock")));
            config.admin_token_file = tokens.map(|text| {
                let file = folder.join("people");
                std::fs::write(&file, text).expect("written");
                file
            });
        })
        .await;
        let Some(Listen::Unix(path)) = &gateway.admin else { panic!("told to listen on a socket") };
        let mode = std::fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let ask = async |host: &str, token: Option<&str>| {
            let stream = tokio::net::UnixStream::connect(path).await.expect("it listens");
            let bearer = token.map(|token| format!("Bearer {token}")).unwrap_or_default();
            let mut headers = Vec::new();
            headers.extend(token.map(|_| ("authorization", bearer.as_str())));
            exchange(stream, host, "GET", "/admin/v1/version", &headers, b"").await.status
        };
        assert_eq!(ask("evil.example", Some(ADA)).await, 421);
        assert_eq!(ask("localhost", None).await, if tokens.is_some() { 401 } else { 200 });
        assert_eq!(ask("localhost", Some(ADA)).await, if tokens.is_some() { 200 } else { 401 });
        assert_eq!(
            ask("localhost", Some(TOKEN_A)).await,
            403,
            "an agent's credential opens nothing"
        );
        // The agents' own work goes on.
        let agent = gateway.agent(Form::OpenaiChat, "r");
        assert_eq!(agent.call("list_regions", "c1", "{}").await.status, 200);
    }
}

#[tokio::test]
async fn a_listener_that_anybody_could_come_in_by_is_not_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy.yaml");
    let text =
        crate::support::process::filled(folder.path(), &Fixture::new().text("http://127.0.0.1:9"));
    std::fs::write(&policy, text).expect("written");
    let file = folder.path().join("people");
    std::fs::write(&file, TOKENS).expect("written");
    let short = folder.path().join("short");
    std::fs::write(&short, "ada short").expect("written");
    let open: Listen = "0.0.0.0:0".parse().expect("an address");
    for (admin, tokens, says) in [
        (any(), None, "--admin-token-file"),
        (open, Some(file.clone()), "other machines"),
        (any(), Some(short), "line 1"),
        (any(), Some(folder.path().join("none")), "none"),
    ] {
        let mut config = Config::loopback(policy.clone());
        config.admin = Some(admin);
        config.admin_token_file = tokens;
        let told = checkrein::app::start(config).await.expect_err("it must not start").to_string();
        assert!(told.contains(says) && !told.contains("0123456789"), "{told}");
    }
}
