//! What a reading finds, and what of the text must not be shown.

use super::tree::{Key, Node, NodeKind};
use crate::call::suggest::distance;
use crate::policy::diagnostic::{Mask, Place, Problem};

/// Most problems of one file that are collected; nobody reads further.
const MAX_PROBLEMS: usize = 1000;

/// What the reading found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) problems: Vec<Problem>,
    pub(crate) masks: Vec<Mask>,
    pub(crate) path: Vec<String>,
    /// Inside a section that may hold secrets: nothing of it is quoted.
    pub(super) hush: bool,
}

impl Report {
    pub(super) fn new(problems: Vec<Problem>, masks: Vec<Mask>) -> Self {
        Self { problems, masks, ..Self::default() }
    }

    /// `tools.check_order.timeout.total`.
    pub(crate) fn path(&self) -> String {
        self.path.join(".")
    }

    pub(crate) fn push(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// Something other than what belongs here.
    pub(crate) fn wrong(&mut self, code: &'static str, node: &Node, expected: &str) {
        let found = match &node.kind {
            NodeKind::Scalar { text, .. } if self.hush || holds_a_user(text) => {
                node.mask_scalars(&|_, _| false, &mut self.masks);
                "a text that is not shown".to_owned()
            }
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Map(_) | NodeKind::Broken => {
                node.described()
            }
        };
        let message = format!("`{}` is {found}, expected {expected}", self.path());
        self.push(Problem::new(code, node.place, message));
    }
}

/// A URL may carry a password: `https://user:word@host`.
fn holds_a_user(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'))
}

/// Where "this whole map" is pointed at: its first key's line.
pub(super) fn first_line(node: &Node) -> Place {
    match &node.kind {
        NodeKind::Map(entries) => {
            let flow = node.place.width != u32::MAX
                && entries.first().is_none_or(|(key, _)| key.place != node.place);
            match entries.first() {
                Some((key, _)) if !flow => key.place,
                _empty_or_flow => node.place,
            }
        }
        NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Broken => node.place,
    }
}

pub(super) fn unknown_keys(node: &Node, known: &[&'static str], report: &mut Report) {
    let NodeKind::Map(entries) = &node.kind else { return };
    for (key, value) in entries {
        if known.contains(&key.text.as_str()) {
            continue;
        }
        // Nobody knows what an unknown key holds: only what cannot be a secret is shown.
        value.mask_scalars(&|_, text| harmless(text), &mut report.masks);
        if report.problems.len() < MAX_PROBLEMS {
            let problem = unknown_key(key, known, report);
            report.push(problem);
        }
    }
}

fn unknown_key(key: &Key, known: &[&'static str], report: &mut Report) -> Problem {
    let near = nearest(&key.text, known);
    let shown = near.is_some() || !report.hush;
    let message = if shown {
        format!("unknown key `{}`", super::tree::short(&key.text))
    } else {
        // `{ word }` is a map too, and the word may be the secret itself.
        let Place { line, column, .. } = key.place;
        report.masks.push(Mask { from: (line, column), to: (line, u32::MAX) });
        "unknown key".to_owned()
    };
    let problem = Problem::new("CR1002", key.place, message);
    if let Some(near) = near {
        return problem.label(format!("did you mean `{near}`?"));
    }
    let elsewhere = crate::policy::json_schema::elsewhere(&key.text).filter(|_| shown);
    if let Some((section, near)) = elsewhere {
        return problem.label(format!("did you mean `{near}` of {section}?"));
    }
    let all = known.iter().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ");
    let whose = match report.path() {
        path if path.is_empty() => "the policy".to_owned(),
        path => format!("`{path}`"),
    };
    problem.hint(format!("{whose} takes {all}"))
}

/// Numbers with a unit and the like: shown even where a secret might have stood.
fn harmless(text: &str) -> bool {
    text.len() <= 6 && text.starts_with(|c: char| c.is_ascii_digit())
        || matches!(text, "true" | "false" | "none")
}

/// The known name within edit distance 2, nearest first.
pub(crate) fn nearest<'k>(asked: &str, known: &[&'k str]) -> Option<&'k str> {
    let long = asked.chars().count();
    known
        .iter()
        // A key of a file may be long: what differs by more than two characters in length is not compared.
        .filter(|name| name.chars().count().abs_diff(long) <= 2)
        .map(|name| (distance(asked, name), *name))
        .filter(|(far, name)| *far <= 2 && *far * 2 < name.chars().count())
        .min()
        .map(|(_, name)| name)
}
