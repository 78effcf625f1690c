//! `koord install` and `koord uninstall` against the embedded API server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, flags::Selection};
use koord_kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use koord_kube::{Api, Client};
use koordctl::install::{Args, UninstallArgs, install_to, uninstall_from};
use serde_json::{Value, json};

const NAMESPACE: &str = "koordinator-system";

/// Returns a client of an empty cluster.
async fn cluster() -> Client {
    let mut config = Config::memory(Clock::system());
    config.controllers = Selection::none();
    let server = ApiServer::open(config).await.unwrap();
    koord_kube::client::in_process(server.service())
}

fn clusterwide<K>(client: &Client) -> Api<K>
where
    K: koord_kube::kube_core::Resource,
    K::DynamicType: Default,
{
    Api::all(client.clone())
}

async fn install(client: &Client) -> String {
    install_to(client, &Args::default()).await.unwrap()
}

async fn uninstall(client: &Client, args: &UninstallArgs) -> Vec<String> {
    uninstall_from(client, args).await.unwrap()
}

/// Returns the number of CRDs that are not being removed.
async fn definitions(client: &Client) -> usize {
    let api: Api<CustomResourceDefinition> = clusterwide(client);
    let list = api.list(&ListParams::default()).await.unwrap();
    let live = list.items.iter();
    live.filter(|it| it.metadata.deletion_timestamp.is_none())
        .count()
}

fn quota_kind() -> ApiResource {
    ApiResource {
        api_version: "scheduling.sigs.k8s.io/v1alpha1".to_owned(),
        group: "scheduling.sigs.k8s.io".to_owned(),
        version: "v1alpha1".to_owned(),
        kind: "ElasticQuota".to_owned(),
        plural: "elasticquotas".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_install_changes_nothing() {
    let client = cluster().await;
    let first = install(&client).await;
    assert!(first.contains("created DaemonSet koordlet"), "{first}");
    assert!(first.contains("koord 0.1.0 is in namespace"), "{first}");
    let second = install(&client).await;
    assert!(!second.contains("created "), "{second}");
    assert!(!second.contains("changed "), "{second}");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let deployments = deployments.list(&ListParams::default()).await.unwrap();
    assert_eq!(deployments.items.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_install_resumes() {
    let client = cluster().await;
    let roles: Api<ClusterRole> = clusterwide(&client);
    let first_role = async {
        while roles
            .list(&ListParams::default().fields("metadata.name=koord-manager-role"))
            .await
            .unwrap()
            .items
            .is_empty()
        {
            tokio::task::yield_now().await;
        }
    };
    // The future that loses is dropped, as if the process was killed.
    let args = Args::default();
    tokio::select! {
        biased;
        () = first_role => {}
        result = install_to(&client, &args) => drop(result.unwrap()),
    }
    install(&client).await;
    let second = install(&client).await;
    assert!(!second.contains("created "), "{second}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_installation_is_named_and_kept() {
    let client = cluster().await;
    let roles: Api<ClusterRole> = clusterwide(&client);
    let role = json!({"metadata": {"name": "koord-manager-role", "annotations": {
        "meta.helm.sh/release-name": "koordinator", "meta.helm.sh/release-namespace": "ops",
    }}});
    let role: ClusterRole = serde_json::from_value(role).unwrap();
    roles.create(&PostParams::default(), &role).await.unwrap();
    let refused = install_to(&client, &Args::default()).await.unwrap_err();
    let text = format!("{refused:#}");
    let owner = "ClusterRole koord-manager-role: Helm release koordinator in namespace ops";
    assert!(text.contains(owner), "{text}");
    assert_eq!(definitions(&client).await, 0, "nothing is applied");
    let forced = Args {
        force: true,
        ..Args::default()
    };
    install_to(&client, &forced).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uninstall_leaves_nothing() {
    let client = cluster().await;
    let nodes: Api<Node> = clusterwide(&client);
    let node = json!({"metadata": {"name": "n", "annotations": {
        "node.koordinator.sh/raw-allocatable": "{}", "node.koordinator.sh/reservation": "{}",
    }}});
    let node: Node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let amounts = json!({"cpu": "4", "kubernetes.io/batch-cpu": "2000"});
    let status = json!({"status": {"capacity": amounts, "allocatable": amounts}});
    let params = PatchParams::default();
    let patch = Patch::Merge(&status);
    nodes.patch_status("n", &params, &patch).await.unwrap();
    install(&client).await;

    let planned = uninstall(
        &client,
        &UninstallArgs {
            dry_run: true,
            ..UninstallArgs::default()
        },
    )
    .await;
    let daemon_sets: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
    assert!(daemon_sets.get_opt("koordlet").await.unwrap().is_some());
    let removed = uninstall(&client, &UninstallArgs::default()).await;
    let planned: Vec<String> = planned
        .iter()
        .map(|line| line.replace("would remove", "removed"))
        .collect();
    assert_eq!(planned, removed);
    let first = removed.first().unwrap();
    assert!(first.contains("WebhookConfiguration"), "{first}");

    assert!(daemon_sets.get_opt("koordlet").await.unwrap().is_none());
    assert_eq!(definitions(&client).await, 0);
    let node = serde_json::to_value(nodes.get("n").await.unwrap()).unwrap();
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "4"}));
    assert_eq!(node["status"]["capacity"], json!({"cpu": "4"}));
    let annotations = &node["metadata"]["annotations"];
    // A setting of an administrator.
    assert_eq!(
        *annotations,
        json!({"node.koordinator.sh/reservation": "{}"})
    );
    let again = uninstall(&client, &UninstallArgs::default()).await;
    let last = again.last().unwrap();
    assert_eq!(last, "nothing of koord is in namespace koordinator-system");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uninstall_keeps_quotas_unless_told_otherwise() {
    let client = cluster().await;
    install(&client).await;
    let quota = json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
        "metadata": {"name": "team", "namespace": "default"}, "spec": {"max": {"cpu": "1"}},
    });
    let quota: DynamicObject = serde_json::from_value(quota).unwrap();
    let quotas: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &quota_kind());
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    let lines = uninstall(&client, &UninstallArgs::default()).await;
    let text = lines.join("\n");
    let kept = "elasticquotas.scheduling.sigs.k8s.io: kept with 1 objects";
    assert!(text.contains(kept), "{text}");
    quotas.get("team").await.unwrap();
    let namespaces: Api<Namespace> = clusterwide(&client);
    assert!(namespaces.get_opt(NAMESPACE).await.unwrap().is_some());
    let everything = UninstallArgs {
        crds: true,
        ..UninstallArgs::default()
    };
    uninstall(&client, &everything).await;
    assert_eq!(definitions(&client).await, 0);
}

#[test]
fn dry_run_renders_components_and_refuses_wrong_values() {
    let print = |args: &[&str]| {
        let argv = std::iter::once("install").chain(args.iter().copied());
        let flags = <Flags as clap::Parser>::try_parse_from(argv).unwrap();
        koordctl::install::dry_run(&flags.args)
    };
    let objects = |args: &[&str]| -> Vec<(String, String)> {
        let text = print(args).unwrap();
        let documents = text.split("---\n").filter(|text| !text.is_empty());
        documents
            .map(|text| {
                let object: Value = serde_saphyr::from_str(text).unwrap();
                let field = |value: &Value| value.as_str().unwrap().to_owned();
                (field(&object["kind"]), field(&object["metadata"]["name"]))
            })
            .collect()
    };
    let all = objects(&["--dry-run"]);
    assert_eq!(all[0].0, "CustomResourceDefinition");
    assert_eq!(all.last().unwrap().0, "ValidatingWebhookConfiguration");
    for (component, workload) in [
        ("manager", "koord-manager"),
        ("scheduler", "koord-scheduler"),
        ("descheduler", "koord-descheduler"),
        ("koordlet", "koordlet"),
        ("topology-exporter", "koord-topology-exporter"),
    ] {
        let part = objects(&["--dry-run", "--component", component]);
        let kinds = ["Deployment", "DaemonSet"];
        let workloads: Vec<_> = part
            .iter()
            .filter(|it| kinds.contains(&it.0.as_str()))
            .collect();
        assert_eq!(workloads.len(), 1, "{component}");
        assert_eq!(workloads[0].1, workload);
        for kind in ["Namespace", "ServiceAccount", "CustomResourceDefinition"] {
            assert!(part.iter().any(|it| it.0 == kind), "{component}: {kind}");
        }
    }
    for (args, text) in [
        (
            &["--set", "koordlet.metrics.port=70000"][..],
            "/koordlet/metrics/port",
        ),
        (&["--set", "koordlet.metric.port=1"], "/koordlet/metric"),
        (&["--set", "scheduler.securePort=0"], "scheduler.securePort"),
        (
            &["--set", "featureGates=CPICollector=true"],
            "set it in koordlet.features",
        ),
        (&["--kube-version", "1.27.9"], "kubeVersion"),
        (&["--set", "a"], "invalid setting"),
    ] {
        let mut argv = vec!["--dry-run"];
        argv.extend(args);
        let error = format!("{:#}", print(&argv).unwrap_err());
        assert!(error.contains(text), "{args:?}: {error}");
    }
}

#[derive(Debug, clap::Parser)]
struct Flags {
    #[command(flatten)]
    args: Args,
}
