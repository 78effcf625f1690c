//! The manifests: they grant exactly the rights that the descheduler uses.
//!
//! The deschedulers of all tests run as the chart's service account, and a denied request fails the test.
//! Here tests are run again to check that together they use every right.

use axum::Router;
use koord_apiserver::authz::User;
use koord_apiserver::{ApiServer, granted_rights};
use koord_app::flags;
use koord_descheduler::Args;
use koord_descheduler::config::Configuration;
use koord_descheduler::registry::Registry;
use koord_kube::api::{ApiResource, DynamicObject, PostParams};
use koord_kube::{Api, Client, kube_core, patch};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

/// Rights that the tests below do not use, and where they are used.
const OTHERWISE_USED: &[(&str, &str)] = &[
    (
        "patch events",
        "an event that is repeated, which koord-kube tests",
    ),
    (
        "get */scale.*",
        "the scale of one kind is asked for below, and counts under its own name",
    ),
    ("create tokenreviews.authentication.k8s.io", TLS),
    ("create subjectaccessreviews.authorization.k8s.io", TLS),
];
const TLS: &str = "asked by the TLS server, which koord tests by itself";

thread_local! {
    /// The rights that deschedulers of tests on this thread have used.
    static USED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Denied requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeniedRequests(Arc<Mutex<BTreeSet<String>>>);

impl DeniedRequests {
    /// Asserts that no request was denied.
    pub(crate) fn assert_none(&self) {
        assert_eq!(
            *self.0.lock(),
            BTreeSet::new(),
            "asked for, and no rule allows it"
        );
    }
}

/// Returns the API server as accessed by the descheduler's service account.
pub(crate) fn service(server: &ApiServer, denied: &DeniedRequests) -> Router {
    let user = User::service_account("koordinator-system", "koord-descheduler");
    let denied = denied.0.clone();
    server.service_as(user, move |right, allowed| {
        if allowed {
            USED.with_borrow_mut(|used| used.insert(right.to_owned()));
        } else {
            denied.lock().insert(right.to_owned());
        }
    })
}

/// The account and its roles.
const RBAC: &str = "charts/koord/files/descheduler/rbac.yaml";

/// Returns the objects in a file of the repository.
fn documents(file: &str) -> Vec<Value> {
    let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

/// Creates the namespace and the rights of the service account.
pub(crate) async fn install(client: &Client) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koordinator-system"}});
    create(client, namespace).await;
    for object in documents(RBAC) {
        create(client, object).await;
    }
}

async fn create(client: &Client, object: Value) {
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
    // The server may create the namespace itself.
    assert!(created.is_ok() || created.is_err_and(|error| patch::is_conflict(&error)));
}

#[test]
fn the_descheduler_uses_all_of_its_rights() {
    USED.take();
    crate::daemon::cycle_applies_and_reports_its_plan();
    crate::daemon::replica_waits_for_the_lease_and_releases_it();
    crate::default_evictor::pods_are_evicted_unless_their_storage_is_protected();
    crate::migration::jobs::pods_leave_a_hot_node_for_reservations();
    crate::migration::jobs::users_ask_for_jobs_of_every_kind();
    crate::migration::jobs::deleted_target_ends_its_job_and_frees_capacity();
    crate::migration::jobs::reservation_is_deleted_with_its_job();
    crate::migration::jobs::pods_of_any_controller_move();
    crate::migration::jobs::a_users_own_reservation_is_used();
    let used = USED.take();
    let roles = documents(RBAC);
    let roles = roles.iter().filter(|object| object["rules"].is_array());
    let granted: BTreeSet<_> = roles
        .flat_map(|role| granted_rights(&role["rules"]))
        .collect();
    let wide: Vec<_> = granted.iter().filter(|right| right.contains('*')).collect();
    // The kinds with a scale are not known beforehand.
    assert_eq!(wide, ["get */scale.*"], "least rights");
    let unused: BTreeSet<_> = granted.difference(&used).map(String::as_str).collect();
    let listed: BTreeSet<_> = OTHERWISE_USED.iter().map(|(right, _)| *right).collect();
    assert_eq!(unused, listed, "given, and nothing uses it");
}

#[test]
fn manifests_are_consistent() {
    let manifest = documents("deploy/descheduler/descheduler.yaml");
    let rendered = |kind: &str, name: &Value| {
        let mut objects = manifest.iter();
        let object = objects.find(|it| it["kind"] == kind && it["metadata"]["name"] == *name);
        object.unwrap_or_else(|| panic!("no {kind} {name}"))
    };
    let deployment = rendered("Deployment", &json!("koord-descheduler"));
    let pod = &deployment["spec"]["template"]["spec"];
    let roles = documents(RBAC);
    let object_of = |kind: &str| roles.iter().find(|object| object["kind"] == kind).unwrap();
    let account = &object_of("ServiceAccount")["metadata"];
    assert_eq!(pod["serviceAccountName"], account["name"]);
    for (binding, role) in [
        ("ClusterRoleBinding", "ClusterRole"),
        ("RoleBinding", "Role"),
    ] {
        let (binding, role) = (object_of(binding), object_of(role));
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
        assert_eq!(
            binding["metadata"]["namespace"],
            role["metadata"]["namespace"]
        );
        let subject = json!({"kind": "ServiceAccount", "name": account["name"],
            "namespace": account["namespace"]});
        assert_eq!(binding["subjects"], json!([subject]));
    }
    let container = &pod["containers"][0];
    let args = container["args"].as_array().into_iter().flatten();
    let args = args.map(|arg| OsString::from(arg.as_str().unwrap()));
    let argv = std::iter::once(OsString::from("koord-descheduler")).chain(args);
    let mut args = flags::parse::<Args>(argv).unwrap().args;
    // Returns the text in the ConfigMap of a volume, and the path at which the program reads it.
    let mounted = |index: usize| {
        let volume = &pod["volumes"][index];
        let map = rendered("ConfigMap", &volume["configMap"]["name"]);
        let item = &volume["configMap"]["items"][0];
        let mount = &container["volumeMounts"][index];
        assert_eq!(mount["name"], volume["name"]);
        let (dir, file) = (mount["mountPath"].as_str(), item["path"].as_str());
        let path = format!("{}/{}", dir.unwrap(), file.unwrap());
        let text = map["data"][item["key"].as_str().unwrap()].as_str().unwrap();
        (PathBuf::from(path), text)
    };
    let (path, text) = mounted(0);
    assert_eq!(args.config.take(), Some(path));
    // The rules by which targets are found are the scheduler's.
    let (path, scheduler) = mounted(1);
    assert_eq!(args.scheduler_config.as_ref(), Some(&path));
    assert!(
        scheduler.contains("kind: KubeSchedulerConfiguration"),
        "{scheduler}"
    );
    let config = Configuration::parse(text).unwrap();
    assert_eq!(
        args.resolve().unwrap().notes,
        [""; 0],
        "every flag has an effect"
    );
    let election = &config.leader_election;
    let namespace = &object_of("Role")["metadata"]["namespace"];
    assert_eq!(election.resource_namespace, *namespace);
    let rules = object_of("Role")["rules"].as_array().unwrap().iter();
    let mut named = rules.filter_map(|rule| rule["resourceNames"].as_array());
    assert_eq!(named.next(), Some(&vec![json!(election.resource_name)]));
    let ports = container["ports"].as_array().unwrap();
    let ports: Vec<_> = ports
        .iter()
        .map(|port| port["containerPort"].clone())
        .collect();
    assert_eq!(ports, [json!(args.secure_port)]);
    // Plain HTTP needs no rights: it is for programs in the pod.
    for address in [&config.healthz_bind_address, &config.metrics_bind_address] {
        assert_eq!(address, "127.0.0.1:10251");
    }
    // No plugin is missing, and no setting is without effect.
    let completed = Registry::in_tree().complete(config).unwrap();
    assert_eq!(completed.notes, [""; 0]);
    completed.build().unwrap();
}
