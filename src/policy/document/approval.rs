//! `approval`: when a person is asked before a call is sent, and who may answer.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Maybe;
use super::kinds::DURATION;
use super::read::{At, Fields, Kind, List, Record, Report, Words};
use super::remedies::PredicateKind;
use super::tree::{Node, NodeKind, Scalar};
use crate::policy::diagnostic::Problem;
use crate::policy::snapshot::{Allowed, When};

/// Longest name of who may answer.
const MAX_NAME: usize = 128;

/// `tools.X.approval`.
#[derive(Debug, Clone)]
pub struct Approval {
    pub when: Maybe<When>,
    /// Names of credentials of the admin listener, without `user:`.
    pub approvers: Maybe<Vec<At<String>>>,
    pub decisions: Maybe<Vec<At<Allowed>>>,
    pub expires: Maybe<Duration>,
}

pub(super) const APPROVAL: Record<Approval> = Record { name: "approval", fields: Approval::fields };

impl Approval {
    fn fields(f: &mut Fields<'_>) -> Self {
        let words = Words(&[
            ("approve", Some(Allowed::Approve)),
            ("edit", Some(Allowed::Edit)),
            ("reject", Some(Allowed::Reject)),
        ]);
        let approval = Self {
            when: f.required("when", WhenKind),
            approvers: f.optional("approvers", List { of: ApproverKind, least: 1 }),
            decisions: f.optional("decisions", List { of: words, least: 1 }),
            expires: f.optional("expires", DURATION),
        };
        f.optional("quorum", OnePerson);
        f.check(somebody_can_say_yes);
        approval
    }
}

/// A question that nobody can say yes to is a refusal in disguise.
fn somebody_can_say_yes(node: &Node, report: &mut Report) {
    let Some(decisions) = node.get("decisions") else { return };
    let NodeKind::List(items) = &decisions.kind else { return };
    let is_yes = |item: &Node| matches!(&item.kind, NodeKind::Scalar { text, .. } if text == "approve" || text == "edit");
    if !items.is_empty() && !items.iter().any(is_yes) {
        report.wrong(
            "CR1004",
            decisions,
            "a list with `approve` or `edit`: somebody must be able to say yes",
        );
    }
}

/// `always`, or a predicate on the arguments.
struct WhenKind;

impl Kind for WhenKind {
    type Out = When;

    fn read(&self, node: &Node, report: &mut Report) -> Option<When> {
        match &node.kind {
            NodeKind::Scalar { text, .. } if text == "always" => Some(When::Always),
            NodeKind::Map(_) => PredicateKind.read(node, report).map(When::If),
            NodeKind::Scalar { .. } | NodeKind::List(_) | NodeKind::Broken => {
                report.wrong("CR1004", node, "`always` or a predicate on the arguments");
                None
            }
        }
    }

    fn schema(&self, defs: &mut Map<String, Value>) -> Value {
        json!({ "anyOf": [{ "const": "always" }, PredicateKind.schema(defs)] })
    }
}

/// `user:NAME`. Groups need people who are told apart by more than their credential.
struct ApproverKind;

impl Kind for ApproverKind {
    type Out = String;

    fn read(&self, node: &Node, report: &mut Report) -> Option<String> {
        let text = match (&node.kind, node.scalar()) {
            (NodeKind::Scalar { text, .. }, Some(Scalar::Text)) => text.as_str(),
            _other => "",
        };
        if text.starts_with("group:") {
            let message = format!("`{}`: groups of people are not in this build", report.path());
            let hint = "name each credential of the admin listener: `user:NAME`";
            report.push(Problem::new("CR1009", node.place, message).hint(hint));
            return None;
        }
        let name = text.strip_prefix("user:").filter(|name| {
            let sound = |c: char| !c.is_control() && !c.is_whitespace();
            !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(sound)
        });
        if name.is_none() {
            report.wrong(
                "CR1004",
                node,
                "`user:` and the name of a credential of the admin listener",
            );
        }
        name.map(str::to_owned)
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "type": "string", "pattern": "^user:\\S{1,128}$" })
    }
}

/// One person decides; more of them are not in this build.
struct OnePerson;

impl Kind for OnePerson {
    type Out = ();

    fn read(&self, node: &Node, report: &mut Report) -> Option<()> {
        let count = match (&node.kind, node.scalar()) {
            (NodeKind::Scalar { text, .. }, Some(Scalar::Integer)) => text.parse::<u64>().ok(),
            _other => None,
        };
        match count {
            Some(1) => return Some(()),
            Some(2..) => {
                let message = format!("`{}` above 1 is not in this build", report.path());
                let hint = "one person's word is enough; name who may give it under `approvers`";
                report.push(Problem::new("CR1009", node.place, message).hint(hint));
            }
            Some(0) | None => report.wrong("CR1004", node, "`1`"),
        }
        None
    }

    fn schema(&self, _defs: &mut Map<String, Value>) -> Value {
        json!({ "const": 1 })
    }
}
