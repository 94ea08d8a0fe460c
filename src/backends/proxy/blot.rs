//! The gateway's credential never reaches a client, also where a tool sends it back: it is struck out, byte for byte, so
//! that lengths stay what they were told to be.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use crate::backends::credentials::Blots;

/// Strikes out over pieces of one body, whatever lies across their edges.
#[derive(Debug)]
pub(super) struct Blotter<'a> {
    secrets: Cow<'a, [Vec<u8>]>,
    /// The end of what came, where it could be the beginning of a secret.
    held: BytesMut,
}

impl<'a> Blotter<'a> {
    pub(super) fn new(blots: Option<&'a Blots>) -> Self {
        let secrets = blots.map_or(&[][..], Blots::spellings);
        Self { secrets: Cow::Borrowed(secrets), held: BytesMut::new() }
    }

    /// For as long as the body takes.
    pub(super) fn owned(self) -> Blotter<'static> {
        Blotter { secrets: Cow::Owned(self.secrets.into_owned()), held: self.held }
    }

    /// A body in one piece.
    pub(super) fn whole(&mut self, bytes: Bytes) -> Bytes {
        self.more(bytes, true)
    }

    /// The next piece; `last` = nothing follows, so nothing is held back.
    pub(super) fn more(&mut self, bytes: Bytes, last: bool) -> Bytes {
        if self.secrets.is_empty() {
            return bytes;
        }
        let bytes = if self.held.is_empty() {
            bytes
        } else {
            let mut both = std::mem::take(&mut self.held);
            both.extend_from_slice(&bytes);
            both.freeze()
        };
        let mut bytes = self.struck(bytes);
        if !last {
            let keep = bytes.len() - self.beginning(&bytes);
            self.held.extend_from_slice(bytes.get(keep..).unwrap_or_default());
            bytes.truncate(keep);
        }
        bytes
    }

    /// What was held back to the end.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        let held = std::mem::take(&mut self.held);
        (!held.is_empty()).then(|| held.freeze())
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    fn struck(&self, bytes: Bytes) -> Bytes {
        let mut found: Vec<(usize, usize)> = Vec::new();
        for secret in self.secrets.iter() {
            let Some(first) = secret.first() else { continue };
            let mut at = 0;
            while let Some(rest) = bytes.get(at..) {
                let Some(next) = rest.iter().position(|byte| byte == first) else { break };
                at += next;
                if rest.get(next..).is_some_and(|rest| rest.starts_with(secret)) {
                    found.push((at, secret.len()));
                    at += secret.len();
                } else {
                    at += 1;
                }
            }
        }
        if found.is_empty() {
            return bytes;
        }
        let mut struck = BytesMut::from(bytes.as_ref());
        for (at, len) in found {
            struck.iter_mut().skip(at).take(len).for_each(|byte| *byte = b'*');
        }
        struck.freeze()
    }

    /// Length of the longest end of `bytes` that a secret begins with.
    fn beginning(&self, bytes: &[u8]) -> usize {
        let of_one = |secret: &Vec<u8>| {
            let most = secret.len().saturating_sub(1).min(bytes.len());
            let begins = |len: &usize| {
                bytes.get(bytes.len() - len..).is_some_and(|end| secret.starts_with(end))
            };
            (1..=most).rev().find(begins).unwrap_or(0)
        };
        self.secrets.iter().map(of_one).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck(pieces: &[&str]) -> String {
        let blots = Blots::of_texts(vec!["s3cret-token".into()]);
        let mut blotter = Blotter::new(Some(&blots)).owned();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&blotter.more(Bytes::copy_from_slice(piece.as_bytes()), false));
        }
        out.extend_from_slice(&blotter.rest().unwrap_or_default());
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_secret_is_struck_out_wherever_its_pieces_are_cut_and_no_length_changes() {
        let text = "a s3cret-token b s3cret-toke s3cret-tokens";
        let clean = "a ************ b s3cret-toke ************s";
        for cut in 0..text.len() {
            for second in cut..text.len() {
                let pieces = [&text[..cut], &text[cut..second], &text[second..]];
                assert_eq!(struck(&pieces), clean, "{pieces:?}");
            }
        }
        assert_eq!(struck(&["s3c"]), "s3c");
    }

    #[test]
    fn without_a_secret_nothing_is_copied_or_held() {
        let mut blotter = Blotter::new(None);
        let bytes = Bytes::from_static(b"abc");
        assert_eq!(blotter.more(bytes.clone(), false).as_ptr(), bytes.as_ptr());
        assert_eq!(blotter.rest(), None);
    }
}
