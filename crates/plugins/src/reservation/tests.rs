use super::*;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, Engine, EngineOptions, Output};
use koord_scheduler::framework::{Profiles, Verb, Write};
use koord_scheduler::state::Booked;
use serde_json::json;

mod allocations;
mod hardware;
mod inside;
mod invalid;
mod late;
mod lifecycle;
mod other_plugins;
mod pre_allocation;
mod preemption;
mod rows;
mod rules;
mod scenes;

/// An engine with this plugin and the basic ones, and an API whose objects follow the engine's outputs.
struct ReservationWorld {
    engine: Engine,
    now: Timestamp,
    reservations: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    /// Messages of failures and problems, each with the object's name.
    messages: Vec<(String, String)>,
    /// True if every write and binding fails.
    broken: bool,
    /// True if bindings of several writes fail at the last write.
    fail_last_write: bool,
    /// True if all pending decisions are made before anything is written.
    decide_all_first: bool,
    cached: bool,
    uids: u32,
    writes: usize,
    /// Names of evicted pods, in order.
    evicted: Vec<String>,
    /// Plugins in addition to the basic ones.
    others: Vec<&'static str>,
    /// Objects that other plugins watch, applied again after a restart.
    shown: Vec<ObjectChange>,
}

fn engine(args: &Value, gates: &[&str]) -> Engine {
    engine_with(args, gates, &[])
}

/// Creates an engine with the basic plugins and `others`.
fn engine_with(args: &Value, gates: &[&str], others: &[&str]) -> Engine {
    let plain = [
        "NodeUnschedulable",
        "NodeAffinity",
        "NodeResourcesFit",
        "SchedulingHint",
    ];
    let plain = plain.iter().chain(others);
    let mut enabled: Vec<Value> = plain.map(|name| json!({"name": name})).collect();
    enabled.push(json!({"name": NAME, "weight": 5000}));
    enabled.push(json!({"name": "DefaultBinder"}));
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": enabled
            }},
            "pluginConfig": [{"name": NAME, "args": args}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let gates = gates
        .iter()
        .map(|gate| ((*gate).to_owned(), true))
        .collect();
    let context = BuildContext::with_gates(gates);
    let profiles = Profiles::build(&config, &crate::registry(), &context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

impl ReservationWorld {
    fn new() -> Self {
        Self::with(&json!({}), &[])
    }

    fn with(args: &Value, gates: &[&str]) -> Self {
        Self {
            engine: engine(args, gates),
            now: Timestamp::from_second(1_700_000_000).unwrap(),
            reservations: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            messages: Vec::new(),
            broken: false,
            fail_last_write: false,
            decide_all_first: false,
            cached: true,
            uids: 0,
            writes: 0,
            evicted: Vec::new(),
            others: Vec::new(),
            shown: Vec::new(),
        }
    }

    /// Creates a world with the additional plugins `others`.
    fn with_plugins(others: &[&'static str]) -> Self {
        Self {
            engine: engine_with(&json!({}), &[], others),
            others: others.to_vec(),
            ..Self::new()
        }
    }

    fn caching(&mut self, on: bool) {
        self.cached = on;
        self.engine.set_caching(on);
    }

    /// Replaces the engine by a new one that lists the same objects; pods or reservations come first.
    fn restart(&mut self, pods_first: bool) {
        self.engine = engine_with(&json!({}), &[], &self.others);
        self.engine.set_caching(self.cached);
        for change in &self.shown {
            self.engine.object_changed(change, self.now);
        }
        if pods_first {
            self.list_pods();
        }
        for name in self.reservations.keys().cloned().collect::<Vec<_>>() {
            self.show(&name, None);
        }
        for node in self.nodes.values() {
            let node: Node = serde_json::from_value(node.clone()).unwrap();
            self.engine.node_applied(Arc::new(node), self.now);
        }
        if !pods_first {
            self.list_pods();
        }
    }

    fn list_pods(&mut self) {
        for pod in self.pods.values() {
            let pod = serde_json::from_value(pod.clone()).unwrap();
            self.engine.pod_applied(Arc::new(pod), self.now);
        }
    }

    fn node(&mut self, name: &str, cpu: i64) {
        self.node_with(name, cpu, json!({}));
    }

    fn node_with(&mut self, name: &str, cpu: i64, labels: Value) {
        let value = json!({
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"allocatable": {"cpu": cpu.to_string(), "memory": "100Gi", "pods": "20"}}
        });
        self.nodes.insert(name.to_owned(), value.clone());
        let node: Node = serde_json::from_value(value).unwrap();
        self.engine.node_applied(Arc::new(node), self.now);
    }

    fn node_gone(&mut self, name: &str) {
        self.nodes.remove(name);
        self.engine.node_deleted(name, self.now);
    }

    /// Creates a reservation of `cpu` for pods with label `app` = `app`; `change` is merged into it.
    fn reserve(&mut self, name: &str, cpu: &str, app: &str, change: Value) {
        self.uids += 1;
        let mut value = json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": {"name": name, "uid": format!("{name}-{}", self.uids),
                "creationTimestamp": self.now.to_string()},
            "spec": {
                "ttl": "24h", "allocateOnce": false,
                "owners": [{"labelSelector": {"matchLabels": {"app": app}}}],
                "template": {"spec": {"schedulerName": "koord-scheduler", "containers":
                    [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}
            }
        });
        merge(&mut value, &change);
        self.reservations.insert(name.to_owned(), value);
        self.show(name, None);
    }

    /// Changes a reservation as its user would.
    fn edit(&mut self, name: &str, change: Value) {
        let old = self.reservations[name].clone();
        merge(self.reservations.get_mut(name).unwrap(), &change);
        self.show(name, Some(&old));
    }

    fn unreserve(&mut self, name: &str) {
        if let Some(last) = self.reservations.remove(name) {
            let new: Reservation = serde_json::from_value(last).unwrap();
            self.change(Action::DELETE, None, new);
        }
    }

    fn show(&mut self, name: &str, old: Option<&Value>) {
        let new: Reservation = serde_json::from_value(self.reservations[name].clone()).unwrap();
        let old = old.map(|old| serde_json::from_value::<Reservation>(old.clone()).unwrap());
        let action = if old.is_some() {
            Action::UPDATE
        } else {
            Action::ADD
        };
        self.change(action, old, new);
    }

    fn change(&mut self, action: Action, old: Option<Reservation>, new: Reservation) {
        let change = ObjectChange {
            kind: RESERVATIONS,
            action,
            old: old.map(|old| Arc::new(old) as Arc<dyn std::any::Any + Send + Sync>),
            new: Arc::new(new),
        };
        self.engine.object_changed(&change, self.now);
    }

    /// Creates a pod of `app` that requests `cpu`.
    fn pod(&mut self, name: &str, cpu: &str, app: &str, change: Value) {
        let mut value = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": app}},
            "spec": {"schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
        });
        merge(&mut value, &change);
        self.pods.insert(name.to_owned(), value);
        self.deliver(name);
    }

    fn deliver(&mut self, name: &str) {
        let pod = serde_json::from_value(self.pods[name].clone()).unwrap();
        self.engine.pod_applied(Arc::new(pod), self.now);
    }

    fn pod_gone(&mut self, name: &str) {
        if let Some(last) = self.pods.remove(name) {
            let pod = serde_json::from_value(last).unwrap();
            self.engine.pod_deleted(&pod, self.now);
        }
    }

    /// Schedules and writes until nothing is left to do.
    fn run(&mut self) {
        for _ in 0..1000 {
            let mut outputs = Vec::new();
            let mut decided = false;
            while self.engine.schedule_one(self.now).is_some() {
                decided = true;
                outputs.extend(self.engine.take_outputs());
                if !self.decide_all_first {
                    break;
                }
            }
            outputs.extend(self.engine.take_outputs());
            if !decided && outputs.is_empty() {
                return;
            }
            for output in outputs {
                self.apply_output(output);
            }
        }
        panic!("no end of work");
    }

    fn later(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        self.run();
    }

    fn apply_output(&mut self, output: Output) {
        match output {
            Output::Bind(request) => {
                let uid = request.pod.uid.clone();
                let failed = || BindError {
                    message: "no".to_owned(),
                    gone: false,
                };
                let result = match &request.plan {
                    _ if self.broken => Err(failed()),
                    BindPlan::Writes(writes) if self.fail_last_write => {
                        let other_writes = writes
                            .split_last()
                            .map_or(&[][..], |(_, other_writes)| other_writes);
                        other_writes.iter().for_each(|w| self.write(w));
                        Err(failed())
                    }
                    BindPlan::Writes(writes) => {
                        let last = writes.split_last();
                        for write in last.map_or(&[][..], |(_, other_writes)| other_writes) {
                            self.write(write);
                        }
                        if let Some((write, _)) = last {
                            self.place(write, &request.patch);
                        }
                        Ok(())
                    }
                    _ => {
                        self.bind(&request.pod.uid, &request.node, &request.patch);
                        Ok(())
                    }
                };
                self.engine.bind_finished(&uid, result, self.now);
            }
            Output::Evict { victims, .. } => {
                for victim in victims {
                    self.evicted.push(victim.name.to_string());
                    self.pod_gone(&victim.name);
                }
            }
            Output::Write(write) if !self.broken => self.write(&write),
            Output::Failed(failure) => {
                let name = match failure.pod.booked() {
                    Booked::Holder(object) => object.name.clone().unwrap_or_default(),
                    Booked::Pod(pod) => pod.name.to_string(),
                };
                self.messages.push((name, failure.message.to_string()));
            }
            Output::Problem(problem) => self.messages.push((problem.name, problem.message)),
            _ => {}
        }
    }

    fn bind(&mut self, uid: &str, node: &str, patch: &PodPatch) {
        if let Some(pod) = self.pods.get_mut(uid) {
            merge(
                pod,
                &json!({"metadata": {"annotations": patch.annotations},
                "spec": {"nodeName": node}}),
            );
            self.deliver(uid);
        }
    }

    /// Applies the write that places a reservation, with the annotations of other plugins.
    fn place(&mut self, write: &Write, patch: &PodPatch) {
        if let Some(reservation) = self.reservations.get_mut(&write.name) {
            let notes = json!({"metadata": {"annotations": patch.annotations}});
            merge(reservation, &notes);
        }
        self.write(write);
    }

    fn write(&mut self, write: &Write) {
        self.writes += 1;
        if write.plural == "pods" {
            if let (Some(pod), Verb::Patch(body)) = (self.pods.get_mut(&write.name), &write.verb) {
                merge(pod, body);
                self.deliver(&write.name.clone());
            }
            return;
        }
        match &write.verb {
            Verb::PatchStatus(body) | Verb::Patch(body) => {
                if self.reservations.contains_key(&write.name) {
                    self.edit(&write.name, body.clone());
                }
            }
            Verb::Delete(uid) => {
                let existing = self.reservations.get(&write.name);
                if existing.is_some_and(|r| r["metadata"]["uid"] == **uid) {
                    self.unreserve(&write.name);
                }
            }
            Verb::Create(_) | Verb::Evict(_) => {}
        }
    }

    /// Returns `node (reservation)` of a pod, or the last message about it.
    fn result_of(&self, pod: &str) -> String {
        let Some(node) = self.pods[pod]["spec"]["nodeName"].as_str() else {
            return self.last_message(pod);
        };
        let text = &self.pods[pod]["metadata"]["annotations"][annotations::RESERVATION_ALLOCATED];
        let used: Option<Value> = text
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        match used.and_then(|used| used["name"].as_str().map(str::to_owned)) {
            Some(name) => format!("{node} ({name})"),
            None => node.to_owned(),
        }
    }

    fn last_message(&self, name: &str) -> String {
        let last = self.messages.iter().rev().find(|(about, _)| about == name);
        last.map(|(_, text)| text.clone()).unwrap_or_default()
    }

    fn status(&self, reservation: &str) -> &Value {
        &self.reservations[reservation]["status"]
    }

    /// Returns the requested CPU of a node, in milli-cores.
    fn booked(&self, node: &str) -> i64 {
        let nodes = self.engine.cluster().nodes();
        let row = nodes.find(node).unwrap();
        nodes.requested(row, koord_model::resources::CPU)
    }
}

/// Applies a JSON merge patch.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (key, part) in patch {
        if part.is_null() {
            value.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut value[key], part);
        }
    }
}
