//! Why a node has the batch resources that it has: the same pure functions that the controller runs,
//! over objects that somebody fetched, with every term kept.

use crate::config::Config;
use crate::facts::{Keep, PodFacts, Report};
use crate::noderesource::{self, Input, Reset};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::quantity::Quantity;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY};
use koord_api::slo::NodeMetric;
use koord_app::flags::Selection;
use koord_model::reclaim::{self, BatchPolicy, NodeView, Sum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a decision about a node is made from.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// The node.
    pub node: Node,
    /// Its NodeMetric.
    pub metric: Option<NodeMetric>,
    /// The pods bound to it.
    pub pods: Vec<Pod>,
    /// `data` of the ConfigMap with the settings; `None` without one.
    pub settings: Option<BTreeMap<String, String>>,
    /// Whether services that were not measured are charged; gate `ChargeUnmeasuredPods`.
    pub charge_unmeasured: bool,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Name of the node.
    pub node: String,
    /// Why there is nothing to reclaim; `None` if there is.
    pub refused: Option<String>,
    /// Age of the report, in seconds.
    pub report_age_seconds: Option<i64>,
    /// Batch CPU and memory.
    pub resources: Vec<Resource>,
    /// What services are charged for, the largest CPU first.
    pub services: Vec<Service>,
    /// What is wrong with the settings.
    pub problems: Vec<String>,
}

/// One resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Its name.
    pub name: &'static str,
    /// What is computed, in cores or bytes; `None` if it is taken away.
    pub computed: Option<Quantity>,
    /// What the node shows, in the resource's own unit: milli-cores or bytes.
    pub published: Option<Quantity>,
    /// The parts of `computed`.
    pub terms: Vec<Term>,
}

/// A part of a resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Term {
    /// What it is.
    pub what: &'static str,
    /// Cores or bytes; negative where it is taken off.
    pub amount: Quantity,
    /// The setting that chose it.
    pub why: String,
}

/// A pod, or something measured that is no pod, that batch is charged for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Namespace and name; for others what they are.
    pub name: String,
    /// `request` where it was not measured, `measured` otherwise.
    pub by: &'static str,
    /// Cores.
    pub cpu: Quantity,
    /// Bytes.
    pub memory: Quantity,
}

/// Explains the batch resources of a node at `now`.
#[must_use]
pub fn node(objects: &Objects, now: Timestamp) -> Explanation {
    let data = objects.settings.clone().unwrap_or_default();
    let (config, problems) = Config::default().updated(&data);
    let mut strategy = config.strategy(&objects.node);
    if let Some(strategy) = &mut strategy {
        strategy.batch.charge_unmeasured = objects.charge_unmeasured;
    }
    let status = objects
        .metric
        .as_ref()
        .and_then(|metric| metric.status.as_ref());
    let report = status.map(Report::of);
    let facts = objects
        .pods
        .iter()
        .map(|pod| PodFacts::of(pod, Keep::default()));
    let pods: Vec<_> = facts.map(Arc::new).collect();
    let view = noderesource::reclaimable(&Input {
        node: &objects.node,
        strategy: strategy.as_ref(),
        normalization: config.normalization(&objects.node),
        amplification: config.amplification(&objects.node),
        report: report.as_ref(),
        pods: &pods,
        topology: None,
        device: None,
        plugins: &Selection::all(),
        share_gpus: false,
        devices_always: false,
        synced: None,
        now,
    });
    let (refused, sums, services) = match (view, &strategy) {
        (Ok(view), Some(strategy)) => {
            let batch = reclaim::batch(&view, &strategy.batch);
            let sums = reclaim::sums(&batch, &strategy.batch).map(Some);
            (None, sums, services(&pods, &view, &strategy.batch))
        }
        (Err(Reset::Degraded(why)), _) => (Some(why.to_owned()), [None, None], Vec::new()),
        _ => {
            let why = "co-location is off for the node (colocation-config: enable)";
            (Some(why.to_owned()), [None, None], Vec::new())
        }
    };
    let shown = objects.node.status.as_ref();
    let shown = shown.and_then(|status| status.allocatable.as_ref());
    let resource = |name, sum: Option<Sum>| Resource {
        name,
        computed: sum.as_ref().map(|sum| sum.total),
        published: noderesource::read(shown, name),
        terms: terms(sum),
    };
    let [cpu, memory] = sums;
    Explanation {
        node: objects.node.metadata.name.clone().unwrap_or_default(),
        refused,
        report_age_seconds: report
            .and_then(|report| report.updated)
            .map(|updated| now.as_second().saturating_sub(updated)),
        resources: vec![resource(BATCH_CPU, cpu), resource(BATCH_MEMORY, memory)],
        services,
        problems: problems
            .into_iter()
            .map(|problem| problem.message)
            .collect(),
    }
}

fn terms(sum: Option<Sum>) -> Vec<Term> {
    let terms = sum.into_iter().flat_map(|sum| sum.terms);
    let of = |term: reclaim::Term| Term {
        what: term.what,
        amount: term.amount,
        why: term.why,
    };
    terms.map(of).collect()
}

/// The view has the active pods in the order they were given.
fn services(pods: &[Arc<PodFacts>], view: &NodeView, policy: &BatchPolicy) -> Vec<Service> {
    let active = pods.iter().filter(|pod| pod.active);
    let mut services: Vec<_> = active
        .zip(&view.pods)
        .filter(|(_, pod)| !reclaim::is_low(pod.priority))
        .map(|(facts, pod)| {
            let charged = reclaim::charged(pod, policy);
            Service {
                name: facts.key.to_string(),
                by: if pod.usage.is_some() {
                    "measured"
                } else {
                    "request"
                },
                cpu: charged.cpu,
                memory: charged.memory,
            }
        })
        .collect();
    let gone = view
        .dangling
        .iter()
        .filter(|gone| !reclaim::is_low(gone.priority));
    services.extend(gone.map(|gone| Service {
        name: "a pod that has ended".to_owned(),
        by: "measured",
        cpu: gone.usage.cpu,
        memory: gone.usage.memory,
    }));
    services.sort_by(|a, b| b.cpu.cmp(&a.cpu).then_with(|| a.name.cmp(&b.name)));
    services
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn objects() -> Objects {
        let used = |cpu: &str, memory: &str| json!({"resources": {"cpu": cpu, "memory": memory}});
        let list = json!({"cpu": "10", "memory": "10G", BATCH_CPU: "5k"});
        let node = json!({"metadata": {"name": "n"},
            "status": {"capacity": list, "allocatable": list}});
        let metric = json!({
            "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
            "metadata": {"name": "n"}, "spec": {},
            "status": {"updateTime": "2026-01-01T00:59:30Z",
                "nodeMetric": {"systemUsage": used("1", "1G")},
                "podsMetric": [{"namespace": "d", "name": "web", "podUsage": used("2", "1G"),
                                "priority": "koord-prod"}]}});
        let pod = |name: &str, qos: &str| {
            json!({"metadata": {"namespace": "d", "name": name,
                       "labels": {"koordinator.sh/qosClass": qos}},
                   "spec": {"nodeName": "n", "containers": [{"name": "c",
                       "resources": {"requests": {"cpu": "3", "memory": "2G"}}}]},
                   "status": {"phase": "Running"}})
        };
        let read = |value| serde_json::from_value(value).unwrap();
        Objects {
            node: serde_json::from_value(node).unwrap(),
            metric: Some(serde_json::from_value(metric).unwrap()),
            pods: [pod("web", "LS"), pod("new", "LS"), pod("batch", "BE")]
                .map(read)
                .to_vec(),
            settings: Some(BTreeMap::from([(
                "colocation-config".to_owned(),
                "{\"enable\": true, \"cpuReclaimThresholdPercent\": 80}".to_owned(),
            )])),
            charge_unmeasured: true,
        }
    }

    fn explain(objects: &Objects) -> Explanation {
        node(objects, "2026-01-01T01:00:00Z".parse().unwrap())
    }

    #[test]
    fn the_number_is_explained_term_by_term() {
        let said = explain(&objects());
        assert_eq!(
            (said.refused.as_ref(), said.report_age_seconds),
            (None, Some(30))
        );
        let cpu = &said.resources[0];
        // 10 − 2 − 1 − (2 + 3)
        assert_eq!(cpu.computed.unwrap().value(), 2);
        assert_eq!(cpu.published.unwrap().value(), 5000);
        let terms: Vec<_> = cpu
            .terms
            .iter()
            .map(|term| (term.what, term.amount.value()))
            .collect();
        let want = [
            ("capacity", 10),
            ("safety margin", -2),
            ("system use", -1),
            ("services", -5),
        ];
        assert_eq!(terms, want);
        let charged: Vec<_> = said
            .services
            .iter()
            .map(|service| (service.name.as_str(), service.by, service.cpu.value()))
            .collect();
        assert_eq!(charged, [("d/new", "request", 3), ("d/web", "measured", 2)]);
    }

    #[test]
    fn what_is_taken_away_says_why() {
        let mut old = objects();
        let status = old.metric.as_mut().unwrap().status.as_mut().unwrap();
        status.update_time = None;
        assert!(explain(&old).refused.unwrap().contains("too old"));
        let mut off = objects();
        off.settings = None;
        let said = explain(&off);
        assert!(said.refused.unwrap().contains("enable"));
        assert_eq!(said.resources[0].computed, None);
        assert_eq!(said.resources[0].published.unwrap().value(), 5000);
    }
}
