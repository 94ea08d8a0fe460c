//! The statements on approvals. Each states its condition, so that of two who decide one does, and a yes is used up
//! once.

use rusqlite::params;

use super::{Db, opening};
use crate::call::ApprovalId;
use crate::store::approvals::{self, Approval, Columns, columns};
use crate::store::{OpenError, wire};
use crate::telemetry::record::wall_clock;

const ASK: &str = "
INSERT INTO approvals (id, state, tool, agent, run, call, asked_for, binding, section, arguments, edited, why,
                       ttl_ms, asked_ms, changed_ms, decided)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
ON CONFLICT (id) DO NOTHING";

const DECIDE: &str = "
UPDATE approvals SET state = ?2, binding = ?3, edited = ?4, changed_ms = ?5, decided = ?6
WHERE id = ?1 AND state = 'pending'";

const SPEND: &str = "
UPDATE approvals SET state = 'spent', changed_ms = ?2 WHERE id = ?1 AND state = 'approved'";

const FORGET: &str = "DELETE FROM approvals WHERE id = ?1";

const ALL: &str = "
SELECT id, state, tool, agent, run, call, asked_for, binding, section, arguments, edited, why, ttl_ms, asked_ms,
       changed_ms, decided
FROM approvals ORDER BY asked_ms, id";

impl Db {
    pub(super) fn ask(&self, approval: &Approval) -> rusqlite::Result<bool> {
        let row = columns(approval);
        let mut ask = self.connection.prepare_cached(ASK)?;
        let rows = ask.execute(params![
            row.id,
            row.state,
            row.tool,
            row.agent,
            row.run,
            row.call,
            row.asked_for,
            row.binding,
            row.section,
            row.arguments,
            row.edited,
            row.why,
            row.ttl_ms,
            row.asked_ms,
            row.changed_ms,
            row.decided
        ])?;
        Ok(rows == 1)
    }

    pub(super) fn decide(&self, approval: &Approval) -> rusqlite::Result<bool> {
        let row = columns(approval);
        let mut decide = self.connection.prepare_cached(DECIDE)?;
        let (id, state, binding) = (&row.id, &row.state, &row.binding);
        let all = params![id, state, binding, row.edited, row.changed_ms, row.decided];
        Ok(decide.execute(all)? == 1)
    }

    pub(super) fn spend(&self, yes: &ApprovalId) -> rusqlite::Result<bool> {
        let mut spend = self.connection.prepare_cached(SPEND)?;
        Ok(spend.execute(params![yes.as_str(), wire::millis(wall_clock())])? == 1)
    }

    /// Every approval. One that makes no sense is no yes, and is passed over.
    pub(in crate::store) fn approvals(&self) -> Result<Vec<Approval>, OpenError> {
        let fault = |error: rusqlite::Error| opening(&self.file, &error);
        let mut all = self.connection.prepare(ALL).map_err(fault)?;
        let mut rows = all.query([]).map_err(fault)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(fault)? {
            let columns = read(row).map_err(fault)?;
            match approvals::row(&columns) {
                Some(approval) => found.push(approval),
                None => tracing::warn!(id = columns.id, "an approval in the store makes no sense"),
            }
        }
        Ok(found)
    }

    pub(super) fn forget_approvals(&self, all: &[ApprovalId]) -> rusqlite::Result<bool> {
        let mut forget = self.connection.prepare_cached(FORGET)?;
        for id in all {
            forget.execute([id.as_str()])?;
        }
        Ok(true)
    }
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Columns> {
    Ok(Columns {
        id: row.get(0)?,
        state: row.get(1)?,
        tool: row.get(2)?,
        agent: row.get(3)?,
        run: row.get(4)?,
        call: row.get(5)?,
        asked_for: row.get(6)?,
        binding: row.get(7)?,
        section: row.get(8)?,
        arguments: row.get(9)?,
        edited: row.get(10)?,
        why: row.get(11)?,
        ttl_ms: row.get(12)?,
        asked_ms: row.get(13)?,
        changed_ms: row.get(14)?,
        decided: row.get(15)?,
    })
}
