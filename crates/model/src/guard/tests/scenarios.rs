//! Tests what the guard must do and must not do, each scenario with many seeds.

use super::plant::{CALM, Dice, Own, Plant, Stretch, bursts};
use crate::guard::{EventKind, Lever, Signal, Verdict};

const SEEDS: std::ops::Range<u64> = 0..8;
const HOUR: u64 = 3600;

fn over(at: f64, height: f64) -> impl Fn(&super::plant::Second<'_>) -> f64 {
    move |second| if second.batch > at { height } else { 0.0 }
}

/// A previous rule learned this harm as normal within 37 s.
#[test]
fn persistent_harm_is_never_learned_as_normal() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed).harm(over(0.2, 0.3));
        plant.run(120);
        let later = plant.run(2 * HOUR);
        assert!(later.harmed < 0.05, "seed {seed}: {later:?}");
        assert!(
            later.batch < 0.25 && later.batch > 0.12,
            "seed {seed}: {later:?}"
        );
        assert!(plant.count(|k| matches!(k, EventKind::Confirmed { .. })) > 0);
    }
}

/// The service stalls 1 % without harm and 9.5 % with harm, and was never observed without batch work.
#[test]
fn service_started_during_batch_work_is_protected() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed)
            .own(|_, _, _| Own {
                stall: 0.01,
                ..CALM
            })
            .harm(over(0.3, 0.085));
        plant.run(120);
        let later = plant.run(HOUR);
        assert!(later.harmed < 0.05, "seed {seed}: {later:?}");
    }
}

/// A harmed service as above, with harm below the default expectation of an unknown service: pauses
/// find it.
#[test]
fn pauses_find_small_harm_present_from_the_start() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed)
            .own(|_, _, _| Own {
                stall: 0.005,
                ..CALM
            })
            .harm(over(0.3, 0.045));
        let first = plant.run(60);
        assert!(first.harmed > 0.9, "the scenario does not apply: {first:?}");
        plant.run(HOUR / 2);
        let later = plant.run(HOUR);
        assert!(later.harmed < 0.05, "seed {seed}: {later:?}");
    }
}

/// A service whose threads share a CPU has high pressure without batch work.
#[test]
fn high_baseline_does_not_hide_harm() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed)
            .own(|_, _, _| Own {
                stall: 0.55,
                ..CALM
            })
            .demand(|at| if at > 120 { 0.9 } else { 0.0 })
            .harm(over(0.3, 0.45));
        plant.run(120);
        let first = plant.run(60);
        assert!(first.harmed > 0.0, "{first:?}");
        let later = plant.run(HOUR);
        assert!(later.harmed < 0.05, "seed {seed}: {later:?}");
    }
}

/// A previous rule held the cap 97 % of the time with ten services, 99 % with more.
#[test]
fn benign_bursts_of_many_services_do_not_hold_the_cap() {
    for services in [1, 10, 100] {
        for (long, every) in [(2, 600), (10, 600), (30, 1800)] {
            let mut sum = Stretch::default();
            for seed in 0..2 {
                let burst = bursts(seed, every, long, 0.3);
                let mut plant = Plant::new(seed)
                    .services(services)
                    .own(move |at, service, _| Own {
                        stall: 0.02 + burst(at, service),
                        ..CALM
                    });
                let run = plant.run(HOUR);
                sum.capped = sum.capped.max(run.capped);
                sum.batch += run.batch / 2.0;
                let alarms = plant.count(|k| matches!(k, EventKind::Tried { .. }));
                assert!(long == 2 || alarms > 0, "no alarm rang in {long} s bursts");
            }
            let context = format!("{services} services, {long} s each {every} s: {sum:?}");
            assert!(sum.capped < 0.035, "{context}");
            assert!(sum.batch > 0.865, "{context}");
        }
    }
}

#[test]
fn throttled_service_raises_no_alarm() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed).own(|at, _, _| Own {
            throttled: if at % 40 < 20 { 0.4 } else { 0.0 },
            ..CALM
        });
        let run = plant.run(HOUR);
        assert_eq!(plant.count(|_| true), 0, "seed {seed}");
        assert_eq!(run.capped, 0.0, "seed {seed}");
    }
}

/// A harmed log shipper costs batch work little, a payment service as much as it needs, and a pod without
/// a vote nothing.
#[test]
fn vote_limits_the_cap() {
    let mut means = Vec::new();
    for vote in [1.0, 0.25, 0.0] {
        let mut mean = 0.0;
        for seed in SEEDS {
            let mut plant = Plant::new(seed)
                .own(move |_, _, _| Own { vote, ..CALM })
                .harm(over(0.3, 0.3));
            plant.run(120);
            mean += plant.run(HOUR).batch / 8.0;
        }
        means.push(mean);
    }
    assert!(means[0] < 0.35, "{means:?}");
    assert!((0.7..0.95).contains(&means[1]), "{means:?}");
    assert!(means[2] > 0.89, "{means:?}");
}

#[test]
fn harm_above_a_level_converges_below_it_and_stays() {
    for at in [0.45, 0.6, 0.8] {
        for seed in SEEDS {
            let mut plant = Plant::new(seed).harm(over(at, 0.25));
            plant.run(300);
            let later = plant.run(HOUR);
            let context = format!("harm over {at}, seed {seed}: {later:?}");
            assert!(later.harmed < 0.04, "{context}");
            assert!(
                later.batch > at - 0.11 && later.batch < at + 0.02,
                "{context}"
            );
        }
    }
}

#[test]
fn unrelated_stall_is_released_and_muted() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed).own(|at, _, _| Own {
            stall: if at > 60 { 0.4 } else { 0.02 },
            ..CALM
        });
        let run = plant.run(4 * HOUR);
        assert!(run.capped < 0.01, "seed {seed}: {run:?}");
        let mutes = plant.count(|k| matches!(k, EventKind::Muted { .. }));
        assert_eq!(mutes, 1, "the cap has shown how it is without batch work");
        assert_eq!(plant.count(|k| matches!(k, EventKind::Confirmed { .. })), 0);
    }
}

/// An alarm as above on a node where no lever stops batch work, so that nothing is learned.
#[test]
fn mutes_get_longer_while_an_alarm_has_no_cause() {
    for seed in SEEDS {
        let levers = [Lever::Idle, Lever::Partition];
        let mut plant = Plant::new(seed)
            .levers(&levers)
            .own(|_, _, _| Own { stall: 0.4, ..CALM });
        let run = plant.run(4 * HOUR);
        assert!(run.capped < 0.01, "seed {seed}: {run:?}");
        // Each mute is twice as long, up to an hour: 2+4+8+16+32+60+60+60 minutes.
        let mutes = plant.count(|k| matches!(k, EventKind::Muted { .. }));
        assert!((7..=9).contains(&mutes), "seed {seed}: {mutes}");
        let state = plant.guard.services().next().unwrap();
        assert_eq!(state.verdict, Verdict::Muted);
        assert!(!state.last.unwrap().helped);
    }
}

#[test]
fn levers_are_tried_in_order_of_cost() {
    for (helps, untouched) in [
        (Lever::Idle, vec![Lever::Partition, Lever::Quota]),
        (Lever::Partition, vec![Lever::Quota]),
    ] {
        for seed in SEEDS {
            let mut plant = Plant::new(seed).harm(move |second| {
                let off = match helps {
                    Lever::Idle => second.idle(),
                    _ => second.settings.partition.contains(&second.service),
                };
                if second.batch > 0.1 && !off { 0.2 } else { 0.0 }
            });
            plant.run(120);
            let later = plant.run(HOUR);
            assert!(later.harmed < 0.04, "{helps}, seed {seed}: {later:?}");
            assert!(later.batch > 0.88, "{helps}, seed {seed}: {later:?}");
            assert!(plant.tried(helps) > 0);
            for lever in &untouched {
                assert_eq!(plant.tried(*lever), 0, "{lever}, seed {seed}");
            }
        }
    }
}

#[test]
fn missing_lever_is_not_tried() {
    let levers = [Lever::Quota];
    let mut plant = Plant::new(1).levers(&levers).harm(over(0.5, 0.3));
    let run = plant.run(HOUR);
    assert_eq!(run.idle, 0.0);
    assert!(plant.tried(Lever::Quota) > 0);
    let mut none = Plant::new(1).levers(&[]).harm(over(0.5, 0.3));
    let run = none.run(HOUR);
    assert_eq!((run.capped, run.paused), (0.0, 0.0));
    assert!(none.count(|k| matches!(k, EventKind::Muted { .. })) > 0);
}

#[test]
fn batch_work_is_unlimited_after_harm_ends() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed).harm(|second| {
            if second.at < 1200 && second.batch > 0.4 {
                0.3
            } else {
                0.0
            }
        });
        let harmed = plant.run(1200);
        assert!(harmed.capped > 0.5, "seed {seed}: {harmed:?}");
        plant.run(HOUR / 2);
        let later = plant.run(HOUR);
        assert_eq!(later.capped, 0.0, "seed {seed}: {later:?}");
        assert!(plant.count(|k| *k == EventKind::Over) > 0);
    }
}

#[test]
fn recurring_harm_reapplies_helpful_lever() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed).harm(|second| {
            let on = second.at < 600 || second.at > 3000;
            let off = second.settings.partition.contains(&second.service);
            if on && second.batch > 0.1 && !off {
                0.3
            } else {
                0.0
            }
        });
        plant.run(3000);
        let before = (plant.tried(Lever::Idle), plant.tried(Lever::Partition));
        let second_run = plant.run(600);
        let after = (plant.tried(Lever::Idle), plant.tried(Lever::Partition));
        assert_eq!(after.0, before.0, "seed {seed}");
        assert!(after.1 > before.1, "seed {seed}");
        assert!(second_run.harmed < 0.04, "seed {seed}: {second_run:?}");
    }
}

/// A service stalls more when it has more load, with and without batch work.
#[test]
fn service_is_compared_at_equal_load() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed).own(|at, _, _| {
            let busy = at % 120 < 40;
            Own {
                load: if busy { 1800 } else { 150 },
                stall: if busy { 0.16 } else { 0.02 },
                ..CALM
            }
        });
        let first = plant.run(HOUR);
        let later = plant.run(2 * HOUR);
        assert!(first.capped < 0.03, "seed {seed}: {first:?}");
        assert!(later.capped < 0.005, "seed {seed}: {later:?}");
    }
}

#[test]
fn noise_costs_little_batch_work() {
    for services in [1, 30] {
        for seed in SEEDS {
            let mut plant = Plant::new(seed).services(services);
            plant.noise = 0.03;
            let run = plant.run(HOUR);
            assert!(
                run.capped < 0.03,
                "{services} services, seed {seed}: {run:?}"
            );
        }
    }
}

#[test]
fn harm_is_found_in_noise() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed)
            .demand(|at| if at > 120 { 0.9 } else { 0.0 })
            .harm(over(0.5, 0.3));
        plant.noise = 0.03;
        plant.run(600);
        let later = plant.run(HOUR);
        assert!(later.harmed < 0.1, "seed {seed}: {later:?}");
    }
}

/// A service or its signal disappears in the middle of an experiment, or while a lever is held.
#[test]
fn missing_service_or_signal_holds_no_lever() {
    for gone_at in 12..40 {
        let mut plant = Plant::new(gone_at)
            .own(move |at, _, _| Own {
                present: at < gone_at,
                ..CALM
            })
            .harm(over(0.1, 0.4));
        plant.run(gone_at + 6);
        let later = plant.run(60);
        assert_eq!((later.capped, later.idle), (0.0, 0.0), "gone at {gone_at}");
        assert_eq!(plant.guard.services().count(), 0);
    }
}

#[test]
fn pauses_stay_within_their_share() {
    for services in [1, 50] {
        for seed in SEEDS {
            let mut plant = Plant::new(seed)
                .services(services)
                .own(|at, service, _| Own {
                    load: 20 << ((at / 500 + service as u64) % 8),
                    ..CALM
                });
            let run = plant.run(2 * HOUR);
            let (paused, ran) = plant.guard.paused();
            assert!(
                paused as f64 <= 0.005 * ran as f64,
                "{services}, {seed}: {paused} of {ran}"
            );
            assert!(run.paused > 0.002, "no pause came: {run:?}");
        }
    }
}

#[test]
fn blind_node_starts_at_the_threshold_and_raises_the_cap() {
    let mut plant = Plant::new(3);
    plant.sees_bandwidth = false;
    let mut sum = Stretch::default();
    plant.second(&mut sum);
    assert_eq!(plant.settings.cap, Some(super::plant::THRESHOLD));
    let mut last = 0;
    for _ in 0..60 {
        plant.second(&mut sum);
        let cap = plant.settings.cap.unwrap_or(100);
        assert!(cap >= last);
        last = cap;
    }
    assert_eq!(plant.settings.cap, None);
    // The cap does not rise while a service raises an alarm.
    let mut hurt = Plant::new(3).harm(over(0.7, 0.3)).levers(&[Lever::Quota]);
    hurt.sees_bandwidth = false;
    hurt.run(300);
    let later = hurt.run(HOUR);
    assert!(later.harmed < 0.05 && later.batch > 0.58, "{later:?}");
}

/// Harm that no stall shows: CPU time per request rises by two fifths, from the start.
#[test]
fn cpu_per_work_finds_hidden_harm_and_its_lever() {
    for (helps, untouched) in [
        (Lever::Bandwidth, vec![Lever::Partition, Lever::Quota]),
        (Lever::Partition, vec![Lever::Quota]),
        (Lever::Quota, vec![]),
    ] {
        for seed in SEEDS {
            let mut plant = Plant::new(seed)
                .levers(&[
                    Lever::Idle,
                    Lever::Bandwidth,
                    Lever::Partition,
                    Lever::Quota,
                ])
                .own(|_, _, _| Own { stall: 0.2, ..CALM })
                .harm(move |second| {
                    let (settings, batch) = (second.settings, second.batch);
                    let hurts = match helps {
                        Lever::Bandwidth => settings.bandwidth.is_none_or(|level| level > 40),
                        Lever::Partition => !settings.partition.contains(&second.service),
                        _ => batch > 0.5,
                    };
                    if hurts && batch > 0.1 { 0.32 } else { 0.0 }
                });
            // A request does not always cost the same.
            plant.noise = 0.01;
            plant.signal = Signal::CpuPerWork;
            let context = format!("{helps}, seed {seed}");
            // Without pauses there would be no expectation.
            plant.run(HOUR / 2);
            let later = plant.run(HOUR);
            assert!(later.harmed < 0.05, "{context}: {later:?}");
            let least = if helps == Lever::Quota { 0.35 } else { 0.88 };
            assert!(later.batch > least, "{context}: {later:?}");
            assert!(
                plant.count(|k| matches!(k, EventKind::Confirmed { .. })) > 0,
                "{context}"
            );
            for lever in &untouched {
                assert_eq!(plant.tried(*lever), 0, "{lever}, {context}");
            }
        }
    }
}

/// A service whose requests cost more CPU time for minutes, at the same load, together with harmless
/// batch work.
#[test]
fn changed_request_mix_is_muted_at_little_cost() {
    for (every, long) in [(1800, 300), (600, 60), (7200, 3600)] {
        for seed in SEEDS {
            let burst = bursts(seed, every, long, 0.32);
            let mut plant = Plant::new(seed).own(move |at, service, _| Own {
                stall: 0.2 + burst(at, service),
                ..CALM
            });
            plant.noise = 0.01;
            plant.signal = Signal::CpuPerWork;
            let run = plant.run(4 * HOUR);
            let context = format!("{long} s each {every} s, seed {seed}: {run:?}");
            assert!(run.capped < 0.035 && run.batch > 0.865, "{context}");
            let alarms = plant.count(|k| matches!(k, EventKind::Tried { .. }));
            assert!(alarms > 0, "the scenario does not apply: {context}");
            let mutes = plant.count(|k| matches!(k, EventKind::Muted { .. } | EventKind::Chance));
            assert!(mutes > 0, "{context}");
        }
    }
}

/// Sharing a CPU raises the CPU time per packet by half, which is no harm.
#[test]
fn cost_of_sharing_a_cpu_raises_no_alarm() {
    for seed in SEEDS {
        let mut plant = Plant::new(seed)
            .own(|_, _, _| Own { stall: 0.2, ..CALM })
            .harm(over(0.1, 0.1));
        plant.noise = 0.01;
        plant.signal = Signal::CpuPerWork;
        let run = plant.run(4 * HOUR);
        assert_eq!(plant.count(|_| true), 0, "seed {seed}: {run:?}");
        let state = plant.guard.services().next().unwrap();
        assert!(state.learned, "the scenario does not apply");
    }
}

/// Cycles per instruction rise to more than twice, in readings of ten seconds.
#[test]
fn rare_signal_finds_harm() {
    for every in [10, 20] {
        for seed in SEEDS {
            let mut plant = Plant::new(seed)
                .own(|_, _, _| Own { stall: 0.2, ..CALM })
                .demand(|at| if at > 900 { 0.9 } else { 0.0 })
                .harm(over(0.5, 0.32));
            plant.noise = 0.01;
            (plant.signal, plant.every) = (Signal::Cpi, every);
            plant.run(900 + 3 * HOUR);
            let later = plant.run(4 * HOUR);
            let context = format!("every {every} s, seed {seed}: {later:?}");
            assert!(later.harmed < 0.1, "{context}");
            assert!(later.batch > 0.3, "{context}");
            assert!(
                plant.count(|k| matches!(k, EventKind::Confirmed { .. })) > 0,
                "{context}"
            );
        }
    }
}

#[test]
fn rare_signal_independent_of_batch_costs_little() {
    for every in [10, 70] {
        for seed in SEEDS {
            let burst = bursts(seed, 3600, 900, 0.32);
            let mut plant = Plant::new(seed)
                .own(move |at, service, _| Own {
                    stall: 0.2 + if at > 900 { burst(at, service) } else { 0.0 },
                    ..CALM
                })
                .demand(|at| if at > 900 { 0.9 } else { 0.0 });
            plant.noise = 0.01;
            (plant.signal, plant.every) = (Signal::Cpi, every);
            let run = plant.run(900 + 6 * HOUR);
            let context = format!("every {every} s, seed {seed}: {run:?}");
            assert!(run.capped < 0.035, "{context}");
            assert_eq!(
                run.paused, 0.0,
                "pauses are too short to learn from: {context}"
            );
        }
    }
}

/// A window that contains the start or end of batch work is used for neither case.
#[test]
fn window_across_a_batch_change_is_ignored() {
    let mut plant = Plant::new(1)
        .demand(|at| if at % 16 < 8 { 0.9 } else { 0.0 })
        .harm(over(0.5, 0.4));
    (plant.signal, plant.every) = (Signal::Cpi, 10);
    plant.run(HOUR);
    assert_eq!(plant.count(|_| true), 0);
    let state = plant.guard.services().next().unwrap();
    assert_eq!(state.verdict, Verdict::Unknown);
}

/// One of a hundred services is harmed: it is protected, and alarms of the others do not hide it.
#[test]
fn one_harmed_service_among_many_is_found() {
    for seed in 0..2 {
        let burst = bursts(seed, 900, 10, 0.3);
        let mut plant = Plant::new(seed)
            .services(100)
            .own(move |at, service, _| Own {
                stall: 0.02
                    + if service == 7 {
                        0.0
                    } else {
                        burst(at, service)
                    },
                ..CALM
            })
            .harm(|second| {
                if second.service == 7 && second.batch > 0.5 {
                    0.3
                } else {
                    0.0
                }
            });
        plant.run(300);
        let later = plant.run(HOUR);
        assert!(later.harmed < 0.1, "seed {seed}: {later:?}");
    }
}

#[test]
fn release_resets_all_settings() {
    let mut plant = Plant::new(5).harm(over(0.1, 0.4));
    plant.run(60);
    assert!(plant.guard.settings().is_costly() || plant.guard.settings().idle);
    plant.guard.release();
    assert_eq!(
        *plant.guard.settings(),
        crate::guard::LeverSettings::default()
    );
}

/// Random nodes: every kind of event occurs, and the bounds hold in all of them.
#[test]
fn random_nodes_keep_the_bounds_and_reach_every_state() {
    let mut counts = [0_usize; 9];
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut roll = || dice.roll();
        let (at, height, ends) = (roll(), 0.5 * roll(), (roll() * 3000.0) as u64);
        let helps = Lever::ALL[(roll() * 5.0) as usize];
        let (stall, load) = (0.5 * roll() * roll(), 1 + (roll() * 4000.0) as i64);
        let (every, long) = (100 + (roll() * 900.0) as u64, 1 + (roll() * 40.0) as u64);
        let sees_bandwidth = roll() < 0.5;
        let services = 1 + (roll() * 12.0) as usize;
        let (leaves, idles) = (roll() < 0.3, roll() < 0.3);
        let burst = bursts(seed, every, long, 0.4 * roll());
        let mut plant = Plant::new(seed)
            .services(services)
            .own(move |at, service, _| Own {
                stall: stall + burst(at, service),
                load: load << (at / 700 % 3),
                present: !leaves || at % 301 < 250,
                ..CALM
            })
            .demand(move |at| if idles && at % 200 < 90 { 0.0 } else { 0.9 })
            .harm(move |second| {
                let off = match helps {
                    Lever::Idle => second.idle(),
                    Lever::Partition => !second.settings.partition.is_empty(),
                    _ => false,
                };
                if second.at < ends && second.batch > at && !off {
                    height
                } else {
                    0.0
                }
            });
        plant.sees_bandwidth = sees_bandwidth;
        let mut sum = Stretch::default();
        for _ in 0..3600 {
            plant.second(&mut sum);
            let (paused, ran) = plant.guard.paused();
            assert!(paused as f64 <= 0.005 * ran as f64, "seed {seed}");
            assert!(
                plant.settings.cap.is_none_or(|cap| (0..100).contains(&cap)),
                "seed {seed}"
            );
        }
        for (_, event) in &plant.log {
            counts[match event.kind {
                EventKind::Tried { .. } => 0,
                EventKind::Helped { .. } => 1,
                EventKind::Useless { .. } => 2,
                EventKind::Ended => 3,
                EventKind::Confirmed { .. } => 4,
                EventKind::Hurt { .. } => 5,
                EventKind::Chance => 6,
                EventKind::Over => 7,
                EventKind::Muted { .. } => 8,
            }] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}
