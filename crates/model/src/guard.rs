//! The pressure guard: decides when batch work is restricted, and by which lever.
//!
//! Batch work at the lowest CPU weight seldom harms a service that merely shares its CPUs; a fixed cap then
//! costs batch work without any benefit. If it does harm, the guard acts on the *effect*:
//!
//! *Causality by intervention.* A service whose signals are above their expectation raises an alarm. The
//! alarm starts an experiment: one [`Lever`] is applied, and the seconds before are compared with the seconds
//! after. If the service does not improve, the lever is released and the next one is tried; if none helps,
//! batch work is not the cause and the alarm of *that service* is muted, each time for twice as long. If the
//! lever helps, a claim holds it for that service, releases it once to see whether the harm returns
//! (otherwise the improvement was chance), and then keeps it just below the level that harmed.
//!
//! *Expectation.* It is learned only from intervals without batch work, per step of the service's own load,
//! without the service's own CPU throttling: so harm never becomes normal, however long it lasts. Batch work
//! is paused for single intervals at random moments while a service needs such samples, for at most
//! [`Config::pause_share`] of its time. A service that was never observed without batch work has a default
//! expectation, which the first experiments correct.
//!
//! *False alarms.* Experiments with levers that cost batch work, and claims that turn out to be chance, are
//! paid from one budget of the node ([`Config::test_share`] of batch work's time), regardless of the number
//! of services. A service's vote (0–1) determines how long its alarm must last and how far a cap may reach
//! for it.
//!
//! *Blindness.* A task that waits for memory counts as running; so stalls do not show harm through memory
//! bandwidth and shared caches. A node without a signal for these starts at the configured threshold and
//! raises its cap while no service raises an alarm.
//!
//! *Rare signals.* A reading of performance counters covers a window of seconds. It counts only if conditions
//! did not change during the whole window, and experiments and claims based on it wait longer. Pauses are too
//! short for it: its expectation is learned while no batch work runs.
//!
//! Time, random numbers and samples are passed as values. All times are in milliseconds, shares are 0–1,
//! levels are percent.

mod baseline;
mod budget;
mod claim;
mod config;
mod decision;
mod experiment;
mod service;
mod signal;
mod state;

pub use config::Config;
pub use decision::{Decision, Event, EventKind, LeverSettings};
pub use experiment::Experiment;
pub use signal::{Lever, Readings, Signal};
pub use state::{HeldLever, ServiceState, Verdict};

use budget::Budget;
use claim::{Change, LeverClaim};
use experiment::{ExperimentBaseline, Finding, RunningExperiment};
use service::{SampleContext, Service};
use std::collections::BTreeMap;

/// Maximum time between two steps that is accounted.
const MAX_STEP_MS: u64 = 5_000;

/// Load and readings of one service over the last interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServiceSample<K> {
    /// Key of the service.
    pub key: K,
    /// Weight of the service's alarm, 0–1; an alarm of weight 0 is ignored.
    pub vote: f64,
    /// CPU usage of the service in milli-cores.
    pub load: i64,
    /// Share of the interval in which the service's own CPU limit throttled it, 0–1.
    pub throttled: f64,
    /// Readings of its signals.
    pub readings: Readings,
}

/// Input of a step in addition to the samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input<'a> {
    /// Current time of a monotonic clock, in milliseconds.
    pub now_ms: u64,
    /// Configured threshold, in percent of the node.
    pub threshold: i64,
    /// True if batch work used a relevant amount of CPU in the interval.
    pub batch_ran: bool,
    /// True if another component limits the CPU of batch work to `threshold`. The guard then releases its
    /// levers, and only intervals without batch work update the expected readings of services.
    pub held: bool,
    /// Levers available on this node.
    pub levers: &'a [Lever],
    /// True if a signal shows harm through memory bandwidth and caches.
    pub sees_bandwidth: bool,
    /// Random number, 0–1.
    pub dice: f64,
}

/// State of the guard on one node.
#[derive(Debug, Clone)]
pub struct Guard<K> {
    config: Config,
    services: BTreeMap<K, Service>,
    test: Option<RunningExperiment<K>>,
    /// Current cap of a node without a bandwidth signal, in percent.
    earned: Option<i64>,
    earned_ms: u64,
    started: bool,
    /// True if batch work runs, or would run without a pause or cap.
    runs: bool,
    tests: Budget,
    pauses: Budget,
    stepped_ms: Option<u64>,
    /// Conditions (clean, judged) of the last interval, and the time since which they hold.
    steady: ((bool, bool), u64),
    /// Clock that advances only while batch work runs.
    clock_ms: u64,
    settled_ms: u64,
    settings: LeverSettings<K>,
    paused_ms: u64,
}

impl<K: Ord + Copy> Guard<K> {
    /// Creates a guard without any observations.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let saved = config.test_saved_ms as f64;
        Self {
            config,
            services: BTreeMap::new(),
            test: None,
            earned: None,
            earned_ms: 0,
            started: false,
            runs: false,
            tests: Budget::new(config.test_share, saved, saved),
            pauses: Budget::new(config.pause_share, 5_000.0, 0.0),
            stepped_ms: None,
            steady: ((false, false), 0),
            clock_ms: 0,
            settled_ms: 0,
            settings: LeverSettings::default(),
            paused_ms: 0,
        }
    }

    /// Returns the current settings of the levers.
    #[must_use]
    pub fn settings(&self) -> &LeverSettings<K> {
        &self.settings
    }

    /// Returns the total time that batch work was paused and the total time it ran, in milliseconds.
    #[must_use]
    pub fn paused(&self) -> (u64, u64) {
        (self.paused_ms, self.clock_ms)
    }

    /// Returns the remaining budget for costly experiments in milliseconds; negative if overdrawn.
    #[must_use]
    pub fn budget_ms(&self) -> f64 {
        self.tests.remaining_ms()
    }

    /// Processes the samples of one interval and returns the decision for the next one.
    pub fn step(&mut self, input: &Input<'_>, samples: &[ServiceSample<K>]) -> Decision<K> {
        let input = &Input {
            threshold: input.threshold.clamp(0, 100),
            ..*input
        };
        let now_ms = input.now_ms;
        let passed = self
            .stepped_ms
            .map_or(0, |last| now_ms.saturating_sub(last).min(MAX_STEP_MS));
        self.stepped_ms = Some(now_ms);
        let paused = std::mem::take(&mut self.settings.pause);
        let clean = !input.batch_ran;
        // Batch work that the guard itself stopped would run.
        let stopped = self.settings.cap.is_some() && self.settings.cap != self.earned;
        let runs = !clean || paused || stopped;
        self.runs = runs;
        if runs {
            self.clock_ms = self.clock_ms.saturating_add(passed);
            self.tests.pass(passed);
            self.pauses.pass(passed);
        }
        if paused {
            self.paused_ms = self.paused_ms.saturating_add(passed);
            self.pauses.spend(passed);
        }
        let settled = self.clock_ms >= self.settled_ms;
        let judged = !clean && !input.held && !paused && settled;
        if self.steady.0 != (clean, judged) {
            self.steady = ((clean, judged), now_ms.saturating_sub(passed));
        }
        let at = SampleContext {
            now_ms,
            clean,
            judged,
            steady_ms: now_ms.saturating_sub(self.steady.1),
        };
        for sample in samples {
            let service = self.services.entry(sample.key);
            let service = service.or_insert_with(|| Service::new(now_ms));
            service.observe(sample, at, &self.config);
        }
        let config = self.config;
        self.services
            .retain(|_, service| now_ms.saturating_sub(service.seen_ms) <= config.forget_ms);
        let mut events = Vec::new();
        self.drop_absent(now_ms, &mut events);
        let before = self.settings.clone();
        let mut released = false;
        if input.held {
            self.release();
        } else if runs && settled && !paused {
            released = self.act(input, clean, &mut events);
        }
        self.start(input);
        self.raise_cap(input, now_ms, runs && !paused && !clean);
        self.settings = self.combined_settings();
        let but_cap = |settings: &LeverSettings<K>| LeverSettings {
            cap: None,
            ..settings.clone()
        };
        let moved = released
            || but_cap(&before) != but_cap(&self.settings)
            || events.iter().any(|event| event.kind.moves());
        if moved {
            self.settled_ms = self.clock_ms.saturating_add(config.settle_ms);
            for service in self.services.values_mut() {
                service.reset_windows();
            }
        } else if runs && !paused && !clean && !input.held {
            self.settings.pause = self.pauses_now(input, passed);
        }
        Decision {
            settings: self.settings.clone(),
            events,
            watches: runs && !input.held,
        }
    }

    /// Releases all levers for an external reason. Learned expectations are kept.
    pub fn release(&mut self) {
        self.test = None;
        for service in self.services.values_mut() {
            service.claims.clear();
            service.tried.clear();
            service.reset_windows();
        }
        self.settings = LeverSettings::default();
    }

    /// Drops the claims and the experiment of services that have no samples any more.
    fn drop_absent(&mut self, now_ms: u64, events: &mut Vec<Event<K>>) {
        let gone_ms = self.config.gone_ms;
        for (key, service) in &mut self.services {
            if now_ms.saturating_sub(service.seen_ms) <= gone_ms {
                continue;
            }
            for claim in service.claims.drain(..) {
                events.push(Event {
                    key: *key,
                    signal: claim.signal,
                    lever: claim.lever,
                    kind: EventKind::Over,
                });
            }
        }
        let is_gone = |key: &K| {
            let service = self.services.get(key);
            service.is_none_or(|service| now_ms.saturating_sub(service.seen_ms) > gone_ms)
        };
        if let Some(test) = self.test.take_if(|test| is_gone(&test.key)) {
            events.push(test.event(EventKind::Ended));
        }
    }

    /// Continues a running experiment; otherwise steps the claims; otherwise starts an experiment for an
    /// alarm.
    fn act(&mut self, input: &Input<'_>, clean: bool, events: &mut Vec<Event<K>>) -> bool {
        if let Some(test) = self.test.take() {
            self.add_sample(test, input, events);
            return false;
        }
        let released = self.step_claims(input, events);
        if !released && events.is_empty() && !clean {
            self.start_experiment(input, events);
        }
        released
    }

    /// Processes one more sample of a running experiment.
    fn add_sample(
        &mut self,
        mut test: RunningExperiment<K>,
        input: &Input<'_>,
        events: &mut Vec<Event<K>>,
    ) {
        let config = self.config.for_signal(test.signal);
        let Some(service) = self.services.get_mut(&test.key) else {
            events.push(test.event(EventKind::Ended));
            return;
        };
        let finding = test.add_sample(service, self.clock_ms, input.now_ms, &config);
        if finding != Finding::Nothing {
            self.tests.spend(test.pay(self.clock_ms));
        }
        match finding {
            Finding::Nothing => self.test = Some(test),
            Finding::Lost => {
                service.tried.push(test.lever);
                events.push(test.event(EventKind::Ended));
            }
            Finding::Help(experiment) => {
                service.last = Some(experiment);
                let confirmed_lever = service
                    .confirmed_lever
                    .filter(|(lever, _)| *lever == test.lever);
                let level = confirmed_lever.map_or(input.threshold, |(_, level)| level);
                service.claims.push(LeverClaim::new(
                    (test.signal, test.lever),
                    (test.level, level),
                    confirmed_lever.is_some(),
                    test.origin(),
                    &config,
                    self.clock_ms,
                ));
                service.tried.clear();
                if confirmed_lever.is_some() {
                    self.tests.refund(test.paid_ms);
                }
                let (before, after) = (experiment.before, experiment.after);
                events.push(test.event(EventKind::Helped { before, after }));
            }
            Finding::NoHelp(experiment) => {
                service.last = Some(experiment);
                service.tried.push(test.lever);
                let (before, after) = (experiment.before, experiment.after);
                events.push(test.event(EventKind::Useless { before, after }));
                // The current harm is the starting point of the next experiment.
                let (key, signal) = (test.key, test.signal);
                self.experiment(key, signal, test.into_after(), input, events);
            }
        }
    }

    /// Advances each service's hold on its levers (`LeverClaim`) and appends the findings to `events`.
    /// Returns true if a lever was released.
    fn step_claims(&mut self, input: &Input<'_>, events: &mut Vec<Event<K>>) -> bool {
        let config = self.config;
        let mut any_released = false;
        for (key, service) in &mut self.services {
            let mut claims = std::mem::take(&mut service.claims);
            claims.retain_mut(|claim| {
                let config = config.for_signal(claim.signal);
                // After a release, only harm of about the earlier size counts; smaller harm may be noise.
                let least = match claim.is_released() {
                    true => config.helps * claim.origin.before,
                    false => f64::NEG_INFINITY,
                };
                let hurt = service.has_recurring_harm(claim.signal, least);
                let change = claim.step(self.clock_ms, hurt, &config);
                let level = claim.level;
                let kind = match change {
                    Change::None => return true,
                    Change::Moved => {
                        any_released |= claim.is_released();
                        None
                    }
                    Change::Confirmed => {
                        service.mute.times = 0;
                        self.tests.refund(claim.origin.paid_ms);
                        Some(EventKind::Confirmed { level })
                    }
                    Change::Hurt => Some(EventKind::Hurt { level }),
                    Change::Chance => Some(EventKind::Chance),
                    Change::Over => Some(EventKind::Over),
                };
                if claim.confirmed {
                    service.confirmed_lever = Some((claim.lever, claim.level));
                }
                let event = |kind| Event {
                    key: *key,
                    signal: claim.signal,
                    lever: claim.lever,
                    kind,
                };
                events.extend(kind.map(event));
                match change {
                    Change::Chance => {
                        if claim.lever.is_costly() {
                            let held_ms = self.clock_ms.saturating_sub(claim.began_ms);
                            self.tests.spend(held_ms.saturating_sub(config.watch_ms));
                        }
                        service.mute(claim.origin.excess, input.now_ms, &config);
                        false
                    }
                    Change::Over => false,
                    _ => true,
                }
            });
            service.claims = claims;
        }
        any_released
    }

    /// Starts an experiment for the alarm with the highest vote, then the largest excess.
    fn start_experiment(&mut self, input: &Input<'_>, events: &mut Vec<Event<K>>) {
        let clock_ms = self.clock_ms;
        let mut loudest: Option<(f64, f64, K, Signal)> = None;
        for (key, service) in &mut self.services {
            service.awaits_budget = false;
            let Some((signal, excess)) = service.alarm() else {
                // An alarm of a rare signal takes longer to recur.
                let last = service.last.map(|last| self.config.for_signal(last.signal));
                let calm_ms = last.unwrap_or(self.config).hold_ms;
                if clock_ms.saturating_sub(service.alarmed_ms) > calm_ms {
                    service.tried.clear();
                }
                continue;
            };
            let releasing = service.claims.iter().any(LeverClaim::is_released);
            if service.is_muted_at(excess, input.now_ms) || releasing {
                continue;
            }
            service.alarmed_ms = clock_ms;
            if loudest.is_none_or(|(vote, most, ..)| (service.vote, excess) > (vote, most)) {
                loudest = Some((service.vote, excess, *key, signal));
            }
        }
        let Some((_, _, key, signal)) = loudest else {
            return;
        };
        let service = self.services.get(&key);
        let before = service.and_then(|service| {
            let track = service.tracks.get(&signal)?;
            Some(ExperimentBaseline {
                stats: track.window.stats(),
                margin: track.expected?.margin,
                baseline: service.baseline.clone(),
            })
        });
        if let Some(before) = before {
            self.experiment(key, signal, before, input, events);
        }
    }

    /// Starts an experiment with the next lever for a service, or mutes its alarm if there is none.
    fn experiment(
        &mut self,
        key: K,
        signal: Signal,
        before: ExperimentBaseline,
        input: &Input<'_>,
        events: &mut Vec<Event<K>>,
    ) {
        let config = self.config;
        let settings = self.combined_settings();
        let Some(service) = self.services.get_mut(&key) else {
            return;
        };
        let confirmed_lever = service.confirmed_lever.map(|(lever, _)| lever);
        let in_order = confirmed_lever.into_iter().chain(Lever::ALL);
        let next = in_order
            .filter(|lever| input.levers.contains(lever) && lever.is_for(signal))
            .filter(|lever| !service.tried.contains(lever))
            .find(|lever| experiment::would_change(*lever, key, service.vote, &settings));
        let expected = before.baseline.expect(signal, service.load);
        let expected = expected.map_or(0.0, |expected| expected.mean);
        let Some(lever) = next else {
            service.mute(before.stats.mean / before.margin, input.now_ms, &config);
            let until_ms = service.mute.until_ms;
            let lever = service.last.map_or(Lever::Idle, |last| last.lever);
            events.push(Event {
                key,
                signal,
                lever,
                kind: EventKind::Muted { until_ms },
            });
            return;
        };
        let paid_ms = match lever.is_costly() {
            true => config.test_takes_ms(signal),
            false => 0,
        };
        // An experiment longer than the maximum budget starts with the full budget and overdraws it.
        if paid_ms > 0 && !self.tests.has(paid_ms.min(config.test_saved_ms)) {
            service.awaits_budget = true;
            return;
        }
        self.tests.spend(paid_ms);
        let level = lever.floor(service.vote);
        let value = expected + before.stats.mean;
        let test =
            RunningExperiment::new((key, signal, lever), level, before, self.clock_ms, paid_ms);
        events.push(test.event(EventKind::Tried { value, expected }));
        self.test = Some(test);
    }

    /// Initializes the cap of a node without a bandwidth signal to the threshold.
    fn start(&mut self, input: &Input<'_>) {
        if !std::mem::replace(&mut self.started, true) && !input.sees_bandwidth {
            self.earned = Some(input.threshold);
            self.earned_ms = input.now_ms;
        }
        if input.sees_bandwidth {
            self.earned = None;
        }
    }

    /// Raises the cap of such a node while no service shows harm.
    fn raise_cap(&mut self, input: &Input<'_>, now_ms: u64, runs: bool) {
        let Some(earned) = self.earned else { return };
        let mut services = self.services.values();
        if !runs || self.test.is_some() || services.any(|s| s.shows_harm(now_ms)) {
            self.earned_ms = now_ms;
            return;
        }
        if now_ms.saturating_sub(self.earned_ms) >= self.config.earn_ms {
            self.earned_ms = now_ms;
            let next = earned
                .max(input.threshold)
                .saturating_add(self.config.earn_percent);
            self.earned = (next < 100).then_some(next);
        }
    }

    /// Combines all claims and the running experiment to settings: the strongest level applies.
    fn combined_settings(&self) -> LeverSettings<K> {
        let mut settings = LeverSettings {
            cap: self.earned.filter(|_| self.runs),
            ..LeverSettings::default()
        };
        let claimed = self.services.iter().flat_map(|(key, service)| {
            let claims = service.claims.iter().filter(|claim| claim.level < 100);
            claims.map(|claim| (*key, claim.lever, claim.level))
        });
        let tested = self.test.iter().map(|t| (t.key, t.lever, t.level));
        for (key, lever, level) in claimed.chain(tested) {
            let lower = |now: Option<i64>| Some(now.map_or(level, |now| now.min(level)));
            match lever {
                Lever::Idle => settings.idle = true,
                Lever::Reclaim => settings.reclaim = true,
                Lever::Bandwidth => settings.bandwidth = lower(settings.bandwidth),
                Lever::Partition => settings.partition.push(key),
                Lever::Quota => settings.cap = lower(settings.cap),
            }
        }
        settings
    }

    /// Returns true if batch work is paused for the next interval.
    fn pauses_now(&self, input: &Input<'_>, passed: u64) -> bool {
        let passed = passed.max(100);
        let chance = passed as f64 / self.config.pause_after_ms.max(1) as f64;
        let quota = input.levers.contains(&Lever::Quota);
        let mut services = self.services.values();
        quota
            && self.test.is_none()
            && self.pauses.has(passed.saturating_mul(3) / 2)
            && input.dice < chance
            && services.any(|service| service.needs_clean_sample(input.now_ms))
    }
}

#[cfg(test)]
mod tests;
