//! One process a folder: an advisory lock on the file `lock`, held for the process's life, and one on the store
//! itself, whatever folder it is reached by. Neither keeps an operator from reading: SQLite's locks are of another
//! kind (fcntl(2)), which these leave alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::OpenError;

/// Ends with this value, and with the process however that ends (flock(2)).
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// The folder's. The file is the owner's alone: who may open it may hold it.
pub(super) fn take(folder: &Path) -> Result<Lock, OpenError> {
    let path = folder.join("lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    of(&path, file, "another process holds this state folder")
}

/// The store's, which may have several names. Drop it after the last connection: closing any descriptor of a file
/// ends its fcntl locks.
pub(super) fn store(path: &Path) -> Result<Lock, OpenError> {
    of(path, File::open(path), "another process holds this store under another name")
}

fn of(path: &Path, file: std::io::Result<File>, held: &str) -> Result<Lock, OpenError> {
    let refused = |why: String| OpenError::Refused(format!("{}: {why}", path.display()));
    let file = file.map_err(|error| refused(format!("cannot be opened ({error})")))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock { _file: file }),
        Err(TryLockError::WouldBlock) => {
            Err(refused(format!("{held}; give each gateway its own --state")))
        }
        Err(TryLockError::Error(error)) => Err(refused(format!("cannot be locked ({error})"))),
    }
}
