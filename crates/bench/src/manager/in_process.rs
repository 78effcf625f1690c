//! Cost of the webhooks when the API server calls them in its own process, as in `koord up`.

use super::Args;
use super::objects::{self, ManagerCluster};
use anyhow::{Context as _, Result, ensure};
use koord_app::Context;
use koord_cluster::webhooks;
use koord_workload::statistics::time_percentile;
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Turns of each server, after one that warms it up.
const ROUNDS: usize = 10;
/// Different pods; each is sent once in a turn.
const PODS: u32 = 1000;

/// Figures of webhooks in process.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InProcessFigures {
    profiles: u32,
    quotas: u32,
    /// Median of the creations of a pod by one task, as dry runs, without webhooks, microseconds.
    without_us: f64,
    /// Median of the creations of a pod on a server that calls all webhooks of pods, microseconds.
    with_us: f64,
    /// The difference.
    pub(super) added_us: f64,
    /// The difference of the medians in each turn.
    added_each_us: Vec<f64>,
}

/// Measures: two servers with the same objects, in turns.
///
/// # Errors
/// A server does not start, or the webhooks do not apply the profiles.
pub(super) async fn run(args: &Args) -> Result<InProcessFigures> {
    let dirs = [tempfile::tempdir()?, tempfile::tempdir()?];
    let [without, with] = &dirs;
    let plain = cluster(args, without.path()).await?;
    let asking = cluster(args, with.path()).await?;
    let mut options = koord_manager::Options::default();
    options.webhooks =
        webhooks::connect(&asking.local.server, &asking.local.client, &options.gates).await?;
    let context = Context::new();
    let stop = context.shutdown.clone();
    let manager = tokio::spawn(koord_manager::run(
        options,
        asking.local.client.clone(),
        context,
    ));
    let pods: Vec<String> = objects::new_pods(PODS, args)
        .into_iter()
        .map(|mut pod| {
            if let Some(metadata) = pod["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
            pod.to_string()
        })
        .collect();
    let first = pods.first().context("no pods")?;
    let created: Value = serde_json::from_str(&create(&asking, first).await?)?;
    ensure!(
        created["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE",
        "the webhooks did not make a batch pod: {created}"
    );

    let mut all: [Vec<Duration>; 2] = Default::default();
    let mut added_each_us = Vec::new();
    for round in 0..=ROUNDS {
        let mut medians = [0.0; 2];
        for ((cluster, all), median) in [&plain, &asking]
            .into_iter()
            .zip(&mut all)
            .zip(&mut medians)
        {
            let mut took = Vec::with_capacity(pods.len());
            for pod in &pods {
                let began = Instant::now();
                create(cluster, pod).await?;
                took.push(began.elapsed());
            }
            *median = median_us(&mut took);
            if round > 0 {
                all.extend(took);
            }
        }
        if round > 0 {
            added_each_us.push(medians[1] - medians[0]);
        }
    }
    stop.cancel();
    manager.await??;
    let [without_us, with_us] = all.each_mut().map(|took| median_us(took));
    Ok(InProcessFigures {
        profiles: args.profiles,
        quotas: args.quotas,
        without_us,
        with_us,
        added_us: with_us - without_us,
        added_each_us,
    })
}

async fn cluster(args: &Args, work: &std::path::Path) -> Result<ManagerCluster> {
    let cluster = ManagerCluster::start(work).await?;
    cluster.add_profiles(args.profiles).await?;
    cluster.add_quotas(args.quotas).await?;
    Ok(cluster)
}

async fn create(cluster: &ManagerCluster, pod: &str) -> Result<String> {
    let path = format!(
        "/api/v1/namespaces/{}/pods?dryRun=All",
        crate::koordlet::objects::NAMESPACE
    );
    let post = http::Request::post(path).header("content-type", "application/json");
    let response = cluster
        .local
        .client
        .request_text(post.body(pod.as_bytes().to_vec())?);
    response.await.context("failed to create a pod")
}

fn median_us(took: &mut [Duration]) -> f64 {
    time_percentile(took, 50).as_secs_f64() * 1e6
}
