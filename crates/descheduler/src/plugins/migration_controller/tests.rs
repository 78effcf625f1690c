use super::*;
use crate::framework::{Cycle, Placement, Strategy, StrategyError};
use crate::migration::tests::{self, job, replicas};
use crate::testing::{TestCluster, merged};
use serde_json::{Value, json};

fn evict_result(args: Value, over: Value) -> Result<Intent, &'static str> {
    let mut world = TestCluster::default();
    let pod = world.pod("p", "n", over);
    let mut snapshot = world.snapshot();
    replicas(&mut snapshot, "rs", 10);
    let mut built = build(tests::args(args), "profile");
    let request = EvictionRequest {
        pod: &pod,
        strategy: "test-plugin",
        reason: "test-reason",
        delete_options: None,
    };
    let evictor = built.evict.as_mut().unwrap();
    let mut evict = || {
        evictor.admits(&snapshot, &pod)?;
        evictor.evict(&snapshot, &request)
    };
    let first = evict().map_err(|cause| cause.rule);
    if matches!(first, Ok(Intent::Job(_))) {
        let repeated = evict().unwrap_err();
        assert_eq!(repeated.rule, "ExistingJob", "once in a cycle");
    }
    first
}

/// Upstream's cases of Evict: dry run, filter, creation.
#[test]
fn evictable_pod_gets_a_job() {
    let dry = evict_result(json!({"dryRun": true}), json!({}));
    assert_eq!(dry, Ok(Intent::Nothing));
    let bare = json!({"metadata": {"ownerReferences": null}});
    assert_eq!(evict_result(json!({}), bare), Err("BarePods"));
    let elsewhere = json!({"spec": {"schedulerName": "default-scheduler"}});
    assert_eq!(
        evict_result(json!({}), elsewhere.clone()),
        Err("SchedulerName")
    );
    let directly = json!({"defaultJobMode": "EvictDirectly"});
    assert!(matches!(
        evict_result(directly, elsewhere),
        Ok(Intent::Job(_))
    ));
    let args = json!({"defaultDeleteOptions": {"gracePeriodSeconds": 30}, "defaultJobTTL": "2m"});
    let Ok(Intent::Job(job)) = evict_result(args, json!({})) else {
        panic!("no job");
    };
    let job = serde_json::to_value(job).unwrap();
    let annotations = &job["metadata"]["annotations"];
    assert_eq!(annotations["koordinator.sh/evict-reason"], "test-reason");
    assert_eq!(annotations["koordinator.sh/evict-trigger"], "test-plugin");
    assert!(
        annotations["koordinator.sh/job-created-by"]
            .as_str()
            .unwrap()
            .len()
            == 36
    );
    assert_eq!(annotations["descheduler.koordinator.sh/profile"], "profile");
    assert_eq!(annotations["descheduler.koordinator.sh/controller"], "rs");
    let spec = json!({"podRef": {"namespace": "default", "name": "p", "uid": "uid-p"}, "mode": "ReservationFirst",
        "ttl": "2m0s", "deleteOptions": {"gracePeriodSeconds": 30}});
    assert_eq!(job["spec"], spec);
    assert_eq!(job["status"]["phase"], "Pending");
    let name = job["metadata"]["name"].as_str().unwrap();
    assert!(uuid::Uuid::parse_str(name).is_ok(), "{name}");
}

#[test]
fn same_decision_makes_the_same_job() {
    let mut world = TestCluster::default();
    let (p, q) = (
        world.pod("p", "n", json!({})),
        world.pod("q", "n", json!({})),
    );
    let mut snapshot = world.snapshot();
    let shared = Migrations::new("profile", "process", MigrationControllerArgs::default());
    let name = |snapshot: &Snapshot, pod| {
        let request = EvictionRequest {
            pod,
            strategy: "s",
            reason: "r",
            delete_options: None,
        };
        shared.job(snapshot, &request).metadata.name.unwrap()
    };
    let first = name(&snapshot, &p);
    assert_eq!(first, name(&snapshot, &p));
    assert_ne!(first, name(&snapshot, &q));
    snapshot.jobs = vec![job("before", "p", json!({"status": {"phase": "Failed"}}))];
    assert_ne!(first, name(&snapshot, &p));
}

#[test]
fn object_limiter_blocks_new_jobs() {
    let mut world = TestCluster::default();
    let pod = world.pod("p", "n", json!({}));
    let mut snapshot = world.snapshot();
    replicas(&mut snapshot, "rs", 10);
    let shared = Migrations::new("profile", "process", MigrationControllerArgs::default());
    shared.allows(&pod, snapshot.now).unwrap();
    let claim = |free| shared.claim(snapshot.workloads.get("rs"), &pod, free, snapshot.now);
    claim(false).unwrap();
    let reason = shared.allows(&pod, snapshot.now).unwrap_err();
    assert_eq!(reason.rule, "WorkloadLimiter");
    assert_eq!(claim(false), Err(reason));
    claim(true).unwrap();
    // The claim was rejected.
    shared.return_tokens(&pod);
    shared.allows(&pod, snapshot.now).unwrap();
}

#[test]
fn planned_moves_count_in_their_cycle() {
    let mut world = TestCluster::default();
    let pods: Vec<_> = (0..3)
        .map(|i| world.pod(&format!("p{i}"), "n", json!({})))
        .collect();
    let mut snapshot = world.snapshot();
    replicas(&mut snapshot, "rs", 100);
    let built = build(tests::args(json!({})), "profile");
    let mut filter = built.filter.unwrap();
    filter.begin(&snapshot);
    for pod in &pods[..2] {
        filter.filter(&snapshot, pod).unwrap();
        filter.moved(&snapshot, pod);
        let repeated = filter.filter(&snapshot, pod).unwrap_err();
        assert_eq!(repeated.rule, "ExistingJob");
    }
    let reason = filter.filter(&snapshot, &pods[2]).unwrap_err();
    assert_eq!(reason.rule, "MaxMigratingPerNode");
    filter.begin(&snapshot);
    filter.filter(&snapshot, &pods[2]).unwrap();
}

#[test]
fn node_fit_is_checked_last() {
    let mut world = TestCluster::default();
    for (name, labels) in [("n", json!({"pool": "a"})), ("m", json!({"pool": "b"}))] {
        world.node(name, json!({"metadata": {"labels": labels}}));
    }
    let requests = json!({"requests": {"cpu": "3"}});
    let container = json!([{"name": "c", "image": "c", "resources": requests}]);
    let pod = world.pod("p", "n", json!({"spec": {"containers": container}}));
    let pre_evict = |args: Value, snapshot: &Snapshot| {
        let built = build(tests::args(args), "profile");
        let filter = built.filter.unwrap();
        let verdict = filter.pre_evict(snapshot, &snapshot.nodes, &pod);
        verdict.map_err(|reason| reason.rule)
    };
    let fit = json!({"nodeFit": true});
    let mut snapshot = world.snapshot();
    assert_eq!(pre_evict(fit.clone(), &snapshot), Ok(()));
    let selected = json!({"nodeFit": true, "nodeSelector": "pool=a"});
    assert_eq!(pre_evict(selected, &snapshot), Err("NodeFit"));
    world.pod("q", "m", json!({"spec": {"containers": container}}));
    snapshot = world.snapshot();
    assert_eq!(pre_evict(fit, &snapshot), Err("NodeFit"));
    assert_eq!(pre_evict(json!({}), &snapshot), Ok(()));
    let gate = json!({"nodeFit": true, "skipEvictionGates": ["NodeFit"]});
    assert_eq!(pre_evict(gate, &snapshot), Ok(()));
}

#[test]
fn budget_blocked_pod_gets_no_job() {
    let mut world = TestCluster::default();
    let label = |app: &str| json!({"metadata": {"labels": {"app": app}}});
    let pods = ["a", "b"].map(|name| world.pod(name, name, label("web")));
    let deleted = json!({"metadata": {"labels": {"koordinator.sh/evict-policy": "Delete"}}});
    let deleted = world.pod("deleted", "d", merged(label("web"), deleted));
    let mut snapshot = world.snapshot();
    replicas(&mut snapshot, "rs", 100);
    let mut evict = |left: i32, args: Value| {
        let budget = json!({
            "metadata": {"name": "budget", "namespace": "default", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": left, "observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1,
                "expectedPods": 1},
        });
        snapshot.budgets = vec![Arc::new(serde_json::from_value(budget).unwrap())];
        let built = build(tests::args(args), "profile");
        let mut filter = built.filter.unwrap();
        filter.begin(&snapshot);
        [&pods[0], &pods[1], &deleted].map(|pod| {
            let verdict = filter.filter(&snapshot, pod).map_err(|reason| reason.rule);
            if verdict.is_ok() {
                filter.moved(&snapshot, pod);
            }
            verdict
        })
    };
    let refused = Err("PodDisruptionBudget");
    assert_eq!(evict(0, json!({})), [refused, refused, Ok(())]);
    assert_eq!(evict(1, json!({})), [Ok(()), refused, Ok(())]);
    assert_eq!(evict(2, json!({})), [Ok(()); 3]);
    // Policies other than Eviction ignore budgets.
    assert_eq!(evict(0, json!({"evictionPolicy": "Delete"})), [Ok(()); 3]);
}

/// A placement with capacity for one pod per cycle.
#[derive(Debug, Default)]
struct OneSlot(bool);

impl Placement for OneSlot {
    fn begin(&mut self, _: &Snapshot) {
        self.0 = true;
    }
    fn place_tentatively(
        &mut self,
        _: &Snapshot,
        _: &Arc<PodInfo>,
    ) -> Result<Arc<str>, SkipReason> {
        match std::mem::take(&mut self.0) {
            true => Ok("cold".into()),
            false => Err(SkipReason::new("NoTarget", "no node is left")),
        }
    }
}

/// A strategy that evicts every pod in order, without calling filters.
#[derive(Debug)]
struct All;

impl Strategy for All {
    fn name(&self) -> &'static str {
        "All"
    }
    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        for pod in &cycle.snapshot().pods {
            let _ = cycle.evict(pod, "why not");
        }
        Ok(())
    }
}

#[test]
fn refused_pod_claims_no_target() {
    let mut world = TestCluster::default();
    world.node("hot", json!({}));
    world.node("cold", json!({}));
    let limited = world.pod("limited", "hot", json!({}));
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "v", "uid": "v", "controller": true}]);
    world.pod(
        "other",
        "hot",
        json!({"metadata": {"ownerReferences": owner}}),
    );
    let mut snapshot = world.snapshot();
    for uid in ["rs", "v"] {
        replicas(&mut snapshot, uid, 10);
    }
    for dry_run in [false, true] {
        let mut framework = crate::testing::balancing(Box::new(All), Vec::new());
        let built = build(tests::args(json!({})), "profile");
        framework.profiles[0].evictor = built.evict.unwrap();
        framework.profiles[0].filters.extend(built.filter);
        framework.placement = Some(Box::new(OneSlot::default()));
        framework.dry_run = dry_run;
        let workload = limited
            .controller()
            .and_then(|owner| snapshot.workloads.get(&owner.uid));
        let migrations = &framework.migrations()[0];
        let claimed = migrations.claim(workload, &limited, false, snapshot.now);
        claimed.unwrap();
        let plan = framework.run(&snapshot);
        let skipped: Vec<_> = plan
            .skipped
            .iter()
            .map(|skipped| skipped.reason.rule)
            .collect();
        assert_eq!(skipped, ["WorkloadLimiter"]);
        assert_eq!(crate::testing::moved(&plan), ["other"]);
    }
}
