//! `koord recommend`: shows the requests of containers next to their recommendations.

use crate::cluster_args::ClusterArgs;
use anyhow::{Result, bail};
use comfy_table::{Table, presets};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use koord_api::analysis::{
    ContainerDistribution, DISTRIBUTION, Recommendation, RecommendationTargetType,
};
use koord_api::quantity::{Format, Quantity, ResourceList};
use koord_api::{quantity, requests, resources, selector};
use koord_app::console;
use koord_app::daemon::runtime;
use koord_kube::api::ListParams;
use koord_kube::kube_core::DynamicObject;
use koord_kube::owners::Owners;
use koord_kube::tls::install_crypto_provider;
use koord_kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Arguments of `koord recommend`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Names of the Recommendations to print [default: all].
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Namespace [default: the one of the context].
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Print the Recommendations of all namespaces.
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "names"])]
    pub all_namespaces: bool,
    /// Output format.
    #[arg(short, long, default_value = "table", value_parser = ["table", "json"])]
    pub output: String,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// A Recommendation in the output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    namespace: String,
    name: String,
    /// Target as `KIND/NAME`, or `pods` for a selector.
    target: String,
    containers: Vec<Row>,
    /// Conditions with status True, each with its message.
    conditions: BTreeMap<String, String>,
}

/// A container of a Recommendation in the output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    requests: ResourceList,
    recommended: ResourceList,
    /// Days of history; `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence_days: Option<f64>,
}

/// Queries the cluster and prints the Recommendations.
///
/// # Errors
/// The cluster cannot be reached, or a named Recommendation does not exist.
pub fn main(args: &Args) -> Result<()> {
    runtime()?.block_on(run(args))
}

/// Prints the Recommendations of the selected namespaces.
async fn run(args: &Args) -> Result<()> {
    install_crypto_provider();
    let client = args.cluster.connect().await?;
    let namespace = args
        .namespace
        .clone()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    let api: Api<Recommendation> = if args.all_namespaces {
        Api::all(client.clone())
    } else {
        Api::namespaced(client.clone(), &namespace)
    };
    let objects = if args.names.is_empty() {
        match api.list(&ListParams::default()).await {
            Ok(list) => list.items,
            Err(error) if koord_kube::patch::is_not_found(&error) => bail!(
                "the cluster has no Recommendation resource, install it with: koord crds | kubectl apply -f -"
            ),
            Err(error) => return Err(error.into()),
        }
    } else {
        let mut objects = Vec::new();
        for name in &args.names {
            objects.push(api.get(name).await?);
        }
        objects
    };
    let mut owners = Owners::new(client.clone());
    let mut reports = Vec::new();
    for object in &objects {
        let requested = requested(&client, &mut owners, object).await;
        reports.push(report(object, &requested));
    }
    if args.output == "json" {
        console::print_line(serde_json::to_string_pretty(&reports)?);
    } else if reports.is_empty() {
        let place = if args.all_namespaces {
            "the cluster".to_owned()
        } else {
            format!("namespace {namespace}")
        };
        console::warn(format_args!("No Recommendations found in {place}."));
    } else {
        console::print_line(table(&reports, args.all_namespaces));
    }
    Ok(())
}

/// Returns the requests of the target's containers; empty if the target cannot be found.
async fn requested(
    client: &Client,
    owners: &mut Owners,
    object: &Recommendation,
) -> BTreeMap<String, ResourceList> {
    let namespace = object.namespace().unwrap_or_default();
    let target = &object.spec.target;
    if let Some(workload) = &target.workload
        && target.type_ == RecommendationTargetType::Workload
    {
        let version = workload.api_version_or_builtin().unwrap_or_default();
        let Ok(Some(resource)) = owners.resource(version, &workload.kind).await else {
            return BTreeMap::new();
        };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
        let workload_object = api.get_opt(&workload.name).await.ok().flatten();
        return workload_object.map_or_else(BTreeMap::new, |workload_object| {
            template_requests(&workload_object.data)
        });
    }
    let Some(labels) = &target.pod_selector else {
        return BTreeMap::new();
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pods = pods.list(&ListParams::default()).await;
    let pods = pods.map_or_else(|_| Vec::new(), |list| list.items);
    let mut chosen: Vec<&Pod> = pods
        .iter()
        .filter(|pod| selector::matches(labels, pod.labels()).unwrap_or(false))
        .collect();
    // The newest pod overrides older ones.
    chosen.sort_by_key(|pod| pod.creation_timestamp().map(|time| time.0));
    let mut all = BTreeMap::new();
    for spec in chosen.iter().filter_map(|pod| pod.spec.as_ref()) {
        all.extend(spec_requests(spec));
    }
    all
}

/// Returns the requests in the pod template of a workload, for Kubernetes' own kinds and custom ones with the
/// same structure.
fn template_requests(workload: &Value) -> BTreeMap<String, ResourceList> {
    [
        "/spec/template/spec",
        "/spec/jobTemplate/spec/template/spec",
    ]
    .into_iter()
    .find_map(|path| workload.pointer(path))
    .and_then(|spec| serde_json::from_value(spec.clone()).ok())
    .map_or_else(BTreeMap::new, |spec| spec_requests(&spec))
}

/// Returns the CPU and memory requests of each container. Batch and mid CPU count as CPU, batch and mid
/// memory as memory.
fn spec_requests(spec: &PodSpec) -> BTreeMap<String, ResourceList> {
    let sidecars = spec.init_containers.iter().flatten();
    let running = spec
        .containers
        .iter()
        .chain(sidecars.filter(|container| requests::is_sidecar(container)));
    running
        .map(|container| {
            let listed = container
                .resources
                .as_ref()
                .and_then(|r| r.requests.as_ref());
            let amount = |names: [&str; 3]| {
                let entry = names
                    .into_iter()
                    .find_map(|name| Some((name, listed?.get(name)?)));
                let (name, text) = entry?;
                let amount = quantity::parse(text).ok()?;
                // Batch and mid CPU are counted in milli-cores.
                Some(match name {
                    resources::BATCH_CPU | resources::MID_CPU => {
                        Quantity::from_milli(amount.value())
                    }
                    _ => amount,
                })
            };
            let cpu = amount([resources::CPU, resources::BATCH_CPU, resources::MID_CPU]);
            let memory = amount([
                resources::MEMORY,
                resources::BATCH_MEMORY,
                resources::MID_MEMORY,
            ]);
            let list = [(resources::CPU, cpu), (resources::MEMORY, memory)];
            let list = list
                .into_iter()
                .filter_map(|(name, amount)| Some((name.to_owned(), amount?)));
            (container.name.clone(), list.collect())
        })
        .collect()
}

/// Compares the recommended resources of each container with the requests.
fn report(object: &Recommendation, requested: &BTreeMap<String, ResourceList>) -> Report {
    let status = object.status.clone().unwrap_or_default();
    let details: BTreeMap<String, ContainerDistribution> = object
        .annotations()
        .get(DISTRIBUTION)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let fresh = |name: &str| Row {
        name: name.to_owned(),
        requests: requested.get(name).cloned().unwrap_or_default(),
        recommended: ResourceList::new(),
        confidence_days: details.get(name).map(|detail| detail.confidence_days),
    };
    for name in requested.keys() {
        rows.insert(name.clone(), fresh(name));
    }
    for detail in status
        .pod_status
        .iter()
        .flat_map(|status| &status.container_statuses)
    {
        let row = rows
            .entry(detail.container_name.clone())
            .or_insert_with(|| fresh(&detail.container_name));
        row.recommended.clone_from(&detail.resources);
    }
    let target = &object.spec.target;
    let target = match &target.workload {
        Some(workload) => format!("{}/{}", workload.kind, workload.name),
        None => "pods".to_owned(),
    };
    let holds = status
        .conditions
        .into_iter()
        .filter(|detail| detail.status == "True");
    Report {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        target,
        containers: rows.into_values().collect(),
        conditions: holds.map(|detail| (detail.type_, detail.message)).collect(),
    }
}

/// Formats the reports as a table with a row per container.
fn table(reports: &[Report], with_namespace: bool) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let mut header = vec![
        "NAME",
        "TARGET",
        "CONTAINER",
        "CPU",
        "RECOMMENDED",
        "MEMORY",
        "RECOMMENDED",
        "DAYS",
        "REMARKS",
    ];
    if with_namespace {
        header.insert(0, "NAMESPACE");
    }
    table.set_header(header);
    for report in reports {
        let remarks: Vec<&str> = report.conditions.keys().map(String::as_str).collect();
        let remarks = remarks.join(",");
        let nothing = Row {
            name: String::new(),
            requests: ResourceList::new(),
            recommended: ResourceList::new(),
            confidence_days: None,
        };
        let rows = if report.containers.is_empty() {
            std::slice::from_ref(&nothing)
        } else {
            &report.containers
        };
        for row in rows {
            let days = row.confidence_days.map(|days| format!("{days:.1}"));
            let mut cells = vec![
                report.name.clone(),
                report.target.clone(),
                or_dash(Some(row.name.clone())),
                or_dash(amount(&row.requests, resources::CPU)),
                or_dash(amount(&row.recommended, resources::CPU)),
                or_dash(amount(&row.requests, resources::MEMORY)),
                or_dash(amount(&row.recommended, resources::MEMORY)),
                or_dash(days),
                or_dash(Some(remarks.clone())),
            ];
            if with_namespace {
                cells.insert(0, report.namespace.clone());
            }
            table.add_row(cells);
        }
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn or_dash(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty())
        .unwrap_or_else(|| "-".to_owned())
}

/// Formats an amount: memory in whole MiB if it has at least one, everything else unchanged.
fn amount(list: &ResourceList, name: &str) -> Option<String> {
    let amount = list.get(name)?;
    if name == resources::MEMORY && amount.format() == Format::BinarySi {
        let mebibytes = amount.value() >> 20;
        if mebibytes >= 1 {
            return Some(format!("{mebibytes}Mi"));
        }
    }
    Some(amount.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object() -> Recommendation {
        let detail = json!({"main": {"confidenceDays": 3.25}});
        serde_json::from_value(json!({
            "apiVersion": "analysis.koordinator.sh/v1alpha1", "kind": "Recommendation",
            "metadata": {"name": "web", "namespace": "shop",
                         "annotations": {DISTRIBUTION: detail.to_string()}},
            "spec": {"target": {"type": "workload", "workload": {"kind": "Deployment", "name": "web"}}},
            "status": {
                "podStatus": {"containerStatuses": [
                    {"containerName": "main", "resources": {"cpu": "250m", "memory": "1536Mi"}}]},
                "conditions": [
                    {"type": "LowConfidence", "status": "True", "reason": "NoSamples",
                     "message": "not measured yet: proxy", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                    {"type": "NoObjectsMatched", "status": "False", "reason": "ObjectsMatched",
                     "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn table_shows_requests_and_recommendations() {
        let workload = json!({"spec": {"template": {"spec": {
            "containers": [{"name": "main", "resources": {"requests": {
                "kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "4Gi"}}}],
            "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
        }}}});
        let report = report(&object(), &template_requests(&workload));
        let text = table(std::slice::from_ref(&report), true);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(
            lines[1],
            [
                "shop",
                "web",
                "Deployment/web",
                "main",
                "2",
                "250m",
                "4096Mi",
                "1536Mi",
                "3.2",
                "LowConfidence"
            ]
        );
        assert_eq!(
            lines[2],
            [
                "shop",
                "web",
                "Deployment/web",
                "proxy",
                "-",
                "-",
                "-",
                "-",
                "-",
                "LowConfidence"
            ]
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["containers"][0]["recommended"]["cpu"], "250m");
        assert_eq!(
            json["conditions"],
            json!({"LowConfidence": "not measured yet: proxy"})
        );
    }

    #[test]
    fn empty_recommendation_has_a_row() {
        let mut object = object();
        object.status = None;
        let text = table(&[report(&object, &BTreeMap::new())], false);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            ["web", "Deployment/web", "-", "-", "-", "-", "-", "-", "-"]
        );
    }

    #[test]
    fn explain_accepts_kubectl_forms() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let parse = |line: &str| {
            let argv = std::iter::once("recommend").chain(line.split_whitespace());
            <Line as clap::Parser>::try_parse_from(argv).map(|line| line.args)
        };
        assert_eq!(parse("web -n shop -o json").unwrap().names, ["web"]);
        assert!(parse("-A").unwrap().all_namespaces);
        assert!(parse("-A -n shop").is_err());
        assert!(parse("-o yaml").is_err());
    }
}
