//! The constants of the rule.

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
            gone_ms: 4_000,
            forget_ms: 600_000,
        }
    }
}
