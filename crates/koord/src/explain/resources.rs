//! Where a node's batch resources come from, as a sum.

use crate::cluster;
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use koord_api::Quantity;
use koord_api::slo::NodeMetric;
use koord_kube::api::ListParams;
use koord_kube::{Api, Client};
use koord_manager::explain::{self, Explanation, Objects};
use std::fmt::Write as _;

/// Services that are listed; the rest is one line.
const MOST_SERVICES: usize = 10;

/// Fetches what the manager decides from and decides as it does.
pub(super) async fn of(client: &Client, node: Node) -> Result<Explanation> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let metrics: Api<NodeMetric> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), cluster::CONFIG_NAMESPACE);
    let pods: Api<Pod> = Api::all(client.clone());
    let bound = ListParams::default().fields(&format!("spec.nodeName={name}"));
    // Where the kind is not installed there is no report either.
    let metric = match metrics.get_opt(&name).await {
        Err(error) if koord_kube::patch::is_not_found(&error) => None,
        found => found.context("NodeMetric")?,
    };
    let settings = maps.get_opt(cluster::CONFIG_NAME).await?;
    let objects = Objects {
        node,
        metric,
        pods: pods.list(&bound).await?.items,
        settings: settings.map(|map| map.data.unwrap_or_default()),
        charge_unmeasured: true,
    };
    Ok(explain::node(&objects, jiff::Timestamp::now()))
}

/// The sums as text.
pub(super) fn render(said: &Explanation) -> String {
    let mut out = String::new();
    for resource in &said.resources {
        let is_cpu = resource.name.ends_with("cpu");
        let published = resource.published.map_or_else(
            || "nothing is published".to_owned(),
            |amount| format!("{} is published", unit(amount, false, is_cpu)),
        );
        let Some(computed) = resource.computed else {
            let _ = writeln!(out, "{}: {published}", resource.name);
            continue;
        };
        let computed = unit(computed, true, is_cpu);
        let _ = writeln!(out, "{}: {computed} ({published})", resource.name);
        for (at, term) in resource.terms.iter().enumerate() {
            let negative = term.amount.signum() < 0;
            let sign = match (at, negative) {
                (0, _) => ' ',
                (_, true) => '-',
                (_, false) => '+',
            };
            let shown = if negative {
                Quantity::ZERO.with_format(term.amount.format()) - term.amount
            } else {
                term.amount
            };
            let shown = unit(shown, true, is_cpu);
            let _ = writeln!(out, "  {sign} {shown:>14}  {:<14} {}", term.what, term.why);
        }
    }
    if let Some(why) = &said.refused {
        let _ = writeln!(out, "there is nothing to reclaim: {why}");
    }
    if let Some(age) = said.report_age_seconds {
        let _ = writeln!(out, "the report is {age} s old");
    }
    if !said.services.is_empty() {
        out.push_str("services:\n");
    }
    for service in said.services.iter().take(MOST_SERVICES) {
        let (cpu, memory) = (
            unit(service.cpu, true, true),
            unit(service.memory, true, false),
        );
        let _ = writeln!(
            out,
            "  {cpu:>9} {memory:>14}  {} ({})",
            service.name, service.by
        );
    }
    if let Some(more) = said.services.len().checked_sub(MOST_SERVICES + 1) {
        let _ = writeln!(out, "  and {} more", more + 1);
    }
    for problem in &said.problems {
        let _ = writeln!(out, "settings: {problem}");
    }
    out
}

/// CPU as milli-cores, which `cores` says whether it is counted in yet; memory as bytes.
fn unit(amount: Quantity, cores: bool, is_cpu: bool) -> String {
    match (is_cpu, cores) {
        (true, true) => format!("{}m", amount.milli_value()),
        (true, false) => format!("{}m", amount.value()),
        (false, _) => mebibytes(amount),
    }
}

fn mebibytes(amount: Quantity) -> String {
    let bytes = amount.value();
    if bytes == 0 {
        "0".to_owned()
    } else {
        format!("{} MiB", bytes.div_euclid(1 << 20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_manager::explain::{Resource, Service, Term};

    #[test]
    fn a_sum_is_shown_term_by_term() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        let term = |what, amount, why: &str| Term {
            what,
            amount: quantity(amount),
            why: why.to_owned(),
        };
        let said = Explanation {
            node: "n".to_owned(),
            refused: None,
            report_age_seconds: Some(30),
            resources: vec![
                Resource {
                    name: "kubernetes.io/batch-cpu",
                    computed: Some(quantity("2")),
                    published: Some(quantity("2k")),
                    terms: vec![
                        term("capacity", "10", "of the node"),
                        term("services", "-8", "cpuCalculatePolicy: usage"),
                    ],
                },
                Resource {
                    name: "kubernetes.io/batch-memory",
                    computed: None,
                    published: None,
                    terms: Vec::new(),
                },
            ],
            services: vec![Service {
                name: "d/web".to_owned(),
                by: "request",
                cpu: quantity("8"),
                memory: quantity("1Gi"),
            }],
            problems: vec!["colocation-config: wrong".to_owned()],
        };
        let text = render(&said);
        for line in [
            "kubernetes.io/batch-cpu: 2000m (2000m is published)",
            "           10000m  capacity       of the node",
            "  -          8000m  services       cpuCalculatePolicy: usage",
            "kubernetes.io/batch-memory: nothing is published",
            "the report is 30 s old",
            "      8000m       1024 MiB  d/web (request)",
            "settings: colocation-config: wrong",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
    }
}
