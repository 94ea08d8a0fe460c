//! What an argument schema declares for a pointer, read off its text: enough for lints, never a judgement of values.

use serde_json::Value;

/// Most schemas that are looked at for one place.
const MAX_LOOKED_AT: usize = 64;

/// The schemas that judge one value together: the schema itself, what it refers to, and its branches.
#[derive(Debug, Clone)]
pub(in crate::policy) struct Shape<'s> {
    root: &'s Value,
    /// Each with whether it always applies (`$ref`, `allOf`) or only by choice (`anyOf`, `oneOf`, `then`, `else`).
    parts: Vec<(&'s Value, bool)>,
    /// Something could not be followed: nothing can be said about what is not declared.
    unknown: bool,
}

impl<'s> Shape<'s> {
    pub(in crate::policy) fn of(root: &'s Value) -> Self {
        Self::gather(root, vec![(root, true)])
    }

    fn gather(root: &'s Value, mut parts: Vec<(&'s Value, bool)>) -> Self {
        let mut unknown = false;
        let mut next = 0;
        while let Some((schema, always)) = parts.get(next).copied() {
            next += 1;
            if parts.len() > MAX_LOOKED_AT {
                unknown = true;
                break;
            }
            if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
                match target.strip_prefix('#').and_then(|pointer| root.pointer(pointer)) {
                    Some(target) => parts.push((target, always)),
                    None => unknown = true,
                }
            }
            unknown |= schema.get("$dynamicRef").is_some();
            for (keyword, sure) in [("allOf", true), ("anyOf", false), ("oneOf", false)] {
                let branches = schema.get(keyword).and_then(Value::as_array).into_iter().flatten();
                parts.extend(branches.map(|branch| (branch, always && sure)));
            }
            for keyword in ["then", "else"] {
                parts.extend(schema.get(keyword).map(|branch| (branch, false)));
            }
        }
        Self { root, parts, unknown }
    }

    /// Declared members, each once, in order.
    pub(in crate::policy) fn members(&self) -> Vec<&'s str> {
        let mut names: Vec<&str> = Vec::new();
        for (schema, _) in &self.parts {
            let properties = schema.get("properties").and_then(Value::as_object);
            for name in properties.into_iter().flat_map(|all| all.keys()) {
                if !names.contains(&name.as_str()) {
                    names.push(name);
                }
            }
        }
        names
    }

    /// Whether members beyond the declared ones may come, in a schema that will be closed where it says nothing.
    pub(in crate::policy) fn is_open(&self) -> bool {
        let may_hold_more = |schema: &Value| {
            ["additionalProperties", "unevaluatedProperties"]
                .iter()
                .any(|word| schema.get(*word).is_some_and(|more| more != &Value::Bool(false)))
                || schema.get("patternProperties").is_some()
        };
        self.unknown || self.parts.iter().any(|(schema, _)| may_hold_more(schema))
    }

    /// Whether the member must be there.
    pub(in crate::policy) fn requires(&self, name: &str) -> bool {
        self.parts.iter().filter(|(_, always)| *always).any(|(schema, _)| {
            let required = schema.get("required").and_then(Value::as_array);
            required.is_some_and(|names| names.iter().any(|required| required == name))
        })
    }

    /// Whether a part other than the schema's own top requires the member.
    pub(in crate::policy) fn requires_below_the_top(&self, name: &str) -> bool {
        Self {
            root: self.root,
            parts: self.parts.iter().skip(1).copied().collect(),
            unknown: false,
        }
        .requires(name)
    }

    /// The member, or item, one step below; `None` = not declared.
    pub(in crate::policy) fn step(&self, token: &str) -> Option<Shape<'s>> {
        let index = token.parse::<usize>().ok();
        let mut found = Vec::new();
        for (schema, always) in &self.parts {
            let member = schema.get("properties").and_then(|all| all.get(token));
            let item = index.and_then(|index| {
                schema.get("prefixItems").and_then(|items| items.get(index)).or(schema.get("items"))
            });
            found.extend(member.or(item).map(|below| (below, *always)));
        }
        (!found.is_empty()).then(|| Self::gather(self.root, found))
    }

    /// Whether a value there may be of that type, as far as types are named.
    pub(in crate::policy) fn may_be(&self, kind: &str) -> bool {
        let named = |schema: &Value| match schema.get("type") {
            Some(Value::String(only)) => Some(only == kind),
            Some(Value::Array(several)) => Some(several.iter().any(|one| one == kind)),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => None,
        };
        self.parts.iter().filter_map(|(schema, _)| named(schema)).any(|may| may)
    }
}

/// How a pointer stands to a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::policy) enum Standing {
    Required,
    Optional,
    NotDeclared,
}

/// Looks a pointer up, token by token. What an open schema may hold counts as optional.
pub(in crate::policy) fn standing(schema: &Value, tokens: &[String]) -> Standing {
    let mut shape = Shape::of(schema);
    let mut required = true;
    for token in tokens {
        let Some(below) = shape.step(token) else {
            return if shape.is_open() { Standing::Optional } else { Standing::NotDeclared };
        };
        let at_least =
            shape.parts.iter().filter_map(|(schema, _)| schema.get("minItems")?.as_u64()).max();
        let sure_item =
            token.parse::<u64>().is_ok_and(|index| at_least.is_some_and(|least| index < least));
        required &= shape.requires(token) || sure_item;
        shape = below;
    }
    if required { Standing::Required } else { Standing::Optional }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pointer_is_required_when_every_step_of_it_is() {
        let schema = json!({"required": ["a", "list"], "properties": {
                "a": {"$ref": "#/$defs/a"}, "b": {"type": "string"},
                "list": {"type": "array", "minItems": 1, "items": {"required": ["x"], "properties": {"x": {}}}}},
            "allOf": [{"required": ["c"], "properties": {"c": {}}}], "anyOf": [{"required": ["b"]}],
            "$defs": {"a": {"required": ["in"], "properties": {"in": {}, "out": {}}}}});
        for (pointer, answer) in [
            ("/a", Standing::Required),
            ("/a/in", Standing::Required),
            ("/a/out", Standing::Optional),
            ("/a/none", Standing::NotDeclared),
            ("/b", Standing::Optional),
            ("/c", Standing::Required),
            ("/d", Standing::NotDeclared),
            ("/list/0/x", Standing::Required),
            ("/list/1/x", Standing::Optional),
        ] {
            let tokens: Vec<String> = pointer.split('/').skip(1).map(str::to_owned).collect();
            assert_eq!(standing(&schema, &tokens), answer, "{pointer}");
        }
        let open = json!({"additionalProperties": {"type": "string"}});
        assert_eq!(standing(&open, &["any".to_owned()]), Standing::Optional);
    }
}
