use super::args::{AnomalyCondition, Args, Pool};
use super::*;
use crate::framework::{Filter, Framework, Plan, SkipReason};
use crate::rules::Evictable;
use crate::state::{NodeUsage, PodInfo, Snapshot};
use crate::testing::{TestCluster, balancing, merged};
use serde_json::{Value, json};

mod arguments;
mod detect;
mod helpers;
mod memory;
mod notes;
mod outcomes;
mod simulated;
mod solving;
mod table;

/// The rules of upstream's default evictor.
#[derive(Debug)]
struct Rules;

impl Filter for Rules {
    fn name(&self) -> &'static str {
        "Rules"
    }
    fn filter(&self, _: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        Evictable::default().check(pod)
    }
}

fn args(value: Value) -> Args {
    serde_json::from_value(value).unwrap()
}

/// Returns a framework in which the first hot cycle is enough, modified by `over`.
fn framework(over: Value) -> Framework {
    let at_once =
        json!({"anomalyCondition": {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1}});
    let args = args(merged(at_once, over));
    args.check().unwrap();
    balancing(Box::new(LowNodeLoad::new(args)), vec![Box::new(Rules)])
}

/// Adds NodeMetrics in which all pods use what they request.
fn report_requests(world: &mut TestCluster) {
    let table = world.shapes.table().clone();
    for node in &world.nodes {
        let pods = world
            .pods
            .iter()
            .filter(|pod| pod.node.as_ref() == Some(&node.name));
        let pods = pods.map(|pod| {
            let amount = |(id, amount): (koord_model::resources::ResourceId, i64)| {
                let shown = if id == koord_model::resources::CPU {
                    format!("{amount}m")
                } else {
                    amount.to_string()
                };
                (table.name(id).to_string(), Value::from(shown))
            };
            let usage: serde_json::Map<_, _> = pod.shape.requests.iter().map(amount).collect();
            json!({"namespace": &*pod.namespace, "name": &*pod.name, "podUsage": {"resources": usage}})
        });
        let metric = json!({
            "metadata": {"name": &*node.name, "uid": &*node.name},
            "spec": {},
            "status": {
                "updateTime": world.now,
                "nodeMetric": {"nodeUsage": {"resources": {}}},
                "podsMetric": pods.collect::<Vec<_>>(),
            },
        });
        let metric = serde_json::from_value(metric).unwrap();
        world
            .usage
            .push(std::sync::Arc::new(NodeUsage::new(metric, &table)));
    }
}

/// Returns the notes of a plan about a node, or about none.
fn notes(plan: &Plan, node: &str) -> Vec<String> {
    let matching = plan
        .notes
        .iter()
        .filter(|note| note.node.as_deref().unwrap_or("") == node);
    matching.map(|note| note.text.clone()).collect()
}

/// Returns the rules that keep `pod`.
fn skip_rules(plan: &Plan, pod: &str) -> Vec<&'static str> {
    let matching = plan
        .skipped
        .iter()
        .filter(|skipped| &*skipped.pod.name == pod);
    matching.map(|skipped| skipped.reason.rule).collect()
}
