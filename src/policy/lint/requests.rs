//! Arguments against the request and the schema: which have no place or two, which pointers lead nowhere, which
//! values have no upper bound (CR2006, CR2007, CR2009, CR3007, CR3008).

use http::Method;
use serde_json::Value;

use super::references::{listed, nearest};
use super::shape::{Shape, Standing, standing};
use super::{View, entries};
use crate::call::pointer::{Pointer, push_token};
use crate::policy::diagnostic::{Place, Problem};
use crate::policy::document::kinds::{Part, SchemaSource};
use crate::policy::document::{At, Http, Tool};
use crate::policy::schema::every_subschema;
use crate::policy::snapshot::{BodyEncoding, PathPiece};

/// Most arguments of one tool that CR3008 names one by one.
const MAX_NAMED: usize = 16;
/// What an object lacks that may hold any number of members.
const MORE_MEMBERS: &str = "add `maxProperties`";

pub(super) fn find(view: &View<'_>, problems: &mut Vec<Problem>) {
    for agent in view.document.agents.values() {
        for (tool, at) in agent.value.constraints.iter().flat_map(|all| &all.value) {
            if let Some(schema) = view.schema(tool) {
                constrained(tool, at, schema, problems);
            }
        }
    }
    for (name, at) in view.tools() {
        if let Some(http) = &at.value.http {
            request(name, at, &http.value, view.schema(name), problems);
        }
        if let Some(schema) = view.schema(name) {
            pointers(name, &at.value, schema, problems);
            unbounded(name, &at.value, schema, problems);
        }
    }
}

/// Where the arguments of one tool go.
struct Places<'d> {
    /// Name, the part that names it, and where that is written.
    named: Vec<(&'d str, &'static str, Place)>,
    rest_to_query: bool,
    rest_to_body: bool,
}

fn has_body(method: Option<&Method>) -> bool {
    method.is_none_or(|method| !matches!(*method, Method::GET | Method::HEAD | Method::DELETE))
}

fn places(http: &Http) -> Places<'_> {
    let method = http.method.as_ref().map(|method| &method.value);
    let mut named = Vec::new();
    let (path, at) = match (&http.url, &http.path) {
        (Some(url), _) => (url.value.path.as_slice(), url.place),
        (None, Some(path)) => (path.value.as_slice(), path.place),
        (None, None) => (&[][..], Place::START),
    };
    for piece in path {
        match piece {
            PathPiece::Argument(name) => named.push((name.as_str(), "path", at)),
            PathPiece::Literal(_) => {}
        }
    }
    for (_, argument) in http.headers.iter().flat_map(|headers| &headers.value) {
        named.push((argument.value.as_str(), "headers", argument.place));
    }
    let body_by_default = has_body(method);
    let rest =
        |part: &Option<At<Part>>, by_default: bool| match part.as_ref().map(|part| &part.value) {
            Some(Part::Rest) => true,
            Some(Part::None | Part::Named(_)) => false,
            None => by_default,
        };
    let (rest_to_query, rest_to_body) =
        (rest(&http.query, !body_by_default), rest(&http.body, body_by_default));
    for (part, word) in [(&http.query, "query"), (&http.body, "body")] {
        if let Some(At { value: Part::Named(names), place, .. }) = part {
            named.extend(names.iter().map(|name| (name.as_str(), word, *place)));
        }
    }
    Places { named, rest_to_query, rest_to_body }
}

fn request(
    name: &str,
    tool: &At<Tool>,
    http: &Http,
    schema: Option<&Value>,
    problems: &mut Vec<Problem>,
) {
    let places = places(http);
    impossible_keys(name, http, &places, problems);
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (argument, part, place) in &places.named {
        match seen.iter().find(|(other, _)| other == argument) {
            Some((_, first)) => {
                let message = format!(
                    "the argument `{argument}` of `{name}` goes to two places, {first} and {part}"
                );
                problems.push(Problem::new("CR2006", *place, message));
            }
            None => seen.push((argument, part)),
        }
    }
    let Some(schema) = schema else { return };
    let shape = Shape::of(schema);
    declared(name, &places, &shape, problems);
    let members = shape.members();
    if !places.rest_to_query && !places.rest_to_body {
        for member in
            members.iter().filter(|member| !seen.iter().any(|(named, _)| named == *member))
        {
            let message =
                format!("the argument `{member}` of `{name}` has no place in the request");
            let place = tool.value.http.as_ref().map_or(tool.key, |http| http.key);
            problems.push(
                Problem::new("CR2006", place, message)
                    .hint("name it in the path, `query`, `body` or `headers`"),
            );
        }
    }
    spelling(name, tool, http, &places, &shape, problems);
}

/// Arguments that may be what their part of the request cannot spell.
fn spelling(
    name: &str,
    tool: &At<Tool>,
    http: &Http,
    places: &Places<'_>,
    shape: &Shape<'_>,
    problems: &mut Vec<Problem>,
) {
    for member in shape.members() {
        let part = match places.named.iter().find(|(named, _, _)| *named == member) {
            Some((_, part, _)) => part,
            None if places.rest_to_query => "query",
            None => "body",
        };
        let form =
            http.encoding.as_ref().is_some_and(|encoding| encoding.value == BodyEncoding::Form);
        let Some(below) = shape.step(member) else { continue };
        let wrong = match part {
            "path" | "headers" if below.may_be("object") => Some("an object"),
            "path" | "headers" if below.may_be("array") => Some("a list"),
            "query" if below.may_be("object") => Some("an object"),
            "body" if form && below.may_be("object") => Some("an object"),
            _fits => None,
        };
        if let Some(kind) = wrong {
            let part = if part == "body" { "form" } else { part };
            let message = format!(
                "the argument `{member}` of `{name}` may be {kind}, which has no spelling in the {part}"
            );
            let place =
                inside(tool.value.schema.as_ref(), &["properties", member]).unwrap_or(tool.key);
            problems.push(Problem::new("CR2006", place, message));
        }
    }
}

/// Names of the request that the schema does not know, or does not require where they must be there.
fn declared(name: &str, places: &Places<'_>, shape: &Shape<'_>, problems: &mut Vec<Problem>) {
    for (argument, part, place) in &places.named {
        if shape.step(argument).is_none() {
            if !shape.is_open() {
                let message = format!(
                    "`{argument}`, named in the {part} of `{name}`, is no argument of its schema"
                );
                problems.push(meant(Problem::new("CR2006", *place, message), argument, shape));
            }
        } else if *part == "path" && !shape.requires(argument) {
            let message = format!(
                "`{argument}` is part of the path of `{name}`, but its schema does not require it"
            );
            problems.push(Problem::new("CR2006", *place, message).hint("add it to `required`"));
        }
    }
}

/// With the declared name that was meant, or all of them.
fn meant(problem: Problem, asked: &str, shape: &Shape<'_>) -> Problem {
    let declared = shape.members();
    match nearest(asked, &declared) {
        Some(near) => problem.label(format!("did you mean `{near}`?")),
        None if declared.is_empty() => problem,
        None => problem.hint(format!("there are: {}", listed(&declared))),
    }
}

/// Keys that say something no request of this kind can do.
fn impossible_keys(name: &str, http: &Http, places: &Places<'_>, problems: &mut Vec<Problem>) {
    let method = http.method.as_ref().map(|method| &method.value);
    let bodiless = method.is_some_and(|method| matches!(*method, Method::GET | Method::HEAD));
    if bodiless && let Some(body) = http.body.as_ref().filter(|body| body.value != Part::None) {
        let method = method.map_or("", Method::as_str);
        let message = format!("`{name}` sends {method}, which carries no body");
        problems
            .push(Problem::new("CR2007", body.key, message).hint("name the arguments in `query`"));
        return;
    }
    let to_body = places.rest_to_body || places.named.iter().any(|(_, part, _)| *part == "body");
    if !to_body && let Some(encoding) = &http.encoding {
        let message = format!("`{name}` sends no body that `encoding` could mean");
        problems.push(Problem::new("CR2007", encoding.key, message));
    }
}

fn pointers(name: &str, tool: &Tool, schema: &Value, problems: &mut Vec<Problem>) {
    let missing = |pointer: &At<Pointer>| {
        let message = format!("`{}` is not in the schema of `{name}`", pointer.value);
        let problem = Problem::new("CR2009", pointer.place, message);
        match pointer.value.tokens() {
            [only] => meant(problem, only, &Shape::of(schema)),
            _deeper => problem,
        }
    };
    for pointer in entries(&tool.volatile) {
        if standing(schema, pointer.value.tokens()) == Standing::NotDeclared {
            problems.push(missing(pointer));
        }
    }
    let Some(write) = &tool.write else { return };
    for pointer in entries(&write.value.fingerprint) {
        match standing(schema, pointer.value.tokens()) {
            Standing::Required => {}
            Standing::NotDeclared => problems.push(missing(pointer)),
            Standing::Optional => {
                let message = format!(
                    "`{}` names the operation of `{name}`, but its schema does not require it",
                    pointer.value
                );
                let hint = "without it two different operations would be one; add it to `required`, at every step of the pointer";
                problems.push(Problem::new("CR3007", pointer.place, message).hint(hint));
            }
        }
    }
}

/// Arguments that an agent's constraint names and the tool does not know: a slip that would narrow nothing.
fn constrained(tool: &str, at: &At<SchemaSource>, schema: &Value, problems: &mut Vec<Problem>) {
    let SchemaSource::Inline { value, .. } = &at.value else { return };
    let shape = Shape::of(schema);
    if shape.is_open() {
        return;
    }
    for argument in Shape::of(value).members() {
        if shape.step(argument).is_none() {
            let message = format!(
                "`{argument}`, named in a constraint on `{tool}`, is no argument of its schema"
            );
            let place = inside(Some(at), &["properties", argument]).unwrap_or(at.place);
            problems.push(meant(Problem::new("CR2009", place, message), argument, &shape));
        }
    }
}

/// The place of something inside an inline schema.
fn inside(schema: Option<&At<SchemaSource>>, tokens: &[&str]) -> Option<Place> {
    let at = schema?;
    match &at.value {
        SchemaSource::Inline { node, .. } => {
            let tokens: Vec<String> = tokens.iter().map(|token| (*token).to_owned()).collect();
            let (key, node) = node.at(&tokens)?;
            Some(key.map_or(node.place, |key| key.place))
        }
        SchemaSource::File { .. } => Some(at.place),
    }
}

fn unbounded(name: &str, tool: &Tool, schema: &Value, problems: &mut Vec<Problem>) {
    let mut named = 0;
    for (at, schema) in every_subschema(schema) {
        // Branches narrow what stands beside them; the place itself says the bound, or a reference does.
        if !is_argument_place(&at) {
            continue;
        }
        let Some(what) = lacks_bound(schema, &at) else { continue };
        if at.is_empty() && what != MORE_MEMBERS {
            continue;
        }
        if own_key(tool, &at) {
            continue;
        }
        named += 1;
        if named > MAX_NAMED {
            return;
        }
        let tokens =
            Pointer::parse(&at).map(|pointer| pointer.tokens().to_vec()).unwrap_or_default();
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let place = inside(tool.schema.as_ref(), &tokens).unwrap_or(Place::START);
        let message = format!("{} of `{name}` has no upper bound: {what}", argument_name(&tokens));
        problems.push(Problem::new("CR3008", place, message));
    }
}

/// The argument that the gateway fills in itself, or something within it.
fn own_key(tool: &Tool, at: &str) -> bool {
    let idempotency = tool.write.as_ref().and_then(|write| write.value.idempotency.as_ref());
    let Some(member) = idempotency.and_then(|idempotency| idempotency.value.argument()) else {
        return false;
    };
    let mut of_key = "/properties".to_owned();
    push_token(&mut of_key, &member);
    at.strip_prefix(&of_key).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Places whose values come from arguments: members and items, also of definitions; not branches, names or constants.
fn is_argument_place(pointer: &str) -> bool {
    let mut tokens = pointer.split('/').skip(1);
    while let Some(token) = tokens.next() {
        match token {
            "properties" | "$defs" | "definitions" | "prefixItems" => {
                tokens.next();
            }
            "items" | "additionalProperties" | "unevaluatedProperties" => {}
            _other => return false,
        }
    }
    true
}

/// `/properties/lines/items/properties/sku` → `/lines/*/sku`.
fn argument_name(tokens: &[&str]) -> String {
    let mut name = String::new();
    let mut rest = tokens.iter();
    while let Some(token) = rest.next() {
        match *token {
            "properties" => {
                if let Some(member) = rest.next() {
                    push_token(&mut name, member);
                }
            }
            "$defs" | "definitions" => {
                name = format!("the definition {}", rest.next().copied().unwrap_or_default());
            }
            _items => name.push_str("/*"),
        }
    }
    if name.is_empty() { "the number of arguments".to_owned() } else { format!("`{name}`") }
}

/// What bound is missing; `None` = bounded, or bounded elsewhere.
fn lacks_bound(schema: &Value, at: &str) -> Option<&'static str> {
    let members = match schema {
        Value::Object(members) => members,
        Value::Bool(true) => return Some("say what it may be"),
        Value::Bool(false)
        | Value::Null
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_) => return None,
    };
    let says = |word: &str| members.contains_key(word);
    let elsewhere = ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "enum", "const"];
    if elsewhere.iter().any(|word| says(word)) {
        return None;
    }
    let kinds: Vec<&str> = match members.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        Some(_) => return None,
        // A definition without a type may be one part of something; a member or item is all there is.
        None if at.starts_with("/$defs") || at.starts_with("/definitions") => return None,
        None if says("properties") => vec!["object"],
        None if says("items") || says("prefixItems") => vec!["array"],
        None if says("maxLength") || says("pattern") => vec!["string"],
        None if says("minimum") || says("maximum") || says("multipleOf") => return None,
        None => return Some("say its `type`"),
    };
    let open = ["additionalProperties", "unevaluatedProperties"]
        .iter()
        .any(|word| members.get(*word).is_some_and(|more| more != &Value::Bool(false)))
        || says("patternProperties");
    kinds.iter().find_map(|kind| match *kind {
        "string" if !says("maxLength") && !bounded_pattern(members.get("pattern")) => {
            Some("add `maxLength`, `enum` or an anchored pattern")
        }
        "array" if !says("maxItems") => Some("add `maxItems`"),
        "object" if open && !says("maxProperties") => Some(MORE_MEMBERS),
        _bounded => None,
    })
}

/// Anchored at both ends, and nothing in it repeats without end.
fn bounded_pattern(pattern: Option<&Value>) -> bool {
    let Some(body) = pattern
        .and_then(Value::as_str)
        .and_then(|pattern| pattern.strip_prefix('^')?.strip_suffix('$'))
    else {
        return false;
    };
    let mut chars = body.chars();
    let (mut class, mut repetition) = (false, None::<String>);
    while let Some(c) = chars.next() {
        match (c, class, &mut repetition) {
            ('\\', _, _) => {
                chars.next();
            }
            (']', true, _) => class = false,
            (_, true, _) => {}
            ('[', false, _) => class = true,
            ('*' | '+', false, None) => return false,
            // Alternatives may leave the anchors to one side: `^a|b$`.
            ('|', false, None) => return false,
            ('{', false, None) => repetition = Some(String::new()),
            ('}', false, Some(text)) => {
                if text.ends_with(',') {
                    return false;
                }
                repetition = None;
            }
            (other, false, Some(text)) => text.push(other),
            (_, false, None) => {}
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pattern_bounds_a_string_when_it_is_anchored_and_repeats_to_an_end() {
        for (pattern, answer) in [
            ("^[A-Z]{3}$", true),
            (r"^ord_[a-z0-9]{8,12}$", true),
            (r"^\d{4}-\d{2}$", true),
            (r"^a\*b?$", true),
            ("^[*+]{1,3}$", true),
            ("[A-Z]{3}", false),
            ("^[A-Z]{3,}$", false),
            ("^[A-Z]+$", false),
            ("^.*$", false),
            ("^a|b$", false),
        ] {
            assert_eq!(bounded_pattern(Some(&json!(pattern))), answer, "{pattern}");
        }
    }

    #[test]
    fn what_is_bounded_elsewhere_is_not_asked_for_a_bound() {
        for (schema, bounded) in [
            (json!({"type": "string", "maxLength": 5}), true),
            (json!({"type": "string"}), false),
            (json!({"type": ["string", "null"]}), false),
            (json!({"type": "integer"}), true),
            (json!({"enum": ["a"]}), true),
            (json!({"$ref": "#/$defs/a"}), true),
            (json!({"type": "array", "items": {}}), false),
            (json!({"type": "object", "additionalProperties": {"type": "string"}}), false),
            (json!({"type": "object", "properties": {}}), true),
            (json!({}), false),
            (json!(true), false),
        ] {
            assert_eq!(lacks_bound(&schema, "/properties/a").is_none(), bounded, "{schema}");
        }
        assert!(is_argument_place("/properties/a/items/properties/b"));
        assert!(!is_argument_place("/properties/a/anyOf/0"));
        assert_eq!(argument_name(&["properties", "a", "items", "properties", "b"]), "`/a/*/b`");
    }
}
