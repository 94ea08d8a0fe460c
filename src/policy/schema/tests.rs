use serde_json::{Value, json};

use super::*;
use crate::call::outcome::MAX_FAULTS;
use crate::strict_json::{self, Limits};

fn parse(text: &str) -> Value {
    strict_json::parse(text.as_bytes(), Limits::arguments(1 << 20, 100)).expect(text)
}

fn closed(schema: &Value) -> Schema {
    Schema::compile(schema, true).expect("sound schema")
}

fn open(schema: &Value) -> Schema {
    Schema::compile(schema, false).expect("sound schema")
}

fn refused(schema: &Value) -> SchemaFault {
    Schema::compile(schema, true).expect_err("unsound schema")
}

fn told(schema: &Schema, value: &Value) -> Vec<String> {
    let faults = schema.faults(value);
    faults.iter().map(|f| format!("{} | {} | {}", f.at, f.expected, f.got)).collect()
}

fn order() -> Value {
    json!({"type": "object", "required": ["order_id"],
        "properties": {"order_id": {"type": "string", "minLength": 1, "maxLength": 80}}})
}

#[test]
fn faults_name_the_place_what_is_wanted_and_what_came() {
    let schema = closed(
        &json!({"type": "object", "required": ["order_id", "qty", "a/b"], "properties": {
            "order_id": {"type": "string", "minLength": 1, "maxLength": 80},
            "qty": {"type": "integer", "maximum": 5},
            "colour": {"enum": ["red", "blue"]},
            "when": {"type": "string", "pattern": "^[0-9]{4}$"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2, "uniqueItems": true},
            "a/b": {"const": 1},
            "price": {"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01}
        }}),
    );
    let value = parse(
        r#"{"order_id":7,"qty":9,"colour":"green","when":"x","tags":["a",1,"a"],"extra":null,"price":-1}"#,
    );
    let mut lines = told(&schema, &value);
    lines.sort();
    assert_eq!(
        lines,
        [
            r#"/a~1b | required, exactly 1 | missing"#,
            r#"/colour | one of "red", "blue" | "green""#,
            r#"/extra | no such field; the fields are order_id, qty, colour, when, tags, a/b, price | null"#,
            r#"/order_id | string of 1 to 80 characters | number"#,
            r#"/price | number above 0, that is a multiple of 0.01 | -1"#,
            r#"/qty | integer of at most 5 | 9"#,
            r#"/tags | array of at most 2 distinct items | an array of 3 items"#,
            r#"/tags/1 | string | number"#,
            r#"/when | string that matches ^[0-9]{4}$ | "x""#,
        ]
    );
}

#[test]
fn a_long_string_is_told_by_its_length_and_a_long_value_is_cut() {
    let schema = closed(&order());
    let value = json!({"order_id": "x".repeat(93)});
    assert_eq!(
        told(&schema, &value),
        ["/order_id | string of 1 to 80 characters | a string of 93 characters"]
    );
    let choice = closed(&json!({"properties": {"a": {"enum": ["b"]}}}));
    let got = choice.faults(&json!({"a": "é".repeat(5_000)}));
    assert!(got[0].got.chars().count() <= 80, "{}", got[0].got);
}

#[test]
fn bb_j05_no_arguments_at_all_name_the_missing_field() {
    let none = crate::call::Arguments::parse(b"", Limits::arguments(1 << 16, 32)).expect("empty");
    assert_eq!(
        told(&closed(&order()), none.tree()),
        ["/order_id | required, string of 1 to 80 characters | missing"]
    );
    assert!(closed(&json!({})).faults(none.tree()).is_empty());
    assert!(closed(&json!({"type": "object"})).faults(none.tree()).is_empty());
}

#[test]
fn bb_j15_wrapped_arguments_list_the_strange_field_and_the_expected_ones() {
    let schema = closed(&order());
    assert_eq!(
        told(&schema, &json!({"arguments": {"order_id": "7"}})),
        [
            "/order_id | required, string of 1 to 80 characters | missing",
            "/arguments | no such field; the only one is order_id | an object that holds order_id: put its fields one level higher",
        ]
    );
    let lines = told(&schema, &json!({"args": {"order_id": "7"}, "name": "check_order"}));
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().any(|line| line.starts_with("/args | no such field")));
    assert!(lines.contains(&"/name | no such field; the only one is order_id | string".to_owned()));
}

#[test]
fn faults_are_bounded() {
    let members: serde_json::Map<_, _> =
        (0..1_000).map(|n| (format!("{n}{}", "n".repeat(500)), Value::Null)).collect();
    let faults = closed(&order()).faults(&Value::Object(members));
    assert_eq!(faults.len(), MAX_FAULTS);
    assert_eq!(faults[0].at, "/order_id", "what is missing is not hidden by what is too much");
    assert!(faults.iter().all(|f| f.at.chars().count() <= 201));
}

#[test]
fn bb_j09_integers_are_compared_by_their_digits() {
    let schema = open(&parse(
        r#"{"properties":{"max":{"maximum":9007199254740992},"big":{"type":"integer","maximum":18446744073709551615},
        "bigger":{"type":"integer","minimum":18446744073709551617},"not":{"exclusiveMaximum":9007199254740993},
        "one":{"const":18446744073709551617},"even":{"multipleOf":2},"int":{"type":"integer"}}}"#,
    ));
    for (text, sound) in [
        (r#"{"max":9007199254740992}"#, true),
        (r#"{"max":9007199254740993}"#, false),
        (r#"{"max":9007199254740992.5}"#, false),
        (r#"{"max":9007199254740993.5}"#, false),
        (r#"{"max":-9007199254740993.5}"#, false),
        (r#"{"max":0.5}"#, true),
        (r#"{"big":18446744073709551615}"#, true),
        (r#"{"big":18446744073709551616}"#, false),
        (r#"{"bigger":18446744073709551616}"#, false),
        (r#"{"bigger":18446744073709551617}"#, true),
        (r#"{"not":9007199254740992}"#, true),
        (r#"{"not":9007199254740993}"#, false),
        (r#"{"one":18446744073709551617}"#, true),
        (r#"{"one":18446744073709551616}"#, false),
        (r#"{"even":9007199254740993}"#, false),
        (r#"{"even":9007199254740994}"#, true),
        (r#"{"int":1.0}"#, true),
        (r#"{"int":1e2}"#, true),
        (r#"{"int":18446744073709551616}"#, true),
        (r#"{"int":9007199254740992.5}"#, false),
        (r#"{"int":1.5}"#, false),
    ] {
        assert_eq!(schema.faults(&parse(text)).is_empty(), sound, "{text}");
    }
    let lossy = schema.faults(&parse(r#"{"max":-9007199254740993.5}"#));
    assert_eq!(lossy[0].got, "-9007199254740993.5, which a double cannot hold");
}

#[test]
fn const_and_enum_are_equal_as_json() {
    let schema = open(&parse(
        r#"{"properties":{"a":{"enum":[1,"x",{"k":[1.0,null]}]},"b":{"const":{"x":1,"y":2}}}}"#,
    ));
    for (text, sound) in [
        (r#"{"a":1.0}"#, true),
        (r#"{"a":10e-1}"#, true),
        (r#"{"a":"1"}"#, false),
        (r#"{"a":{"k":[1,null]}}"#, true),
        (r#"{"b":{"y":2,"x":1}}"#, true),
        (r#"{"b":{"y":2}}"#, false),
    ] {
        assert_eq!(schema.faults(&parse(text)).is_empty(), sound, "{text}");
    }
}

#[test]
fn a_failed_choice_is_told_by_the_branch_that_was_meant() {
    let schema = closed(&json!({
        "properties": {"to": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
                       "id": {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "maxLength": 3}]}},
        "$defs": {"address": {"type": "object", "required": ["zip"], "properties": {"zip": {"type": "string", "maxLength": 5}}}}
    }));
    assert_eq!(
        told(&schema, &json!({"to": {"zip": "123456"}, "id": true})),
        [
            "/to/zip | string of at most 5 characters | a string of 6 characters",
            "/id | integer of at least 1 or string of at most 3 characters | true",
        ]
    );
    assert_eq!(
        told(&schema, &json!({"to": {"zap": ""}, "id": 0})),
        [
            "/to/zip | required, string of at most 5 characters | missing",
            "/id | integer of at least 1 | 0",
            "/to/zap | no such field; the only one is zip | string",
        ]
    );
}

#[test]
fn faults_behind_references_have_their_words() {
    let schema =
        closed(&json!({"properties": {"a": {"$ref": "#/$defs/name"}, "b": {"$ref": "#name"}},
        "$defs": {"name": {"$anchor": "name", "type": "string", "minLength": 2}}}));
    assert_eq!(
        told(&schema, &json!({"a": "x", "b": 3})),
        [
            "/a | string of at least 2 characters | a string of 1 character",
            "/b | string of at least 2 characters | number"
        ]
    );
}

#[test]
fn bb_j16_what_points_out_of_the_schema_is_refused_and_never_fetched() {
    let canary = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    canary.set_nonblocking(true).expect("non-blocking");
    let url = format!("http://{}/x", canary.local_addr().expect("address"));
    let outside = [
        url.clone(),
        format!("{url}#/a"),
        "file:///etc/hostname".to_owned(),
        "//host/x".to_owned(),
        "other.json".to_owned(),
    ];
    for place in &outside {
        for (schema, at) in [
            (json!({"properties": {"a": {"$ref": place}}}), "/properties/a/$ref"),
            (json!({"properties": {"a": {"$dynamicRef": place}}}), "/properties/a/$dynamicRef"),
            (json!({"$defs": {"b": {"not": {"$ref": place}}}}), "/$defs/b/not/$ref"),
        ] {
            let fault = refused(&schema);
            assert_eq!(fault.at, at);
            assert!(fault.message.contains("nothing is fetched"), "{fault}");
        }
    }
    for place in &outside[..3] {
        assert_eq!(refused(&json!({"$id": place, "type": "object"})).at, "/$id");
        assert_eq!(refused(&json!({"$schema": place, "type": "object"})).at, "/$schema");
        assert_eq!(refused(&json!({"items": {"$id": place}})).at, "/items/$id");
    }
    // Behind a pointer into what is no schema, the crate itself meets the reference.
    let hidden = json!({"properties": {"a": {"$ref": "#/x"}}, "x": {"$ref": url}});
    assert!(Schema::compile(&hidden, true).is_err());
    assert!(canary.accept().is_err(), "somebody called");
    // What stays inside works.
    for schema in [
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": {"type": "string"}}}),
        json!({"properties": {"a": {"$ref": "#s"}}, "$defs": {"s": {"$anchor": "s", "type": "string"}}}),
        json!({"properties": {"a": {"$ref": "s"}}, "$defs": {"s": {"$id": "s", "type": "string"}}}),
        json!({"properties": {"a": {"$ref": "urn:x:s"}}, "$defs": {"s": {"$id": "urn:x:s", "type": "string"}}}),
    ] {
        let schema = closed(&schema);
        assert!(schema.faults(&json!({"a": "x"})).is_empty());
        assert_eq!(schema.faults(&json!({"a": 1}))[0].at, "/a");
    }
}

#[test]
fn values_that_only_look_like_references_are_left_alone() {
    let schema = closed(
        &json!({"properties": {"$ref": {"type": "string"}, "a": {"const": {"$ref": "http://x/"}},
        "b": {"default": {"$id": "http://x/"}}}}),
    );
    assert!(schema.faults(&json!({"$ref": "x", "a": {"$ref": "http://x/"}})).is_empty());
}

#[test]
fn a_pattern_that_is_not_linear_is_a_fault_of_the_schema_that_says_so() {
    for pattern in ["(?=a)b", "(?<!x)y", "^(?!a).*$"] {
        let fault = refused(&json!({"properties": {"a": {"pattern": pattern}}}));
        assert!(fault.message.contains("look-around"), "{fault}");
        assert_eq!(fault.at, "/properties/a/pattern");
    }
    for pattern in [r"(a)\1", "[a", "(?:(?:a{1000}){1000}){1000}"] {
        let fault = refused(&json!({"properties": {"a": {"pattern": pattern}}}));
        assert!(fault.message.contains("linear-time"), "{fault}");
        assert_eq!(fault.at, "/properties/a/pattern");
    }
    let fault = refused(&json!({"patternProperties": {"(?=a)b": {}}}));
    assert!(
        fault.message.contains("linear-time") || fault.message.contains("look-around"),
        "{fault}"
    );
}

#[test]
fn a_pattern_made_to_explode_costs_nothing() {
    let schema = closed(&json!({"properties": {"a": {"pattern": "^(a+)+$"}}}));
    let begun = tokio::time::Instant::now();
    assert_eq!(schema.faults(&json!({"a": format!("{}!", "a".repeat(50_000))})).len(), 1);
    assert!(begun.elapsed().as_millis() < 500);
}

#[test]
fn schemas_that_are_none_are_told_by_their_place() {
    for (schema, at) in [
        (json!({"type": "strin"}), "/type"),
        (json!({"properties": {"a": {"minLength": -1}}}), "/properties/a/minLength"),
        (json!({"required": "a"}), "/required"),
        (json!({"properties": {"a": {"maximum": "5"}}}), "/properties/a/maximum"),
        (json!({"properties": {"a": 5}}), "/properties/a"),
        (json!({"properties": {"a": {"$ref": "#/$defs/none"}}}), "/properties/a/$ref"),
    ] {
        let fault = refused(&schema);
        assert_eq!(fault.at, at, "{fault}");
        assert!(fault.message.len() < 400);
    }
    assert!(Schema::compile(&json!("text"), true).is_err());
}

#[test]
fn a_schema_that_circles_or_doubles_is_refused() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
    ] {
        assert!(refused(&schema).message.contains("itself"), "{schema}");
    }
    let mut defs = serde_json::Map::new();
    for n in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
        defs.insert(format!("d{n}"), json!({"allOf": [next, next]}));
    }
    defs.insert("d40".to_owned(), json!({"type": "object"}));
    let fault = refused(&json!({"$ref": "#/$defs/d0", "$defs": defs}));
    assert!(fault.message.contains("more than"), "{fault}");
    // Going deeper into the value is no circle.
    let tree = closed(
        &json!({"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}, "n": {"type": "integer"}}}),
    );
    assert!(tree.faults(&json!({"kids": [{"n": 1, "kids": []}]})).is_empty());
    assert_eq!(
        told(&tree, &json!({"kids": [{"x": 1}]})),
        ["/kids/0/x | no such field; the fields are kids, n | number"]
    );
}

#[test]
fn bb_j14_a_schema_too_deep_to_walk_is_refused() {
    let mut deep = Value::Object(serde_json::Map::new());
    for _ in 0..100_000 {
        deep = Value::Object([("items".to_owned(), deep)].into_iter().collect());
    }
    assert!(refused(&deep).message.contains("nested deeper"));
    // Dropped level by level: serde_json's own drop recurses.
    let mut rest = deep;
    while let Some(inner) = rest.get_mut("items").map(Value::take) {
        rest = inner;
    }
}

/// Naming every fault of these visits the same value once for each way that leads to it: twice as often each level.
#[test]
fn a_recursive_choice_is_explained_at_once_however_deep_the_arguments_are() {
    let choice = |discriminator: bool| {
        let form = |word: &str| {
            let mut properties = json!({"a": {"$ref": "#/$defs/e"}, "b": {"type": "array", "items": {"$ref": "#/$defs/e"}},
                "n": {"type": "integer", "maximum": 5}});
            if discriminator {
                properties["op"] = json!({"const": word});
            }
            json!({"type": "object", "properties": properties})
        };
        closed(&json!({"$ref": "#/$defs/e", "$defs": {"add": form("add"), "mul": form("mul"),
            "e": {"anyOf": [{"$ref": "#/$defs/add"}, {"$ref": "#/$defs/mul"}]}}}))
    };
    let doubled = closed(
        &json!({"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, "n": {"type": "integer"}}}),
    );
    for schema in [choice(true), choice(false), doubled] {
        let value = (0..30).fold(json!({"n": "x"}), |inner, _| json!({"a": inner}));
        let begun = tokio::time::Instant::now();
        let faults = schema.faults(&value);
        assert!(begun.elapsed().as_millis() < 500, "{:?}", begun.elapsed());
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].at, format!("{}/n", "/a".repeat(30)));
        assert_eq!(faults[0].got, "string");
        assert!(faults[0].expected.starts_with("integer"), "{}", faults[0].expected);
        assert!(
            schema
                .faults(&(0..30).fold(json!({"n": 1}), |inner, _| json!({"a": inner})))
                .is_empty()
        );
    }
    let strange = choice(true).faults(&json!({"b": [{"b": []}, {"a": {"z": 1}}]}));
    assert_eq!(strange[0].at, "/b/1/a/z");
    assert!(strange[0].expected.contains("a, b, n, op"), "{}", strange[0].expected);
}
