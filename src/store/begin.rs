//! A store and its secret are made as one, once. A folder that has one without the other has lost something, and a
//! store that was lost is not an empty store: what had been sent would be sent again.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::secret::{self, Secret};
use super::{OpenError, files, sqlite};

/// What a person does who wants a store that remembers nothing.
const ANEW: &str = "to begin anew, with nothing remembered, move the whole folder away";

/// Both are there when this returns. Makes them in a folder that has neither.
pub(super) fn ready(folder: &Path) -> Result<Secret, OpenError> {
    match (is_file(folder, "store.db")?, is_file(folder, "secret")?) {
        (true, true) => {}
        (false, false) => make(folder)?,
        (true, false) => finish(folder)?,
        (false, true) => {
            return Err(lost(
                folder,
                "store.db",
                "its `secret` is there, so there was a store: what it knew was sent is not known any more",
            ));
        }
    }
    secret::read(folder)
}

/// The store's name is taken first and the secret's last: with the secret both are whole.
fn make(folder: &Path) -> Result<(), OpenError> {
    if is_file(folder, "store.db-wal")? {
        return Err(lost(folder, "store.db", "its log is there, so there was a store"));
    }
    let refused = |what: &str, why: String| {
        OpenError::Refused(format!("{}: cannot be made ({why})", folder.join(what).display()))
    };
    let secret = secret::draft(folder).map_err(|error| refused("secret", error.to_string()))?;
    crash_point!("store: a draft of the secret");
    sqlite::make(folder, &secret.fingerprint().0)
        .map_err(|error| refused("store.db", error.to_string()))?;
    secret::keep(folder).map_err(|error| refused("secret", error.to_string()))?;
    crash_point!("store: the secret in its place");
    Ok(())
}

/// A making that was cut short before its last step is ended; the store then tells whether it is this secret's.
fn finish(folder: &Path) -> Result<(), OpenError> {
    if !is_file(folder, secret::DRAFT)? {
        return Err(lost(
            folder,
            "secret",
            "the store is there: without it tools would be sent other keys for the same operations",
        ));
    }
    secret::keep(folder).map_err(|error| {
        OpenError::Refused(format!("{}: cannot be made ({error})", folder.join("secret").display()))
    })
}

fn lost(folder: &Path, what: &str, why: &str) -> OpenError {
    let path = folder.join(what);
    OpenError::Refused(format!("{}: it is missing, and {why}; put it back; {ANEW}", path.display()))
}

/// False: there is none. A link may lead to a store of another folder, or to nothing; a pipe would never be read.
fn is_file(folder: &Path, name: &str) -> Result<bool, OpenError> {
    let path = folder.join(name);
    let refused = |why: String| OpenError::Refused(format!("{}: {why}", path.display()));
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_file() => {
            files::warn_if_open(&path, &found);
            Ok(true)
        }
        Ok(_) => Err(refused(
            "it is a link or no ordinary file; put the file itself there (--state may be a link)"
                .into(),
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(refused(format!("cannot be looked at ({error})"))),
    }
}
