//! Constants of the guard. Times are in milliseconds.

use super::signal::Signal;

/// Constants of the guard. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Time after the first sample of a service that is ignored because the service is starting.
    pub start_ms: u64,
    /// Time after a change of a lever during which samples are ignored.
    pub settle_ms: u64,
    /// Number of samples that an experiment needs.
    pub test_samples: usize,
    /// Maximum time that an experiment waits for its samples.
    pub test_ms: u64,
    /// Share of the harm that an experiment must remove to count as a success, 0–1.
    pub helps: f64,
    /// Share of batch work's time that costly experiments without a result may use, 0–1.
    pub test_share: f64,
    /// Maximum of the saved budget for experiments.
    pub test_saved_ms: u64,
    /// Share of batch work's time that pauses may use, 0–1.
    pub pause_share: f64,
    /// Mean delay of a pause that is needed and within the budget.
    pub pause_after_ms: u64,
    /// Hold time of a free lever before it is released.
    pub free_hold_ms: u64,
    /// First hold time of a costly lever, before harm was seen to return.
    pub first_hold_ms: u64,
    /// Hold time of a costly lever before the next try, once it is confirmed.
    pub hold_ms: u64,
    /// Maximum hold time.
    pub max_hold_ms: u64,
    /// Time in which harm must return after a lever was released.
    pub watch_ms: u64,
    /// Time between two small steps of a graded lever.
    pub raise_ms: u64,
    /// First time that an alarm is muted.
    pub mute_ms: u64,
    /// Maximum time that an alarm is muted.
    pub max_mute_ms: u64,
    /// Time between two steps up of the cap of a node without a bandwidth signal.
    pub earn_ms: u64,
    /// Size of a step up of the cap of a node without a bandwidth signal, in percent of the node.
    pub earn_percent: i64,
    /// Window that a reading of a rare signal covers; readings come about as often while batch work runs.
    pub rare_window_ms: u64,
    /// Maximum time between two readings of a rare signal.
    pub rare_gap_ms: u64,
    /// Time without samples from which a service is ignored.
    pub gone_ms: u64,
    /// Time after the last sample for which the expectations of a service are kept.
    pub forget_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            start_ms: 10_000,
            settle_ms: 1_500,
            test_samples: 4,
            test_ms: 10_000,
            helps: 0.4,
            test_share: 0.01,
            test_saved_ms: 30_000,
            pause_share: 0.005,
            pause_after_ms: 20_000,
            free_hold_ms: 60_000,
            first_hold_ms: 6_000,
            hold_ms: 30_000,
            max_hold_ms: 1_800_000,
            watch_ms: 10_000,
            raise_ms: 4_000,
            mute_ms: 120_000,
            max_mute_ms: 3_600_000,
            earn_ms: 2_000,
            earn_percent: 5,
            rare_window_ms: 12_000,
            rare_gap_ms: 90_000,
            gone_ms: 4_000,
            forget_ms: 600_000,
        }
    }
}

impl Config {
    /// Returns the constants for `signal`: with rare readings, all waits for readings are longer.
    pub(super) fn for_signal(&self, signal: Signal) -> Self {
        if !signal.is_rare() {
            return *self;
        }
        let gaps = |n: u64| self.rare_gap_ms.saturating_mul(n);
        Self {
            test_samples: 3,
            test_ms: gaps(4),
            watch_ms: gaps(3),
            raise_ms: gaps(3),
            hold_ms: gaps(6),
            gone_ms: gaps(1),
            ..*self
        }
    }

    /// Returns the duration of an experiment with `signal`, in milliseconds.
    pub(super) fn test_takes_ms(&self, signal: Signal) -> u64 {
        let each = match signal.is_rare() {
            true => self.rare_window_ms,
            false => 1_000,
        };
        let samples = self.for_signal(signal).test_samples as u64;
        self.settle_ms.saturating_add(each.saturating_mul(samples))
    }
}
