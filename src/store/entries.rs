//! The statements on entries. Each states its condition, so that a change which comes too late changes nothing.

/// A new row; refused over one that is, or may be, under way.
pub(super) const PUT: &str = "
INSERT INTO entries (identity, occurrence, claim, operation, state, tool, agent, arguments_hash, arguments,
                     calls, failures, ttl_ms, changed_ms, why, answer, error, resolved, task)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
ON CONFLICT (identity, occurrence) DO UPDATE SET
    claim = excluded.claim, state = excluded.state, agent = excluded.agent,
    arguments_hash = excluded.arguments_hash, arguments = excluded.arguments, calls = excluded.calls,
    failures = excluded.failures, ttl_ms = excluded.ttl_ms, changed_ms = excluded.changed_ms,
    why = excluded.why, answer = excluded.answer, error = excluded.error, resolved = excluded.resolved,
    task = excluded.task
WHERE entries.state NOT IN ('intent', 'unknown')";

/// The end of the same claim, once.
pub(super) const END: &str = "
UPDATE entries SET state = ?4, calls = ?5, failures = ?6, changed_ms = ?7, why = ?8, answer = ?9, error = ?10,
                   resolved = ?11
WHERE identity = ?1 AND occurrence = ?2 AND claim = ?3 AND state IN ('intent', 'unknown')";

/// The result of the same claim, where it was lost.
pub(super) const FOUND: &str = "
UPDATE entries SET answer = 'result'
WHERE identity = ?1 AND occurrence = ?2 AND claim = ?3 AND state = 'executed' AND answer = 'lost'";

/// The task of the same claim, as long as its end is not known.
pub(super) const TASK: &str = "
UPDATE entries SET task = ?4
WHERE identity = ?1 AND occurrence = ?2 AND claim = ?3 AND state IN ('intent', 'unknown')";

pub(super) const CALLS: &str = "
UPDATE entries SET calls = ?4 WHERE identity = ?1 AND occurrence = ?2 AND claim = ?3";

pub(super) const RECOVER: &str = "
UPDATE entries SET state = 'unknown', why = 'crash' WHERE state = 'intent'";

/// Unknown entries are never forgotten, whatever asks for it.
pub(super) const FORGET: &str = "
DELETE FROM entries
WHERE identity = ?1 AND occurrence = ?2 AND claim = ?3 AND state NOT IN ('intent', 'unknown')";

pub(super) const KEEP_RESULT: &str = "
INSERT INTO results (identity, occurrence, head, body) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (identity, occurrence) DO UPDATE SET head = excluded.head, body = excluded.body";

pub(super) const DROP_RESULT: &str = "DELETE FROM results WHERE identity = ?1 AND occurrence = ?2";

pub(super) const RESULT: &str =
    "SELECT head, body FROM results WHERE identity = ?1 AND occurrence = ?2";

pub(super) const ALL: &str = "
SELECT identity, occurrence, claim, state, tool, agent, arguments_hash, arguments, calls, failures, ttl_ms,
       changed_ms, why, answer, error, resolved, task
FROM entries ORDER BY identity, occurrence";

pub(super) const GET_META: &str = "SELECT value FROM meta WHERE name = ?1";
pub(super) const SET_META: &str = "
INSERT INTO meta (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
