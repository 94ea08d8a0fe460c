//! Questions to people that nobody is asked, that come too late, or that look at nothing (CR2009, CR2011, CR3011, CR4004).

use super::shape::{Standing, standing};
use super::{View, merge, spelt};
use crate::policy::diagnostic::Problem;
use crate::policy::document::{At, Tool};
use crate::policy::snapshot::{Identical, When};

pub(super) fn find(view: &View<'_>, problems: &mut Vec<Problem>) {
    for (name, tool) in view.tools() {
        identical(name, tool, problems);
        let Some(approval) = &tool.value.approval else { continue };
        shared_answers(name, &tool.value, problems);
        pointers(view, name, tool, problems);
        let at = approval.value.expires.as_ref();
        let expires = at.map_or(merge::DEFAULT_EXPIRES, |at| at.value);
        let place = at.map_or(approval.key, |at| at.place);
        for run in view.runs(name) {
            let wall_clock = merge::run(view.document, run).wall_clock;
            if expires > wall_clock {
                let message = format!(
                    "a question about `{name}` stands for {}, but run `{run}` ends after {}",
                    spelt(expires),
                    spelt(wall_clock)
                );
                let hint = "a yes that comes after the run helps nobody; shorten `expires`, or lengthen `wall_clock`";
                problems.push(Problem::new("CR4004", place, message).hint(hint));
            }
        }
    }
    // The gateway asks these reads by itself: there is nobody to wait for a person.
    for asked in super::remedies::asked(view) {
        let Some(tool) = view.find(asked) else { continue };
        if let Some(approval) = &tool.value.approval {
            let message =
                format!("`{asked}` needs a person's yes, and the gateway asks it by itself");
            let hint = "a `probe` or a `status_query` waits for nobody; name another read, or take `approval` away";
            problems.push(Problem::new("CR2011", approval.key, message).hint(hint));
        }
    }
}

fn identical(name: &str, tool: &At<Tool>, problems: &mut Vec<Problem>) {
    let write = tool.value.write.as_ref().map(|write| &write.value);
    let identical = write.and_then(|write| write.identical.as_ref());
    let approve = identical.filter(|identical| identical.value == Identical::Approve);
    if let (Some(at), None) = (approve, &tool.value.approval) {
        let message = format!("`identical: approve` of `{name}`, which has no `approval`");
        let hint = "say with `approval` who is asked, and for how long";
        problems.push(Problem::new("CR3011", at.place, message).hint(hint));
    }
}

/// What is looked at is an argument.
fn pointers(view: &View<'_>, name: &str, tool: &At<Tool>, problems: &mut Vec<Problem>) {
    let when = tool.value.approval.as_ref().and_then(|approval| approval.value.when.as_ref());
    let (Some(when), Some(schema)) = (when, view.schema(name)) else { return };
    let When::If(predicate) = &when.value else { return };
    for pointer in predicate.pointers() {
        if standing(schema, pointer.tokens()) == Standing::NotDeclared {
            let message = format!("`{pointer}` is not in the schema of `{name}`");
            problems.push(Problem::new("CR2009", when.place, message));
        }
    }
}

/// A yes is for one agent's call; through a shared cache everybody would be told what came of it.
fn shared_answers(name: &str, tool: &Tool, problems: &mut Vec<Problem>) {
    let cache = tool.cache.as_ref().map(|cache| &cache.value);
    let scope = cache.and_then(|cache| cache.global_scope.as_ref()).filter(|scope| scope.value);
    let Some(scope) = scope else { return };
    let message = format!(
        "what a person let one agent ask of `{name}` would be told to every agent that may call it"
    );
    let hint = "take `scope: global` away, or `approval`";
    problems.push(Problem::new("CR3017", scope.place, message).hint(hint));
}
