//! Whether SQLite's log has lost what was acknowledged. SQLite reads a log up to the first frame that is not sound,
//! and is silent about what stands behind it.
//!
//! Every commit is synced before the next one begins, so a crash leaves at most one that is torn, at the end. Commits
//! behind a frame that is not sound were acknowledged once. Format: sqlite.org/fileformat2.html, section 4.

use std::fs;
use std::io;
use std::path::Path;

const HEADER: usize = 32;
const FRAME: usize = 24;
/// The last bit says that checksums read words with their highest byte first.
const MAGIC: u32 = 0x377f_0682;

/// `Some`: what is wrong. A log that is missing, empty, or torn at its end as a crash tears it, is sound.
pub(super) fn damage(path: &Path) -> io::Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(damage_in(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn damage_in(bytes: &[u8]) -> Option<String> {
    // Shorter than one frame of the smallest page: the crash came with its first bytes.
    if bytes.len() <= HEADER + FRAME + 512 {
        return None;
    }
    // The header is synced before the first frame follows it.
    let Some(log) = Log::of(bytes) else {
        return Some("the head of the log makes no sense, and frames follow it".into());
    };
    let mut sum = log.sum;
    let mut sound = true;
    let mut bad = 0;
    let mut commits_behind = 0;
    for (at, frame) in bytes.get(HEADER..)?.chunks_exact(FRAME + log.page).enumerate() {
        // Frames of an earlier turn of the log have other salts; they are in the file long since.
        let ours = frame.get(8..16) == Some(&log.salts[..]);
        if sound {
            let (head, page) = (frame.get(..8)?, frame.get(FRAME..)?);
            let next = log.add(log.add(sum, head), page);
            sound = ours && (word(frame, 16), word(frame, 20)) == (Some(next.0), Some(next.1));
            sum = next;
            if sound {
                continue;
            }
            bad = at + 1;
        }
        if commits_behind > 0 && ours {
            return Some(format!(
                "frame {bad} of the log is damaged, and commits that were acknowledged stand behind it"
            ));
        }
        commits_behind += usize::from(ours && word(frame, 4).is_some_and(|pages| pages > 0));
    }
    None
}

struct Log {
    big: bool,
    page: usize,
    salts: [u8; 8],
    sum: (u32, u32),
}

impl Log {
    fn of(bytes: &[u8]) -> Option<Self> {
        let magic = word(bytes, 0)?;
        let page = usize::try_from(word(bytes, 8)?).ok()?;
        let salts = bytes.get(16..24)?.try_into().ok()?;
        let mut log = Self { big: magic & 1 == 1, page, salts, sum: (0, 0) };
        log.sum = log.add((0, 0), bytes.get(..24)?);
        let sound = magic & !1 == MAGIC
            && page.is_power_of_two()
            && (512..=65536).contains(&page)
            && (word(bytes, 24)?, word(bytes, 28)?) == log.sum;
        sound.then_some(log)
    }

    fn add(&self, (mut first, mut second): (u32, u32), bytes: &[u8]) -> (u32, u32) {
        let read = |four: &[u8]| {
            let four = four.try_into().unwrap_or([0; 4]);
            if self.big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
        };
        for eight in bytes.chunks_exact(8) {
            let (one, two) = eight.split_at(4);
            first = first.wrapping_add(read(one)).wrapping_add(second);
            second = second.wrapping_add(read(two)).wrapping_add(first);
        }
        (first, second)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of `commits`, each of two frames, as SQLite writes it; the file's bytes.
    fn log(commits: usize) -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("x.db");
        let db = rusqlite::Connection::open(&file).expect("it opens");
        db.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (x TEXT);
             PRAGMA wal_checkpoint(TRUNCATE);",
        )
        .expect("made");
        for _ in 0..commits {
            db.execute("INSERT INTO t VALUES (hex(randomblob(3000)))", []).expect("written");
        }
        fs::read(folder.path().join("x.db-wal")).expect("there")
    }

    fn frame(bytes: &[u8], at: usize) -> usize {
        HEADER + at * (FRAME + Log::of(bytes).expect("sound").page)
    }

    #[test]
    fn a_log_cut_or_torn_in_its_last_commit_is_what_a_crash_leaves() {
        let whole = log(8);
        assert_eq!(damage_in(&whole), None);
        for cut in 0..whole.len() {
            if cut % 97 == 0 {
                assert_eq!(damage_in(&whole[..cut]), None, "cut at {cut}");
            }
        }
        let mut torn = whole.clone();
        let last = torn.len() - 100;
        torn[last] ^= 1;
        assert_eq!(damage_in(&torn), None, "the last frame");
    }

    #[test]
    fn acknowledged_commits_behind_a_bad_frame_are_damage() {
        let whole = log(8);
        for at in 0..4 {
            let mut bad = whole.clone();
            let place = frame(&whole, at) + FRAME + 40;
            bad[place] ^= 1;
            let why = damage_in(&bad).expect("damage");
            assert!(why.contains(&format!("frame {} ", at + 1)), "{why}");
        }
        for at in [0, 8, 17, 25] {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            assert!(damage_in(&bad).is_some_and(|why| why.contains("head")), "byte {at}");
        }
    }
}
