//! What a child wrote to its stderr last: never a sign of an error, kept for people.

use std::collections::VecDeque;

/// Bytes kept of one child's stderr.
pub(super) const KEPT: usize = 64 * 1024;
/// Of a line that is logged.
const LOGGED: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Tail {
    kept: VecDeque<u8>,
    /// The line that has not ended yet, as far as it is logged.
    open: Vec<u8>,
}

impl Tail {
    /// Takes a piece; the lines it completes, each cut to what a log can bear.
    pub(super) fn push(&mut self, piece: &[u8]) -> Vec<String> {
        let piece_kept = piece.get(piece.len().saturating_sub(KEPT)..).unwrap_or_default();
        let over = (self.kept.len() + piece_kept.len()).saturating_sub(KEPT);
        self.kept.drain(..over);
        self.kept.extend(piece_kept);
        let mut lines = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let room = LOGGED.saturating_sub(self.open.len());
            self.open.extend_from_slice(text.get(..room).unwrap_or(text));
            if text.len() < part.len() {
                let line = std::mem::take(&mut self.open);
                lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
        }
        lines.retain(|line| !line.is_empty());
        lines
    }

    /// Everything that is kept.
    pub(super) fn text(&self) -> String {
        let (front, back) = self.kept.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }

    /// The last line that says something.
    pub(super) fn last_line(&self) -> Option<String> {
        let text = self.text();
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(200).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_64_kib_are_kept_and_endless_lines_are_cut() {
        let mut tail = Tail::default();
        for _ in 0..40 {
            assert_eq!(tail.push(&[b'x'; 50_000]), Vec::<String>::new());
        }
        assert!(tail.kept.len() == KEPT && tail.open.len() == LOGGED);
        let lines = tail.push(b"\nsecond\r\n\n last words");
        assert_eq!(lines.len(), 2);
        assert_eq!(lines.last().map(String::as_str), Some("second"));
        assert_eq!(tail.last_line().as_deref(), Some("last words"));
        assert_eq!(tail.text().len(), KEPT);
    }
}
