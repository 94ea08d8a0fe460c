//! SQLite: one file in WAL mode, every commit synced. The only place that knows the library.
//!
//! Settings that fail silently (`journal_mode`, `synchronous`) are read back. A checkpoint never runs inside
//! somebody's commit: the writer asks for one between groups.

mod approvals;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::wire::{self, Columns};
use super::{Change, OpenError, Row, StoreError, Which, entries, files, migrate, wal};
use crate::call::{IdempotencyKey, ToolResult};

/// How long a statement waits for an operator's lock.
const BUSY: Duration = Duration::from_millis(250);
/// Statements kept prepared; there are fewer.
const STATEMENTS: usize = 24;
const NAME: &str = "store.db";

#[derive(Debug)]
pub(super) struct Db {
    connection: Connection,
    file: PathBuf,
    wal: PathBuf,
}

/// What went wrong with a whole group: nothing of it happened.
#[derive(Debug, Clone)]
pub(super) struct GroupFailed {
    pub(super) why: String,
    /// The file makes no sense any more; it will not heal by itself.
    pub(super) damaged: bool,
}

impl From<rusqlite::Error> for GroupFailed {
    fn from(error: rusqlite::Error) -> Self {
        Self { damaged: is_damage(&error), why: error.to_string() }
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SchemaChanged)
    )
}

impl Db {
    /// Opens the folder's store. `fingerprint`: of the secret it belongs to.
    pub(super) fn open(folder: &Path, fingerprint: &str) -> Result<Self, OpenError> {
        let file = folder.join(NAME);
        let refused = |why: String| OpenError::Refused(format!("{}: {why}", file.display()));
        let wal = folder.join("store.db-wal");
        // Before SQLite reads it: what it does not take it forgets.
        match wal::damage(&wal) {
            Ok(None) => {}
            Ok(Some(why)) => return Err(OpenError::Damaged(format!("{}: {why}", wal.display()))),
            Err(error) => return Err(refused(format!("its log cannot be read ({error})"))),
        }
        let db = Self { connection: connect(&file)?, file: file.clone(), wal };
        db.leave_as_found(true)?;
        db.known_version()?;
        db.configure()?;
        db.check()?;
        let known = db.meta("secret").map_err(|error| opening(&file, &error))?;
        if known.as_deref() != Some(fingerprint) {
            return Err(refused(
                "it was written under another secret; put the `secret` of its day back beside it"
                    .into(),
            ));
        }
        Ok(db)
    }

    /// Whether closing leaves file and log alone. By itself SQLite moves the log into the file at the last close, and
    /// deletes it: into a damaged file too, where a person may still want both.
    pub(super) fn leave_as_found(&self, leave: bool) -> Result<(), OpenError> {
        let set = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, leave);
        set.map(drop).map_err(|error| opening(&self.file, &error))
    }

    /// First of all: a later program's file may be strange in other ways too, and is not to be called damaged.
    fn known_version(&self) -> Result<(), OpenError> {
        let version = self.version()?;
        let known = migrate::missing(version).map(drop);
        known.map_err(|why| OpenError::Refused(format!("{}: {why}", self.file.display())))
    }

    fn version(&self) -> Result<i64, OpenError> {
        let version = self.connection.query_row("PRAGMA user_version", [], |row| row.get(0));
        version.map_err(|error| opening(&self.file, &error))
    }

    fn configure(&self) -> Result<(), OpenError> {
        let fault = |error: rusqlite::Error| opening(&self.file, &error);
        let refused = |why: &str| OpenError::Refused(format!("{}: {why}", self.file.display()));
        let db = &self.connection;
        db.busy_timeout(BUSY).map_err(fault)?;
        db.set_prepared_statement_cache_capacity(STATEMENTS);
        if db.is_readonly("main").map_err(fault)? {
            return Err(refused(
                "it cannot be written; a store that cannot be written is no store",
            ));
        }
        let mode: String =
            db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(fault)?;
        db.execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF;
             PRAGMA trusted_schema = OFF;",
        )
        .map_err(fault)?;
        // Returns the new value as a row.
        db.query_row("PRAGMA wal_autocheckpoint = 0", [], |_| Ok(())).map_err(fault)?;
        let synchronous: i64 =
            db.query_row("PRAGMA synchronous", [], |row| row.get(0)).map_err(fault)?;
        if mode != "wal" || synchronous != 2 {
            return Err(refused(
                "SQLite did not take `journal_mode = WAL` and `synchronous = FULL`",
            ));
        }
        Ok(())
    }

    /// The file is sound, and of a version this program knows; older ones are led on.
    fn check(&self) -> Result<(), OpenError> {
        let fault = |error: rusqlite::Error| opening(&self.file, &error);
        let damaged = |why: String| OpenError::Damaged(format!("{}: {why}", self.file.display()));
        let db = &self.connection;
        let sound: String =
            db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(fault)?;
        if sound != "ok" {
            return Err(damaged(sound));
        }
        let version = self.version()?;
        if version == 0 {
            return Err(damaged("it is no store, or an emptied one".to_owned()));
        }
        let missing = migrate::missing(version)
            .map_err(|why| OpenError::Refused(format!("{}: {why}", self.file.display())))?;
        if !missing.is_empty() {
            db.execute_batch(&script(missing)).map_err(fault)?;
        }
        Ok(())
    }

    fn meta(&self, name: &str) -> rusqlite::Result<Option<String>> {
        self.connection.query_row(entries::GET_META, [name], |row| row.get(0)).optional()
    }

    /// Every row. One whose identity cannot be told makes the whole store unreadable.
    pub(super) fn load(&self) -> Result<Vec<Row>, OpenError> {
        let fault = |error: rusqlite::Error| opening(&self.file, &error);
        let mut all = self.connection.prepare(entries::ALL).map_err(fault)?;
        let mut rows = all.query([]).map_err(fault)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(fault)? {
            let columns = read(row).map_err(fault)?;
            found.push(wire::row(&columns).map_err(|what| {
                OpenError::Damaged(format!("{}: {what} makes no sense", self.file.display()))
            })?);
        }
        Ok(found)
    }

    /// Makes a group of changes lasting with one sync. Each has its own fate, until the commit fails: then none
    /// happened.
    pub(super) fn group(
        &self,
        changes: &[&Change],
    ) -> Result<Vec<Result<(), StoreError>>, GroupFailed> {
        let db = &self.connection;
        db.execute_batch("BEGIN IMMEDIATE")?;
        crash_point!("store: begun");
        let done = self.all(changes).and_then(|done| {
            crash_point!("store: before commit");
            db.execute_batch("COMMIT")?;
            crash_point!("store: committed");
            Ok(done)
        });
        if done.is_err() && !db.is_autocommit() {
            // Where this fails too, the next BEGIN says so.
            drop(db.execute_batch("ROLLBACK"));
        }
        done
    }

    fn all(&self, changes: &[&Change]) -> Result<Vec<Result<(), StoreError>>, GroupFailed> {
        let db = &self.connection;
        let mut done = Vec::with_capacity(changes.len());
        for change in changes {
            db.execute_batch("SAVEPOINT one")?;
            crash_point!("store: before a row");
            let one = self.apply(change);
            crash_point!("store: a row");
            let fate = match one {
                Ok(true) => Ok(()),
                Ok(false) => Err(StoreError::Refused),
                // A row that breaks a rule is its own fault; anything else is the store's.
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                    tracing::error!(%error, "a row was refused by the store's own rules");
                    Err(StoreError::Refused)
                }
                Err(error) => return Err(error.into()),
            };
            if fate.is_err() {
                db.execute_batch("ROLLBACK TO one")?;
            }
            db.execute_batch("RELEASE one")?;
            done.push(fate);
        }
        Ok(done)
    }

    /// False where its condition does not hold.
    fn apply(&self, change: &Change) -> rusqlite::Result<bool> {
        match change {
            Change::Put { row, result } => {
                let put = self.put(&wire::columns(row))?;
                Ok(put && self.keep(row.which, result.as_deref())?)
            }
            Change::End { row, result } => {
                let ended = self.end(&wire::columns(row))?;
                Ok(ended && self.keep(row.which, result.as_deref())?)
            }
            Change::Found { which, result } => {
                let mut found = self.connection.prepare_cached(entries::FOUND)?;
                let key: &[u8] = which.key.as_bytes();
                let rows = found.execute(params![key, which.occurrence, wire::claim(*which)])?;
                Ok(rows == 1 && self.keep(*which, Some(result))?)
            }
            Change::Task { which, task } => {
                let mut set = self.connection.prepare_cached(entries::TASK)?;
                let key: &[u8] = which.key.as_bytes();
                let claim = wire::claim(*which);
                Ok(set.execute(params![key, which.occurrence, claim, &**task])? == 1)
            }
            Change::Calls { which, calls } => {
                let mut set = self.connection.prepare_cached(entries::CALLS)?;
                let key: &[u8] = which.key.as_bytes();
                let rows = set.execute(params![
                    key,
                    which.occurrence,
                    wire::claim(*which),
                    wire::calls(calls)
                ])?;
                Ok(rows == 1)
            }
            Change::Recover => {
                self.connection.execute(entries::RECOVER, [])?;
                Ok(true)
            }
            Change::PutSpending { row, yes } => {
                let put = self.put(&wire::columns(row))?;
                Ok(put && self.keep(row.which, None)? && self.spend(yes)?)
            }
            Change::Ask(approval) => self.ask(approval),
            Change::Decide(approval) => self.decide(approval),
            Change::Spend(yes) => self.spend(yes),
            Change::ForgetApprovals(all) => self.forget_approvals(all),
            Change::Forget(rows) => {
                let mut forget = self.connection.prepare_cached(entries::FORGET)?;
                let mut drop_result = self.connection.prepare_cached(entries::DROP_RESULT)?;
                for which in rows {
                    let key: &[u8] = which.key.as_bytes();
                    let gone =
                        forget.execute(params![key, which.occurrence, wire::claim(*which)])?;
                    if gone == 1 {
                        drop_result.execute(params![key, which.occurrence])?;
                    }
                }
                Ok(true)
            }
        }
    }

    fn put(&self, row: &Columns) -> rusqlite::Result<bool> {
        let mut put = self.connection.prepare_cached(entries::PUT)?;
        let rows = put.execute(params![
            row.identity,
            row.occurrence,
            row.claim,
            row.operation,
            row.state,
            row.tool,
            row.agent,
            row.arguments_hash,
            row.arguments,
            row.calls,
            row.failures,
            row.ttl_ms,
            row.changed_ms,
            row.why,
            row.answer,
            row.error,
            row.resolved,
            row.task
        ])?;
        Ok(rows == 1)
    }

    fn end(&self, row: &Columns) -> rusqlite::Result<bool> {
        let mut end = self.connection.prepare_cached(entries::END)?;
        let rows = end.execute(params![
            row.identity,
            row.occurrence,
            row.claim,
            row.state,
            row.calls,
            row.failures,
            row.changed_ms,
            row.why,
            row.answer,
            row.error,
            row.resolved
        ])?;
        Ok(rows == 1)
    }

    /// A result takes the place of an earlier one, and so does none.
    fn keep(&self, which: Which, result: Option<&ToolResult>) -> rusqlite::Result<bool> {
        let key: &[u8] = which.key.as_bytes();
        match result {
            Some(result) => {
                let mut keep = self.connection.prepare_cached(entries::KEEP_RESULT)?;
                let body: &[u8] = &result.content.bytes;
                keep.execute(params![key, which.occurrence, wire::result_head(result), body])?;
            }
            None => {
                let mut drop_result = self.connection.prepare_cached(entries::DROP_RESULT)?;
                drop_result.execute(params![key, which.occurrence])?;
            }
        }
        Ok(true)
    }

    /// `None`: there is none, or it does not come back whole.
    pub(super) fn result(
        &self,
        key: IdempotencyKey,
        occurrence: u32,
    ) -> Result<Option<ToolResult>, GroupFailed> {
        let mut find = self.connection.prepare_cached(entries::RESULT)?;
        let key: &[u8] = key.as_bytes();
        let found = find
            .query_row(params![key, occurrence], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?))
            })
            .optional()?;
        Ok(found.and_then(|(head, body)| wire::result(&head, body)))
    }

    /// Proves that a commit works again.
    pub(super) fn probe(&self) -> Result<(), GroupFailed> {
        let probed = self
            .connection
            .execute_batch("BEGIN IMMEDIATE")
            .and_then(|()| self.connection.execute(entries::SET_META, ["probe", "1"]).map(drop))
            .and_then(|()| self.connection.execute_batch("COMMIT"));
        if probed.is_err() && !self.connection.is_autocommit() {
            drop(self.connection.execute_batch("ROLLBACK")); // the next BEGIN says so where it fails
        }
        Ok(probed?)
    }

    /// Moves the log into the file. `wait`: also empties the log, waiting a moment for readers.
    pub(super) fn checkpoint(&self, wait: bool) -> Result<(), GroupFailed> {
        let how = if wait { "TRUNCATE" } else { "PASSIVE" };
        Ok(self.connection.query_row(&format!("PRAGMA wal_checkpoint({how})"), [], |_| Ok(()))?)
    }

    pub(super) fn wal_bytes(&self) -> u64 {
        files::length(&self.wal)
    }

    pub(super) fn bytes(&self) -> u64 {
        files::length(&self.file) + self.wal_bytes()
    }

    /// Bytes that rows take: pages in use, and the log.
    pub(super) fn used(&self) -> Result<u64, GroupFailed> {
        let get = |name: &str| -> rusqlite::Result<u64> {
            let number: i64 =
                self.connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))?;
            Ok(u64::try_from(number).unwrap_or(0))
        };
        let pages = get("page_count")?.saturating_sub(get("freelist_count")?);
        Ok(pages.saturating_mul(get("page_size")?).saturating_add(self.wal_bytes()))
    }
}

fn connect(file: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(file, flags).map_err(|error| opening(file, &error))
}

fn opening(file: &Path, error: &rusqlite::Error) -> OpenError {
    let text = format!("{}: {error}", file.display());
    // STRICT tables hold no other types: a type that is wrong was not written by SQLite.
    let mistyped = matches!(
        error,
        rusqlite::Error::InvalidColumnType(..) | rusqlite::Error::FromSqlConversionFailure(..)
    );
    // "no such table" and the like: a schema that is not ours.
    let foreign = error.sqlite_error_code() == Some(ErrorCode::Unknown);
    match is_damage(error) || mistyped || foreign {
        true => OpenError::Damaged(text),
        false => OpenError::Refused(text),
    }
}

/// A new store is made beside its place and renamed once it is whole: an empty file in its place is always damage.
pub(super) fn make(folder: &Path, fingerprint: &str) -> Result<(), Box<dyn std::error::Error>> {
    let draft = folder.join("store.new");
    for left in ["store.new", "store.new-journal"] {
        files::remove(&folder.join(left))?;
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let db = Connection::open_with_flags(&draft, flags)?;
    fs::set_permissions(&draft, Permissions::from_mode(0o600))?;
    db.execute_batch("PRAGMA synchronous = FULL;")?;
    db.execute_batch(&script(migrate::SCRIPTS))?;
    db.execute(entries::SET_META, ["secret", fingerprint])?;
    crash_point!("store: made");
    db.close().map_err(|(_, error)| error)?;
    fs::rename(&draft, folder.join(NAME))?;
    files::sync_folder(folder)?;
    crash_point!("store: in its place");
    Ok(())
}

fn script(missing: &[&str]) -> String {
    format!("BEGIN; {} PRAGMA user_version = {}; COMMIT;", missing.concat(), migrate::version())
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Columns> {
    Ok(Columns {
        identity: row.get(0)?,
        occurrence: row.get(1)?,
        claim: row.get(2)?,
        operation: String::new(),
        state: row.get(3)?,
        tool: row.get(4)?,
        agent: row.get(5)?,
        arguments_hash: row.get(6)?,
        arguments: row.get(7)?,
        calls: row.get(8)?,
        failures: row.get(9)?,
        ttl_ms: row.get(10)?,
        changed_ms: row.get(11)?,
        why: row.get(12)?,
        answer: row.get(13)?,
        error: row.get(14)?,
        resolved: row.get(15)?,
        task: row.get(16)?,
    })
}

/// A hand on a closed store.
#[cfg(test)]
pub(super) fn execute(file: &Path, sql: &str) {
    let db = Connection::open(file).expect("there");
    db.execute_batch(sql).expect("sound");
}

/// The store as it was before it had approvals and tasks.
#[cfg(test)]
pub(super) fn undo_approvals(file: &Path) {
    execute(
        file,
        "DROP TABLE approvals; ALTER TABLE entries DROP COLUMN task; PRAGMA user_version = 1;",
    );
}
