//! The inspection API over HTTP, in upstream's form.

use crate::api::{TestCluster, allocatable};
use crate::preemption::{page, send_request, serve};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::slo::NodeMetric;
use koord_app::Clock;
use koord_kube::Api;
use koord_kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const GI: i64 = 1 << 30;

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "initContainers": [
                {"name": "proxy", "image": "i", "restartPolicy": "Always",
                    "ports": [{"containerPort": 53, "hostPort": 53, "protocol": "UDP",
                        "hostIP": "127.0.0.1"}]},
                {"name": "setup", "image": "i", "ports": [{"containerPort": 99, "hostPort": 99}]}
            ],
            "containers": [{
                "name": "c", "image": "i",
                "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}],
                "resources": {"requests": {"cpu": "1", "kubernetes.io/batch-cpu": "500"},
                    "limits": {"kubernetes.io/batch-cpu": "500"}}
            }],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app": "web"}}
                    }]
                },
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 7,
                        "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {},
                            "namespaceSelector": {}}
                    }]
                }
            }
        }
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_and_plugins_are_shown_in_upstreams_form() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    let mut small = allocatable("4");
    small["kubernetes.io/batch-cpu"] = json!("0");
    cluster.node("other", small, json!([])).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for (name, images) in [
        (
            "n",
            json!([{"names": ["a:1", "a@sha256:0"], "sizeBytes": 5}, {"names": ["b:1"]}]),
        ),
        ("other", json!([{"names": ["a:1"], "sizeBytes": 5}])),
    ] {
        let status = json!({"status": {"images": images}});
        let patch = Patch::Merge(&status);
        nodes
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    let metrics: Api<NodeMetric> = Api::all(cluster.client.clone());
    let metric: NodeMetric = serde_json::from_value(json!({
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric",
        "metadata": {"name": "n"}, "spec": {}
    }))
    .unwrap();
    let params = PostParams::default();
    metrics.create(&params, &metric).await.unwrap();
    let status = json!({"status": {
        "updateTime": Clock::system().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "nodeMetric": {"nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}}
    }});
    let patch = Patch::Merge(&status);
    metrics
        .patch_status("n", &PatchParams::default(), &patch)
        .await
        .unwrap();

    let scheduler = cluster.schedule(|_| {});
    let address = serve(&scheduler).await;
    cluster.pods().create(&params, &pod()).await.unwrap();
    assert_eq!(cluster.bound("web").await, "n");

    let node = page(address, "/apis/v1/nodes/n").await;
    assert_eq!(node["node"]["metadata"]["name"], "n");
    let info = &node["pods"][0];
    assert_eq!(info["Pod"]["metadata"]["name"], "web");
    assert_eq!(info["RequiredAffinityTerms"], Value::Null);
    assert_eq!(
        info["RequiredAntiAffinityTerms"],
        json!([{"Namespaces": {"default": {}}, "TopologyKey": "kubernetes.io/hostname",
            "Selector": [{"key": "app", "operator": "=", "values": ["web"]}],
            "NamespaceSelector": {}}])
    );
    assert_eq!(
        info["PreferredAffinityTerms"],
        json!([{"Namespaces": {}, "TopologyKey": "zone", "Selector": [],
            "NamespaceSelector": [], "Weight": 7}])
    );
    for list in ["podsWithAffinity", "podsWithRequiredAntiAffinity"] {
        assert_eq!(node[list], json!([info]), "{list}");
    }
    assert_eq!(
        node["usedPorts"],
        json!({"0.0.0.0": [{"Protocol": "TCP", "Port": 8080}],
            "127.0.0.1": [{"Protocol": "UDP", "Port": 53}]})
    );
    let amounts = |cpu: i64, memory: i64, pods: i64, batch: Value| {
        json!({"MilliCPU": cpu, "Memory": memory, "EphemeralStorage": 0,
            "AllowedPodNumber": pods, "ScalarResources": batch})
    };
    let batch = |cpu: i64, memory: i64| {
        let mut out = json!({"kubernetes.io/batch-cpu": cpu});
        if memory > 0 {
            out["kubernetes.io/batch-memory"] = json!(memory);
        }
        out
    };
    let asks = [
        ("requested", amounts(1000, 0, 1, batch(500, 0))),
        (
            "allocatable",
            amounts(4000, 8 * GI, 110, batch(1000, 4 * GI)),
        ),
        ("remaining", amounts(3000, 8 * GI, 109, batch(500, 4 * GI))),
    ];
    for (part, expected) in asks {
        assert_eq!(node[part], expected, "{part}");
    }
    assert_eq!(
        node["nonZeroRequested"]["MilliCPU"], 1100,
        "the sidecar counts"
    );
    let image = |size: i64, nodes: i64| json!({"Size": size, "NumNodes": nodes, "Nodes": null});
    assert_eq!(
        node["imageStates"],
        json!({"a:1": image(5, 2), "a@sha256:0": image(5, 1), "b:1": image(0, 1)})
    );
    assert_eq!(node.get("pvcRefCounts"), None, "empty parts are left out");
    assert!(
        node["generation"]
            .as_i64()
            .is_some_and(|generation| generation > 0)
    );

    let services = page(address, "/apis/v1/__services__").await;
    let plugins = "/apis/v1/plugins";
    assert_eq!(
        services,
        json!({"GET": [
            "/apis/v1/__services__",
            "/apis/v1/nodes/:nodeName",
            format!("{plugins}/Coscheduling/gang/:namespace/:name"),
            format!("{plugins}/Coscheduling/gangs"),
            format!("{plugins}/DeviceShare/nodeDeviceSummaries"),
            format!("{plugins}/DeviceShare/nodeDeviceSummaries/:name"),
            format!("{plugins}/ElasticQuota/quotas"),
            format!("{plugins}/ElasticQuota/quotas/:name"),
            format!("{plugins}/LoadAwareScheduling/node/:nodeName"),
            format!("{plugins}/NodeNUMAResource/nodes/:nodeName"),
            format!("{plugins}/Reservation/nodeReservations/:nodeName"),
            format!("{plugins}/Reservation/reservationSelectorIndex"),
        ]})
    );
    let load = page(address, &format!("{plugins}/LoadAwareScheduling/node/n")).await;
    assert_eq!(load["pods"][0]["pod"]["metadata"]["name"], "web");
    assert_eq!(load["nodeDelta"]["cpu"], "850m", "85 % of the request");
    assert_eq!(load["nodeEstimatedPods"], json!(["default/web"]));
    for (path, code, body) in [
        ("Coscheduling/gangs", "200", json!({})),
        (
            "Coscheduling/gang/a/b",
            "404",
            json!({"message": "cannot find gang a/b"}),
        ),
        ("DeviceShare/nodeDeviceSummaries", "200", json!({})),
        (
            "DeviceShare/nodeDeviceSummaries/x",
            "404",
            json!({"message": "cannot find node x"}),
        ),
        (
            "ElasticQuota/quotas/x",
            "404",
            json!({"message": "cannot find quota x"}),
        ),
        ("LoadAwareScheduling/node/x", "200", json!({})),
        (
            "NodeNUMAResource/nodes/n",
            "500",
            json!({"message": "invalid topology, please check the NodeResourceTopology object"}),
        ),
        (
            "NodeNUMAResource/nodes/x",
            "500",
            json!({"message": "node \"x\" not found"}),
        ),
        ("Reservation/nodeReservations/n", "200", json!({})),
        (
            "Reservation/reservationSelectorIndex?detail=true",
            "200",
            json!({"enabled": false, "prefixes": null, "indexedReservations": 0}),
        ),
    ] {
        let answer = send_request(address, "GET", &format!("{plugins}/{path}"), "").await;
        let shown: Value = serde_json::from_str(&answer.1).unwrap();
        assert_eq!((answer.0.as_str(), shown), (code, body), "{path}");
    }
    scheduler.stop().await;
}
