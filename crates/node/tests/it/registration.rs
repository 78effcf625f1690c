use crate::support::{NODE, World};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use koord_app::Clock;
use koord_kube::{Api, patch};
use koord_node::Options;
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn the_machine_becomes_a_node_with_a_lease() {
    let world = World::new().await;
    let node = world.start().await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node_object = nodes.get(NODE).await.unwrap();
    let status = node_object.status.clone().unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!(
        status.capacity.as_ref().unwrap()["cpu"]
            .0
            .parse::<usize>()
            .unwrap()
            >= cpus
    );
    assert!(
        status
            .conditions
            .unwrap()
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True")
    );
    assert_eq!(
        node_object.metadata.labels.unwrap()["kubernetes.io/hostname"],
        NODE
    );
    assert!(
        status
            .node_info
            .unwrap()
            .container_runtime_version
            .starts_with("koord://")
    );
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "kube-node-lease");
    let lease = world
        .until("lease", || async { leases.get_opt(NODE).await.unwrap() })
        .await;
    assert_eq!(lease.spec.unwrap().lease_duration_seconds, Some(40));
    assert_eq!(lease.metadata.owner_references.unwrap()[0].kind, "Node");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_published_by_others_survive_status_reports() {
    let world = World::new().await;
    let options = Options {
        status_interval: Duration::from_millis(20),
        ..world.options()
    };
    let node = world.start_with(options).await;
    let batch = json!({"kubernetes.io/batch-cpu": "1500"});
    let status = json!({"status": {"capacity": batch, "allocatable": batch}});
    patch::merge_node_status(&world.client, NODE, &status)
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(world.client.clone());
    let version = nodes.get(NODE).await.unwrap().metadata.resource_version;
    let later = world
        .until("another report", || async {
            let node = nodes.get(NODE).await.unwrap();
            (node.metadata.resource_version != version).then_some(node)
        })
        .await;
    let status = later.status.unwrap();
    assert_eq!(
        status.allocatable.unwrap()["kubernetes.io/batch-cpu"].0,
        "1500"
    );
    assert_eq!(
        status.capacity.unwrap()["kubernetes.io/batch-cpu"].0,
        "1500"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_address_and_a_used_directory_are_named() {
    let world = World::new().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ctx = koord_app::Context::new();
    let options = Options {
        listen: Some(address),
        ..world.options()
    };
    let error = koord_node::run(options, world.client.clone(), ctx.clone())
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let node = world.start().await;
    let error = koord_node::run(world.options(), world.client.clone(), ctx)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("in use by another process"),
        "{error}"
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn status_is_written_again_while_the_node_is_not_ready() {
    let epoch = "2026-01-01T00:00:00Z".parse().unwrap();
    let world = World::with_clock(Clock::following_tokio(epoch)).await;
    // Without groups: their work does not happen in paused time.
    let options = Options {
        unconfined: true,
        ..world.options()
    };
    let node = world.start_with(options).await;
    let nodes: Api<Node> = Api::all(world.client.clone());
    let ready = |node: &Node| {
        let conditions = node.status.clone().unwrap().conditions.unwrap();
        let ready = conditions.into_iter().find(|c| c.type_ == "Ready").unwrap();
        (ready.status, ready.last_heartbeat_time)
    };
    let first = nodes.get(NODE).await.unwrap();
    assert_eq!(ready(&first).0, "True");
    for _ in 0..2 {
        let before = ready(&nodes.get(NODE).await.unwrap()).1;
        // Nothing is written while the Node is up to date.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let after = ready(&nodes.get(NODE).await.unwrap()).1;
        assert_eq!(before, after);
        let lost = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown",
            "reason": "NodeStatusUnknown"}]}});
        patch::strategic_status(&nodes, NODE, &lost).await.unwrap();
        tokio::time::sleep(Duration::from_secs(11)).await;
        assert_eq!(ready(&nodes.get(NODE).await.unwrap()).0, "True");
    }
    let before = ready(&nodes.get(NODE).await.unwrap()).1;
    tokio::time::sleep(Duration::from_secs(310)).await;
    let after = ready(&nodes.get(NODE).await.unwrap()).1;
    assert_ne!(before, after, "a report is due after five minutes");
    node.stop().await;
}
