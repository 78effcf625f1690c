use super::*;
use crate::framework::SkipReason;
use crate::migration::filter::{MigrationCounts, PodsByOwner, Rules};
use crate::migration::{JobStage, stage};
use crate::state::PodInfo;
use crate::testing::TestCluster;

#[derive(Default)]
struct Setting {
    world: TestCluster,
    jobs: Vec<Arc<PodMigrationJob>>,
}

impl Setting {
    /// Returns `count` pods of node `test-node` that jobs move.
    fn migrating(count: usize) -> (Self, Vec<Arc<PodInfo>>) {
        let mut setting = Self::default();
        let move_one = |at: usize| {
            let name = format!("m{at}");
            setting.jobs.push(passed(&name, &name));
            setting.world.pod(&name, "test-node", json!({}))
        };
        let pods = (0..count).map(move_one).collect();
        (setting, pods)
    }

    fn snapshot(&self, replicas: i64) -> Snapshot {
        let mut snapshot = self.world.snapshot();
        snapshot.jobs.clone_from(&self.jobs);
        for uid in ["rs", "other"] {
            super::replicas(&mut snapshot, uid, replicas);
        }
        snapshot
    }

    /// Checks whether limits allow to move `pod`. Outside of the arbitration every job that has not ended
    /// counts, within it those that have started: here both are equal.
    fn is_within_limits(&self, args: Value, pod: &PodInfo) -> Result<(), SkipReason> {
        let snapshot = self.snapshot(10);
        let rules = Rules::new(Arc::new(super::args(args)), &snapshot.priority_classes);
        let owned = PodsByOwner::new(&snapshot);
        let all = MigrationCounts::new(&snapshot, |job| stage(job) != JobStage::Ended);
        let begun = MigrationCounts::new(&snapshot, |job| stage(job) == JobStage::Begun);
        let free = rules.is_within_limits(&snapshot, &owned, &begun, pod);
        assert_eq!(rules.is_within_limits(&snapshot, &owned, &all, pod), free);
        assert!(
            free.as_ref().err().is_none_or(SkipReason::is_temporary),
            "{free:?}"
        );
        free
    }
}

fn owner(uid: &str) -> Value {
    json!({"metadata": {"ownerReferences": [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": uid, "uid": uid, "controller": true},
    ]}})
}

#[test]
fn a_pod_has_one_job() {
    let (mut setting, pods) = Setting::migrating(1);
    let other = setting.world.pod("q", "test-node", json!({}));
    let rules = Rules::new(Arc::default(), &std::collections::BTreeMap::new());
    let first = |setting: &Setting, pod: &PodInfo| {
        let migration_counts =
            MigrationCounts::new(&setting.snapshot(10), |job| stage(job) != JobStage::Ended);
        rules
            .has_no_job(&migration_counts, pod)
            .map_err(|reason| reason.rule)
    };
    assert_eq!(first(&setting, &pods[0]), Err("ExistingJob"));
    assert_eq!(first(&setting, &other), Ok(()));
    // The name counts as well, but not once the job has ended.
    let nameless = json!({"spec": {"podRef": {"uid": null}}});
    setting.jobs = vec![job("j", "m0", nameless)];
    assert_eq!(first(&setting, &pods[0]), Err("ExistingJob"));
    setting.jobs = vec![job("j", "m0", json!({"status": {"phase": "Failed"}}))];
    assert_eq!(first(&setting, &pods[0]), Ok(()));
}

/// Number of moving pods, whether the pod in question is one of them, whether it is in the same place; the
/// limit; the expected result.
type Row = (usize, bool, bool, i64, bool);

const ROWS: [Row; 8] = [
    (0, false, false, 0, true),
    (0, false, false, 1, true),
    (1, true, true, 1, true),
    (1, false, true, 1, false),
    (1, false, false, 1, true),
    (2, true, true, 2, true),
    (2, false, false, 2, true),
    (2, false, true, 2, false),
];

/// Checks `rows` against the limit `field`; `there` and `elsewhere` are a node and pod properties.
fn limited(rows: &[Row], field: &str, there: (&str, &Value), elsewhere: (&str, &Value)) {
    let workload = ["MaxMigratingPerWorkload", "MaxUnavailablePerWorkload"];
    let limits = match field {
        "maxMigratingPerWorkload" => json!({"maxUnavailablePerWorkload": 9}),
        _ => json!({"skipEvictionGates": workload}),
    };
    let limits = merged(json!({"maxMigratingPerNode": 0}), limits);
    for row in rows {
        let (migrating, same_pod, is_there, max, free) = *row;
        let (mut setting, pods) = Setting::migrating(migrating);
        let (node, over) = if is_there { there } else { elsewhere };
        let other = setting.world.pod("p", node, over.clone());
        let pod = if same_pod { &pods[0] } else { &other };
        let args = merged(limits.clone(), json!({field: max}));
        let result = setting.is_within_limits(args, pod);
        assert_eq!(result.is_ok(), free, "{field} {row:?}: {result:?}");
    }
    // A skipped gate does not count.
    let (mut setting, _) = Setting::migrating(1);
    let pod = setting.world.pod("p", there.0, there.1.clone());
    let gate = format!("M{}", &field[1..]);
    let mut gates = vec![gate.as_str()];
    if field != "maxMigratingPerWorkload" {
        gates.extend(workload);
    }
    let skipped = merged(limits, json!({field: 1, "skipEvictionGates": gates}));
    setting.is_within_limits(skipped, &pod).unwrap();
}

#[test]
fn migration_limits_match_upstream() {
    let empty = json!({});
    let global = [ROWS[0], ROWS[1], ROWS[2], ROWS[3]];
    let on_test_node = ("test-node", &empty);
    limited(&global, "maxMigratingGlobally", on_test_node, on_test_node);
    limited(
        &ROWS,
        "maxMigratingPerNode",
        on_test_node,
        ("test-other-node", &empty),
    );
    let namespace = json!({"metadata": {"namespace": "other"}});
    let elsewhere = ("test-node", &namespace);
    limited(&ROWS, "maxMigratingPerNamespace", on_test_node, elsewhere);
    let other = owner("other");
    // For a workload the first row has no limit of 0: that is read as 1.
    let of_workload = ("test-node", &other);
    limited(
        &ROWS[1..],
        "maxMigratingPerWorkload",
        on_test_node,
        of_workload,
    );
}

#[test]
fn unavailable_limit_matches_upstream() {
    let idle = json!({"status": {"phase": "Pending", "conditions": null}});
    let limits = |max: i64| json!({"maxMigratingPerNode": 0, "maxMigratingPerWorkload": 9, "maxUnavailablePerWorkload": max});
    for row in [
        (0, 0, 1, true, true),
        (1, 0, 1, true, false),
        (0, 1, 1, true, false),
        (1, 1, 1, true, false),
        (0, 0, 2, true, true),
        (1, 0, 2, true, true),
        (0, 1, 2, true, true),
        (1, 1, 2, true, false),
        (1, 1, 2, false, true),
    ] {
        let (unavailable, migrating, max, same_workload, free) = row;
        let (mut setting, _) = Setting::migrating(migrating);
        for i in 0..unavailable {
            setting
                .world
                .pod(&format!("u{i}"), "test-node", idle.clone());
        }
        for i in unavailable + migrating..9 {
            setting.world.pod(&format!("a{i}"), "test-node", json!({}));
        }
        let owner_uid = if same_workload { "rs" } else { "other" };
        let pod = setting.world.pod("p", "test-node", owner(owner_uid));
        let result = setting.is_within_limits(limits(max), &pod);
        assert_eq!(result.is_ok(), free, "{row:?}: {result:?}");
    }
    let (mut setting, _) = Setting::migrating(0);
    setting.world.pod("u", "test-node", idle);
    let pod = setting.world.pod("p", "test-node", json!({}));
    let gates = json!({"skipEvictionGates": ["MaxUnavailablePerWorkload"]});
    setting
        .is_within_limits(merged(limits(1), gates), &pod)
        .unwrap();
}

fn movable(args: &Value, replicas: Option<i64>, over: &Value) -> Result<(), &'static str> {
    let mut world = TestCluster::default();
    let pod = world.pod("p", "n", over.clone());
    let mut snapshot = world.snapshot();
    snapshot.priority_classes.insert("high".to_owned(), 1000);
    if let Some(replicas) = replicas {
        super::replicas(&mut snapshot, "rs", replicas);
    }
    let args = Arc::new(super::args(args.clone()));
    let rules = Rules::new(args, &snapshot.priority_classes);
    rules
        .is_movable(&snapshot, &pod)
        .map_err(|reason| reason.rule)
}

#[test]
fn workload_is_not_evicted_completely() {
    let stays = Err("ExpectedReplicas");
    for (replicas, max, expected) in [(1, 1, stays), (100, 100, stays), (100, 10, Ok(()))] {
        let limits = json!({
            "maxMigratingPerWorkload": replicas - 1, "maxUnavailablePerWorkload": max,
        });
        let result = movable(&limits, Some(replicas), &json!({}));
        assert_eq!(result, expected, "{replicas} {max}");
    }
    // An unknown size means that no replica is spare, unless the check is skipped.
    let plain = json!({});
    assert_eq!(movable(&plain, None, &plain), stays);
    let gate = json!({"skipEvictionGates": ["ExpectedReplicas"]});
    assert_eq!(movable(&gate, None, &plain), Ok(()));
    let skipped = json!({"skipCheckExpectedReplicas": true});
    assert_eq!(movable(&skipped, Some(1), &plain), Ok(()));
}

#[test]
fn movable_pods_depend_on_pod_and_arguments() {
    let annotated = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let cost = |value: &str| annotated("scheduling.koordinator.sh/eviction-cost", value);
    let evict = annotated("descheduler.alpha.kubernetes.io/evict", "true");
    let priority = |value: i32| json!({"spec": {"priority": value}});
    let bare = json!({"metadata": {"ownerReferences": null}});
    let local = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}});
    let skip = |gate: &str, args: Value| merged(args, json!({"skipEvictionGates": [gate]}));
    let excluded = json!({"namespaces": {"exclude": ["default"]}});
    let selector = json!({"labelSelector": {"matchLabels": {"a": "b"}}});
    let threshold = |threshold: Value| json!({"priorityThreshold": threshold});
    let critical = priority(2_000_000_000);
    let plain = json!({});
    let ok = Ok(());
    for (args, pod, expected) in [
        (plain.clone(), plain.clone(), ok),
        // Upstream's four cases of the eviction cost.
        (plain.clone(), cost("0"), ok),
        (plain.clone(), cost("-100"), ok),
        (plain.clone(), cost("100"), ok),
        (plain.clone(), cost("2147483647"), Err("MaxEvictionCost")),
        (plain.clone(), cost("+2147483647"), ok),
        (excluded.clone(), plain.clone(), Err("Namespaces")),
        (
            json!({"namespaces": {"include": ["other"]}}),
            plain.clone(),
            Err("Namespaces"),
        ),
        (skip("Namespaces", excluded.clone()), plain.clone(), ok),
        (excluded, evict, ok),
        (plain.clone(), bare.clone(), Err("BarePods")),
        (skip("BarePods", plain.clone()), bare, ok),
        (
            threshold(json!({"value": 500})),
            priority(500),
            Err("PriorityThreshold"),
        ),
        (threshold(json!({"value": 501})), priority(500), ok),
        (
            threshold(json!({"name": "high"})),
            priority(1000),
            Err("PriorityThreshold"),
        ),
        (threshold(json!({"name": "high"})), priority(999), ok),
        (
            threshold(json!({"name": "none"})),
            priority(1),
            Err("PriorityThreshold"),
        ),
        (
            skip("PriorityThreshold", threshold(json!({"name": "none"}))),
            priority(1),
            ok,
        ),
        (plain.clone(), critical.clone(), Err("SystemCritical")),
        (skip("SystemCritical", plain.clone()), critical, ok),
        (selector.clone(), plain.clone(), Err("LabelSelector")),
        (skip("LabelSelector", selector), plain.clone(), ok),
        (plain.clone(), local.clone(), Err("LocalStorage")),
        (skip("LocalStorage", plain.clone()), local, ok),
    ] {
        let result = movable(&args, Some(10), &pod);
        assert_eq!(result, expected, "{args} {pod}");
    }
}
