//! When batch work may run without a cap: pressure-guided suppression.
//!
//! Batch work at the lowest CPU weight does not hurt a service that merely shares its CPUs; a fixed
//! cap then costs batch work and buys nothing. It can hurt through what weights do not share:
//! caches, memory bandwidth, SMT siblings. So this guard lets batch work run free while the
//! services' pressure (the share of time in which a task waited for a CPU, 0–1) is where it was
//! without batch work, and falls back at once to the configured threshold when it rises.
//!
//! *Baseline.* Each service has its own, because an absolute limit cannot fit: a service whose
//! threads share one CPU shows 28 % with no neighbour at all. It is a slow average with a mean
//! deviation, learned while batch work is idle or held at the threshold (the *protected* state).
//! While batch work runs free the baseline may fall, and rise again to what it was in the protected
//! state, but no higher: slow damage is not learned as normal. A service whose own load grows is
//! learned in the protected state it caused.
//!
//! *Rise.* A sample is high when it exceeds the baseline by more than
//! `max(floor, factor * baseline, deviations * deviation)`. Three high samples out of the last five,
//! or one that exceeds by `strong` times as much, are a rise. A service's first seconds are no rise
//! by a single sample.
//!
//! *Recovery.* After `hold` of calm the cap grows by `raise_percent` every `raise_every_ms` until it
//! is gone. A sample above half the margin takes back twice its time of calm, so that the noise of
//! many services does not hold the cap for ever. A rise soon after a recovery doubles the hold.

use std::collections::BTreeMap;

/// The constants of the rule. Times in milliseconds, pressures 0–1, caps in percent of the node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// The smallest rise over the baseline that counts.
    pub floor: f64,
    /// The smallest rise that counts, relative to the baseline.
    pub factor: f64,
    /// The smallest rise that counts, in mean deviations.
    pub deviations: f64,
    /// How many margins a single sample must exceed to count as a rise by itself.
    pub strong: f64,
    /// The baseline of a service never seen in the protected state.
    pub prior: f64,
    /// No baseline is learned above this.
    pub ceiling: f64,
    /// Share of the difference learned per sample when the pressure is below the baseline.
    pub learn_down: f64,
    /// Share learned per sample when it is above.
    pub learn_up: f64,
    /// A service that used less CPU (milli-cores) is ignored, unless it is starved.
    pub min_used: i64,
    /// How long the pressure must be calm before the cap grows.
    pub hold_ms: u64,
    /// The longest hold after repeated rises.
    pub max_hold_ms: u64,
    /// A rise this soon after a recovery began doubles the hold; a longer calm resets it.
    pub relapse_ms: u64,
    /// By how much the cap grows per step.
    pub raise_percent: i64,
    /// How long a step lasts.
    pub raise_every_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            floor: 0.05,
            factor: 1.0,
            deviations: 4.0,
            strong: 2.5,
            prior: 0.05,
            ceiling: 0.60,
            learn_down: 0.10,
            learn_up: 1.0 / 30.0,
            min_used: 20,
            hold_ms: 10_000,
            max_hold_ms: 300_000,
            relapse_ms: 120_000,
            raise_percent: 5,
            raise_every_ms: 2_000,
        }
    }
}

/// Samples of a new service that cannot be a rise one by one.
const STARTING: u32 = 3;
/// The longest time between two steps that counts as calm.
const MAX_STEP_MS: u64 = 5_000;

/// One service's sample over the last interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<K> {
    /// Which service.
    pub key: K,
    /// Share of the interval in which one of its tasks waited for a CPU.
    pub pressure: f64,
    /// What it used, in milli-cores.
    pub used: i64,
}

/// What the guard knows about one service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Baseline {
    /// The expected pressure.
    pub mean: f64,
    /// The mean absolute deviation from it.
    pub deviation: f64,
    /// Samples learned in the protected state.
    pub learned: u32,
    /// The mean when the protected state last ended.
    reference: f64,
    /// The deviation then.
    reference_deviation: f64,
    /// Samples seen in any state, idle ones included.
    seen: u32,
    /// One bit per recent sample, newest lowest: whether it was high.
    high: u8,
    /// When the service was last seen.
    seen_ms: u64,
}

/// Why the cap came down.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rise<K> {
    /// The service whose pressure rose.
    pub key: K,
    /// Its pressure.
    pub pressure: f64,
    /// What was expected.
    pub baseline: f64,
    /// The margin it exceeded.
    pub margin: f64,
}

/// The guard's verdict for one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision<K> {
    /// `None`: batch work runs on its weight alone. Else everything together may use this much of
    /// the node, in percent.
    pub cap: Option<i64>,
    /// The rise that brought the cap down in this very step.
    pub rise: Option<Rise<K>>,
}

/// What the guard needs to know besides the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input {
    /// The time, in milliseconds of any steady clock.
    pub now_ms: u64,
    /// The configured threshold, in percent of the node.
    pub threshold: i64,
    /// Whether batch work ran in the interval.
    pub batch_active: bool,
    /// Whether somebody else held batch work at the threshold: the guard then learns and does not
    /// judge.
    pub held: bool,
}

/// The state of pressure-guided suppression on one node.
#[derive(Debug, Clone)]
pub struct Guard<K> {
    config: Config,
    services: BTreeMap<K, Baseline>,
    cap: Option<i64>,
    /// How long it has been calm, less twice the time it was not.
    calm_ms: u64,
    stepped_ms: Option<u64>,
    raised_ms: u64,
    recovery_ms: Option<u64>,
    hold_ms: u64,
}

impl<K: Ord + Copy> Guard<K> {
    /// A guard that lets batch work run free until a service complains.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            services: BTreeMap::new(),
            cap: None,
            calm_ms: 0,
            stepped_ms: None,
            raised_ms: 0,
            recovery_ms: None,
            hold_ms: config.hold_ms,
        }
    }

    /// The present cap.
    #[must_use]
    pub fn cap(&self) -> Option<i64> {
        self.cap
    }

    /// Forgets the cap: batch work runs free for a reason that is not ours, such as suppression
    /// being switched off. What was learned about the services stays.
    pub fn release(&mut self) {
        self.cap = None;
        self.calm_ms = 0;
        self.recovery_ms = None;
        self.hold_ms = self.config.hold_ms;
    }

    /// What is expected of `key`.
    #[must_use]
    pub fn baseline(&self, key: K) -> Option<&Baseline> {
        self.services.get(&key)
    }

    /// Takes in one interval's samples and decides.
    pub fn step(&mut self, input: Input, samples: &[Sample<K>]) -> Decision<K> {
        let Input {
            now_ms,
            threshold,
            batch_active,
            held: outside,
        } = input;
        let held = outside || self.cap.is_some_and(|cap| cap <= threshold);
        let protected = !batch_active || held;
        let config = self.config;
        let mut worst: Option<Rise<K>> = None;
        let mut calm = true;
        for sample in samples {
            let pressure = sample.pressure.clamp(0.0, 1.0);
            let service = self.services.entry(sample.key).or_insert(Baseline {
                mean: config.prior,
                deviation: 0.0,
                learned: 0,
                reference: config.prior,
                reference_deviation: 0.0,
                seen: 0,
                high: 0,
                seen_ms: now_ms,
            });
            service.seen_ms = now_ms;
            service.seen = service.seen.saturating_add(1);
            if !sample.pressure.is_finite() || (sample.used < config.min_used && pressure < 0.5) {
                service.high <<= 1;
                continue;
            }
            let margin = margin(&config, service);
            let excess = pressure - service.mean;
            // Only with batch work running a high sample says something about batch work.
            let judged = batch_active && !outside;
            service.high = (service.high << 1) | u8::from(judged && excess > margin);
            let repeated = (service.high & 0b1_1111).count_ones() >= 3 && service.high & 1 == 1;
            // A service whose pressure cannot rise above its margin has no vote: it would hold the
            // cap for ever.
            if excess > margin / 2.0 && service.mean + margin < 1.0 {
                calm = false;
            }
            // The first seconds of a service are its start: one sample of them is no rise.
            let strong = excess > margin * config.strong && service.seen > STARTING;
            if judged && (repeated || strong) {
                let rise = Rise {
                    key: sample.key,
                    pressure,
                    baseline: service.mean,
                    margin,
                };
                if worst.is_none_or(|w| excess - margin > w.pressure - w.baseline - w.margin) {
                    worst = Some(rise);
                }
            }
            learn(&config, service, pressure, protected);
        }
        self.services
            .retain(|_, service| now_ms.saturating_sub(service.seen_ms) <= 600_000);
        let passed = self
            .stepped_ms
            .map_or(0, |last| now_ms.saturating_sub(last).min(MAX_STEP_MS));
        self.stepped_ms = Some(now_ms);
        // Noise of many services must not hold the cap for ever: a sample that is not calm takes
        // back some of the calm before it, not all.
        self.calm_ms = if calm {
            self.calm_ms.saturating_add(passed).min(self.hold_ms)
        } else {
            self.calm_ms.saturating_sub(passed.saturating_mul(2))
        };
        let rise = self.advance(now_ms, threshold, worst, calm);
        Decision {
            cap: self.cap,
            rise,
        }
    }

    fn advance(
        &mut self,
        now_ms: u64,
        threshold: i64,
        worst: Option<Rise<K>>,
        calm: bool,
    ) -> Option<Rise<K>> {
        let config = self.config;
        // The configured threshold is the floor of the cap, also when it was changed just now.
        self.cap = self.cap.map(|cap| cap.max(threshold));
        if let Some(rise) = worst {
            self.calm_ms = 0;
            if self.cap == Some(threshold) {
                return None;
            }
            self.hold_ms = match self.recovery_ms {
                Some(at) if now_ms.saturating_sub(at) < config.relapse_ms.max(self.hold_ms) => {
                    (self.hold_ms * 2).min(config.max_hold_ms)
                }
                _ => config.hold_ms,
            };
            self.recovery_ms = None;
            self.cap = Some(threshold);
            return Some(rise);
        }
        if let Some(cap) = self.cap
            && calm
            && self.calm_ms >= self.hold_ms
            && now_ms.saturating_sub(self.raised_ms) >= config.raise_every_ms
        {
            self.recovery_ms.get_or_insert(now_ms);
            self.raised_ms = now_ms;
            let cap = cap + config.raise_percent;
            self.cap = (cap < 100).then_some(cap);
        }
        None
    }
}

fn margin(config: &Config, service: &Baseline) -> f64 {
    config
        .floor
        .max(config.factor * service.mean)
        .max(config.deviations * service.deviation)
}

fn learn(config: &Config, service: &mut Baseline, pressure: f64, protected: bool) {
    let difference = pressure - service.mean;
    if protected {
        service.learned = service.learned.saturating_add(1);
        // The first samples count alike, so that a new service is known within seconds.
        let warm = 1.0 / f64::from(service.learned.min(10_000));
        let rate = if difference < 0.0 {
            config.learn_down
        } else {
            config.learn_up
        };
        let rate = if service.learned <= 10 {
            rate.max(warm)
        } else {
            rate
        };
        service.mean = (service.mean + rate * difference).clamp(0.0, config.ceiling);
        let spread = difference.abs() - service.deviation;
        let rate = if service.learned <= 10 {
            0.1
        } else {
            config.learn_up
        };
        service.deviation = (service.deviation + rate * spread).clamp(0.0, config.ceiling / 4.0);
        service.reference = service.mean;
        service.reference_deviation = service.deviation;
        return;
    }
    // Batch work runs free: both may fall, and rise again to what they were, but no higher.
    let spread = difference.abs() - service.deviation;
    let top = service.reference_deviation.max(service.deviation);
    service.deviation = (service.deviation + config.learn_up / 2.0 * spread).min(top);
    if difference < 0.0 {
        service.mean += config.learn_down / 2.0 * difference;
    } else {
        let top = service.reference.max(service.mean);
        service.mean = (service.mean + config.learn_up / 2.0 * difference).min(top);
    }
}

/// When a quota may be written again: each write refills the group's bandwidth pool, so writing
/// too often gives batch work more than the quota says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteGate {
    min_interval_ms: u64,
    last_ms: Option<u64>,
}

impl WriteGate {
    /// At least `periods` CFS periods between two writes that move an existing quota.
    #[must_use]
    pub fn new(periods: u64) -> Self {
        let period_ms = (crate::suppress::CFS_PERIOD_US / 1000) as u64;
        Self {
            min_interval_ms: periods * period_ms,
            last_ms: None,
        }
    }

    /// Whether a write at `now_ms` is allowed. `urgent` writes (a first cap, or none at all) are.
    #[must_use]
    pub fn allows(&self, now_ms: u64, urgent: bool) -> bool {
        // A tenth of a period of tolerance, so that a loop of exactly the interval is not halved.
        let since = self.last_ms.map(|last| now_ms.saturating_sub(last) + 10);
        urgent || since.is_none_or(|since| since >= self.min_interval_ms)
    }

    /// Records a write.
    pub fn wrote(&mut self, now_ms: u64) {
        self.last_ms = Some(now_ms);
    }
}

impl Default for WriteGate {
    fn default() -> Self {
        Self::new(10)
    }
}

#[cfg(test)]
mod tests;
