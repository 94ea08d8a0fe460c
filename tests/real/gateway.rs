//! The binary as an operator starts it: a policy file, free ports, ready when it says so, ended with the test.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::http::{self, Answer};
use crate::wait_for;

pub(crate) struct Gateway {
    child: Child,
    folder: TempDir,
    data: String,
    health: String,
}

impl Gateway {
    /// Starts `checkrein run` with this policy and waits until it is ready.
    pub(crate) fn start(policy: &str) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("policy.yaml"), policy).expect("the policy is written");
        let log = File::create(path("log")).expect("a log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_checkrein"))
            .args([
                "run",
                "--listen",
                "127.0.0.1:0",
                "--health",
                "127.0.0.1:0",
                "--store",
                "memory",
                "--policy",
            ])
            .arg(path("policy.yaml"))
            .arg("--ready-file")
            .arg(path("ready"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("one file, two streams"))
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        let ready = wait_for("the gateway is ready", Duration::from_secs(20), || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!(
                    "the gateway ended with {status}: {}",
                    fs::read_to_string(path("log")).unwrap_or_default()
                );
            }
            fs::read_to_string(path("ready"))
                .ok()
                .filter(|text| text.contains("data=") && text.contains("health="))
        });
        let address = |name: &str| {
            let line = ready.lines().find_map(|line| line.strip_prefix(name));
            format!("http://{}", line.expect("an address a line"))
        };
        let (data, health) = (address("data="), address("health="));
        Self { child, folder, data, health }
    }

    /// `http://ADDRESS` of agents.
    pub(crate) fn data(&self) -> &str {
        &self.data
    }

    /// `http://ADDRESS` of probes and scrapes.
    pub(crate) fn health(&self) -> &str {
        &self.health
    }

    /// One call through the tools API.
    pub(crate) fn call(&self, tool: &str, arguments: &Value) -> Answer {
        self.call_with(tool, arguments, &[])
    }

    pub(crate) fn call_with(
        &self,
        tool: &str,
        arguments: &Value,
        headers: &[(&str, &str)],
    ) -> Answer {
        let url = format!("{}/v1/tools/{tool}", self.data);
        http::request("POST", &url, headers, Some(arguments))
            .unwrap_or_else(|error| panic!("{error}: {}", self.log()))
    }

    /// One assistant message through the batch front end of OpenAI's chat form.
    pub(crate) fn batch(&self, message: &Value) -> Value {
        http::post(&format!("{}/v1/batches/openai-chat", self.data), message)
            .expect("an answer")
            .json()
    }

    /// The value of one series, by its whole name with labels.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = http::get(&format!("{}/metrics", self.health)).expect("metrics").text();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {series} in {text}"))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("the gateway could not be ended: {error}");
        }
        if std::thread::panicking() {
            eprintln!("── the gateway's log\n{}", self.log());
        }
    }
}
