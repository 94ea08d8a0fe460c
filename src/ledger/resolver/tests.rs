use super::*;

const S: Duration = Duration::from_secs(1);
const KEY: Remedies = Remedies {
    window: Some(Duration::from_secs(100)),
    query: None,
    volatile: false,
    lag: S,
    drain: S,
};
const READ: Remedies = Remedies {
    window: None,
    query: Some(Query { settle: Duration::from_secs(2), tries: 3 }),
    volatile: false,
    lag: S,
    drain: S,
};

fn sent_at(now: Instant) -> Progress {
    Progress { chance: 0, ..Progress::new(now, now) }
}

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn the_key_goes_again_six_times_an_asking_each_time_after_a_longer_wait() {
    let now = Instant::now();
    let mut done = sent_at(now);
    for wait in [100, 200, 400, 800, 800, 800] {
        assert_eq!(next_step(&done, &KEY, now), Step::Wait(now + wait * MS));
        assert_eq!(next_step(&done, &KEY, now + wait * MS), Step::Resend);
        done.tries += 1;
        done.resends += 1;
    }
    assert_eq!(next_step(&done, &KEY, now + S), Step::Person);
    done.asked_again();
    assert_eq!(next_step(&done, &KEY, now + S), Step::Resend, "for whoever asks next");
    done.resends = RESENDS_A_WRITE;
    assert_eq!(next_step(&done, &KEY, now + S), Step::Person, "whatever asks");
}

#[tokio::test(start_paused = true)]
async fn chance_makes_a_wait_longer_by_up_to_a_half_and_never_shorter() {
    let now = Instant::now();
    let mut waits: Vec<Duration> = Vec::new();
    for _ in 0..200 {
        let step = next_step(&Progress::new(now, now), &KEY, now);
        let Step::Wait(due) = step else { unreachable!("it waits first: {step:?}") };
        waits.push(due - now);
    }
    assert!(waits.iter().all(|wait| (100 * MS..=150 * MS).contains(wait)), "{waits:?}");
    waits.sort();
    waits.dedup();
    assert!(waits.len() > 10, "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_our_own_is_waited_out_and_is_no_try() {
    let now = Instant::now();
    let mut done = sent_at(now);
    for held_back in 1..=20 {
        done.wait_out(Some(3 * S));
        assert_eq!((done.tries, done.resends, done.held_back), (0, 0, held_back));
        let Step::Wait(due) = next_step(&done, &KEY, now) else {
            assert_eq!(held_back, 20, "not for ever");
            break;
        };
        assert!((3 * S..3 * S + 100 * MS).contains(&(due - now)));
        assert_eq!(next_step(&done, &KEY, due), Step::Resend);
    }
    assert_eq!(next_step(&done, &KEY, now), Step::Person);
}

#[tokio::test(start_paused = true)]
async fn the_key_does_not_go_again_in_the_last_tenth_of_its_window_nor_past_a_stored_answer() {
    let now = Instant::now();
    let mut done = sent_at(now);
    assert_eq!(next_step(&done, &KEY, now + 89 * S), Step::Resend);
    assert_eq!(next_step(&done, &KEY, now + 90 * S), Step::Person);
    done.no_more = true;
    assert_eq!(next_step(&done, &KEY, now + S), Step::Person);
    done = Progress { not_now: true, ..sent_at(now) };
    assert_eq!(next_step(&done, &KEY, now + S), Step::Person, "for this time");
}

#[tokio::test(start_paused = true)]
async fn the_question_waits_for_the_tool_and_ends_after_its_tries() {
    let now = Instant::now();
    let mut done = sent_at(now);
    assert_eq!(next_step(&done, &READ, now), Step::Wait(now + 2 * S));
    assert_eq!(next_step(&done, &READ, now + 2 * S), Step::Query);
    done.queries = 1;
    done.asked_at = Some(now + 2 * S);
    done.absent_since = Some(now + 2 * S);
    assert_eq!(next_step(&done, &READ, now + 3 * S), Step::Wait(now + 4 * S), "settle apart");
    done.absent_since = None;
    done.queries = 2;
    assert_eq!(next_step(&done, &READ, now + 3 * S), Step::Wait(now + 6 * S), "more time");
    done.queries = 3;
    assert_eq!(next_step(&done, &READ, now + 60 * S), Step::Person);
    done = Progress { contradiction: true, ..sent_at(now) };
    assert_eq!(next_step(&done, &READ, now + 60 * S), Step::Person);
}
