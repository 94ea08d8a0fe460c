//! Rules meet definitions: names, schemas, hints, what is shown, and what changes when one of them does.

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::policy::snapshot::Probe;
use crate::policy::{LoadOptions, examine_text};

fn policy(servers: &str, agents: &str) -> Arc<Snapshot> {
    let text = format!(
        "apiVersion: checkrein/v1\nkind: Policy\nmcp_servers:\n{servers}\nagents:\n{agents}\n"
    );
    let options = LoadOptions { offline: true };
    let examined = examine_text(text.as_bytes(), "p", Path::new("/nowhere"), options);
    examined.snapshot.unwrap_or_else(|| panic!("{:?}", examined.problems))
}

/// One server `s` with the prefix `s_`.
fn one(tools: &str) -> Arc<Snapshot> {
    policy(
        &format!("  s:\n    url: https://s.example/mcp\n    prefix: s_\n    tools:\n{tools}"),
        "  default: { allow: [\"*\"] }",
    )
}

fn offered(definition: Value) -> Offered {
    let own_name = definition["name"].as_str().expect("a name").into();
    Offered { own_name, definition: Arc::new(definition), quarantined: None }
}

fn plain(name: &str) -> Value {
    json!({"name": name, "description": "d", "inputSchema": {"type": "object",
        "properties": {"id": {"type": "string"}}, "required": ["id"]}})
}

type Catalogs = HashMap<UpstreamName, Arc<Catalog>>;

fn catalog(server: &str, definitions: Vec<Value>) -> (UpstreamName, Arc<Catalog>) {
    let tools = definitions.into_iter().map(offered).collect();
    (UpstreamName::new(server).expect("a name"), Arc::new(Catalog { tools }))
}

fn of(definitions: Vec<Value>) -> Catalogs {
    Catalogs::from([catalog("s", definitions)])
}

fn names(snapshot: &Snapshot) -> Vec<&str> {
    let mut names: Vec<&str> = snapshot.tools.keys().map(ToolName::as_str).collect();
    names.sort_unstable();
    names
}

fn said(snapshot: &Snapshot) -> String {
    snapshot.remarks.iter().map(|one| format!("{} {}\n", one.own_name, one.text)).collect()
}

#[test]
fn a_tool_that_no_entry_names_or_that_is_not_exposed_does_not_exist() {
    let base = one(
        "      \"get_*\": { effect: read }\n      \"get_secret*\": { expose: false }\n      get_secret_no: { effect: read }\n      put: {}",
    );
    assert_eq!(names(&bind(&base, &HashMap::new())), [""; 0]);
    let all = ["get_a", "get_secret", "get_secret_no", "put", "other"].map(plain).to_vec();
    let bound = bind(&base, &of(all));
    assert_eq!(names(&bound), ["s_get_a", "s_get_secret_no", "s_put"]);
    let agent = &bound.agents["default"];
    let mut allowed: Vec<&str> = agent.allowed.keys().map(ToolName::as_str).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["s_get_a", "s_get_secret_no"], "a pattern covers no write");
    assert_eq!(agent.allowed["s_get_a"].path.as_ref(), "agents.default.allow");
    assert_eq!(bound.tools["s_get_a"].rule.path.as_ref(), "mcp_servers.s.tools.get_*");
}

#[test]
fn bb_a13_a_server_that_grows_a_tool_widens_nobody_unless_the_policy_has_an_entry_for_it() {
    let base = one("      get: { effect: read }");
    let before = bind(&base, &of(vec![plain("get")]));
    let after = rebind(&base, &of(vec![plain("get"), plain("x")]), Some(&before));
    assert_eq!(names(&after), names(&before));
    // A new write under a pattern exists, and no agent may call it by a pattern.
    let wide = one("      \"*\": {}");
    let bound = bind(&wide, &of(vec![plain("x")]));
    assert_eq!(names(&bound), ["s_x"]);
    assert!(bound.agents["default"].allowed.is_empty());
}

#[test]
fn bb_a11_a_hint_makes_a_write_of_what_a_pattern_calls_a_read_and_never_a_read_of_a_write() {
    let hinted = |name: &str, hints: Value| {
        let mut definition = plain(name);
        definition["annotations"] = hints;
        definition
    };
    let base = one(
        "      \"get_*\": { effect: read }\n      get_exact: { effect: read }\n      \"*\": {}",
    );
    let bound = bind(
        &base,
        &of(vec![
            hinted("get_a", json!({"readOnlyHint": true, "destructiveHint": false})),
            hinted("get_b", json!({"readOnlyHint": false})),
            hinted("get_c", json!({"destructiveHint": true})),
            hinted("get_d", json!({"readOnlyHint": "false"})),
            hinted("get_exact", json!({"readOnlyHint": false, "destructiveHint": true})),
            hinted("send", json!({"readOnlyHint": true})),
        ]),
    );
    for (name, effect) in [
        ("s_get_a", Effect::Read),
        ("s_get_b", Effect::Write),
        ("s_get_c", Effect::Write),
        ("s_get_d", Effect::Read),
        ("s_get_exact", Effect::Read),
        ("s_send", Effect::Write),
    ] {
        let tool = &bound.tools[name];
        assert_eq!(tool.effect, effect, "{name}");
        assert_eq!(tool.listed["annotations"]["readOnlyHint"], json!(effect == Effect::Read));
        assert_eq!(tool.write.is_some(), effect == Effect::Write);
        assert_eq!(tool.retry.is_some(), effect == Effect::Read);
    }
    assert_eq!(bound.tools["s_get_exact"].listed["annotations"]["destructiveHint"], json!(false));
    assert!(said(&bound).contains("get_b is a write") && said(&bound).contains("get_c is a write"));
    assert_eq!(bound.remarks.len(), 2);
}

#[test]
fn bb_a08_two_servers_with_one_name_have_neither_and_the_order_of_their_coming_decides_nothing() {
    let server = |name: &str, tools: &str| {
        format!("  {name}:\n    url: https://{name}.example/mcp\n    tools: {tools}\n")
    };
    let both = server("s1", "{ \"send_*\": {} }") + &server("s2", "{ \"*_email\": {} }");
    let base = policy(&both, "  default: { allow: [send_email] }");
    let (one, two) =
        (catalog("s1", vec![plain("send_email")]), catalog("s2", vec![plain("send_email")]));
    let bound = bind(&base, &Catalogs::from([one.clone(), two.clone()]));
    assert_eq!(names(&bound), [""; 0]);
    let why = &bound.broken_tools[0].why;
    assert!(why.contains("`s1`") && why.contains("`s2`"), "{why}");

    // An exact entry owns its name from the start, there or not.
    let owned = server("s1", "{ \"*\": {} }") + &server("s2", "{ send_email: {} }");
    let base = policy(&owned, "  default: { allow: [send_email] }");
    assert_eq!(names(&bind(&base, &Catalogs::from([one.clone()]))), [""; 0], "s2 has yet to come");
    let bound = bind(&base, &Catalogs::from([one, two]));
    let Target::Mcp(mcp) = &bound.tools["send_email"].target else { panic!("another kind") };
    assert_eq!(mcp.server.name.as_str(), "s2");
    assert!(
        said(&bound).contains("belongs to `send_email` of the server `s2`"),
        "{}",
        said(&bound)
    );
}

#[test]
fn a_name_that_models_do_not_know_is_told_and_a_rename_mends_it() {
    let base = one("      \"*\": { effect: read }\n      a.b: { effect: read, rename: a_b }");
    let bound = bind(&base, &of(vec![plain("a.b"), plain("c.d"), plain(&"x".repeat(63))]));
    assert_eq!(names(&bound), ["a_b"]);
    assert!(
        said(&bound).contains("c.d is not exposed: `s_c.d` cannot be a name"),
        "{}",
        said(&bound)
    );
    assert_eq!(bound.remarks.len(), 2);
}

#[test]
fn one_bad_schema_costs_one_tool() {
    let schema = |name: &str, schema: Value| json!({"name": name, "inputSchema": schema});
    let deep = (0..200).fold(json!({}), |inner, _| json!({"not": inner}));
    let mut bad = vec![
        schema("null", Value::Null),
        schema("list", json!({"type": "array"})),
        schema("none", json!({})),
        schema(
            "remote",
            json!({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}),
        ),
        schema("file", json!({"type": "object", "$id": "file:///etc/passwd"})),
        schema(
            "dialect",
            json!({"type": "object", "$schema": "http://json-schema.org/draft-04/schema#"}),
        ),
        schema("pattern", json!({"type": "object", "properties": {"a": {"pattern": "(?=x)"}}})),
        schema("kind", json!({"type": "object", "properties": {"a": {"type": "objekt"}}})),
        schema("circle", json!({"type": "object", "allOf": [{"$ref": "#"}]})),
        schema("deep", json!({"type": "object", "allOf": [deep]})),
        schema(
            "mark",
            json!({"type": "object", "properties": {"a": {"type": "array", "x-mcp-header": "A"}}}),
        ),
    ];
    let lost = bad.len();
    bad.push(plain("good"));
    let bound = bind(&one("      \"*\": { effect: read }"), &of(bad));
    assert_eq!(names(&bound), ["s_good"]);
    assert_eq!(bound.broken_tools.len(), lost, "{:?}", bound.broken_tools);
}

#[test]
fn the_servers_schema_is_closed_and_constraints_only_narrow_it() {
    let base = one(
        "      t: { effect: read, constraints: { properties: { id: { maxLength: 3 } } } }\n      u: { effect: read, schema: { type: object, properties: { x: { type: integer } } } }",
    );
    let bound = bind(&base, &of(vec![plain("t"), plain("u")]));
    let t = &bound.tools["s_t"].schema;
    assert!(t.is_valid(&json!({"id": "abc"})));
    for wrong in [json!({}), json!({"id": "abcd"}), json!({"id": "a", "more": 1}), json!({"id": 1})]
    {
        assert!(!t.is_valid(&wrong), "{wrong}");
    }
    let u = &bound.tools["s_u"].schema;
    assert!(u.is_valid(&json!({"x": 1})) && !u.is_valid(&json!({"id": "a"})));
    for name in ["s_t", "s_u"] {
        let tool = &bound.tools[name];
        assert_eq!(
            &tool.listed["inputSchema"],
            tool.schema.source().as_ref(),
            "what is shown is what judges"
        );
    }
}

#[test]
fn draft_07_is_judged_as_it_means_and_says_so_where_it_reads_the_same() {
    const D7: &str = "http://json-schema.org/draft-07/schema#";
    let same = json!({"name": "same", "inputSchema": {"type": "object", "properties": {"a": {"type": "number", "exclusiveMinimum": 1}}, "$schema": D7}});
    let tuple = json!({"name": "tuple", "inputSchema": {"$schema": D7, "type": "object",
        "definitions": {"n": {"$id": "#n", "type": "integer"}},
        "properties": {"a": {"type": "array", "items": [{"$ref": "#/definitions/n", "maximum": 3}, {"type": "string"}], "additionalItems": false},
            "b": {"$ref": "#n"}},
        "dependencies": {"a": ["b"], "b": {"minProperties": 2}}}});
    let bound = bind(&one("      \"*\": { effect: read }"), &of(vec![same, tuple]));
    assert_eq!(names(&bound), ["s_same", "s_tuple"], "{:?}", bound.broken_tools);
    let same = &bound.tools["s_same"];
    assert_eq!(same.listed["inputSchema"]["$schema"], json!(D7));
    assert!(same.schema.is_valid(&json!({"a": 2})));
    assert!(!same.schema.is_valid(&json!({"a": 1})) && !same.schema.is_valid(&json!({"b": 1})));
    let tuple = &bound.tools["s_tuple"];
    assert_eq!(tuple.listed["inputSchema"].get("$schema"), None);
    for (value, sound) in [
        (json!({"a": [9, "x"], "b": 1}), true), // beside a `$ref` nothing counts
        (json!({"a": [1, "x", 2], "b": 1}), false),
        (json!({"a": [1, 2], "b": 1}), false),
        (json!({"a": [1]}), false),
        (json!({"b": 1}), false),
        (json!({"a": [1], "b": "x"}), false),
        (json!({"a": [1], "b": 1, "c": 1}), false),
    ] {
        assert_eq!(tuple.schema.is_valid(&value), sound, "{value}");
    }
}

#[test]
fn what_is_shown_is_the_servers_own_but_for_what_the_policy_decides() {
    let definition: Value = crate::strict_json::parse(
        br#"{"icons":[{"src":"i"}],"name":"t","title":"T","x":{"n":1.50,"big":9007199254740993},
        "inputSchema":{"required":["id"],"properties":{"id":{"type":"string","x-mcp-header":"Id"}},"type":"object"},
        "annotations":{"title":"A","openWorldHint":false,"destructiveHint":true},"execution":{"taskSupport":"optional"},
        "outputSchema":{"type":"object"},"description":"server's","_meta":{"k":"v"}}"#,
        crate::strict_json::Limits::answer(4096),
    )
    .expect("JSON");
    let base = one(
        "      t: { effect: read }\n      cut: { effect: read, result: { redact: [/a] }, description: ours }",
    );
    let mut cut = definition.clone();
    cut["name"] = json!("cut");
    let bound = bind(&base, &of(vec![definition, cut]));
    let tool = &bound.tools["s_t"];
    assert_eq!(
        tool.listed.to_string(),
        r#"{"icons":[{"src":"i"}],"name":"s_t","title":"T","x":{"n":1.50,"big":9007199254740993},"inputSchema":{"required":["id"],"properties":{"id":{"type":"string","x-mcp-header":"Id"}},"type":"object","additionalProperties":false},"annotations":{"title":"A","openWorldHint":false,"destructiveHint":false,"readOnlyHint":true},"outputSchema":{"type":"object"},"description":"server's","_meta":{"k":"v"}}"#
    );
    assert_eq!(tool.description.as_ref(), "server's");
    let Target::Mcp(mcp) = &tool.target else { panic!("another kind") };
    assert!(mcp.output_schema);
    assert_eq!(mcp.param_headers.to_vec(), [("/id".to_owned(), "id".to_owned())]);
    let cut = &bound.tools["s_cut"];
    assert_eq!(cut.listed.get("outputSchema"), None, "the policy changes what it describes");
    assert_eq!((&cut.listed["description"], cut.description.as_ref()), (&json!("ours"), "ours"));
}

#[test]
fn a_write_whose_operation_the_schema_does_not_name_is_left_out_and_constraints_mend_it() {
    let optional = |name: &str| json!({"name": name, "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}}});
    let base = one(
        "      a: { write: { fingerprint: [/id] } }\n      b: { write: { fingerprint: [/no] } }\n      c: { write: { fingerprint: [/id] }, constraints: { required: [id] } }\n      k: { write: { idempotency: { mode: argument, name: /id } } }\n      m: { write: { idempotency: { mode: argument, name: /key } } }",
    );
    let bound = bind(&base, &of(["a", "b", "c", "k", "m"].map(optional).to_vec()));
    assert_eq!(names(&bound), ["s_c", "s_k"]);
    let why: String = bound.broken_tools.iter().map(|broken| format!("{}\n", broken.why)).collect();
    assert!(why.contains("does not require `/id`") && why.contains("does not have `/no`"), "{why}");
    assert!(why.contains("no `key`"), "{why}");
    let hidden = &bound.tools["s_k"];
    assert!(!hidden.schema.is_valid(&json!({"id": "mine"})), "models do not send the key");
    assert_eq!(hidden.listed["inputSchema"]["properties"], json!({}));
}

#[test]
fn a_quarantined_tool_is_hidden_from_all_and_known_to_those_who_may_call_it() {
    let base = policy(
        "  s:\n    url: https://s.example/mcp\n    prefix: s_\n    tools: { \"*\": { effect: read }, send: {} }",
        "  default: { allow: [\"s_g*\"] }\n  b: { identities: [{ token: { env: NOWHERE } }], allow: [s_send], deny: [\"s_g*\"] }",
    );
    let mut tools = [offered(plain("get")), offered(plain("send"))];
    for tool in &mut tools {
        tool.quarantined = Some("its description changed".into());
    }
    let catalogs = Catalogs::from([(
        UpstreamName::new("s").expect("a name"),
        Arc::new(Catalog { tools: tools.to_vec() }),
    )]);
    let bound = bind(&base, &catalogs);
    assert!(bound.tools.is_empty());
    assert_eq!(bound.quarantined["s_get"].as_ref(), "its description changed");
    assert!(bound.agents["default"].allowed.contains_key("s_get"));
    assert!(!bound.agents["default"].allowed.contains_key("s_send"));
    assert!(bound.agents["b"].allowed.contains_key("s_send"));
    assert!(bound.agents["b"].denied.contains_key("s_get"));
}

#[test]
fn everything_an_entry_says_arrives_in_the_tool() {
    let base = policy(
        "  s:\n    url: https://s.example/mcp\n    profile: internal_rpc\n    tools:\n      \"send*\":\n        timeout: { total: 12s }\n        breaker: { probe: discover, is_error: bad }\n        rate_limit: { rate: 5/s, burst: 7, per: agent }\n        bulkhead: 3\n        weight: 2\n        volatile: [/id]\n        tasks: use\n        alternatives: [send_b]\n        cost: 0.01 USD\n        fuse: { same_results: 9 }\n        result: { format: text, max: 1KiB }\n        write: { identical: refuse, is_error: unknown, on_input_required: unknown, idempotency: { mode: meta, name: example.com/k, window: 1h } }",
        "  default: { allow: [send_a] }",
    );
    let bound = bind(&base, &of(vec![plain("send_a"), plain("send_b")]));
    let tool = &bound.tools["send_a"];
    let Target::Mcp(mcp) = &tool.target else { panic!("another kind") };
    let seconds = std::time::Duration::from_secs;
    assert_eq!((tool.timeout.total, tool.timeout.first_byte), (seconds(12), seconds(10)));
    assert!(tool.breaker.is_error_bad && tool.breaker.probe == Some(Probe::Discover));
    let limit = tool.rate_limit.as_ref().expect("it has one");
    assert_eq!((limit.name.as_str(), limit.burst), ("tool:send_a", 7));
    assert_eq!(
        bound.tools["send_b"].rate_limit.as_ref().expect("too").name.as_str(),
        "tool:send_b"
    );
    assert_eq!((tool.bulkhead, tool.weight, tool.cost), (3, 2, Some(10_000)));
    assert_eq!((tool.volatile.len(), tool.alternatives[0].as_str()), (1, "send_b"));
    assert_eq!((tool.result.max, tool.result.json, mcp.format_written), (1024, false, true));
    assert!(mcp.asks_after_acting && mcp.tasks);
    assert_eq!(mcp.is_error, crate::policy::snapshot::IsError::Unknown);
    assert_eq!(mcp.meta_key.as_deref(), Some("example.com/k"));
    assert!(
        tool.write.as_ref().expect("a write").idempotency.as_ref().expect("a key").window.is_some()
    );
    assert!(bound.upstreams.contains_key("s"), "limits and metrics know the server");
}

#[test]
fn an_unchanged_tool_stays_the_same_and_a_changed_one_has_another_section() {
    let base = one("      \"*\": { effect: read }");
    let before = of(vec![plain("a"), plain("b")]);
    let first = bind(&base, &before);
    let server = UpstreamName::new("s").expect("a name");
    let mut tools = before[&server].tools.clone();
    let mut changed = plain("b");
    changed["title"] = json!("other");
    tools[1] = offered(changed);
    let after = Catalogs::from([(server, Arc::new(Catalog { tools }))]);
    let second = rebind(&base, &after, Some(&first));
    assert!(Arc::ptr_eq(&first.tools["s_a"], &second.tools["s_a"]));
    assert_ne!(first.tools["s_b"].section, second.tools["s_b"].section);
    // The rule changes, and nothing of the definition.
    let other = one("      \"*\": { effect: read, weight: 2 }");
    assert_ne!(
        rebind(&other, &before, Some(&first)).tools["s_a"].section,
        first.tools["s_a"].section
    );
    let again = one("      \"*\": { effect: read }");
    assert_eq!(
        rebind(&again, &before, Some(&first)).tools["s_a"].section,
        first.tools["s_a"].section
    );
}

#[test]
fn ten_thousand_tools_are_bound_in_seconds_and_bound_again_at_once() {
    let base = one("      \"get_*\": { effect: read }\n      \"*\": {}");
    let all: Vec<Value> = (0..10_000).map(|n| plain(&format!("get_{n}"))).collect();
    let catalogs = of(all);
    let began = tokio::time::Instant::now();
    let first = bind(&base, &catalogs);
    let cold = began.elapsed();
    let began = tokio::time::Instant::now();
    let second = rebind(&base, &catalogs, Some(&first));
    let warm = began.elapsed();
    eprintln!("cold {cold:?}, warm {warm:?}");
    assert_eq!((first.tools.len(), second.tools.len()), (10_000, 10_000));
    assert!(cold.as_secs() < 60 && warm.as_secs() < 10, "{cold:?} {warm:?}");
}

proptest! {
    /// Whatever servers offer and in whatever order they are asked: the same snapshot, and no write by a pattern.
    #[test]
    fn the_order_of_definitions_decides_nothing(order in Just((0..6).collect::<Vec<usize>>()).prop_shuffle()) {
        let base = one("      \"get_*\": { effect: read }\n      \"*\": {}\n      get_x: { effect: read, rename: s_get_y }");
        let all = ["get_x", "get_y", "get_z", "send", "send", "a.b"].map(plain);
        let straight = bind(&base, &of(all.to_vec()));
        let mixed = bind(&base, &of(order.iter().map(|at| all[*at].clone()).collect()));
        prop_assert_eq!(names(&straight), names(&mixed));
        prop_assert_eq!(names(&straight), ["s_get_y", "s_get_z"]);
        for (name, tool) in &straight.tools {
            prop_assert_eq!(tool.section, mixed.tools[name].section);
        }
    }
}
