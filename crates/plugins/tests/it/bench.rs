//! The scenarios of `koord bench scheduler`, small; large where the environment says so.

use koord_scheduler::bench::{self, Options, Report, Scenario};

fn run(scenario: Scenario, nodes: usize, pods: usize, koord: bool, bound: usize) -> Report {
    let options = Options {
        scenario,
        nodes,
        pods,
        bound,
        koord,
        baseline: nodes < 100,
    };
    bench::run(&koord_plugins::registry(), &options).unwrap()
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
    ] {
        for koord in [false, true] {
            if !koord && scenario == Scenario::Colocation {
                continue;
            }
            let report = run(scenario, 20, 100, koord, 0);
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
    let report = run(Scenario::UnschedulableMixed, 20, 100, true, 0);
    assert_eq!(report.scheduling_failure_count, 20);
}

/// `KOORD_BENCH="basic,gang 5000 10000 koord" cargo test --release -p koord-plugins --test it \
/// bench_by_hand -- --nocapture` prints the figures of a run.
#[test]
fn bench_by_hand() {
    let Ok(text) = std::env::var("KOORD_BENCH") else {
        return;
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let [scenarios, nodes, pods, profile, rest @ ..] = &words[..] else {
        panic!("KOORD_BENCH: SCENARIOS NODES PODS PROFILE [BOUND]");
    };
    for scenario in scenarios.split(',') {
        let bound = rest.first().map_or(0, |bound| bound.parse().unwrap());
        let (nodes, pods) = (nodes.parse().unwrap(), pods.parse().unwrap());
        let report = run(
            scenario.parse().unwrap(),
            nodes,
            pods,
            *profile == "koord",
            bound,
        );
        eprintln!("{}", serde_json::to_string(&report).unwrap());
    }
}
