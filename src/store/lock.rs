//! One process a folder: an advisory lock on the file `lock`, held for the process's life. The database itself is
//! not locked, so that an operator may read it meanwhile.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use super::OpenError;

/// Ends with this value, and with the process however that ends (flock(2)).
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

pub(super) fn take(folder: &Path) -> Result<Lock, OpenError> {
    let path = folder.join("lock");
    let refused = |why: String| OpenError::Refused(format!("{}: {why}", path.display()));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| refused(format!("cannot be opened ({error})")))?;
    match file.try_lock() {
        Ok(()) => Ok(Lock { _file: file }),
        Err(TryLockError::WouldBlock) => Err(refused(
            "another process holds this state folder; give each gateway its own --state".into(),
        )),
        Err(TryLockError::Error(error)) => Err(refused(format!("cannot be locked ({error})"))),
    }
}
