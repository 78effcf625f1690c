//! Gangs against the embedded API server.

use crate::api::{TestCluster, allocatable};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use koord_api::scheduling::{ClusterNetworkTopology, PodGroup};
use koord_kube::Api;
use koord_kube::api::{ListParams, Patch, PatchParams, PostParams};
use koord_scheduler::config::Configuration;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

impl TestCluster {
    async fn member(&self, name: &str, group: &str, more: Value) {
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "default",
                "labels": {"pod-group.scheduling.sigs.k8s.io": group},
                "ownerReferences": [{
                    "apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u"
                }],
            },
            "spec": {
                "schedulerName": "koord-scheduler",
                "containers": [{"name": "c", "image": "i", "resources": {
                    "requests": {"cpu": "1"}, "limits": {"cpu": "1"}
                }}]
            }
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            pod["spec"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let created = self.pods().create(&PostParams::default(), &pod).await;
        created.unwrap();
    }

    async fn pod_group(&self, name: &str, min: i32) {
        let group: PodGroup = serde_json::from_value(json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"minMember": min}
        }))
        .unwrap();
        let api: Api<PodGroup> = Api::namespaced(self.client.clone(), "default");
        api.create(&PostParams::default(), &group).await.unwrap();
    }

    /// Waits until the PodGroup has this phase, and returns its status.
    async fn phase(&self, wanted: &str) -> Value {
        self.until(wanted, |group: &PodGroup| {
            let status = serde_json::to_value(group.status.as_ref()?).ok()?;
            (status["phase"] == *wanted).then_some(status)
        })
        .await
    }

    async fn all_bound(&self, names: &[&str]) -> Vec<Pod> {
        let mut missing: BTreeSet<&str> = names.iter().copied().collect();
        let mut pods = Vec::new();
        self.until("all are bound", |pod: &Pod| {
            let bound = pod.spec.as_ref()?.node_name.is_some();
            if bound && missing.remove(pod.metadata.name.as_deref()?) {
                pods.push(pod.clone());
            }
            missing.is_empty().then_some(())
        })
        .await;
        pods
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_gang_updates_its_pod_group_status() {
    let cluster = TestCluster::start().await;
    cluster.node("small", allocatable("2"), json!([])).await;
    let scheduler = cluster.schedule(|_| {});
    let names = ["a", "b", "c"];
    for name in names {
        cluster.member(name, "gang", json!({})).await;
    }
    // The PodGroup is created after its pods.
    cluster.pod_group("gang", 3).await;
    let (mut own_words, mut of_the_gang) = (0, 0);
    for name in names {
        let (reason, message) = cluster
            .refused(name, |text| {
                text.contains("GangGroup") || text.contains("Insufficient")
            })
            .await;
        assert_eq!(reason, "Unschedulable");
        let own = "0/1 nodes are available: 1 Insufficient cpu.";
        if message.starts_with(own) {
            own_words += 1;
        } else {
            of_the_gang += 1;
            let opening = "0/1 nodes are available: 1 GangGroup \"default/gang\" gets rejected due \
                           to member Pod \"default/";
            let end = format!("is unschedulable with reason \"{own}\", alreadyWaitForBound: 2.");
            assert!(
                message.starts_with(opening) && message.contains(&end),
                "{message}"
            );
        }
    }
    assert!(
        own_words > 0 && of_the_gang > 0,
        "{own_words} {of_the_gang}"
    );
    let status = cluster.phase("Scheduling").await;
    assert_eq!(status["occupiedBy"], "default/train");
    assert!(status["scheduleStartTime"].is_string(), "{status}");

    cluster.node("large", allocatable("8"), json!([])).await;
    let pods = cluster.all_bound(&names).await;
    for pod in pods {
        let annotations = pod.metadata.annotations.unwrap();
        let count = "internal.scheduling.koordinator.sh/bind-gang-member-count";
        assert_eq!(annotations[count], "3");
    }
    let status = cluster.phase("Scheduled").await;
    assert_eq!(status["scheduled"], 3);
    for name in names {
        let running = json!({"status": {"phase": "Running"}});
        let params = PatchParams::default();
        let patched = cluster
            .pods()
            .patch_status(name, &params, &Patch::Merge(&running))
            .await;
        patched.unwrap();
    }
    let status = cluster.phase("Running").await;
    assert!(status["running"].as_i64() >= Some(3), "{status}");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_completes_partially_bound_gang() {
    let cluster = TestCluster::start().await;
    cluster.node("n", allocatable("4"), json!([])).await;
    cluster.pod_group("gang", 3).await;
    // The previous leader bound one of three.
    cluster.member("a", "gang", json!({"nodeName": "n"})).await;
    cluster.member("b", "gang", json!({})).await;
    cluster.member("c", "gang", json!({})).await;
    let scheduler = cluster.schedule(|_| {});
    cluster.all_bound(&["a", "b", "c"]).await;
    let status = cluster.phase("Scheduled").await;
    assert_eq!(status["scheduled"], 3);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_is_placed_by_network_topology() {
    let cluster = TestCluster::start().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    // Only the second rack has enough for three.
    for (name, rack, cpu) in [("a", "r1", "2"), ("b", "r2", "2"), ("c", "r2", "1")] {
        cluster.node(name, allocatable(cpu), json!([])).await;
        let labels = json!({"metadata": {"labels": {"example.com/rack": rack}}});
        let patch = Patch::Merge(&labels);
        nodes
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {"enabled": [{"name": "Coscheduling"}]}},
            "pluginConfig": [{"name": "Coscheduling", "args": {"awareNetworkTopology": true}}]
        }]
    });
    let scheduler = cluster.schedule(|options| {
        options.build.network_topology = true;
        options.config = Some(Configuration::parse(&config.to_string()).unwrap());
    });
    let spec = json!({"gatherStrategy": [{"layer": "Rack", "strategy": "MustGather"}]});
    let group: PodGroup = serde_json::from_value(json!({
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": "default", "annotations": {
            "gang.scheduling.koordinator.sh/network-topology-spec": spec.to_string(),
        }},
        "spec": {"minMember": 3}
    }))
    .unwrap();
    let groups: Api<PodGroup> = Api::namespaced(cluster.client.clone(), "default");
    groups.create(&PostParams::default(), &group).await.unwrap();
    let names = ["x", "y", "z"];
    for name in names {
        cluster.member(name, "gang", json!({})).await;
    }
    let waits = |text: &str| text.contains("no cluster network topology");
    cluster.refused("x", waits).await;

    let topology: ClusterNetworkTopology = serde_json::from_value(json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "ClusterNetworkTopology",
        "metadata": {"name": "default"},
        "spec": {"networkTopologySpec": [
            {"topologyLayer": "Rack", "labelKey": ["example.com/rack"]},
            {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "Rack"},
        ]}
    }))
    .unwrap();
    let api: Api<ClusterNetworkTopology> = Api::all(cluster.client.clone());
    api.create(&PostParams::default(), &topology).await.unwrap();
    let pods = cluster.all_bound(&names).await;
    let on = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.clone().unwrap();
    let mut on: Vec<String> = pods.iter().map(on).collect();
    on.sort_unstable();
    assert_eq!(on, ["b", "b", "c"]);
    let status = cluster
        .until("a status", |topology: &ClusterNetworkTopology| {
            let status = topology.status.as_ref()?;
            serde_json::to_value(status).ok()
        })
        .await;
    let rack = |name: &str, nodes: i32| {
        json!({
            "topologyInfo": {"topologyLayer": "Rack", "topologyName": name},
            "parentTopologyInfo": {"topologyLayer": "ClusterTopologyLayer", "topologyName": ""},
            "childTopologyLayer": "NodeTopologyLayer", "nodeNum": nodes,
        })
    };
    let cluster_layer = json!({
        "topologyInfo": {"topologyLayer": "ClusterTopologyLayer", "topologyName": ""},
        "childTopologyLayer": "Rack", "childTopologyNames": ["r1", "r2"], "nodeNum": 3,
    });
    let expected = json!([cluster_layer, rack("r1", 1), rack("r2", 2)]);
    assert_eq!(status["detailStatus"], expected);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_preempts_on_several_nodes_or_not_at_all() {
    let cluster = TestCluster::start().await;
    for name in ["n1", "n2", "n3"] {
        cluster.node(name, allocatable("2"), json!([])).await;
    }
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {
                "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                // Like in upstream's sample, it runs before the plugins that preempt for single pods.
                "postFilter": {
                    "disabled": [{"name": "*"}],
                    "enabled": [{"name": "Coscheduling"}, {"name": "DefaultPreemption"}]
                }
            },
            "pluginConfig": [{"name": "Coscheduling", "args": {"enablePreemption": true}}]
        }]
    });
    let scheduler = cluster.schedule(|options| {
        options.config = Some(Configuration::parse(&config.to_string()).unwrap());
    });
    for (name, priority) in [("little", 1), ("much", 1000)] {
        let class = json!({"metadata": {"name": name}, "value": priority});
        let class: PriorityClass = serde_json::from_value(class).unwrap();
        let api: Api<PriorityClass> = Api::all(cluster.client.clone());
        api.create(&PostParams::default(), &class).await.unwrap();
    }
    let pod_of = |class: &str, more: Value| {
        let mut spec = json!({"priorityClassName": class, "terminationGracePeriodSeconds": 0});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec
    };
    let cores = json!([{"name": "c", "image": "i", "resources": {
        "requests": {"cpu": "2"}, "limits": {"cpu": "2"}
    }}]);
    let cores = json!({"containers": cores});
    cluster.pod_group("web", 1).await;
    for name in ["w1", "w2", "w3"] {
        cluster
            .member(name, "web", pod_of("little", cores.clone()))
            .await;
        cluster.bound(name).await;
    }
    // Four do not fit, whichever pods are evicted.
    cluster.pod_group("large", 4).await;
    for name in ["l1", "l2", "l3", "l4"] {
        cluster
            .member(name, "large", pod_of("much", cores.clone()))
            .await;
    }
    let mut conditions = Vec::new();
    for name in ["l1", "l2", "l3", "l4"] {
        let (_, text) = cluster
            .refused(name, |text| text.contains(". preemption: "))
            .await;
        conditions.push((name, text));
    }
    // One member failed, whichever it was; the conditions of the others report its result.
    let message = "0/3 nodes are available: 3 Insufficient cpu.";
    let own_message = format!("preemption: {message}");
    let failed: Vec<&str> = conditions
        .iter()
        .filter(|(_, text)| text.ends_with(&own_message))
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(failed.len(), 1, "{conditions:?}");
    let group_message = format!(
        "preemption: preemption already attempted by default/{} with message {message}",
        failed[0]
    );
    let other_members = conditions
        .iter()
        .filter(|(_, text)| text.ends_with(&group_message));
    assert_eq!(other_members.count(), 3, "{conditions:?}");
    for name in ["w1", "w2", "w3"] {
        let pod = cluster.pods().get(name).await.unwrap();
        assert!(pod.metadata.deletion_timestamp.is_none(), "{name} stays");
    }
    // Two fit once the victims are deleted.
    let hold = async |name: &str, by: Value| {
        let finalizers = json!({"metadata": {"finalizers": by}});
        let patch = Patch::Merge(&finalizers);
        let (pods, params) = (cluster.pods(), PatchParams::default());
        pods.patch(name, &params, &patch).await.unwrap();
    };
    for name in ["w1", "w2", "w3"] {
        hold(name, json!(["example.com/hold"])).await;
    }
    cluster.pod_group("gang", 2).await;
    for name in ["a", "b"] {
        cluster
            .member(name, "gang", pod_of("much", cores.clone()))
            .await;
    }
    // The member that failed first, and the one after the preemption: both get a nominated node and are bound
    // there.
    let mut promised = BTreeMap::new();
    cluster
        .until("two promises", |pod: &Pod| {
            let node = pod.status.as_ref()?.nominated_node_name.clone()?;
            promised.insert(pod.metadata.name.clone()?, node);
            (promised.len() == 2).then_some(())
        })
        .await;
    let nodes: BTreeSet<&String> = promised.values().collect();
    assert_eq!(nodes.len(), 2, "{promised:?}");
    for name in ["w1", "w2", "w3"] {
        hold(name, Value::Null).await;
    }
    for pod in cluster.all_bound(&["a", "b"]).await {
        let node = pod.spec.as_ref().unwrap().node_name.as_ref();
        let name = pod.metadata.name.unwrap();
        assert_eq!(node, promised.get(&name), "{name}");
    }
    let pods = cluster.pods().list(&ListParams::default()).await.unwrap();
    let names_left = pods.iter().filter_map(|pod| pod.metadata.name.as_deref());
    let remaining: Vec<&str> = names_left.filter(|name| name.starts_with('w')).collect();
    assert_eq!(remaining.len(), 1, "{remaining:?}");
    let names = ["w1", "w2", "w3"];
    for deleted in names.iter().filter(|name| **name != remaining[0]) {
        let event = cluster.event("Preempted", deleted).await;
        assert!(event.starts_with("Preempted by pod "), "{event}");
    }
    scheduler.stop().await;
}
