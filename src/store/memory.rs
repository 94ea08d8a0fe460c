//! The engine of tests and of `--store memory`: the same conditions, nothing survives.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Answer, Approval, Change, Row, Said, Standing, StoreError, Which};
use crate::call::{ApprovalId, IdempotencyKey, ToolResult};
use crate::telemetry::record::wall_clock;

type Place = (IdempotencyKey, u32);

#[derive(Debug, Default)]
pub struct Memory {
    tables: Mutex<Tables>,
    keeps_results: bool,
}

#[derive(Debug, Default)]
struct Tables {
    entries: HashMap<Place, Row>,
    results: HashMap<Place, ToolResult>,
    approvals: HashMap<ApprovalId, Approval>,
}

fn is_open(row: &Row) -> bool {
    match row.standing {
        Standing::Intent | Standing::Unknown { .. } => true,
        Standing::Executed(_) | Standing::NotExecuted { .. } | Standing::Compensated => false,
    }
}

impl Memory {
    /// Keeps rows without results: whoever uses it has them in a cache with a bound.
    pub fn without_results() -> Self {
        Self::default()
    }

    /// Keeps all, without a bound: for tests of the seam.
    pub fn whole() -> Self {
        Self { keeps_results: true, ..Self::default() }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn result(&self, key: IdempotencyKey, occurrence: u32) -> Option<ToolResult> {
        self.tables().results.get(&(key, occurrence)).cloned()
    }

    /// Every row, in no order.
    pub fn rows(&self) -> Vec<Row> {
        self.tables().entries.values().cloned().collect()
    }

    /// Every approval, in no order.
    pub(super) fn approvals(&self) -> Vec<Approval> {
        self.tables().approvals.values().cloned().collect()
    }

    pub(super) fn apply(&self, change: &Change) -> Result<(), StoreError> {
        let mut tables = self.tables();
        match change {
            Change::Put { row, result } => {
                if tables.entries.get(&place(row.which)).is_some_and(is_open) {
                    return Err(StoreError::Refused);
                }
                self.keep(&mut tables, row, result.as_deref());
            }
            Change::End { row, result } => {
                let found = tables.entries.get(&place(row.which));
                if !found.is_some_and(|found| found.which == row.which && is_open(found)) {
                    return Err(StoreError::Refused);
                }
                self.keep(&mut tables, row, result.as_deref());
            }
            Change::Found { which, result } => {
                let found = tables.entries.get_mut(&place(*which));
                let row = found.filter(|row| row.which == *which).ok_or(StoreError::Refused)?;
                let Standing::Executed(answer @ Answer::Lost) = &mut row.standing else {
                    return Err(StoreError::Refused);
                };
                *answer = Answer::Result;
                if self.keeps_results {
                    tables.results.insert(place(*which), (**result).clone());
                }
            }
            Change::Task { which, task } => {
                let found = tables.entries.get_mut(&place(*which));
                let row = found.filter(|row| row.which == *which && is_open(row));
                row.ok_or(StoreError::Refused)?.task = Some(task.clone());
            }
            Change::Calls { which, calls } => {
                let found = tables.entries.get_mut(&place(*which));
                let row = found.filter(|row| row.which == *which).ok_or(StoreError::Refused)?;
                row.calls.clone_from(calls);
            }
            Change::Recover => {
                for row in tables.entries.values_mut() {
                    if let Standing::Intent = row.standing {
                        row.standing = Standing::Unknown { why: "crash".into() };
                    }
                }
            }
            Change::PutSpending { row, yes } => {
                if tables.entries.get(&place(row.which)).is_some_and(is_open) {
                    return Err(StoreError::Refused);
                }
                spend(&mut tables, yes)?;
                self.keep(&mut tables, row, None);
            }
            Change::Ask(approval) => {
                if tables.approvals.contains_key(&approval.id) {
                    return Err(StoreError::Refused);
                }
                tables.approvals.insert(approval.id.clone(), (**approval).clone());
            }
            Change::Decide(approval) => {
                let found = tables.approvals.get_mut(&approval.id);
                let open = found.filter(|found| found.said == Said::Pending);
                *open.ok_or(StoreError::Refused)? = (**approval).clone();
            }
            Change::Spend(yes) => spend(&mut tables, yes)?,
            Change::ForgetApprovals(all) => {
                for id in all {
                    tables.approvals.remove(id);
                }
            }
            Change::Forget(rows) => {
                for which in rows {
                    let found = tables.entries.get(&place(*which));
                    if found.is_some_and(|row| row.which == *which && !is_open(row)) {
                        tables.entries.remove(&place(*which));
                        tables.results.remove(&place(*which));
                    }
                }
            }
        }
        Ok(())
    }

    fn keep(&self, tables: &mut Tables, row: &Row, result: Option<&ToolResult>) {
        let at = place(row.which);
        tables.entries.insert(at, row.clone());
        tables.results.remove(&at);
        if let Some(result) = result.filter(|_| self.keeps_results) {
            tables.results.insert(at, result.clone());
        }
    }
}

fn spend(tables: &mut Tables, yes: &ApprovalId) -> Result<(), StoreError> {
    let found = tables.approvals.get_mut(yes).filter(|found| found.said == Said::Approved);
    let found = found.ok_or(StoreError::Refused)?;
    (found.said, found.changed) = (Said::Spent, wall_clock());
    Ok(())
}

fn place(which: Which) -> Place {
    (which.key, which.occurrence)
}
