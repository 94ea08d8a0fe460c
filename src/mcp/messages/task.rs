//! A task of the extension `io.modelcontextprotocol/tasks` (SEP-2663): what a server answers in place of a result, and
//! what it says of it when it is asked.

use std::time::Duration;

use serde_json::Value;

use super::Wrong;
use crate::mcp::jsonrpc::ErrorReply;

/// The extension's name among a client's capabilities.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";
/// Bytes of a task's id: it is kept, and stands in a header.
pub const MAX_TASK_ID: usize = 1024;

/// How far a task has come.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskStatus<'v> {
    Working,
    /// It waits for answers that are given by `tasks/update`.
    InputRequired,
    /// With the result that the request would have had; also one with `isError`.
    Completed(&'v Value),
    /// With the JSON-RPC error that the request would have had.
    Failed(ErrorReply),
    /// No proof that nothing was done: work may end all the same.
    Cancelled,
}

/// A task as a server tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskState<'v> {
    pub id: &'v str,
    pub status: TaskStatus<'v>,
    /// In the server's words.
    pub message: Option<&'v str>,
    /// When the server wants to be asked next.
    pub poll: Option<Duration>,
}

impl<'v> TaskState<'v> {
    /// Reads a result of kind `task`: the handle of a task that has begun, of whatever status. Its outcome is asked for.
    pub fn handle(result: &'v Value) -> Result<(&'v str, Option<Duration>), Wrong> {
        let members = whole(result);
        Ok((id(members)?, poll(members)))
    }

    /// Reads a result of `tasks/get`.
    pub fn of(result: &'v Value) -> Result<Self, Wrong> {
        let members = whole(result);
        let message = members.get("statusMessage").and_then(Value::as_str);
        let status = match members.get("status").and_then(Value::as_str) {
            Some("working") => TaskStatus::Working,
            Some("input_required") => TaskStatus::InputRequired,
            Some("completed") => match members.get("result").filter(|one| one.is_object()) {
                Some(result) => TaskStatus::Completed(result),
                None => return Err(Wrong::new("/result", "a completed task without its result")),
            },
            Some("failed") => TaskStatus::Failed(error(members)?),
            Some("cancelled") => TaskStatus::Cancelled,
            Some(_) | None => return Err(Wrong::new("/status", "not a status of a task")),
        };
        Ok(Self { id: id(members)?, status, message, poll: poll(members) })
    }
}

/// The members stand in the result itself; drafts of the extension had them in `task`.
fn whole(result: &Value) -> &Value {
    match (result.get("taskId"), result.get("task")) {
        (None, Some(task)) if task.is_object() => task,
        (_, _) => result,
    }
}

fn id(members: &Value) -> Result<&str, Wrong> {
    let wrong = |why| Wrong::new("/taskId", why);
    let id = members.get("taskId").and_then(Value::as_str);
    let id = id.ok_or_else(|| wrong("must be a string"))?;
    match id.is_empty() || id.len() > MAX_TASK_ID {
        true => Err(wrong("must have 1 to 1024 bytes")),
        false => Ok(id),
    }
}

fn poll(members: &Value) -> Option<Duration> {
    members.get("pollIntervalMs").and_then(Value::as_u64).map(Duration::from_millis)
}

fn error(members: &Value) -> Result<ErrorReply, Wrong> {
    let wrong = || Wrong::new("/error", "a failed task without its JSON-RPC error");
    let error = members.get("error").ok_or_else(wrong)?;
    let code = error.get("code").and_then(Value::as_i64).ok_or_else(wrong)?;
    let message = error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(ErrorReply { id: None, code, message, data: error.get("data").cloned() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_handle_is_read_flat_and_in_the_form_of_drafts() {
        let flat =
            json!({"resultType": "task", "taskId": "t", "status": "working", "pollIntervalMs": 7});
        let nested = json!({"resultType": "task", "task": {"taskId": "t", "status": "working", "pollIntervalMs": 7}});
        for result in [flat, nested] {
            let seven = Some(Duration::from_millis(7));
            assert_eq!(TaskState::handle(&result), Ok(("t", seven)), "{result}");
        }
        for wrong in [json!({}), json!({"taskId": 1}), json!({"taskId": ""}), json!([])] {
            assert!(TaskState::handle(&wrong).is_err(), "{wrong}");
        }
        let long = "x".repeat(MAX_TASK_ID + 1);
        assert!(TaskState::handle(&json!({"taskId": long})).is_err());
    }

    #[test]
    fn a_status_comes_with_what_belongs_to_it_or_is_none() {
        let of = |more: Value| {
            let mut task = json!({"taskId": "t"});
            for (name, value) in more.as_object().into_iter().flatten() {
                task[name] = value.clone();
            }
            TaskState::of(&task)
                .map(|state| format!("{:?}", state.status))
                .map_err(|wrong| wrong.at)
        };
        assert_eq!(of(json!({"status": "working"})), Ok("Working".into()));
        assert_eq!(of(json!({"status": "input_required"})), Ok("InputRequired".into()));
        assert_eq!(of(json!({"status": "cancelled"})), Ok("Cancelled".into()));
        assert!(of(json!({"status": "completed", "result": {"content": []}})).is_ok());
        assert_eq!(of(json!({"status": "completed"})), Err("/result".into()));
        let failed = json!({"status": "failed", "error": {"code": -32603, "message": "m"}});
        assert!(of(failed).is_ok_and(|status| status.contains("-32603")));
        assert_eq!(of(json!({"status": "failed", "error": {}})), Err("/error".into()));
        assert_eq!(of(json!({"status": "done"})), Err("/status".into()));
        assert_eq!(of(json!({})), Err("/status".into()));
    }
}
