//! The manifests: the rights that they grant are those that the manager uses.
//!
//! Managers of all tests run as the chart's service account ([`Cluster`](crate::cluster::Cluster)), and a
//! refused request fails the test. Here some tests run again, to verify that together they use every right.

use crate::cluster::USED;
use koord_apiserver::granted_rights;
use koord_app::flags;
use koord_kube::Client;
use koord_kube::api::{ApiResource, DynamicObject, PostParams};
use koord_kube::{Api, kube_core, patch};
use koord_manager::Args;
use koord_manager::webhook::Settings;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// The account and its roles.
pub(crate) const RBAC: &str = "charts/koord/files/manager/rbac.yaml";
/// The webhook configurations with all entries.
pub(crate) const WEBHOOKS: &str = "charts/koord/files/manager/webhooks.yaml";

/// All objects of the manager, rendered from the chart.
const MANIFEST: &str = "deploy/manager/manager.yaml";

/// Returns the objects in a file of the repository.
pub(crate) fn documents(file: &str) -> Vec<Value> {
    let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

/// Creates an object of a manifest.
pub(crate) async fn create(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let types = object.types.clone().unwrap();
    let (group, version) = types
        .api_version
        .split_once('/')
        .unwrap_or(("", &types.api_version));
    let kind = kube_core::GroupVersionKind::gvk(group, version, &types.kind);
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let created = api.create(&PostParams::default(), &object).await;
    assert!(created.is_ok() || created.is_err_and(|error| patch::is_conflict(&error)));
}

/// Rights that the tests below do not use, and what uses them.
const OTHERWISE_USED: &[(&str, &str)] = &[
    (
        "patch events",
        "an event that is repeated, which koord-kube tests",
    ),
    ("get namespaces", NEWER),
    (
        "get recommendationcheckpoints.analysis.koordinator.sh",
        "another writer changed it since it was read",
    ),
    (
        "delete recommendationcheckpoints.analysis.koordinator.sh",
        "a container that its workload no longer has",
    ),
    (
        "patch noderesourcetopologies.topology.node.k8s.io",
        "NUMA zones, whose plans are tested",
    ),
    ("list deployments.apps", MANY),
    ("list replicasets.apps", MANY),
    ("get daemonsets.apps", OWNER),
    ("list daemonsets.apps", MANY),
    ("list statefulsets.apps", MANY),
    ("get jobs.batch", OWNER),
    ("list jobs.batch", MANY),
    ("get cronjobs.batch", OWNER),
    ("list cronjobs.batch", MANY),
];
const NEWER: &str = "a pod refers to an object that the watch has not shown yet";
const OWNER: &str = "an owner of pods, read as Deployments are";
const MANY: &str = "owners of pods where there are fifty of them and more";

#[test]
fn the_manager_uses_all_of_its_rights() {
    USED.take();
    crate::colocation::report_sets_batch_resources_and_silence_removes_them();
    crate::colocation::settings_apply_by_node_labels_and_bad_keys_are_reported();
    crate::colocation::objects_are_deleted_with_their_node();
    crate::leadership::standby_takes_over_when_leader_stops();
    crate::pods::pods_that_wait_get_a_profile_that_comes_later();
    crate::quotas::replicas_agree_on_quotas_without_overdraw();
    crate::quotas::profile_sizes_quota_by_its_nodes();
    crate::pods::bindings_are_for_listed_users();
    crate::pods::required_labels_are_read_again_and_the_last_ones_stay();
    crate::recommender::restart_continues_from_checkpoints();
    crate::recommender::a_missing_target_keeps_the_recommendation();
    crate::webhooks::certificates_are_created_published_and_repaired();
    crate::webhooks::install_creates_missing_objects_and_keeps_existing();
    let used = USED.take();
    let roles = documents(RBAC);
    let roles = roles.iter().filter(|object| object["rules"].is_array());
    let granted: BTreeSet<_> = roles
        .flat_map(|role| granted_rights(&role["rules"]))
        .collect();
    assert!(
        !granted.iter().any(|right| right.contains('*')),
        "wildcard in a rule"
    );
    let unused: BTreeSet<_> = granted.difference(&used).map(String::as_str).collect();
    let exempt: BTreeSet<_> = OTHERWISE_USED.iter().map(|(right, _)| *right).collect();
    assert_eq!(unused, exempt, "granted, but unused");
}

#[test]
fn the_manifests_fit_together() {
    let manifest = documents(MANIFEST);
    let deployment = manifest
        .iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    let roles = documents(RBAC);
    let find = |kind: &str| {
        let mut matching = roles.iter().filter(|object| object["kind"] == kind);
        (matching.next().unwrap(), matching.next()).0
    };
    let account = &find("ServiceAccount")["metadata"];
    assert_eq!(pod["serviceAccountName"], account["name"]);
    for (binding, role) in [
        ("ClusterRoleBinding", "ClusterRole"),
        ("RoleBinding", "Role"),
    ] {
        let (binding, role) = (find(binding), find(role));
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        assert_eq!(
            binding["metadata"]["namespace"],
            role["metadata"]["namespace"]
        );
        let subject = json!({"kind": "ServiceAccount", "name": account["name"],
            "namespace": account["namespace"]});
        assert_eq!(binding["subjects"], json!([subject]));
    }
    let args = pod["containers"][0]["args"]
        .as_array()
        .into_iter()
        .flatten();
    let args = args.map(|arg| OsString::from(arg.as_str().unwrap()));
    let argv = std::iter::once(OsString::from("koord-manager")).chain(args);
    let options = flags::parse::<Args>(argv).unwrap().args.options().unwrap();
    assert_eq!(options.notes, [""; 0], "every flag has an effect");
    let namespace = &find("Role")["metadata"]["namespace"];
    assert_eq!(options.election.unwrap().namespace, *namespace);
    assert_eq!(options.config_namespace, *namespace);
    assert_eq!(options.pods.enhanced_source.namespace, *namespace);
    let webhooks = Settings::from_env(|_| None).unwrap();
    assert_eq!(webhooks.service.namespace, *namespace);
    let rules = [find("ClusterRole"), find("Role")].map(|role| role["rules"].as_array().unwrap());
    let resource_names = rules
        .into_iter()
        .flatten()
        .filter_map(|rule| rule["resourceNames"].as_array());
    let resource_names: Vec<_> = resource_names.flatten().filter_map(Value::as_str).collect();
    let hooks = documents(WEBHOOKS);
    let hooks = hooks.iter().filter(|object| object["kind"] != "Service");
    let hooks = hooks.map(|object| object["metadata"]["name"].as_str().unwrap());
    let defaults = [
        &*options.config_name,
        &options.pods.enhanced_source.name,
        &webhooks.secret,
        koord_manager::LEASE_NAME,
    ];
    let expected: Vec<_> = hooks.chain(defaults).collect();
    assert_eq!(
        resource_names, expected,
        "names of the rules are those of the defaults"
    );
    let config = manifest.iter().find(|object| object["kind"] == "ConfigMap");
    let config = config.unwrap();
    assert_eq!(config["metadata"]["name"], options.config_name);
    assert_eq!(config["metadata"]["namespace"], *namespace);
}
