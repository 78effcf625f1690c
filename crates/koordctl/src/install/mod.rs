//! `koord install`: renders the Helm chart without Helm, and applies it on the server.

mod apply;
mod chart;
mod remove;
mod render;
mod schema;
mod template;
mod values;

pub use remove::{UninstallArgs, uninstall, uninstall_from};
pub use render::Component;
pub(crate) use values::{value_faults, value_names, value_names_at};

use crate::cluster_args::ClusterArgs;
use anyhow::{Context as _, Result, bail};
use koord_app::console;
use koord_app::daemon::runtime;
use koord_kube::Client;
use koord_kube::tls::install_crypto_provider;
use render::{Release, Rendered};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use template::LookupKey;

/// The Kubernetes version of a dry run without `--kube-version`.
const DEFAULT_KUBE_VERSION: &str = "1.35.0";
/// Renderings with lookups in the cluster: a lookup can depend on another one.
const MAX_PASSES: usize = 5;

/// Arguments of `koord install`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Values as YAML, as `helm install` takes them; a later file wins.
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Set values: `a.b=c,d=e`.
    #[arg(long, value_name = "VALUES")]
    pub set: Vec<String>,
    /// Set values that are texts.
    #[arg(long, value_name = "VALUES")]
    pub set_string: Vec<String>,
    /// Namespace of all objects [default: installation.namespace, koordinator-system].
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Install one component, and what it needs.
    #[arg(long, value_enum, value_name = "NAME")]
    pub component: Option<Component>,
    /// Print the manifests; no cluster is contacted.
    #[arg(long)]
    pub dry_run: bool,
    /// Kubernetes version that the manifests of a dry run are for.
    #[arg(long, value_name = "VERSION", default_value = DEFAULT_KUBE_VERSION, requires = "dry_run")]
    pub kube_version: String,
    /// Overwrite objects of another installation, and fields of other owners.
    #[arg(long)]
    pub force: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Renders the chart, and prints or applies it.
///
/// # Errors
/// A value is wrong, the cluster cannot be reached or is too old, or another installation exists.
pub fn main(args: &Args) -> Result<()> {
    if args.dry_run {
        console::print_line(dry_run(args)?.trim_end());
        return Ok(());
    }
    runtime()?.block_on(async {
        install_crypto_provider();
        let client = args.cluster.connect().await?;
        let summary = install_to(&client, args).await?;
        console::print_line(summary.trim_end());
        Ok(())
    })
}

/// Returns the manifests as YAML.
///
/// # Errors
/// A value is wrong, or the version is too old.
pub fn dry_run(args: &Args) -> Result<String> {
    let version = if args.kube_version.is_empty() {
        DEFAULT_KUBE_VERSION
    } else {
        args.kube_version.as_str()
    };
    let rendered = render::chart(&given_values(args)?, &release(version), &BTreeMap::new())?;
    Ok(selected(rendered, args).manifests())
}

/// Applies the chart to a cluster, and returns what changed.
///
/// # Errors
/// Those of [`main`].
pub async fn install_to(client: &Client, args: &Args) -> Result<String> {
    let version = client
        .apiserver_version()
        .await
        .context("failed to get the version of the cluster")?
        .git_version;
    let values = given_values(args)?;
    let release = release(&version);
    let mut objects = BTreeMap::new();
    let mut passes = 0;
    let rendered = loop {
        let rendered = render::chart(&values, &release, &objects)?;
        if rendered.missing_lookups.is_empty() {
            break rendered;
        }
        passes += 1;
        if passes > MAX_PASSES {
            bail!("lookups of the chart do not settle");
        }
        for key in &rendered.missing_lookups {
            let object = look_up(client, key).await?;
            objects.insert(key.clone(), object);
        }
    };
    let rendered = selected(rendered, args);
    for warning in &rendered.warnings {
        console::warn(format_args!("warning: {warning}"));
    }
    let changes = apply::apply(client, &rendered.documents, args.force).await?;
    Ok(format!("{changes}\n{}", rendered.notes))
}

/// Returns an object of the cluster, null if there is none.
async fn look_up(client: &Client, key: &LookupKey) -> Result<Value> {
    let mut object = json!({
        "apiVersion": key.api_version, "kind": key.kind, "metadata": {"name": key.name},
    });
    if !key.namespace.is_empty() {
        object["metadata"]["namespace"] = Value::from(key.namespace.as_str());
    }
    let target = apply::Target::new(client, &object)?;
    let live = target.api.get_opt(&target.name).await;
    let live = live.with_context(|| format!("failed to get {}", target.title))?;
    Ok(live.map_or(Ok(Value::Null), serde_json::to_value)?)
}

fn release(kube_version: &str) -> Release {
    Release {
        name: "koord".to_owned(),
        namespace: "default".to_owned(),
        kube_version: kube_version.to_owned(),
    }
}

/// Returns the values of files and settings.
fn given_values(args: &Args) -> Result<Value> {
    let mut given = json!({});
    for path in &args.files {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        let values: Value = serde_saphyr::from_str(&text)
            .with_context(|| format!("failed to parse {}", path.display()))?;
        match values {
            Value::Null => {}
            Value::Object(_) => values::overlay(&mut given, values),
            _ => bail!(
                "failed to parse {}: expected a map of values",
                path.display()
            ),
        }
    }
    for text in &args.set {
        values::set(&mut given, text, false)?;
    }
    for text in &args.set_string {
        values::set(&mut given, text, true)?;
    }
    if let Some(namespace) = &args.namespace {
        values::overlay(
            &mut given,
            json!({"installation": {"namespace": namespace}}),
        );
    }
    if args.component == Some(Component::TopologyExporter) {
        values::overlay(&mut given, json!({"topologyExporter": {"enabled": true}}));
    }
    Ok(given)
}

fn selected(mut rendered: Rendered, args: &Args) -> Rendered {
    if let Some(component) = args.component {
        rendered.documents.retain(|it| component.needs(it));
    }
    rendered
}
