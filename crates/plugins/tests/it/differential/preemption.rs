//! Cached preemption dry runs: an engine with caches and one without choose the same victims on the same
//! nodes, with all plugins enabled.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_api::scheduling::{ElasticQuota, Reservation};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, BindRequest, Engine, EngineOptions, Output};
use koord_scheduler::framework::{Action, BindPlan, BuildContext, ObjectChange, Profiles};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

const BUDGETS: &str = "poddisruptionbudgets.v1.policy";
const QUOTAS: &str = "elasticquotas.v1alpha1.scheduling.sigs.k8s.io";
pub(crate) const RESERVATIONS: &str = "reservations.v1alpha1.scheduling.koordinator.sh";
const APPS: [&str; 3] = ["a", "b", "c"];
pub(super) const QUOTA: &str = "quota.scheduling.koordinator.sh/name";
const PRIORITIES: [i32; 6] = [-10, 0, 0, 5, 50, 9100];

/// Builds an engine; with `few`, preemption tries only a few candidates.
fn engine(cached: bool, few: bool) -> Engine {
    let args = json!({"minCandidateNodesPercentage": 20, "minCandidateNodesAbsolute": 1});
    let mut config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "koord-scheduler"}]
    });
    if few {
        config["profiles"][0]["pluginConfig"] =
            json!([{"name": "DefaultPreemption", "args": args}]);
    }
    let config = Configuration::parse(&config.to_string()).unwrap();
    let registry = koord_plugins::registry();
    let profiles = Profiles::build(&config, &registry, &BuildContext::default(), true).unwrap();
    let options = EngineOptions {
        seed: 3,
        max_classes: 4,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&config, profiles, options);
    engine.set_caching(cached);
    engine
}

#[derive(Debug, Clone)]
enum PreemptionStep {
    Node {
        name: u8,
        cpu: u8,
        zone: u8,
        cordoned: bool,
    },
    NodeGone(u8),
    /// Pod that is on a node or pending.
    Pod {
        shape: u8,
        priority: u8,
        app: u8,
        quota: u8,
        start: u8,
        on: Option<u8>,
    },
    /// Several equal pods at once.
    Pods {
        priority: u8,
        count: u8,
        quota: u8,
    },
    Starts(u8, u8),
    Relabelled(u8),
    /// Adds or removes the annotation about the reservation that a pod uses.
    Owns(u8, u8),
    Terminates(u8),
    Gone(u8),
    Stays(u8),
    /// Deletes a pending pod.
    Withdrawn(u8),
    Confirmed(u8),
    BindFails(u8),
    /// Shows the nomination of a pending pod, or its removal.
    Echo(u8, bool),
    Budget {
        app: u8,
        allowed: u8,
        disrupted: u8,
    },
    BudgetGone(u8),
    Quota {
        name: u8,
        max: u8,
    },
    Reservation {
        name: u8,
        node: u8,
        gone: bool,
    },
    Wait(u8),
}

fn step() -> impl Strategy<Value = PreemptionStep> {
    let any = any::<u8>;
    prop_oneof![
        3 => (0..7_u8, 2..6_u8, 0..3_u8, prop::bool::weighted(0.1)).prop_map(
            |(name, cpu, zone, cordoned)| PreemptionStep::Node { name, cpu, zone, cordoned }),
        1 => (0..7_u8).prop_map(PreemptionStep::NodeGone),
        14 => (0..12_u8, 0..6_u8, 0..3_u8, 0..6_u8, 0..4_u8, prop::option::of(0..7_u8)).prop_map(
            |(shape, priority, app, quota, start, on)|
            PreemptionStep::Pod { shape, priority, app, quota, start, on }),
        8 => (3..6_u8, 1..4_u8, prop::sample::select(vec![0_u8, 1, 5, 5])).prop_map(|(priority, count, quota)| PreemptionStep::Pods { priority, count, quota }),
        1 => (any(), 0..4_u8).prop_map(|(pod, start)| PreemptionStep::Starts(pod, start)),
        1 => any().prop_map(PreemptionStep::Relabelled),
        1 => (any(), 0..4_u8).prop_map(|(pod, of)| PreemptionStep::Owns(pod, of)),
        2 => any().prop_map(PreemptionStep::Terminates),
        4 => any().prop_map(PreemptionStep::Gone),
        1 => any().prop_map(PreemptionStep::Stays),
        1 => any().prop_map(PreemptionStep::Withdrawn),
        4 => any().prop_map(PreemptionStep::Confirmed),
        1 => any().prop_map(PreemptionStep::BindFails),
        2 => (any(), prop::bool::weighted(0.8)).prop_map(|(pod, there)| PreemptionStep::Echo(pod, there)),
        5 => (0..3_u8, 0..3_u8, any()).prop_map(
            |(app, allowed, disrupted)| PreemptionStep::Budget { app, allowed, disrupted }),
        1 => (0..3_u8).prop_map(PreemptionStep::BudgetGone),
        1 => (0..2_u8, 1..8_u8).prop_map(|(name, max)| PreemptionStep::Quota { name, max }),
        1 => (0..3_u8, 0..7_u8, prop::bool::weighted(0.3)).prop_map(
            |(name, node, gone)| PreemptionStep::Reservation { name, node, gone }),
        2 => (0..40_u8).prop_map(PreemptionStep::Wait),
    ]
}

pub(crate) fn parsed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn change<T: Any + Send + Sync>(
    kind: &'static str,
    object: T,
    gone: bool,
) -> ObjectChange {
    ObjectChange {
        kind,
        action: if gone { Action::DELETE } else { Action::UPDATE },
        old: None,
        new: Arc::new(object),
    }
}

fn node(name: u8, cpu: u8, zone: u8, cordoned: bool) -> Arc<Node> {
    let name = format!("n{name}");
    Arc::new(parsed(json!({
        "metadata": {"name": name, "uid": name, "labels": {
            "zone": format!("z{zone}"), "kubernetes.io/hostname": name}},
        "spec": {"unschedulable": cordoned},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "8"}}
    })))
}

pub(super) fn at(minutes: u8) -> String {
    let start = SignedDuration::from_mins(i64::from(minutes));
    (Timestamp::from_second(1_699_000_000).unwrap() + start).to_string()
}

fn pod(number: usize, shape: u8, priority: u8, app: &str, quota: u8, start: u8) -> Value {
    let term = |key: &str, app: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let mut spec = json!({
        "schedulerName": "koord-scheduler",
        "priority": PRIORITIES[usize::from(priority)],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    });
    match shape {
        0 | 1 => spec["containers"][0]["resources"]["requests"]["cpu"] = json!("2"),
        2 => spec["containers"][0]["resources"]["requests"]["cpu"] = json!("3500m"),
        3 => spec["preemptionPolicy"] = json!("Never"),
        4 => spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]),
        5 => spec["nodeSelector"] = json!({"zone": "z1"}),
        6 => {
            spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": app}}}]);
        }
        7 => {
            spec["affinity"] =
                json!({"podAntiAffinity": {required: [term("kubernetes.io/hostname", app)]}});
        }
        8 => spec["affinity"] = json!({"podAffinity": {required: [term("zone", "a")]}}),
        _ => {}
    }
    let mut labels = json!({"app": app});
    if quota < 2 {
        labels[QUOTA] = json!(format!("q{quota}"));
    }
    if quota == 2 {
        labels["owner"] = json!("r");
    }
    if quota == 3 && shape == 9 {
        labels["quota.scheduling.koordinator.sh/preemptible"] = json!("false");
    }
    let name = format!("p{number}");
    json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels},
        "spec": spec,
        "status": {"startTime": at(start)}
    })
}

fn budget(app: u8, allowed: u8, disrupted: &str, gone: bool) -> ObjectChange {
    let name = format!("b{app}");
    let budget: PodDisruptionBudget = parsed(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"selector": {"matchLabels": {"app": APPS[usize::from(app)]}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1, "disruptedPods": {disrupted: at(0)}}
    }));
    change(BUDGETS, budget, gone)
}

pub(super) fn quota(name: u8, max: u8) -> ObjectChange {
    let name = format!("q{name}");
    let quota: ElasticQuota = parsed(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": name, "namespace": "ns", "uid": name,
            "labels": {"quota.scheduling.koordinator.sh/parent": "koordinator-root-quota"}},
        "spec": {"min": {"cpu": max.min(2)}, "max": {"cpu": max}}
    }));
    change(QUOTAS, quota, false)
}

fn reservation(name: u8, node: u8, gone: bool) -> ObjectChange {
    let name = format!("r{name}");
    let amounts = json!({"cpu": "1"});
    let time = at(0);
    let condition = |kind: &str, reason: &str| {
        json!({"type": kind, "status": "True", "reason": reason,
            "lastProbeTime": time, "lastTransitionTime": time})
    };
    let reservation: Reservation = parsed(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
        "metadata": {"name": name, "uid": name, "creationTimestamp": time},
        "spec": {
            "template": {"spec": {"schedulerName": "koord-scheduler", "containers": [
                {"name": "c", "image": "i", "resources": {"requests": amounts}}]}},
            "ttl": "0s", "allocateOnce": false,
            "owners": [{"labelSelector": {"matchLabels": {"owner": "r"}}}]
        },
        "status": {"phase": "Available", "nodeName": format!("n{node}"), "allocatable": amounts,
            "conditions": [condition("Scheduled", "Scheduled"), condition("Ready", "Available")]}
    }));
    change(RESERVATIONS, reservation, gone)
}

/// Simulated content of the API server, as far as both engines agree.
#[derive(Debug, Default)]
pub(super) struct PreemptionWorld {
    pub(super) pods: BTreeMap<String, Value>,
    /// Names of pods on nodes, assumed or bound.
    pub(super) placed: Vec<String>,
    pub(super) waiting: Vec<String>,
    pub(super) evicting: Vec<String>,
    evictions: usize,
    /// Nodes of placed reservations, by uid.
    pub(super) reserved: BTreeMap<String, String>,
}

impl PreemptionWorld {
    pub(super) fn pick(names: &[String], number: u8) -> Option<String> {
        let at = usize::from(number).checked_rem(names.len())?;
        Some(names[at].clone())
    }

    pub(super) fn remove(&mut self, name: &str) {
        for names in [&mut self.placed, &mut self.waiting, &mut self.evicting] {
            names.retain(|other| other != name);
        }
    }

    fn bound(&mut self, request: &BindRequest) {
        if request.plan != BindPlan::Binding {
            let node = request.node.to_string();
            self.reserved.insert(request.pod.uid.to_string(), node);
            return;
        }
        let name = request.pod.name.to_string();
        let pod = self.pods.get_mut(&name).unwrap();
        for (key, value) in &request.patch.annotations {
            pod["metadata"]["annotations"][key] = json!(value);
        }
        for (key, value) in &request.patch.labels {
            pod["metadata"]["labels"][key] = json!(value);
        }
        pod["assumed"] = json!(&*request.node);
        self.waiting.retain(|other| *other != name);
        self.placed.push(name);
    }
}

/// Returns the outputs to compare, and applies them to the world.
pub(super) fn drain(
    engine: &mut Engine,
    now: Timestamp,
    mut world: Option<&mut PreemptionWorld>,
) -> Vec<String> {
    let mut out = Vec::new();
    for _ in 0..100 {
        let decided = engine.schedule_one(now).is_some();
        let outputs = engine.take_outputs();
        if !decided && outputs.is_empty() {
            break;
        }
        for output in outputs {
            out.push(match &output {
                Output::Bind(bind) => format!("{} -> {}", bind.pod.name, bind.node),
                Output::Failed(failure) => format!(
                    "{}: {} nominated {:?}",
                    failure.pod.name, failure.message, failure.nominated
                ),
                Output::Evict {
                    preemptor,
                    node,
                    victims,
                } => {
                    let victims: Vec<&str> = victims.iter().map(|pod| &*pod.name).collect();
                    format!("{} evicts {victims:?} from {node}", preemptor.name)
                }
                Output::Write(write) => format!("{write:?}"),
                Output::Expect { pod, node } => format!("{} expects {node}", pod.name),
                Output::Explain { pod, message } => format!("{}: {message}", pod.name),
                Output::Consult(call) => format!("{} asks {:?}", call.pod.name, call.extenders),
                Output::Problem(problem) => problem.message.clone(),
            });
            let Some(world) = world.as_deref_mut() else {
                continue;
            };
            match output {
                Output::Bind(request) => world.bound(&request),
                Output::Evict { victims, .. } => {
                    world.evictions += victims.len();
                    world
                        .evicting
                        .extend(victims.iter().map(|pod| pod.name.to_string()));
                }
                _ => {}
            }
        }
    }
    out
}

pub(super) fn object(pod: &Value) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.as_object_mut().unwrap().remove("assumed");
    Arc::new(parsed(pod))
}

/// Applies a step to both engines. Steps about pods choose an existing one.
fn play(
    step: &PreemptionStep,
    engines: &mut [Engine; 2],
    world: &mut PreemptionWorld,
    now: Timestamp,
) {
    let show = |engines: &mut [Engine; 2], pod: &Value| {
        for engine in engines {
            engine.pod_applied(object(pod), now);
        }
    };
    let notify = |engines: &mut [Engine; 2], change: &ObjectChange| {
        for engine in engines {
            engine.object_changed(change, now);
        }
    };
    let bound: Vec<String> = {
        let is_bound = |name: &&String| world.pods[*name]["spec"]["nodeName"].is_string();
        world.placed.iter().filter(is_bound).cloned().collect()
    };
    match *step {
        PreemptionStep::Node {
            name,
            cpu,
            zone,
            cordoned,
        } => {
            for engine in engines {
                engine.node_applied(node(name, cpu, zone, cordoned), now);
            }
        }
        PreemptionStep::NodeGone(name) => {
            for engine in engines {
                engine.node_deleted(&format!("n{name}"), now);
            }
        }
        PreemptionStep::Pod {
            shape,
            priority,
            app,
            quota,
            start,
            on,
        } => {
            let app = APPS[usize::from(app)];
            let mut pod = pod(world.pods.len(), shape, priority, app, quota, start);
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            if let Some(node) = on {
                pod["spec"]["nodeName"] = json!(format!("n{node}"));
                world.placed.push(name.clone());
            } else {
                world.waiting.push(name.clone());
            }
            show(engines, &pod);
            world.pods.insert(name, pod);
        }
        PreemptionStep::Pods {
            priority,
            count,
            quota,
        } => {
            for _ in 0..count {
                let pod = pod(world.pods.len(), 0, priority, "a", quota, 0);
                let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
                show(engines, &pod);
                world.waiting.push(name.clone());
                world.pods.insert(name, pod);
            }
        }
        PreemptionStep::Starts(number, start) => {
            change_pod(engines, world, &bound, number, now, |pod| {
                pod["status"]["startTime"] = json!(at(start));
            })
        }
        PreemptionStep::Relabelled(number) => {
            change_pod(engines, world, &bound, number, now, |pod| {
                pod["metadata"]["labels"]["scheduling.koordinator.sh/disable-preemptible"] =
                    json!((number % 2 == 0).to_string());
            })
        }
        PreemptionStep::Owns(number, of) => {
            change_pod(engines, world, &bound, number, now, |pod| {
                let name = format!("r{of}");
                let text = json!({"name": name, "uid": name}).to_string();
                pod["metadata"]["annotations"] = if of < 3 {
                    json!({"scheduling.koordinator.sh/reservation-allocated": text})
                } else {
                    json!({})
                };
            })
        }
        PreemptionStep::Terminates(number) => {
            let evicting = world.evicting.clone();
            change_pod(engines, world, &evicting, number, now, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!(at(0));
                pod["status"]["conditions"] = json!([{"type": "DisruptionTarget",
                    "status": "True", "reason": "PreemptionByScheduler"}]);
            });
        }
        PreemptionStep::Gone(number) => {
            // Evicted pods first.
            let from = if world.evicting.is_empty() {
                &bound
            } else {
                &world.evicting
            };
            if let Some(name) = PreemptionWorld::pick(from, number) {
                for engine in engines {
                    engine.pod_deleted(&object(&world.pods[&name]), now);
                }
                world.remove(&name);
            }
        }
        PreemptionStep::Withdrawn(number) => {
            if let Some(name) = PreemptionWorld::pick(&world.waiting, number) {
                for engine in engines {
                    engine.pod_deleted(&object(&world.pods[&name]), now);
                }
                world.remove(&name);
            }
        }
        PreemptionStep::Stays(number) => {
            if let Some(name) = PreemptionWorld::pick(&world.evicting, number) {
                for engine in engines {
                    engine.eviction_failed(&name);
                }
                world.evicting.retain(|other| *other != name);
            }
        }
        PreemptionStep::Confirmed(number) => {
            let placed = world.placed.clone();
            change_pod(engines, world, &placed, number, now, |pod| {
                if let Some(node) = pod["assumed"].as_str().map(str::to_owned) {
                    pod["spec"]["nodeName"] = json!(node);
                }
            });
        }
        PreemptionStep::BindFails(number) => {
            let assumed: Vec<String> = world
                .placed
                .iter()
                .filter(|name| !bound.contains(name))
                .cloned()
                .collect();
            if let Some(name) = PreemptionWorld::pick(&assumed, number) {
                for engine in engines {
                    let error = BindError {
                        message: "conflict".to_owned(),
                        gone: false,
                    };
                    engine.bind_finished(&name, Err(error), now);
                }
                world.remove(&name);
                world.waiting.push(name);
            }
        }
        PreemptionStep::Echo(number, there) => {
            if let Some(name) = PreemptionWorld::pick(&world.waiting, number) {
                let nominated = engines[0]
                    .preemptor()
                    .nominated_node(&name)
                    .map(ToString::to_string);
                let pod = world.pods.get_mut(&name).unwrap();
                pod["status"]["nominatedNodeName"] = json!(nominated.filter(|_| there));
                show(engines, pod);
            }
        }
        PreemptionStep::Budget {
            app,
            allowed,
            disrupted,
        } => {
            let disrupted = PreemptionWorld::pick(&world.placed, disrupted).unwrap_or_default();
            notify(engines, &budget(app, allowed, &disrupted, false));
        }
        PreemptionStep::BudgetGone(app) => notify(engines, &budget(app, 0, "", true)),
        PreemptionStep::Quota { name, max } => notify(engines, &quota(name, max)),
        PreemptionStep::Reservation { name, node, gone } => {
            notify(engines, &reservation(name, node, gone))
        }
        PreemptionStep::Wait(_) => {}
    }
}

pub(super) fn change_pod(
    engines: &mut [Engine; 2],
    world: &mut PreemptionWorld,
    from: &[String],
    number: u8,
    now: Timestamp,
    edit: impl Fn(&mut Value),
) {
    let Some(name) = PreemptionWorld::pick(from, number) else {
        return;
    };
    let pod = world.pods.get_mut(&name).unwrap();
    edit(pod);
    for engine in engines {
        engine.pod_applied(object(pod), now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn victims_are_the_same_with_and_without_caches(
        steps in prop::collection::vec(step(), 40..160),
        few in any::<bool>(),
    ) {
        let mut engines = [engine(true, few), engine(false, few)];
        let mut world = PreemptionWorld::default();
        let mut now = Timestamp::from_second(1_700_000_000).unwrap();
        // The nodes are full at first, so that there is always a victim.
        for number in 0..6 {
            let step = PreemptionStep::Node { name: number, cpu: 4, zone: number % 2, cordoned: false };
            play(&step, &mut engines, &mut world, now);
            for other in 0..2 {
                let (app, quota) = ((number + other) % 3, 2 * other + number % 2);
                let (priority, start) = (number % 3, other);
                let step = PreemptionStep::Pod { shape: 0, priority, app, quota, start, on: Some(number) };
                play(&step, &mut engines, &mut world, now);
            }
        }
        for name in 0..2 {
            play(&PreemptionStep::Quota { name, max: 4 }, &mut engines, &mut world, now);
        }
        for step in steps {
            now += SignedDuration::from_millis(400);
            if let PreemptionStep::Wait(seconds) = step {
                now += SignedDuration::from_secs(seconds.into());
            }
            play(&step, &mut engines, &mut world, now);
            let [remembers, looks] = &mut engines;
            let a = drain(remembers, now, Some(&mut world));
            let b = drain(looks, now, None);
            prop_assert_eq!(a, b, "after {:?}", step);
            prop_assert_eq!(remembers.preemptor().preemptions(), looks.preemptor().preemptions());
            for name in &world.waiting {
                prop_assert_eq!(remembers.preemptor().nominated_node(name), looks.preemptor().nominated_node(name));
            }
            prop_assert!(remembers.cluster().nodes().books_balance() && looks.cluster().nodes().books_balance());
        }
        prop_assert_eq!(engines[0].classes().mismatches(), 0, "every signature is complete");
    }
}
