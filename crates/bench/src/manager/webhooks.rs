//! Pods' AdmissionReviews over HTTPS, at a rate that does not depend on the answers.
//!
//! A pod is due at an instant that was drawn in advance (Poisson arrivals). At that instant a request to
//! `/mutate-pod` is sent, and after its answer one to `/validate-pod` with the mutated pod, as an API server
//! does. The latency of `/mutate-pod` counts from the intended instant, so a stall shows in every pod that it
//! delays. The sending thread requests real-time priority.

use super::objects::{self, ManagerCluster};
use super::process::{Manager, ManagerProgram};
use super::{Args, ManagerCost};
use crate::meter::Window;
use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hdrhistogram::Histogram;
use koord_app::console;
use koord_kube::Client;
use koord_kube::client::Body;
use koord_workload::load::{nanos, new_histogram, sleep_until};
use koord_workload::monotonic_ns;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Different pods.
const PODS: u32 = 1000;
/// Duration of the load before a window, which is not measured.
const WARMUP: Duration = Duration::from_secs(3);
/// Time limit for answers after a window.
const LATE: Duration = Duration::from_secs(15);
/// Largest lag of the generator in a clean window, 99th percentile, microseconds; see [`ManagerCost::is_noisy`] for
/// other limits.
const LAG_US: f64 = 150.0;

/// Latency of one of the webhooks, milliseconds.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Latency {
    p50_ms: f64,
    p90_ms: f64,
    pub(super) p99_ms: f64,
    #[serde(rename = "p999Ms")]
    p999_ms: f64,
    max_ms: f64,
}

impl Latency {
    fn from_histogram(histogram: &Histogram<u64>) -> Self {
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let at = |quantile| ms(histogram.value_at_quantile(quantile));
        Self {
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: ms(histogram.max()),
        }
    }
}

/// Figures of the webhooks.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WebhookFigures {
    /// Pods per second; each is two requests.
    rate: f64,
    profiles: u32,
    quotas: u32,
    /// Bytes of a request, on average.
    review_bytes: usize,
    /// Pods that were due in the window.
    pods: u64,
    /// Pods of these for which one of the two requests was not answered in time.
    failed: u64,
    /// `/mutate-pod`, from the instant at which it was due.
    pub(super) mutate: Latency,
    /// `/validate-pod`, from the answer of the other.
    pub(super) validate: Latency,
    /// Sum of both, from the instant at which the first was due.
    both: Latency,
    /// `/healthz` of the same server at the same rate, just before: the latency of HTTPS and the machine.
    baseline: Latency,
    /// Lag of the generator itself, 99th percentile, microseconds.
    send_lag_p99_us: f64,
    /// True if the generator ran at real-time priority.
    realtime: bool,
    #[serde(flatten)]
    cost: ManagerCost,
    /// Windows that were rejected because the machine was busy with something else.
    rejected: u32,
    /// True if the reported window should have been rejected, too.
    noisy: bool,
}

/// Requests to the two webhooks about one pod.
struct PodReviews {
    mutate: Bytes,
    validate: Bytes,
}

/// Measures.
///
/// # Errors
/// The manager does not start, or a webhook does not apply the profiles.
pub(super) async fn run(
    args: &Args,
    program: &ManagerProgram,
    work: &Path,
) -> Result<WebhookFigures> {
    let work = work.join("webhooks");
    let cluster = ManagerCluster::start(&work).await?;
    cluster.add_profiles(args.profiles).await?;
    cluster.add_quotas(args.quotas).await?;
    cluster.install_webhooks().await?;
    let mut manager = Manager::start(program, &cluster.local.kubeconfig, &work, &[]).await?;
    let reviews: Arc<[PodReviews]> = pod_reviews(&manager.webhooks, args).await?.into();
    let sizes = reviews.iter().map(|reviews| reviews.mutate.len());
    let review_bytes = sizes.sum::<usize>() / reviews.len().max(1);

    let mut rejected = 0;
    loop {
        let seconds = Duration::from_secs(args.seconds);
        let health = load(args.rate, seconds / 4, &manager.webhooks, None).await?;
        let (window, pid) = (Arc::new(Mutex::new(None)), manager.pid());
        let begin = {
            let window = window.clone();
            move || *window.lock() = Window::begin(pid).ok()
        };
        let batch = Some((reviews.clone(), Box::new(begin) as Box<dyn FnOnce() + Send>));
        let result = load(args.rate, seconds, &manager.webhooks, batch).await?;
        manager.check_running()?;
        let window = window.lock().take().context("the window never began")?;
        let cost = ManagerCost::from(window.usage()?);
        let send_lag_p99_us = result.lag.value_at_quantile(0.99) as f64 / 1000.0;
        let noisy = cost.is_noisy() || send_lag_p99_us > LAG_US;
        if noisy && rejected < args.repeats {
            rejected += 1;
            console::warn(format_args!(
                "a window is repeated: others {:.1} %, steal {:.1} %, generator {send_lag_p99_us:.0} µs late",
                cost.others_percent, cost.steal_percent
            ));
            continue;
        }
        return Ok(WebhookFigures {
            rate: args.rate,
            profiles: args.profiles,
            quotas: args.quotas,
            review_bytes,
            pods: result.due,
            failed: result.due.saturating_sub(result.both.len()),
            mutate: Latency::from_histogram(&result.first),
            validate: Latency::from_histogram(&result.second),
            both: Latency::from_histogram(&result.both),
            baseline: Latency::from_histogram(&health.first),
            send_lag_p99_us,
            realtime: result.realtime,
            cost,
            rejected,
            noisy,
        });
    }
}

/// Returns the requests about every pod. Each is sent once to check the result: the profile's class and batch
/// resources.
async fn pod_reviews(webhooks: &Client, args: &Args) -> Result<Vec<PodReviews>> {
    let mut all = Vec::new();
    for (index, pod) in objects::new_pods(PODS, args).into_iter().enumerate() {
        let uid = format!("00000000-0000-4000-8000-{index:012}");
        let mutate = Bytes::from(objects::review(&uid, &pod).to_string());
        let answer = send_review(webhooks, "/mutate-pod?timeout=10s", mutate.clone()).await?;
        let changed = patched(&pod, &answer)
            .with_context(|| format!("/mutate-pod: {}", String::from_utf8_lossy(&answer)))?;
        let requests = &changed["spec"]["containers"][0]["resources"]["requests"];
        ensure!(
            changed["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
                && requests["kubernetes.io/batch-cpu"].is_string(),
            "/mutate-pod did not make a batch pod: {changed}"
        );
        let validate = Bytes::from(objects::review(&uid, &changed).to_string());
        let answer = send_review(webhooks, "/validate-pod?timeout=10s", validate.clone()).await?;
        let verdict: Value = serde_json::from_slice(&answer).context("/validate-pod")?;
        ensure!(
            verdict["response"]["allowed"] == true,
            "/validate-pod: {verdict}"
        );
        all.push(PodReviews { mutate, validate });
    }
    Ok(all)
}

/// Applies the patch of an answer to the pod of its request.
fn patched(pod: &Value, answer: &[u8]) -> Result<Value> {
    let answer: Value = serde_json::from_slice(answer)?;
    let patch = answer["response"]["patch"].as_str().context("no patch")?;
    let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch)?)?;
    let mut changed = pod.clone();
    json_patch::patch(&mut changed, &patch)?;
    Ok(changed)
}

/// Sends a request and returns the body of the answer.
async fn send_review(client: &Client, path: &str, body: Bytes) -> Result<Vec<u8>> {
    let request = if body.is_empty() {
        http::Request::get(path)
    } else {
        http::Request::post(path).header("content-type", "application/json")
    };
    let response = client.send(request.body(Body::from(body))?).await?;
    let status = response.status();
    let bytes = response.into_body().collect_bytes().await?;
    if !status.is_success() {
        bail!("{path}: {status}: {}", String::from_utf8_lossy(&bytes));
    }
    Ok(bytes.to_vec())
}

/// Measurements of the generator in its window.
struct GeneratorResult {
    due: u64,
    first: Histogram<u64>,
    second: Histogram<u64>,
    both: Histogram<u64>,
    lag: Histogram<u64>,
    realtime: bool,
}

/// Requests to send, and a callback for the begin of the window.
type RequestBatch = (Arc<[PodReviews]>, Box<dyn FnOnce() + Send>);

/// Sends the requests for `seconds` after [`WARMUP`]; without requests, gets `/healthz`.
async fn load(
    rate: f64,
    seconds: Duration,
    client: &Client,
    batch: Option<RequestBatch>,
) -> Result<GeneratorResult> {
    // A client belongs to the runtime that its connections live in.
    let (client, runtime) = (client.clone(), Handle::current());
    let (sender, receiver) = oneshot::channel();
    // A separate thread: its priority ends with it.
    std::thread::spawn(move || {
        // A receiver that no longer waits needs no answer.
        let _ = sender.send(generate(rate, seconds, &client, batch, &runtime));
    });
    receiver.await.context("the generator")?
}

/// Sends the requests at their due times from this thread, and collects their latencies.
fn generate(
    rate: f64,
    seconds: Duration,
    client: &Client,
    batch: Option<RequestBatch>,
    runtime: &Handle,
) -> Result<GeneratorResult> {
    let realtime = koord_host::sched::set_fifo(50).is_ok();
    let (reviews, mut begin) = batch.unzip();
    let result = Arc::new(Mutex::new(GeneratorResult {
        due: 0,
        first: new_histogram(),
        second: new_histogram(),
        both: new_histogram(),
        lag: new_histogram(),
        realtime,
    }));
    let start = monotonic_ns() + 50_000_000;
    let from = start + nanos(WARMUP.as_secs_f64());
    let end = from + nanos(seconds.as_secs_f64());
    let mut random = fastrand::Rng::with_seed(1);
    let mut due = start;
    let mut tasks = JoinSet::new();
    let mut at = 0;
    loop {
        due += nanos(-(1.0 - random.f64()).ln() / rate.max(0.001));
        if due >= end {
            break;
        }
        if due >= from
            && let Some(begin) = begin.take()
        {
            begin();
        }
        sleep_until(due);
        let counts = due >= from;
        if counts {
            let mut result = result.lock();
            result.due += 1;
            result
                .lag
                .saturating_record(monotonic_ns().saturating_sub(due).max(1));
        }
        let (client, reviews, result) = (client.clone(), reviews.clone(), result.clone());
        let index = at;
        at += 1;
        tasks.spawn_on(
            async move {
                let pod = reviews
                    .as_ref()
                    .and_then(|all| all.get(index % all.len().max(1)));
                let (path, body) = match pod {
                    Some(pod) => ("/mutate-pod?timeout=10s", pod.mutate.clone()),
                    None => ("/healthz", Bytes::new()),
                };
                send_review(&client, path, body).await?;
                let first = monotonic_ns();
                let mut last = first;
                if let Some(pod) = pod {
                    send_review(&client, "/validate-pod?timeout=10s", pod.validate.clone()).await?;
                    last = monotonic_ns();
                }
                if counts {
                    let mut result = result.lock();
                    let took = |from: u64, to: u64| to.saturating_sub(from).max(1);
                    result.first.saturating_record(took(due, first));
                    result.second.saturating_record(took(first, last));
                    result.both.saturating_record(took(due, last));
                }
                anyhow::Ok(())
            },
            runtime,
        );
        while let Some(done) = tasks.try_join_next() {
            report(done);
        }
    }
    runtime.block_on(async {
        let last_answers = async {
            while let Some(done) = tasks.join_next().await {
                report(done);
            }
        };
        // Later answers count as failed.
        let _ = tokio::time::timeout(LATE, last_answers).await;
        tasks.shutdown().await;
    });
    let result = Arc::into_inner(result).context("the generator still runs")?;
    Ok(result.into_inner())
}

/// Logs the error of a pod that did not get both answers.
fn report(done: Result<Result<()>, tokio::task::JoinError>) {
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = format!("{error:#}"), "failed to get an answer");
        }
        Err(error) => tracing::warn!(%error, "request task failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patched_applies_the_patch_of_an_answer() {
        let patch =
            STANDARD.encode(r#"[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]"#);
        let answer = json!({"response": {"allowed": true, "patch": patch}}).to_string();
        let changed = patched(&json!({"metadata": {}}), answer.as_bytes()).unwrap();
        assert_eq!(changed, json!({"metadata": {"labels": {"a": "b"}}}));
        let nothing = json!({"response": {"allowed": true}}).to_string();
        assert!(patched(&json!({}), nothing.as_bytes()).is_err());
    }
}
