//! The whole binary: routes on the listener of all front ends, and on one of an upstream's own.

use super::kit::policy;
use crate::support::process::PROGRAM;
use crate::support::{Process, Reply, ScriptedTool, http};

const ROUTE: &str =
    "\n  read: { description: R., proxy: { upstream: shop, methods: [GET], path: \"/{rest*}\" } }";

#[tokio::test]
async fn a_client_only_changes_its_base_url() {
    let tool = ScriptedTool::start().await;
    let more = ["--proxy-listen", "shop=127.0.0.1:0", "--allowed-host", "gateway"];
    let gateway = Process::start(&policy(&tool.url(), ROUTE), &more).await;
    let ready = std::fs::read_to_string(gateway.folder.path().join("ready")).expect("written");
    let own =
        ready.lines().find_map(|line| line.strip_prefix("proxy.shop=")).expect("a line of its own");
    let own = own.parse().expect("an address");
    tool.script(
        "/moved",
        [Reply::Full {
            apply: false,
            status: 301,
            headers: vec![("location", "/here".into())],
            body: Vec::new(),
        }],
    );
    let (by_path, by_port) =
        (http::get(gateway.data, "/proxy/shop/a").await, http::get(own, "/a").await);
    assert_eq!((by_path.status, by_port.status), (200, 200));
    assert_eq!(by_path.body, by_port.body);
    assert_eq!(
        http::get(gateway.data, "/proxy/shop/moved").await.header("location"),
        Some("/proxy/shop/here")
    );
    assert_eq!(http::get(own, "/moved").await.header("location"), Some("/here"));
    // Nothing else is served there: what looks like another front end is the upstream's path.
    assert_eq!(http::get(own, "/v1/tools").await.status, 200);
    assert_eq!(tool.last().target, "/v1/tools");
}

#[tokio::test]
async fn a_listener_for_an_upstream_that_is_not_there_is_told_and_nothing_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy("http://127.0.0.1:1", ROUTE)).expect("written");
    let run = |listen: &str| {
        let mut command = std::process::Command::new(PROGRAM);
        command.args([
            "run",
            "--listen",
            "127.0.0.1:0",
            "--health",
            "127.0.0.1:0",
            "--store",
            "memory",
        ]);
        command.args(["--audit", "none", "--proxy-listen", listen, "--policy"]).arg(&file);
        let output = command.output().expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, told) = run("stock=127.0.0.1:0");
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("--proxy-listen") && told.contains("`stock`"), "{told}");
    let (code, told) = run("127.0.0.1:0");
    assert_eq!(code, Some(2), "{told}");
    // Anybody could ask as `default` there.
    let (code, told) = run("shop=0.0.0.0:0");
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("CR5003") && told.contains("0.0.0.0:0"), "{told}");
}
