//! The state folder: made private, synced, and warned about where it lies on a file system that breaks promises.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::OpenError;

/// Makes the folder (0700) where there is none.
pub(super) fn folder(path: &Path) -> Result<(), OpenError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| {
        let mend = "name a folder this process may write with --state, or use --store memory";
        OpenError::Refused(format!("{}: cannot be made ({error}); {mend}", path.display()))
    })?;
    if let Ok(found) = fs::metadata(path)
        && found.permissions().mode() & 0o022 != 0
    {
        tracing::warn!(
            folder = %path.display(),
            "others may write to the state folder, so they may take the store's place; give it mode 0700"
        );
    }
    if let Some(kind) = network_file_system(path) {
        tracing::warn!(
            folder = %path.display(),
            kind,
            "the state folder is on a network or user-space file system: its locks and syncs cannot be relied on"
        );
    }
    Ok(())
}

/// Arguments and results of writes are in there, and what keys are made from.
pub(super) fn warn_if_open(path: &Path, found: &Metadata) {
    if found.permissions().mode() & 0o007 != 0 {
        tracing::warn!(file = %path.display(), "everybody may read or write it; give it mode 0600");
    }
}

/// Gone when this returns, also where it never was.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A rename lasts once its folder is synced.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

pub(super) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

/// The type of the mount under `path`, where SQLite's shared memory does not work or syncs are not kept.
fn network_file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    kind_of_mount(&mounts, &path)
        .filter(|kind| {
            kind.starts_with("nfs")
                || kind.starts_with("fuse")
                || ["cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "afs"].contains(kind)
        })
        .map(str::to_owned)
}

/// proc(5), mountinfo: the fifth field is the mount point, the first after `-` the type. The last line wins.
fn kind_of_mount<'t>(mounts: &'t str, path: &Path) -> Option<&'t str> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else {
            continue;
        };
        let depth = Path::new(point).components().count();
        if path.starts_with(point) && best.is_none_or(|(deepest, _)| depth >= deepest) {
            best = Some((depth, kind));
        }
    }
    best.map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_over_a_folder_names_its_type() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 0:40 / /var/lib rw shared:1 - nfs4 host:/x rw\n\
                      31 30 0:41 / /var/lib/x rw - xfs /dev/sdb rw\n";
        let kind = |path: &str| kind_of_mount(mounts, Path::new(path));
        assert_eq!(kind("/var/lib/checkrein"), Some("nfs4"));
        assert_eq!(kind("/var/lib/x/y"), Some("xfs"));
        assert_eq!(kind("/var/library"), Some("ext4"));
    }
}
