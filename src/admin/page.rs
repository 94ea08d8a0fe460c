//! Pages of a list, newest first. A cursor names the last thing shown, so what comes or goes meanwhile moves nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use super::answer::Problem;

/// Most things of one page.
pub(super) const MAX_LIMIT: usize = 200;
const LIMIT: usize = 50;

/// Where a thing stands in its list: the later, the earlier.
pub(super) type Place = (u64, String);

pub(super) fn place(time: SystemTime, name: String) -> Place {
    let micros = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    (u64::try_from(micros).unwrap_or(u64::MAX), name)
}

/// Which page is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    limit: usize,
    after: Option<Place>,
}

impl Wanted {
    pub(super) fn parse(limit: Option<&str>, cursor: Option<&str>) -> Result<Self, Problem> {
        let limit = match limit {
            None => LIMIT,
            Some(text) => match text.parse() {
                Ok(limit) if (1..=MAX_LIMIT).contains(&limit) => limit,
                Ok(_) | Err(_) => {
                    let detail = format!("`limit` must be a number from 1 to {MAX_LIMIT}");
                    return Err(Problem::invalid(detail));
                }
            },
        };
        let after = cursor.map(|cursor| {
            let parts = cursor.split_once('-');
            let read = parts.and_then(|(at, name)| Some((at.parse().ok()?, name.to_owned())));
            read.ok_or_else(|| Problem::invalid("`cursor` must be the `next` of an earlier page"))
        });
        Ok(Self { limit, after: after.transpose()? })
    }

    /// The page, and the cursor of the next one where there is one.
    pub(super) fn of<T>(
        &self,
        mut all: Vec<T>,
        at: impl Fn(&T) -> Place,
    ) -> (Vec<T>, Option<String>) {
        if let Some(after) = &self.after {
            all.retain(|thing| at(thing) < *after);
        }
        all.sort_by_cached_key(|thing| std::cmp::Reverse(at(thing)));
        let more = all.len() > self.limit;
        all.truncate(self.limit);
        let last = all.last().filter(|_| more).map(at);
        let next = last.map(|(at, name)| format!("{at}-{name}"));
        (all, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_from_the_newest_to_the_oldest_and_miss_nothing() {
        let all: Vec<u64> = (0..450).collect();
        let at = |n: &u64| (*n / 2, n.to_string());
        let mut seen = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let wanted = Wanted::parse(Some("100"), cursor.as_deref()).expect("sound");
            let (page, next) = wanted.of(all.clone(), at);
            assert!(page.len() <= 100);
            seen.extend(page);
            match next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(seen.len(), all.len());
        assert!(seen.windows(2).all(|pair| at(&pair[0]) > at(&pair[1])));
    }

    #[test]
    fn a_page_has_a_bound() {
        for limit in ["0", "201", "-1", "x", ""] {
            assert!(Wanted::parse(Some(limit), None).is_err(), "{limit}");
        }
        for cursor in ["", "x", "x-y", "-"] {
            assert!(Wanted::parse(None, Some(cursor)).is_err(), "{cursor}");
        }
        assert_eq!(
            Wanted::parse(None, Some("7-run-1")).ok(),
            Some(Wanted { limit: 50, after: Some((7, "run-1".to_owned())) })
        );
    }
}
