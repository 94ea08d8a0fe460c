//! Streams of a session that break: their agents come back by GET with the last event they heard, and get what they
//! missed of that stream, once.

use std::time::Duration;

use checkrein::identity::Peer;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::peer::{Got, Session, Stream, build, got, raw};
use super::script::house;
use crate::front_ends::kit::House;

const NEWEST: &str = "2025-11-25";

async fn asked(house: &House) -> Session {
    Session::open_with(house, None, NEWEST, &json!({"sampling": {}})).await
}

/// A call whose answer is a stream.
async fn call(house: &House, session: &Session, id: u32, tool: &str, arguments: &Value) -> Stream {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "t"}});
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    let request = build("POST", &session.fields(), &call.to_string());
    let response = house.front_ends.clone().answer(Peer::Loopback, request).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    Stream::new(response.into_body())
}

fn back_fields<'a>(session: &'a Session, last: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut fields = session.fields();
    fields.extend([("accept", "text/event-stream"), ("last-event-id", last)]);
    fields
}

async fn back(house: &House, session: &Session, last: &str) -> Stream {
    let request = build("GET", &back_fields(session, last), "");
    let response = house.front_ends.clone().answer(Peer::Loopback, request).await;
    assert_eq!(response.status(), 200, "{last}");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    Stream::new(response.into_body())
}

async fn refused(house: &House, session: &Session, last: &str) -> Got {
    let request = build("GET", &back_fields(session, last), "");
    got(house.front_ends.clone().answer(Peer::Loopback, request).await).await
}

async fn rest(mut stream: Stream) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    while let Some(named) = stream.named().await {
        all.push(named);
    }
    all
}

/// Nothing is said for a while.
async fn quiet(stream: &mut Stream) {
    let heard = tokio::time::timeout(Duration::from_secs(5), stream.next()).await;
    assert!(heard.is_err(), "{heard:?}");
}

/// The name that a stream begins with.
async fn primed(stream: &mut Stream) -> String {
    stream.first().await;
    stream.last()
}

#[tokio::test(start_paused = true)]
async fn a_stream_begins_with_a_name_where_the_revision_knows_it_and_events_have_names_in_both() {
    let house = House::new();
    for (revision, begins) in [(NEWEST, true), ("2025-06-18", false)] {
        let session = Session::open_with(&house, None, revision, &json!({"sampling": {}})).await;
        let params = json!({"name": "list_regions"});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let request = build("POST", &session.fields(), &call.to_string());
        let response = house.front_ends.clone().answer(Peer::Loopback, request).await;
        let mut body = response.into_body();
        let frame = body.frame().await.expect("a frame").expect("whole").into_data().expect("data");
        let text = String::from_utf8(frame.to_vec()).expect("UTF-8");
        let (name, rest) = text.split_once('\n').expect("lines");
        let place = if begins { "-1-0" } else { "-1-1" };
        assert!(name.starts_with("id: ") && name.ends_with(place), "{text}");
        match begins {
            true => assert_eq!(rest, "data: \n\n", "nothing but the name"),
            false => assert!(rest.starts_with("event: message\ndata: {"), "{text}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_is_given_exactly_and_in_order() {
    let house = house().0;
    let session = asked(&house).await;
    let order = json!({"order_id": "progress"});
    let mut whole = call(&house, &session, 1, "lookup_order", &order).await;
    let begin = primed(&mut whole).await;
    let all = rest(whole).await;
    assert_eq!(all.len(), 4, "three notes and the answer: {all:?}");
    assert_eq!(all[3].1["id"], 1);
    assert_eq!(rest(back(&house, &session, &begin).await).await, all, "from the beginning");
    for heard in 0..3 {
        let again = rest(back(&house, &session, &all[heard].0).await).await;
        assert_eq!(again, all[heard + 1..], "after event {heard}");
    }
    // Who has it all is told not to come again, and given nothing twice.
    let over = refused(&house, &session, &all[3].0).await;
    assert_eq!((over.status, over.bytes), (204, 0));
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_agent_broke_off_is_made_once_and_answered_once() {
    let (house, held) = house();
    let session = asked(&house).await;
    let order = json!({"order_ref": "held"});
    let mut stream = call(&house, &session, 7, "create_order", &order).await;
    let begin = primed(&mut stream).await;
    held.begun.notified().await;
    drop(stream);
    held.go_on.notify_one();
    let given = rest(back(&house, &session, &begin).await).await;
    let [(name, answer)] = &*given else { panic!("{given:?}") };
    assert_eq!((&answer["id"], &answer["result"]["isError"]), (&json!(7), &json!(false)));
    assert_eq!(house.hits.all().len(), 1);
    assert_eq!(refused(&house, &session, name).await.status, 204);
    assert_eq!(rest(back(&house, &session, &begin).await).await, given, "the same, sent once");
    assert_eq!(house.hits.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_early_hears_what_is_said_from_then_on_and_whoever_read_before_is_cut() {
    let (house, held) = house();
    let session = asked(&house).await;
    let order = json!({"order_id": "held"});
    let mut first = call(&house, &session, 1, "lookup_order", &order).await;
    let begin = primed(&mut first).await;
    held.begun.notified().await;
    let second = back(&house, &session, &begin).await;
    assert_eq!(first.next().await, None, "a message goes to one connection");
    held.go_on.notify_one();
    let given = rest(second).await;
    assert_eq!((given.len(), &given[0].1["id"]), (1, &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn no_event_of_another_stream_session_or_agent_is_given() {
    let house = house().0;
    let (one, two) = (asked(&house).await, asked(&house).await);
    let order = |id: &str| json!({"order_id": id});
    let mut a = call(&house, &one, 1, "lookup_order", &order("a")).await;
    let (of_a, answer_a) = (primed(&mut a).await, rest(a).await);
    let mut b = call(&house, &one, 2, "lookup_order", &order("b")).await;
    let (of_b, answer_b) = (primed(&mut b).await, rest(b).await);
    let mut c = call(&house, &two, 1, "lookup_order", &order("c")).await;
    let (of_c, answer_c) = (primed(&mut c).await, rest(c).await);
    for (session, begin, answer) in
        [(&one, &of_a, &answer_a), (&one, &of_b, &answer_b), (&two, &of_c, &answer_c)]
    {
        assert_eq!(rest(back(&house, session, begin).await).await, *answer, "its own alone");
    }
    // The same place of another session, of the same agent and of another one.
    let other = Session::open_as(&house, "a").await;
    for (session, last) in [(&two, &of_a), (&one, &of_c), (&other, &of_a)] {
        let got = refused(&house, session, last).await;
        assert_eq!((got.status, got.code()), (400, -32600), "{got:?}");
    }
    // Another agent does not even get to the session.
    let mut fields = back_fields(&one, &of_a);
    fields.push(("authorization", "Bearer token-a"));
    assert_eq!(raw(&house, "GET", &fields, "").await.status, 404);
    // No event of that name was given.
    let mark = of_a.split('-').next().expect("a mark").to_owned();
    for last in ["1", "x-1-0", &format!("{mark}-1-2"), &format!("{mark}-9-0"), &format!("{of_a}0")]
    {
        assert_eq!(refused(&house, &one, last).await.status, 400, "{last}");
    }
}

#[tokio::test(start_paused = true)]
async fn past_the_bound_the_oldest_events_go_and_nothing_is_given_in_part() {
    let house = house().0;
    let session = asked(&house).await;
    session.ask(&house, "1", "logging/setLevel", &json!({"level": "error"})).await;
    let order = json!({"order_id": "many"});
    let mut stream = call(&house, &session, 2, "lookup_order", &order).await;
    let begin = primed(&mut stream).await;
    let all = rest(stream).await;
    assert_eq!(all.len(), 201);
    let too_old = refused(&house, &session, &begin).await;
    assert_eq!((too_old.status, too_old.code()), (400, -32600));
    assert_eq!(refused(&house, &session, &all[71].0).await.status, 400, "129 were missed");
    let given = rest(back(&house, &session, &all[72].0).await).await;
    assert_eq!(given, all[73..], "128 were");
}

#[tokio::test(start_paused = true)]
async fn streams_are_kept_for_ten_minutes_and_no_longer_than_their_session() {
    let house = house().0;
    let (session, other) = (asked(&house).await, asked(&house).await);
    let order = json!({"order_id": "a"});
    let mut stream = call(&house, &session, 1, "lookup_order", &order).await;
    let begin = primed(&mut stream).await;
    let all = rest(stream).await;
    tokio::time::advance(Duration::from_secs(599)).await;
    house.front_ends.sweep();
    assert_eq!(rest(back(&house, &session, &begin).await).await, all);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(refused(&house, &session, &begin).await.status, 400, "before any sweep, too");
    let mut stream = call(&house, &other, 1, "lookup_order", &order).await;
    let begin = primed(&mut stream).await;
    raw(&house, "DELETE", &other.fields(), "").await;
    assert_eq!(refused(&house, &other, &begin).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_session_is_over_and_nothing_is_given() {
    let (before, after) = (house().0, house().0);
    let session = asked(&before).await;
    let order = json!({"order_id": "a"});
    let mut stream = call(&before, &session, 1, "lookup_order", &order).await;
    let begin = primed(&mut stream).await;
    assert_eq!(refused(&after, &session, &begin).await.status, 404);
    // The session that is begun in its place knows nothing of it either.
    assert_eq!(refused(&after, &asked(&after).await, &begin).await.status, 400);
}

const DEFAULT: &str =
    "default: { allow: [lookup_order, list_regions, search, create_order, send_notice] }";
const FEWER: &str = "default: { allow: [lookup_order, list_regions] }";

#[tokio::test(start_paused = true)]
async fn what_a_session_would_have_heard_by_get_is_kept_for_it_too() {
    let house = House::new();
    let session = Session::open(&house).await;
    let mut fields = session.fields();
    fields.push(("accept", "text/event-stream"));
    let open = async || {
        let request = build("GET", &fields, "");
        let response = house.front_ends.clone().answer(Peer::Loopback, request).await;
        Stream::new(response.into_body())
    };
    let mut stream = open().await;
    let begin = primed(&mut stream).await;
    quiet(&mut stream).await;
    drop(stream);
    assert!(house.reload(DEFAULT, FEWER));
    let mut again = back(&house, &session, &begin).await;
    let (name, told) = again.named().await.expect("told");
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert!(house.reload(DEFAULT, DEFAULT));
    let (_, live) = again.named().await.expect("goes on");
    assert_eq!(live, told);
    drop(again);
    let mut after = back(&house, &session, &name).await;
    assert_eq!(after.next().await.expect("the second alone"), told);
    quiet(&mut after).await;
    // A new stream by GET takes its place, and nobody comes back to the old one.
    let mut new = open().await;
    assert_ne!(primed(&mut new).await, begin);
    assert_eq!(after.next().await, None);
    assert_eq!(refused(&house, &session, &name).await.status, 400);
    // One that nobody reads is kept as long as a session may lie idle, and this session is used.
    let begin = new.last();
    drop(new);
    house.front_ends.sweep();
    tokio::time::advance(Duration::from_secs(8 * 3600 - 1)).await;
    house.front_ends.sweep();
    drop(back(&house, &session, &begin).await);
    house.front_ends.sweep();
    tokio::time::advance(Duration::from_secs(4 * 3600)).await;
    session.ask(&house, "1", "ping", &json!({})).await;
    tokio::time::advance(Duration::from_secs(4 * 3600)).await;
    assert_eq!(refused(&house, &session, &begin).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_polled_has_its_agent_poll_too_and_the_call_goes_on() {
    let (house, held) = house();
    let order = json!({"order_ref": "polled"});
    let session = asked(&house).await;
    let mut stream = call(&house, &session, 1, "create_order", &order).await;
    assert_eq!(stream.next().await, None, "the connection is closed, the call is not over");
    assert_eq!(stream.retry_ms(), Some(300));
    let again = back(&house, &session, &stream.last()).await;
    held.go_on.notify_one();
    let given = rest(again).await;
    assert_eq!((given.len(), &given[0].1["id"]), (1, &json!(1)));
    assert_eq!(house.hits.all().len(), 1);
    // An older revision does not know that: its connection stays.
    let old = Session::open_with(&house, None, "2025-06-18", &json!({"sampling": {}})).await;
    held.go_on.notify_one();
    let given = rest(
        call(&house, &old, 1, "create_order", &json!({"order_ref": "polled", "note": 2})).await,
    )
    .await;
    assert_eq!((given.len(), &given[0].1["id"]), (1, &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_taken_back_leaves_nothing_to_come_back_for() {
    let (house, held) = house();
    let session = asked(&house).await;
    let order = json!({"order_id": "held"});
    let mut stream = call(&house, &session, 7, "lookup_order", &order).await;
    let begin = primed(&mut stream).await;
    held.begun.notified().await;
    let note =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    assert_eq!(session.post(&house, &note.to_string()).await.status, 202);
    assert_eq!(stream.next().await, None);
    assert_eq!(refused(&house, &session, &begin).await.status, 204, "no reason to poll for ever");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_ends_says_when_to_come_again() {
    let house = House::new();
    for (revision, retry) in [(NEWEST, Some(1000)), ("2025-06-18", None)] {
        let session = Session::open_with(&house, None, revision, &json!({})).await;
        let mut fields = session.fields();
        fields.push(("accept", "text/event-stream"));
        let request = build("GET", &fields, "");
        let response = house.front_ends.clone().answer(Peer::Loopback, request).await;
        let mut stream = Stream::new(response.into_body());
        let draining = async { house.engine.drain() };
        let (next, _) = tokio::join!(stream.next(), draining);
        assert_eq!((next, stream.retry_ms()), (None, retry), "{revision}");
    }
}
