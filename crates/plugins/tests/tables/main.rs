//! Scores and filters of kube-scheduler 1.35, one plugin at a time: the rows of its tables.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod claims;
mod filters;
mod nodes;
mod places;
mod pods;
mod preemption;
mod resources;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{Engine, EngineOptions};
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, Code, Cycle, Effects, Indexes, Normalize, ObjectChange,
    PreFilterResult, PreScoreResult, Profiles, Rejection, State, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use serde_json::{Value, json};
use std::any::Any;
use std::sync::Arc;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn built(name: &str, args: &Value, gates: &[&str]) -> Result<BoxedPlugin, String> {
    let mut factories = koord_plugins::registry().factories.into_iter();
    let factory = factories.find(|factory| factory.name == name).unwrap();
    let gates = gates.iter().map(|gate| ((*gate).to_owned(), true));
    let context = BuildContext::with_gates(gates.collect());
    (factory.build)(Some(args), &context).map_err(|error| error.to_string())
}

/// Plugin next to an engine that keeps the node state.
struct Alone {
    engine: Engine,
    indexes: Indexes,
    plugin: BoxedPlugin,
    /// Number of pods, for unique names.
    pods: usize,
}

impl Alone {
    fn new(name: &str, args: Value) -> Self {
        Self::gated(name, args, &[])
    }

    fn gated(name: &str, args: Value, gates: &[&str]) -> Self {
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"plugins": {"multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": [{"name": "NodeName"}, {"name": "DefaultBinder"}]
            }}}]
        });
        let config = Configuration::parse(&config.to_string()).unwrap();
        let context = BuildContext::default();
        let profiles =
            Profiles::build(&config, &koord_plugins::registry(), &context, false).unwrap();
        let plugin = built(name, &args, gates).unwrap();
        Self {
            engine: Engine::new(&config, profiles, EngineOptions::default()),
            indexes: Indexes::new(plugin.inputs().into_iter().flat_map(|it| it.indexes())),
            plugin,
            pods: 0,
        }
    }

    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        match self.plugin.pre_filter() {
            Some(pre_filter) => pre_filter.pre_filter(cycle),
            None => PreFilterResult::ready(()),
        }
    }

    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        match self.plugin.pre_score() {
            Some(pre_score) => pre_score.pre_score(cycle),
            None => PreScoreResult::Ready(State::default()),
        }
    }

    fn view(&self) -> View<'_> {
        View {
            indexes: &self.indexes,
            ..self.engine.cluster().view(now())
        }
    }

    fn notify(&mut self, news: impl FnOnce(&mut BoxedPlugin, View<'_>, &mut Effects)) {
        let view = View {
            indexes: &self.indexes,
            ..self.engine.cluster().view(now())
        };
        news(&mut self.plugin, view, &mut Effects::default());
    }

    fn node(&mut self, name: &str, labels: Value, rest: Value) {
        let mut value = json!({"metadata": {"name": name, "uid": name, "labels": labels}});
        for (key, part) in rest.as_object().into_iter().flatten() {
            value[key] = part.clone();
        }
        let node: Node = serde_json::from_value(value).unwrap();
        self.engine.node_applied(Arc::new(node), now());
        let row = self.engine.cluster().nodes().find(name).unwrap();
        self.notify(|plugin, view, fx| {
            if let Some(role) = plugin.object_events() {
                role.on_node(row, view, fx);
            }
        });
    }

    /// Returns a change in the form in which informers deliver it.
    fn as_delivered(&self, change: ObjectChange) -> ObjectChange {
        let inputs = self.plugin.inputs();
        let watches = inputs.map(|inputs| inputs.watches()).unwrap_or_default();
        match watches.iter().find(|watch| watch.kind() == change.kind) {
            Some(watch) => watch.as_delivered(change),
            None => change,
        }
    }

    fn object(&mut self, kind: &'static str, object: Arc<dyn Any + Send + Sync>) {
        let change = ObjectChange {
            kind,
            action: Action::ADD,
            old: None,
            new: object,
        };
        let change = self.as_delivered(change);
        self.indexes.on_object(&change, &mut Effects::default());
        self.notify(|plugin, view, fx| {
            if let Some(role) = plugin.object_events() {
                role.on_object(&change, view, fx);
            }
        });
    }

    /// Adds a pod to a node.
    fn add_pod(&mut self, node: &str, mut pod: Value) {
        self.pods += 1;
        let name = format!("there-{}", self.pods);
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["uid"] = json!(name);
        pod["spec"]["nodeName"] = json!(node);
        let pod: Pod = serde_json::from_value(complete(pod)).unwrap();
        self.engine.pod_applied(Arc::new(pod), now());
        let row = self.engine.cluster().nodes().find(node).unwrap();
        let mut pods = self.engine.cluster().nodes().pods(row);
        let info = pods.find(|pod| *pod.name == *name).unwrap().clone();
        drop(pods);
        self.notify(|plugin, view, fx| {
            if let Some(role) = plugin.pod_events() {
                role.on_assigned(&info, row, view, fx);
            }
        });
    }

    fn row(&self, node: &str) -> NodeIndex {
        self.engine.cluster().nodes().find(node).unwrap()
    }

    fn cycle<T>(&mut self, mut pod: Value, look: impl FnOnce(&Self, &Cycle<'_>) -> T) -> T {
        pod["metadata"]["name"] = json!("p");
        pod["metadata"]["uid"] = json!("p");
        let pod = Arc::new(serde_json::from_value(complete(pod)).unwrap());
        let pod = Arc::new(PodInfo::new(pod, self.engine.cluster().resources()).unwrap());
        self.notify(|plugin, view, _| {
            if let Some(role) = plugin.preparation() {
                role.prepare(&Cycle::new(&pod, view));
            }
        });
        look(self, &Cycle::new(&pod, self.view()))
    }

    /// Returns the scores of these nodes, 0 to 100; all 0 if the plugin does not score.
    fn scores(&mut self, pod: Value, nodes: &str) -> String {
        let rows: Vec<NodeIndex> = nodes
            .split_whitespace()
            .map(|name| self.row(name))
            .collect();
        let scores = self.cycle(pod, |this, cycle| {
            let mut scores = vec![0; rows.len()];
            let PreScoreResult::Ready(state) = this.pre_score(cycle) else {
                return scores;
            };
            if let Some(volatile) = this.plugin.volatile() {
                // In order of index, like the engine.
                let mut order: Vec<usize> = (0..rows.len()).collect();
                order.sort_by_key(|at| rows[*at]);
                let sorted: Vec<NodeIndex> = order.iter().map(|at| rows[*at]).collect();
                let mut unsorted = vec![0; rows.len()];
                volatile.score_rows(cycle, &state, &sorted, &mut unsorted);
                if let Some(score) = this.plugin.score()
                    && score.normalization() == Normalize::Custom
                {
                    score.normalize(cycle, &mut unsorted);
                }
                for (at, score) in order.into_iter().zip(unsorted) {
                    scores[at] = score;
                }
            } else {
                let rule = this.plugin.score();
                for (row, score) in rows.iter().zip(&mut scores) {
                    *score = rule.map_or(0, |rule| rule.score(cycle, &state, *row));
                }
            }
            let max = scores.iter().copied().max().unwrap_or(0);
            let normalization = this.plugin.score().map(|score| score.normalization());
            let share = |score: i64| if max == 0 { 0 } else { score * 100 / max };
            match normalization.unwrap_or(Normalize::None) {
                Normalize::Max => scores.iter().map(|score| share(*score)).collect(),
                Normalize::MaxReversed => scores.iter().map(|s| 100 - share(*s)).collect(),
                Normalize::None | Normalize::Custom => scores,
            }
        });
        let texts: Vec<String> = scores.iter().map(i64::to_string).collect();
        texts.join(" ")
    }

    /// Returns `fits`, or why the pod may not be placed on the node; `!` if the reason is unresolvable.
    fn judge(&mut self, pod: Value, node: &str) -> String {
        let text = |rejection: Rejection| match rejection.code {
            Code::Unresolvable => format!("!{}", rejection.message()),
            _ => rejection.message(),
        };
        self.cycle(pod, |this, cycle| {
            let state = match this.pre_filter(cycle) {
                PreFilterResult::Ready { state, .. } => state,
                PreFilterResult::Skip => return "fits".to_owned(),
                PreFilterResult::Reject(rejection) => return text(rejection),
            };
            let filter = this.plugin.filter();
            let row = this.row(node);
            let verdict = filter.map_or(Ok(()), |filter| filter.filter(cycle, &state, row));
            verdict.map_or_else(text, |()| "fits".to_owned())
        })
    }
}

/// Fills in required fields of a pod.
fn complete(mut pod: Value) -> Value {
    if pod["metadata"]["namespace"].is_null() {
        pod["metadata"]["namespace"] = json!("");
    }
    if pod["spec"]["containers"].is_null() {
        pod["spec"]["containers"] = json!([]);
    }
    pod
}

#[test]
fn counters_are_prepared_for_this_pod_only() {
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]});
    let with_affinity = json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "zone", "labelSelector": {}}]}}});
    for (name, spec) in [
        ("PodTopologySpread", spread),
        ("InterPodAffinity", with_affinity),
    ] {
        let mut alone = Alone::new(name, json!({}));
        alone.node("a", json!({"zone": "z"}), json!({}));
        let pod = json!({"metadata": {}, "spec": spec});
        assert_eq!(alone.judge(pod.clone(), "a"), "fits", "{name}");
        let asked_unprepared = alone.cycle(pod, |this, cycle| {
            // A copy with another identity: its counters may be dropped by now.
            let other = Arc::new((**cycle.pod).clone());
            this.pre_filter(&Cycle::new(&other, cycle.view))
        });
        match asked_unprepared {
            PreFilterResult::Reject(rejection) => assert_eq!(rejection.code, Code::Error, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn quota_runtime_is_divided_before_filter() {
    let mut alone = Alone::new("ElasticQuota", json!({}));
    let pod = complete(json!({"metadata": {"name": "p", "uid": "p"}, "spec": {}}));
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    let pod = Arc::new(PodInfo::new(pod, alone.engine.cluster().resources()).unwrap());
    let rejection_code = |alone: &Alone| match alone.pre_filter(&Cycle::new(&pod, alone.view())) {
        PreFilterResult::Reject(rejection) => Some(rejection.code),
        _ => None,
    };
    assert_eq!(rejection_code(&alone), Some(Code::Error));
    alone.notify(|plugin, view, _| {
        if let Some(role) = plugin.preparation() {
            role.prepare(&Cycle::new(&pod, view));
        }
    });
    assert_eq!(rejection_code(&alone), None);
    // Any event may change it.
    alone.node(
        "a",
        json!({}),
        json!({"status": {"allocatable": {"cpu": "4"}}}),
    );
    assert_eq!(rejection_code(&alone), Some(Code::Error));
}

#[test]
fn unscored_nodes_have_score_zero() {
    let _ = State::default();
    let mut alone = Alone::new("NodeAffinity", json!({}));
    alone.node("a", json!({}), json!({}));
    assert_eq!(alone.scores(json!({}), "a"), "0");
}

#[test]
fn changes_of_objects_are_counted_under_upstreams_names() {
    let expected = [
        ("persistentvolumes.v1.", "PersistentVolume"),
        ("persistentvolumeclaims.v1.", "PersistentVolumeClaim"),
        (
            "storageclasses.v1.storage.k8s.io",
            "storage.k8s.io/StorageClass",
        ),
        ("csinodes.v1.storage.k8s.io", "storage.k8s.io/CSINode"),
        ("csidrivers.v1.storage.k8s.io", "storage.k8s.io/CSIDriver"),
        (
            "csistoragecapacities.v1.storage.k8s.io",
            "storage.k8s.io/CSIStorageCapacity",
        ),
        (
            "volumeattachments.v1.storage.k8s.io",
            "storage.k8s.io/VolumeAttachment",
        ),
        (
            "nodemetrics.v1alpha1.slo.koordinator.sh",
            "nodemetrics.v1alpha1.slo.koordinator.sh",
        ),
        (
            "reservations.v1alpha1.scheduling.koordinator.sh",
            "reservations.v1alpha1.scheduling.koordinator.sh",
        ),
        (
            "devices.v1alpha1.scheduling.koordinator.sh",
            "devices.v1alpha1.scheduling.koordinator.sh",
        ),
        (
            "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
            "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
        ),
        (
            "podgroups.v1alpha1.scheduling.sigs.k8s.io",
            "podgroups.v1alpha1.scheduling.sigs.k8s.io",
        ),
        (
            "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
            "noderesourcetopologies.v1alpha2.topology.node.k8s.io",
        ),
    ];
    let config = Configuration::koord(&["koord-scheduler".to_owned()]);
    let context = BuildContext::default();
    let profiles = Profiles::build(&config, &koord_plugins::registry(), &context, true).unwrap();
    let watches = profiles
        .instances
        .iter()
        .filter_map(|plugin| plugin.inputs())
        .flat_map(|inputs| inputs.watches());
    let mut count = 0;
    for watch in watches {
        if let Some((kind, name)) = expected.iter().find(|(kind, _)| *kind == watch.kind()) {
            let names = ["Add", "Update", "Delete"].map(|verb| format!("{name}{verb}"));
            assert_eq!(watch.names().map(str::to_owned), names, "{kind}");
            count += 1;
        }
    }
    assert!(count >= expected.len());
}
