//! What is looked at on the disk: cheap stamps for every look, contents when a stamp moved, and the list of mounts.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::call::Digest;

/// Most bytes of one file that count; a loader refuses longer ones.
const MAX_FILE: u64 = 8 << 20;
/// Most bytes of the list of mounts that are read.
const MAX_MOUNTS: u64 = 4 << 20;

/// Device, inode, both times and size, behind all symbolic links; `None` = not there.
type Stamp = Option<[i128; 5]>;

/// Stamps of a list of files, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stamps(Vec<Stamp>);

pub(super) fn stamps(files: &[PathBuf]) -> Stamps {
    Stamps(files.iter().map(|file| std::fs::metadata(file).ok().map(|meta| stamp(&meta))).collect())
}

fn stamp(meta: &Metadata) -> [i128; 5] {
    let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    [
        i128::from(meta.dev()),
        i128::from(meta.ino()),
        nanos(meta.mtime(), meta.mtime_nsec()),
        nanos(meta.ctime(), meta.ctime_nsec()),
        i128::from(meta.size()),
    ]
}

/// One digest over all files, names and contents. The first must be readable; of the others a missing one counts as
/// such, because that too may change.
pub(super) fn contents(files: &[PathBuf]) -> Result<Digest, String> {
    let mut parts: Vec<Vec<u8>> = Vec::with_capacity(files.len() * 2);
    for (index, file) in files.iter().enumerate() {
        parts.push(file.as_os_str().as_bytes().to_vec());
        match content(file) {
            Ok(digest) => parts.push(digest.as_bytes().to_vec()),
            Err(why) if index == 0 => return Err(format!("{}: {why}", file.display())),
            Err(_) => parts.push(Vec::new()),
        }
    }
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(Digest::of_parts(&parts))
}

fn content(file: &Path) -> std::io::Result<Digest> {
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(file)?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(file)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(Digest::of(&bytes))
}

/// Whether the file itself is mounted, as `subPath` does it: such a file is never changed from outside.
pub(in crate::policy) fn is_mount_point(file: &Path) -> bool {
    let Ok(file) = std::fs::canonicalize(file) else { return false };
    let mut mounts = Vec::new();
    let read = File::open("/proc/self/mountinfo")
        .and_then(|list| list.take(MAX_MOUNTS).read_to_end(&mut mounts));
    read.is_ok() && lists(&mounts, &file)
}

/// Whether a list of mounts (proc(5), `mountinfo`: the fifth field is the mount point) names `file`.
fn lists(mounts: &[u8], file: &Path) -> bool {
    mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .any(|point| unescape(point) == file.as_os_str().as_bytes())
}

/// `\040` and its kin stand for bytes that would break the list.
fn unescape(point: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(point.len());
    let mut rest = point;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_itself_mounted_is_found_in_the_list() {
        let mounts = b"22 28 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
            712 690 8:1 /pods/x/policy.yaml /etc/checkrein/policy.yaml ro - ext4 /dev/sda1 rw\n\
            713 690 8:1 /pods/x /etc/with\\040space/p.yaml ro - ext4 /dev/sda1 rw\n";
        assert!(lists(mounts, Path::new("/etc/checkrein/policy.yaml")));
        assert!(lists(mounts, Path::new("/etc/with space/p.yaml")));
        assert!(!lists(mounts, Path::new("/etc/checkrein")));
        assert!(!lists(mounts, Path::new("/pods/x/policy.yaml")));
        assert!(!lists(b"", Path::new("/")));
    }

    #[test]
    fn this_machine_s_own_list_is_read() {
        assert!(is_mount_point(Path::new("/proc")));
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(!is_mount_point(file.path()));
        assert!(!is_mount_point(Path::new("/nowhere/at/all")));
    }

    #[test]
    fn contents_tell_files_apart_and_a_missing_one_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "1").expect("write");
        let alone = contents(&[a.clone(), b.clone()]).expect("readable");
        std::fs::write(&b, "").expect("write");
        let empty = contents(&[a.clone(), b.clone()]).expect("readable");
        assert_ne!(alone, empty);
        std::fs::write(&a, "").expect("write");
        std::fs::write(&b, "1").expect("write");
        assert_ne!(contents(&[a.clone(), b.clone()]).expect("readable"), empty);
        assert!(contents(&[dir.path().join("gone"), a]).is_err());
        assert!(contents(&[dir.path().to_owned()]).expect_err("a directory").contains("regular"));
    }
}
