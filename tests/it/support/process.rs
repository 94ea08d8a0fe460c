//! The whole binary as a process: started on free ports, signalled and ended by its own pid.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::agent::{Agent, Form};
use super::fixture::{TOKEN_A, TOKEN_B};
use super::gateway::Metrics;
use super::{http, wait_for};

const SOON: Duration = Duration::from_secs(30);

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_checkrein");

#[derive(Debug)]
pub struct Process {
    child: Child,
    pub data: SocketAddr,
    pub health: SocketAddr,
    pub folder: tempfile::TempDir,
}

impl Process {
    /// Runs the gateway with this policy, in `policy.yaml` of a folder of its own.
    pub async fn start(policy: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("policy.yaml");
        std::fs::write(&file, filled(folder.path(), policy)).expect("written");
        Self::start_at(folder, &file, more, &[]).await
    }

    /// Runs it on a policy file that already lies somewhere in `folder`; `wrap` is a command in front of it.
    pub async fn start_at(
        folder: tempfile::TempDir,
        policy: &Path,
        more: &[&str],
        wrap: &[&str],
    ) -> Self {
        let ready = folder.path().join("ready");
        let mut words: Vec<String> = wrap.iter().map(|w| (*w).to_owned()).collect();
        words.extend([
            PROGRAM.to_owned(),
            "run".into(),
            "--policy".into(),
            policy.display().to_string(),
        ]);
        let fixed = [
            "--listen",
            "127.0.0.1:0",
            "--health",
            "127.0.0.1:0",
            "--audit",
            "none",
            "--ready-file",
        ];
        words.extend(fixed.map(str::to_owned));
        words.push(ready.display().to_string());
        if !more.contains(&"--state") {
            words.extend(["--store".into(), "memory".into()]);
        }
        words.extend(more.iter().map(|w| (*w).to_owned()));
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let address = |name: &str| -> Option<SocketAddr> {
            let text = std::fs::read_to_string(&ready).ok()?;
            text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok())
        };
        wait_for("the ready file", SOON, async || address("health=").is_some()).await;
        let (data, health) = (
            address("data=").expect("a data address"),
            address("health=").expect("a health address"),
        );
        Self { child, data, health, folder }
    }

    pub fn policy(&self) -> PathBuf {
        self.folder.path().join("policy.yaml")
    }

    /// Replaces the policy as an editor does: a new file, renamed over the old one.
    pub fn swap(&self, policy: &str) {
        let next = self.folder.path().join("next.yaml");
        std::fs::write(&next, filled(self.folder.path(), policy)).expect("written");
        std::fs::rename(&next, self.policy()).expect("renamed");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    pub async fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        wait_for("the end of the process", SOON, async || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        })
        .await;
        status.expect("just seen")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn agent(&self, form: Form, run: &str) -> Agent {
        Agent::new(self.data, form, run)
    }

    pub async fn metrics(&self) -> Metrics {
        Metrics(http::get(self.health, "/metrics").await.text())
    }

    /// Resident memory of the process, bytes.
    pub fn resident(&self) -> usize {
        let text =
            std::fs::read_to_string(format!("/proc/{}/statm", self.child.id())).expect("it runs");
        text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("pages") * 4096
    }

    /// The most memory that was ever resident, bytes.
    pub fn peak(&self) -> usize {
        let text =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        let kib = line.trim().trim_end_matches(" kB").parse::<usize>();
        kib.expect("a number") * 1024
    }

    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone is as good as ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The policy with the agents' tokens in files of this folder.
pub fn filled(folder: &Path, policy: &str) -> String {
    for (name, token) in [("token_a", TOKEN_A), ("token_b", TOKEN_B)] {
        std::fs::write(folder.join(name), token).expect("written");
    }
    policy
        .replace("TOKEN_A", &folder.join("token_a").display().to_string())
        .replace("TOKEN_B", &folder.join("token_b").display().to_string())
}

/// One verb, to its end: exit code, stdout, stderr.
pub fn verb(words: &[&str]) -> (i32, String, String) {
    let output = Command::new(PROGRAM)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}
