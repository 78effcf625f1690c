use super::*;
use crate::framework::{Ask, Cycle, Intent, Placement, Strategy, StrategyError, Why};
use crate::migration::evict::{self, Policy};
use crate::migration::plugin::{self, Migrations};
use crate::migration::reservation;
use crate::state::PodInfo;
use crate::testing::World;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;

fn pod(over: Value) -> Pod {
    let pod = json!({
        "metadata": {"namespace": "default", "name": "p", "uid": "uid-p", "managedFields": [], "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true}]},
        "spec": {"nodeName": "test-node", "containers": []},
    });
    serde_json::from_value(merged(pod, over)).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn made(job: &PodMigrationJob, pod: &Pod, without_claims: bool) -> Value {
    let options = reservation::options(job, pod, without_claims, now());
    let made = serde_json::to_value(reservation::object(&options)).unwrap();
    // What is made is what the job says.
    let options = serde_json::to_value(options).unwrap();
    assert_eq!(options["template"]["spec"], made["spec"]);
    made
}

/// Upstream's four.
#[test]
fn a_reservation_is_made_from_the_pod_and_avoids_its_node() {
    let elsewhere = json!({"key": "metadata.name", "operator": "NotIn", "values": ["test-node"]});
    let job = job("uid-of-job", "p", json!({"spec": {"ttl": "5m"}}));
    let value = made(&job, &pod(json!({})), false);
    assert_eq!(value["metadata"]["name"], "uid-of-job");
    let labels = json!({"app.kubernetes.io/created-by": "koord-descheduler",
        "scheduling.koordinator.sh/reservation-order": now().as_millisecond().to_string()});
    assert_eq!(value["metadata"]["labels"], labels);
    let spec = &value["spec"];
    assert_eq!(spec["allocateOnce"], true);
    assert_eq!(spec["ttl"], "5m0s");
    let controller = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true,
        "namespace": "default"});
    assert_eq!(spec["owners"], json!([{"controller": controller}]));
    let template = &spec["template"];
    assert!(template["spec"].get("nodeName").is_none(), "{template}");
    let affinity = |template: &Value| {
        template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"]
            .clone()
    };
    assert_eq!(affinity(template), json!([{"matchFields": [elsewhere]}]));
    assert_eq!(template["metadata"]["namespace"], "default");
    assert!(template["metadata"].get("resourceVersion").is_none());
    // Terms are alternatives: each of them says it.
    let expression = |key: &str| json!([{"key": key, "operator": "In", "values": ["xxxx"]}]);
    let terms =
        json!([{"matchExpressions": expression("a")}, {"matchExpressions": expression("b")}]);
    let required =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}},
        {"name": "m", "configMap": {"name": "c"}}]);
    let full = pod(json!({"spec": {"affinity": {"nodeAffinity": required}, "volumes": volumes}}));
    let value = made(&job, &full, false);
    let template = &value["spec"]["template"];
    let expected: Vec<_> = ["a", "b"]
        .map(|key| json!({"matchExpressions": expression(key), "matchFields": [elsewhere]}))
        .into();
    assert_eq!(affinity(template), json!(expected));
    assert_eq!(template["spec"]["volumes"].as_array().unwrap().len(), 3);
    let value = made(&job, &full, true);
    let left = &value["spec"]["template"]["spec"]["volumes"];
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
}

#[test]
fn what_the_user_says_of_a_reservation_stands() {
    let template = json!({"metadata": {"name": "mine", "labels": {"a": "b"}},
        "spec": {"ttl": "1h", "allocateOnce": false, "owners": [{"labelSelector": {}}],
            "template": {"spec": {"containers": [{"name": "c"}]}}}});
    let options = json!({"spec": {"ttl": "5m", "reservationOptions": {"template": template}}});
    let job = job("j", "p", options);
    assert_eq!(reservation::name(&job), "mine");
    let value = made(&job, &pod(json!({})), false);
    assert_eq!(value["metadata"]["name"], "mine");
    assert_eq!(value["metadata"]["labels"]["a"], "b");
    assert_eq!(value["spec"]["ttl"], "1h0m0s");
    assert_eq!(value["spec"]["owners"], json!([{"labelSelector": {}}]));
    assert_eq!(value["spec"]["allocateOnce"], true);
    let containers = &value["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["name"], "c");
}

#[test]
fn a_pod_that_waits_for_a_node_is_the_owner_itself() {
    let status =
        json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]});
    let waits = pod(json!({"spec": {"nodeName": null}, "status": status}));
    let value = made(&job("j", "p", json!({})), &waits, false);
    let object = json!({"kind": "Pod", "namespace": "default", "name": "p", "uid": "uid-p"});
    assert_eq!(value["spec"]["owners"], json!([{"object": object}]));
    let spec = serde_json::from_value(value["spec"].clone()).unwrap();
    assert!(reservation::is_for_pending(&spec));
    assert!(value["spec"]["template"]["spec"].get("affinity").is_none());
    assert!(value["spec"].get("ttl").is_none());
    let bound = made(&job("j", "p", json!({})), &pod(json!({})), false);
    let spec = serde_json::from_value(bound["spec"].clone()).unwrap();
    assert!(!reservation::is_for_pending(&spec));
}

#[test]
fn labels_choose_how_a_pod_is_evicted() {
    let labels = |policy: &str| {
        BTreeMap::from([("koordinator.sh/evict-policy".to_owned(), policy.to_owned())])
    };
    for (pod, job, expected) in [
        (None, None, Policy::Eviction),
        (Some("Delete"), Some("SoftEviction"), Policy::Delete),
        (None, Some("SoftEviction"), Policy::SoftEviction),
        (Some(""), Some("Delete"), Policy::Delete),
        (Some("Nothing"), Some("Delete"), Policy::Eviction),
    ] {
        let (pod_labels, job_labels) = (pod.map(labels), job.map(labels));
        let policy = Policy::of(pod_labels.as_ref(), job_labels.as_ref(), Policy::Eviction);
        assert_eq!(policy, expected, "{pod:?} {job:?}");
    }
}

#[test]
fn a_soft_eviction_says_who_asks_when_and_why() {
    let annotations = json!({"koordinator.sh/evict-reason": "test-reason", "koordinator.sh/evict-trigger": "test-initiator"});
    let over = json!({"metadata": {"annotations": annotations}, "spec": {"deleteOptions": {"gracePeriodSeconds": 7}}});
    let text = evict::soft(&job("j", "p", over), now()).unwrap();
    let said: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(said["initiator"], "test-initiator");
    assert_eq!(said["reason"], "test-reason");
    assert_eq!(said["timestamp"], "2026-01-01T12:00:00Z");
    assert_eq!(said["deleteOptions"]["gracePeriodSeconds"], 7);
    assert_eq!(evict::reason(&job("j", "p", json!({}))), "NotSet");
    let trigger = json!({"metadata": {"annotations": {"koordinator.sh/evict-trigger": "T"}}});
    assert_eq!(evict::reason(&job("j", "p", trigger)), "T");
}

fn asked(args: Value, over: Value) -> Result<Intent, &'static str> {
    let mut world = World::default();
    let pod = world.pod("p", "n", over);
    let mut snapshot = world.snapshot();
    super::replicas(&mut snapshot, "rs", 10);
    let mut built = plugin::build(super::args(args), "profile");
    let ask = Ask {
        pod: &pod,
        strategy: "test-plugin",
        reason: "test-reason",
        delete_options: None,
    };
    let evictor = built.evict.as_mut().unwrap();
    let mut asked = || {
        evictor.admits(&snapshot, &pod)?;
        evictor.evict(&snapshot, &ask)
    };
    let first = asked().map_err(|why| why.rule);
    if matches!(first, Ok(Intent::Job(_))) {
        let again = asked().unwrap_err();
        assert_eq!(again.rule, "ExistingJob", "once in a cycle");
    }
    first
}

/// Upstream's of Evict: dry run, filter, creation.
#[test]
fn a_pod_that_may_go_gets_a_job() {
    let dry = asked(json!({"dryRun": true}), json!({}));
    assert_eq!(dry, Ok(Intent::Nothing));
    let bare = json!({"metadata": {"ownerReferences": null}});
    assert_eq!(asked(json!({}), bare), Err("BarePods"));
    let elsewhere = json!({"spec": {"schedulerName": "default-scheduler"}});
    assert_eq!(asked(json!({}), elsewhere.clone()), Err("SchedulerName"));
    let directly = json!({"defaultJobMode": "EvictDirectly"});
    assert!(matches!(asked(directly, elsewhere), Ok(Intent::Job(_))));
    let args = json!({"defaultDeleteOptions": {"gracePeriodSeconds": 30}, "defaultJobTTL": "2m"});
    let Ok(Intent::Job(job)) = asked(args, json!({})) else {
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
fn the_same_decision_makes_the_same_job_and_a_later_one_another() {
    let mut world = World::default();
    let (p, q) = (
        world.pod("p", "n", json!({})),
        world.pod("q", "n", json!({})),
    );
    let mut snapshot = world.snapshot();
    let shared = Migrations::new("profile", "process", MigrationControllerArgs::default());
    let name = |snapshot: &Snapshot, pod| {
        let ask = Ask {
            pod,
            strategy: "s",
            reason: "r",
            delete_options: None,
        };
        shared.job(snapshot, &ask).metadata.name.unwrap()
    };
    let first = name(&snapshot, &p);
    assert_eq!(first, name(&snapshot, &p));
    assert_ne!(first, name(&snapshot, &q));
    snapshot.jobs = vec![job("before", "p", json!({"status": {"phase": "Failed"}}))];
    assert_ne!(first, name(&snapshot, &p));
}

#[test]
fn an_object_limiter_keeps_pods_of_its_workload_from_getting_jobs() {
    let mut world = World::default();
    let pod = world.pod("p", "n", json!({}));
    let mut snapshot = world.snapshot();
    super::replicas(&mut snapshot, "rs", 10);
    let shared = Migrations::new("profile", "process", MigrationControllerArgs::default());
    shared.allows(&pod, snapshot.now).unwrap();
    let claim = |free| shared.claim(snapshot.workloads.get("rs"), &pod, free, snapshot.now);
    claim(false).unwrap();
    let why = shared.allows(&pod, snapshot.now).unwrap_err();
    assert_eq!(why.rule, "WorkloadLimiter");
    assert_eq!(claim(false), Err(why));
    claim(true).unwrap();
    // It was refused.
    shared.give_back(&pod);
    shared.allows(&pod, snapshot.now).unwrap();
}

#[test]
fn what_a_cycle_has_planned_counts_in_it() {
    let mut world = World::default();
    let pods: Vec<_> = (0..3)
        .map(|at| world.pod(&format!("p{at}"), "n", json!({})))
        .collect();
    let mut snapshot = world.snapshot();
    super::replicas(&mut snapshot, "rs", 100);
    let built = plugin::build(super::args(json!({})), "profile");
    let mut filter = built.filter.unwrap();
    filter.begin(&snapshot);
    for pod in &pods[..2] {
        filter.filter(&snapshot, pod).unwrap();
        filter.moved(&snapshot, pod);
        let again = filter.filter(&snapshot, pod).unwrap_err();
        assert_eq!(again.rule, "ExistingJob");
    }
    let why = filter.filter(&snapshot, &pods[2]).unwrap_err();
    assert_eq!(why.rule, "MaxMigratingPerNode");
    filter.begin(&snapshot);
    filter.filter(&snapshot, &pods[2]).unwrap();
}

#[test]
fn the_last_question_is_whether_it_fits_another_node() {
    let mut world = World::default();
    for (name, labels) in [("n", json!({"pool": "a"})), ("m", json!({"pool": "b"}))] {
        world.node(name, json!({"metadata": {"labels": labels}}));
    }
    let requests = json!({"requests": {"cpu": "3"}});
    let container = json!([{"name": "c", "image": "c", "resources": requests}]);
    let pod = world.pod("p", "n", json!({"spec": {"containers": container}}));
    let asked = |args: Value, snapshot: &Snapshot| {
        let built = plugin::build(super::args(args), "profile");
        let filter = built.filter.unwrap();
        let verdict = filter.pre_evict(snapshot, &snapshot.nodes, &pod);
        verdict.map_err(|why| why.rule)
    };
    let fit = json!({"nodeFit": true});
    let mut snapshot = world.snapshot();
    assert_eq!(asked(fit.clone(), &snapshot), Ok(()));
    let selected = json!({"nodeFit": true, "nodeSelector": "pool=a"});
    assert_eq!(asked(selected, &snapshot), Err("NodeFit"));
    world.pod("q", "m", json!({"spec": {"containers": container}}));
    snapshot = world.snapshot();
    assert_eq!(asked(fit, &snapshot), Err("NodeFit"));
    assert_eq!(asked(json!({}), &snapshot), Ok(()));
    let gate = json!({"nodeFit": true, "skipEvictionGates": ["NodeFit"]});
    assert_eq!(asked(gate, &snapshot), Ok(()));
}

#[test]
fn a_pod_that_a_budget_keeps_gets_no_job() {
    let mut world = World::default();
    let label = |app: &str| json!({"metadata": {"labels": {"app": app}}});
    let pods = ["a", "b"].map(|name| world.pod(name, name, label("web")));
    let deleted = json!({"metadata": {"labels": {"koordinator.sh/evict-policy": "Delete"}}});
    let deleted = world.pod("deleted", "d", merged(label("web"), deleted));
    let mut snapshot = world.snapshot();
    super::replicas(&mut snapshot, "rs", 100);
    let mut asked = |left: i32, args: Value| {
        let budget = json!({
            "metadata": {"name": "budget", "namespace": "default", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": left, "observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1,
                "expectedPods": 1},
        });
        snapshot.budgets = vec![Arc::new(serde_json::from_value(budget).unwrap())];
        let built = plugin::build(super::args(args), "profile");
        let mut filter = built.filter.unwrap();
        filter.begin(&snapshot);
        [&pods[0], &pods[1], &deleted].map(|pod| {
            let verdict = filter.filter(&snapshot, pod).map_err(|why| why.rule);
            if verdict.is_ok() {
                filter.moved(&snapshot, pod);
            }
            verdict
        })
    };
    let kept = Err("PodDisruptionBudget");
    assert_eq!(asked(0, json!({})), [kept, kept, Ok(())]);
    assert_eq!(asked(1, json!({})), [Ok(()), kept, Ok(())]);
    assert_eq!(asked(2, json!({})), [Ok(()); 3]);
    // Who is deleted, or asked to go, goes whatever budgets say.
    assert_eq!(asked(0, json!({"evictionPolicy": "Delete"})), [Ok(()); 3]);
}

/// Has room for one pod in each cycle.
#[derive(Debug, Default)]
struct OneSlot(bool);

impl Placement for OneSlot {
    fn begin(&mut self, _: &Snapshot) {
        self.0 = true;
    }
    fn promise(&mut self, _: &Snapshot, _: &Arc<PodInfo>) -> Result<Arc<str>, Why> {
        match std::mem::take(&mut self.0) {
            true => Ok("cold".into()),
            false => Err(Why::new("NoTarget", "no node is left")),
        }
    }
}

/// Wants every pod gone, in order, whatever filters say.
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
fn who_gets_no_job_takes_no_room_from_others() {
    let mut world = World::default();
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
        super::replicas(&mut snapshot, uid, 10);
    }
    for dry_run in [false, true] {
        let mut framework = crate::testing::balancing(Box::new(All), Vec::new());
        let built = plugin::build(super::args(json!({})), "profile");
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
        let kept: Vec<_> = plan.kept.iter().map(|kept| kept.why.rule).collect();
        assert_eq!(kept, ["WorkloadLimiter"]);
        assert_eq!(crate::testing::moved(&plan), ["other"]);
    }
}
