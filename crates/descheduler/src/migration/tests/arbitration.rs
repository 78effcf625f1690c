use super::*;
use crate::migration::arbitrate::{
    PendingJob, Verdict, arbitrate, by_controller, by_creation, by_migrating, by_pod, migrating,
    sorted,
};
use crate::migration::filter::Rules;
use crate::migration::{JobStage, stage};
use crate::state::PodInfo;
use crate::testing::TestCluster;
use std::collections::BTreeMap;

fn owner(of: Option<usize>) -> Value {
    let Some(of) = of else {
        return json!({});
    };
    let uid = format!("job-{of}");
    json!({"metadata": {"ownerReferences": [
        {"apiVersion": "batch/v1", "kind": "Job", "name": uid, "uid": uid, "controller": true},
    ]}})
}

fn names(jobs: &[PendingJob]) -> Vec<&str> {
    let named = jobs
        .iter()
        .map(|pending| pending.job.metadata.name.as_deref());
    named.map(Option::unwrap_or_default).collect()
}

/// Returns jobs `0`, `1`, … for pods of the batch Jobs that `owners` names by index.
fn waiting(world: &mut TestCluster, count: usize, owners: &[(usize, usize)]) -> Vec<PendingJob> {
    let owners: BTreeMap<_, _> = owners.iter().copied().collect();
    let pending_job = |at: usize| PendingJob {
        pod: Some(world.pod(&format!("p{at}"), "n", owner(owners.get(&at).copied()))),
        job: job(&at.to_string(), &format!("p{at}"), json!({})),
    };
    (0..count).map(pending_job).collect()
}

fn numbers(expected: &[usize]) -> Vec<String> {
    expected.iter().map(ToString::to_string).collect()
}

#[test]
fn jobs_come_in_the_order_of_their_pods() {
    for (order, expected) in [
        (
            vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
            vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        ),
        (
            vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
            vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
        ),
        (vec![], vec![]),
        (vec![8, 7, 5, 4, 9, 2, 3, 11], vec![5, 6, 3, 2, 1, 0, 4, 7]),
    ] {
        let mut world = TestCluster::default();
        let mut jobs = waiting(&mut world, order.len(), &[]);
        let place = |pod: &Arc<PodInfo>| order[pod.name[1..].parse::<usize>().unwrap()];
        by_pod(&mut jobs, |pods| pods.sort_by_key(place));
        assert_eq!(names(&jobs), numbers(&expected));
    }
    let mut world = TestCluster::default();
    let mut jobs = waiting(&mut world, 3, &[]);
    jobs[2].pod = None;
    by_pod(&mut jobs, |_| {});
    assert_eq!(names(&jobs), ["2", "0", "1"], "those without a pod first");
}

#[test]
fn newest_job_is_first() {
    let created_at = |at: usize, second: i64| {
        let created = jiff::Timestamp::from_second(second).unwrap().to_string();
        PendingJob {
            pod: None,
            job: job(
                &at.to_string(),
                "p",
                json!({"metadata": {"creationTimestamp": created}}),
            ),
        }
    };
    let seconds = [222_222, 222_222_222, 111_111_111, 11_111, 11_111];
    let mut jobs: Vec<_> = (0..)
        .zip(seconds)
        .map(|(at, second)| created_at(at, second))
        .collect();
    by_creation(&mut jobs);
    assert_eq!(names(&jobs), ["1", "2", "0", "3", "4"]);
}

#[test]
fn jobs_of_one_batch_job_come_together() {
    for (count, owners, expected) in [
        (10, vec![(4, 0), (8, 0)], vec![0, 1, 2, 3, 4, 8, 5, 6, 7, 9]),
        (10, vec![], vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (
            10,
            vec![(3, 0), (8, 0), (1, 1), (9, 1)],
            vec![0, 1, 9, 2, 3, 8, 4, 5, 6, 7],
        ),
        (5, vec![(2, 0), (3, 0), (4, 0)], vec![0, 1, 2, 3, 4]),
        (6, vec![(0, 0), (4, 1), (2, 2)], vec![0, 1, 2, 3, 4, 5]),
    ] {
        let mut jobs = waiting(&mut TestCluster::default(), count, &owners);
        by_controller(&mut jobs);
        assert_eq!(names(&jobs), numbers(&expected), "{owners:?}");
    }
}

/// Adds a started job for a pod of batch Job `of`.
fn begun(
    world: &mut TestCluster,
    jobs: &mut Vec<Arc<PodMigrationJob>>,
    name: &str,
    of: Option<usize>,
    runs: bool,
) {
    world.pod(name, "n", owner(of));
    jobs.push(match runs {
        true => job(name, name, json!({"status": {"phase": "Running"}})),
        false => passed(name, name),
    });
}

#[test]
fn batch_jobs_of_which_most_pods_move_come_first() {
    /// Numbers of waiting, running and passed jobs, each with the batch Jobs of their pods; and the expected
    /// order.
    type Row = (usize, Owners, usize, Owners, usize, Owners, Vec<usize>);
    type Owners = Vec<(usize, usize)>;
    let rows: [Row; 6] = [
        (
            10,
            vec![(4, 0), (8, 0)],
            5,
            vec![(3, 0), (1, 1)],
            0,
            vec![],
            vec![4, 8, 0, 1, 2, 3, 5, 6, 7, 9],
        ),
        (10, vec![], 2, vec![], 0, vec![], (0..10).collect()),
        (
            5,
            (0..5).map(|i| (i, 0)).collect(),
            2,
            vec![(0, 0)],
            0,
            vec![],
            (0..5).collect(),
        ),
        (
            5,
            vec![(2, 0), (3, 0), (4, 0)],
            0,
            vec![],
            2,
            vec![(0, 0)],
            vec![2, 3, 4, 0, 1],
        ),
        (
            6,
            vec![(2, 0), (3, 1), (5, 0)],
            2,
            vec![(0, 1)],
            2,
            vec![(0, 0)],
            vec![2, 3, 5, 0, 1, 4],
        ),
        (
            10,
            vec![(4, 0), (8, 0), (7, 1)],
            5,
            vec![(3, 0), (1, 1), (0, 1)],
            0,
            vec![],
            vec![7, 4, 8, 0, 1, 2, 3, 5, 6, 9],
        ),
    ];
    for (count, owners, running, of_running, passing, of_passing, expected) in rows {
        let mut world = TestCluster::default();
        let mut jobs = waiting(&mut world, count, &owners);
        let mut moving = Vec::new();
        for (kind, count, owners) in [("r", running, of_running), ("q", passing, of_passing)] {
            let owners: BTreeMap<_, _> = owners.into_iter().collect();
            for i in 0..count {
                let name = format!("{kind}{i}");
                let job_owner = owners.get(&i).copied();
                begun(&mut world, &mut moving, &name, job_owner, kind == "r");
            }
        }
        let mut snapshot = world.snapshot();
        snapshot.jobs = moving;
        by_migrating(&mut jobs, &snapshot);
        assert_eq!(names(&jobs), numbers(&expected), "{owners:?}");
    }
    for (waits, runs, passes, expected) in [(3, 3, 3, 6), (4, 0, 0, 0), (1, 2, 3, 5)] {
        let mut world = TestCluster::default();
        let owners: Vec<_> = (0..waits).map(|i| (i, 0)).collect();
        let waiting = waiting(&mut world, waits, &owners);
        let mut jobs: Vec<_> = waiting.into_iter().map(|pending| pending.job).collect();
        for i in 0..runs {
            begun(&mut world, &mut jobs, &format!("r{i}"), Some(0), true);
        }
        for i in 0..passes {
            begun(&mut world, &mut jobs, &format!("q{i}"), Some(0), false);
        }
        let mut snapshot = world.snapshot();
        snapshot.jobs = jobs;
        assert_eq!(migrating(&snapshot, "job-0"), expected);
    }
}

#[test]
fn later_sort_keys_take_precedence() {
    let mut world = TestCluster::default();
    let mut jobs = waiting(&mut world, 4, &[(0, 0), (2, 0), (3, 1)]);
    let mut moving = Vec::new();
    begun(&mut world, &mut moving, "r", Some(1), true);
    // A less important pod is the first of those without a batch Job.
    let batch = json!({"metadata": {"labels": {"koordinator.sh/priority-class": "koord-batch"}}});
    jobs.push(PendingJob {
        pod: Some(world.pod("p4", "n", batch)),
        job: job("4", "p4", json!({})),
    });
    let mut snapshot = world.snapshot();
    snapshot.jobs = moving;
    let sorted = sorted(&snapshot, jobs);
    let order = names(&sorted);
    assert_eq!(order[0], "3", "{order:?}");
    let place = |name: &str| order.iter().position(|job_name| *job_name == name).unwrap();
    assert!(place("4") < place("1"), "{order:?}");
    assert_eq!(place("0").abs_diff(place("2")), 1, "{order:?}");
}

/// Upstream's five cases of a round, and of one job: a pod that may never be moved, and one that may not be
/// moved now.
#[test]
fn job_passes_waits_or_fails() {
    for (count, never, later) in [
        (10, vec![2], vec![3, 7]),
        (10, vec![3], vec![3, 7]),
        (5, vec![0, 1, 2, 3, 4], vec![]),
        (5, vec![], vec![0, 1, 2, 3, 4]),
        (5, vec![], vec![2]),
    ] {
        let mut world = TestCluster::default();
        let mut jobs = Vec::new();
        for i in 0..count {
            // A pod that may not be moved now is on a node with another migrating pod.
            let node = if later.contains(&i) { "full" } else { "free" };
            let name = format!("p{i}");
            let node = format!("{node}-{i}");
            let cost = if never.contains(&i) {
                "2147483647"
            } else {
                "0"
            };
            let annotations = json!({"scheduling.koordinator.sh/eviction-cost": cost});
            world.pod(
                &name,
                &node,
                json!({"metadata": {"annotations": annotations}}),
            );
            let other = format!("other{i}");
            world.pod(&other, &format!("full-{i}"), json!({}));
            jobs.push(job(&i.to_string(), &name, json!({})));
            jobs.push(passed(&other, &other));
        }
        let mut snapshot = world.snapshot();
        snapshot.jobs = jobs;
        super::replicas(&mut snapshot, "rs", 1000);
        let args = json!({"maxMigratingPerNode": 1, "maxMigratingPerWorkload": 900, "maxUnavailablePerWorkload": 900});
        let rules = Rules::new(Arc::new(args_of(args)), &BTreeMap::new());
        let verdicts = arbitrate(&snapshot, |_| &rules);
        assert_eq!(verdicts.len(), count);
        for (job, verdict) in verdicts {
            let i: usize = job.metadata.name.as_deref().unwrap().parse().unwrap();
            match verdict {
                Verdict::Pass => assert!(!never.contains(&i) && !later.contains(&i), "{i}"),
                Verdict::Missing => panic!("{i} is there"),
                Verdict::Fail(reason) => {
                    assert!(never.contains(&i), "{i}");
                    assert_eq!(reason.rule, "MaxEvictionCost");
                }
                Verdict::Wait(reason) => {
                    assert!(later.contains(&i) && !never.contains(&i), "{i}");
                    assert_eq!(reason.rule, "MaxMigratingPerNode");
                }
            }
        }
    }
}

/// A job must not fail because the API server cannot answer at the moment.
#[test]
fn job_waits_while_workload_size_is_unknown() {
    let mut world = TestCluster::default();
    let owned = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "x.io/v1", "kind": "Set", "name": "s", "uid": "rs", "controller": true}]}});
    world.pod("p", "n", owned);
    let mut snapshot = world.snapshot();
    snapshot.jobs = vec![job("j", "p", json!({}))];
    let error = Workload::Error("scale: 500".to_owned());
    snapshot.workloads.insert("rs".into(), error);
    let rules = Rules::new(Arc::new(args_of(json!({}))), &BTreeMap::new());
    let verdict = |snapshot: &Snapshot| arbitrate(snapshot, |_| &rules).remove(0).1;
    let Verdict::Wait(reason) = verdict(&snapshot) else {
        panic!("{:?}", verdict(&snapshot));
    };
    assert_eq!(reason.to_string(), "WorkloadUnknown: Set s: scale: 500");
    // A workload that is known to have no replicas is different.
    snapshot.workloads.insert("rs".into(), Workload::Unresolved);
    assert!(matches!(verdict(&snapshot), Verdict::Fail(_)));
    super::replicas(&mut snapshot, "rs", 1000);
    assert_eq!(verdict(&snapshot), Verdict::Pass);
}

fn args_of(over: Value) -> MigrationControllerArgs {
    super::args(over)
}

#[test]
fn jobs_that_have_begun_or_ended_or_go_are_not_judged() {
    let mut world = TestCluster::default();
    world.pod("p", "n", json!({}));
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}});
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    let mut snapshot = world.snapshot();
    snapshot.jobs = vec![
        passed("passed", "p"),
        job("running", "p", phase("Running")),
        job("failed", "p", phase("Failed")),
        job("aborted", "p", phase("Aborted")),
        job("deleted", "p", deleted),
        job("missing", "q", phase("Pending")),
    ];
    let rules = Rules::new(Arc::default(), &BTreeMap::new());
    let verdicts = arbitrate(&snapshot, |_| &rules);
    let [(job, Verdict::Missing)] = &verdicts[..] else {
        panic!("{verdicts:?}");
    };
    assert_eq!(job.metadata.name.as_deref(), Some("missing"));
}

/// Limits hold under any events: jobs appear for any pod, also by users, and pass, start and end.
mod limits_hold {
    use super::*;
    use proptest::prelude::*;

    const NODES: usize = 3;
    const PODS: usize = 18;

    #[derive(Debug, Clone)]
    enum Event {
        Ask(usize),
        Round,
        Run(usize),
        End(usize),
        Gone(usize),
        Unready(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            6 => (0..PODS).prop_map(Event::Ask),
            5 => Just(Event::Round),
            3 => (0..PODS).prop_map(Event::Run),
            2 => (0..PODS).prop_map(Event::End),
            1 => (0..PODS).prop_map(Event::Gone),
            1 => (0..PODS).prop_map(Event::Unready),
        ]
    }

    struct Model {
        pods: Vec<(usize, bool, bool)>,
        jobs: Vec<(PodMigrationJob, usize)>,
        waited: usize,
        passed: usize,
    }

    impl Model {
        fn snapshot(&self) -> Snapshot {
            let mut world = TestCluster::default();
            for (at, (generation, there, ready)) in self.pods.iter().enumerate() {
                if !there {
                    continue;
                }
                let set = format!("set-{}", at % 2);
                let over = json!({
                    "metadata": {
                        "uid": format!("uid-{at}-{generation}"), "namespace": format!("ns-{}", at % 2),
                        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": set, "uid": set, "controller": true}],
                    },
                    "status": {"conditions": [{"type": "Ready", "status": if *ready { "True" } else { "False" }}]},
                });
                world.pod(&format!("p{at}"), &format!("n{}", at % NODES), over);
            }
            let mut snapshot = world.snapshot();
            snapshot.jobs = self
                .jobs
                .iter()
                .map(|(job, _)| Arc::new(job.clone()))
                .collect();
            for uid in ["set-0", "set-1"] {
                super::super::replicas(&mut snapshot, uid, 9);
            }
            snapshot
        }

        fn begun(&self) -> Vec<usize> {
            let begun = self
                .jobs
                .iter()
                .filter(|(job, _)| stage(job) == JobStage::Begun);
            begun.map(|(_, pod)| *pod).collect()
        }

        fn apply(&mut self, event: &Event, rules: &Rules) {
            match event {
                Event::Ask(pod) => {
                    let name = format!("j{}", self.jobs.len());
                    let generation = self.pods[*pod].0;
                    // Every third job is a user's, without a UID.
                    let uid = (!self.jobs.len().is_multiple_of(3))
                        .then(|| format!("uid-{pod}-{generation}"));
                    let named = json!({"namespace": format!("ns-{}", pod % 2), "uid": uid});
                    let new_job = job(
                        &name,
                        &format!("p{pod}"),
                        json!({"spec": {"podRef": named}}),
                    );
                    self.jobs.push((PodMigrationJob::clone(&new_job), *pod));
                }
                Event::Round => {
                    for (job, verdict) in arbitrate(&self.snapshot(), |_| rules) {
                        let mut jobs = self.jobs.iter_mut();
                        let (known, _) = jobs
                            .find(|(one, _)| one.metadata.name == job.metadata.name)
                            .unwrap();
                        match verdict {
                            Verdict::Pass => {
                                self.passed += 1;
                                let all = known.metadata.annotations.get_or_insert_default();
                                all.insert(crate::migration::PASSED.to_owned(), "true".to_owned());
                            }
                            Verdict::Missing => {
                                let failed = json!({"phase": "Failed"});
                                known.status = Some(serde_json::from_value(failed).unwrap());
                            }
                            Verdict::Wait(_) => self.waited += 1,
                            Verdict::Fail(reason) => panic!("{reason}"),
                        }
                    }
                }
                Event::Run(at) | Event::End(at) => {
                    let begun = self.jobs.iter_mut();
                    let mut begun = begun.filter(|(job, _)| stage(job) == JobStage::Begun);
                    let Some((job, pod)) = begun.nth(at % 4) else {
                        return;
                    };
                    let generation = self.pods[*pod].0;
                    let phase = match event {
                        Event::Run(_) => "Running",
                        _ => "Succeeded",
                    };
                    job.spec.pod_ref.uid = Some(format!("uid-{pod}-{generation}"));
                    let status = json!({"phase": phase});
                    job.status = Some(serde_json::from_value(status).unwrap());
                    if matches!(event, Event::End(_)) {
                        let pod = *pod;
                        self.pods[pod] = (generation + 1, true, true);
                    }
                }
                Event::Gone(pod) => {
                    let (generation, there, _) = self.pods[*pod];
                    self.pods[*pod] = (generation + usize::from(!there), !there, true);
                    // The controller adds the UID.
                    let jobs_of_pod = self.jobs.iter_mut().filter(|(_, job_pod)| job_pod == pod);
                    for (job, _) in jobs_of_pod.filter(|(job, _)| stage(job) == JobStage::Begun) {
                        let ended = json!({"phase": "Succeeded"});
                        job.status = Some(serde_json::from_value(ended).unwrap());
                    }
                }
                Event::Unready(pod) => self.pods[*pod].2 = !self.pods[*pod].2,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn under_any_events(events in prop::collection::vec(event(), 60..160)) {
            let args = args_of(json!({
                "maxMigratingGlobally": 5, "maxMigratingPerNode": 2, "maxMigratingPerNamespace": 4,
                "maxMigratingPerWorkload": 3, "maxUnavailablePerWorkload": 3,
            }));
            let rules = Rules::new(Arc::new(args), &BTreeMap::new());
            let pods = vec![(0, true, true); PODS];
            let mut model = Model { pods, jobs: Vec::new(), waited: 0, passed: 0 };
            for event in &events {
                let before = model.begun();
                model.apply(event, &rules);
                let begun = model.begun();
                if begun.len() <= before.len() {
                    continue;
                }
                // Jobs without a pod detect that themselves; limits only concern pods.
                let live: Vec<_> = begun.iter().filter(|pod| model.pods[**pod].1).collect();
                let most = |key: &dyn Fn(usize) -> usize| {
                    let mut counts = BTreeMap::<usize, usize>::new();
                    for pod in &live {
                        *counts.entry(key(**pod)).or_default() += 1;
                    }
                    counts.into_values().max().unwrap_or(0)
                };
                prop_assert!(most(&|_| 0) <= 5, "globally: {begun:?}");
                prop_assert!(most(&|pod| pod % NODES) <= 2, "of a node: {begun:?}");
                prop_assert!(most(&|pod| pod % 2) <= 3, "of a workload: {begun:?}");
                prop_assert!(most(&|pod| pod) <= 1, "of a pod: {begun:?}");
            }
            // The run contained jobs.
            let requests = events.iter().filter(|event| matches!(event, Event::Ask(_))).count();
            let rounds = events.iter().filter(|event| matches!(event, Event::Round)).count();
            prop_assert!(model.passed > 0 || rounds == 0 || requests == 0);
        }
    }

    #[test]
    fn and_are_reached() {
        let rules = Rules::new(
            Arc::new(args_of(json!({"maxMigratingGlobally": 2}))),
            &BTreeMap::new(),
        );
        let pods = vec![(0, true, true); PODS];
        let mut model = Model {
            pods,
            jobs: Vec::new(),
            waited: 0,
            passed: 0,
        };
        for pod in 0..6 {
            model.apply(&Event::Ask(pod), &rules);
        }
        model.apply(&Event::Round, &rules);
        assert_eq!((model.passed, model.waited), (2, 4));
        model.apply(&Event::End(0), &rules);
        model.apply(&Event::Round, &rules);
        assert_eq!((model.passed, model.begun().len()), (3, 2));
    }
}
