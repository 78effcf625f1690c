//! Simulates a small node: services with a stall of their own, and batch work that harms them as a
//! scenario specifies.

use crate::guard::{
    Config, Decision, Event, EventKind, Guard, Input, Lever, LeverSettings, Readings,
    ServiceSample, Signal,
};

use std::collections::BTreeMap;

/// Length of the window of a reading, in seconds.
const WINDOW: usize = 10;

/// SplitMix64: random numbers that a seed reproduces.
#[derive(Debug, Clone)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number that is about normally distributed, with mean 0 and deviation 1.
    pub(super) fn bell(&mut self) -> f64 {
        (0..12).map(|_| self.roll()).sum::<f64>() - 6.0
    }
}

/// The signals of a service in a second without batch work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own {
    pub(super) vote: f64,
    pub(super) load: i64,
    pub(super) stall: f64,
    pub(super) throttled: f64,
    pub(super) present: bool,
}

pub(super) const CALM: Own = Own {
    vote: 1.0,
    load: 500,
    stall: 0.02,
    throttled: 0.0,
    present: true,
};

/// State of a second, as recorded for scenarios.
#[derive(Debug)]
pub(super) struct Second<'a> {
    pub(super) at: u64,
    pub(super) service: usize,
    /// CPU use of batch work, as a share of the node.
    pub(super) batch: f64,
    pub(super) settings: &'a LeverSettings<usize>,
}

impl Second<'_> {
    pub(super) fn idle(&self) -> bool {
        self.settings.idle
    }
}

pub(super) type OwnOf = Box<dyn Fn(u64, usize, &mut Dice) -> Own>;
pub(super) type HarmOf = Box<dyn Fn(&Second<'_>) -> f64>;

/// The simulated node.
pub(super) struct Plant {
    pub(super) guard: Guard<usize>,
    pub(super) services: usize,
    /// CPU demand of batch work by the second, as a share of the node.
    pub(super) demand: Box<dyn Fn(u64) -> f64>,
    pub(super) own: OwnOf,
    /// Stall that batch work adds to a service.
    pub(super) harm: HarmOf,
    pub(super) noise: f64,
    pub(super) levers: Vec<Lever>,
    pub(super) sees_bandwidth: bool,
    pub(super) signal: Signal,
    /// Seconds between readings; a reading is the mean of the newest seconds.
    pub(super) every: u64,
    values: BTreeMap<usize, Vec<f64>>,
    pub(super) dice: Dice,
    pub(super) at: u64,
    pub(super) settings: LeverSettings<usize>,
    pub(super) log: Vec<(u64, Event<usize>)>,
}

pub(super) const THRESHOLD: i64 = 65;

/// Results of a stretch of time.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) seconds: f64,
    /// Share of the time in which batch work was capped or partitioned, and what it got on average.
    pub(super) capped: f64,
    pub(super) batch: f64,
    pub(super) paused: f64,
    /// Share of the seconds in which some service was harmed by more than 0.04.
    pub(super) harmed: f64,
    pub(super) idle: f64,
}

impl Plant {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            guard: Guard::new(Config::default()),
            services: 1,
            demand: Box::new(|_| 0.9),
            own: Box::new(|_, _, _| CALM),
            harm: Box::new(|_| 0.0),
            noise: 0.004,
            levers: vec![Lever::Idle, Lever::Partition, Lever::Quota],
            sees_bandwidth: true,
            signal: Signal::CpuStall,
            every: 1,
            values: BTreeMap::new(),
            dice: Dice(seed),
            at: 0,
            settings: LeverSettings::default(),
            log: Vec::new(),
        }
    }

    pub(super) fn harm(mut self, harm: impl Fn(&Second<'_>) -> f64 + 'static) -> Self {
        self.harm = Box::new(harm);
        self
    }

    pub(super) fn own(mut self, own: impl Fn(u64, usize, &mut Dice) -> Own + 'static) -> Self {
        self.own = Box::new(own);
        self
    }

    pub(super) fn demand(mut self, demand: impl Fn(u64) -> f64 + 'static) -> Self {
        self.demand = Box::new(demand);
        self
    }

    pub(super) fn services(mut self, services: usize) -> Self {
        self.services = services;
        self
    }

    pub(super) fn levers(mut self, levers: &[Lever]) -> Self {
        self.levers = levers.to_vec();
        self
    }

    pub(super) fn second(&mut self, sum: &mut Stretch) {
        self.at += 1;
        let limit = if self.settings.pause {
            0.0
        } else {
            self.settings.cap.map_or(1.0, |cap| cap as f64 / 100.0)
        };
        let batch = (self.demand)(self.at).min(limit.max(0.002));
        let mut samples = Vec::new();
        let mut harmed = false;
        for service in 0..self.services {
            let own = (self.own)(self.at, service, &mut self.dice);
            let second = Second {
                at: self.at,
                service,
                batch,
                settings: &self.settings,
            };
            let harm = (self.harm)(&second);
            harmed |= harm > 0.04;
            let noise = self.noise * self.dice.bell();
            let value = (own.stall + own.throttled + harm + noise).clamp(0.0, 1.0);
            let values = self.values.entry(service).or_default();
            values.push(value);
            let reading = self.at.is_multiple_of(self.every).then(|| {
                let newest = values.len().saturating_sub(WINDOW);
                let window = values.split_off(newest);
                values.clear();
                let n = window.len() as f64;
                window.into_iter().sum::<f64>() / n
            });
            if own.present {
                samples.push(ServiceSample {
                    key: service,
                    vote: own.vote,
                    load: own.load,
                    throttled: own.throttled,
                    readings: Readings::default().with(self.signal, reading),
                });
            }
        }
        let capped = self.settings.is_costly() && !self.settings.pause;
        sum.seconds += 1.0;
        sum.capped += f64::from(u8::from(capped));
        sum.paused += f64::from(u8::from(self.settings.pause));
        sum.idle += f64::from(u8::from(self.settings.idle));
        sum.harmed += f64::from(u8::from(harmed));
        sum.batch += batch;
        let input = Input {
            now_ms: self.at * 1000,
            threshold: THRESHOLD,
            batch_ran: batch > 0.01,
            held: false,
            levers: &self.levers,
            sees_bandwidth: self.sees_bandwidth,
            dice: self.dice.roll(),
        };
        let Decision {
            settings, events, ..
        } = self.guard.step(&input, &samples);
        self.log
            .extend(events.into_iter().map(|event| (self.at, event)));
        self.settings = settings;
    }

    /// Simulates this number of seconds.
    pub(super) fn run(&mut self, seconds: u64) -> Stretch {
        let mut sum = Stretch::default();
        for _ in 0..seconds {
            self.second(&mut sum);
        }
        let n = sum.seconds;
        for value in [
            &mut sum.capped,
            &mut sum.batch,
            &mut sum.paused,
            &mut sum.harmed,
            &mut sum.idle,
        ] {
            *value /= n;
        }
        sum
    }

    pub(super) fn count(&self, kind: impl Fn(&EventKind) -> bool) -> usize {
        self.log
            .iter()
            .filter(|(_, event)| kind(&event.kind))
            .count()
    }

    pub(super) fn tried(&self, lever: Lever) -> usize {
        let tried = |(_, event): &&(u64, Event<usize>)| {
            event.lever == lever && matches!(event.kind, EventKind::Tried { .. })
        };
        self.log.iter().filter(tried).count()
    }
}

/// Creates a service that bursts once in each stretch of `every` seconds, at a random time: for `long`
/// seconds, by `high`.
pub(super) fn bursts(seed: u64, every: u64, long: u64, high: f64) -> impl Fn(u64, usize) -> f64 {
    move |at, service| {
        let mut dice = Dice(seed ^ (service as u64) << 40 ^ (at / every) << 20);
        let begins = (dice.roll() * (every - long) as f64) as u64;
        let burst = (begins..begins + long).contains(&(at % every));
        if burst { high } else { 0.0 }
    }
}
