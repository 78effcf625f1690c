//! Progress of the demo: windows done, time left, and how many noisy windows are measured again.

use super::result::{Phase, PhaseRun};
use super::summary::latency;
use koord_workload::monotonic_ns;
use std::time::Duration;

/// Counts the windows that are measured, and estimates the time that is left.
#[derive(Debug)]
pub struct Progress {
    planned: usize,
    /// Windows that need not be measured any more: done for good, or skipped.
    settled: usize,
    /// Settled windows when the current scenario began.
    before: usize,
    measured: usize,
    retried: usize,
    begun_ns: u64,
    /// End of the time budget, if there is one.
    deadline_ns: Option<u64>,
}

impl Progress {
    /// Creates the progress of `planned` windows, with a time budget if there is one.
    #[must_use]
    pub fn new(planned: usize, budget: Option<Duration>) -> Self {
        let begun_ns = monotonic_ns();
        let end = |budget: Duration| {
            let budget = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
            begun_ns.saturating_add(budget)
        };
        Self {
            planned,
            settled: 0,
            before: 0,
            measured: 0,
            retried: 0,
            begun_ns,
            deadline_ns: budget.map(end),
        }
    }

    /// Returns true if a noisy window may be measured again: in total up to a third of the planned windows,
    /// so that a machine that is never quiet gives a report all the same.
    #[must_use]
    pub fn may_retry(&self) -> bool {
        self.retried * 3 < self.planned.max(3)
    }

    /// Counts a measured window, which is measured once more if `again` is set.
    pub fn measured(&mut self, again: bool) {
        self.measured += 1;
        if again {
            self.retried += 1;
        } else {
            self.settled += 1;
        }
    }

    /// Counts the end of a scenario of `planned` windows, which ended `early` if some were skipped.
    pub fn skip_to_end_of(&mut self, planned: usize, early: bool) {
        self.before += planned;
        if early {
            self.settled = self.before;
        }
    }

    /// Returns the seconds that are left: until the time budget ends, or without one the estimate from the
    /// windows measured so far.
    #[must_use]
    pub fn seconds_left(&self, now_ns: u64) -> f64 {
        if let Some(deadline_ns) = self.deadline_ns {
            return Duration::from_nanos(deadline_ns.saturating_sub(now_ns)).as_secs_f64();
        }
        #[allow(clippy::cast_precision_loss, reason = "seconds of a run")]
        let each = now_ns.saturating_sub(self.begun_ns) as f64 / 1e9 / self.measured.max(1) as f64;
        #[allow(clippy::cast_precision_loss, reason = "a count of windows")]
        let windows_left = self.planned.saturating_sub(self.settled) as f64;
        each * windows_left
    }

    /// Returns the progress line after a window: its figures, the number of windows and the time left.
    #[must_use]
    pub fn line(&self, scenario: &str, phase: Phase, run: &PhaseRun) -> String {
        let time_left = self.seconds_left(monotonic_ns());
        let time_left = if time_left < 90.0 {
            format!("{time_left:.0} s")
        } else {
            format!("{:.0} min", time_left / 60.0)
        };
        let about = match self.deadline_ns {
            Some(_) => "at most",
            None => "about",
        };
        let noise = run.rejected.as_deref();
        format!(
            "{scenario:<9} {:<17} {}  p99 {:>8}  CPU {:>3.0} %  batch {:>6.0}/s  [{}/{}, {about} {time_left} left]{}",
            phase.label(),
            run.repeat,
            latency(run.ls.p99_us),
            run.cpu_utilization * 100.0,
            run.be_ops_per_s,
            self.settled.min(self.planned),
            self.planned,
            noise.map_or_else(String::new, |why| format!("  noisy: {why}")),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end_on_a_noisy_machine() {
        let mut progress = Progress::new(12, None);
        let mut windows = 0;
        for _ in 0..12 {
            for _ in 0..3 {
                windows += 1;
                let again = progress.may_retry();
                progress.measured(again);
                if !again {
                    break;
                }
            }
        }
        assert!((12..=16).contains(&windows), "{windows}");
    }

    #[test]
    fn seconds_left_shrink_with_measured_and_skipped_windows() {
        let mut progress = Progress::new(8, None);
        progress.begun_ns = 0;
        for _ in 0..2 {
            progress.measured(false);
        }
        assert_eq!(progress.seconds_left(20_000_000_000), 60.0);
        progress.skip_to_end_of(4, true);
        assert_eq!(progress.seconds_left(20_000_000_000), 40.0);
        progress.skip_to_end_of(4, true);
        assert_eq!(progress.seconds_left(20_000_000_000), 0.0);
    }

    #[test]
    fn a_time_budget_is_what_is_left() {
        let mut progress = Progress::new(8, Some(Duration::from_secs(200)));
        progress.deadline_ns = Some(200_000_000_000);
        progress.measured(false);
        assert_eq!(progress.seconds_left(150_000_000_000), 50.0);
        assert_eq!(progress.seconds_left(250_000_000_000), 0.0);
    }
}
