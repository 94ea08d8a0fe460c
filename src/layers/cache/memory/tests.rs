use super::*;
use crate::call::ended::Asks;
use crate::call::{Digest, Form, Truncated};
use http::{HeaderMap, HeaderValue};

const S: Duration = Duration::from_secs(1);
const MARKS: Marks = Marks { writes: 1, by_hand: 1 };

fn key(text: &str) -> Key {
    Key(Digest::of(text.as_bytes()))
}

fn result(bytes: &[u8]) -> ToolResult {
    let content = Content { bytes: Bytes::copy_from_slice(bytes), form: Form::Json };
    ToolResult { head: None, content, source: Source::Tool, notes: Notes::default() }
}

fn with_head(status: u16, cache_control: &[&str]) -> ToolResult {
    let mut headers = HeaderMap::new();
    for value in cache_control {
        headers.append(CACHE_CONTROL, HeaderValue::from_str(value).expect("a value"));
    }
    ToolResult { head: Some(Head { status, headers, arriving: None }), ..result(b"1") }
}

fn get(results: &Results, text: &str, marks: Marks, within: Duration) -> Option<Bytes> {
    let found = results.get(&key(text), marks, within, Source::Cache)?;
    Some(found.content.bytes)
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_found_for_so_long_and_tells_its_age() {
    let results = Results::new(MAX_BYTES);
    results.put(key("a"), MARKS, &result(b"1"));
    tokio::time::advance(4 * S).await;
    let found = results.get(&key("a"), MARKS, 5 * S, Source::StaleCache).expect("fresh");
    assert_eq!((found.notes.age, found.source), (Some(4 * S), Source::StaleCache));
    tokio::time::advance(S).await;
    assert_eq!(get(&results, "a", MARKS, 5 * S), None, "at its time it is over");
    assert!(get(&results, "a", MARKS, 6 * S).is_some(), "who may tell older ones finds it still");
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_before_a_change_is_not_found() {
    let results = Results::new(MAX_BYTES);
    results.put(key("a"), MARKS, &result(b"1"));
    assert_eq!(get(&results, "a", Marks { writes: 2, ..MARKS }, S), None);
    assert_eq!(get(&results, "a", Marks { by_hand: 2, ..MARKS }, S), None);
    assert_eq!(get(&results, "b", MARKS, S), None);
    assert!(get(&results, "a", MARKS, S).is_some());
}

#[tokio::test(start_paused = true)]
async fn kept_answers_are_bounded_by_bytes_and_by_number() {
    let long = vec![b'1'; 100 << 10];
    let results = Results::new(1 << 20);
    for n in 0..100 {
        results.put(key(&n.to_string()), MARKS, &result(&long));
    }
    results.0.run_pending_tasks();
    assert!(results.0.weighted_size() <= 1 << 20);
    assert!(get(&results, "99", MARKS, S).is_some(), "the last one is kept before older ones");
    assert_eq!(get(&results, "0", MARKS, S), None);
    let results = Results::new(1 << 20);
    for n in 0..5000 {
        results.put(key(&n.to_string()), MARKS, &result(b"1"));
    }
    results.0.run_pending_tasks();
    assert!(results.0.entry_count() <= 1024, "short ones too: {}", results.0.entry_count());
}

#[test]
fn only_whole_answers_of_the_tool_are_kept() {
    assert!(keepable(&result(b"1"), true));
    assert!(!keepable(&result(&vec![b'1'; MAX_ANSWER + 1]), false), "too long");
    let with = |notes| ToolResult { notes, ..result(b"1") };
    let truncated = Some(Truncated { total: 9, kept: 1 });
    assert!(!keepable(&with(Notes { truncated, ..Notes::default() }), false));
    assert!(!keepable(&with(Notes { asks: Some(Asks::default()), ..Notes::default() }), false));
    assert!(!keepable(&with(Notes { accepted: true, ..Notes::default() }), false));
    let again = ToolResult { source: Source::Ledger, ..result(b"1") };
    assert!(!keepable(&again, false), "somebody else's memory");
}

#[test]
fn what_its_origin_forbids_is_not_kept() {
    assert!(keepable(&with_head(200, &["max-age=0, must-revalidate"]), false), "the policy says");
    for forbidden in [
        &["no-store"][..],
        &["No-Store"],
        &["max-age=60, no-store"],
        &["max-age=60", "no-store"],
        &["no-store=1"],
    ] {
        assert!(!keepable(&with_head(200, forbidden), false), "{forbidden:?}");
    }
    for private in [&["private"][..], &["private=\"x-user\", max-age=5"]] {
        assert!(keepable(&with_head(200, private), false), "its own agent's: {private:?}");
        assert!(!keepable(&with_head(200, private), true), "another's: {private:?}");
    }
    assert!(!keepable(&with_head(202, &[]), false), "not finished");
    assert!(!keepable(&with_head(206, &[]), false), "a part");
    let mut odd = with_head(200, &[]);
    let head = odd.head.as_mut().expect("there");
    head.headers.insert(CACHE_CONTROL, HeaderValue::from_bytes(b"\xffno-store").expect("bytes"));
    assert!(!keepable(&odd, false), "no word that could be read");
}

#[test]
fn a_mark_that_is_made_anew_stands_where_none_stood_before() {
    let (cached, shop) = (Cached::default(), UpstreamName::new("shop").expect("a name"));
    let first = cached.of_upstream(&shop);
    let stood = first.now();
    first.change();
    assert_ne!(first.now(), stood);
    assert_eq!(cached.of_upstream(&shop).now(), first.now(), "one mark a name");
    cached.names().upstreams.clear();
    let again = cached.of_upstream(&shop).now();
    assert!(again != stood && again != first.now());
}
