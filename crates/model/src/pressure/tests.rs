use super::*;
use proptest::prelude::*;

/// A small deterministic source of noise in 0–1.
struct Noise(u64);
impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

struct Sim {
    guard: Guard<u8>,
    noise: Noise,
    second: u64,
    rises: Vec<u64>,
    free: u64,
}

impl Sim {
    fn new() -> Self {
        let guard = Guard::new(Config::default());
        Self {
            guard,
            noise: Noise(7),
            second: 0,
            rises: Vec::new(),
            free: 0,
        }
    }

    /// Runs `seconds` with batch work or without; `pressure` sees whether batch work is free.
    fn run(&mut self, seconds: u64, batch: bool, mut pressure: impl FnMut(bool, f64) -> f64) {
        for _ in 0..seconds {
            self.second += 1;
            let free = self.guard.cap().is_none();
            let pressure = pressure(free && batch, self.noise.next());
            let input = Input {
                now_ms: self.second * 1000,
                threshold: 65,
                batch_active: batch,
                held: false,
            };
            let sample = Sample {
                key: 1,
                pressure,
                used: 500,
            };
            let decision = self.guard.step(input, &[sample]);
            if decision.rise.is_some() {
                self.rises.push(self.second);
                assert_eq!(decision.cap, Some(65));
            }
            self.free += u64::from(decision.cap.is_none());
        }
    }
}

#[test]
fn harmless_neighbours_are_never_capped() {
    let mut sim = Sim::new();
    sim.run(30, false, |_, n| 0.01 + 0.01 * n);
    // Half an hour of batch work; one second in fifty the host steals some time.
    sim.run(
        1800,
        true,
        |_, n| if n > 0.98 { 0.09 } else { 0.01 + 0.015 * n },
    );
    assert!(sim.rises.is_empty(), "{:?}", sim.rises);
}

#[test]
fn no_quiet_time_is_needed_to_begin() {
    let mut sim = Sim::new();
    sim.run(600, true, |_, n| 0.01 + 0.02 * n);
    assert!(sim.rises.is_empty());
    assert_eq!(sim.free, 600);
}

#[test]
fn a_harmful_neighbour_is_capped_at_once_and_seldom_tried_again() {
    let mut sim = Sim::new();
    sim.run(30, false, |_, n| 0.01 + 0.01 * n);
    sim.run(1200, true, |free, n| {
        if free {
            0.18 + 0.04 * n
        } else {
            0.01 + 0.02 * n
        }
    });
    assert!(sim.rises[0] <= 32, "{:?}", sim.rises);
    // Each relapse doubles the hold, so batch work is free for a small part of the time only.
    assert!(
        sim.free < 30 + 40,
        "free for {} s, rises {:?}",
        sim.free,
        sim.rises
    );
    assert!(sim.rises.len() <= 12, "{:?}", sim.rises);
}

#[test]
fn a_high_baseline_is_learned() {
    let mut sim = Sim::new();
    sim.run(60, false, |_, n| 0.22 + 0.12 * n);
    sim.run(600, true, |_, n| 0.22 + 0.12 * n);
    assert!(sim.rises.is_empty(), "{:?}", sim.rises);
    assert!(sim.guard.baseline(1).is_some_and(|b| b.mean > 0.2));
}

#[test]
fn growing_load_of_the_service_itself_is_learned_under_the_cap() {
    let mut sim = Sim::new();
    sim.run(60, false, |_, n| 0.01 + 0.01 * n);
    // From now on the service shows 20 % whatever batch work does.
    sim.run(300, true, |_, n| 0.19 + 0.02 * n);
    assert_eq!(sim.rises.len(), 1);
    assert_eq!(sim.guard.cap(), None, "the cap was in vain and is gone");
}

#[test]
fn a_baseline_spoilt_by_other_neighbours_heals() {
    let mut sim = Sim::new();
    sim.run(60, false, |_, n| 0.17 + 0.02 * n);
    sim.run(60, true, |_, n| 0.01 + 0.01 * n);
    assert!(sim.guard.baseline(1).is_some_and(|b| b.mean < 0.03));
    // And a later rise is seen.
    sim.run(3, true, |free, _| if free { 0.2 } else { 0.02 });
    assert_eq!(sim.rises.len(), 1);
}

#[test]
fn slow_damage_is_not_learned_as_normal() {
    let mut sim = Sim::new();
    sim.run(60, false, |_, n| 0.01 + 0.01 * n);
    let mut level = 0.015;
    sim.run(1800, true, |free, _| {
        level += 0.0001;
        if free { level } else { 0.015 }
    });
    assert!(!sim.rises.is_empty());
}

#[test]
fn idle_services_do_not_vote() {
    let mut guard = Guard::new(Config::default());
    let input = |s: u64| Input {
        now_ms: s * 1000,
        threshold: 65,
        batch_active: true,
        held: false,
    };
    for s in 0..10 {
        let decision = guard.step(
            input(s),
            &[Sample {
                key: 1,
                pressure: 0.4,
                used: 3,
            }],
        );
        assert_eq!(decision.cap, None);
    }
    let starved = Sample {
        key: 1,
        pressure: 0.97,
        used: 3,
    };
    assert!(guard.step(input(11), &[starved]).rise.is_some());
    let broken = Sample {
        key: 2,
        pressure: f64::NAN,
        used: 500,
    };
    assert!(guard.step(input(12), &[broken]).rise.is_none());
}

fn step_with(guard: &mut Guard<u8>, second: u64, samples: &[Sample<u8>]) -> Decision<u8> {
    let input = Input {
        now_ms: second * 1000,
        threshold: 65,
        batch_active: true,
        held: false,
    };
    guard.step(input, samples)
}

fn sample(key: u8, pressure: f64, used: i64) -> Sample<u8> {
    Sample {
        key,
        pressure,
        used,
    }
}

#[test]
fn a_pod_that_is_always_under_pressure_does_not_hold_the_cap() {
    let mut sim = Sim::new();
    sim.run(30, false, |_, _| 0.01);
    // From now on a CPU hog as "service": its pressure is 1 with or without batch work.
    sim.run(120, true, |_, _| 1.0);
    assert_eq!(sim.guard.cap(), None, "{:?}", sim.rises);
    assert_eq!(sim.rises.len(), 1);
}

#[test]
fn the_start_of_a_service_is_no_rise() {
    let mut guard = Guard::new(Config::default());
    for second in 0..60 {
        let started = [sample(1, 0.01, 500), sample(2, 0.9, 500)];
        let quiet = [sample(1, 0.01, 500), sample(2, 0.02, 500)];
        let samples = if second == 30 { started } else { quiet };
        let known = if second < 30 { 1 } else { 2 };
        let decision = step_with(&mut guard, second, &samples[..known]);
        assert_eq!(decision.cap, None, "second {second}");
    }
}

#[test]
fn a_long_lull_does_not_lose_the_baseline() {
    let mut guard = Guard::new(Config::default());
    let mut second = 0;
    for _ in 0..60 {
        second += 1;
        let input = Input {
            now_ms: second * 1000,
            threshold: 65,
            batch_active: false,
            held: false,
        };
        guard.step(input, &[sample(1, 0.25, 500)]);
    }
    for _ in 0..1200 {
        second += 1;
        step_with(&mut guard, second, &[sample(1, 0.0, 2)]);
    }
    for _ in 0..30 {
        second += 1;
        let decision = step_with(&mut guard, second, &[sample(1, 0.27, 500)]);
        assert_eq!(decision.cap, None);
    }
}

#[test]
fn noise_of_many_services_does_not_hold_the_cap() {
    let mut guard = Guard::new(Config::default());
    let mut noise = Noise(11);
    let mut freed = None;
    for second in 0..180_u64 {
        let bad = (30..33).contains(&second);
        let samples: Vec<_> = (0..30)
            .map(|key| {
                let n = noise.next();
                let pressure = match (bad, n > 0.995) {
                    (true, _) => 0.4,
                    (_, true) => 0.06,
                    _ => 0.01 + 0.01 * n,
                };
                sample(key, pressure, 500)
            })
            .collect();
        let cap = step_with(&mut guard, second, &samples).cap;
        if second > 33 && cap.is_none() {
            freed.get_or_insert(second);
        }
    }
    assert!(freed.is_some_and(|second| second < 90), "{freed:?}");
}

#[test]
fn a_noisy_time_does_not_blind_the_guard() {
    let mut sim = Sim::new();
    let mut flip = false;
    sim.run(60, false, |_, _| {
        flip = !flip;
        if flip { 0.5 } else { 0.0 }
    });
    assert!(sim.guard.baseline(1).is_some_and(|b| b.deviation > 0.1));
    sim.run(240, true, |_, n| 0.01 + 0.01 * n);
    assert!(sim.guard.baseline(1).is_some_and(|b| b.deviation < 0.02));
    let before = sim.rises.len();
    sim.run(3, true, |_, _| 0.2);
    assert_eq!(sim.rises.len(), before + 1);
}

#[test]
fn a_released_guard_has_no_cap() {
    let mut sim = Sim::new();
    sim.run(30, false, |_, _| 0.01);
    sim.run(2, true, |_, _| 0.4);
    assert!(sim.guard.cap().is_some());
    sim.guard.release();
    assert_eq!(sim.guard.cap(), None);
    assert!(sim.guard.baseline(1).is_some());
}

#[test]
fn recovery_is_stepwise() {
    let mut sim = Sim::new();
    sim.run(30, false, |_, _| 0.01);
    sim.run(2, true, |_, _| 0.4);
    assert_eq!(sim.guard.cap(), Some(65));
    let mut caps = Vec::new();
    for _ in 0..40 {
        sim.run(1, true, |_, _| 0.01);
        if caps.last() != Some(&sim.guard.cap()) {
            caps.push(sim.guard.cap());
        }
    }
    let want = [65, 70, 75, 80, 85, 90, 95].map(Some);
    assert_eq!(caps[..7], want);
    assert_eq!(caps[7..], [None]);
}

#[test]
fn writes_are_spaced() {
    let mut gate = WriteGate::default();
    assert!(gate.allows(0, false));
    gate.wrote(0);
    assert!(!gate.allows(500, false));
    assert!(gate.allows(500, true));
    assert!(gate.allows(995, false));
}

proptest! {
    #[test]
    fn the_cap_stays_between_threshold_and_whole_node(
        pressures in prop::collection::vec((0.0..1.0_f64, any::<bool>()), 1..300),
        threshold in 1_i64..100,
    ) {
        let mut guard = Guard::new(Config::default());
        let mut before = None;
        for (i, (pressure, active)) in pressures.into_iter().enumerate() {
            let input = Input { now_ms: i as u64 * 1000, threshold, batch_active: active, held: false };
            let decision =
                guard.step(input, &[Sample { key: 1_u8, pressure, used: 500 }]);
            if let Some(cap) = decision.cap {
                prop_assert!((threshold..100.max(threshold + 1)).contains(&cap));
            }
            if decision.rise.is_some() {
                prop_assert_eq!(decision.cap, Some(threshold));
            }
            // It only falls by a rise, and grows by at most one step.
            if decision.rise.is_none() {
                let (was, is) = (before.flatten().unwrap_or(100), decision.cap.unwrap_or(100));
                prop_assert!(before.is_none() || is >= was);
                prop_assert!(before.is_none() || is - was <= Config::default().raise_percent);
            }
            before = Some(decision.cap);
        }
    }
}
