//! Rendering of the chart: values, templates and the order of the objects.

use super::template::{Datum, Engine, LookupKey, is_at_least};
use super::{chart, values};
use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Kinds in the order in which they are applied; others come before the webhook configurations.
const ORDER: [&str; 19] = [
    "CustomResourceDefinition",
    "Namespace",
    "PriorityClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "Secret",
    "ConfigMap",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Service",
    "DaemonSet",
    "Deployment",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// A component that can be installed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Component {
    /// koord-manager with its webhooks and settings.
    Manager,
    /// koord-scheduler.
    Scheduler,
    /// koord-descheduler, with the configuration of the scheduler that it finds targets by.
    Descheduler,
    /// koordlet.
    Koordlet,
    /// The exporter of the free amounts of NUMA nodes.
    TopologyExporter,
}

impl Component {
    /// Returns true if the component needs an object.
    pub(super) fn needs(self, document: &Document) -> bool {
        let (name, files): (_, &[&str]) = match self {
            Self::Manager => (
                "koord-manager",
                &[
                    "manager",
                    "manager-rbac",
                    "webhooks",
                    "slo-controller-config",
                ],
            ),
            Self::Scheduler => (
                "koord-scheduler",
                &["scheduler", "scheduler-rbac", "scheduler-config"],
            ),
            Self::Descheduler => (
                "koord-descheduler",
                &[
                    "descheduler",
                    "descheduler-rbac",
                    "descheduler-config",
                    "scheduler-config",
                ],
            ),
            Self::Koordlet => ("koordlet", &["koordlet", "koordlet-rbac"]),
            Self::TopologyExporter => ("koord-topology-exporter", &["topology-exporter"]),
        };
        let shared = ["crds", "namespace", "priorityclasses"];
        let file = document.source.trim_start_matches("templates/");
        let file = file.trim_end_matches(".yaml");
        let label = &document.object["metadata"]["labels"]["koord-app"];
        shared.contains(&file) || files.contains(&file) || label == name
    }
}

/// What templates read about the release and the cluster.
#[derive(Debug, Clone)]
pub(super) struct Release {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) kube_version: String,
}

/// A rendered object.
#[derive(Debug, Clone)]
pub(super) struct Document {
    /// Path of the template in the chart.
    pub(super) source: String,
    /// The object as the template wrote it.
    pub(super) text: String,
    pub(super) object: Value,
}

/// The rendered chart.
#[derive(Debug)]
pub(super) struct Rendered {
    /// Objects in the order in which they are applied.
    pub(super) documents: Vec<Document>,
    pub(super) notes: String,
    pub(super) warnings: Vec<String>,
    /// Objects that templates looked up and that were not given.
    pub(super) missing_lookups: BTreeSet<LookupKey>,
}

impl Rendered {
    /// Returns all objects as one YAML stream.
    pub(super) fn manifests(&self) -> String {
        let mut stream = String::new();
        for document in &self.documents {
            // Writing to a String cannot fail.
            let _ = writeln!(
                stream,
                "---\n# Source: koord/{}\n{}",
                document.source, document.text
            );
        }
        stream
    }
}

/// Renders the chart with the user's values. `objects` are the results of lookups.
///
/// # Errors
/// A value is wrong, or the cluster is too old.
pub(super) fn chart(
    given: &Value,
    release: &Release,
    objects: &BTreeMap<LookupKey, Value>,
) -> Result<Rendered> {
    let files = chart::files();
    let file = |path: &str| {
        files
            .get(path)
            .with_context(|| format!("the chart has no {path}"))
    };
    let about: Value = serde_saphyr::from_str(file("Chart.yaml")?).context("Chart.yaml")?;
    let supported = about["kubeVersion"].as_str().unwrap_or_default();
    if !is_at_least(supported, &release.kube_version)? {
        bail!(
            "kubeVersion: koord needs {supported}, the cluster has {}",
            release.kube_version
        );
    }
    let (values, faults) = values::complete(given)?;
    if !faults.is_empty() {
        bail!("invalid values:\n- {}", faults.join("\n- "));
    }

    let mut engine = Engine::new(&files, objects);
    let templates = || {
        files
            .iter()
            .filter(|(path, _)| path.starts_with("templates/"))
    };
    for (path, text) in templates() {
        engine.add(path, text)?;
    }
    let version = &release.kube_version;
    let version = if version.starts_with('v') {
        version.clone()
    } else {
        format!("v{version}")
    };
    let root = json!({
        "Values": values,
        "Release": {"Name": release.name, "Namespace": release.namespace, "Service": "Helm"},
        "Capabilities": {"KubeVersion": {"Version": version}},
        "Chart": {
            "Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"],
        },
    });
    let data = Datum::from_json(&root);
    if let Datum::Map(map) = &data {
        map.borrow_mut().insert("Files".to_owned(), Datum::Files);
    }
    let mut documents = Vec::new();
    for (path, _) in templates() {
        let name = path.trim_start_matches("templates/");
        if name.starts_with('_') || name == "NOTES.txt" {
            continue;
        }
        let text = engine.render(path, &data)?;
        documents.append(&mut split(path, &text)?);
    }
    documents.sort_by_key(|document| position(document.object["kind"].as_str()));
    let notes = engine.render("templates/NOTES.txt", &data)?;
    let warnings = engine.render("koord.notes.warnings", &data)?;
    let lines = warnings
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let warnings = lines.map(str::to_owned).collect();
    Ok(Rendered {
        documents,
        notes,
        warnings,
        missing_lookups: engine.missing_lookups(),
    })
}

/// Returns the position of a kind in the order of application.
fn position(kind: Option<&str>) -> usize {
    let known = ORDER.iter().position(|it| Some(*it) == kind);
    // Doubled, so that unlisted kinds have a place before the webhook configurations.
    known.map_or(2 * (ORDER.len() - 2) - 1, |at| 2 * at)
}

/// Splits the text of a template into its objects.
fn split(source: &str, text: &str) -> Result<Vec<Document>> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    let mut documents = Vec::new();
    for part in parts {
        let mut lines = part.lines().map(str::trim_start);
        if lines.all(|line| line.is_empty() || line.starts_with('#')) {
            continue;
        }
        let object =
            serde_saphyr::from_str(&part).with_context(|| format!("{source}: invalid YAML"))?;
        documents.push(Document {
            source: source.to_owned(),
            text: part.trim_matches('\n').to_owned(),
            object,
        });
    }
    Ok(documents)
}
