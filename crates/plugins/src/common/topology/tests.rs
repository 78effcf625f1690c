//! Small cluster for tests of plugins with topology counters, and a property test of the counters.

use super::{Labels, NO_DOMAIN, TopologyCounters};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{Engine, EngineOptions, Output};
use koord_scheduler::framework::{BuildContext, Profiles};
use koord_scheduler::state::{NodeIndex, NodeStore};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

impl TopologyCounters {
    /// Returns true if every counter matches a count from scratch; counters of term owners are not checked.
    pub(crate) fn is_consistent(
        &self,
        nodes: &NodeStore,
        recount: bool,
        labels_of: &dyn Fn(&str) -> Option<Labels>,
    ) -> bool {
        self.counters.iter().flatten().all(|counter| {
            let mut by_domain: BTreeMap<u32, i32> = BTreeMap::new();
            let mut present = std::collections::BTreeSet::new();
            let rows = (0..u32::try_from(nodes.rows()).unwrap()).map(NodeIndex);
            let is_equal = rows.clone().all(|node| {
                // Reservations count like the pods they are for.
                let matching = nodes
                    .booked(node)
                    .filter(|pod| counter.matches(pod, labels_of));
                let matching = i32::try_from(matching.count()).unwrap();
                let domain = self.domains.domain(counter.domain_spec, node);
                *by_domain.entry(domain).or_default() += counter.on(node);
                present.extend(Some(domain).filter(|domain| *domain != NO_DOMAIN));
                !recount || counter.on(node) == matching
            });
            by_domain.remove(&NO_DOMAIN);
            let mut levels: BTreeMap<i32, usize> = BTreeMap::new();
            for count in by_domain.values().filter(|count| **count != 0) {
                *levels.entry(*count).or_default() += 1;
            }
            let least = by_domain.values().min().copied();
            is_equal
                && levels == counter.levels
                && by_domain
                    .iter()
                    .all(|(at, count)| counter.at(*at) == *count)
                && present.len() == self.domains.present(counter.domain_spec)
                && (!recount || self.min_except(counter, NO_DOMAIN) == least)
        })
    }
}

/// Engine with a few plugins, driven by hand.
pub(crate) struct EngineFixture {
    pub(crate) engine: Engine,
    pub(crate) now: Timestamp,
}

impl EngineFixture {
    pub(crate) fn new(plugin: &str, args: Value) -> Self {
        let enabled: Vec<Value> = [
            "NodeUnschedulable",
            "TaintToleration",
            plugin,
            "DefaultBinder",
        ]
        .iter()
        .map(|name| json!({"name": name}))
        .collect();
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{
                "schedulerName": "default-scheduler",
                "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
                "pluginConfig": [{"name": plugin, "args": args}]
            }]
        });
        let config = Configuration::parse(&config.to_string()).unwrap();
        let context = BuildContext::default();
        let profiles = Profiles::build(&config, &crate::registry(), &context, false).unwrap();
        Self {
            engine: Engine::new(&config, profiles, EngineOptions::default()),
            now: Timestamp::from_second(1_700_000_000).unwrap(),
        }
    }

    /// Adds node `name` in `zone`; without a zone label if that is empty.
    pub(crate) fn node(&mut self, name: &str, zone: &str, change: &Value) {
        let mut labels = json!({"kubernetes.io/hostname": name});
        if !zone.is_empty() {
            labels["topology.kubernetes.io/zone"] = json!(zone);
        }
        let mut node = json!({
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"allocatable": {"cpu": "100", "memory": "500Gi", "pods": "110"}}
        });
        merge(&mut node, change);
        let node: Node = serde_json::from_value(node).unwrap();
        self.engine.node_applied(Arc::new(node), self.now);
    }

    /// Adds a bound pod.
    pub(crate) fn bound(&mut self, name: &str, node: &str, change: &Value) {
        let mut pod = pod(name, change);
        pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
        self.engine.pod_applied(Arc::new(pod), self.now);
    }

    /// Schedules a new pod. Returns its node or the message of its condition.
    pub(crate) fn place(&mut self, name: &str, change: &Value) -> String {
        self.engine.take_outputs();
        self.engine
            .pod_applied(Arc::new(pod(name, change)), self.now);
        self.engine.schedule_one(self.now).unwrap();
        let mut outputs = self.engine.take_outputs();
        match outputs.remove(0) {
            Output::Bind(bind) => bind.node.to_string(),
            Output::Failed(failure) => failure.message.to_string(),
            other => format!("{other:?}"),
        }
    }
}

fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

fn pod(name: &str, change: &Value) -> Pod {
    let mut value = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c"}]}
    });
    merge(&mut value, change);
    serde_json::from_value(value).unwrap()
}

#[derive(Debug, Clone)]
enum TopologyStep {
    Node { name: u8, zone: u8, tainted: bool },
    NodeGone(u8),
    Pod { app: u8, shape: u8 },
    Bound { app: u8, node: u8, shape: u8 },
    Gone(u8),
    Relabel { pod: u8, app: u8, deleting: bool },
    BindFails(u8),
}

fn step() -> impl Strategy<Value = TopologyStep> {
    prop_oneof![
        3 => (0..6_u8, 0..3_u8, any::<bool>())
            .prop_map(|(name, zone, tainted)| TopologyStep::Node { name, zone, tainted }),
        1 => (0..6_u8).prop_map(TopologyStep::NodeGone),
        8 => (0..3_u8, 0..8_u8).prop_map(|(app, shape)| TopologyStep::Pod { app, shape }),
        3 => (0..3_u8, 0..6_u8, 0..8_u8)
            .prop_map(|(app, node, shape)| TopologyStep::Bound { app, node, shape }),
        2 => any::<u8>().prop_map(TopologyStep::Gone),
        2 => (any::<u8>(), 0..3_u8, any::<bool>())
            .prop_map(|(pod, app, deleting)| TopologyStep::Relabel { pod, app, deleting }),
        1 => any::<u8>().prop_map(TopologyStep::BindFails),
    ]
}

/// Returns spread constraints and affinity terms of several forms.
pub(crate) fn shape(app: u8, shape: u8) -> Value {
    let own_selector = json!({"matchLabels": {"app": format!("{app}")}});
    let zone = "topology.kubernetes.io/zone";
    let host = "kubernetes.io/hostname";
    let spread = |key: &str, when: &str, more: Value| {
        let mut constraint = json!({
            "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": own_selector
        });
        merge(&mut constraint, &more);
        json!({"topologySpreadConstraints": [constraint]})
    };
    let term = |key: &str, app: String| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
    let own = format!("{app}");
    let other = format!("{}", (app + 1) % 3);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let spec = match shape {
        0 => spread(zone, "DoNotSchedule", json!({})),
        1 => spread(host, "DoNotSchedule", json!({"nodeTaintsPolicy": "Honor"})),
        2 => spread(zone, "ScheduleAnyway", json!({"minDomains": null})),
        3 => spread(zone, "DoNotSchedule", json!({"minDomains": 3})),
        4 => json!({"affinity": {"podAntiAffinity": {required: [term(host, own)]}}}),
        5 => json!({"affinity": {"podAffinity": {required: [term(zone, own)]}}}),
        6 => json!({"affinity": {
            "podAffinity": {preferred: [{"weight": 10, "podAffinityTerm": term(zone, other)}]},
            "podAntiAffinity": {preferred: [{"weight": 3, "podAffinityTerm": term(host, own)}]}
        }}),
        _ => json!({}),
    };
    json!({"metadata": {"labels": {"app": format!("{app}")}}, "spec": spec})
}

/// Runs `steps`; in test builds, each PreFilter call checks the counters against the pods on nodes.
fn walk(plugin: &str, steps: Vec<TopologyStep>) {
    let mut cluster = EngineFixture::new(plugin, json!({}));
    let mut pods: Vec<(String, u8, Value, Option<String>)> = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        cluster.now += jiff::SignedDuration::from_secs(1);
        let name = format!("p{number}");
        let pick = |n: u8, pods: &[_]| (!pods.is_empty()).then(|| usize::from(n) % pods.len());
        match step {
            TopologyStep::Node {
                name,
                zone,
                tainted,
            } => {
                let zone = ["", "x", "y"][usize::from(zone)];
                let taints = json!([{"key": "k", "effect": "NoSchedule"}]);
                let taints = if tainted { taints } else { json!([]) };
                cluster.node(
                    &format!("n{name}"),
                    zone,
                    &json!({"spec": {"taints": taints}}),
                );
            }
            TopologyStep::NodeGone(name) => cluster
                .engine
                .node_deleted(&format!("n{name}"), cluster.now),
            TopologyStep::Pod { app, shape: form } => {
                let change = shape(app, form);
                let node = cluster.place(&name, &change);
                let node = Some(node).filter(|node| node.starts_with('n') && node.len() == 2);
                pods.push((name, app, change, node));
            }
            TopologyStep::Bound {
                app,
                node,
                shape: form,
            } => {
                let (change, node) = (shape(app, form), format!("n{node}"));
                cluster.bound(&name, &node, &change);
                pods.push((name, app, change, Some(node)));
            }
            TopologyStep::Gone(n) => {
                if let Some(at) = pick(n, &pods) {
                    let (name, _, change, _) = pods.swap_remove(at);
                    cluster
                        .engine
                        .pod_deleted(&pod(&name, &change), cluster.now);
                }
            }
            TopologyStep::Relabel {
                pod: n,
                app,
                deleting,
            } => {
                if let Some(at) = pick(n, &pods) {
                    let (name, _, change, node) = &mut pods[at];
                    change["metadata"]["labels"]["app"] = json!(format!("{app}"));
                    if deleting {
                        change["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
                    }
                    if let Some(node) = node {
                        cluster.bound(name, node, change);
                    }
                }
            }
            TopologyStep::BindFails(n) => {
                if let Some(at) = pick(n, &pods) {
                    let message = "conflict".to_owned();
                    let error = koord_scheduler::engine::BindError {
                        message,
                        gone: true,
                    };
                    let assumed = cluster.engine.cluster().placement(&pods[at].0);
                    if assumed.is_some_and(|(_, assumed)| assumed) {
                        let (name, ..) = pods.swap_remove(at);
                        cluster.engine.bind_finished(&name, Err(error), cluster.now);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn counters_match_recount_after_any_steps(steps in prop::collection::vec(step(), 1..80), spread in any::<bool>()) {
        walk(if spread { "PodTopologySpread" } else { "InterPodAffinity" }, steps);
    }
}
