//! Known answers of public limiters, breakers and retries (`tests/vectors/`), one test a vector, named by its id.
//!
//! A driver reads every field of every step and fails on one it does not know; a vector that is neither tested nor
//! listed with a reason fails too. So nothing of the file is skipped in silence.

#![expect(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of a test may fail like the test itself; clippy sees only what stands in #[test]"
)]

mod breaker;
mod bucket;
mod keys;
mod retry;

use std::collections::BTreeSet;

use serde_json::Value;

const FILE: &str = include_str!("../vectors/resilience.json");

/// A vector of the file.
pub(crate) struct Vector {
    value: Value,
}

impl Vector {
    fn of(id: &str, mechanism: &str) -> Self {
        let value = all().into_iter().find(|vector| vector["id"] == id).expect("in the file");
        assert_eq!(value["mechanism"], mechanism, "{id} has a driver of another mechanism");
        Self { value }
    }

    fn config(&self, name: &str) -> &Value {
        let value = &self.value["config"][name];
        assert!(!value.is_null(), "config.{name}");
        value
    }

    fn number(&self, name: &str) -> u64 {
        self.config(name).as_u64().expect("a whole number")
    }

    /// The steps, each with no other fields than `known`.
    fn steps(&self, known: &[&str]) -> Vec<Step> {
        assert_eq!(self.unknown(known), [""; 0], "fields that no driver reads");
        self.value["steps"].as_array().expect("steps").iter().cloned().map(Step).collect()
    }

    fn unknown(&self, known: &[&str]) -> Vec<&str> {
        let steps = self.value["steps"].as_array().expect("steps").iter();
        steps
            .flat_map(|step| step.as_object().expect("a step is an object").keys())
            .map(String::as_str)
            .filter(|field| !known.contains(field))
            .collect()
    }
}

/// One action with its expected result.
pub(crate) struct Step(Value);

impl Step {
    fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some()
    }
    fn value(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or_else(|| panic!("{name} in {}", self.0))
    }
    fn number(&self, name: &str) -> u64 {
        self.value(name).as_u64().unwrap_or_else(|| panic!("{name}: a number in {}", self.0))
    }
    fn float(&self, name: &str) -> f64 {
        self.value(name).as_f64().unwrap_or_else(|| panic!("{name}: a number in {}", self.0))
    }
    fn text(&self, name: &str) -> &str {
        self.value(name).as_str().unwrap_or_else(|| panic!("{name}: a text in {}", self.0))
    }
    fn flag(&self, name: &str) -> bool {
        self.value(name).as_bool().unwrap_or_else(|| panic!("{name}: yes or no in {}", self.0))
    }
}

fn all() -> Vec<Value> {
    let file: Value = serde_json::Deserializer::from_str(FILE)
        .into_iter()
        .next()
        .expect("one document")
        .expect("JSON");
    file["vectors"].as_array().expect("vectors").clone()
}

/// `name "ID" "mechanism" driver;` → one test each, and the list of what is tested.
macro_rules! vectors {
    ($($name:ident $id:literal $mechanism:literal $driver:path;)*) => {
        const TESTED: &[&str] = &[$($id,)*];
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                $driver(Vector::of($id, $mechanism)).await;
            }
        )*
    };
}

vectors! {
    gcra_01 "GCRA-01" "token_bucket_gcra" bucket::gcra;
    gcra_02 "GCRA-02" "token_bucket_gcra" bucket::gcra;
    gcra_03 "GCRA-03" "token_bucket_gcra" bucket::gcra;
    gcra_04 "GCRA-04" "token_bucket_gcra" bucket::gcra;
    gcra_05 "GCRA-05" "token_bucket_gcra" bucket::gcra;
    gcra_06 "GCRA-06" "token_bucket_gcra" bucket::gcra;
    gcra_07 "GCRA-07" "token_bucket_gcra" bucket::gcra;
    gcra_08 "GCRA-08" "token_bucket_gcra" bucket::gcra;
    gcra_09 "GCRA-09" "token_bucket_gcra" bucket::gcra;
    gcra_10 "GCRA-10" "token_bucket_gcra" bucket::gcra;
    gcra_11 "GCRA-11" "token_bucket_gcra" bucket::gcra;
    gcra_12 "GCRA-12" "token_bucket_gcra" bucket::gcra;
    gcra_13 "GCRA-13" "retry_after_rounding" bucket::rounding;
    hdr_01 "HDR-01" "ratelimit_headers" bucket::headers;

    accrual_01 "ACCRUAL-01" "consecutive_failures" breaker::consecutive_failures;
    accrual_03 "ACCRUAL-03" "consecutive_vs_probe" breaker::consecutive_vs_probe;
    window_01 "WINDOW-01" "success_rate_window" breaker::success_rate_window;
    r4j_01 "R4J-01" "breaker_window" breaker::window;
    r4j_02 "R4J-02" "breaker_window" breaker::window;
    polly_01 "POLLY-01" "breaker_window" breaker::threshold;
    r4j_03 "R4J-03" "breaker_slow" breaker::slow;
    r4j_04 "R4J-04" "half_open_permits" breaker::half_open_permits;
    r4j_06 "R4J-06" "half_open_decision" breaker::closing_resets;
    r4j_07 "R4J-07" "half_open_ignored" breaker::half_open_ignored;
    r4j_08 "R4J-08" "half_open_ignored" breaker::half_open_ignored;
    r4j_09 "R4J-09" "open_wait" breaker::open_wait;
    r4j_10 "R4J-10" "open_wait_backoff" breaker::open_wait_grows;
    r4j_11 "R4J-11" "forced_open" breaker::isolated;
    r4j_12 "R4J-12" "illegal_transition" breaker::no_way_from_closed_to_half_open;
    polly_02 "POLLY-02" "rolling_window" breaker::rolling_window;
    polly_03 "POLLY-03" "half_open" breaker::half_open;
    polly_04 "POLLY-04" "half_open_unhandled" breaker::neutral_probe;
    gob_01 "GOB-01" "breaker_consecutive" breaker::sequence;
    gob_02 "GOB-02" "breaker_ratio_excluded" breaker::ratio_excluded;
    gob_03 "GOB-03" "rolling_window" breaker::ratio;
    gob_04 "GOB-04" "stale_generation" breaker::stale_generation;
    order_01 "ORDER-01" "breaker_then_later_reject" breaker::later_reject;
    order_02 "ORDER-02" "probe_cancelled" breaker::probe_cancelled;
    break_4xx "BREAK-4XX" "failure_classification" breaker::classification;

    ra_01 "RA-01" "retry_after" retry::retry_after;
    ra_04 "RA-04" "retry_after_formats" retry::retry_after_formats;
    grpc_02 "GRPC-02" "retry_throttle" retry::clamp;
    grpc_04 "GRPC-04" "validation" retry::bounds_at_load;
    grpc_05 "GRPC-05" "transparent_retry" retry::transparent;
    envoy_02 "ENVOY-02" "retry_budget" retry::sleeping_holds;
    envoy_04 "ENVOY-04" "deadline_includes_retries" retry::deadline;
    budget_03 "BUDGET-03" "retry_budget_ttl" retry::never_over_ratio;
    budget_05 "BUDGET-05" "retry_budget_ttl" retry::never_over_ratio;
    quota_06 "QUOTA-06" "retry_quota" retry::plain_backoff;
    quota_07 "QUOTA-07" "retry_quota" retry::plain_backoff;
    quota_10 "QUOTA-10" "retry_quota" retry::plain_backoff;
    polly_06 "POLLY-06" "backoff_overflow" retry::overflow;
    jitter_02 "JITTER-02" "jitter_formula" retry::jitter_formula;

    idem_01 "IDEM-01" "idempotency_http" keys::caller_key;
    idem_03 "IDEM-03" "idempotency_key_stability" keys::stable;
}

/// Vectors without a test here, each with its reason.
const NOT_TESTED: &[(&str, &str)] = &[
    ("RA-02", "reference: ours is max(computed, Retry-After) when it fits, else stop"),
    ("RA-03", "reference: no gRPC back end"),
    ("QUOTA-01", "reference: our retry budget has other numbers"),
    ("QUOTA-02", "reference: our retry budget has other numbers"),
    ("QUOTA-03", "reference: our retry budget has other numbers"),
    ("QUOTA-04", "reference: our retry budget has other numbers"),
    ("QUOTA-05", "reference: our retry budget has other numbers"),
    ("QUOTA-08", "reference: our retry budget has other numbers"),
    ("QUOTA-09", "reference: our retry budget has other numbers"),
    ("QUOTA-11", "reference: our retry budget has other numbers"),
    ("GRPC-01", "reference: our retry budget has no half-full threshold"),
    ("GRPC-03", "reference: another kind of jitter"),
    ("ENVOY-01", "reference: another kind of jitter"),
    ("ENVOY-03", "reference: our open time doubles to a ceiling"),
    ("BUDGET-01", "reference: buckets with a time to live"),
    ("BUDGET-02", "reference: buckets with a time to live"),
    ("BUDGET-04", "reference: buckets with a time to live"),
    ("ACCRUAL-02", "reference: no moving average"),
    ("R4J-05", "not ours: a verdict over four permits; one probe decides"),
    ("R4J-13", "not ours: a verdict over four permits; one probe decides"),
    ("POLLY-05", "reference: centred jitter; ours is additive"),
    ("CL-01", "reference: no Vegas limiter"),
    ("CL-02", "the optional adaptive bulkhead is not built"),
    ("CL-03", "reference: no gradient limiter"),
    ("SRE-01", "reference: no adaptive throttle"),
    ("JITTER-01", "statistical: a job of its own, not part of every run"),
    ("IDEM-02", "reference: how a tool may behave"),
];

/// Tested over real sockets, where the protocol itself is the mechanism.
const ELSEWHERE: &[&str] = &["H2-01"];

/// The field of each step of a vector, for those.
pub(crate) fn field_of_steps(id: &str, field: &str) -> Vec<Value> {
    let vector = all().into_iter().find(|vector| vector["id"] == id).expect("in the file");
    let steps = vector["steps"].as_array().expect("steps");
    steps.iter().map(|step| step[field].clone()).collect()
}

#[test]
fn every_vector_is_tested_or_listed_with_a_reason() {
    let ids: BTreeSet<String> =
        all().iter().map(|vector| vector["id"].as_str().expect("an id").to_owned()).collect();
    let listed: Vec<&str> = TESTED
        .iter()
        .chain(ELSEWHERE)
        .copied()
        .chain(NOT_TESTED.iter().map(|(id, _)| *id))
        .collect();
    let unique: BTreeSet<String> = listed.iter().map(|id| (*id).to_owned()).collect();
    assert_eq!(unique.len(), listed.len(), "an id is listed twice");
    assert_eq!(unique, ids);
    assert!(NOT_TESTED.iter().all(|(_, why)| !why.is_empty()));
}

#[test]
fn an_unknown_field_of_a_step_is_named() {
    let vector = Vector { value: serde_json::json!({ "steps": [{ "t_ms": 0, "surprise": 1 }] }) };
    assert_eq!(vector.unknown(&["t_ms"]), ["surprise"]);
}
