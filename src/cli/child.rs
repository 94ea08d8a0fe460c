//! `checkrein __child -- COMMAND`: stands between the gateway and one MCP server that is a child process, and sees to it
//! that nothing of that server outlives its purpose, not even when the gateway is killed.
//!
//! It leads a process group of its own, runs the command in it and lends it its standard streams. It adopts whatever
//! the command leaves behind. The gateway's end is seen by the other end of stderr: the kernel closes that, however the
//! gateway ended. Then, and on SIGTERM, the whole group goes: SIGTERM, five seconds, SIGKILL. A parent-death signal
//! would reach the command alone, and would fire when a mere thread ends.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{self, Pid, Signal, WaitOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::complain;

/// From the gateway's end, which closes the command's stdin, to SIGTERM.
const BEFORE_TERM: Duration = Duration::from_secs(5);
/// From SIGTERM to SIGKILL.
const BEFORE_KILL: Duration = Duration::from_secs(5);
/// The same for what a command left behind that ended by itself.
const LEFT_BEHIND: Duration = Duration::from_millis(500);
/// What killing takes: whoever is killed leaves its own children to us.
const ROUNDS: u32 = 100;
const ROUND: Duration = Duration::from_millis(10);
/// As shells say it: the command cannot be started.
const NOT_STARTED: u8 = 127;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Program and arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    argv: Vec<OsString>,
}

/// Ends with the command's own exit code, or 128 and its signal.
pub(super) fn run(args: &Args) -> ExitCode {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let watched = built.and_then(|runtime| {
        let watched = runtime.block_on(watch(&args.argv));
        runtime.shutdown_background();
        watched
    });
    match watched {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(&format!("checkrein: {error}"));
            ExitCode::from(NOT_STARTED)
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the time a command is given to end")]
async fn watch(argv: &[OsString]) -> io::Result<u8> {
    // With a handler SIGTERM to the group ends all of it but us.
    let mut told = signal(SignalKind::terminate())?;
    let mut changed = signal(SignalKind::child())?;
    let adopts = adopt();
    let mut gone = tokio::task::spawn_blocking(stderr_is_closed);
    let mut keeping = Keeping::start(argv)?;
    let mut alone = false;
    loop {
        if let Some(code) = keeping.step(Instant::now()).await {
            if !adopts {
                to_the_group(Signal::KILL);
            }
            return Ok(code);
        }
        let next = keeping.term_at.into_iter().chain(keeping.kill_at).min();
        let waiting = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = changed.recv() => {}
            _ = told.recv() => keeping.told(Instant::now()),
            _ = &mut gone, if !alone => {
                alone = true;
                keeping.term_at = Some(Instant::now() + BEFORE_TERM);
            }
            () = waiting => {}
        }
    }
}

/// Returns when nobody reads our stderr any more: the gateway is gone. Blocks.
fn stderr_is_closed() {
    let stderr = io::stderr();
    loop {
        // Asked for nothing, a pipe still tells of its other end's being closed.
        let mut asked = [PollFd::new(&stderr, PollFlags::empty())];
        match poll(&mut asked, None) {
            Ok(_) => return,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Takes over what the command's descendants leave behind. `false`: this system cannot, and "no child is left" says
/// nothing of the group.
fn adopt() -> bool {
    #[cfg(target_os = "linux")]
    return process::set_child_subreaper(Some(process::getpid())).is_ok();
    #[cfg(not(target_os = "linux"))]
    false
}

struct Keeping {
    command: Pid,
    /// How the command itself ended.
    ended: Option<ExitStatus>,
    term_at: Option<Instant>,
    kill_at: Option<Instant>,
}

impl Keeping {
    fn start(argv: &[OsString]) -> io::Result<Self> {
        let (program, args) =
            argv.split_first().ok_or_else(|| io::Error::other("no command is given"))?;
        let started = Command::new(program).args(args).spawn();
        let child = started.map_err(|error| {
            io::Error::other(format!("`{}` cannot be started: {error}", program.to_string_lossy()))
        })?;
        // Its streams are its own: the gateway sees when it closes them.
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(Self { command: Pid::from_child(&child), ended: None, term_at: None, kill_at: None })
    }

    /// SIGTERM came, as a rule for the whole group.
    fn told(&mut self, now: Instant) {
        self.kill_at.get_or_insert(now + BEFORE_KILL);
    }

    /// Reaps, then does what is due. `Some` = nothing is left.
    async fn step(&mut self, now: Instant) -> Option<u8> {
        if self.reap() {
            return Some(self.code());
        }
        if self.ended.is_some() && self.kill_at.is_none() {
            self.terminate(now + LEFT_BEHIND);
        }
        if self.kill_at.is_none() && self.term_at.is_some_and(|at| at <= now) {
            self.terminate(now + BEFORE_KILL);
        }
        if self.kill_at.is_some() {
            self.term_at = None;
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill().await;
            return Some(self.code());
        }
        None
    }

    fn terminate(&mut self, kill_at: Instant) {
        self.kill_at = Some(kill_at);
        to_the_group(Signal::TERM);
    }

    /// `true`: no child is left, adopted ones included.
    fn reap(&mut self) -> bool {
        loop {
            match process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.command => {
                    self.ended = Some(ExitStatus::from_raw(status.as_raw()));
                }
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "nothing tells when who was killed is gone")]
    /// Everything that is still there, also what has left the group; us with it if that does not end.
    async fn kill(&mut self) {
        for _ in 0..ROUNDS {
            for pid in children() {
                // A child of ours that nobody reaps but us: the number is nobody else's.
                process::kill_process(pid, Signal::KILL).ok();
            }
            tokio::time::sleep(ROUND).await;
            if self.reap() {
                return;
            }
        }
        to_the_group(Signal::KILL);
    }

    fn code(&self) -> u8 {
        let Some(ended) = self.ended else { return NOT_STARTED };
        let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal));
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
    }
}

/// We lead it, so its number cannot have become another's.
fn to_the_group(signal: Signal) {
    process::kill_process_group(process::getpid(), signal).ok();
}

/// Our own children and those we adopted (Linux, proc(5): the state and the parent follow the name's last bracket).
fn children() -> Vec<Pid> {
    let us = process::getpid().as_raw_nonzero().to_string();
    let Ok(listed) = std::fs::read_dir("/proc") else { return Vec::new() };
    let of_us = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1));
        parent == Some(us.as_str())
    };
    let numbers = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    numbers
        .filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && of_us(pid))
        .filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw))
        .collect()
}
