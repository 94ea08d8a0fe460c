//! The one place that writes to stdout and stderr for a verb.

use std::io::{self, Write};

/// An answer, to stdout. A reader that has gone away (`| head`) is no error of ours.
pub(crate) fn say(text: &str) {
    write(io::stdout().lock(), text);
}

/// A complaint, to stderr.
pub(crate) fn complain(text: &str) {
    write(io::stderr().lock(), text);
}

fn write(mut sink: impl Write, text: &str) {
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    let written = write!(sink, "{text}{newline}").and_then(|()| sink.flush());
    // There is nobody left to tell.
    drop(written);
}
