//! Tests of every replica, whichever CRDs are installed and whether it leads or not.

use crate::cluster::Cluster;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use koord_api::slo::{NodeMetric, NodeSLO};
use koord_app::Context;
use koord_host::testing::poll_until;
use koord_kube::api::PostParams;
use koord_kube::client::{ClientOptions, from_kubeconfig};
use koord_kube::lease::Election;
use koord_kube::{Api, Client};
use koord_manager::{LEASE_NAME, Options};
use serde_json::json;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test(start_paused = true)]
async fn missing_kind_does_not_block_other_controllers() {
    let cluster = Cluster::start().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let name = "nodeslos.slo.koordinator.sh";
    let mut definition = definitions.get(name).await.unwrap();
    definitions.delete(name, &Default::default()).await.unwrap();
    cluster.add_node("n1", json!({}), "10", "100G").await;
    let (address, options) = with_health(None).await;
    cluster.manager(options);
    let mut metrics = cluster.watch::<NodeMetric>();
    metrics.until("a NodeMetric", |_| Some(())).await;
    until_ready(address).await;

    let mut watch = cluster.watch::<CustomResourceDefinition>();
    while definitions.get_opt(name).await.unwrap().is_some() {
        watch.changed().await;
    }
    definition.metadata.resource_version = None;
    definition.metadata.uid = None;
    definition.status = None;
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
    let mut slos = cluster.watch::<NodeSLO>();
    slos.until("a NodeSLO, once there can be one", |_| Some(()))
        .await;
}

#[tokio::test(start_paused = true)]
async fn standby_is_ready_once_in_sync() {
    let cluster = Cluster::start().await;
    let start = async |identity: &str, client| {
        let election = Election::new("koordinator-system", LEASE_NAME, identity);
        let (address, options) = with_health(Some(election)).await;
        let ctx = Context::with_clock(cluster.ctx.clock.clone());
        tokio::spawn(koord_manager::run(options, client, ctx.clone()));
        (address, ctx)
    };
    let (leader, leader_ctx) = start("first", cluster.limited.clone()).await;
    until_ready(leader).await;
    let (standby, standby_ctx) = start("second", cluster.limited.clone()).await;
    until_ready(standby).await;
    let text = koord_app::metrics::encode(&standby_ctx.metrics).unwrap();
    assert!(text.contains("koordinator_manager_is_leader 0"));

    let (lost, lost_ctx) = start("third", unreachable_client().await).await;
    let answer = until_answer(lost, "HTTP/1.1 500").await;
    for kind in ["configmaps", "nodes", "pods", "nodemetrics", "nodeslos"] {
        let missing = format!("{kind} are not in sync yet");
        assert!(answer.contains(&missing), "{answer}");
    }
    for ctx in [leader_ctx, standby_ctx, lost_ctx] {
        ctx.shutdown.cancel();
    }
}

/// Returns a client of an API server that does not respond.
async fn unreachable_client() -> Client {
    let path = std::env::temp_dir().join(format!("koord-manager-it-{}", std::process::id()));
    let config = json!({
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    });
    std::fs::write(&path, config.to_string()).unwrap();
    let client = from_kubeconfig(Some(&path), &ClientOptions::default()).await;
    std::fs::remove_file(&path).unwrap();
    client.unwrap()
}

/// Returns options with a free address for health checks.
async fn with_health(election: Option<Election>) -> (SocketAddr, Options) {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    let options = Options {
        election,
        health_address: Some(address),
        ..Options::default()
    };
    (address, options)
}

async fn until_ready(address: SocketAddr) {
    until_answer(address, "HTTP/1.1 200").await;
}

/// Polls `/readyz` until the response starts with `start`.
async fn until_answer(address: SocketAddr, start: &str) -> String {
    let answer = async || readyz(address).await.filter(|it| it.starts_with(start));
    // There is no deadline: paused time advances while the socket's response is on its way.
    poll_until(answer).await
}

async fn readyz(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}
