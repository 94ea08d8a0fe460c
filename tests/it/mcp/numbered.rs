//! Forty-two things that a gateway for MCP must get right, each by a name that a test bears. Nobody may lose one.

use std::path::Path;

/// By their numbers.
const NAMES: [&str; 42] = [
    "notification_is_202_and_empty",
    "get_is_405_not_404",
    "foreign_origin_or_host_is_403",
    "dead_session_is_404_even_when_limited",
    "header_must_equal_body",
    "policy_reads_the_body_name",
    "two_pages_through_the_filter",
    "error_text_and_structure_survive",
    "keepalives_do_not_extend_the_total",
    "hangup_does_not_cut_a_write",
    "reissue_under_a_new_id_does_not_write_twice",
    "a_continuation_is_not_a_repeat",
    "a_forged_or_foreign_state_is_refused",
    "a_429_is_not_ill_health",
    "empty_arguments_are_validated",
    "one_bad_schema_costs_one_tool",
    "cancel_uses_the_upstreams_id",
    "reused_connection_failure_is_unknown",
    "bad_reload_keeps_the_good_catalog",
    "ids_are_tokens",
    "first_frame_is_not_the_answer",
    "stream_end_without_answer_ends_now",
    "one_upstream_expires_the_rest_live",
    "no_session_is_shared_between_identities",
    "a_dead_upstream_does_not_spoil_the_list",
    "filtered_list_is_not_the_lock",
    "lists_are_private_and_steady",
    "list_changed_reaches_those_concerned",
    "drift_is_quarantined",
    "era_matrix",
    "probe_falls_back_only_on_proof",
    "name_is_rewritten_on_every_hop",
    "progress_token_is_the_agents",
    "elicitation_goes_home",
    "approval_is_not_the_agents_to_give",
    "error_with_output_schema_is_accepted_by_clients",
    "an_rpc_error_is_not_a_500",
    "stdio_noise_and_full_pipes",
    "group_is_killed",
    "a_task_handle_settles_an_unknown",
    "deep_and_wide_messages_are_refused",
    "stdout_is_only_jsonrpc",
];

fn sources(folder: &Path, found: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with(".parts") {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push_str(&std::fs::read_to_string(&path).expect("source text"));
        }
    }
}

/// Whether a function of this name has a test's attribute on the line above it.
fn is_a_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    lines.windows(2).any(|two| {
        let [above, line] = two else { return false };
        let declared = line.trim().trim_start_matches("async ");
        declared.strip_prefix("fn ").is_some_and(|rest| rest.starts_with(&format!("{name}(")))
            && (above.trim() == "#[test]" || above.trim().starts_with("#[tokio::test"))
    })
}

#[test]
fn each_of_the_forty_two_is_a_test_by_its_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = String::new();
    sources(&root.join("src"), &mut text);
    sources(&root.join("tests"), &mut text);
    let missing: Vec<&str> = NAMES.into_iter().filter(|name| !is_a_test(&text, name)).collect();
    assert!(missing.is_empty(), "no test bears these names: {missing:?}");
    assert!(!is_a_test("#[test]\nfn other_matrix() {}", "era_matrix"), "a name is a whole name");
}
