//! The key that idempotency keys for tools are derived from. It lies beside the store and belongs to it: a store
//! under another secret would send other keys for the same operations.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::OpenError;
use super::files::sync_folder;
use crate::call::Digest;

const BYTES: usize = 32;

/// What the store records of the secret: enough to tell another one, too little to guess it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint(pub(super) String);

/// What is in the folder's `secret`; never shown.
pub(super) struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

impl Secret {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        let digest = Digest::of_parts(&[b"checkrein/secret/v1", &self.0]);
        Fingerprint(digest.short_hex(16))
    }
}

/// The folder's secret, at least 32 bytes; makes one (mode 0600) where there is none.
pub(super) fn of(folder: &Path) -> Result<Secret, OpenError> {
    let path = folder.join("secret");
    let refused = |error: io::Error| {
        OpenError::Refused(format!("{}: the secret cannot be used ({error})", path.display()))
    };
    let secret = match fs::read(&path) {
        Ok(secret) => secret,
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(folder).map_err(refused)?,
        Err(error) => return Err(refused(error)),
    };
    if secret.len() < BYTES {
        return Err(refused(io::Error::other(format!("it has less than {BYTES} bytes"))));
    }
    Ok(Secret(secret))
}

/// Whole or not at all: written beside its place and renamed.
fn make(folder: &Path) -> io::Result<Vec<u8>> {
    let mut secret = vec![0; BYTES];
    // The kernel's generator; the crate's own random numbers are for jitter only.
    fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let draft = folder.join("secret.new");
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&draft)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    fs::rename(&draft, folder.join("secret"))?;
    sync_folder(folder)?;
    Ok(secret)
}
