//! The schema, one script a version; `user_version` says how many have run. Nothing newer than SQLite 3.40, so that
//! the `sqlite3` of an ordinary system opens the file.

/// Scripts in order: the n-th leads from version n to version n + 1.
pub(super) const SCRIPTS: &[&str] = &["
CREATE TABLE meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
CREATE TABLE entries (
    identity       BLOB    NOT NULL CHECK (length(identity) = 32),
    occurrence     INTEGER NOT NULL,
    claim          INTEGER NOT NULL,
    operation      TEXT    NOT NULL, -- the identity's short name, as agents and people see it
    state          TEXT    NOT NULL
        CHECK (state IN ('intent', 'executed', 'not_executed', 'unknown', 'compensated')),
    tool           TEXT    NOT NULL,
    agent          TEXT    NOT NULL,
    arguments_hash BLOB    NOT NULL CHECK (length(arguments_hash) = 32),
    arguments      TEXT,             -- JSON; absent where nothing is compared with it
    calls          TEXT    NOT NULL, -- JSON: [[run, call], …]
    failures       TEXT    NOT NULL, -- JSON: [[run, call, arguments_hash, failure], …]
    ttl_ms         INTEGER NOT NULL, -- how long a finished entry answers
    changed_ms     INTEGER NOT NULL, -- since when it is in this state, milliseconds since 1970
    why            TEXT    NOT NULL, -- of an unknown one: why; of one not executed: the evidence
    answer         TEXT    NOT NULL, -- of an executed one: result, lost or error
    error          TEXT,             -- JSON
    resolved       TEXT,             -- JSON: who settled an unknown one, and why
    PRIMARY KEY (identity, occurrence)
) STRICT;
CREATE INDEX entries_state ON entries (state) WHERE state IN ('intent', 'unknown');
CREATE TABLE results (
    identity   BLOB    NOT NULL,
    occurrence INTEGER NOT NULL,
    head       TEXT    NOT NULL, -- JSON: status, headers, notes
    body       BLOB    NOT NULL,
    PRIMARY KEY (identity, occurrence)
) STRICT;
", "
CREATE TABLE approvals (
    id         TEXT    NOT NULL PRIMARY KEY,
    state      TEXT    NOT NULL CHECK (state IN ('pending', 'approved', 'rejected', 'spent')),
    tool       TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    run        TEXT    NOT NULL, -- of the call that asked first
    call       TEXT    NOT NULL,
    asked_for  BLOB    NOT NULL CHECK (length(asked_for) = 32),
    binding    BLOB    NOT NULL CHECK (length(binding) = 32), -- what the yes is for; differs where it was edited
    section    BLOB    NOT NULL CHECK (length(section) = 32), -- of the tool's rules
    arguments  TEXT    NOT NULL, -- JSON
    edited     TEXT,             -- JSON: as a person changed them
    why        TEXT    NOT NULL, -- the rule that asked
    ttl_ms     INTEGER NOT NULL, -- how long the question stands, and then the answer
    asked_ms   INTEGER NOT NULL, -- milliseconds since 1970
    changed_ms INTEGER NOT NULL, -- since when it is in this state
    decided    TEXT              -- JSON: who, comment, when
) STRICT;
", "
ALTER TABLE entries ADD COLUMN task TEXT; -- the name of the task that the tool answered with
"];

/// The version this program writes.
pub(super) fn version() -> i64 {
    i64::try_from(SCRIPTS.len()).unwrap_or(i64::MAX)
}

/// The scripts that are still to run; `Err` = written by a later program.
pub(super) fn missing(found: i64) -> Result<&'static [&'static str], String> {
    let at = usize::try_from(found).ok().filter(|at| *at <= SCRIPTS.len());
    at.and_then(|at| SCRIPTS.get(at..)).ok_or_else(|| {
        format!(
            "the store has version {found}, this program knows {} at most; run the newer program",
            version()
        )
    })
}
