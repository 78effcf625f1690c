//! Webhooks called over HTTPS: by the API server, and by many clients at two replicas.

use crate::cluster::{Cluster, typed};
use crate::webhooks::{install, options, settings};
use axum::http::{Request, header};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Node;
use koord_api::annotations::{
    self, NODE_RAW_ALLOCATABLE, NODE_RESOURCE_AMPLIFICATION_RATIO, QUOTA_CHILD_REQUEST,
};
use koord_api::labels;
use koord_api::scheduling::ElasticQuota;
use koord_app::Context;
use koord_app::features::Gates;
use koord_host::testing::eventually;
use koord_kube::api::PostParams;
use koord_kube::client::{Peer, to_peer};
use koord_kube::{Api, Client, patch};
use koord_manager::{GATES, Options};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A replica of the manager that serves its webhooks on a port of its own.
pub(crate) struct Replica {
    /// A client of its webhooks.
    pub(crate) client: Client,
    pub(crate) port: u16,
    /// Stops the replica when cancelled.
    pub(crate) stop: CancellationToken,
}

/// Starts a replica that the API server calls at `host`, or through the Service.
pub(crate) async fn start(cluster: &Cluster, gates: &str, host: Option<&str>) -> Replica {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings(host);
    settings.address = free.local_addr().unwrap();
    // With `host` set, the certificates would be read from files.
    settings.directory = None;
    let (url, port) = (
        format!("https://{}", settings.address),
        settings.address.port(),
    );
    drop(free);
    let options = Options {
        gates: Gates::parse(GATES, gates).unwrap(),
        ..options(settings)
    };
    let stop = cluster.ctx.shutdown.child_token();
    let ctx = Context {
        shutdown: stop.clone(),
        ..Context::with_clock(cluster.ctx.clock.clone())
    };
    let run = koord_manager::run(options, cluster.limited.clone(), ctx);
    tokio::spawn(async move { run.await.unwrap() });
    let peer = Peer {
        url,
        insecure: true,
        ..Peer::default()
    };
    let client = to_peer(&peer).await.unwrap();
    Replica { client, port, stop }
}

/// Waits until `ready` accepts the replica's dump of its quotas.
pub(crate) async fn wait_for_quotas(replica: &Client, ready: impl Fn(&Value) -> bool) {
    eventually("quotas of the replica", async || {
        let request = Request::get("/elasticQuota").body(Vec::new()).unwrap();
        let text = replica.request_text(request).await.ok()?;
        ready(&serde_json::from_str(&text).unwrap()).then_some(())
    })
    .await;
}

/// Returns the replica's response to the creation of a pod; `None` if it does not respond yet.
async fn validate_pod(replica: &Client, pod: &Value) -> Option<Value> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": pod["metadata"]["name"], "operation": "CREATE", "namespace": "default",
            "name": pod["metadata"]["name"], "userInfo": {"username": "jane"},
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": pod,
        },
    });
    let request = Request::post("/validate-pod").header(header::CONTENT_TYPE, "application/json");
    let request = request.body(review.to_string().into_bytes()).unwrap();
    let text = replica.request_text(request).await.ok()?;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
    Some(answer["response"].clone())
}

#[tokio::test]
async fn many_writers_at_two_replicas_never_overdraw_a_quota() {
    const WRITERS: usize = 16;
    const PODS: usize = 8;
    let cluster = Cluster::start().await;
    let quotas: Api<ElasticQuota> = Api::namespaced(cluster.client.clone(), "default");
    let quota = json!({
        "metadata": {"name": "q", "annotations": {annotations::QUOTA_ADMISSION: "{\"cpu\":\"30\"}"}},
        "spec": {"min": {"cpu": 4}, "max": {"cpu": 100}},
    });
    quotas
        .create(&PostParams::default(), &typed(quota))
        .await
        .unwrap();
    let gates = "EnableQuotaAdmission=true,ElasticQuotaDump=true";
    let host = Some("127.0.0.1");
    let replicas = [
        start(&cluster, gates, host).await.client,
        start(&cluster, gates, host).await.client,
    ];
    for replica in &replicas {
        // The webhooks are served, and the replica has seen the quota.
        wait_for_quotas(replica, |dump| dump["quotaInfoMap"].get("q").is_some()).await;
    }
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let replicas = replicas.clone();
            tokio::spawn(async move {
                let (mut granted, mut refusals) = (0, Vec::new());
                for index in 0..PODS {
                    let pod = json!({
                        "metadata": {"name": format!("p{writer}-{index}"), "namespace": "default",
                            "labels": {labels::POD_QUOTA_NAME: "q"}},
                        "spec": {"containers": [{"name": "c", "image": "i",
                            "resources": {"requests": {"cpu": "1"}}}]},
                    });
                    let answer = validate_pod(&replicas[(writer + index) % 2], &pod)
                        .await
                        .unwrap();
                    if answer["allowed"] == true {
                        granted += 1;
                    } else {
                        refusals.push(answer["status"]["message"].to_string());
                    }
                }
                (granted, refusals)
            })
        })
        .collect();
    let (mut granted, mut refusals) = (0, Vec::new());
    for writer in writers {
        let (count, messages) = writer.await.unwrap();
        granted += count;
        refusals.extend(messages);
    }
    let used = quotas.get("q").await.unwrap();
    let used = used.amounts(QUOTA_CHILD_REQUEST).unwrap();
    assert_eq!(used.get("cpu").map(|cpu| cpu.value()), Some(granted));
    assert!((1..=30).contains(&granted), "{granted} of 30: {refusals:?}");
    let exceeded = |reason: &String| reason.contains("exceeded quota: default/q, requested: cpu=1");
    assert!(refusals.iter().any(exceeded), "{refusals:?}");
}

/// Verifies that the settings become the node's annotation, and that the allocatable resources which its
/// kubelet reports are multiplied by it.
#[tokio::test]
async fn a_kubelets_allocatable_is_amplified_over_https() {
    let cluster = Cluster::start().await;
    install(&cluster).await;
    let factors = json!({"enable": true, "resourceAmplificationRatio": {"cpu": 1.5, "memory": 2}});
    cluster
        .configure(json!({"colocation-config": "{\"enable\": true}",
            "resource-amplification-config": factors.to_string()}))
        .await;
    cluster.add_node("n1", json!({}), "10", "100Gi").await;
    start(&cluster, "NodeMutatingWebhook=true", Some("127.0.0.1")).await;
    let mut configurations = cluster.watch::<MutatingWebhookConfiguration>();
    let ready = |configuration: &MutatingWebhookConfiguration| {
        let mut entries = configuration.webhooks.iter().flatten();
        let entry = entries.find(|entry| entry.name.contains("node"))?;
        let client = &entry.client_config;
        client.url.as_ref().zip(client.ca_bundle.as_ref()).map(drop)
    };
    configurations.until("the entry of nodes", ready).await;
    let mut nodes = cluster.watch::<Node>();
    let annotation = |node: &Node, key: &str| {
        let annotations = node.metadata.annotations.as_ref()?;
        annotations.get(key).cloned()
    };
    let ratio = nodes
        .until("the annotation", |node| {
            annotation(node, NODE_RESOURCE_AMPLIFICATION_RATIO)
        })
        .await;
    let ratio: Value = serde_json::from_str(&ratio).unwrap();
    assert_eq!(ratio, json!({"cpu": 1.5, "memory": 2.0}));

    let kubelet = cluster.kubelet("n1");
    let patch_allocatable = async |cpu: &str, memory: &str| {
        let status = json!({"status": {"allocatable": {"cpu": cpu, "memory": memory}}});
        let node = patch::merge_node_status(&kubelet, "n1", &status)
            .await
            .unwrap();
        let raw = annotation(&node, NODE_RAW_ALLOCATABLE).unwrap();
        let raw: Value = serde_json::from_str(&raw).unwrap();
        let status = node.status.unwrap();
        let shown = json!(status.allocatable.unwrap());
        assert_eq!(json!(status.capacity.unwrap())["cpu"], "10");
        let cpu_and_memory = |list: &Value| (list["cpu"].clone(), list["memory"].clone());
        (cpu_and_memory(&raw), cpu_and_memory(&shown))
    };
    let amounts = |cpu: &str, memory: &str| (json!(cpu), json!(memory));
    let (raw, shown) = patch_allocatable("8", "90Gi").await;
    assert_eq!(raw, amounts("8", "90Gi"));
    assert_eq!(shown, amounts("12", "180Gi"));
    // The kubelet repeats the amounts that it read from the node.
    let (raw, shown) = patch_allocatable("12", "180Gi").await;
    assert_eq!(raw, amounts("8", "90Gi"));
    assert_eq!(shown, amounts("12", "180Gi"));
    // The allocatable resources shrink.
    let (raw, shown) = patch_allocatable("6", "90Gi").await;
    assert_eq!(raw, amounts("6", "90Gi"));
    assert_eq!(shown, amounts("9", "180Gi"));
    cluster.ctx.shutdown.cancel();
}
