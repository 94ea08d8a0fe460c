//! What an agent answers to an elicitation by form, held against what was asked: the server gets what it asked for, or
//! hears in words that it does not.

use serde_json::{Map, Value};

use super::Wrong;
use super::input::AskKind;

/// Whether an answer to a question of this kind is one. Only an elicitation by form has an answer of a given form: a flat
/// object of texts, numbers, truth values and lists of texts (the restricted subset of JSON Schema that it is asked by).
/// Keywords outside that subset ask nothing here.
pub fn check_answer(kind: AskKind, params: &Value, answer: &Value) -> Result<(), Wrong> {
    match kind {
        AskKind::ElicitForm => form(params.get("requestedSchema"), answer),
        AskKind::ElicitUrl => action(answer).map(drop),
        AskKind::Sampling | AskKind::Roots => Ok(()),
    }
}

fn action(answer: &Value) -> Result<&str, Wrong> {
    let action = answer.get("action").and_then(Value::as_str);
    action
        .filter(|action| matches!(*action, "accept" | "decline" | "cancel"))
        .ok_or_else(|| Wrong::new("/action", "must be `accept`, `decline` or `cancel`"))
}

fn form(schema: Option<&Value>, answer: &Value) -> Result<(), Wrong> {
    if action(answer)? != "accept" {
        return Ok(());
    }
    let none = Map::new();
    let content = match answer.get("content") {
        None => &none,
        Some(Value::Object(content)) => content,
        Some(_) => return Err(Wrong::new("/content", "must be an object")),
    };
    let member = |name: &str| schema.and_then(|schema| schema.get(name));
    let required = member("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        if !content.contains_key(name) {
            return Err(at(name, "is required"));
        }
    }
    let properties = member("properties").and_then(Value::as_object);
    for (name, value) in content {
        is_flat(value).map_err(|words| at(name, words))?;
        let asked = properties.and_then(|properties| properties.get(name));
        if let Some(asked) = asked {
            fits(asked, value).map_err(|words| at(name, &words))?;
        }
    }
    Ok(())
}

fn at(name: &str, words: &str) -> Wrong {
    Wrong::new(format!("/content/{}", name.replace('~', "~0").replace('/', "~1")), words)
}

fn is_flat(value: &Value) -> Result<(), &'static str> {
    match value {
        Value::String(_) | Value::Number(_) | Value::Bool(_) => Ok(()),
        Value::Array(items) if items.iter().all(Value::is_string) => Ok(()),
        Value::Array(_) | Value::Object(_) | Value::Null => {
            Err("must be a text, a number, true or false, or a list of texts")
        }
    }
}

fn fits(asked: &Value, value: &Value) -> Result<(), String> {
    let is_type = match asked.get("type").and_then(Value::as_str) {
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => is_integer(value),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some(_) | None => true,
    };
    if !is_type {
        let wanted = asked.get("type").and_then(Value::as_str).unwrap_or_default();
        return Err(format!("must be of type `{wanted}`"));
    }
    if let Some(choices) = choices(asked)
        && !choices.contains(&value)
    {
        return Err("must be one of those offered".into());
    }
    match value {
        Value::String(text) => within(asked, text.chars().count(), ("minLength", "maxLength")),
        Value::Array(items) => {
            within(asked, items.len(), ("minItems", "maxItems"))?;
            let offered = asked.get("items").and_then(choices);
            match offered {
                Some(offered) if !items.iter().all(|item| offered.contains(&item)) => {
                    Err("must hold only what is offered".into())
                }
                Some(_) | None => Ok(()),
            }
        }
        Value::Number(number) => {
            let bound = |name: &str| asked.get(name).and_then(Value::as_f64);
            let number = number.as_f64().unwrap_or(f64::NAN);
            match (bound("minimum"), bound("maximum")) {
                (Some(least), _) if number < least => Err(format!("must be {least} or more")),
                (_, Some(most)) if number > most => Err(format!("must be {most} or less")),
                (_, _) => Ok(()),
            }
        }
        Value::Null | Value::Bool(_) | Value::Object(_) => Ok(()),
    }
}

/// JSON Schema counts 1.0 as one.
fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

fn within(asked: &Value, count: usize, (least, most): (&str, &str)) -> Result<(), String> {
    let bound = |name: &str| asked.get(name).and_then(Value::as_u64);
    let count = count as u64;
    match (bound(least), bound(most)) {
        (Some(least), _) if count < least => Err(format!("is too short: {least} at least")),
        (_, Some(most)) if count > most => Err(format!("is too long: {most} at most")),
        (_, _) => Ok(()),
    }
}

/// `enum`, or the constants of `oneOf` and `anyOf`.
fn choices(asked: &Value) -> Option<Vec<&Value>> {
    if let Some(Value::Array(values)) = asked.get("enum") {
        return Some(values.iter().collect());
    }
    let titled = asked.get("oneOf").or_else(|| asked.get("anyOf"))?.as_array()?;
    titled.iter().map(|one| one.get("const")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(answer: &Value) -> Result<(), String> {
        let params = json!({"message": "?", "requestedSchema": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "minLength": 2, "maxLength": 4},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "share": {"type": "number"},
            "sure": {"type": "boolean"},
            "colour": {"type": "string", "enum": ["red", "blue"]},
            "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l"}]},
            "tags": {"type": "array", "maxItems": 2, "items": {"type": "string", "enum": ["a", "b", "c"]}},
            "a/b": {"type": "string"},
        }}});
        check_answer(AskKind::ElicitForm, &params, answer).map_err(|wrong| wrong.to_string())
    }

    fn accepted(more: Value) -> Result<(), String> {
        let mut content = json!({"name": "Ada"});
        if let (Value::Object(content), Value::Object(more)) = (&mut content, more) {
            content.extend(more);
        }
        judged(&json!({"action": "accept", "content": content}))
    }

    #[test]
    fn what_fits_the_question_is_an_answer() {
        for more in [
            json!({}),
            json!({"age": 0, "share": 0.5, "sure": false, "colour": "red", "size": "l", "tags": ["a", "c"]}),
            json!({"age": 30.0, "tags": [], "name": "éé"}),
            json!({"not_asked_for": "is allowed by the schema"}),
        ] {
            assert_eq!(accepted(more.clone()), Ok(()), "{more}");
        }
        for action in ["decline", "cancel"] {
            assert_eq!(judged(&json!({"action": action})), Ok(()));
        }
    }

    #[test]
    fn what_does_not_fit_is_told_by_its_place() {
        for (more, place) in [
            (json!({"name": "A"}), "/content/name"),
            (json!({"name": "Grace"}), "/content/name"),
            (json!({"name": null}), "/content/name"),
            (json!({"age": "30"}), "/content/age"),
            (json!({"age": 1.5}), "/content/age"),
            (json!({"age": -1}), "/content/age"),
            (json!({"age": 151}), "/content/age"),
            (json!({"share": true}), "/content/share"),
            (json!({"sure": "yes"}), "/content/sure"),
            (json!({"colour": "green"}), "/content/colour"),
            (json!({"size": "Small"}), "/content/size"),
            (json!({"tags": ["a", "d"]}), "/content/tags"),
            (json!({"tags": ["a", "b", "c"]}), "/content/tags"),
            (json!({"tags": [1]}), "/content/tags"),
            (json!({"a/b": 1}), "/content/a~1b"),
            (json!({"deep": {"a": 1}}), "/content/deep"),
        ] {
            let why = accepted(more.clone()).expect_err(&more.to_string());
            assert!(why.contains(place), "{more}: {why}");
        }
        for (answer, place) in [
            (json!({"action": "accept"}), "/content/name"),
            (json!({"action": "accept", "content": []}), "/content"),
            (json!({"action": "yes"}), "/action"),
            (json!({}), "/action"),
            (json!(7), "/action"),
        ] {
            let why = judged(&answer).expect_err(&answer.to_string());
            assert!(why.contains(place), "{answer}: {why}");
        }
    }
}
