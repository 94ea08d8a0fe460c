//! An agent's own runs: open, look at, sum up, end. Another agent's run answers exactly as one that never was.

use bytes::Bytes;
use serde_json::Value;

use super::render::{Problem, Reply};
use crate::call::code::DenyCode;
use crate::call::{AgentId, Denied, RunId};
use crate::engine::{Engine, RunView};
use crate::strict_json::object::Object;
use crate::strict_json::{self, Kind, Limits};

/// Longest body here.
pub(super) const BODY_BYTES: usize = 16 * 1024;
/// Longest goal kept with a run.
const GOAL_BYTES: usize = 4 * 1024;

/// `POST /v1/runs`.
pub(super) fn open(engine: &Engine, agent: &AgentId, body: &Bytes) -> Result<Reply, Problem> {
    let [goal, budget] = texts(body, ["goal", "budget"])?;
    if goal.as_ref().is_some_and(|goal| goal.len() > GOAL_BYTES) {
        return Err(Problem::invalid(format!("`/goal` has more than {GOAL_BYTES} bytes")));
    }
    let view = engine.open_run(agent, goal, budget.as_deref()).map_err(Problem::denied)?;
    let location = format!("/v1/runs/{}", view.run);
    Ok(Reply::created(shown(&view), &location).run(view.run))
}

/// `GET /v1/runs/{run}`.
pub(super) fn view(engine: &Engine, agent: &AgentId, run: &str) -> Result<Reply, Problem> {
    let view = engine.run_view(agent, &named(run)?).map_err(Problem::denied)?;
    Ok(Reply::json(shown(&view)).run(view.run))
}

/// `GET /v1/runs/{run}/summary`.
pub(super) fn summary(engine: &Engine, agent: &AgentId, run: &str) -> Result<Reply, Problem> {
    let run = named(run)?;
    let summary = engine.run_summary(agent, &run).map_err(Problem::denied)?;
    let mut object = Object::with_capacity(512);
    object.string("summary", &summary.text);
    object.objects("failures", &summary.failures, |o, (tool, error, count)| {
        o.string("tool", tool.as_str());
        o.string("error", error);
        o.number("count", *count);
    });
    Ok(Reply::json(object.finish()).run(run))
}

/// `POST /v1/runs/{run}/finish`.
pub(super) fn finish(
    engine: &Engine,
    agent: &AgentId,
    run: &str,
    body: &Bytes,
) -> Result<Reply, Problem> {
    let run = named(run)?;
    let [state] = texts(body, ["state"])?;
    if state.as_deref().is_some_and(|state| state != "done") {
        return Err(Problem::invalid("`/state` can only be \"done\""));
    }
    let view = engine.finish_run(agent, &run).map_err(Problem::denied)?;
    Ok(Reply::json(shown(&view)).run(view.run))
}

/// A path's piece that is no run id names no run.
fn named(run: &str) -> Result<RunId, Problem> {
    RunId::new(run).map_err(|_| {
        Problem::denied(Denied::new(DenyCode::RunUnknown, "there is no such run of this agent"))
    })
}

fn shown(view: &RunView) -> Vec<u8> {
    let mut object = Object::with_capacity(512);
    object.string("run", view.run.as_str());
    object.string("state", view.state.as_str());
    object.nested("budgets", |budgets| {
        for (dimension, used, limit) in &view.budgets {
            budgets.nested(dimension.as_str(), |budget| {
                budget.number("used", *used);
                match limit {
                    Some(limit) => budget.number("limit", *limit),
                    None => budget.raw("limit", "null"),
                }
            });
        }
    });
    object.finish()
}

/// The text members of a small body; nothing else may stand in it. An absent body is an empty one.
fn texts<const N: usize>(body: &[u8], names: [&str; N]) -> Result<[Option<String>; N], Problem> {
    let mut found = [const { None }; N];
    let limits = Limits::arguments(BODY_BYTES, 4);
    let members = match strict_json::parse(body, limits) {
        Ok(Value::Object(members)) => members,
        Ok(_) => return Err(Problem::invalid("the body must be one JSON object")),
        Err(fault) if fault.kind == Kind::Empty => return Ok(found),
        Err(fault) => return Err(Problem::invalid(format!("the body is not sound: {fault}"))),
    };
    for (name, member) in members {
        let place = names.iter().position(|known| *known == name);
        match (place.and_then(|at| found.get_mut(at)), member) {
            (Some(place), Value::String(text)) => *place = Some(text),
            (Some(_), Value::Null) => {}
            (Some(_), _) => return Err(Problem::invalid(format!("`/{name}` must be a string"))),
            (None, _) => {
                let known = names.join("`, `");
                return Err(Problem::invalid(format!("the body may only hold `{known}`")));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Dimension;
    use crate::call::turn::LoopState;

    #[test]
    fn a_body_holds_known_texts_only() {
        assert_eq!(texts(b"", ["goal"]).expect("empty"), [None]);
        assert_eq!(texts(br#"{"goal":"x"}"#, ["goal"]).expect("known"), [Some("x".to_owned())]);
        assert_eq!(texts(br#"{"goal":null}"#, ["goal"]).expect("null"), [None]);
        for body in [
            r#"[]"#,
            r#"{"goal":1}"#,
            r#"{"gaol":"x"}"#,
            r#"{"goal":"a","goal":"b"}"#,
            r#"{"goal":"a"} x"#,
            r#"{"goal":NaN}"#,
        ] {
            assert!(texts(body.as_bytes(), ["goal"]).is_err(), "{body}");
        }
    }

    #[test]
    fn a_run_shows_its_budgets_and_null_for_no_limit() {
        let view = RunView {
            run: RunId::new("r1").expect("id"),
            state: LoopState::Continue,
            budgets: vec![(Dimension::Rounds, 1, Some(10)), (Dimension::Cost, 0, None)],
        };
        assert_eq!(
            String::from_utf8(shown(&view)).expect("utf-8"),
            r#"{"run":"r1","state":"continue","budgets":{"rounds":{"used":1,"limit":10},"cost":{"used":0,"limit":null}}}"#
        );
    }

    #[test]
    fn a_path_piece_that_is_no_run_id_is_an_unknown_run() {
        assert!(named("a/b").is_err());
        assert!(named("ok-1").is_ok());
    }
}
