use super::*;

const S: Duration = Duration::from_secs(1);
const KEY: Remedies =
    Remedies { window: Some(Duration::from_secs(100)), query: None, volatile: false, lag: S };
const READ: Remedies = Remedies {
    window: None,
    query: Some(Query { settle: Duration::from_secs(2), tries: 3 }),
    volatile: false,
    lag: S,
};

fn sent_at(now: Instant) -> Progress {
    Progress::new(now, now)
}

#[tokio::test(start_paused = true)]
async fn the_key_goes_again_twice_each_time_after_a_longer_wait() {
    let now = Instant::now();
    let mut done = sent_at(now);
    for wait in [RESEND_WAIT, RESEND_WAIT * 4] {
        assert_eq!(next_step(&done, &KEY, now), Step::Wait(now + wait));
        assert_eq!(next_step(&done, &KEY, now + wait), Step::Resend);
        done.resends += 1;
    }
    assert_eq!(next_step(&done, &KEY, now + S), Step::Person);
}

#[tokio::test(start_paused = true)]
async fn the_key_does_not_go_again_in_the_last_tenth_of_its_window_nor_past_a_stored_answer() {
    let now = Instant::now();
    let mut done = sent_at(now);
    assert_eq!(next_step(&done, &KEY, now + 89 * S), Step::Resend);
    assert_eq!(next_step(&done, &KEY, now + 90 * S), Step::Person);
    done.no_more = true;
    assert_eq!(next_step(&done, &KEY, now + S), Step::Person);
    done = Progress { unsent: MAX_UNSENT, ..sent_at(now) };
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
