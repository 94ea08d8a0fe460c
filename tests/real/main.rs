//! Checkrein as a whole binary in front of third-party programs, whose own memory is the judge of what arrived.
//! `tests/run` starts them; a test whose program is not there fails, unless CHECKREIN_ALLOW_MISSING=1.

#![expect(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a helper of a test may fail like the test itself; clippy sees only what stands in #[test]"
)]

mod gateway;
mod http;
mod httpbin;
mod httpbin_passed;
mod json_server;
mod prism;
mod wiremock;
mod wiremock_faults;
mod wiremock_health;

/// The address that `tests/real/with` handed over, or a failure that says how to get one.
fn address_of(variable: &str) -> Option<String> {
    if let Ok(address) = std::env::var(variable) {
        return Some(address);
    }
    let allowed = std::env::var("CHECKREIN_ALLOW_MISSING").is_ok_and(|value| value == "1");
    assert!(
        allowed,
        "{variable} is not set: run `tests/run`, or `tests/real/with PART -- cargo nextest run --test real`"
    );
    eprintln!("NOT RUN: {variable} is not set");
    None
}

/// Asks until the answer is there; a level, never a sleep that hopes.
fn wait_for<T>(what: &str, within: std::time::Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + within;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(tokio::time::Instant::now() < end, "{what}: not within {within:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
