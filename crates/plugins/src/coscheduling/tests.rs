//! Tests of `Coscheduling` in an engine with resource fit as the only other filter.

use super::*;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, Engine, EngineOptions, Output};
use koord_scheduler::framework::{Indexes, Profiles, Write};
use serde_json::json;
use std::collections::{BTreeSet, VecDeque};

mod invalid;
mod preemption;
mod properties;
mod scenarios;
mod topology;

const NOW: i64 = 1_700_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

/// Engine with its outputs since the last `run`.
struct GangWorld {
    engine: Engine,
    now: i64,
    /// Nodes of pods that are bound in the API, by pod.
    bound: BTreeMap<String, String>,
    /// Condition messages, by pod.
    conditions: BTreeMap<String, String>,
    /// Condition messages of pods that were not tried, by pod.
    explained: BTreeMap<String, String>,
    /// Annotations and labels that pods get with their bindings.
    patches: BTreeMap<String, BTreeMap<String, String>>,
    labels: BTreeMap<String, BTreeMap<String, String>>,
    problems: Vec<String>,
    /// Pods with a pending eviction.
    evicted: Vec<Arc<PodInfo>>,
    /// Nominated nodes of pods that are not bound, by pod.
    nominated: BTreeMap<String, String>,
    writes: Vec<Write>,
    /// Number of scheduling cycles.
    cycles: usize,
    /// Pods whose binding the API rejects.
    refuse: BTreeSet<String>,
    /// True if bindings are answered immediately.
    answer: bool,
    pending: Vec<(Arc<PodInfo>, String)>,
    /// Pods in the API, by name.
    pods: BTreeMap<String, Pod>,
    /// True if the engine receives its status writes immediately.
    echo: bool,
    /// Nominations that the engine has not received yet: pods with nodes, in order.
    echoes: VecDeque<(String, String)>,
}

fn world(args: Value) -> GangWorld {
    gated_world(args, BTreeMap::new())
}

fn gated_world(args: Value, gates: BTreeMap<String, bool>) -> GangWorld {
    built_world(args, &BuildContext::with_gates(gates))
}

fn built_world(args: Value, context: &BuildContext) -> GangWorld {
    world_with(&[], args, context)
}

/// Builds a world with other plugins, in the order of the sample configuration.
fn world_with(others: &[&str], args: Value, context: &BuildContext) -> GangWorld {
    world_given(others, &[(NAME, args)], context)
}

/// Builds a world like [`world_with`], with arguments for several plugins.
fn world_given(others: &[&str], args: &[(&str, Value)], context: &BuildContext) -> GangWorld {
    let first = [
        "SchedulingGates",
        "NodeResourcesFit",
        NAME,
        "DynamicResources",
    ];
    let plugins = first.iter().chain(others).chain(&["DefaultBinder"]);
    let enabled: Vec<Value> = plugins.map(|name| json!({"name": name})).collect();
    let args = args.iter();
    let args: Vec<Value> = args
        .map(|(name, args)| json!({"name": name, "args": args}))
        .collect();
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": enabled
            }},
            "pluginConfig": args
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let profiles = Profiles::build(&config, &crate::registry(), context, false).unwrap();
    GangWorld {
        engine: Engine::new(&config, profiles, EngineOptions::default()),
        now: 0,
        bound: BTreeMap::new(),
        conditions: BTreeMap::new(),
        explained: BTreeMap::new(),
        patches: BTreeMap::new(),
        labels: BTreeMap::new(),
        problems: Vec::new(),
        evicted: Vec::new(),
        nominated: BTreeMap::new(),
        writes: Vec::new(),
        cycles: 0,
        refuse: BTreeSet::new(),
        answer: true,
        pending: Vec::new(),
        pods: BTreeMap::new(),
        echo: true,
        echoes: VecDeque::new(),
    }
}

/// Builds a pod of one core. `change` is merged into its metadata and spec.
fn pod(name: &str, change: Value) -> Pod {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
        }
    });
    for (key, part) in change.as_object().into_iter().flatten() {
        for (field, content) in part.as_object().into_iter().flatten() {
            value[key][field] = content.clone();
        }
    }
    serde_json::from_value(value).unwrap()
}

/// Builds a pod with annotations that describe its gang.
fn annotated(name: &str, gang: &str, min: usize, more: Value) -> Pod {
    let mut annotations = json!({
        "gang.scheduling.koordinator.sh/name": gang,
        "gang.scheduling.koordinator.sh/min-available": min.to_string(),
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        annotations[format!("gang.scheduling.koordinator.sh/{key}")] = value.clone();
    }
    pod(name, json!({"metadata": {"annotations": annotations}}))
}

/// Builds a pod of a PodGroup.
fn member(name: &str, group: &str) -> Pod {
    let labels = json!({"pod-group.scheduling.sigs.k8s.io": group});
    pod(name, json!({"metadata": {"labels": labels}}))
}

fn on_node(mut pod: Pod, node: &str) -> Pod {
    pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
    pod
}

fn group(name: &str, min: i32, annotations: Value, status: Value) -> PodGroup {
    serde_json::from_value(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {
            "name": name, "namespace": "ns", "uid": format!("pg-{name}"),
            "annotations": annotations, "creationTimestamp": at(0).to_string(),
        },
        "spec": {"minMember": min, "scheduleTimeoutSeconds": 30},
        "status": status
    }))
    .unwrap()
}

impl GangWorld {
    fn node(&mut self, name: &str, cpu: usize) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name},
            "status": {"allocatable": {"cpu": cpu.to_string(), "pods": "5000"}}
        }))
        .unwrap();
        self.engine.node_applied(Arc::new(node), at(self.now));
    }

    fn apply(&mut self, pod: Pod) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.pods.insert(name, pod.clone());
        self.engine.pod_applied(Arc::new(pod), at(self.now));
    }

    fn delete(&mut self, pod: &Pod) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.pods.remove(&name);
        self.nominated.remove(&name);
        self.echoes.retain(|(of, _)| *of != name);
        self.engine.pod_deleted(pod, at(self.now));
    }

    /// Shows the engine the next nomination that it wrote. Returns false if there is none.
    fn one_echo(&mut self) -> bool {
        let Some((name, node)) = self.echoes.pop_front() else {
            return false;
        };
        if let Some(mut pod) = self.pods.get(&name).cloned() {
            let status = pod.status.get_or_insert_default();
            status.nominated_node_name = (!node.is_empty()).then_some(node);
            self.apply(pod);
        }
        true
    }

    fn declare(&mut self, group: PodGroup) {
        self.object(group, Action::ADD);
    }

    fn object(&mut self, group: PodGroup, action: Action) {
        let change = ObjectChange {
            kind: POD_GROUPS,
            action,
            old: None,
            new: Arc::new(group),
        };
        self.engine.object_changed(&change, at(self.now));
    }

    /// Runs scheduling cycles until no pod is ready, and answers bindings.
    fn run(&mut self) {
        for _ in 0..20_000 {
            let scheduled = self.engine.schedule_one(at(self.now)).is_some();
            self.cycles += usize::from(scheduled);
            self.collect();
            let mut echoed = false;
            while self.echo && self.one_echo() {
                echoed = true;
            }
            if !scheduled && !echoed {
                return;
            }
        }
        panic!("the engine does not come to rest");
    }

    /// Advances the time by `seconds`, then behaves like [`Self::run`].
    fn later(&mut self, seconds: i64) {
        self.now += seconds;
        self.run();
    }

    fn collect(&mut self) {
        for output in self.engine.take_outputs() {
            match output {
                Output::Bind(request) => {
                    let (name, node) = (request.pod.name.to_string(), request.node.to_string());
                    self.nominated.remove(&name);
                    self.echoes.retain(|(of, _)| *of != name);
                    self.conditions.remove(&name);
                    self.explained.remove(&name);
                    self.labels.insert(name.clone(), request.patch.labels);
                    self.patches.insert(name, request.patch.annotations);
                    self.pending.push((request.pod, node));
                }
                Output::Failed(failure) => {
                    let name = failure.pod.name.to_string();
                    if let Some(node) = failure.nominated {
                        self.promise(&name, &node);
                    }
                    self.conditions.insert(name, failure.message.to_string());
                }
                Output::Explain { pod, message } => {
                    self.explained.insert(pod.name.to_string(), message);
                }
                Output::Problem(problem) => self.problems.push(problem.message),
                Output::Write(write) => self.writes.push(write),
                Output::Expect { pod, node } => self.promise(&pod.name, &node),
                Output::Evict { victims, .. } => self.evicted.extend(victims),
                Output::Consult(_) => panic!("not here"),
            }
        }
        if self.answer {
            self.answer();
        }
    }

    fn promise(&mut self, pod: &str, node: &str) {
        let before = self.nominated.remove(pod).unwrap_or_default();
        if !node.is_empty() {
            self.nominated.insert(pod.to_owned(), node.to_owned());
        }
        let status = self.pods.get(pod).and_then(|pod| pod.status.as_ref());
        let shown = status.is_some_and(|status| status.nominated_node_name.is_some());
        if before != node || shown && node.is_empty() {
            self.echoes.push_back((pod.to_owned(), node.to_owned()));
        }
    }

    fn answer(&mut self) {
        for (pod, node) in std::mem::take(&mut self.pending) {
            let result = if self.refuse.contains(&*pod.name) {
                Err(BindError {
                    message: "no".to_owned(),
                    gone: false,
                })
            } else {
                self.bound.insert(pod.name.to_string(), node);
                Ok(())
            };
            self.engine.bind_finished(&pod.uid, result, at(self.now));
        }
    }

    /// Returns the number of pods on nodes, and how many of them are only assumed.
    fn booked(&self) -> (usize, usize) {
        self.engine.cluster().booked()
    }

    fn bound(&self) -> Vec<&str> {
        self.bound.keys().map(String::as_str).collect()
    }

    fn condition(&self, pod: &str) -> &str {
        self.conditions.get(pod).map_or("", String::as_str)
    }
}

/// Builds a plugin with the same input as the engine, to check why a pod may not enter the queue.
fn plugin(objects: &[PodGroup], pods: &[Pod]) -> Coscheduling {
    let table = koord_model::resources::ResourceTable::new();
    let nodes = koord_scheduler::state::NodeStore::default();
    let view = View {
        nodes: &nodes,
        resources: &table,
        indexes: &Indexes::default(),
        now: at(0),
    };
    let mut plugin = Coscheduling {
        settings: PerProfile::new(Args::default().settings().unwrap()),
        explain_skipped: true,
        gangs: Gangs::default(),
        topology: None,
        plan: None,
        budgets: budgets::BudgetChecks::from_gates(&BuildContext::default()),
        preempted: None,
        pod_groups: Some(PodGroups::default()),
        reported: ReportedProblems::default(),
        orphans: Orphans::default(),
        attempts: metrics::Attempts::default(),
    };
    let mut fx = Effects::default();
    for object in objects {
        let change = ObjectChange {
            kind: POD_GROUPS,
            action: Action::ADD,
            old: None,
            new: Arc::new(object.clone()),
        };
        plugin.on_object(&change, view, &mut fx);
    }
    for pod in pods {
        let info = PodInfo::new(Arc::new(pod.clone()), &table).unwrap();
        plugin.on_pod(&Arc::new(info), view, &mut fx);
    }
    plugin
}

#[test]
fn invalid_arguments_are_reported() {
    for (args, expected) in [
        (json!({"defaultTimeout": "-1s"}), "defaultTimeout: -1s"),
        (json!({"controllerWorkers": 0}), "controllerWorkers: 0"),
        (json!({"defaultMatchPolicy": "always"}), "\"always\""),
        (json!({"defaultTimeouts": "1s"}), "defaultTimeouts"),
    ] {
        let error = build(Some(&args), &BuildContext::default());
        let error = error.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let accepted = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "CoschedulingArgs",
        "defaultTimeout": "600s", "controllerWorkers": 1, "skipCheckScheduleCycle": true,
        "enablePreemption": true, "awareNetworkTopology": true,
        "defaultMatchPolicy": "only-waiting"
    });
    assert!(build(Some(&accepted), &BuildContext::default()).is_ok());
}
