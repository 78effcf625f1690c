//! Compares the engine with a plain implementation of the rules (`rules.rs`): the nodes that can take each
//! pending pod, the best of them, and the victims of each preemption. The runs are fixed by their seeds, and
//! assert that they reach the situations they are for.
//!
//! In some runs, an extender agrees with everything: it receives the nodes among which the engine decides,
//! which are compared with the rules, too, whether or not they come from a cache.

mod aligned;
mod draw;
mod rules;

use draw::{Draw, render};
use jiff::Timestamp;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{
    BindError, Engine, EngineOptions, ExtenderCall, ExtenderNodeResult, ExtenderRequest,
    ExtenderResult, Output,
};
use koord_scheduler::framework::{BuildContext, Profiles};
use rules::{Fit, OracleCluster, Pod};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const START: i64 = 1_700_000_000;

/// Number of times that each situation was reached.
#[derive(Debug, Default)]
struct Reached {
    /// Compared sets of feasible nodes that were neither empty nor complete, computed for the comparison.
    sets: u32,
    /// Sets of feasible nodes from which the engine chose a node.
    offers: u32,
    best: u32,
    refused: u32,
    over_quota: u32,
    into_reservation: u32,
    /// Pods in a reservation on a node where they fit only because the reserved amounts are restored.
    restored: u32,
    beside_reservation: u32,
    preempted: u32,
    conflicts: u32,
    whole_gangs: u32,
    partial_gangs: u32,
    near: u32,
    apart: u32,
    spread: u32,
    busy: u32,
}

/// Number of these counters.
const STATES: usize = 16;

impl Reached {
    fn counts(&self) -> [u32; STATES] {
        [
            self.sets,
            self.offers,
            self.best,
            self.refused,
            self.over_quota,
            self.into_reservation,
            self.restored,
            self.beside_reservation,
            self.preempted,
            self.conflicts,
            self.whole_gangs,
            self.partial_gangs,
            self.near,
            self.apart,
            self.spread,
            self.busy,
        ]
    }
}

/// Builds an engine with all of Koordinator's filters, and the three scores that the rules compute.
fn engine(cached: bool, shows: bool) -> Engine {
    let extender = json!({
        "urlPrefix": "http://extender.invalid", "filterVerb": "filter", "nodeCacheCapable": true
    });
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "extenders": if shows { vec![extender] } else { Vec::new() },
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {
                "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "PrioritySort"}]},
                "multiPoint": {"enabled": [
                    {"name": "LoadAwareScheduling"}, {"name": "NodeNUMAResource"},
                    {"name": "DeviceShare"}, {"name": "Reservation"}, {"name": "Coscheduling"},
                    {"name": "ElasticQuota"}]},
                "score": {"disabled": [{"name": "*"}], "enabled": [
                    {"name": "NodeResourcesFit", "weight": 1}, {"name": "TaintToleration", "weight": 3},
                    {"name": "NodeAffinity", "weight": 2}, {"name": "Reservation", "weight": 5000}]}},
            "pluginConfig": [
                {"name": "LoadAwareScheduling", "args": {
                    "usageThresholds": {"cpu": rules::CPU_THRESHOLD, "memory": rules::MEMORY_THRESHOLD},
                    "nodeMetricExpirationSeconds": rules::EXPIRES}},
                {"name": "ElasticQuota", "args": {"enableRuntimeQuota": false}}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let registry = koord_plugins::registry();
    let profiles = Profiles::build(&config, &registry, &BuildContext::default(), false).unwrap();
    let options = EngineOptions {
        seed: 5,
        max_classes: 4,
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(&config, profiles, options);
    engine.set_caching(cached);
    engine
}

/// Engine with the cluster as users see it.
struct OracleRun {
    engine: Engine,
    cluster: OracleCluster,
    draw: Draw,
    /// Nodes of pods that are assumed and not confirmed.
    assumed: BTreeMap<String, String>,
    bound: BTreeSet<String>,
    reached: Reached,
    context: String,
}

impl OracleRun {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(START + self.cluster.now).unwrap()
    }

    fn object(&self, pod: &Pod, placed: bool) -> Arc<k8s_openapi::api::core::v1::Pod> {
        let mut value = render::pod(pod);
        if placed {
            value["spec"]["nodeName"] = json!(self.cluster.placed[&pod.name]);
            if let Some(of) = self.cluster.owns.get(&pod.name) {
                value["metadata"]["annotations"]["scheduling.koordinator.sh/reservation-allocated"] =
                    json!(json!({"name": of, "uid": of}).to_string());
            }
        }
        Arc::new(serde_json::from_value(value).unwrap())
    }

    /// Returns the nodes on which the engine would place the pod; `None` if it is rejected before any node is
    /// checked.
    fn feasible(
        engine: &mut Engine,
        cluster: &OracleCluster,
        name: &str,
        now: Timestamp,
    ) -> Option<BTreeSet<String>> {
        let info = engine.queued(name)?.clone();
        let refused = engine.inspector().nearest(&info, usize::MAX, now);
        let refused: BTreeSet<&str> = refused.iter().map(|rejection| &*rejection.node).collect();
        let all = cluster.nodes.keys();
        Some(
            all.filter(|node| !refused.contains(node.as_str()))
                .cloned()
                .collect(),
        )
    }

    /// Compares every pending pod with the rules.
    fn compare(&mut self) {
        let now = self.now();
        for (name, pod) in &self.cluster.pods {
            // Some of these are rejected before any node is checked.
            if self.cluster.placed.contains_key(name)
                || !self.cluster.quota_admits(pod)
                || pod.gang.is_some()
                || (pod.insists && !self.cluster.has_reservation(pod))
            {
                continue;
            }
            let Some(is) = Self::feasible(&mut self.engine, &self.cluster, name, now) else {
                continue;
            };
            let fits = self.cluster.feasible(pod);
            let expected: BTreeSet<String> = fits.keys().cloned().collect();
            assert_eq!(
                is, expected,
                "{}: {pod:?} in {:#?}",
                self.context, self.cluster
            );
            let reached = &mut self.reached;
            if !is.is_empty() && is.len() < self.cluster.nodes.len() {
                reached.sets += 1;
                reached.near += u32::from(pod.near.is_some());
                reached.apart += u32::from(pod.apart.is_some());
                reached.spread += u32::from(pod.spread.is_some());
            }
        }
    }

    /// Runs scheduling cycles until none is left.
    fn decide(&mut self) {
        for _ in 0..200 {
            self.compare();
            let Some(outcome) = self.engine.schedule_one(self.now()) else {
                if self.outputs() {
                    continue;
                }
                return;
            };
            let name = outcome.pod.name.to_string();
            let pod = self.cluster.pods[&name].clone();
            let fits = self.cluster.feasible(&pod);
            let admitted = self.cluster.quota_admits(&pod);
            match outcome.node {
                Some(node) => {
                    assert!(admitted, "{}: {pod:?} is over its quota", self.context);
                    self.placed(&pod, &node, &fits);
                }
                None if !admitted => self.reached.over_quota += 1,
                // A gang is rejected as a whole, even if one member fits.
                None if pod.gang.is_some() => {}
                None => {
                    assert!(fits.is_empty(), "{}: {pod:?} fits {fits:?}", self.context);
                    self.reached.refused += 1;
                }
            }
            self.outputs();
        }
        panic!("{}: no end of decisions", self.context);
    }

    /// Checks a pod that was assigned to a node.
    fn placed(&mut self, pod: &Pod, node: &str, fits: &BTreeMap<String, Fit>) {
        let name = &pod.name;
        let fit = fits.get(node);
        let fit =
            fit.unwrap_or_else(|| panic!("{}: {pod:?} on {node}, not {fits:?}", self.context));
        let reserving = fits.values().any(|fit| !fit.from.is_empty());
        if reserving {
            // What is reserved for the pod is used first.
            assert!(
                !fit.from.is_empty(),
                "{}: {pod:?} on {node} of {fits:?}",
                self.context
            );
        } else if self.cluster.reservations.is_empty() && !self.cluster.nominated.contains_key(name)
        {
            let scores = self.cluster.scores(pod, fits);
            let best = scores.values().max().unwrap();
            assert_eq!(
                &scores[node],
                best,
                "{}: {pod:?} on {node} of {scores:?} by {:?} in {:#?}",
                self.context,
                self.engine.telemetry.decision(name),
                self.cluster
            );
            self.reached.best += u32::from(scores.values().any(|score| score < best));
        }
        if let Some(decision) = self.engine.telemetry.decision(name)
            && let Some(table) = &decision.table
            && decision.time == self.now()
        {
            assert_eq!(table.feasible, fits.len(), "{}: {pod:?}", self.context);
        }
        let busy = |node: &rules::Node| node.usage.is_some();
        self.reached.busy += u32::from(self.cluster.nodes.values().any(busy));
        self.cluster.nominated.remove(name);
        self.cluster.placed.insert(name.clone(), node.to_owned());
        self.assumed.insert(name.clone(), node.to_owned());
        if reserving {
            // The binding names the reservation; a pod that waits for its gang reports it later.
            let only = fit.from.iter().next().cloned().unwrap();
            self.cluster.owns.insert(name.clone(), only);
            self.reached.into_reservation += 1;
            self.reached.restored += u32::from(!fit.plain);
        } else if !self.cluster.reservations.is_empty() {
            self.reached.beside_reservation += 1;
        }
    }

    /// Checks the nodes among which the engine decides.
    fn shown(&mut self, consultation: &ExtenderCall) {
        let ExtenderRequest::Nodes(nodes) = &consultation.request else {
            panic!("{}: {consultation:?}", self.context);
        };
        let name = consultation.pod.name.to_string();
        let pod = &self.cluster.pods[&name];
        let is: BTreeSet<&str> = nodes.iter().map(|node| &*node.name).collect();
        let fits = self.cluster.feasible(pod);
        let fits: BTreeSet<&str> = fits.keys().map(String::as_str).collect();
        let nominated = self.cluster.nominated.get(&name).map(String::as_str);
        // With a nominated node that fits, no other node is checked.
        if let Some(node) = nominated.filter(|node| fits.contains(node)) {
            assert_eq!(is, BTreeSet::from([node]), "{}: {pod:?}", self.context);
        } else {
            let context = &self.context;
            assert_eq!(is, fits, "{context}: {pod:?} in {:#?}", self.cluster);
            let excludes_nodes = is.len() < self.cluster.nodes.len();
            self.reached.offers += u32::from(excludes_nodes);
        }
        let advice = ExtenderResult::Nodes(Ok(ExtenderNodeResult::default()));
        self.engine
            .apply_extender_result(&name, consultation.ticket, advice);
    }

    /// Processes other outputs, and pods that waited for their gang. Returns true if an extender was called
    /// and answered.
    fn outputs(&mut self) -> bool {
        let mut answered = false;
        for output in self.engine.take_outputs() {
            match output {
                Output::Consult(consultation) => {
                    self.shown(&consultation);
                    answered = true;
                }
                Output::Bind(bind) => {
                    let name = bind.pod.name.to_string();
                    let annotations = &bind.patch.annotations;
                    let annotation =
                        annotations.get("scheduling.koordinator.sh/reservation-allocated");
                    let owned: Option<Value> =
                        annotation.map(|text| serde_json::from_str(text).unwrap());
                    let owned = owned.map(|owned| owned["uid"].as_str().unwrap().to_owned());
                    assert_eq!(
                        owned.as_ref(),
                        self.cluster.owns.get(&name),
                        "{}: {name} in {:#?}",
                        self.context,
                        self.cluster
                    );
                    self.bound.insert(name);
                }
                Output::Evict {
                    preemptor,
                    node,
                    victims,
                } => self.evicted(&preemptor.name, &node, &victims),
                _ => {}
            }
        }
        let evicted_names: Vec<String> = self
            .assumed
            .keys()
            .filter(|name| self.engine.cluster().placement(name).is_none())
            .cloned()
            .collect();
        for name in evicted_names {
            // Its gang could not be completed.
            assert!(
                self.cluster.pods[&name].gang.is_some(),
                "{}: {name}",
                self.context
            );
            assert!(!self.bound.contains(&name), "{}: {name}", self.context);
            self.assumed.remove(&name);
            self.cluster.placed.remove(&name);
            self.cluster.owns.remove(&name);
            self.reached.partial_gangs += 1;
        }
        self.gangs();
        answered
    }

    /// Checks that no pod is bound before enough members of its gang have a node.
    fn gangs(&mut self) {
        let mut gangs: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
        for (name, pod) in &self.cluster.pods {
            if let Some((gang, least)) = &pod.gang {
                let [placed, bound, min] = gangs.entry(gang).or_default();
                *min = *least;
                *placed += usize::from(self.cluster.placed.contains_key(name));
                *bound += usize::from(self.bound.contains(name));
            }
        }
        for (gang, [placed, bound, min]) in gangs {
            if self.draw.begun.contains(gang) {
                continue;
            }
            assert!(
                bound == 0 || placed >= min,
                "{}: {bound} of {gang}",
                self.context
            );
            if bound > 0 {
                self.draw.begun.insert(gang.to_owned());
                self.reached.whole_gangs += 1;
            }
        }
    }

    /// Checks a preemption: the victims are just enough and less important, and the pod fits only without
    /// them.
    fn evicted(
        &mut self,
        preemptor: &str,
        node: &str,
        victims: &[Arc<koord_scheduler::state::PodInfo>],
    ) {
        let pod = self.cluster.pods[preemptor].clone();
        assert!(self.cluster.feasible(&pod).is_empty(), "{}", self.context);
        let mut after = self.cluster.clone();
        for victim in victims {
            let name = victim.name.to_string();
            let lost = &self.cluster.pods[&name];
            assert!(lost.priority < pod.priority, "{}: {name}", self.context);
            assert_eq!(self.cluster.placed[&name], node, "{}", self.context);
            after.placed.remove(&name);
            after.owns.remove(&name);
        }
        assert!(
            after.feasible(&pod).contains_key(node),
            "{}: {victims:?} on {node} do not help {pod:?} in {:#?}",
            self.context,
            self.cluster
        );
        for victim in victims {
            let name = victim.name.to_string();
            let mut spared = after.clone();
            spared.placed.insert(name.clone(), node.to_owned());
            if let Some(of) = self.cluster.owns.get(&name) {
                spared.owns.insert(name.clone(), of.clone());
            }
            assert!(
                !spared.feasible(&pod).contains_key(node),
                "{}: {name} could stay",
                self.context
            );
        }
        self.reached.preempted += 1;
        self.cluster
            .nominated
            .insert(preemptor.to_owned(), node.to_owned());
        for victim in victims {
            self.delete(&victim.name);
        }
    }

    fn delete(&mut self, name: &str) {
        let pod = self.cluster.pods[name].clone();
        let object = self.object(&pod, self.cluster.placed.contains_key(name));
        let now = self.now();
        self.engine.pod_deleted(&object, now);
        self.remove(name);
        self.cluster.pods.remove(name);
        self.cluster.nominated.remove(name);
    }

    fn remove(&mut self, name: &str) {
        self.cluster.placed.remove(name);
        self.cluster.owns.remove(name);
        self.assumed.remove(name);
        self.bound.remove(name);
    }

    /// Shows the pod on its node, as from the API.
    fn confirm(&mut self, name: &str) {
        let object = self.object(&self.cluster.pods[name], true);
        let now = self.now();
        self.engine.bind_finished(name, Ok(()), now);
        self.engine.pod_applied(object, now);
        self.assumed.remove(name);
    }

    /// Simulates a conflicting write to the pod.
    fn conflict(&mut self, name: &str) {
        let error = BindError {
            message: "conflict".to_owned(),
            gone: false,
        };
        let now = self.now();
        self.engine.bind_finished(name, Err(error), now);
        self.remove(name);
        self.reached.conflicts += 1;
    }
}

fn run(seed: u64, cached: bool, shows: bool) -> Reached {
    let mut run = OracleRun {
        engine: engine(cached, shows),
        cluster: OracleCluster::default(),
        draw: Draw::new(seed),
        assumed: BTreeMap::new(),
        bound: BTreeSet::new(),
        reached: Reached::default(),
        context: String::new(),
    };
    run.begin();
    for step in 0..80 {
        run.context = format!("seed {seed}, step {step}");
        run.cluster.now += 1;
        run.step();
        run.decide();
        assert!(
            run.engine.cluster().nodes().books_balance(),
            "{}",
            run.context
        );
    }
    assert_eq!(
        run.engine.classes().mismatches(),
        0,
        "every signature is complete"
    );
    run.reached
}

/// Runs the engine with and without caches.
#[test]
fn engine_matches_the_rules() {
    let mut total = [0; STATES];
    for seed in 0..48 {
        let reached = run(seed, seed % 3 != 0, seed % 3 == 2);
        for (sum, count) in total.iter_mut().zip(reached.counts()) {
            *sum += count;
        }
    }
    assert!(total.iter().all(|count| *count >= 5), "{total:?}");
}
