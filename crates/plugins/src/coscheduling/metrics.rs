//! Metrics of gang scheduling attempts.

use super::Coscheduling;
use jiff::Timestamp;
use koord_scheduler::framework::{Family, MetricKind, MetricSamples};

static WAITING: Family = Family {
    name: "scheduler_waiting_gang_group_number",
    help: "Gang groups with members that are placed and not bound yet.",
    labels: &[],
    kind: MetricKind::Gauge,
};
static CYCLE: Family = Family {
    name: "scheduler_gang_schedule_cycle_duration_seconds",
    help: "Time from the first member that is tried to the end of the attempt.",
    labels: &["reason", "job_size"],
    kind: MetricKind::Histogram(|| {
        vec![
            0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 12.5, 15.0, 20.0,
            25.0, 30.0, 45.0, 60.0, 120.0,
        ]
    }),
};

/// Reasons for the end of an attempt, with upstream's texts.
pub(super) const PLACED: &str = "gang is already succeed";
pub(super) const ALL_TRIED: &str = "all pending pods is already been attempted";
const GONE: &str = "gang is nil, may be already deleted";

/// Maximum number of finished attempts that are stored until the metrics are read.
const MAX_ENDED: usize = 4096;

/// Running attempt.
#[derive(Debug)]
struct OpenAttempt {
    number: u64,
    since: Timestamp,
    tried: usize,
}

/// Running attempt and finished attempts.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    open: Option<OpenAttempt>,
    ended: Vec<(&'static str, String, f64)>,
}

impl Attempts {
    /// Records the running attempt as (number, members tried). If it is not the one recorded before, that one
    /// ended with reason `reason`, or [`GONE`] if `None`.
    pub(super) fn track(
        &mut self,
        current: Option<(u64, usize)>,
        reason: Option<&'static str>,
        now: Timestamp,
    ) {
        if let Some(open) = self
            .open
            .take_if(|open| current.is_none_or(|(number, _)| number != open.number))
            && self.ended.len() < MAX_ENDED
        {
            let seconds = now.duration_since(open.since).as_secs_f64().max(0.0);
            let reason = reason.unwrap_or(GONE);
            self.ended.push((reason, size(open.tried), seconds));
        }
        if let Some((number, tried)) = current {
            let open = self.open.get_or_insert(OpenAttempt {
                number,
                since: now,
                tried,
            });
            open.tried = tried;
        }
    }
}

/// Returns the size as a range of a hundred, which bounds the number of label values.
fn size(tried: usize) -> String {
    match tried {
        0 => "0".to_owned(),
        1..=1000 => {
            let step = (tried - 1) / 100;
            format!("{}-{}", step * 100 + 1, (step + 1) * 100)
        }
        _ => "1000+".to_owned(),
    }
}

impl Coscheduling {
    /// Records whether an attempt began or ended, with reason `reason` if it ended.
    pub(super) fn track_attempt(&mut self, reason: Option<&'static str>, now: Timestamp) {
        self.attempts
            .track(self.gangs.current_attempt(), reason, now);
    }

    /// Reports the metrics, and clears the stored attempts.
    pub(super) fn report_metrics(&mut self, out: &mut MetricSamples) {
        #[allow(clippy::cast_precision_loss, reason = "a count of gangs")]
        out.add(&WAITING, &[], self.gangs.waiting_groups() as f64);
        for (reason, size, seconds) in self.attempts.ended.drain(..) {
            out.add(&CYCLE, &[reason, &size], seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_duration_is_from_first_member_to_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut attempts = Attempts::default();
        attempts.track(None, None, at(0));
        attempts.track(Some((1, 1)), None, at(1));
        attempts.track(Some((1, 101)), None, at(2));
        attempts.track(None, Some(PLACED), at(4));
        attempts.track(Some((2, 1)), None, at(5));
        // Its gang disappears, and another gang is tried.
        attempts.track(Some((3, 1)), None, at(7));
        attempts.track(None, Some(ALL_TRIED), at(8));
        assert_eq!(
            attempts.ended,
            [
                (PLACED, "101-200".to_owned(), 3.0),
                (GONE, "1-100".to_owned(), 2.0),
                (ALL_TRIED, "1-100".to_owned(), 1.0),
            ]
        );
    }

    #[test]
    fn job_size_label_is_a_range() {
        for (tried, text) in [
            (0, "0"),
            (1, "1-100"),
            (100, "1-100"),
            (101, "101-200"),
            (1000, "901-1000"),
            (1001, "1000+"),
        ] {
            assert_eq!(size(tried), text);
        }
    }
}
