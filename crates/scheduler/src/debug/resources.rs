//! `/metrics/resources`: requests and limits of every pod.

use crate::engine::Engine;
use crate::state::PodInfo;
use koord_model::resources::{Amounts, CPU};
use std::fmt::Write;

const SERIES: [(&str, &str); 2] = [
    (
        "kube_pod_resource_request",
        "Resources requested by workloads on the cluster, broken down by pod.",
    ),
    (
        "kube_pod_resource_limit",
        "Resources limit for workloads on the cluster, broken down by pod.",
    ),
];

/// Returns the metrics of all pods that have not finished, in the text format.
pub(super) fn text(engine: &Engine) -> String {
    let mut pods: Vec<(&PodInfo, &str)> = engine
        .cluster()
        .all_pods(&engine.queue)
        .filter(|(pod, _)| !pod.is_holder())
        .collect();
    pods.sort_by(|a, b| (&a.0.namespace, &a.0.name).cmp(&(&b.0.namespace, &b.0.name)));
    let mut out = String::new();
    for (at, (name, help)) in SERIES.into_iter().enumerate() {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (pod, node) in &pods {
            let amounts = [&pod.requests, &pod.limits][at];
            lines(&mut out, name, pod, node, amounts, engine);
        }
    }
    out
}

/// Appends one metric line for each amount that is not 0.
fn lines(
    out: &mut String,
    name: &str,
    pod: &PodInfo,
    node: &str,
    amounts: &Amounts,
    engine: &Engine,
) {
    for (id, amount) in amounts.iter().filter(|(_, amount)| *amount != 0) {
        let resource = engine.cluster().resources().name(id);
        let unit = match &*resource {
            "cpu" => "cores",
            "memory" | "ephemeral-storage" => "bytes",
            name if name.starts_with("hugepages-") => "bytes",
            _ => "integer",
        };
        #[allow(clippy::cast_precision_loss, reason = "metrics are floating point")]
        let value = if id == CPU {
            amount as f64 / 1000.0
        } else {
            amount as f64
        };
        let _ = writeln!(
            out,
            "{name}{{namespace={:?},pod={:?},node={node:?},scheduler={:?},priority=\"{}\",\
             resource={:?},unit={unit:?}}} {value}",
            &*pod.namespace,
            &*pod.name,
            pod.scheduler_name(),
            pod.priority,
            &*resource,
        );
    }
}
