//! What the proxy adds to a call: measured against a runtime that runs.

use crate::{Options, RunError, Skip, run};
use koord_app::Context;
use koord_rpc::cri;
use koord_rpc::cri::runtime_service_client::RuntimeServiceClient;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// How many calls are in progress when throughput is measured.
const PARALLEL: usize = 16;

/// Milliseconds that the proxy adds, and calls per second.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Median of creations' calls through the proxy, less the runtime's own.
    pub proxy_added_p50_ms: f64,
    /// The same of the slowest hundredth.
    pub proxy_added_p99_ms: f64,
    /// Median of calls that nobody looks into, less the runtime's own.
    pub proxy_passed_p50_ms: f64,
    /// The same of the slowest hundredth.
    pub proxy_passed_p99_ms: f64,
    /// Calls per second through the proxy, 16 at once.
    pub proxy_calls_per_sec: f64,
    /// Calls per second without it.
    pub direct_calls_per_sec: f64,
}

type Client = RuntimeServiceClient<Channel>;

/// One call of one kind; what it answers does not matter.
async fn call(client: &mut Client, create: bool) -> Duration {
    let begun = Instant::now();
    if create {
        // Of a pod that is not there: all of the proxy's work, and next to none of the runtime's.
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: "koord-bench".to_owned(),
            config: Some(cri::ContainerConfig::default()),
            sandbox_config: Some(cri::PodSandboxConfig::default()),
        };
        drop(client.create_container(request).await);
    } else {
        drop(client.version(cri::VersionRequest::default()).await);
    }
    begun.elapsed()
}

/// Milliseconds at which `share` of all is faster.
fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let at = (times.len() as f64 * share) as usize;
    let time = times.get(at.min(times.len().saturating_sub(1)));
    time.copied().unwrap_or_default().as_secs_f64() * 1000.0
}

async fn added(direct: &mut Client, through: &mut Client, create: bool, calls: usize) -> [f64; 2] {
    let (mut own, mut proxied) = (Vec::new(), Vec::new());
    // In turns, so that what else the machine does hits both.
    for _ in 0..calls {
        own.push(call(direct, create).await);
        proxied.push(call(through, create).await);
    }
    [0.5, 0.99].map(|share| quantile(&mut proxied, share) - quantile(&mut own, share))
}

async fn rate(client: &Client, calls: usize) -> f64 {
    let begun = Instant::now();
    let each = calls / PARALLEL;
    let all = (0..PARALLEL).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move {
            for _ in 0..each {
                call(&mut client, false).await;
            }
        })
    });
    futures::future::join_all(all).await;
    (each * PARALLEL) as f64 / begun.elapsed().as_secs_f64()
}

/// Measures with `calls` calls of each kind against the runtime at the socket `runtime`. The proxy of the
/// measurement has its sockets below `dir`, and no hook server.
///
/// # Errors
///
/// When there is no runtime at `runtime`, or `dir` cannot be written.
pub async fn measure(runtime: &Path, dir: &Path, calls: usize) -> Result<Report, RunError> {
    let options = Options {
        listen: dir.join("proxy.sock"),
        runtime: runtime.to_owned(),
        mode: crate::Mode::Containerd,
        hooks: dir.join("hookserver.d"),
        hook_timeout: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(5),
        skip: Skip {
            key: String::new(),
            value: String::new(),
        },
    };
    let mut direct = RuntimeServiceClient::new(koord_rpc::grpc::connect(runtime));
    let mut through = RuntimeServiceClient::new(koord_rpc::grpc::connect(&options.listen));
    let context = Context::new();
    let stop = context.shutdown.clone();
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let proxy = run(options, context, move || {
        let _ = ready.send(());
    });
    let measuring = async move {
        if is_ready.await.is_err() {
            // The proxy says why.
            return None;
        }
        // Connected and warm.
        added(&mut direct, &mut through, true, calls.min(200)).await;
        let [proxy_added_p50_ms, proxy_added_p99_ms] =
            added(&mut direct, &mut through, true, calls).await;
        let [proxy_passed_p50_ms, proxy_passed_p99_ms] =
            added(&mut direct, &mut through, false, calls).await;
        let direct_calls_per_sec = rate(&direct, calls).await;
        let proxy_calls_per_sec = rate(&through, calls).await;
        stop.cancel();
        Some(Report {
            proxy_added_p50_ms,
            proxy_added_p99_ms,
            proxy_passed_p50_ms,
            proxy_passed_p99_ms,
            proxy_calls_per_sec,
            direct_calls_per_sec,
        })
    };
    let (ended, report) = tokio::join!(proxy, measuring);
    ended?;
    report.ok_or_else(|| RunError::Runtime {
        api: "the CRI v1",
        path: runtime.to_owned(),
        problem: "the proxy ended early".to_owned(),
    })
}
