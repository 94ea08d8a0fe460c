use http_body_util::BodyExt;

use super::*;

fn streams(told: Told, room: &Arc<Room>) -> Arc<Streams> {
    Streams::new("m".to_owned(), told, room.clone())
}

/// What is read of a body until nothing more is there.
async fn all(mut body: Body) -> String {
    let mut text = String::new();
    let read = async {
        while let Some(frame) = body.frame().await {
            let data = frame.expect("not cut").into_data().expect("data");
            text.push_str(std::str::from_utf8(&data).expect("UTF-8"));
        }
    };
    drop(tokio::time::timeout(Duration::from_secs(1), read).await);
    text
}

fn goes(resumed: Resumed) -> Body {
    let Resumed::Goes(body) = resumed else { panic!("{resumed:?}") };
    body
}

fn taken(room: &Room) -> usize {
    room.0.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn where_nobody_can_come_back_nothing_is_named_or_kept() {
    let room = Arc::default();
    let streams = streams(Told::Once, &room);
    let (stream, body) = streams.open();
    assert!(stream.send(b"1"));
    assert_eq!(taken(&room), 0);
    stream.end();
    assert_eq!(all(body).await, "event: message\ndata: 1\n\n");
    let (stream, body) = streams.open();
    stream.let_go(Duration::from_secs(1));
    drop(body);
    assert!(stream.gone().is_cancelled() && !stream.send(b"2"));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stalls_is_cut_and_may_come_back_for_what_is_kept() {
    let room = Arc::default();
    let streams = streams(Told::Named, &room);
    let (stream, mut body) = streams.open();
    for n in 1..=257 {
        assert!(stream.send(n.to_string().as_bytes()), "{n}");
    }
    assert!(body.frame().await.expect("an end").is_err(), "cut");
    assert!(!stream.gone().is_cancelled(), "it may come back");
    assert!(matches!(streams.resume("m-1-128"), Resumed::NotKept), "too far behind");
    let (text, last) = (all(goes(streams.resume("m-1-129"))).await, "id: m-1-257\n");
    assert!(text.starts_with("id: m-1-130\n") && text.contains(last), "{text}");
    assert_eq!(text.matches("data: ").count(), 128);
}

#[tokio::test(start_paused = true)]
async fn bytes_are_bounded_for_a_stream_a_session_and_an_agent() {
    let room: Arc<Room> = Arc::default();
    let half = vec![b'x'; MAX_KEPT_BYTES / 2];
    let one = streams(Told::Named, &room);
    let (stream, _body) = one.open();
    let (small, _other) = one.open();
    assert!(small.send(b"small") && stream.send(&half) && stream.send(&half));
    assert!(stream.send(b"x") && matches!(one.resume("m-1-1"), Resumed::Goes(_)));
    assert!(matches!(one.resume("m-1-0"), Resumed::NotKept), "the third took the first's place");
    assert!(stream.send(&vec![b'y'; MAX_KEPT_BYTES + 1]), "the last may be longer");
    assert!(matches!(one.resume("m-1-1"), Resumed::Goes(_)), "and costs none before it");
    assert!(stream.send(b"z") && matches!(one.resume("m-1-3"), Resumed::NotKept));
    assert!(matches!(one.resume("m-1-4"), Resumed::Goes(_)));
    // A session's bound: streams that are over go, the oldest first, and an open one stays.
    let before = taken(&room);
    for _ in 0..3 {
        let (ended, _body) = one.open();
        assert!(ended.send(&half[1000..]));
    }
    assert!(taken(&room) <= SESSION_BYTES && taken(&room) > before);
    assert!(matches!(one.resume("m-3-0"), Resumed::NotKept), "over, and the oldest");
    assert!(matches!(one.resume("m-2-0"), Resumed::NotKept), "no such event was given");
    assert!(matches!(one.resume("m-2-1"), Resumed::Goes(_)), "open");
    // An event over it is not kept, and none before it.
    let (huge, body) = one.open();
    assert!(huge.send(b"a"));
    drop(body);
    assert!(!huge.send(&vec![b'z'; SESSION_BYTES + 1]), "nobody reads it, nobody will");
    let number = huge.0.number;
    assert!(matches!(one.resume(&format!("m-{number}-1")), Resumed::NotKept));
    assert!(matches!(one.resume(&format!("m-{number}-2")), Resumed::Goes(_)), "from there on");
    // An agent's bound: who comes late keeps nothing, and the others what they have.
    let more: Vec<_> =
        (0..AGENT_BYTES / MAX_KEPT_BYTES).map(|_| streams(Told::Named, &room)).collect();
    let mut open = Vec::new();
    let mut kept = Vec::new();
    for session in &more {
        let (stream, body) = session.open();
        drop(body);
        kept.push(stream.send(&half) && stream.send(&half[1000..]));
        open.push(stream);
    }
    assert!(kept[0] && !kept[more.len() - 1], "{kept:?}");
    assert!(taken(&room) <= AGENT_BYTES);
    drop(open);
    drop(more);
    one.close();
    assert_eq!(taken(&room), 0, "all is given back");
    assert!(huge.gone().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn of_the_streams_that_are_over_only_so_many_are_kept() {
    let room = Arc::default();
    let streams = streams(Told::Primed, &room);
    let (slow, _body) = streams.open();
    for _ in 0..MAX_ENDED {
        let (stream, _body) = streams.open();
        assert!(stream.send(b"1"));
        drop(stream);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    assert!(slow.send(b"1"));
    drop(slow);
    assert!(matches!(streams.resume("m-1-0"), Resumed::Goes(_)), "it ended last");
    assert!(matches!(streams.resume("m-2-0"), Resumed::NotKept), "this one first");
    assert!(matches!(streams.resume("m-3-0"), Resumed::Goes(_)));
    tokio::time::advance(KEPT).await;
    streams.sweep();
    assert_eq!(taken(&room), 0);
}

#[tokio::test(start_paused = true)]
async fn an_open_call_is_kept_however_long_its_agent_is_away() {
    let room = Arc::default();
    let streams = streams(Told::Primed, &room);
    let (stream, body) = streams.open();
    drop(body);
    streams.sweep();
    tokio::time::advance(KEPT * 2).await;
    streams.sweep();
    assert!(stream.gone().is_cancelled(), "it is asked nothing more");
    assert!(stream.send(b"1"));
    stream.end();
    assert_eq!(all(goes(streams.resume("m-1-0"))).await, "id: m-1-1\nevent: message\ndata: 1\n\n");
}

#[tokio::test(start_paused = true)]
async fn what_belongs_to_no_call_goes_on_one_stream_by_get_before_any_other() {
    let room = Arc::default();
    let streams = streams(Told::Named, &room);
    assert!(streams.say_aside(b"0").is_none(), "nobody");
    let (_call, first) = streams.open();
    let (_call, second) = streams.open();
    assert!(streams.say_aside(b"1").is_some());
    let (_get, get) = streams.listen();
    assert!(streams.say_aside(b"2").is_some());
    let read = [all(first).await, all(second).await, all(get).await];
    let said =
        ["", "id: m-2-1\nevent: message\ndata: 1\n\n", "id: m-3-1\nevent: message\ndata: 2\n\n"];
    assert_eq!(read, said, "the newest call while nobody listened");
    // Nobody reads: the stream by GET keeps it for who comes back.
    assert!(streams.say_aside(b"3").is_some());
    assert!(all(goes(streams.resume("m-3-1"))).await.contains("data: 3"));
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_reader_goes_to_whoever_took_its_place() {
    let room = Arc::default();
    let streams = streams(Told::Named, &room);
    let (stream, former) = streams.open();
    assert!(stream.send(b"1") && stream.send(b"2"));
    let reader = goes(streams.resume("m-1-1"));
    assert_eq!(all(former).await, "", "a message goes to one connection");
    assert_eq!(all(reader).await, "id: m-1-2\nevent: message\ndata: 2\n\n");
}
