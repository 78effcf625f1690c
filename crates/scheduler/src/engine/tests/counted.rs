//! Incremental counters compared with a full count.

use super::*;
use proptest::prelude::*;
use rustc_hash::FxHashMap;

const SCHEDULERS: [&str; 2] = ["koord-scheduler", "other"];

/// A step for the pod or node with a given number.
#[derive(Debug, Clone, Copy)]
enum Step {
    Pod { large: bool, waits: bool },
    Deleted,
    Decided,
    Answered { well: bool },
    Bound,
    Node,
    NodeDeleted,
    Later,
}

fn step() -> impl Strategy<Value = (Step, usize)> {
    let pod = (any::<bool>(), any::<bool>()).prop_map(|(large, waits)| Step::Pod { large, waits });
    let kind = prop_oneof![
        4 => pod,
        1 => Just(Step::Deleted),
        6 => Just(Step::Decided),
        3 => any::<bool>().prop_map(|well| Step::Answered { well }),
        2 => Just(Step::Bound),
        1 => Just(Step::Node),
        1 => Just(Step::NodeDeleted),
        1 => Just(Step::Later),
    ];
    (kind, 0_usize..8)
}

/// Counts by walking over all pods.
fn plain(engine: &Engine) -> (usize, usize, FxHashMap<(usize, &'static str), usize>) {
    let records = engine.cluster.pods.values();
    let assumed = records.filter(|record| record.assumed).count();
    let mut refused = FxHashMap::default();
    for pod in engine.queue.pods() {
        let state = engine.queue.describe(&pod.uid).unwrap();
        for (instance, name) in engine.table.names.iter().enumerate() {
            if state.place == "unschedulable" && state.by & (1 << instance) != 0 {
                let profile = engine.table.profile_of(pod).unwrap();
                *refused.entry((profile, *name)).or_default() += 1;
            }
        }
    }
    (engine.cluster.pods.len(), assumed, refused)
}

/// Runs the steps. Returns the maximum number of assumed and of refused pods at a time.
fn run(steps: &[(Step, usize)]) -> [usize; 2] {
    let mut engine = engine_of(&Configuration::koord(&SCHEDULERS.map(str::to_owned)));
    engine.node_applied(node("n0", "3"), at(0));
    let (mut now, mut most) = (0, [0; 2]);
    for (step, number) in steps {
        let number = *number;
        let name = format!("p{number}");
        let as_it_is = |node: Option<String>, large: bool, waits: bool| {
            // The name determines whether a pod waits for permission.
            let prefix = if waits { "wait" } else { "p" };
            pod_with(
                &format!("{prefix}{number}"),
                if large { "2" } else { "1" },
                |value| {
                    value["metadata"]["uid"] = json!(name);
                    value["spec"]["schedulerName"] = json!(SCHEDULERS[number % 2]);
                    value["spec"]["nodeName"] = json!(node);
                },
            )
        };
        let placed = engine
            .cluster()
            .placement(&name)
            .map(|(node, _)| node.to_string());
        match *step {
            Step::Pod { large, waits } => {
                // A pod on a node stays there.
                let node = placed.filter(|_| !engine.cluster.pods[name.as_str()].assumed);
                engine.pod_applied(as_it_is(node, large, waits), at(now));
            }
            Step::Deleted => engine.pod_deleted(&pod(&name, "1"), at(now)),
            Step::Decided => drop(engine.schedule_one(at(now))),
            Step::Answered { well } => {
                let failed = BindError {
                    message: "no".to_owned(),
                    gone: number == 0,
                };
                let answer = if well { Ok(()) } else { Err(failed) };
                engine.bind_finished(&name, answer, at(now));
            }
            Step::Bound => {
                let node = placed.unwrap_or_else(|| "n9".to_owned());
                engine.pod_applied(as_it_is(Some(node), false, false), at(now));
            }
            Step::Node => {
                engine.node_applied(node(&format!("n{}", number % 3), "3"), at(now));
            }
            Step::NodeDeleted => engine.node_deleted(&format!("n{}", number % 3), at(now)),
            Step::Later => now += 40,
        }
        let (pods, assumed) = engine.cluster().booked();
        let refused = engine.inspector().refused_by_plugin();
        most = [
            most[0].max(assumed),
            most[1].max(refused.values().copied().max().unwrap_or(0)),
        ];
        assert_eq!((pods, assumed, refused), plain(&engine), "after {step:?}");
    }
    most
}

proptest! {
    #[test]
    fn counters_equal_full_count(steps in prop::collection::vec(step(), 1..80)) {
        run(&steps);
    }
}

#[test]
fn counters_rise_and_fall() {
    let pod = Step::Pod {
        large: true,
        waits: false,
    };
    let pods = (1..6).map(|number| (pod, number));
    let decided = std::iter::repeat_n((Step::Decided, 0), 5);
    let answered = (1..6).map(|number| (Step::Answered { well: false }, number));
    let steps: Vec<_> = pods.chain(decided).chain(answered).collect();
    assert_eq!(
        run(&steps),
        [1, 2],
        "one of three CPUs' worth, and two of each profile"
    );
}
