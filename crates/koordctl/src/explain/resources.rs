//! Explains a node's batch and mid resources as sums.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use koord_api::slo::NodeMetric;
use koord_api::topology::{v1alpha1, v1alpha2};
use koord_api::{Quantity, configmap};
use koord_kube::api::ListParams;
use koord_kube::{Api, Client};
use koord_manager::explain::{self, Explanation, Objects, Resource, Service};
use koord_model::reclaim;
use std::fmt::Write as _;

/// Maximum number of services that are listed.
const MAX_SERVICES: usize = 10;

/// Fetches the objects that the manager reads, and computes the resources as it does.
pub(super) async fn fetch_explanation(client: &Client, node: Node) -> Result<Explanation> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let metrics: Api<NodeMetric> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), configmap::NAMESPACE);
    let pods: Api<Pod> = Api::all(client.clone());
    let bound = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let topologies: Api<v1alpha2::NodeResourceTopology> = Api::all(client.clone());
    let metric = none_if_not_installed(metrics.get_opt(&name).await).context("NodeMetric")?;
    let mut topology = none_if_not_installed(topologies.get_opt(&name).await);
    if matches!(topology, Ok(None)) {
        // The cluster may only serve the older version.
        let topologies: Api<v1alpha1::NodeResourceTopology> = Api::all(client.clone());
        let old = none_if_not_installed(topologies.get_opt(&name).await);
        topology = old.map(|old| old.map(Into::into));
    }
    let topology = topology.context("NodeResourceTopology")?;
    let settings = maps.get_opt(configmap::NAME).await?;
    let objects = Objects {
        node,
        metric,
        topology,
        pods: pods.list(&bound).await?.items,
        settings: settings.map(|map| map.data.unwrap_or_default()),
        charge_unmeasured: true,
    };
    Ok(explain::node(&objects, jiff::Timestamp::now()))
}

/// Returns `None` for an object whose kind is not installed.
fn none_if_not_installed<T>(
    found: Result<Option<T>, koord_kube::Error>,
) -> Result<Option<T>, koord_kube::Error> {
    match found {
        Err(error) if koord_kube::patch::is_not_found(&error) => Ok(None),
        found => found,
    }
}

/// Formats the explanation.
pub(super) fn render(explanation: &Explanation) -> String {
    let mut out = String::new();
    for resource in &explanation.resources {
        write_resource(&mut out, resource, "");
    }
    for zone in &explanation.zones {
        let _ = writeln!(out, "NUMA {}:", zone.name);
        for resource in &zone.resources {
            write_resource(&mut out, resource, "  ");
        }
    }
    if let Some(why) = &explanation.refused {
        let _ = writeln!(out, "nothing is reclaimed: {why}");
    }
    if let Some(age) = explanation.report_age_seconds {
        let _ = writeln!(out, "NodeMetric report: {age} s old");
    }
    write_services(&mut out, "services", &explanation.services);
    write_services(
        &mut out,
        "host applications",
        &explanation.host_applications,
    );
    for note in &explanation.notes {
        let _ = writeln!(out, "note: {note}");
    }
    for problem in &explanation.problems {
        let _ = writeln!(out, "problem: {problem}");
    }
    out
}

/// Appends the computed amount of a resource, the published one, and the terms of the computation, one a line and
/// indented by `indent`.
fn write_resource(out: &mut String, resource: &Resource, indent: &str) {
    let name = resource.name;
    let is_cpu = name.ends_with("cpu");
    let published = resource.published.map_or_else(
        || "nothing is published".to_owned(),
        |amount| format!("{} is published", format_amount(amount, false, is_cpu)),
    );
    let Some(computed) = resource.computed else {
        let _ = writeln!(out, "{indent}{name}: {published}");
        return;
    };
    let computed = format_amount(computed, true, is_cpu);
    let _ = writeln!(out, "{indent}{name}: {computed} ({published})");
    for (at, term) in resource.terms.iter().enumerate() {
        let sign = match (at, term.amount.signum()) {
            (0, _) => ' ',
            (_, -1) => '-',
            (_, 0) if term.taken => '-',
            _ => '+',
        };
        let shown = if term.amount.signum() < 0 {
            Quantity::ZERO.with_format(term.amount.format()) - term.amount
        } else {
            term.amount
        };
        let shown = format_amount(shown, true, is_cpu);
        let chose = match (&term.setting, &term.from) {
            (Some(setting), Some(from)) => format!(" [{setting}: {from}]"),
            (None, Some(from)) => format!(" [{from}]"),
            _ => String::new(),
        };
        let (what, why) = (&term.what, &term.why);
        let _ = writeln!(out, "{indent}  {sign} {shown:>14}  {what:<14} {why}{chose}");
    }
}

/// Formats the sum of a node's reclaimed resource on one line; `None` if the manager does not compute it.
pub(super) fn sum_line(explanation: &Explanation, name: &str) -> Option<String> {
    let resource = explanation.resources.iter().find(|it| it.name == name)?;
    let is_cpu = name.ends_with("cpu");
    let node = &explanation.node;
    let Some(computed) = resource.computed else {
        let reason = explanation.refused.as_deref();
        let reason = reason.unwrap_or("koord-manager computes nothing for it");
        return Some(format!(
            "{name} of {node}: nothing, {reason}; see `koord explain node {node}`"
        ));
    };
    let mut line = format!(
        "{name} of {node}: {} =",
        format_amount(computed, true, is_cpu)
    );
    for (at, term) in resource.terms.iter().enumerate() {
        let is_negative = term.amount.signum() < 0 || (term.amount.is_zero() && term.taken);
        let shown = if term.amount.signum() < 0 {
            -term.amount
        } else {
            term.amount
        };
        let sign = match (at, is_negative) {
            (0, false) => "",
            (_, true) => "- ",
            (_, false) => "+ ",
        };
        let (what, shown) = (&term.what, format_amount(shown, true, is_cpu));
        let _ = write!(line, " {sign}{what} {shown}");
    }
    let _ = write!(line, "; see `koord explain node {node}`");
    Some(line)
}

/// Appends the largest services, one a line: CPU in cores, memory, name, and the basis of the amounts.
fn write_services(out: &mut String, title: &str, services: &[Service]) {
    if !services.is_empty() {
        let _ = writeln!(out, "{title}:");
    }
    for service in services.iter().take(MAX_SERVICES) {
        let (cpu, memory) = (
            format_amount(service.cpu, true, true),
            format_amount(service.memory, true, false),
        );
        let (name, by) = (&service.name, service.by);
        let _ = writeln!(out, "  {cpu:>9} {memory:>14}  {name} ({by})");
    }
    if let Some(more) = services.len().checked_sub(MAX_SERVICES + 1) {
        let _ = writeln!(out, "  and {} more", more + 1);
    }
}

/// Formats CPU in milli-cores (`is_cpu`), and memory in MiB. `in_cores` is the unit of a CPU `amount`: cores, otherwise
/// milli-cores.
fn format_amount(amount: Quantity, in_cores: bool, is_cpu: bool) -> String {
    match (is_cpu, in_cores) {
        (true, true) => reclaim::millicores(amount),
        (true, false) => format!("{}m", amount.value()),
        (false, _) => reclaim::mebibytes(amount),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_manager::explain::{Term, ZoneResources};

    fn term(what: &str, amount: &str, taken: bool, setting: &str) -> Term {
        Term {
            what: what.to_owned(),
            amount: amount.parse().unwrap(),
            taken,
            why: "because".to_owned(),
            setting: (!setting.is_empty()).then(|| setting.to_owned()),
            from: (!setting.is_empty()).then(|| "default".to_owned()),
        }
    }

    fn resource(name: &'static str, computed: Option<&str>, terms: Vec<Term>) -> Resource {
        Resource {
            name,
            computed: computed.map(|text| text.parse().unwrap()),
            published: computed.map(|_| "2k".parse().unwrap()),
            terms,
        }
    }

    #[test]
    fn sum_fits_on_a_line() {
        let batch = vec![
            term("capacity", "8", false, ""),
            term("safety margin", "-3200m", true, ""),
            term("services", "-6", true, ""),
            term("missing", "1200m", false, ""),
        ];
        let mut explanation = Explanation {
            node: "n".to_owned(),
            refused: None,
            report_age_seconds: None,
            resources: vec![resource("kubernetes.io/batch-cpu", Some("0"), batch)],
            zones: Vec::new(),
            services: Vec::new(),
            host_applications: Vec::new(),
            notes: Vec::new(),
            problems: Vec::new(),
        };
        assert_eq!(
            sum_line(&explanation, "kubernetes.io/batch-cpu").unwrap(),
            "kubernetes.io/batch-cpu of n: 0m = capacity 8000m - safety margin 3200m - services 6000m \
             + missing 1200m; see `koord explain node n`"
        );
        assert_eq!(sum_line(&explanation, "kubernetes.io/mid-cpu"), None);
        explanation.resources = vec![resource("kubernetes.io/batch-cpu", None, Vec::new())];
        explanation.refused = Some("the report is too old".to_owned());
        assert_eq!(
            sum_line(&explanation, "kubernetes.io/batch-cpu").unwrap(),
            "kubernetes.io/batch-cpu of n: nothing, the report is too old; see `koord explain node n`"
        );
    }

    #[test]
    fn a_sum_is_shown_term_by_term() {
        let batch = vec![
            term("capacity", "10", false, ""),
            term("safety margin", "-8", true, "cpuCalculatePolicy=usage"),
            term("services", "0", true, ""),
            term("unallocated", "0", false, ""),
            term("missing", "1", true, ""),
        ];
        let service = |name: &str| Service {
            name: name.to_owned(),
            by: "request",
            cpu: "8".parse().unwrap(),
            memory: "1Gi".parse().unwrap(),
        };
        let zone = resource(
            "kubernetes.io/batch-cpu",
            Some("1"),
            vec![term("capacity", "1", false, "")],
        );
        let explanation = Explanation {
            node: "n".to_owned(),
            refused: None,
            report_age_seconds: Some(30),
            resources: vec![
                resource("kubernetes.io/batch-cpu", Some("2"), batch),
                resource("kubernetes.io/batch-memory", None, Vec::new()),
            ],
            zones: vec![ZoneResources {
                name: "node-0".to_owned(),
                resources: vec![zone],
            }],
            services: vec![service("d/web"); 12],
            host_applications: vec![service("nginx")],
            notes: vec!["it waits".to_owned()],
            problems: vec!["colocation-config: wrong".to_owned()],
        };
        assert_eq!(
            render(&explanation),
            format!(
                "\
kubernetes.io/batch-cpu: 2000m (2000m is published)
            10000m  capacity       because
  -          8000m  safety margin  because [cpuCalculatePolicy=usage: default]
  -             0m  services       because
  +             0m  unallocated    because
  +          1000m  missing        because
kubernetes.io/batch-memory: nothing is published
NUMA node-0:
  kubernetes.io/batch-cpu: 1000m (2000m is published)
               1000m  capacity       because
NodeMetric report: 30 s old
services:
{}  and 2 more
host applications:
      8000m         1024Mi  nginx (request)
note: it waits
problem: colocation-config: wrong
",
                "      8000m         1024Mi  d/web (request)\n".repeat(10)
            )
        );
    }
}
