//! The scenarios of `koord bench scheduler`, small.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use koord_bench::engine::{EngineFigures, Options, Scenario};

fn run(scenario: Scenario, koord: bool) -> EngineFigures {
    let options = Options {
        scenario,
        nodes: 20,
        pods: 100,
        bound: 0,
        distinct: false,
        koord,
        baseline: true,
    };
    koord_bench::engine::run(&koord_plugins::registry(), &options).unwrap()
}

#[test]
fn scenarios_place_all_pods_and_the_exhaustive_engine_does_too() {
    for scenario in [
        Scenario::Basic,
        Scenario::MixedChurn,
        Scenario::NodeAffinity,
        Scenario::TopologySpread,
        Scenario::PodAffinity,
        Scenario::PodAntiAffinity,
        Scenario::Colocation,
        Scenario::Deployment,
        Scenario::Daemonset,
        Scenario::Shapes,
        Scenario::NodeGrowth,
        Scenario::MetricStream,
        Scenario::Volumes,
        Scenario::ReservationMigration,
        Scenario::Nrt,
    ] {
        for koord in [false, true] {
            if !koord
                && matches!(
                    scenario,
                    Scenario::Colocation
                        | Scenario::MetricStream
                        | Scenario::ReservationMigration
                        | Scenario::Nrt
                )
            {
                continue;
            }
            let report = run(scenario, koord);
            let baseline = report.baseline.unwrap();
            assert_eq!(report.scheduling_failure_count, 0, "{}", report.name);
            assert_eq!(report.mismatches, 0, "{}", report.name);
            assert!(
                baseline.placed == 100 || baseline.sampled,
                "{}",
                report.name
            );
        }
    }
    let report = run(Scenario::UnschedulableMixed, true);
    assert_eq!(report.scheduling_failure_count, 20);

    // Two in a hundred fit no NUMA node. Updates come as often as at 5,000 nodes, and cause no retry.
    let options = Options {
        scenario: Scenario::NrtStream,
        nodes: 5_000,
        pods: 100,
        bound: 0,
        distinct: false,
        koord: true,
        baseline: false,
    };
    let report = koord_bench::engine::run(&koord_plugins::registry(), &options).unwrap();
    assert_eq!(report.scheduling_failure_count, 2);
    let control = report.control.unwrap();
    assert!(control.throughput_pods_per_sec > 0.0);
    assert_eq!((report.attempts, control.more_attempts), (100, 0));
}

#[test]
fn pods_with_unique_fields_leave_capacity_for_others() {
    let options = Options {
        scenario: Scenario::Basic,
        nodes: 20,
        pods: 100,
        bound: 200,
        distinct: true,
        koord: true,
        baseline: true,
    };
    let report = koord_bench::engine::run(&koord_plugins::registry(), &options).unwrap();
    assert_eq!((report.scheduling_failure_count, report.mismatches), (0, 0));
}
