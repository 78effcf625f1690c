//! Validation of the time of a report that another machine wrote.
//!
//! A time in the future would keep a report valid for as long as the other clock is ahead. So a report has a
//! bound in both directions: it expires at the end of its life, and it is rejected if it is dated further
//! ahead than [`MAX_AHEAD`], or than its own life if that is shorter.
//!
//! The rule must be applied when a report arrives, and the rejection kept until another report replaces it:
//! once the local clock has caught up, the time of an old report looks current.

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Maximum time by which another machine's clock may be ahead of the local one. Five minutes is the clock
/// skew that Kerberos tolerates by default; synchronized clocks differ by far less.
pub const MAX_AHEAD: SignedDuration = SignedDuration::from_mins(5);

/// Reason why a report is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReportTimeError {
    /// The report is as old as its life, or older.
    #[error("report is {} s old, expected less than {} s", age.as_secs(), life.as_secs())]
    Expired {
        /// Time since the report was made.
        age: SignedDuration,
        /// Time for which a report is used.
        life: SignedDuration,
    },
    /// The report is dated too far ahead: the clocks differ.
    #[error("report is dated {} s ahead of now, expected less than {} s", ahead.as_secs(), limit.as_secs())]
    Ahead {
        /// Time until the date of the report.
        ahead: SignedDuration,
        /// Time by which a report may be ahead.
        limit: SignedDuration,
    },
}

/// Checks the time of a report that is used for `life` after it was made.
///
/// # Errors
/// The report is expired or dated too far ahead of `now`.
pub fn check(
    reported: Timestamp,
    now: Timestamp,
    life: SignedDuration,
) -> Result<(), ReportTimeError> {
    let age = now.duration_since(reported);
    if age >= life {
        return Err(ReportTimeError::Expired { age, life });
    }
    excess(reported, now, life).map_or(Ok(()), |ahead| {
        let limit = life.min(MAX_AHEAD);
        Err(ReportTimeError::Ahead { ahead, limit })
    })
}

/// Returns how far `reported` is ahead of `now` when that is too far for a report that is used for
/// `life`, and `None` otherwise.
#[must_use]
pub fn excess(reported: Timestamp, now: Timestamp, life: SignedDuration) -> Option<SignedDuration> {
    let lead = reported.duration_since(now);
    (lead.is_positive() && lead >= life.min(MAX_AHEAD)).then_some(lead)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    const LIFE: SignedDuration = SignedDuration::from_secs(900);

    /// With a life of 15 minutes, a report is used until it ends, and if its time is up to five minutes ahead.
    #[test]
    fn report_time_is_bounded_in_both_directions() {
        let now = 1_000_000;
        for (reported, want) in [
            (now - 900, "report is 900 s old, expected less than 900 s"),
            (now - 899, ""),
            (now, ""),
            (now + 299, ""),
            (
                now + 300,
                "report is dated 300 s ahead of now, expected less than 300 s",
            ),
            (
                now + 3600,
                "report is dated 3600 s ahead of now, expected less than 300 s",
            ),
        ] {
            let result = check(at(reported), at(now), LIFE);
            let text = result.map_or_else(|error| error.to_string(), |()| String::new());
            assert_eq!(text, want, "{reported}");
        }
    }

    /// Tests the rule of LowNodeLoad: a report is used at most one life ahead.
    #[test]
    fn short_life_limits_time_ahead() {
        let life = SignedDuration::from_secs(180);
        assert_eq!(check(at(1179), at(1000), life), Ok(()));
        assert!(check(at(1180), at(1000), life).is_err());
    }

    #[test]
    fn extreme_times_are_rejected_without_panic() {
        let times = [Timestamp::MIN, at(0), Timestamp::MAX];
        let lives = [SignedDuration::MIN, SignedDuration::ZERO];
        for reported in times {
            for now in times {
                let refused = |life: &SignedDuration| check(reported, now, *life).is_err();
                assert!(lives.iter().all(refused), "{reported} {now}");
            }
        }
        let forever = SignedDuration::MAX;
        assert!(check(Timestamp::MAX, at(0), forever).is_err());
        assert!(check(Timestamp::MIN, at(0), forever).is_ok());
    }

    #[test]
    fn excess_is_none_within_the_tolerance() {
        assert_eq!(excess(at(1299), at(1000), LIFE), None);
        assert_eq!(excess(at(0), at(1000), LIFE), None);
        let ahead = SignedDuration::from_secs(3600);
        assert_eq!(excess(at(4600), at(1000), LIFE), Some(ahead));
    }
}
