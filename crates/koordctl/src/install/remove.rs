//! `koord uninstall`: removes what `koord install` applied, and what the programs wrote.

use super::apply::{FIELD_MANAGER, Target, is_own};
use super::render::Document;
use super::{DEFAULT_KUBE_VERSION, release, render};
use crate::cluster_args::ClusterArgs;
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA};
use koord_app::console;
use koord_app::daemon::runtime;
use koord_kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use koord_kube::patch::{is_not_found, merge_node, merge_node_status};
use koord_kube::tls::install_crypto_provider;
use koord_kube::{Api, Client, ResourceExt as _};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Prefixes of the resources that koord-manager adds to nodes.
const RESOURCES: [&str; 3] = [
    "kubernetes.io/batch-",
    "kubernetes.io/mid-",
    "koordinator.sh/",
];
/// Annotations of nodes that the programs write; others with this prefix are settings of users.
const ANNOTATIONS: [&str; 4] = [
    koord_api::annotations::NODE_RAW_ALLOCATABLE,
    koord_api::annotations::NODE_CPU_NORMALIZATION_RATIO,
    koord_api::annotations::NODE_ORIGIN_EXTENDED_ALLOCATABLE,
    koord_api::annotations::NODE_CPU_BASIC_INFO,
];
const LEASES: [&str; 3] = [
    "koord-descheduler",
    "koord-scheduler",
    "koordinator-manager",
];
/// Custom resources that the programs write by themselves: their definitions are removed with them.
const PROGRAM_RESOURCES: [&str; 5] = [
    "nodemetrics.slo.koordinator.sh",
    "nodeslos.slo.koordinator.sh",
    "devices.scheduling.koordinator.sh",
    "recommendationcheckpoints.analysis.koordinator.sh",
    "scheduleexplanations.scheduling.koordinator.sh",
];
/// Interval and number of looks until the programs have stopped.
const STOP_INTERVAL: Duration = Duration::from_millis(500);
const STOP_TRIES: usize = 180;

/// Arguments of `koord uninstall`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct UninstallArgs {
    /// Namespace of the installation [default: koordinator-system].
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Also remove CRDs with quotas, reservations, gangs and profiles in them, and the namespace.
    #[arg(long)]
    pub crds: bool,
    /// List what would be removed.
    #[arg(long)]
    pub dry_run: bool,
    /// Remove objects of other installations, too.
    #[arg(long)]
    pub force: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Removes an installation, and prints what was removed and what is left.
///
/// # Errors
/// The cluster cannot be reached, or an object cannot be removed.
pub fn uninstall(args: &UninstallArgs) -> Result<()> {
    runtime()?.block_on(async {
        install_crypto_provider();
        let client = args.cluster.connect().await?;
        for line in uninstall_from(&client, args).await? {
            console::print_line(line);
        }
        Ok(())
    })
}

/// Removes an installation from a cluster. Returns a line for each object that was removed or is left.
///
/// # Errors
/// Those of [`uninstall`].
pub async fn uninstall_from(client: &Client, args: &UninstallArgs) -> Result<Vec<String>> {
    let namespace = args.namespace.as_deref().unwrap_or("koordinator-system");
    let mut removal = Removal {
        client,
        args,
        lines: Vec::new(),
        removed: 0,
    };
    let documents = everything(namespace)?;
    let of_kinds = |kinds: &'static [&'static str]| {
        let documents = documents.iter().rev();
        documents.filter(move |it| kinds.iter().any(|kind| it.object["kind"] == *kind))
    };
    // Webhooks first: their programs are about to stop.
    for document in of_kinds(&[
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    ]) {
        removal.document(document).await?;
    }
    for document in of_kinds(&["Deployment", "DaemonSet"]) {
        removal.document(document).await?;
    }
    if !args.dry_run {
        removal.await_pods(namespace).await?;
    }
    removal.nodes().await?;
    for name in LEASES {
        let lease = object("coordination.k8s.io/v1", "Lease", namespace, name);
        removal.object(&lease, true).await?;
    }
    let later = [
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "Deployment",
        "DaemonSet",
        "CustomResourceDefinition",
        "Namespace",
    ];
    for document in documents.iter().rev() {
        if !later.iter().any(|kind| document.object["kind"] == *kind) {
            removal.document(document).await?;
        }
    }
    let mut kept = 0_usize;
    for document in of_kinds(&["CustomResourceDefinition"]) {
        kept += usize::from(!removal.definition(&document.object).await?);
    }
    let own_namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace},
    });
    if kept == 0 || args.crds {
        removal.object(&own_namespace, args.force).await?;
    } else {
        let text = "kept, custom resources can be in it";
        removal.lines.push(format!("Namespace {namespace}: {text}"));
    }
    if removal.removed == 0 {
        removal
            .lines
            .push(format!("nothing of koord is in namespace {namespace}"));
    } else {
        let text = "nodes: koordlet.restoreOnStop restores the files of the kernel; without it, cgroups of running pods \
                    keep their values until the pods end, resctrl groups and sysctls until the node restarts";
        removal.lines.push(text.to_owned());
    }
    Ok(removal.lines)
}

/// Returns all objects that any values render.
fn everything(namespace: &str) -> Result<Vec<Document>> {
    let on = json!({"monitorEnabled": true});
    let values = json!({
        "installation": {"namespace": namespace},
        "featureGates": "AllAlpha=true",
        "koordlet": {"enableServiceMonitor": true, "topologyExporter": true},
        "manager": on, "scheduler": on, "descheduler": on,
        "topologyExporter": {"enabled": true}, "networkPolicies": {"enabled": true},
        "dashboards": {"enabled": true}, "prometheusRules": {"enabled": true},
    });
    let rendered = render::chart(&values, &release(DEFAULT_KUBE_VERSION), &BTreeMap::new())?;
    Ok(rendered.documents)
}

fn object(api_version: &str, kind: &str, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
    })
}

struct Removal<'a> {
    client: &'a Client,
    args: &'a UninstallArgs,
    lines: Vec<String>,
    removed: usize,
}

impl Removal<'_> {
    async fn document(&mut self, document: &Document) -> Result<()> {
        self.object(&document.object, self.args.force).await
    }

    /// Removes an object, unless it belongs to another installation.
    async fn object(&mut self, object: &Value, any_owner: bool) -> Result<()> {
        let target = Target::new(self.client, object)?;
        let live = target.api.get_opt(&target.name).await;
        let Some(live) = live.with_context(|| format!("failed to get {}", target.title))? else {
            return Ok(());
        };
        if self.skips(&target, &live, any_owner) {
            return Ok(());
        }
        self.delete(&target).await
    }

    /// Returns true for an object that must not be removed, and adds a line with the reason.
    fn skips(&mut self, target: &Target, live: &DynamicObject, any_owner: bool) -> bool {
        let text = if live.metadata.deletion_timestamp.is_some() {
            "being removed".to_owned()
        } else if !any_owner && !is_own(live) {
            format!("kept, {FIELD_MANAGER} did not apply it")
        } else {
            return false;
        };
        self.lines.push(format!("{}: {text}", target.title));
        true
    }

    async fn delete(&mut self, target: &Target) -> Result<()> {
        self.removed += 1;
        if self.args.dry_run {
            self.lines.push(format!("would remove {}", target.title));
            return Ok(());
        }
        match target
            .api
            .delete(&target.name, &DeleteParams::background())
            .await
        {
            Err(error) if !is_not_found(&error) => {
                Err(error).with_context(|| format!("failed to remove {}", target.title))
            }
            _ => {
                self.lines.push(format!("removed {}", target.title));
                Ok(())
            }
        }
    }

    /// Removes a CRD without objects of users in it; returns false if it is kept.
    async fn definition(&mut self, definition: &Value) -> Result<bool> {
        let target = Target::new(self.client, definition)?;
        let Some(live) = target.api.get_opt(&target.name).await? else {
            return Ok(true);
        };
        if self.skips(&target, &live, self.args.force) {
            return Ok(live.metadata.deletion_timestamp.is_some());
        }
        if !self.args.crds && !PROGRAM_RESOURCES.contains(&target.name.as_str()) {
            let count = self.count_user_objects(definition).await?;
            if count > 0 {
                let text = format!(
                    "{}: kept with {count} objects, --crds removes them",
                    target.title
                );
                self.lines.push(text);
                return Ok(false);
            }
        }
        self.delete(&target).await?;
        Ok(true)
    }

    /// Returns the number of objects of a custom resource that no program made.
    async fn count_user_objects(&self, definition: &Value) -> Result<usize> {
        let names = &definition["spec"]["names"];
        let version = definition["spec"]["versions"][0]["name"]
            .as_str()
            .unwrap_or_default();
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let kind = ApiResource {
            api_version: format!("{group}/{version}"),
            group: group.to_owned(),
            version: version.to_owned(),
            kind: names["kind"].as_str().unwrap_or_default().to_owned(),
            plural: names["plural"].as_str().unwrap_or_default().to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let objects = api.list(&ListParams::default()).await;
        let objects = objects.with_context(|| format!("failed to list {}", kind.plural))?;
        let own = [ROOT_QUOTA, SYSTEM_QUOTA, DEFAULT_QUOTA];
        let users = objects
            .items
            .iter()
            .filter(|it| !own.contains(&it.name_any().as_str()));
        Ok(users.count())
    }

    /// Waits until no pod of koord runs: the manager would write to nodes again.
    async fn await_pods(&self, namespace: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let names = "koord-app in (koord-manager,koord-scheduler,koord-descheduler,koordlet)";
        for _ in 0..STOP_TRIES {
            let running = pods.list(&ListParams::default().labels(names)).await?;
            if running.items.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(STOP_INTERVAL).await;
        }
        bail!(
            "pods of koord are still in namespace {namespace}; run koord uninstall again when they are gone"
        )
    }

    /// Removes resources and annotations of the programs from nodes.
    async fn nodes(&mut self) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        for node in api.list(&ListParams::default()).await?.items {
            let name = node.name_any();
            let annotations = node.metadata.annotations.iter().flatten();
            let annotations: Map<String, Value> = annotations
                .filter(|(key, _)| ANNOTATIONS.contains(&key.as_str()))
                .map(|(key, _)| (key.clone(), Value::Null))
                .collect();
            let status = serde_json::to_value(&node.status)?;
            let resources = |field: &str| -> Map<String, Value> {
                let amounts = status[field].as_object().into_iter().flatten();
                amounts
                    .filter(|(key, _)| RESOURCES.iter().any(|it| key.starts_with(it)))
                    .map(|(key, _)| (key.clone(), Value::Null))
                    .collect()
            };
            let (capacity, allocatable) = (resources("capacity"), resources("allocatable"));
            if annotations.is_empty() && capacity.is_empty() && allocatable.is_empty() {
                continue;
            }
            self.removed += 1;
            let what = format!("resources and annotations of node {name}");
            if self.args.dry_run {
                self.lines.push(format!("would remove {what}"));
                continue;
            }
            let patch = json!({"status": {"capacity": capacity, "allocatable": allocatable}});
            merge_node_status(self.client, &name, &patch)
                .await
                .with_context(|| format!("failed to remove {what}"))?;
            let patch = json!({"metadata": {"annotations": annotations}});
            merge_node(self.client, &name, &patch)
                .await
                .with_context(|| format!("failed to remove {what}"))?;
            self.lines.push(format!("removed {what}"));
        }
        Ok(())
    }
}
