//! The constants of the rule.

use super::signal::Signal;

/// The constants of the rule. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// A service's first time, which is its start and tells nothing.
    pub start_ms: u64,
    /// After a lever was moved, samples are left out for so long.
    pub settle_ms: u64,
    /// Samples an experiment needs.
    pub test_samples: usize,
    /// The longest an experiment waits for them.
    pub test_ms: u64,
    /// The part of the harm that an experiment must take away.
    pub helps: f64,
    /// The part of batch work's time that costly experiments without a result may take.
    pub test_share: f64,
    /// So much of it can be saved up.
    pub test_saved_ms: u64,
    /// The part of batch work's time that pauses may take.
    pub pause_share: f64,
    /// The mean time until a pause that is wanted and can be paid for begins.
    pub pause_after_ms: u64,
    /// How long a free lever is held before it is let go.
    pub free_hold_ms: u64,
    /// How long a costly one is held the first time, before harm was seen to come back.
    pub first_hold_ms: u64,
    /// How long it is held before the next try, once that is known.
    pub hold_ms: u64,
    /// The longest hold.
    pub max_hold_ms: u64,
    /// How long harm has to come back after a lever was let go.
    pub watch_ms: u64,
    /// Between two small steps of a graded lever.
    pub raise_ms: u64,
    /// How long an alarm is muted the first time.
    pub mute_ms: u64,
    /// The longest.
    pub max_mute_ms: u64,
    /// Between two steps up of a blind node's cap.
    pub earn_ms: u64,
    /// By how much it grows, in percent.
    pub earn_percent: i64,
    /// A rare signal's reading stands for so long before it, and one comes about as often while batch
    /// work runs.
    pub rare_window_ms: u64,
    /// The longest time between two of them.
    pub rare_gap_ms: u64,
    /// A service without samples for so long has no say.
    pub gone_ms: u64,
    /// What was learned about a service is kept for so long after it was last seen.
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
    /// As it is for `signal`: where readings are rare, whatever waits for some waits for longer.
    pub(super) fn of(&self, signal: Signal) -> Self {
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

    /// What an experiment with `signal` takes, in milliseconds.
    pub(super) fn test_takes_ms(&self, signal: Signal) -> u64 {
        let each = match signal.is_rare() {
            true => self.rare_window_ms,
            false => 1_000,
        };
        let samples = self.of(signal).test_samples as u64;
        self.settle_ms.saturating_add(each.saturating_mul(samples))
    }
}
