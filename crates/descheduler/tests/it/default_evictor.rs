//! `DefaultEvictor` against an API server.

use crate::deploy::{self, DeniedRequests};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_descheduler::config::Configuration;
use koord_descheduler::daemon::{self, LastCycle, Options};
use koord_descheduler::registry::Registry;
use koord_kube::Api;
use koord_kube::api::{ListParams, PostParams};
use serde_json::json;
use std::time::Duration;

const CONFIG: &str = "
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- plugins:
    deschedule: {enabled: [{name: PodLifeTime}]}
    evict: {disabled: [{name: '*'}], enabled: [{name: DefaultEvictor}]}
    filter: {disabled: [{name: '*'}], enabled: [{name: DefaultEvictor}]}
  pluginConfig:
  - name: PodLifeTime
    args: {states: [Pending]}
  - name: DefaultEvictor
    args:
      podProtections:
        extraEnabled: [PodsWithPVC]
        config: {PodsWithPVC: {protectedStorageClasses: [{name: precious}]}}
";

#[tokio::test(start_paused = true)]
pub(crate) async fn pods_are_evicted_unless_their_storage_is_protected() {
    let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
    let server = ApiServer::open(Config::memory(clock.clone())).await;
    let server = server.unwrap();
    let client = koord_kube::client::in_process(server.service());
    deploy::install(&client).await;
    let denied = DeniedRequests::default();
    let limited = koord_kube::client::in_process(deploy::service(&server, &denied));
    let (create, default) = (PostParams::default(), "default");
    let nodes: Api<Node> = Api::all(client.clone());
    for name in ["a", "b"] {
        let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        nodes.create(&create, &node).await.unwrap();
    }
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), default);
    let set = serde_json::from_value(json!({
        "metadata": {"name": "r"},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "r"}},
            "template": {
                "metadata": {"labels": {"app": "r"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }));
    let owner = sets.create(&create, &set.unwrap()).await.unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), default);
    let pods: Api<Pod> = Api::namespaced(client.clone(), default);
    for name in ["cheap", "precious"] {
        let claim = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": name, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }));
        claims.create(&create, &claim.unwrap()).await.unwrap();
        let pod = serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": owner.metadata.uid}],
            },
            "spec": {
                "nodeName": "a", "containers": [{"name": "c", "image": "i"}],
                "terminationGracePeriodSeconds": 0,
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}],
            },
        }));
        pods.create(&create, &pod.unwrap()).await.unwrap();
    }
    let config = Configuration::parse(CONFIG).unwrap();
    let framework = Registry::in_tree().complete(config).unwrap();
    let framework = framework.build().unwrap();
    assert!(framework.reads_storage_classes());
    let options = Options {
        controller_metrics: None,
        interval: Duration::ZERO,
        election: None,
        events: None,
        last: LastCycle::default(),
    };
    let (ctx, last) = (Context::with_clock(clock), options.last.clone());
    let running = tokio::spawn(daemon::run(options, framework, limited, ctx.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let remaining = pods.list(&ListParams::default()).await.unwrap();
    let remaining: Vec<_> = remaining
        .items
        .iter()
        .map(|pod| pod.metadata.name.as_deref())
        .collect();
    assert_eq!(remaining, [Some("precious")]);
    let report = last.get().unwrap();
    let skipped = &report.nodes["a"].kept["PodLifeTime: PVC"];
    assert!(
        format!("{skipped:?}").contains("has storage class precious"),
        "{skipped:?}"
    );
    ctx.shutdown.cancel();
    running.await.unwrap().unwrap();
    denied.assert_none();
}
