//! The plain manifests in `deploy/`: they are rendered from the chart, and an API server accepts them in one pass.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use clap::ValueEnum as _;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, flags::Selection};
use koord_kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use koord_kube::kube_core::GroupVersionKind;
use koord_kube::{Api, Client, Error};
use koordctl::install::{Args, Component, dry_run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Environment variable that makes the test write the files.
const UPDATE: &str = "UPDATE_EXPECT";

/// Returns the files with their texts.
fn rendered() -> Vec<(PathBuf, String)> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let mut files = vec![(deploy.join("install.yaml"), manifest(None))];
    for component in Component::value_variants() {
        let name = component.to_possible_value().unwrap();
        let name = name.get_name();
        let path = deploy.join(name).join(format!("{name}.yaml"));
        files.push((path, manifest(Some(*component))));
    }
    files
}

/// Returns the manifest of a component, or of all of them with the CRDs.
fn manifest(component: Option<Component>) -> String {
    let mut args = Args {
        component,
        ..Args::default()
    };
    let mut command = "koord install --dry-run".to_owned();
    if let Some(component) = component {
        let name = component.to_possible_value().unwrap();
        // One copy of the CRDs is enough.
        args.set = vec!["crds.managed=false".to_owned()];
        command += &format!(" --component {} --set {}", name.get_name(), args.set[0]);
    }
    let stream = dry_run(&args).unwrap();
    let objects = stream.strip_prefix("---\n").unwrap();
    format!(
        "# {command}\n# For Kubernetes 1.33 and newer. Rendered from charts/koord: `{UPDATE}=1 cargo test -p koordctl \
         --test deploy` writes it.\n{objects}"
    )
}

#[test]
fn manifests_are_rendered_from_the_chart() {
    let files = rendered();
    if std::env::var_os(UPDATE).is_some() {
        for (path, text) in &files {
            std::fs::write(path, text).unwrap();
        }
    }
    let stale: Vec<_> = files
        .iter()
        .filter(|(path, text)| std::fs::read_to_string(path).ok().as_ref() != Some(text))
        .map(|(path, _)| path)
        .collect();
    assert!(
        stale.is_empty(),
        "not what the chart renders: {stale:?}; `{UPDATE}=1 cargo test -p koordctl --test deploy` writes them"
    );
}

/// Returns a client of an empty cluster.
async fn cluster() -> Client {
    let mut config = Config::memory(Clock::system());
    config.controllers = Selection::none();
    let server = ApiServer::open(config).await.unwrap();
    koord_kube::client::in_process(server.service())
}

fn objects(text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let kind = GroupVersionKind::try_from(&typed.types.unwrap()).unwrap();
    let kind = ApiResource::from_gvk(&kind);
    match typed.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    }
}

/// Applies an object as `kubectl apply --server-side` does, with strict validation.
async fn apply(client: &Client, object: &Value) -> Result<DynamicObject, Error> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let params = PatchParams::apply("kubectl").validation_strict();
    let patch = Patch::Apply(object);
    api(client, object).patch(name, &params, &patch).await
}

/// Returns what a change of an object changes; a new status, such as that of a served CRD, does not.
fn version(object: &DynamicObject) -> String {
    let meta = &object.metadata;
    let generation = meta.generation.map(|number| number.to_string());
    generation.or(meta.resource_version.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_server_accepts_manifests_in_one_pass_and_again() {
    for (path, text) in rendered() {
        let client = cluster().await;
        let objects = objects(&text);
        let mut versions = Vec::new();
        for object in &objects {
            let applied = apply(&client, object).await;
            let applied = applied.unwrap_or_else(|error| panic!("{path:?}: {error}\n{object:#}"));
            versions.push(version(&applied));
        }
        for (object, first) in objects.iter().zip(versions) {
            let again = apply(&client, object).await.unwrap();
            assert_eq!(version(&again), first, "{object:#}");
        }
        // The validation is in force.
        let mut wrong = objects.last().unwrap().clone();
        wrong["spek"] = json!({});
        let refused = apply(&client, &wrong).await.unwrap_err();
        assert!(refused.to_string().contains("spek"), "{refused}");
    }
}

/// Another apply on the server does not overwrite the settings of a user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edited_settings_are_a_conflict() {
    let client = cluster().await;
    let objects = objects(&manifest(Some(Component::Manager)));
    for object in &objects {
        apply(&client, object).await.unwrap();
    }
    let settings = |object: &&Value| object["metadata"]["name"] == "slo-controller-config";
    let settings = objects.iter().find(settings).unwrap();
    let edited = json!({"data": {"colocation-config": "{\"enable\": false}"}});
    let params = PatchParams {
        field_manager: Some("kubectl-edit".to_owned()),
        ..PatchParams::default()
    };
    let maps = api(&client, settings);
    let patch = Patch::Merge(&edited);
    maps.patch("slo-controller-config", &params, &patch)
        .await
        .unwrap();
    let refused = apply(&client, settings).await.unwrap_err();
    let field = ".data.colocation-config";
    assert!(refused.to_string().contains(field), "{refused}");
}
