//! The metrics `rest_client_*` of client-go.

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, header};
use http_body::Body as _;
use koord_app::metrics::register_first;
use kube::client::Body;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, exponential_buckets};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// The metrics of all clients of a process.
#[derive(Debug, Clone)]
pub struct RestMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    waits: HistogramVec,
    retries: IntCounterVec,
    sent: HistogramVec,
    received: HistogramVec,
}

impl RestMetrics {
    /// Registers the metrics. Those that `registry` already has are not registered again.
    ///
    /// # Errors
    ///
    /// Fails if the definition of a metric is wrong, which the tests would detect.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let times = vec![
            0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
        ];
        // 256 B, 512 B, 1 KiB, 4 KiB, ... 16 MiB.
        let sizes: Vec<f64> = [64.0, 256.0, 512.0]
            .into_iter()
            .chain(exponential_buckets(1024.0, 4.0, 8)?)
            .collect();
        let histograms = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, format!("[ALPHA] {help}"));
            HistogramVec::new(options.buckets(buckets.to_vec()), &["verb", "host"])
                .and_then(|metric| register_first(registry, metric))
        };
        let counters = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, format!("[ALPHA] {help}")), labels)
                .and_then(|metric| register_first(registry, metric))
        };
        Ok(Self {
            requests: counters(
                "rest_client_requests_total",
                "Requests to the API server, by the code of the response.",
                &["code", "method", "host"],
            )?,
            seconds: histograms(
                "rest_client_request_duration_seconds",
                "Time from sending a request to the head of its response.",
                &times,
            )?,
            waits: histograms(
                "rest_client_rate_limiter_duration_seconds",
                "Time that a request waited for the rate limit of the client.",
                &times,
            )?,
            retries: counters(
                "rest_client_request_retries_total",
                "Requests sent again because the server requested it.",
                &["code", "verb", "host"],
            )?,
            sent: histograms(
                "rest_client_request_size_bytes",
                "Size of the bodies of requests.",
                &sizes,
            )?,
            received: histograms(
                "rest_client_response_size_bytes",
                "Size of the bodies of responses with a Content-Length.",
                &sizes,
            )?,
        })
    }

    /// Removes all series.
    pub fn reset(&self) {
        self.requests.reset();
        self.retries.reset();
        for histograms in [&self.seconds, &self.waits, &self.sent, &self.received] {
            histograms.reset();
        }
    }
}

/// The metrics of the client of one API server, with its host; `None` if requests are not measured.
#[derive(Debug, Clone)]
pub(super) struct RequestMetrics(pub(super) Option<Arc<(RestMetrics, String)>>);

/// Extension of a request: the time when it was passed to the client.
#[derive(Debug, Clone, Copy)]
struct RequestStart(Instant);

impl RequestMetrics {
    /// Stores the current time in the request `head`, from which the wait for the rate limit is measured.
    pub(super) fn mark_start(&self, head: &mut http::request::Parts) {
        if self.0.is_some() {
            head.extensions.insert(RequestStart(Instant::now()));
        }
    }

    /// Counts that a request is sent again because of a response with `code`.
    pub(super) fn count_retry(&self, head: &http::request::Parts, code: http::StatusCode) {
        if let Some((metrics, host)) = self.0.as_deref() {
            metrics
                .retries
                .with_label_values(&[code.as_str(), head.method.as_str(), host])
                .inc();
        }
    }
}

impl<S> Layer<S> for RequestMetrics {
    type Service = InstrumentedService<S>;

    fn layer(&self, inner: S) -> InstrumentedService<S> {
        InstrumentedService {
            inner,
            measure: self.clone(),
        }
    }
}

/// Measures the requests that reach the transport.
#[derive(Debug, Clone)]
pub(super) struct InstrumentedService<S> {
    inner: S,
    measure: RequestMetrics,
}

impl<S, B> Service<Request<Body>> for InstrumentedService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(measure) = self.measure.0.clone() else {
            return self.inner.call(request).boxed();
        };
        let started = Instant::now();
        let method = request.method().clone();
        let handed_over = request.extensions().get::<RequestStart>().copied();
        let size = request.body().size_hint().exact();
        let answer = self.inner.call(request);
        async move {
            let (metrics, host) = &*measure;
            let labels = [method.as_str(), host];
            if let Some(RequestStart(handed_over)) = handed_over {
                let waited = started.duration_since(handed_over).as_secs_f64();
                metrics.waits.with_label_values(&labels).observe(waited);
            }
            #[allow(clippy::cast_precision_loss, reason = "sizes of bodies")]
            if let Some(size) = size {
                metrics.sent.with_label_values(&labels).observe(size as f64);
            }
            let answer = answer.await;
            metrics
                .seconds
                .with_label_values(&labels)
                .observe(started.elapsed().as_secs_f64());
            let code = match &answer {
                Ok(answer) => answer.status().as_str().to_owned(),
                Err(_) => "<error>".to_owned(),
            };
            metrics
                .requests
                .with_label_values(&[code.as_str(), method.as_str(), host])
                .inc();
            let length = answer
                .as_ref()
                .ok()
                .and_then(|answer| answer.headers().get(header::CONTENT_LENGTH))
                .and_then(|length| length.to_str().ok()?.parse().ok());
            if let Some(length) = length {
                metrics.received.with_label_values(&labels).observe(length);
            }
            answer
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use std::time::Duration;
    use tower::{ServiceExt, service_fn};

    #[tokio::test(start_paused = true)]
    async fn requests_are_measured_with_the_metrics_of_client_go() {
        let registry = Registry::new();
        let metrics = RestMetrics::register(&registry).unwrap();
        let measure = RequestMetrics(Some(Arc::new((metrics.clone(), "api:6443".to_owned()))));
        let mut client = measure.layer(service_fn(async |request: Request<Body>| {
            tokio::time::sleep(Duration::from_secs(3)).await;
            if request.uri().path() == "/broken" {
                return Err(BoxError::from("no answer"));
            }
            let mut answer = Response::new(());
            let length = HeaderValue::from_static("700");
            answer.headers_mut().insert(header::CONTENT_LENGTH, length);
            Ok(answer)
        }));
        for path in ["/ok", "/broken"] {
            let request = Request::post(path).body(Body::from(vec![7; 100])).unwrap();
            let (mut head, body) = request.into_parts();
            measure.mark_start(&mut head);
            tokio::time::advance(Duration::from_millis(600)).await;
            measure.count_retry(&head, http::StatusCode::TOO_MANY_REQUESTS);
            let request = Request::from_parts(head, body);
            let _ = client.ready().await.unwrap().call(request).await;
        }
        let text = koord_app::metrics::encode(&registry).unwrap();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"api:6443\",method=\"POST\"} 1",
            "rest_client_requests_total{code=\"<error>\",host=\"api:6443\",method=\"POST\"} 1",
            "rest_client_request_retries_total{code=\"429\",host=\"api:6443\",verb=\"POST\"} 2",
            "rest_client_request_duration_seconds_bucket{host=\"api:6443\",verb=\"POST\",le=\"2\"} 0",
            "rest_client_request_duration_seconds_bucket{host=\"api:6443\",verb=\"POST\",le=\"4\"} 2",
            "rest_client_rate_limiter_duration_seconds_bucket{host=\"api:6443\",verb=\"POST\",le=\"0.5\"} 0",
            "rest_client_rate_limiter_duration_seconds_bucket{host=\"api:6443\",verb=\"POST\",le=\"1\"} 2",
            "rest_client_request_size_bytes_sum{host=\"api:6443\",verb=\"POST\"} 200",
            "rest_client_response_size_bytes_sum{host=\"api:6443\",verb=\"POST\"} 700",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        metrics.reset();
        let text = koord_app::metrics::encode(&registry).unwrap();
        assert!(!text.contains("POST"), "{text}");
    }
}
