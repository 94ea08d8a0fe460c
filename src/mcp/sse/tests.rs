use proptest::prelude::*;

use super::*;

fn decode(limit: usize, pieces: &[&[u8]]) -> Result<Vec<Event>, EventTooLong> {
    let mut decoder = Decoder::new(limit);
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(decoder.push(piece)?);
    }
    Ok(events)
}

fn data(stream: &str) -> Vec<String> {
    let events = decode(1000, &[stream.as_bytes()]).expect("short events");
    events.into_iter().map(|event| String::from_utf8(event.data).expect("text")).collect()
}

#[test]
fn every_line_end_that_the_standard_knows_ends_a_line() {
    for end in ["\n", "\r", "\r\n"] {
        let stream = ["data: a", "data:b", "data", "", "data: c", "", ""].join(end);
        assert_eq!(data(&stream), ["a\nb\n", "c"], "{end:?}");
    }
    assert_eq!(data("data: a\r\n\n\rdata: b\r\r"), ["a", "b"]);
}

#[test]
fn a_byte_order_mark_stands_at_the_beginning_alone() {
    assert_eq!(data("\u{feff}data: a\n\n\u{feff}data: b\n\n"), ["a"]);
}

#[test]
fn comments_unknown_fields_and_events_without_data_are_no_events() {
    assert_eq!(
        data(": hello\n\n:\n\nevent: x\n\nid: 3\n\nfoo: bar\ndatax: y\n\n data: z\n\n"),
        [""; 0]
    );
}

#[test]
fn one_space_after_the_colon_is_not_part_of_the_value() {
    assert_eq!(data("data:  a: b\n\ndata:\n\n"), [" a: b", ""]);
}

#[test]
fn an_event_that_the_stream_ends_in_is_none() {
    assert_eq!(data("data: a\n\ndata: b\n"), ["a"]);
}

#[test]
fn id_name_and_retry_are_kept_as_the_standard_says() {
    let mut decoder = Decoder::new(100);
    let events = decoder
        .push(b"id: 7\nevent: note\ndata: a\n\ndata: b\nid: x\0y\nretry: 2500\n\nretry: soon\nid\ndata: c\n\n")
        .expect("short events");
    let told: Vec<_> =
        events.iter().map(|event| (event.name.as_str(), event.id.as_str())).collect();
    assert_eq!(told, [("note", "7"), ("message", "7"), ("message", "")]);
    assert_eq!(decoder.retry_ms(), Some(2500));
    assert_eq!(decoder.last_event_id(), "");
}

#[test]
fn an_event_over_the_bound_ends_the_stream_however_it_is_cut() {
    let long = format!("data: {}\n\n", "x".repeat(100));
    let many = "data: xxxxxxxxxx\n".repeat(20);
    for stream in [long, many, ":".repeat(200)] {
        assert_eq!(decode(64, &[stream.as_bytes()]), Err(EventTooLong { limit: 64 }), "{stream}");
        let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(decode(64, &bytes), Err(EventTooLong { limit: 64 }), "{stream}");
    }
    let mut decoder = Decoder::new(4);
    assert!(decoder.push(b"data: too long").is_err());
    assert!(decoder.push(b"\n\n").is_err());
    assert_eq!(
        decode(20, &[b"data: aaaa\n\n".repeat(1000).as_slice()]).expect("short").len(),
        1000
    );
}

proptest! {
    #[test]
    fn a_message_written_as_an_event_reads_back(message in "[^\r\n]{0,60}") {
        let mut stream = KEEP_ALIVE.to_vec();
        stream.extend(event(message.as_bytes()));
        let events = decode(1000, &[&stream]).expect("short");
        prop_assert_eq!(events.len(), 1);
        prop_assert_eq!(&events[0].data, message.as_bytes());
        prop_assert_eq!(&events[0].name, "message");
    }

    #[test]
    fn line_ends_in_a_message_never_end_its_event(message in "[a\r\n]{0,20}") {
        prop_assert_eq!(decode(1000, &[&event(message.as_bytes())]).expect("short").len(), 1);
    }

    #[test]
    fn any_split_of_a_stream_gives_the_same_events(
        stream in prop::collection::vec(
            prop::sample::select(vec!["data", "id", "event", "retry", ":", ": ", "x", "12", "\n", "\r", "\r\n", "\n\n", "\u{feff}", "\0"]), 0..60),
        cuts in prop::collection::vec(0_usize..200, 0..8),
    ) {
        let stream = stream.concat().into_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
        prop_assert_eq!(decode(1000, &pieces), decode(1000, &[&stream]));
        prop_assert_eq!(decode(12, &pieces).is_err(), decode(12, &[&stream]).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(stream in prop::collection::vec(any::<u8>(), 0..200), limit in 0_usize..100) {
        drop(decode(limit, &[&stream]));
    }
}
