//! Metrics of the proxy, and the server for them.

use crate::forward::{BoxError, ResponseBody};
use crate::grpc;
use bytes::Bytes;
use http::{HeaderMap, Response};
use hyper::body::{Body, Frame, SizeHint};
use koord_api::hookserver::Policy;
use koord_app::admin::{Admin, AdminError};
use koord_app::{daemon, metrics};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, exponential_buckets,
};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Interval at which a taken port is tried again: during a hot restart the previous process may hold it.
const RETRY: Duration = Duration::from_secs(1);

/// Label value of a method that is none of [`METHODS`].
pub(crate) const OTHER: &str = "other";

/// Methods of the CRI, version 1: the values of the label `method`, which a client must not add to.
const METHODS: [&str; 43] = [
    "Version",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PodSandboxStatus",
    "ListPodSandbox",
    "StreamPodSandboxes",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ListContainers",
    "StreamContainers",
    "ContainerStatus",
    "UpdateContainerResources",
    "ReopenContainerLog",
    "ExecSync",
    "Exec",
    "Attach",
    "PortForward",
    "ContainerStats",
    "ListContainerStats",
    "StreamContainerStats",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "StreamPodSandboxStats",
    "UpdateRuntimeConfig",
    "Status",
    "CheckpointContainer",
    "CheckpointPod",
    "RestorePod",
    "GetContainerEvents",
    "ListMetricDescriptors",
    "ListPodSandboxMetrics",
    "StreamPodSandboxMetrics",
    "RuntimeConfig",
    "UpdatePodSandboxResources",
    "ListImages",
    "StreamImages",
    "ImageStatus",
    "PullImage",
    "RemoveImage",
    "ImageFsInfo",
];

/// Returns the label value of the CRI method with this gRPC path.
pub(crate) fn method_of(path: &str) -> &'static str {
    let method = path
        .strip_prefix("/runtime.v1.RuntimeService/")
        .or_else(|| path.strip_prefix("/runtime.v1.ImageService/"));
    let listed = METHODS.iter().find(|listed| Some(**listed) == method);
    listed.copied().unwrap_or(OTHER)
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// The runtime processed it.
    Success,
    /// The runtime answered with an error.
    Error,
    /// The proxy refused it: a hook with the policy Fail failed, or the request is too large.
    Refused,
    /// The runtime could not be reached.
    Unavailable,
    /// One of the two sides ended it before there was a result.
    Aborted,
}

impl CallResult {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::Aborted => "aborted",
        }
    }
}

/// Metrics of the proxy. Clones share the values.
#[derive(Debug, Clone)]
pub(crate) struct ProxyMetrics {
    calls: IntCounterVec,
    hook_duration: HistogramVec,
    hook_failures: IntCounterVec,
    pub(crate) hook_servers: IntGauge,
}

impl ProxyMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// They are registered already.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let calls = Opts::new(
            "koord_runtime_proxy_calls_total",
            "Calls of the kubelet, by method and result",
        );
        let duration = HistogramOpts::new(
            "koord_runtime_proxy_hook_duration_seconds",
            "Duration of the calls of hook servers, by hook and result",
        );
        let failures = Opts::new(
            "koord_runtime_proxy_hook_failures_total",
            "Hooks that failed or could not be called, by hook and failure policy: with Ignore the call goes on",
        );
        let servers = IntGauge::new(
            "koord_runtime_proxy_hook_servers",
            "Hook servers that are registered",
        )?;
        // From 0.25 ms to 8 s; a hook that takes longer than --runtime-hook-timeout has failed.
        let duration = duration.buckets(exponential_buckets(0.000_25, 2.0, 16)?);
        metrics::register_process(registry)?;
        Ok(Self {
            calls: metrics::register(registry, IntCounterVec::new(calls, &["method", "result"])?)?,
            hook_duration: metrics::register(
                registry,
                HistogramVec::new(duration, &["hook", "result"])?,
            )?,
            hook_failures: metrics::register(
                registry,
                IntCounterVec::new(failures, &["hook", "policy"])?,
            )?,
            hook_servers: metrics::register(registry, servers)?,
        })
    }

    /// Begins a call, which counts when the return value is dropped.
    pub(crate) fn begin_call(&self, method: &'static str) -> CallMeter {
        CallMeter {
            calls: self.calls.clone(),
            method,
            result: CallResult::Aborted,
        }
    }

    /// Records the call of a hook server.
    pub(crate) fn record_hook(&self, hook: &str, duration: Duration, succeeded: bool) {
        let result = if succeeded { "success" } else { "failed" };
        self.hook_duration
            .with_label_values(&[hook, result])
            .observe(duration.as_secs_f64());
    }

    /// Counts a hook to which a failure policy applies.
    pub(crate) fn record_failure(&self, hook: &str, policy: Policy) {
        self.hook_failures
            .with_label_values(&[hook, policy.name()])
            .inc();
    }
}

/// A call in progress. It counts when it is dropped, as [`CallResult::Aborted`] unless another result is set.
#[derive(Debug)]
pub(crate) struct CallMeter {
    calls: IntCounterVec,
    method: &'static str,
    pub(crate) result: CallResult,
}

impl CallMeter {
    /// Sets the result from the headers or trailers of a gRPC response, if they have the call's status.
    fn read_status(&mut self, map: &HeaderMap) {
        if grpc::has_status(map) {
            self.result = match grpc::is_ok(map) {
                true => CallResult::Success,
                false => CallResult::Error,
            };
        }
    }
}

impl Drop for CallMeter {
    fn drop(&mut self) {
        self.calls
            .with_label_values(&[self.method, self.result.name()])
            .inc();
    }
}

/// Response body of a gRPC call whose result is counted at its end.
#[derive(Debug)]
pub(crate) struct MeteredBody {
    body: ResponseBody,
    /// `None` once the call has counted.
    meter: Option<CallMeter>,
}

impl MeteredBody {
    /// Wraps the response of a call.
    pub(crate) fn wrap(response: Response<ResponseBody>, mut meter: CallMeter) -> Response<Self> {
        let is_decided = meter.result != CallResult::Aborted;
        if !is_decided {
            meter.read_status(response.headers());
        }
        response.map(|body| {
            // A response of headers only has nothing to wait for.
            let meter = (!body.is_end_stream()).then_some(meter);
            Self { body, meter }
        })
    }
}

impl Body for MeteredBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(frame) = &polled {
            let trailers = match frame {
                Some(Ok(frame)) => frame.trailers_ref(),
                _ => None,
            };
            // The status of a response that broke off or was cut off is the proxy's own.
            let is_own = matches!(this.body, ResponseBody::Over);
            if let (Some(meter), Some(trailers), false) = (&mut this.meter, trailers, is_own) {
                meter.read_status(trailers);
            }
            if trailers.is_some() || !matches!(frame, Some(Ok(_))) {
                this.meter = None;
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves `/metrics` and the health endpoints on `address` until `stop`. A port that is taken is tried again:
/// metrics never keep calls from being served.
pub(crate) async fn serve(registry: Registry, address: SocketAddr, stop: CancellationToken) {
    let admin = Admin::new(registry);
    let mut reported = false;
    loop {
        match admin
            .serve(address, daemon::exposure(address), stop.clone())
            .await
        {
            Ok(address) => {
                tracing::info!(%address, "serving metrics");
                return;
            }
            Err(AdminError::Exposed(_)) => return,
            Err(error) if !std::mem::replace(&mut reported, true) => {
                tracing::warn!(%error, "failed to serve metrics, trying again");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_those_of_the_cri() {
        let definitions = include_str!("../../rpc/proto/cri.proto");
        let rpcs = definitions.lines().filter_map(|line| {
            let rest = line.trim_start().strip_prefix("rpc ")?;
            rest.split('(').next()
        });
        assert_eq!(rpcs.collect::<Vec<_>>(), METHODS);
    }

    #[test]
    fn unknown_methods_share_one_label() {
        for (path, method) in [
            ("/runtime.v1.RuntimeService/RunPodSandbox", "RunPodSandbox"),
            ("/runtime.v1.ImageService/PullImage", "PullImage"),
            ("/runtime.v1.RuntimeService/FromTheFuture", OTHER),
            ("/runtime.v1.RuntimeService/RunPodSandbox/x", OTHER),
            ("/other.Service/Status", OTHER),
            ("/", OTHER),
        ] {
            assert_eq!(method_of(path), method, "{path}");
        }
    }
}
