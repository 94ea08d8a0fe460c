//! Newline framing of the stdio transport: one message a line, each bounded, fed in any pieces.
//!
//! What a line is worth is judged by [`read`]: servers print banners on stdout, and a banner ends nothing.

use std::fmt;

use super::jsonrpc::{self, Fault, Message};
use crate::strict_json::Limits;

/// A line grew over the bound: the stream cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineTooLong {
    /// The bound, bytes.
    pub limit: usize,
}

impl fmt::Display for LineTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a line is longer than {} bytes", self.limit)
    }
}
impl std::error::Error for LineTooLong {}

/// Cuts a byte stream into lines.
#[derive(Debug)]
pub struct Lines {
    limit: usize,
    /// The line so far; never longer than `limit` and one `\r`.
    open: Vec<u8>,
    failed: bool,
}

impl Lines {
    /// `limit`: longest line, bytes, its end not counted.
    pub fn new(limit: usize) -> Self {
        Self { limit, open: Vec::new(), failed: false }
    }

    /// Takes the next piece and gives the lines it completes, without their ends (`\n`, `\r\n`); lines of white space
    /// are left out. After an error every further piece is the same error.
    pub fn push(&mut self, piece: &[u8]) -> Result<Vec<Vec<u8>>, LineTooLong> {
        let mut lines = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let (part, ends) = match part.strip_suffix(b"\n") {
                Some(part) => (part, true),
                None => (part, false),
            };
            // a `\r` may belong to the line's end, so one byte more is kept until that is known
            let room = self.limit.saturating_add(1).saturating_sub(self.open.len());
            if self.failed || part.len() > room {
                return Err(self.fail());
            }
            self.open.extend_from_slice(part);
            if !ends {
                continue;
            }
            let mut line = std::mem::take(&mut self.open);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            if line.len() > self.limit {
                return Err(self.fail());
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                lines.push(line);
            }
        }
        if self.failed { Err(self.fail()) } else { Ok(lines) }
    }

    /// Bytes that are held of a line that has not ended.
    pub fn held(&self) -> usize {
        self.open.len()
    }

    /// Whether a line has begun that has not ended: at the end of the stream it is cut off and no message.
    pub fn is_mid_line(&self) -> bool {
        !self.open.is_empty()
    }

    fn fail(&mut self) -> LineTooLong {
        self.failed = true;
        self.open = Vec::new();
        LineTooLong { limit: self.limit }
    }
}

/// What a line of a server's stdout is.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    Message(Message),
    /// A broken message with a readable id: whoever waits for that id need wait no longer.
    Broken(Fault),
    /// Anything else: to be counted and skipped.
    Noise,
}

/// Reads one line of a server's stdout.
pub fn read(line: &[u8], limits: Limits) -> Line {
    match jsonrpc::parse(line, limits) {
        Ok(message) => Line::Message(message),
        Err(fault) if fault.id.is_some() => Line::Broken(fault),
        Err(_) => Line::Noise,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(limit: usize, pieces: &[&[u8]]) -> Result<Vec<Vec<u8>>, LineTooLong> {
        let mut lines = Lines::new(limit);
        let mut found = Vec::new();
        for piece in pieces {
            found.extend(lines.push(piece)?);
        }
        Ok(found)
    }

    #[test]
    fn lines_lose_their_ends_and_empty_ones_are_left_out() {
        let found = cut(9, &[b"a\r\n\n \r\nb\rc\n", b"d", b"\r", b"\ne"]).expect("short lines");
        assert_eq!(found, [b"a".to_vec(), b"b\rc".to_vec(), b"d".to_vec()]);
    }

    #[test]
    fn a_line_may_have_the_bound_and_not_one_byte_more() {
        assert_eq!(cut(3, &[b"abc\r\n"]), Ok(vec![b"abc".to_vec()]));
        assert_eq!(cut(3, &[b"abcd\n"]), Err(LineTooLong { limit: 3 }));
        let mut lines = Lines::new(3);
        assert!(lines.push(b"ab").is_ok() && lines.is_mid_line());
        assert!(lines.push(b"cde").is_err());
        assert!(lines.push(b"\nok\n").is_err(), "it does not find its feet again");
    }

    #[test]
    fn a_banner_is_noise_and_a_broken_answer_is_told_by_its_id() {
        let read = |text: &str| read(text.as_bytes(), Limits::answer(1000));
        for noise in
            ["Server listening on 3000", "{\"level\":\"info\"}", "[1]", "{\"jsonrpc\":", "null"]
        {
            assert_eq!(read(noise), Line::Noise, "{noise}");
        }
        assert!(matches!(read(r#"{"jsonrpc":"2.0","id":7,"error":1}"#), Line::Broken(_)));
        assert!(matches!(read(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#), Line::Message(_)));
    }

    proptest! {
        #[test]
        fn any_split_of_a_stream_gives_the_same_lines(
            stream in prop::collection::vec(prop::sample::select(b"ab {}\r\n".to_vec()), 0..80),
            cuts in prop::collection::vec(0_usize..80, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            for limit in [4, 100] {
                prop_assert_eq!(cut(limit, &pieces), cut(limit, &[&stream]));
            }
        }
    }
}
