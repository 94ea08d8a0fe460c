//! Three witnesses of a chaos run, compared: the tool's own log, what agents were told, the rows of the ledger file.
//! It knows nothing of the gateway's inside, and believes the tool.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::agents::Told;
use crate::support::tool::{Applied, Request};

/// An entry of the ledger, as the file has it.
#[derive(Debug)]
pub(super) struct Row {
    order: String,
    state: String,
    occurrence: i64,
}

#[derive(Debug)]
pub(super) struct Evidence {
    pub(super) writes: usize,
    pub(super) requests: Vec<Request>,
    pub(super) applied: Vec<Applied>,
    pub(super) told: Vec<Told>,
    pub(super) faults: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
    pub(super) done: super::Done,
}

const SQL: &str =
    "SELECT json_extract(arguments, '$.order_ref') AS name, state, occurrence FROM entries";

/// By the ordinary `sqlite3` where there is one: the file is what counts, not the program that wrote it.
pub(super) fn rows(file: &Path) -> Vec<Row> {
    let shell = Command::new("sqlite3").args(["-readonly", "-json"]).arg(file).arg(SQL).output();
    let Ok(output) = shell else { return rows_by_library(file) };
    assert!(output.status.success(), "sqlite3: {}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("rows as JSON");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    rows.iter()
        .map(|row| Row {
            order: text(&row["name"]),
            state: text(&row["state"]),
            occurrence: row["occurrence"].as_i64().expect("a number"),
        })
        .collect()
}

fn rows_by_library(file: &Path) -> Vec<Row> {
    let db = rusqlite::Connection::open(file).expect("the store opens");
    let mut asked = db.prepare(SQL).expect("the schema is known");
    let rows = asked.query_map([], |row| {
        Ok(Row { order: row.get(0)?, state: row.get(1)?, occurrence: row.get(2)? })
    });
    rows.expect("it answers").map(|row| row.expect("a row")).collect()
}

impl Told {
    pub(super) fn ok(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer["ok"] == true)
    }
    fn error(&self) -> &str {
        self.answer.as_ref().and_then(|answer| answer["error"].as_str()).unwrap_or("none")
    }
    /// What the answer says of the operation.
    fn said(&self) -> &str {
        match &self.answer {
            None => "no answer",
            Some(_) if self.ok() => "yes",
            Some(answer) => answer["executed"].as_str().unwrap_or("nothing"),
        }
    }
}

fn note(request: &Request) -> Option<String> {
    let body: Value = serde_json::from_slice(&request.body).ok()?;
    body["note"].as_str().map(str::to_owned)
}

/// The tool's log by order and by note, and the ledger by order.
struct Truth<'e> {
    by_order: HashMap<&'e str, Vec<&'e Applied>>,
    by_note: HashMap<String, &'e Applied>,
    rows: HashMap<&'e str, Vec<&'e Row>>,
}

impl Evidence {
    fn truth(&self) -> Truth<'_> {
        let mut by_order: HashMap<&str, Vec<&Applied>> = HashMap::new();
        for applied in &self.applied {
            by_order.entry(&applied.key).or_default().push(applied);
        }
        let by_note = self.applied.iter().filter_map(|a| Some((note(&a.request)?, a))).collect();
        let mut rows: HashMap<&str, Vec<&Row>> = HashMap::new();
        for row in &self.rows {
            rows.entry(&row.order).or_default().push(row);
        }
        Truth { by_order, by_note, rows }
    }

    /// Every sentence is a fault of the gateway.
    pub(super) fn violations(&self) -> Vec<String> {
        let truth = self.truth();
        let mut wrong = self.executed_twice(&truth);
        wrong.extend(self.unaccounted(&truth));
        // From here on what agents were told is held against these two.
        wrong.extend(self.told.iter().filter_map(|told| told_wrongly(told, &truth)));
        wrong.extend(self.told_last_wrongly(&truth));
        wrong.extend(self.answers_that_differ());
        let order = |sentence: &str| sentence.split([' ', ':']).next().map(str::to_owned);
        let orders: BTreeSet<String> = wrong.iter().filter_map(|each| order(each)).collect();
        wrong.extend(orders.iter().map(|order| self.story(order)));
        wrong
    }

    /// All that was said and done of one order, in order of time.
    fn story(&self, order: &str) -> String {
        let asked = self.told.iter().filter(|told| told.order == order).flat_map(|told| {
            let heard = format!("{} heard {} {}", told.note, told.said(), told.error());
            [(told.begun, format!("{} asks", told.note)), (told.heard, heard)]
        });
        let applied = self.applied.iter().filter(|each| each.key == order);
        let applied = applied.map(|each| {
            (each.at, format!("EXECUTED for {}", note(&each.request).unwrap_or_default()))
        });
        let mut all: Vec<_> = asked.chain(applied).collect();
        all.sort();
        let first = all.first().map(|(at, _)| *at);
        let told = all.iter().filter_map(|(at, what)| {
            Some(format!("  {:>6} ms {what}", at.duration_since(first?).as_millis()))
        });
        format!("{order}:\n{}", told.collect::<Vec<_>>().join("\n"))
    }

    /// No operation is executed twice, and no call is sent twice.
    fn executed_twice(&self, truth: &Truth<'_>) -> Vec<String> {
        let mut sent: HashMap<String, usize> = HashMap::new();
        for note in self.requests.iter().filter_map(note) {
            *sent.entry(note).or_default() += 1;
        }
        let twice = sent.iter().filter(|(_, times)| **times > 1);
        let twice =
            twice.map(|(note, times)| format!("call {note} reached the tool {times} times"));
        let executed = truth.by_order.iter().filter(|(_, applied)| applied.len() > 1);
        let executed = executed.map(|(order, applied)| {
            let notes: Vec<_> = applied.iter().filter_map(|each| note(&each.request)).collect();
            format!("{order} was executed {} times: {notes:?}", applied.len())
        });
        executed.chain(twice).collect()
    }

    /// Each operation is on record once, by an end that fits what the tool did: all were asked for at the end, so
    /// none is left that did not happen.
    fn unaccounted(&self, truth: &Truth<'_>) -> Vec<String> {
        let mut wrong = Vec::new();
        for at in 0..self.writes {
            let order = format!("order-{at}");
            let executed = truth.by_order.contains_key(&*order);
            let rows = truth.rows.get(&*order).map_or(&[][..], |rows| rows);
            let states: Vec<(&str, i64)> =
                rows.iter().map(|row| (&*row.state, row.occurrence)).collect();
            match (&states[..], executed) {
                ([("executed", 0)], true) | ([("unknown", 0)], _) => {}
                _ => wrong.push(format!("{order}: executed {executed}, on record {states:?}")),
            }
        }
        let known = |order: &str| {
            let number = order.strip_prefix("order-").and_then(|n| n.parse::<usize>().ok());
            number.is_some_and(|n| n < self.writes)
        };
        let strange = truth.rows.keys().chain(truth.by_order.keys()).filter(|name| !known(name));
        wrong.extend(strange.map(|name| format!("{name}: nobody asked for it")));
        wrong
    }

    /// Who asks last is told what is on record: nothing that was acknowledged is lost.
    fn told_last_wrongly(&self, truth: &Truth<'_>) -> Vec<String> {
        let last: HashMap<&str, &Told> =
            self.told.iter().filter(|told| told.last).map(|told| (&*told.order, told)).collect();
        let all = (0..self.writes).map(|at| format!("order-{at}"));
        all.filter_map(|order| {
            let told = last.get(&*order).map_or("no answer", |told| told.said());
            let state =
                truth.rows.get(&*order).and_then(|rows| rows.first()).map(|row| &*row.state);
            let right =
                matches!((state, told), (Some("executed"), "yes") | (Some("unknown"), "unknown"));
            (!right).then(|| format!("{order}: on record {state:?}, told last {told:?}"))
        })
        .collect()
    }

    /// Who is told that it is done is told the one result there is.
    fn answers_that_differ(&self) -> Vec<String> {
        let mut first: HashMap<&str, &Value> = HashMap::new();
        let done = self.told.iter().filter(|told| told.ok());
        done.filter_map(|told| {
            let value = &told.answer.as_ref()?["value"];
            let one = *first.entry(&told.order).or_insert(value);
            (one != value).then(|| format!("{}: {one}, then {value}", told.order))
        })
        .collect()
    }

    /// How often each answer was given, and what the run met.
    pub(super) fn summary(&self) -> String {
        let mut answers: BTreeMap<String, usize> = BTreeMap::new();
        for told in &self.told {
            let replayed = told.answer.as_ref().is_some_and(|answer| answer["replayed"] == true);
            let how = match (told.ok(), replayed) {
                (true, true) => "replayed".to_owned(),
                (true, false) => "ok".to_owned(),
                (false, _) => format!("{} ({})", told.error(), told.said()),
            };
            *answers.entry(how).or_default() += 1;
        }
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        self.rows.iter().for_each(|row| *states.entry(&row.state).or_default() += 1);
        let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
        self.faults.iter().for_each(|fault| *faults.entry(fault).or_default() += 1);
        format!(
            "{} operations, {} requests at the tool, {} executed; told {answers:?}; on record {states:?}; the tool drew {faults:?}; done {:?}",
            self.writes,
            self.requests.len(),
            self.applied.len(),
            self.met(),
        )
    }

    /// What was done to them all, and how often the same write was asked for at once.
    fn met(&self) -> BTreeMap<String, usize> {
        let mut met: BTreeMap<String, usize> = [
            ("SIGKILL of the gateway", self.done.kills),
            ("SIGKILL with calls in flight", self.done.kills_in_flight),
            ("restart of the tool", self.done.tool_restarts),
            ("agent hung up", self.told.iter().filter(|told| told.hung_up).count()),
            ("no answer", self.told.iter().filter(|t| t.answer.is_none() && !t.hung_up).count()),
        ]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
        let mut by_order: HashMap<&str, Vec<&Told>> = HashMap::new();
        self.told.iter().for_each(|told| by_order.entry(&told.order).or_default().push(told));
        let at_once = |one: &Told, other: &Told| {
            one.note != other.note && one.begun < other.heard && other.begun < one.heard
        };
        for told in &self.told {
            let others = by_order.get(&*told.order).map_or(&[][..], |all| all);
            if others.iter().any(|other| at_once(told, other)) {
                *met.entry(format!("at once through {}", told.front.name())).or_default() += 1;
            }
            if others.iter().any(|other| at_once(told, other) && other.front != told.front) {
                *met.entry("at once through two front ends".into()).or_default() += 1;
            }
        }
        met
    }

    /// What a run of this size meets, or it shows nothing.
    pub(super) fn not_met(&self) -> Vec<&'static str> {
        let summary = self.summary();
        let wanted = [
            "ok",
            "replayed",
            "outcome_unknown (unknown)",
            "review_required (unknown)",
            "result_lost (yes)",
            "rate_limited (no)",
            "upstream_unreachable (no)",
            "reset before the effect",
            "reset after the effect",
            "applied, then a stall",
            "applied, the reply lost",
            "applied, then 5xx",
            "503, not applied",
            "applied, the body cut",
            "applied too late",
            "closed before the effect",
            "a stall before the effect",
            "429",
            "425",
            "SIGKILL of the gateway",
            "SIGKILL with calls in flight",
            "restart of the tool",
            "agent hung up",
            "no answer",
            "at once through tools API",
            "at once through OpenAI chat",
            "at once through OpenAI responses",
            "at once through Anthropic messages",
            "at once through two front ends",
        ];
        let none = |name: &&str| {
            !summary.contains(&format!("\"{name}\": "))
                || summary.contains(&format!("\"{name}\": 0"))
        };
        wanted.into_iter().filter(none).collect()
    }
}

/// "Done" needs an effect that was there when it was said; "not done" needs that there was none when it was asked,
/// and that this very call never had one.
fn told_wrongly(told: &Told, truth: &Truth<'_>) -> Option<String> {
    let effect = truth.by_order.get(&*told.order).and_then(|applied| applied.first());
    let why = match told.said() {
        "yes" if effect.is_none() => "was never executed",
        "yes" if effect.is_some_and(|effect| effect.at > told.heard) => "was executed only later",
        "no" if truth.by_note.contains_key(&told.note) => "this call was executed",
        // It was not looked up: this answer speaks of the call alone.
        "no" if told.error() == "skipped_pending_review" => return None,
        "no" if effect.is_some_and(|effect| effect.at < told.begun) => "had been executed before",
        "yes" | "no" | "unknown" | "no answer" => return None,
        _ => "the answer says nothing of it",
    };
    Some(format!("{} ({}): {why}; told {} {}", told.order, told.note, told.said(), told.error()))
}

/// A checker that finds nothing anywhere would pass every run: each kind of lie is found, and by its name.
#[test]
fn the_chaos_checker_finds_each_kind_of_lie() {
    let honest = Evidence::of_one("yes", "executed", &["c0"]);
    assert_eq!(honest.violations(), Vec::<String>::new());
    let lies = [
        (Evidence::of_one("yes", "executed", &["c0", "c1"]), "was executed 2 times"),
        (Evidence::of_one("yes", "executed", &[]), "was never executed"),
        (Evidence::of_one("no", "executed", &["c0"]), "this call was executed"),
        (Evidence::of_one("no", "executed", &["c1"]), "had been executed before"),
        (Evidence::of_one("unknown", "intent", &["c0"]), "on record [(\"intent\", 0)]"),
        (Evidence::of_one("yes", "not_executed", &["c0"]), "on record [(\"not_executed\", 0)]"),
        (Evidence::of_one("no answer", "executed", &["c0"]), "told last \"no answer\""),
    ];
    for (lie, name) in lies {
        let found = lie.violations();
        assert!(found.iter().any(|sentence| sentence.contains(name)), "{name}: {found:?}");
    }
    let mut sent_twice = Evidence::of_one("yes", "executed", &["c0"]);
    sent_twice.requests.extend(sent_twice.requests.clone());
    assert!(sent_twice.violations().iter().any(|each| each.contains("reached the tool 2 times")));
    let mut forgotten = Evidence::of_one("yes", "executed", &["c0"]);
    forgotten.rows.clear();
    assert!(forgotten.violations().iter().any(|each| each.contains("on record []")));
}

impl Evidence {
    /// One order: what its call `c0` was told, its state on record, and the calls it was executed for.
    fn of_one(said: &str, state: &str, executed_for: &[&str]) -> Self {
        let order = "order-0".to_owned();
        let request = |note: &&str| Request {
            method: "POST".into(),
            target: "/create".into(),
            headers: Vec::new(),
            body: format!(r#"{{"order_ref":"order-0","note":"{note}"}}"#).into_bytes(),
        };
        let requests: Vec<Request> = executed_for.iter().map(request).collect();
        let at = tokio::time::Instant::now();
        let (begun, heard) = (at + Duration::from_millis(1), at + Duration::from_millis(2));
        let answer = match said {
            "no answer" => None,
            "yes" => Some(serde_json::json!({"ok": true, "value": 1})),
            other => Some(serde_json::json!({"ok": false, "error": "e", "executed": other})),
        };
        let applied = requests.iter().cloned();
        Self {
            writes: 1,
            applied: applied.map(|request| Applied { key: order.clone(), request, at }).collect(),
            requests,
            told: vec![Told {
                order: order.clone(),
                note: "c0".into(),
                front: super::agents::Front::ToolsApi,
                hung_up: false,
                begun,
                heard,
                answer,
                last: true,
            }],
            faults: Vec::new(),
            done: super::Done::default(),
            rows: vec![Row { order, state: state.into(), occurrence: 0 }],
        }
    }
}
