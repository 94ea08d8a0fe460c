use super::*;

#[tokio::test(start_paused = true)]
async fn a_cooldown_is_only_ever_made_later_and_a_minute_at_most() {
    let cooldown = Cooldown::default();
    assert_eq!(cooldown.left(), None);
    cooldown.set(None);
    assert_eq!(cooldown.left(), Some(DEFAULT_COOLDOWN));
    cooldown.set(Some(Duration::from_secs(10)));
    cooldown.set(Some(Duration::from_secs(2)));
    assert_eq!(cooldown.left(), Some(Duration::from_secs(10)));
    cooldown.set(Some(Duration::MAX));
    tokio::time::advance(MAX_COOLDOWN - Duration::from_millis(1)).await;
    assert!(cooldown.left().is_some());
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(cooldown.left(), None);
}

#[test]
fn the_advice_for_a_place_stays_within_its_bounds() {
    let time = CallTime::default();
    assert_eq!(time.smoothed(), PLACE_WAIT.0);
    for _ in 0..100 {
        time.observe(Duration::from_secs(2));
    }
    assert_eq!(time.smoothed(), Duration::from_secs(2));
    for _ in 0..100 {
        time.observe(Duration::from_secs(1000));
    }
    assert_eq!(time.smoothed(), PLACE_WAIT.1);
}

#[test]
fn places_are_as_many_as_their_limit_and_come_back() {
    let places = Places::new(2);
    let (first, second) = (places.try_take(), places.try_take());
    assert!(first.is_some() && second.is_some());
    assert!(places.try_take().is_none());
    assert_eq!(places.taken(), 2);
    drop(first);
    assert_eq!(places.taken(), 1);
    assert!(places.try_take().is_some());
}
