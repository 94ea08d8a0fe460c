//! A gateway on free ports, in this process, from a policy's text.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::agent::{Agent, Form};
use super::fixture::{TOKEN_A, TOKEN_B};
use super::http;
use checkrein::app::{self, Running};
use checkrein::config::{Audit, Config, Listen};

#[derive(Debug)]
pub struct Gateway {
    pub data: SocketAddr,
    pub health: SocketAddr,
    pub admin: Option<Listen>,
    pub policy: PathBuf,
    pub records: PathBuf,
    /// Ends with the test's runtime.
    _running: Running,
    folder: tempfile::TempDir,
}

impl Gateway {
    /// Starts with this policy; `TOKEN_A` and `TOKEN_B` in it become files with the agents' tokens.
    pub async fn start(policy: &str) -> Self {
        Self::start_with(policy, |_, _| {}).await
    }

    /// Starts with other settings too; the folder is the gateway's own.
    pub async fn start_with(
        policy: &str,
        change: impl FnOnce(&std::path::Path, &mut Config),
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("policy.yaml");
        std::fs::write(folder.path().join("token_a"), TOKEN_A).expect("written");
        std::fs::write(folder.path().join("token_b"), TOKEN_B).expect("written");
        std::fs::write(&file, Self::filled(folder.path(), policy)).expect("written");
        let records = folder.path().join("records.jsonl");
        let mut config = Config::loopback(file.clone());
        config.audit = Audit::File(records.clone());
        config.policy_poll = Duration::from_millis(50);
        change(folder.path(), &mut config);
        let running =
            app::start(config).await.unwrap_or_else(|error| panic!("the gateway starts: {error}"));
        Self {
            data: match &running.data {
                Listen::Tcp(address) => *address,
                Listen::Unix(_) => unreachable!("told to listen on TCP"),
            },
            health: running.health,
            admin: running.admin.clone(),
            policy: file,
            records,
            _running: running,
            folder,
        }
    }

    fn filled(folder: &std::path::Path, policy: &str) -> String {
        policy
            .replace("TOKEN_A", &folder.join("token_a").display().to_string())
            .replace("TOKEN_B", &folder.join("token_b").display().to_string())
    }

    /// Writes another policy in place; it is in force when `policy_reloads_total` has moved.
    pub async fn rewrite(&self, policy: &str) {
        std::fs::write(&self.policy, Self::filled(self.folder.path(), policy)).expect("written");
    }

    pub fn agent(&self, form: Form, run: &str) -> Agent {
        Agent::new(self.data, form, run)
    }

    pub async fn metrics(&self) -> Metrics {
        let answer = http::get(self.health, "/metrics").await;
        assert_eq!(answer.status, 200);
        Metrics(answer.text())
    }

    /// The records written so far, one JSON value each.
    pub fn records(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&self.records).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// One scrape.
#[derive(Debug, Clone)]
pub struct Metrics(pub String);

impl Metrics {
    /// The value of the one series that has all these labels.
    #[track_caller]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found: Vec<&str> = self.series(name).filter(|line| has(line, labels)).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
        found[0].rsplit(' ').next().and_then(|v| v.parse().ok()).expect("a number")
    }
    /// Sum over every series with these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.series(name)
            .filter(|line| has(line, labels))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
    pub fn count(&self) -> usize {
        self.0.lines().filter(|line| !line.starts_with('#')).count()
    }
    pub fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.lines().filter(move |line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
        })
    }
}

fn has(line: &str, labels: &[(&str, &str)]) -> bool {
    labels.iter().all(|(name, value)| line.contains(&format!("{name}=\"{value}\"")))
}
