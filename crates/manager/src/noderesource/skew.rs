//! Detects nodes whose clock is ahead by the dates of their reports.

use jiff::{SignedDuration, Timestamp};
use koord_model::report_time;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Dates of reports that were refused because they were ahead of now, by node. A refused report stays refused
/// when the local clock catches up with its date, because no newer one has arrived since.
#[derive(Debug, Default)]
pub(super) struct SkewedNodes(Mutex<HashMap<String, i64>>);

/// The clock skew that a node's newest report shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockSkew {
    /// The report's date is no reason to refuse it.
    None,
    /// The report is the first one accepted after refused ones.
    Ended,
    /// The report is refused, like the one before it.
    Ongoing,
    /// The report is the first one refused; the value is how far it is ahead.
    Started(SignedDuration),
}

impl ClockSkew {
    /// Returns true if the report must not be used.
    pub(super) fn is_refused(self) -> bool {
        matches!(self, Self::Ongoing | Self::Started(_))
    }
}

impl SkewedNodes {
    /// Records the date of the newest report of `node`, in Unix seconds; a report is used for `life`.
    pub(super) fn observe(
        &self,
        node: &str,
        reported: Option<i64>,
        now: Timestamp,
        life: SignedDuration,
    ) -> ClockSkew {
        let mut refused = self.0.lock();
        if reported.is_some() && refused.get(node).copied() == reported {
            return ClockSkew::Ongoing;
        }
        let date = reported.and_then(|second| Timestamp::from_second(second).ok());
        let excess = date.and_then(|date| report_time::excess(date, now, life));
        match (reported, excess) {
            (Some(reported), Some(ahead)) => match refused.insert(node.to_owned(), reported) {
                None => ClockSkew::Started(ahead),
                Some(_) => ClockSkew::Ongoing,
            },
            _ if refused.remove(node).is_some() => ClockSkew::Ended,
            _ => ClockSkew::None,
        }
    }

    /// Removes a node that no longer has reports.
    pub(super) fn remove(&self, node: &str) {
        self.0.lock().remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_starts_once_and_ends_with_a_report_of_now() {
        let nodes = SkewedNodes::default();
        let observe = |reported: i64, now: i64| {
            let now = Timestamp::from_second(now).unwrap();
            nodes.observe("n", Some(reported), now, SignedDuration::from_mins(15))
        };
        assert_eq!(observe(1000, 1000), ClockSkew::None);
        let hour = SignedDuration::from_hours(1);
        assert_eq!(observe(4600, 1000), ClockSkew::Started(hour));
        assert_eq!(observe(4660, 1060), ClockSkew::Ongoing, "the next report");
        // The clock catches up with the last report.
        assert_eq!(observe(4660, 4661), ClockSkew::Ongoing);
        assert_eq!(observe(4700, 4700), ClockSkew::Ended);
        assert_eq!(observe(4760, 4760), ClockSkew::None);
        assert!(observe(i64::MAX, 4760) == ClockSkew::None, "no time at all");
    }
}
