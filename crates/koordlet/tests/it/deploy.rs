//! The manifests: the permissions they grant are those that the agent uses.

use crate::agent::{NODE, cluster, typed};
use http::{Method, Request};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRole;
use koord_api::scheduling::Device;
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_app::{Clock, Context, flags};
use koord_host::Resource;
use koord_host::fake::Tree;
use koord_host::testing::eventually;
use koord_kube::api::{ListParams, PostParams};
use koord_kube::client::{Body, in_process};
use koord_kube::{Api, Client, patch};
use koordlet::args::Args;
use koordlet::gates::Gate;
use koordlet::node_topology::Reporting;
use koordlet::states::kubelet::Kubelet;
use koordlet::{Options, PodSource, Settings};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tower::{BoxError, service_fn};

/// The account and its role.
const RBAC: &str = "charts/koord/files/koordlet/rbac.yaml";

/// Returns the only object of a kind in a file of the repository.
fn only<K: DeserializeOwned>(file: &str, kind: &str) -> K {
    let path = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let documents = text.split("\n---\n");
    let documents = documents.map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    let mut matching = documents.filter(|document| document["kind"] == kind);
    let object = matching.next().unwrap();
    assert!(matching.next().is_none(), "{file} has more than one {kind}");
    serde_json::from_value(object).unwrap()
}

/// Returns a permission as `verb resource.group`.
fn right(verb: &str, resource: &str, group: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    format!("{verb} {resource}{dot}{group}")
}

/// Returns the permissions that the manifests grant.
fn granted() -> BTreeSet<String> {
    let role: ClusterRole = only(RBAC, "ClusterRole");
    let mut out = BTreeSet::new();
    for rule in role.rules.unwrap() {
        assert!(rule.resource_names.is_none() && rule.non_resource_urls.is_none());
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                out.extend(rule.verbs.iter().map(|verb| right(verb, resource, group)));
            }
        }
    }
    assert!(!out.iter().any(|right| right.contains('*')), "least rights");
    out
}

/// Returns the permission that a request to the API server needs; discovery needs none.
fn needed<B>(request: &Request<B>) -> Option<String> {
    let mut parts: Vec<&str> = request.uri().path().split('/').skip(1).collect();
    let group = match parts.remove(0) {
        "api" => "",
        _ => parts.remove(0),
    };
    parts.remove(0);
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        parts.drain(..2);
    }
    let resource = *parts.first()?;
    let watches = request
        .uri()
        .query()
        .is_some_and(|query| query.contains("watch=true"));
    let verb = match *request.method() {
        Method::GET if parts.len() > 1 => "get",
        Method::GET if watches => "watch",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => "something else",
    };
    let sub = parts
        .get(2)
        .map(|sub| format!("/{sub}"))
        .unwrap_or_default();
    Some(right(verb, &format!("{resource}{sub}"), group))
}

/// Permissions that requests needed, and those of them that the manifests do not grant, which were refused.
#[derive(Default)]
struct Record {
    used: watch::Sender<BTreeSet<String>>,
    refused: Mutex<BTreeSet<String>>,
}

impl Record {
    /// Records a request. Returns false if it is not permitted.
    fn record_request(&self, right: String, granted: &BTreeSet<String>) -> bool {
        let allowed = granted.contains(&right);
        if allowed {
            self.used.send_modify(|used| {
                used.insert(right);
            });
        } else {
            self.refused.lock().unwrap().insert(right);
        }
        allowed
    }

    /// Waits until all of `rights` have been used.
    async fn until(&self, rights: &BTreeSet<String>) -> Result<(), String> {
        let mut used = self.used.subscribe();
        let wait = used.wait_for(|used| used.is_superset(rights));
        let waited = tokio::time::timeout(Duration::from_secs(120), wait).await;
        if matches!(waited, Ok(Ok(_))) {
            return Ok(());
        }
        Err(format!(
            "{:?}",
            rights.difference(&self.used.borrow()).collect::<Vec<_>>()
        ))
    }
}

/// Returns a client with the permissions of the manifests. The list of nodes waits until the single node was
/// requested, because the kubelet's address is needed before the informer has it.
fn limited(service: Client, record: Arc<Record>) -> Client {
    let granted = Arc::new(granted());
    in_process(service_fn(move |request: Request<Body>| {
        let (service, record, granted) = (service.clone(), record.clone(), granted.clone());
        async move {
            if let Some(right) = needed(&request) {
                if right == "list nodes" {
                    let first = BTreeSet::from(["get nodes".to_owned()]);
                    record.until(&first).await.map_err(BoxError::from)?;
                }
                if !record.record_request(right.clone(), &granted) {
                    return Err(BoxError::from(format!("forbidden: {right}")));
                }
            }
            service.send(request).await.map_err(BoxError::from)
        }
    }))
}

/// Returns a kubelet with these pods; requests need the permissions of Kubernetes 1.33.
async fn kubelet(pods: Value, record: Arc<Record>) -> u16 {
    let granted = granted();
    let answer = move |uri: http::Uri| {
        let allowed = record.record_request(format!("get nodes{}", uri.path()), &granted);
        let answer = match uri.path() {
            "/pods" if allowed => pods.clone(),
            "/configz" if allowed => json!({"kubeletconfig": {"cgroupDriver": "cgroupfs"}}),
            _ => Value::Null,
        };
        async move { axum::Json(answer) }
    };
    let routes = axum::Router::new().fallback(answer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    port
}

/// Returns a batch pod with far too much memory that a budget protects, and a claim that its block I/O settings
/// name.
async fn objects(client: &Client, tree: &Tree) -> Value {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    claims
        .create(&PostParams::default(), &typed(claim))
        .await
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "be", "namespace": "default",
            "labels": {"koordinator.sh/qosClass": "BE", "app": "be"},
            "annotations": {"koordinator.sh/blkioQOS":
                json!({"blocks": [{"name": "data", "type": "podvolume"}]}).to_string()}},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "x"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}});
    let created: Pod = pods
        .create(&PostParams::default(), &typed(pod))
        .await
        .unwrap();
    let status = json!({"status": {"phase": "Running", "qosClass": "BestEffort",
        "conditions": [{"type": "Ready", "status": "True"}]}});
    patch::merge_status(&pods, "be", &status).await.unwrap();
    let uid = created.metadata.uid.unwrap();
    let group = tree
        .group(&format!("kubepods/besteffort/pod{uid}"))
        .unwrap();
    let stat = format!(
        "total_inactive_anon 0\ntotal_active_anon {}\ntotal_inactive_file 0\n\
         total_active_file 0\ntotal_unevictable 0\n",
        3_u64 << 30
    );
    tree.feed(&group, Resource::MemoryStat, &stat).unwrap();
    let meminfo = "MemTotal: 8388608 kB\nMemFree: 524288 kB\nMemAvailable: 1048576 kB\n\
                   Buffers: 0 kB\nCached: 0 kB\nActive(file): 0 kB\nInactive(file): 0 kB\n\
                   SReclaimable: 0 kB\n";
    tree.put("proc/meminfo", meminfo).unwrap();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), "default");
    let budget = json!({"metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "be"}}}});
    budgets
        .create(&PostParams::default(), &typed(budget))
        .await
        .unwrap();
    let slos: Api<NodeSLO> = Api::all(client.clone());
    let slo = json!({"metadata": {"name": NODE}, "spec": {"resourceUsedThresholdWithBE":
        {"enable": true, "memoryEvictThresholdPercent": 70}}});
    slos.create(&PostParams::default(), &typed(slo))
        .await
        .unwrap();
    let metrics: Api<NodeMetric> = Api::all(client.clone());
    let metric = json!({"metadata": {"name": NODE}, "spec": {"metricCollectPolicy":
        {"aggregateDurationSeconds": 300, "reportIntervalSeconds": 60}}});
    metrics
        .create(&PostParams::default(), &typed(metric))
        .await
        .unwrap();
    let pod = pods.get("be").await.unwrap();
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]})
}

#[tokio::test]
async fn koordlet_uses_all_of_its_rights_and_no_others() {
    let clock = Clock::system();
    let (_server, client) = cluster(&clock).await;
    let address =
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    patch::merge_node_status(&client, NODE, &address)
        .await
        .unwrap();
    let tree = Tree::hybrid("0-1").unwrap();
    tree.group("kubepods/besteffort").unwrap();
    let pods = objects(&client, &tree).await;
    let record = Arc::new(Record::default());
    let read_only_port = kubelet(pods, record.clone()).await;
    let mut settings = Settings {
        interval_ms: 20,
        ..Settings::default()
    };
    for gate in [
        Gate::BEMemoryEvict,
        Gate::BlkIOReconcile,
        Gate::Accelerators,
    ] {
        settings.gates.set(gate, true);
    }
    let files = tempfile::tempdir().unwrap();
    let accelerator = |uuid: &str| {
        let list = json!([{"uuid": uuid, "minor": "0", "vendor": "v", "model": "m"}]);
        std::fs::write(files.path().join("a"), list.to_string()).unwrap();
    };
    accelerator("first");
    let options = Options {
        node_name: NODE.to_owned(),
        root: Some(tree.root().clone()),
        detect_layout: Some(koord_host::CgroupPath::root()),
        settings,
        pods: PodSource::Kubelet(Kubelet {
            insecure: true,
            read_only_port,
            interval: Duration::from_millis(100),
            ..Kubelet::default()
        }),
        report_interval: Some(Duration::from_millis(100)),
        devices: koordlet::devices::Config {
            files: files.path().to_owned(),
            interval: Duration::from_millis(50),
            ..Default::default()
        },
        topology: Some(Reporting {
            interval: Duration::from_millis(100),
            ..Reporting::default()
        }),
        ..Options::default()
    };
    let context = Context::with_clock(clock);
    let agent = koordlet::run(
        options,
        limited(client.clone(), record.clone()),
        context.clone(),
    );
    let agent = tokio::spawn(agent);

    let group = "scheduling.koordinator.sh";
    let first = BTreeSet::from([right("create", "devices", group)]);
    assert_eq!(record.until(&first).await, Ok(()), "the first report");
    accelerator("second");
    // The reported content is changed, and the agent repairs it.
    let topologies: Api<NodeResourceTopology> = Api::all(client.clone());
    eventually("NodeResourceTopology", async || {
        topologies.get_opt(NODE).await.unwrap()
    })
    .await;
    let broken = json!({"topologyPolicies": []});
    patch::merge(&topologies, NODE, &broken).await.unwrap();
    let unused = record.until(&granted()).await;
    assert_eq!(unused, Ok(()), "given, and nothing uses it");
    context.shutdown.cancel();
    agent.await.unwrap().unwrap();
    let refused = record.refused.lock().unwrap().clone();
    assert_eq!(refused, BTreeSet::new(), "asked for, and no rule allows it");
    // The requirements of node-policy.yaml.
    let all = ListParams::default();
    let events: Api<Event> = Api::all(client.clone());
    let events = events.list(&all).await.unwrap().items;
    assert!(!events.is_empty());
    for event in events {
        assert_eq!(event.source.and_then(|it| it.host).as_deref(), Some(NODE));
        let about = event.involved_object;
        let is_node = about.kind.as_deref() == Some("Node");
        assert!(!is_node || about.name.as_deref() == Some(NODE), "{about:?}");
    }
    for topology in topologies.list(&all).await.unwrap() {
        assert_eq!(topology.metadata.name.as_deref(), Some(NODE));
    }
    let devices: Api<Device> = Api::all(client);
    for device in devices.list(&all).await.unwrap() {
        assert_eq!(device.metadata.name.as_deref(), Some(NODE));
    }
}

#[test]
fn the_manifests_fit_together() {
    let daemons: DaemonSet = only("deploy/koordlet/koordlet.yaml", "DaemonSet");
    let account: ServiceAccount = only(RBAC, "ServiceAccount");
    let template = daemons.spec.unwrap().template.spec.unwrap();
    assert_eq!(template.service_account_name, account.metadata.name);
    let container = &template.containers[0];
    let argv = container
        .args
        .iter()
        .flatten()
        .map(std::ffi::OsString::from);
    let argv = std::iter::once("koordlet".into()).chain(argv);
    let args = flags::parse::<Args>(argv).unwrap().args;
    assert!(
        args.inert.set_flags().is_empty(),
        "every flag has an effect"
    );
    assert!(args.addr.0.unwrap().ip().is_loopback());
    // All read and written paths are mounted, each volume once.
    let mounts = container.volume_mounts.iter().flatten();
    let mounts: BTreeSet<&str> = mounts
        .map(|mount| mount.mount_path.trim_end_matches('/'))
        .collect();
    for dir in [
        &args.audit.audit_log_dir,
        &args.prediction.prediction_checkpoint_filepath,
        &args.collectors.tsdb_path,
        &args.system.var_lib_kubelet_dir,
        &args.devices.xpu_device_infos_dir,
    ] {
        assert!(
            mounts.contains(dir.to_str().unwrap().trim_end_matches('/')),
            "{dir:?}"
        );
    }
    for dir in ["/host-cgroup", "/host-sys", "/host-sys-fs"] {
        assert!(mounts.contains(dir), "{dir}, which dsMode uses");
    }
    assert_eq!(mounts.len(), template.volumes.unwrap().len());
    let binding: Value = only(RBAC, "ClusterRoleBinding");
    let role: Value = only(RBAC, "ClusterRole");
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    assert_eq!(
        binding["subjects"],
        json!([{"kind": "ServiceAccount", "name": account.metadata.name,
            "namespace": account.metadata.namespace}])
    );
}
