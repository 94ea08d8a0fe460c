//! The secret behind every key that a tool is sent: the same operation has the same key whoever asks, whenever.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::call::{IdempotencyKey, SentKey};

/// Bytes of SHA-256's block and of its digest.
const BLOCK: usize = 64;
const DIGEST: usize = 32;

/// Bytes that nobody else knows; without them a key can be neither guessed nor derived.
///
/// Held as a key of HMAC: filled up with zeros to a block, and hashed first where it is longer (RFC 2104, 2).
#[derive(Clone)]
pub struct Secret([u8; BLOCK]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<secret>")
    }
}

impl Secret {
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let hashed;
        let key = if bytes.len() > BLOCK {
            hashed = Sha256::digest(bytes);
            &hashed[..]
        } else {
            bytes
        };
        let mut block = [0; BLOCK];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte = *key);
        Self(block)
    }

    /// From the system's source of randomness.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("a system without randomness could not make a run's id");
        Self::from_bytes(&bytes)
    }

    /// base64url(HMAC-SHA-256(secret, identity ‖ occurrence)): 43 characters that any header takes as they stand.
    /// Nothing of the attempt, the call or the run is in it, so it is the same for all of them.
    pub fn key(&self, identity: &IdempotencyKey, occurrence: u32) -> SentKey {
        let code = hmac(&self.0, &[identity.as_bytes(), &occurrence.to_be_bytes()]);
        SentKey::new(URL_SAFE_NO_PAD.encode(code))
    }
}

/// HMAC (RFC 2104) over SHA-256, of parts that stand one after the other.
fn hmac(key: &[u8; BLOCK], parts: &[&[u8]]) -> [u8; DIGEST] {
    let pad = |with: u8| {
        let mut block = [with; BLOCK];
        for (byte, key) in block.iter_mut().zip(key) {
            *byte ^= key;
        }
        block
    };
    let mut inner = Sha256::new();
    inner.update(pad(0x36));
    for part in parts {
        inner.update(part);
    }
    let mut outer = Sha256::new();
    outer.update(pad(0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 4231's test cases 1 to 3 and 6.
    #[test]
    fn hmac_sha_256_has_the_known_answers_of_rfc_4231() {
        let key = |bytes: &[u8]| Secret::from_bytes(bytes).0;
        assert_eq!(
            hex(&hmac(&key(&[0x0b; 20]), &[b"Hi ", b"There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(&hmac(&key(b"Jefe"), &[b"what do ya want for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(&hmac(&key(&[0xaa; 20]), &[&[0xdd; 50]])),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"
        );
        assert_eq!(
            hex(&hmac(
                &key(&[0xaa; 131]),
                &[b"Test Using Larger Than Block-Size Key - Hash Key First"]
            )),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn a_random_secret_is_never_the_same() {
        assert_ne!(Secret::random().0, Secret::random().0);
    }
}
