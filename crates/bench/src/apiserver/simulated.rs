//! Time until thousands of simulated nodes and pods reach their desired state.

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use koord_apiserver::store::{Entry, TableId};
use koord_apiserver::{ApiServer, Config};
use koord_app::{Clock, Context};
use koord_kube::api::PostParams;
use koord_kube::{Api, Client};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const NODES: usize = 5_000;
const PODS: usize = 10_000;
/// Tasks that create pods at the same time.
const WRITERS: usize = 16;
/// Interval between two checks of progress.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for all of them.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Times with all controllers.
#[derive(Debug, Clone, Serialize)]
pub struct SimulatedFigures {
    /// Seconds from the start of the simulation until 5,000 nodes are Ready.
    #[serde(rename = "nodes5kReadySec")]
    nodes: f64,
    /// Seconds from the first create of 10,000 pods on these nodes until all run.
    #[serde(rename = "pods10kRunningSec")]
    pods: f64,
}

/// Measures on a separate server, in memory.
pub async fn run() -> Result<SimulatedFigures> {
    let server = ApiServer::open(Config::memory(Clock::system())).await?;
    server.install_crds(koord_api::crd_values()).await?;
    let client = koord_kube::client::in_process(server.service());
    let context = Context::new();
    let stop = context.shutdown.clone();
    let began = Instant::now();
    let options = koord_sim::Options {
        nodes: NODES,
        ..koord_sim::Options::default()
    };
    let simulation = tokio::spawn(koord_sim::run(options, client.clone(), context));
    wait_for_all(&server, "nodes", NODES, |node| {
        condition(node, "Ready") == Some("True")
    })
    .await?;
    let nodes = began.elapsed().as_secs_f64();
    let began = Instant::now();
    create_pods(&client).await?;
    wait_for_all(&server, "pods", PODS, |pod| {
        pod["status"]["phase"] == "Running"
    })
    .await?;
    let pods = began.elapsed().as_secs_f64();
    stop.cancel();
    simulation.await??;
    server.close().await;
    Ok(SimulatedFigures { nodes, pods })
}

/// Returns the status of a condition of this type.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    let condition = conditions
        .iter()
        .find(|condition| condition["type"] == kind)?;
    condition["status"].as_str()
}

/// Waits until `count` objects of a table are `done`; each is checked until it is.
async fn wait_for_all(
    server: &Arc<ApiServer>,
    plural: &str,
    count: usize,
    done: fn(&Value) -> bool,
) -> Result<()> {
    let table = TableId::new("", plural);
    let mut ready_names: HashSet<String> = HashSet::new();
    let began = Instant::now();
    while ready_names.len() < count {
        if began.elapsed() > TIMEOUT {
            bail!(
                "{} of {count} {plural} after {TIMEOUT:?}",
                ready_names.len()
            );
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        let waiting = |entry: &Entry| !ready_names.contains(&*entry.key.name);
        let page = server
            .store()
            .list(&table, None, None, None, None, &waiting)
            .context("list")?;
        let ready = page.items.iter().filter(|entry| done(&entry.value()));
        let names: Vec<String> = ready.map(|entry| entry.key.name.to_string()).collect();
        ready_names.extend(names);
    }
    Ok(())
}

/// Creates the pods by [`WRITERS`] tasks.
async fn create_pods(client: &Client) -> Result<()> {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        writers.spawn(async move {
            for number in (writer..PODS).step_by(WRITERS) {
                let pod = serde_json::from_value(json!({
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": format!("pod-{number}")},
                    "spec": {
                        "nodeName": format!("sim-{}", number % NODES),
                        "containers": [{
                            "name": "main",
                            "image": "busybox:1",
                            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                        }],
                    },
                }))?;
                pods.create(&PostParams::default(), &pod).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    Ok(())
}
