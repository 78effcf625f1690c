//! Experiment: one lever, one service, the seconds before and after.

use super::baseline::Baseline;
use super::claim::ClaimOrigin;
use super::service::{Service, Stats, Window};
use super::signal::{Lever, Signal};
use super::{Config, Event, EventKind, LeverSettings};

/// Result of an experiment: whether applying one lever reduced the harm that a service's signal shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experiment {
    /// The lever.
    pub lever: Lever,
    /// The signal.
    pub signal: Signal,
    /// Harm before: the mean reading minus the expectation.
    pub before: f64,
    /// Harm after.
    pub after: f64,
    /// True if the lever helped.
    pub helped: bool,
    /// Time of its end, in milliseconds of the monotonic clock.
    pub at_ms: u64,
}

/// Running experiment.
#[derive(Debug, Clone)]
pub(super) struct RunningExperiment<K> {
    pub(super) key: K,
    pub(super) signal: Signal,
    pub(super) lever: Lever,
    pub(super) level: i64,
    pub(super) paid_ms: u64,
    before: Stats,
    after: Window,
    margin: f64,
    /// Expectations at the start: an experiment may stop batch work, and samples learned meanwhile must not
    /// change the comparison.
    baseline: Baseline,
    began_ms: u64,
}

/// Statistics of the seconds before an experiment.
#[derive(Debug, Clone)]
pub(super) struct ExperimentBaseline {
    pub(super) stats: Stats,
    pub(super) margin: f64,
    pub(super) baseline: Baseline,
}

/// Result of a step of an experiment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Finding {
    /// The experiment continues.
    Nothing,
    /// The experiment cannot be completed.
    Lost,
    /// The service improved.
    Help(Experiment),
    /// The service did not improve.
    NoHelp(Experiment),
}

impl<K: Copy> RunningExperiment<K> {
    /// Creates an experiment that starts at `clock_ms`.
    pub(super) fn new(
        (key, signal, lever): (K, Signal, Lever),
        level: i64,
        before: ExperimentBaseline,
        clock_ms: u64,
        paid_ms: u64,
    ) -> Self {
        Self {
            key,
            signal,
            lever,
            level,
            paid_ms,
            before: before.stats,
            after: Window::default(),
            margin: before.margin,
            baseline: before.baseline,
            began_ms: clock_ms,
        }
    }

    pub(super) fn event(&self, kind: EventKind) -> Event<K> {
        Event {
            key: self.key,
            signal: self.signal,
            lever: self.lever,
            kind,
        }
    }

    /// Returns the time by which the experiment exceeded the paid time, in milliseconds, and counts it as
    /// paid.
    pub(super) fn pay(&mut self, clock_ms: u64) -> u64 {
        let took = clock_ms.saturating_sub(self.began_ms);
        let over = match self.lever.is_costly() {
            true => took.saturating_sub(self.paid_ms),
            false => 0,
        };
        self.paid_ms = self.paid_ms.saturating_add(over);
        over
    }

    /// Returns the result that a claim stores.
    pub(super) fn origin(&self) -> ClaimOrigin {
        ClaimOrigin {
            before: self.before.mean,
            excess: self.before.mean / self.margin,
            paid_ms: self.paid_ms,
        }
    }

    /// Returns the statistics with the lever applied: the starting point of the next experiment.
    pub(super) fn into_after(self) -> ExperimentBaseline {
        ExperimentBaseline {
            stats: self.after.stats(),
            margin: self.margin,
            baseline: self.baseline,
        }
    }

    /// Processes the newest sample of the service.
    pub(super) fn add_sample(
        &mut self,
        service: &Service,
        clock_ms: u64,
        now_ms: u64,
        config: &Config,
    ) -> Finding {
        let track = service.tracks.get(&self.signal);
        let fresh = track.filter(|track| track.whole && track.at_ms == now_ms);
        let expected = self.baseline.expect(self.signal, service.load);
        if let (Some(track), Some(expected)) = (fresh, expected) {
            self.after.push(track.value - expected.mean);
        }
        let after = self.after.stats();
        if after.len < config.test_samples {
            let is_late = clock_ms.saturating_sub(self.began_ms) > config.test_ms;
            return if is_late {
                Finding::Lost
            } else {
                Finding::Nothing
            };
        }
        let drop = self.before.mean - after.mean;
        let error = self.before.error.hypot(after.error);
        let helped = drop >= config.helps * self.before.mean
            && drop >= self.margin / 2.0
            && drop >= 2.0 * error;
        let experiment = Experiment {
            lever: self.lever,
            signal: self.signal,
            before: self.before.mean,
            after: after.mean,
            helped,
            at_ms: now_ms,
        };
        match helped {
            true => Finding::Help(experiment),
            false => Finding::NoHelp(experiment),
        }
    }
}

/// Returns true if applying `lever` for `key` would change the settings.
pub(super) fn would_change<K: PartialEq>(
    lever: Lever,
    key: K,
    vote: f64,
    now: &LeverSettings<K>,
) -> bool {
    let lowest = lever.floor(vote);
    let below = |level: Option<i64>| level.is_none_or(|level| level > lowest);
    match lever {
        Lever::Idle => !now.idle,
        Lever::Reclaim => !now.reclaim && vote >= 0.5,
        Lever::Bandwidth => below(now.bandwidth),
        Lever::Partition => !now.partition.contains(&key) && vote >= 0.5,
        Lever::Quota => below(now.cap),
    }
}
