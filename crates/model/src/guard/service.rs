//! State of one service.

use super::baseline::{Baseline, Expected};
use super::claim::LeverClaim;
use super::signal::{Lever, Signal};
use super::{Config, Experiment, ServiceSample};
use std::collections::BTreeMap;

/// Number of high samples among the last [`OF`] that raise an alarm, for a vote of 1.
const HIGH: u32 = 4;
const OF: u32 = 6;
/// Number of high samples among the last [`OF_AGAIN`] that count as returned harm.
const HIGH_AGAIN: u32 = 2;
const OF_AGAIN: u32 = 3;

/// The newest residuals of a signal: readings minus expectations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    values: [f64; OF as usize],
    len: usize,
}

/// Mean and its standard error.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stats {
    pub(super) mean: f64,
    pub(super) error: f64,
    pub(super) len: usize,
}

impl Window {
    pub(super) fn push(&mut self, value: f64) {
        self.values.rotate_right(1);
        self.values[0] = value;
        self.len = (self.len + 1).min(self.values.len());
    }

    pub(super) fn stats(&self) -> Stats {
        let values = self.values.iter().take(self.len);
        let n = self.len.max(1) as f64;
        let mean = values.clone().sum::<f64>() / n;
        let deviation = values.map(|value| (value - mean).abs()).sum::<f64>() / n;
        Stats {
            mean,
            // The deviation of a normal distribution is 1.25 times its mean absolute deviation.
            error: 1.25 * deviation / n.sqrt(),
            len: self.len,
        }
    }
}

/// State of one signal of a service.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Track {
    pub(super) value: f64,
    pub(super) expected: Option<Expected>,
    pub(super) window: Window,
    /// One bit per judged sample, the newest lowest: 1 if it was high.
    high: u32,
    pub(super) at_ms: u64,
    /// True if conditions did not change during the window of the newest reading.
    pub(super) whole: bool,
}

impl Track {
    fn is_high(&self) -> bool {
        self.high & 1 == 1
    }

    fn counts(&self, high: u32, of: u32) -> bool {
        let mask = u32::MAX >> (32 - of.clamp(1, 32));
        self.is_high() && (self.high & mask).count_ones() >= high
    }

    /// Returns the mean excess over the expectation in multiples of the margin.
    fn excess(&self) -> f64 {
        self.expected
            .map_or(0.0, |e| self.window.stats().mean / e.margin)
    }
}

/// Muting of an alarm.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SuppressedAlarm {
    pub(super) until_ms: u64,
    long_ms: u64,
    pub(super) times: u32,
    /// Excess of the muted alarm, in margins: an alarm with twice the excess is not muted.
    excess: f64,
}

/// State of one service.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) vote: f64,
    pub(super) load: i64,
    first_ms: u64,
    pub(super) seen_ms: u64,
    pub(super) baseline: Baseline,
    pub(super) tracks: BTreeMap<Signal, Track>,
    pub(super) claims: Vec<LeverClaim>,
    pub(super) mute: SuppressedAlarm,
    /// Lever that was confirmed to help, and its level.
    pub(super) confirmed_lever: Option<(Lever, i64)>,
    /// Levers that did not help in this episode.
    pub(super) tried: Vec<Lever>,
    /// Time of its last alarm, by the clock of batch work.
    pub(super) alarmed_ms: u64,
    pub(super) awaits_budget: bool,
    pub(super) last: Option<Experiment>,
}

/// Conditions under which a sample was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleContext {
    pub(super) now_ms: u64,
    /// No batch work ran.
    pub(super) clean: bool,
    /// The sample is usable to judge the effect of batch work.
    pub(super) judged: bool,
    /// Time for which both have not changed.
    pub(super) steady_ms: u64,
}

impl Service {
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            vote: 0.0,
            load: 0,
            first_ms: now_ms,
            seen_ms: now_ms,
            baseline: Baseline::default(),
            tracks: BTreeMap::new(),
            claims: Vec::new(),
            mute: SuppressedAlarm::default(),
            confirmed_lever: None,
            tried: Vec::new(),
            alarmed_ms: 0,
            awaits_budget: false,
            last: None,
        }
    }

    /// Records a sample: updates expectations from clean readings and the excess of the others.
    pub(super) fn observe<K>(
        &mut self,
        sample: &ServiceSample<K>,
        at: SampleContext,
        config: &Config,
    ) {
        self.seen_ms = at.now_ms;
        self.vote = if sample.vote.is_finite() {
            sample.vote.clamp(0.0, 1.0)
        } else {
            0.0
        };
        self.load = sample.load;
        let throttled = if sample.throttled.is_finite() {
            sample.throttled.clamp(0.0, 1.0)
        } else {
            0.0
        };
        let starting = at.now_ms.saturating_sub(self.first_ms) < config.start_ms;
        for (signal, mut value) in sample.readings.iter() {
            if throttled > 0.0 && signal == Signal::CpuPeak {
                continue;
            }
            if signal.counts_throttling() {
                value = (value - throttled).max(0.0);
            }
            let whole = !signal.is_rare() || at.steady_ms >= config.rare_window_ms;
            if at.clean && !starting && whole {
                self.baseline.learn(signal, self.load, value, at.now_ms);
            }
            let track = self.tracks.entry(signal).or_default();
            (track.value, track.at_ms, track.whole) = (value, at.now_ms, whole);
            track.expected = self.baseline.expect(signal, self.load);
            if !at.judged || starting || !whole {
                continue;
            }
            let Some(expected) = track.expected else {
                continue;
            };
            let off = value - expected.mean;
            track.window.push(off);
            track.high = (track.high << 1) | u32::from(off > expected.margin);
        }
        self.tracks.retain(|signal, track| {
            at.now_ms.saturating_sub(track.at_ms) <= config.for_signal(*signal).gone_ms
        });
    }

    /// Drops the newest samples, because the settings changed.
    pub(super) fn reset_windows(&mut self) {
        for track in self.tracks.values_mut() {
            (track.window, track.high) = (Window::default(), 0);
        }
    }

    /// Returns true if the newest sample shows harm.
    pub(super) fn shows_harm(&self, now_ms: u64) -> bool {
        self.vote > 0.0 && !self.is_muted(now_ms) && self.tracks.values().any(Track::is_high)
    }

    /// Returns true if harm returned with a mean of at least `least`.
    pub(super) fn has_recurring_harm(&self, signal: Signal, least: f64) -> bool {
        let track = self.tracks.get(&signal);
        track.is_some_and(|track| {
            track.counts(HIGH_AGAIN, OF_AGAIN) && track.window.stats().mean >= least
        })
    }

    /// Returns the signal with the largest excess that raises an alarm, and its excess. With half a vote the
    /// alarm must last twice as long.
    pub(super) fn alarm(&self) -> Option<(Signal, f64)> {
        if self.vote <= 0.0 {
            return None;
        }
        let long = |n: u32| (f64::from(n) / self.vote).ceil().min(30.0) as u32;
        let ringing = self.tracks.iter();
        ringing
            .filter(|(_, track)| track.counts(long(HIGH).min(20), long(OF)))
            .map(|(signal, track)| (*signal, track.excess()))
            .max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns true if an alarm with this excess is muted.
    pub(super) fn is_muted_at(&self, excess: f64, now_ms: u64) -> bool {
        self.is_muted(now_ms) && excess < 2.0 * self.mute.excess
    }

    pub(super) fn is_muted(&self, now_ms: u64) -> bool {
        now_ms < self.mute.until_ms
    }

    /// Mutes the alarm, each time for twice as long.
    pub(super) fn mute(&mut self, excess: f64, now_ms: u64, config: &Config) {
        let before = self.mute;
        // After a calm time as long as the muting, the duration starts from the first one.
        let calm = now_ms.saturating_sub(before.until_ms) > before.long_ms;
        let times = if calm { 0 } else { before.times.min(16) };
        let long_ms = config
            .mute_ms
            .saturating_mul(1 << times)
            .min(config.max_mute_ms);
        self.mute = SuppressedAlarm {
            until_ms: now_ms.saturating_add(long_ms),
            long_ms,
            times: times + 1,
            excess,
        };
        self.tried.clear();
    }

    /// Returns true if a clean sample of a single interval would improve the expectation.
    pub(super) fn needs_clean_sample(&self, now_ms: u64) -> bool {
        let mut signals = self.tracks.keys().filter(|signal| !signal.is_rare());
        self.vote > 0.0
            && signals.any(|signal| self.baseline.needs_samples(*signal, self.load, now_ms))
    }
}
