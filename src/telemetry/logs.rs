//! Diagnostics for operators: one line an event on stderr, as text or JSON, secrets hidden.
//!
//! Records of calls are not diagnostics: they go their own way (`record`), so that either can be kept without the other.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::redact::Secrets;

/// How a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// Why the diagnostics could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("`{0}` is no log level: error, warn, info, debug, trace, or target=level pairs")]
    Level(String),
    #[error("diagnostics are already set up in this process")]
    Twice,
}

/// Sets up the process's diagnostics. Once a process.
pub fn init(level: &str, format: Format, secrets: Secrets) -> Result<(), LogError> {
    let filter = filter(level).ok_or_else(|| LogError::Level(level.to_owned()))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Stderr(secrets))
        // It would say so on stderr, which is what just failed, and panic: a full disk must not end a thread.
        .log_internal_errors(false)
        .with_ansi(false);
    let done = match format {
        Format::Text => lines.try_init(),
        Format::Json => lines.json().flatten_event(true).try_init(),
    };
    done.map_err(|_| LogError::Twice)
}

/// `EnvFilter` takes a lone word for a target, so that a misspelt level would silence everything: refused here.
fn filter(level: &str) -> Option<EnvFilter> {
    const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];
    let sound = |part: &str| part.contains('=') || LEVELS.contains(&part);
    level.split(',').map(str::trim).all(sound).then(|| EnvFilter::try_new(level).ok()).flatten()
}

/// Stderr, with secrets hidden.
#[derive(Debug)]
struct Stderr(Secrets);

impl<'a> MakeWriter<'a> for Stderr {
    type Writer = Hiding<'a, io::Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        Hiding { secrets: &self.0, sink: io::stderr() }
    }
}

/// Hides secrets in what is written through it; an event arrives in one piece. It never fails: a full disk or a
/// reader that has gone away must not end a gateway that has something to say, and there is nobody left to tell.
#[derive(Debug)]
struct Hiding<'a, W> {
    secrets: &'a Secrets,
    sink: W,
}

impl<W: Write> Write for Hiding<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _lost = match std::str::from_utf8(bytes) {
            Ok(text) => self.sink.write_all(self.secrets.hide(text).as_bytes()),
            Err(_) => self.sink.write_all(bytes),
        };
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _lost = self.sink.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_reaches_the_sink() {
        let secrets = Secrets::default();
        secrets.set(["tok-abcdef".into()]);
        let mut hiding = Hiding { secrets: &secrets, sink: Vec::new() };
        writeln!(hiding, "sent tok-abcdef away").expect("a vector takes all");
        assert!(!String::from_utf8_lossy(&hiding.sink).contains("tok-abcdef"));
    }

    #[test]
    fn a_sink_that_takes_nothing_is_no_error_of_whoever_has_something_to_say() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let mut hiding = Hiding { secrets: &Secrets::default(), sink: Full };
        hiding.write_all(b"a line").expect("nobody is told");
        hiding.flush().expect("nobody is told");
    }

    #[test]
    fn a_level_that_is_none_is_named() {
        for bad in ["inof", "", "checkrein=loud", "info,inof"] {
            let error = init(bad, Format::Text, Secrets::default()).expect_err(bad);
            assert!(error.to_string().contains(&format!("`{bad}`")), "{error}");
        }
        assert!(filter("info").is_some() && filter("warn,checkrein=debug").is_some());
    }
}
