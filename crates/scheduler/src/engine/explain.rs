//! Explanations: why a pod waits, what the nearest nodes lack for it, and why a placed pod is on its node.

use super::class::{Column, Evaluation, normal};
use super::cluster::ClusterState;
use super::inspector::Inspector;
use super::plugin_table::PluginTable;
use super::scope::{Scope, filter_of, score_of};
use crate::framework::{Code, Cycle, Normalize, Rejection, RowVerdict, Shortfall};
use crate::queue::{PluginSet, Queue};
use crate::state::{NodeIndex, PodInfo};
use jiff::Timestamp;
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

/// The maximum number of recorded decisions.
const REMEMBERED: usize = 4096;
/// The maximum number of decisions recorded per second, so that a burst costs little.
const PER_SECOND: u32 = 500;
/// The number of other nodes listed with a decision.
const RUNNERS_UP: usize = 2;
/// The number of nodes listed with a decision.
pub(super) const RANKED: usize = 1 + RUNNERS_UP;

/// The score of one node by one plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginScore {
    /// The plugin, or `Extender` for all extenders together.
    pub plugin: &'static str,
    /// The raw score.
    pub raw: i64,
    /// The score normalized to 0..=100; absent if normalization depends on all nodes and its result is not
    /// stored. For extenders, what they add, weights included.
    pub score: Option<i64>,
    /// The weight of the score.
    pub weight: i64,
}

/// A node with its scores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoredNode {
    /// The node's name.
    pub node: Arc<str>,
    /// The weighted sum of the scores that are present.
    pub total: i64,
    /// The scores by plugin.
    pub scores: Vec<PluginScore>,
}

/// The comparison of nodes behind a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    /// The number of nodes that fit.
    pub feasible: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// The chosen node, then the next best ones.
    pub ranking: Vec<ScoredNode>,
}

/// A recorded scheduling decision.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// The pod: `namespace/name`.
    pub pod: String,
    #[serde(skip)]
    pub(super) uid: Arc<str>,
    /// The chosen node.
    pub node: Arc<str>,
    /// The time of the decision.
    pub time: Timestamp,
    /// The comparison; absent if there was none: the pod was nominated to the node, or a plugin preferred it.
    #[serde(flatten)]
    pub table: Option<Table>,
}

/// The latest decisions.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    pub(super) ring: VecDeque<Decision>,
    second: i64,
    noted: u32,
}

impl Decisions {
    /// Counts a decision and returns true if it may be recorded in this second.
    pub(super) fn admit(&mut self, now: Timestamp) -> bool {
        if self.second != now.as_second() {
            (self.second, self.noted) = (now.as_second(), 0);
        }
        self.noted += 1;
        self.noted <= PER_SECOND
    }

    /// Returns true if the decision of the current cycle is to be recorded.
    pub(super) fn open(&self) -> bool {
        self.noted <= PER_SECOND
    }

    pub(super) fn note(
        &mut self,
        pod: &PodInfo,
        node: &Arc<str>,
        table: Option<Table>,
        now: Timestamp,
    ) {
        if self.ring.len() >= REMEMBERED {
            self.ring.pop_front();
        }
        self.ring.push_back(Decision {
            pod: pod.to_string(),
            uid: pod.uid.clone(),
            node: node.clone(),
            time: now,
            table,
        });
    }
}

/// A node that refuses a pod, with what it lacks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NearestNode {
    /// The node's name.
    pub node: Arc<str>,
    /// Text for users about what is missing on the node.
    pub lacks: String,
    /// Distance of the node from fitting; smaller is nearer.
    pub distance: f64,
}

impl Inspector<'_> {
    /// Returns the nodes that come closest to fitting `pod`, nearest first. Empty if the pod is refused
    /// before any node is filtered. Evaluates every node once.
    #[must_use]
    pub fn nearest(
        &mut self,
        pod: &Arc<PodInfo>,
        count: usize,
        now: Timestamp,
    ) -> Vec<NearestNode> {
        let Some(profile) = self.table.profile_of(pod) else {
            return Vec::new();
        };
        self.table
            .prepare_state(&self.telemetry.meter, pod, profile, self.cluster.view(now));
        let cycle = Cycle::new(pod, self.cluster.view(now));
        let Ok(prepared) = self
            .table
            .prepare_tolerating(&self.telemetry.meter, &cycle, profile, 0)
        else {
            return Vec::new();
        };
        let chain = self.table.chain(prepared);
        let nominator = &self.preemptor.nominator;
        let scope = Scope::new(cycle, self.table, &chain, nominator, self.options);
        let distance_of = |node: NodeIndex| {
            let mut shortfall = Shortfall::default();
            scope.add_shortfall(node, &mut shortfall);
            (shortfall.found() > 0).then(|| (shortfall.distance(), node))
        };
        let rows: Vec<NodeIndex> = self.cluster.nodes.indices().collect();
        let mut nearest: Vec<(f64, NodeIndex)> = if rows.len() < self.options.parallel_rows {
            rows.into_iter().filter_map(distance_of).collect()
        } else {
            rows.into_par_iter().filter_map(distance_of).collect()
        };
        let nearer =
            |a: &(f64, NodeIndex), b: &(f64, NodeIndex)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        if count < nearest.len() {
            nearest.select_nth_unstable_by(count, nearer);
            nearest.truncate(count);
        }
        nearest.sort_unstable_by(nearer);
        let describe = |(distance, node): (f64, NodeIndex)| {
            let mut shortfall = Shortfall::with_texts();
            scope.add_shortfall(node, &mut shortfall);
            NearestNode {
                node: self.cluster.nodes.name(node).clone(),
                lacks: shortfall.text(),
                distance,
            }
        };
        nearest.into_iter().map(describe).collect()
    }

    /// Returns everything about a pod as JSON for users; `None` if there is no such pod.
    #[must_use]
    pub fn explain_pod(&mut self, namespace: &str, name: &str, now: Timestamp) -> Option<Value> {
        let is = |pod: &PodInfo| *pod.name == *name && *pod.namespace == *namespace;
        let booked = self.cluster.pods.values().find(|record| is(&record.info));
        let booked = booked.map(|record| (record.info.clone(), record.node, record.assumed));
        let pod = match &booked {
            Some((pod, ..)) => pod.clone(),
            None => self.queue.find(is)?.clone(),
        };
        if let Some(profile) = self.table.profile_of(&pod) {
            self.table
                .prepare_state(&self.telemetry.meter, &pod, profile, self.cluster.view(now));
        }
        self.table.prepare_explain(self.cluster.view(now));
        let mut plugins = serde_json::Map::new();
        let filter_plugins = self.table.filter_plugins_for(&pod);
        let numbered = self.table.plugins.iter().enumerate();
        for (_, plugin) in numbered.filter(|(at, _)| filter_plugins & (1 << at) != 0) {
            let explainer = plugin.explain();
            if let Some(explanation) =
                explainer.and_then(|it| it.explain(&pod, self.cluster.view(now)))
            {
                plugins.insert(plugin.name().to_owned(), explanation);
            }
        }
        let mut out = json!({
            "pod": pod.to_string(),
            "uid": &*pod.uid,
            "priority": pod.priority,
            "schedulerName": pod.scheduler_name(),
            "nominatedNode": self.preemptor.nominator.node_of(&pod.uid),
            "plugins": plugins,
        });
        let Some((_, node, assumed)) = booked else {
            out["state"] = json!("pending");
            out["queue"] = queue_state(self.table, self.queue, &pod, now);
            out["nearest"] = json!(self.nearest(&pod, 3, now));
            return Some(out);
        };
        out["node"] = json!(self.cluster.nodes.name(node));
        out["decision"] = json!(self.telemetry.decision(&pod.uid));
        out["state"] = match (self.waits.pods.get(&pod.uid), assumed) {
            (Some(waiting), _) => {
                out["waitsFor"] = json!({"plugins": waiting.on, "until": waiting.until});
                json!("waiting")
            }
            (None, true) => json!("binding"),
            (None, false) => json!("bound"),
        };
        Some(out)
    }
}

impl ClusterState {
    /// Iterates over all pods, with the node name of those on a node and "" for the others, in no particular
    /// order.
    pub(crate) fn all_pods<'a>(
        &'a self,
        queue: &'a Queue,
    ) -> impl Iterator<Item = (&'a PodInfo, &'a str)> {
        let booked = self.pods.values();
        let booked = booked.map(|record| (&*record.info, &**self.nodes.name(record.node)));
        let waiting = queue.pods();
        let waiting = waiting.filter(|pod| !self.pods.contains_key(&pod.uid));
        booked.chain(waiting.map(|pod| (&**pod, "")))
    }
}

/// Returns a pending pod's state in the queue as JSON.
fn queue_state(table: &PluginTable, queue: &Queue, pod: &PodInfo, now: Timestamp) -> Value {
    let names = |set: PluginSet| -> Vec<&str> {
        let named = table.names.iter().enumerate();
        named
            .filter(|(instance, _)| set & (1 << instance) != 0)
            .map(|(_, name)| *name)
            .collect()
    };
    let Some(state) = queue.describe(&pod.uid) else {
        return Value::Null;
    };
    let mut out = json!({
        "place": state.place,
        "attempts": state.attempts,
        "firstSeen": state.first_seen,
    });
    if let Some(until) = state.until.filter(|until| *until > now) {
        out["backoffUntil"] = json!(until);
    }
    if state.by != 0 {
        out[if state.place == "gated" {
            "gatedBy"
        } else {
            "refusedBy"
        }] = json!(names(state.by));
    }
    if state.place == "gated" {
        let reasons: Vec<String> = table
            .plugins
            .iter()
            .filter_map(|plugin| Some(plugin.pre_enqueue()?.pre_enqueue(pod).err()?.message()))
            .collect();
        out["reasons"] = json!(reasons);
    }
    out
}

impl Scope<'_> {
    /// Adds what `node` lacks according to each plugin that refuses it; nothing if the pod fits.
    fn add_shortfall(&self, node: NodeIndex, out: &mut Shortfall) {
        let verdict = self.judge(node);
        let RowVerdict::Refused(_, refused) = verdict else {
            return;
        };
        let (removed, added) = self.overlay_pods(node, &[]);
        let cycle = self.with_removed(&removed, &added);
        for (plugin, state) in self
            .prepared
            .filters
            .iter()
            .chain(&self.prepared.volatile_filters)
        {
            let filter = filter_of(self.plugins, *plugin);
            if let Err(rejection) = filter.filter(&cycle, state, node) {
                let before = out.found();
                if let Some(explainer) = self.plugins[*plugin].explain() {
                    explainer.explain_shortfall(&cycle, state, node, out);
                }
                if out.found() == before {
                    add_rejection(&rejection, out);
                }
            }
        }
        if out.found() == 0 {
            // The NUMA resources do not align: the plugins that allocate them have the details.
            for (plugin, state) in &self.prepared.filters {
                let plugin = &self.plugins[*plugin];
                if let Some(explainer) = plugin.explain().filter(|_| plugin.alignment().is_some()) {
                    explainer.explain_shortfall(&cycle, state, node, out);
                }
            }
        }
        if out.found() == 0 {
            // The node is not on the list of nodes that can fit, or no plugin gives details.
            add_rejection(&refused, out);
        }
    }
}

impl Scope<'_> {
    /// Returns the scores of `node`, given its raw scores.
    pub(super) fn scored(&self, node: NodeIndex, columns: &[Column], raws: &[i64]) -> ScoredNode {
        let shared = columns.iter().zip(raws).map(|(column, raw)| PluginScore {
            plugin: self.plugins[column.plugin].name(),
            raw: *raw,
            score: (column.kind != Normalize::Custom)
                .then(|| normal(column.kind, *raw, column.max)),
            weight: column.weight,
        });
        let moving = self.prepared.volatile_scores.iter();
        let moving = moving.map(|(plugin, weight, state)| PluginScore {
            plugin: self.plugins[*plugin].name(),
            raw: score_of(self.plugins, *plugin).score(&self.cycle, state, node),
            score: None,
            weight: *weight,
        });
        let extenders = self
            .extender_verdicts
            .and_then(|extender_verdicts| extender_verdicts.score(node));
        let extenders = extenders.map(|score| PluginScore {
            plugin: super::extender_calls::NAME,
            raw: score,
            score: Some(score),
            weight: 1,
        });
        let scores: Vec<PluginScore> = shared.chain(moving).chain(extenders).collect();
        let present = scores.iter().filter_map(|s| Some(s.score? * s.weight));
        ScoredNode {
            node: self.nodes().name(node).clone(),
            total: present.sum(),
            scores,
        }
    }
}

/// Adds a refusal without figures. It counts as much as lacking everything of one resource, or of ten if
/// evictions cannot help.
fn add_rejection(rejection: &Rejection, out: &mut Shortfall) {
    let distance = match rejection.code {
        Code::Unresolvable => 10.0,
        _ => 1.0,
    };
    out.add(distance, || rejection.message());
}

impl Evaluation {
    /// Compares `best` with the next best nodes.
    pub(super) fn table(&self, scope: &Scope<'_>, best: NodeIndex) -> Table {
        let (feasible, mut ranked) = self.first(scope, RANKED);
        ranked.retain(|node| *node != best);
        ranked.truncate(RUNNERS_UP);
        let nodes = scope.cycle.view.nodes;
        let ranked = std::iter::once(best).chain(ranked);
        let ranking = ranked
            .map(|node| {
                // Not all raw scores are stored, and explanations are rare.
                let mut raws = Vec::new();
                scope.evaluate(node, &mut raws);
                scope.scored(node, &self.columns, &raws)
            })
            .collect();
        Table {
            feasible,
            nodes: nodes.len(),
            ranking,
        }
    }

    /// Returns how many nodes fit, and the `count` best of them by their shared scores.
    fn first(&self, scope: &Scope<'_>, count: usize) -> (usize, Vec<NodeIndex>) {
        if !scope.needs_second_stage() {
            let feasible = self.tree.rows().iter().filter(|key| **key != 0).count();
            let rows = self.tree.top(count).into_iter();
            let nodes = rows.filter_map(|row| u32::try_from(row).ok().map(NodeIndex));
            return (feasible, nodes.collect());
        }
        let mut rows = self.non_volatile_fits();
        self.drop_refused(scope, &mut rows);
        let (feasible, keys) = (rows.len(), self.tree.rows());
        let mut first = Vec::with_capacity(count + 1);
        for node in rows {
            let key = keys.get(node.row()).copied().unwrap_or(0);
            let rank = match scope.extender_verdicts {
                Some(extender_verdicts) => extender_verdicts.rank(key, node),
                None => (
                    i64::try_from(key >> 32).unwrap_or(i64::MAX),
                    key & u64::from(u32::MAX),
                ),
            };
            let place = (Reverse(rank), node);
            // Nearly every node ends here: of thousands, only `count` are wanted.
            if first.len() == count && first.last().is_none_or(|last| *last <= place) {
                continue;
            }
            first.insert(first.partition_point(|other| *other < place), place);
            first.truncate(count);
        }
        let nodes = first.into_iter().map(|(_, node)| node);
        (feasible, nodes.collect())
    }
}
