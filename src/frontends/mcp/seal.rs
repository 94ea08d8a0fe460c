//! What an agent carries for us and gives back: cursors and states, sealed so that only this process reads them and
//! nobody changes them. The key lives as long as the process; after a restart they no longer open.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// Longest text that is tried; ours are far shorter, but for a server's own state within.
pub(super) const MAX_SEALED: usize = 256 * 1024;

/// What a sealed text is for; one never opens as the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Cursor,
    State,
}

impl Use {
    fn label(self) -> &'static [u8] {
        match self {
            Use::Cursor => b"checkrein cursor 1",
            Use::State => b"checkrein request state 1",
        }
    }
}

/// The key of this process (RFC 8439, fresh random nonces).
pub(super) struct Seal(Option<LessSafeKey>);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        let made = getrandom::fill(&mut key)
            .ok()
            .and_then(|()| UnboundKey::new(&CHACHA20_POLY1305, &key).ok());
        Self(made.map(LessSafeKey::new))
    }

    /// `None`: the system gives no random bytes.
    pub(super) fn seal(&self, what: Use, text: &str) -> Option<String> {
        let key = self.0.as_ref()?;
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let mut bytes = text.as_bytes().to_vec();
        let aad = Aad::from(what.label());
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut bytes).ok()?;
        let mut whole = nonce.to_vec();
        whole.append(&mut bytes);
        Some(URL_SAFE_NO_PAD.encode(whole))
    }

    /// `None`: not ours, changed, or for another use.
    pub(super) fn open(&self, what: Use, sealed: &str) -> Option<String> {
        if sealed.len() > MAX_SEALED {
            return None;
        }
        let whole = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, rest) = whole.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut bytes = rest.to_vec();
        let plain =
            self.0.as_ref()?.open_in_place(nonce, Aad::from(what.label()), &mut bytes).ok()?;
        String::from_utf8(plain.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_for_its_use_and_by_its_key_alone() {
        let seal = Seal::new();
        let sealed = seal.seal(Use::State, "who asked what").expect("sealed");
        assert_eq!(seal.open(Use::State, &sealed).as_deref(), Some("who asked what"));
        assert_eq!(seal.open(Use::Cursor, &sealed), None);
        assert_eq!(Seal::new().open(Use::State, &sealed), None);
        assert_ne!(seal.seal(Use::State, "who asked what"), Some(sealed));
    }

    #[test]
    fn no_flipped_bit_and_no_cut_opens() {
        let seal = Seal::new();
        let sealed = seal.seal(Use::Cursor, "after").expect("sealed");
        for at in 0..sealed.len() {
            let mut forged = sealed.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).expect("ascii");
            assert_eq!(seal.open(Use::Cursor, &forged), None, "{at}");
            assert_eq!(seal.open(Use::Cursor, &sealed[..at]), None, "{at}");
        }
        assert_eq!(seal.open(Use::Cursor, &"A".repeat(MAX_SEALED + 1)), None);
    }
}
