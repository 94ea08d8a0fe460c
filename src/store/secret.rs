//! The key that idempotency keys for tools are derived from. It lies beside the store and belongs to it: a store
//! under another secret would send other keys for the same operations.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{OpenError, files};
use crate::call::Digest;

const NAME: &str = "secret";
/// Written and synced, not yet in force.
pub(super) const DRAFT: &str = "secret.new";
const BYTES: usize = 32;
/// More is no secret but some other file.
const MOST_BYTES: u64 = 4096;

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

/// The folder's secret, at least 32 bytes.
pub(super) fn read(folder: &Path) -> Result<Secret, OpenError> {
    let path = folder.join(NAME);
    let refused = |why: String| {
        OpenError::Refused(format!("{}: the secret cannot be used ({why})", path.display()))
    };
    let mut secret = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut secret))
        .map_err(|error| refused(error.to_string()))?;
    if secret.len() < BYTES || secret.len() as u64 > MOST_BYTES {
        return Err(refused(format!("it has less than {BYTES} or more than {MOST_BYTES} bytes")));
    }
    Ok(Secret(secret))
}

/// Makes a secret (mode 0600) beside its place, synced: it is in force only once it is kept.
pub(super) fn draft(folder: &Path) -> io::Result<Secret> {
    let mut secret = vec![0; BYTES];
    // The kernel's generator; the crate's own random numbers are for jitter only.
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let draft = folder.join(DRAFT);
    files::remove(&draft)?; // of a making that was cut short
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&draft)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    Ok(Secret(secret))
}

/// Puts the draft in its place.
pub(super) fn keep(folder: &Path) -> io::Result<()> {
    fs::rename(folder.join(DRAFT), folder.join(NAME))?;
    files::sync_folder(folder)
}
