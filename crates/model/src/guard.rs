//! When batch work is held back, and by which means: the pressure guard.
//!
//! Batch work at the lowest CPU weight seldom hurts a service that merely shares its CPUs; a fixed cap
//! then costs batch work and buys nothing. Where it does hurt, the guard acts on the *effect*:
//!
//! *Causality by intervention.* A service whose signals are above what is expected raises an alarm.
//! The alarm starts an experiment: one [`Lever`] is pulled, and the seconds before are compared with
//! the seconds after. If the service fares no better, the lever is let go and the next one is tried;
//! when none helps, batch work is not the cause and *that service's* alarm is muted, each time for
//! twice as long. If it helps, a claim holds the lever for that service, is let go once to see
//! whether the harm comes back (else it was chance), and then hovers just below the level that hurt.
//!
//! *Expectation.* It is learned only from intervals without batch work, by step of the service's own
//! load, its own CPU throttling left out: so harm is never learned as normal, however long it lasts.
//! Batch work is paused for single intervals at random moments while a service needs such samples, for
//! no more than [`Config::pause_share`] of its time. A service never seen without batch work has a
//! modest expectation, which the first experiments correct.
//!
//! *False alarms.* Experiments with levers that cost batch work, and holds that turn out to be chance,
//! are paid from one budget of the node ([`Config::test_share`] of batch work's time), however many
//! services there are. A service's vote (0–1) says how long its alarm must ring and how far a cap may
//! go for it.
//!
//! *Blindness.* What waits for memory runs; so stalls do not show harm through memory bandwidth and
//! shared caches. A node without a signal for these starts at the configured threshold and earns its
//! way up while nobody complains.
//!
//! *Rare signals.* A reading of performance counters stands for a window of seconds. It counts only
//! where all of the window was in the same circumstances, and experiments and claims that go by it wait
//! for longer. Pauses are too short for it: it is learned while batch work rests.
//!
//! Time, chance and samples come in as values. All times are milliseconds, shares are 0–1, levels are
//! percent.

mod baseline;
mod budget;
mod claim;
mod config;
mod decision;
mod service;
mod signal;
mod state;
mod test;

pub use config::Config;
pub use decision::{Decision, Event, Kind, Settings};
pub use signal::{Lever, Readings, Signal};
pub use state::{Held, ServiceState, Verdict};
pub use test::Experiment;

use budget::Budget;
use claim::{Change, Claim};
use service::{Circumstances, Service};
use std::collections::BTreeMap;
use test::{Before, Finding, Test};

/// The longest time between two steps that counts.
const MAX_STEP_MS: u64 = 5_000;

/// One service's sample over the last interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<K> {
    /// Which service.
    pub key: K,
    /// How much its alarm counts, 0–1; 0 is never listened to.
    pub vote: f64,
    /// Its own load: what it used, in milli-cores.
    pub load: i64,
    /// Share of the interval in which its own CPU limit held it up.
    pub throttled: f64,
    /// Its signals.
    pub readings: Readings,
}

/// What the guard needs to know besides the samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input<'a> {
    /// The time, of any steady clock.
    pub now_ms: u64,
    /// The configured threshold, in percent of the node.
    pub threshold: i64,
    /// Whether batch work used more than next to nothing in the interval.
    pub batch_ran: bool,
    /// Somebody else held batch work at the threshold: the guard learns from what is clean and does
    /// nothing.
    pub held: bool,
    /// The levers that this node has.
    pub levers: &'a [Lever],
    /// Whether harm through memory bandwidth and caches would be seen.
    pub sees_bandwidth: bool,
    /// A random number, 0–1.
    pub dice: f64,
}

/// The state of the guard on one node.
#[derive(Debug, Clone)]
pub struct Guard<K> {
    config: Config,
    services: BTreeMap<K, Service>,
    test: Option<Test<K>>,
    /// The cap of a blind node that it has earned so far, in percent.
    earned: Option<i64>,
    earned_ms: u64,
    started: bool,
    /// Whether batch work runs, or would.
    runs: bool,
    tests: Budget,
    pauses: Budget,
    stepped_ms: Option<u64>,
    /// The circumstances (clean, judged) of the last interval, and when they began.
    steady: ((bool, bool), u64),
    /// The clock of batch work: it stands while none runs.
    clock_ms: u64,
    settled_ms: u64,
    settings: Settings<K>,
    paused_ms: u64,
}

impl<K: Ord + Copy> Guard<K> {
    /// A guard that knows nothing yet.
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
            settings: Settings::default(),
            paused_ms: 0,
        }
    }

    /// How the levers stand.
    #[must_use]
    pub fn settings(&self) -> &Settings<K> {
        &self.settings
    }

    /// How long batch work was paused so far, and how long it ran, in milliseconds.
    #[must_use]
    pub fn paused(&self) -> (u64, u64) {
        (self.paused_ms, self.clock_ms)
    }

    /// What is left for costly experiments, in milliseconds; negative in debt.
    #[must_use]
    pub fn budget_ms(&self) -> f64 {
        self.tests.left_ms()
    }

    /// Takes in one interval's samples and decides.
    pub fn step(&mut self, input: &Input<'_>, samples: &[Sample<K>]) -> Decision<K> {
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
        // What we stopped ourselves would run.
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
        let at = Circumstances {
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
        self.leave(now_ms, &mut events);
        let before = self.settings.clone();
        let mut let_go = false;
        if input.held {
            self.release();
        } else if runs && settled && !paused {
            let_go = self.act(input, clean, &mut events);
        }
        self.start(input);
        self.earn(input, now_ms, runs && !paused && !clean);
        self.settings = self.wanted();
        let but_cap = |settings: &Settings<K>| Settings {
            cap: None,
            ..settings.clone()
        };
        let moved = let_go
            || but_cap(&before) != but_cap(&self.settings)
            || events.iter().any(|event| event.kind.moves());
        if moved {
            self.settled_ms = self.clock_ms.saturating_add(config.settle_ms);
            for service in self.services.values_mut() {
                service.begin_anew();
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

    /// Lets go of everything, for a reason that is not ours. What was learned stays.
    pub fn release(&mut self) {
        self.test = None;
        for service in self.services.values_mut() {
            service.claims.clear();
            service.tried.clear();
            service.begin_anew();
        }
        self.settings = Settings::default();
    }

    /// Services that are gone hold nothing.
    fn leave(&mut self, now_ms: u64, events: &mut Vec<Event<K>>) {
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
                    kind: Kind::Over,
                });
            }
        }
        let gone = |key: &K| {
            let service = self.services.get(key);
            service.is_none_or(|service| now_ms.saturating_sub(service.seen_ms) > gone_ms)
        };
        if let Some(test) = self.test.take_if(|test| gone(&test.key)) {
            events.push(test.event(Kind::Ended));
        }
    }

    /// A running experiment goes on; else claims move; else an alarm starts one.
    /// Returns whether a lever was let go.
    fn act(&mut self, input: &Input<'_>, clean: bool, events: &mut Vec<Event<K>>) -> bool {
        if let Some(test) = self.test.take() {
            self.go_on(test, input, events);
            return false;
        }
        let let_go = self.move_claims(input, events);
        if !let_go && events.is_empty() && !clean {
            self.answer(input, events);
        }
        let_go
    }

    /// One more sample of a running experiment.
    fn go_on(&mut self, mut test: Test<K>, input: &Input<'_>, events: &mut Vec<Event<K>>) {
        let config = self.config.of(test.signal);
        let Some(service) = self.services.get_mut(&test.key) else {
            events.push(test.event(Kind::Ended));
            return;
        };
        let found = test.go_on(service, self.clock_ms, input.now_ms, &config);
        if found != Finding::Nothing {
            self.tests.spend(test.pay(self.clock_ms));
        }
        match found {
            Finding::Nothing => self.test = Some(test),
            Finding::Lost => {
                service.tried.push(test.lever);
                events.push(test.event(Kind::Ended));
            }
            Finding::Help(experiment) => {
                service.last = Some(experiment);
                let remembered = service.remembered.filter(|(lever, _)| *lever == test.lever);
                let level = remembered.map_or(input.threshold, |(_, level)| level);
                service.claims.push(Claim::new(
                    (test.signal, test.lever),
                    (test.level, level),
                    remembered.is_some(),
                    test.first(),
                    &config,
                    self.clock_ms,
                ));
                service.tried.clear();
                if remembered.is_some() {
                    self.tests.refund(test.paid_ms);
                }
                let (before, after) = (experiment.before, experiment.after);
                events.push(test.event(Kind::Helped { before, after }));
            }
            Finding::NoHelp(experiment) => {
                service.last = Some(experiment);
                service.tried.push(test.lever);
                let (before, after) = (experiment.before, experiment.after);
                events.push(test.event(Kind::Useless { before, after }));
                // The harm as it is now is the next experiment's before.
                let (key, signal) = (test.key, test.signal);
                self.experiment(key, signal, test.into_after(), input, events);
            }
        }
    }

    /// Claims let go, try and come back. Returns whether one was let go.
    fn move_claims(&mut self, input: &Input<'_>, events: &mut Vec<Event<K>>) -> bool {
        let config = self.config;
        let mut anew = false;
        for (key, service) in &mut self.services {
            let mut claims = std::mem::take(&mut service.claims);
            claims.retain_mut(|claim| {
                let config = config.of(claim.signal);
                // Let go, harm must come back about as it was: noise is no proof.
                let least = match claim.is_let_go() {
                    true => config.helps * claim.first.before,
                    false => f64::NEG_INFINITY,
                };
                let hurt = service.hurts_again(claim.signal, least);
                let change = claim.step(self.clock_ms, hurt, &config);
                let level = claim.level;
                let kind = match change {
                    Change::None => return true,
                    Change::Moved => {
                        anew |= claim.is_let_go();
                        None
                    }
                    Change::Confirmed => {
                        service.mute.times = 0;
                        self.tests.refund(claim.first.paid_ms);
                        Some(Kind::Confirmed { level })
                    }
                    Change::Hurt => Some(Kind::Hurt { level }),
                    Change::Chance => Some(Kind::Chance),
                    Change::Over => Some(Kind::Over),
                };
                if claim.confirmed {
                    service.remembered = Some((claim.lever, claim.level));
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
                            let held = self.clock_ms.saturating_sub(claim.began_ms);
                            self.tests.spend(held.saturating_sub(config.watch_ms));
                        }
                        service.mute(claim.first.excess, input.now_ms, &config);
                        false
                    }
                    Change::Over => false,
                    _ => true,
                }
            });
            service.claims = claims;
        }
        anew
    }

    /// Starts an experiment for the alarm that counts most.
    fn answer(&mut self, input: &Input<'_>, events: &mut Vec<Event<K>>) {
        let clock_ms = self.clock_ms;
        let mut loudest: Option<(f64, f64, K, Signal)> = None;
        for (key, service) in &mut self.services {
            service.waits = false;
            let Some((signal, excess)) = service.alarm() else {
                // An alarm of a rare signal takes longer to ring again.
                let last = service.last.map(|last| self.config.of(last.signal));
                let calm_ms = last.unwrap_or(self.config).hold_ms;
                if clock_ms.saturating_sub(service.alarmed_ms) > calm_ms {
                    service.tried.clear();
                }
                continue;
            };
            let letting_go = service.claims.iter().any(Claim::is_let_go);
            if service.is_deaf_to(excess, input.now_ms) || letting_go {
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
            Some(Before {
                stats: track.window.stats(),
                margin: track.expected?.margin,
                baseline: service.baseline.clone(),
            })
        });
        if let Some(before) = before {
            self.experiment(key, signal, before, input, events);
        }
    }

    /// Tries the next lever for a service; mutes it when there is none.
    fn experiment(
        &mut self,
        key: K,
        signal: Signal,
        before: Before,
        input: &Input<'_>,
        events: &mut Vec<Event<K>>,
    ) {
        let config = self.config;
        let wanted = self.wanted();
        let Some(service) = self.services.get_mut(&key) else {
            return;
        };
        let remembered = service.remembered.map(|(lever, _)| lever);
        let in_order = remembered.into_iter().chain(Lever::ALL);
        let next = in_order
            .filter(|lever| input.levers.contains(lever) && lever.is_for(signal))
            .filter(|lever| !service.tried.contains(lever))
            .find(|lever| test::has_room(*lever, key, service.vote, &wanted));
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
                kind: Kind::Muted { until_ms },
            });
            return;
        };
        let paid_ms = match lever.is_costly() {
            true => config.test_takes_ms(signal),
            false => 0,
        };
        // One that takes longer than can be saved up begins with all of it and leaves a debt.
        if paid_ms > 0 && !self.tests.has(paid_ms.min(config.test_saved_ms)) {
            service.waits = true;
            return;
        }
        self.tests.spend(paid_ms);
        let level = lever.floor(service.vote);
        let value = expected + before.stats.mean;
        let test = Test::new((key, signal, lever), level, before, self.clock_ms, paid_ms);
        events.push(test.event(Kind::Tried { value, expected }));
        self.test = Some(test);
    }

    /// A blind node begins at the threshold.
    fn start(&mut self, input: &Input<'_>) {
        if !std::mem::replace(&mut self.started, true) && !input.sees_bandwidth {
            self.earned = Some(input.threshold);
            self.earned_ms = input.now_ms;
        }
        if input.sees_bandwidth {
            self.earned = None;
        }
    }

    /// The earned cap grows while nobody is uneasy.
    fn earn(&mut self, input: &Input<'_>, now_ms: u64, runs: bool) {
        let Some(earned) = self.earned else { return };
        let mut services = self.services.values();
        if !runs || self.test.is_some() || services.any(|s| s.is_uneasy(now_ms)) {
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

    /// How all that is held and tried adds up: the strongest counts.
    fn wanted(&self) -> Settings<K> {
        let mut settings = Settings {
            cap: self.earned.filter(|_| self.runs),
            ..Settings::default()
        };
        let held = self.services.iter().flat_map(|(key, service)| {
            let claims = service.claims.iter().filter(|claim| claim.level < 100);
            claims.map(|claim| (*key, claim.lever, claim.level))
        });
        let tested = self.test.iter().map(|t| (t.key, t.lever, t.level));
        for (key, lever, level) in held.chain(tested) {
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

    /// Whether batch work is paused for the next interval.
    fn pauses_now(&self, input: &Input<'_>, passed: u64) -> bool {
        let passed = passed.max(100);
        let chance = passed as f64 / self.config.pause_after_ms.max(1) as f64;
        let quota = input.levers.contains(&Lever::Quota);
        let mut services = self.services.values();
        quota
            && self.test.is_none()
            && self.pauses.has(passed.saturating_mul(3) / 2)
            && input.dice < chance
            && services.any(|service| service.wants_clean(input.now_ms))
    }
}

#[cfg(test)]
mod tests;
