//! Metrics of requests and of the store, served at `/metrics`.

use super::health::with_type;
use crate::rest::Api;
use crate::rest::path::percent_decode;
use crate::store::Store;
use axum::response::Response;
use http::{Method, StatusCode, Uri};
use koord_kinds::Registry as Kinds;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use std::time::Duration;

/// Metrics of HTTP requests.
#[derive(Debug, Clone)]
pub(super) struct HttpMetrics {
    registry: Registry,
    kinds: Kinds,
    requests: IntCounterVec,
    seconds: HistogramVec,
    inflight: IntGaugeVec,
    longrunning: IntGaugeVec,
}

/// Labels of a request.
#[derive(Debug)]
pub(super) struct RequestLabels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
}

impl RequestLabels {
    fn values(&self) -> [&str; 6] {
        [
            self.verb,
            &self.group,
            &self.version,
            &self.resource,
            &self.subresource,
            self.scope,
        ]
    }

    /// Returns true if the request is read-only.
    pub(super) fn reading(&self) -> bool {
        matches!(self.verb, "GET" | "LIST" | "WATCH")
    }

    pub(super) fn long_running(&self) -> bool {
        const STREAMS: [&str; 4] = ["log", "exec", "attach", "portforward"];
        self.verb == "WATCH" || STREAMS.contains(&&*self.subresource)
    }
}

/// Guard that counts a request as in progress.
#[derive(Debug)]
pub(super) struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

const REQUEST: [&str; 6] = [
    "verb",
    "group",
    "version",
    "resource",
    "subresource",
    "scope",
];

impl HttpMetrics {
    /// Registers the metrics of the server and of `store` in `registry`.
    pub(super) fn new(
        registry: Registry,
        store: &Store,
        kinds: Kinds,
    ) -> Result<Self, prometheus::Error> {
        let mut with_code = REQUEST.to_vec();
        with_code.push("code");
        let requests = IntCounterVec::new(
            Opts::new(
                "apiserver_request_total",
                "Requests by what was asked and answered.",
            ),
            &with_code,
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "apiserver_request_duration_seconds",
                "Time to the answer of requests that are not watches.",
            )
            .buckets(prometheus::exponential_buckets(0.000_25, 2.0, 16)?),
            &REQUEST,
        )?;
        let inflight = IntGaugeVec::new(
            Opts::new(
                "apiserver_current_inflight_requests",
                "Requests being worked on.",
            ),
            &["request_kind"],
        )?;
        let longrunning = IntGaugeVec::new(
            Opts::new("apiserver_longrunning_requests", "Open watches and logs."),
            &REQUEST,
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(inflight.clone()))?;
        registry.register(Box::new(longrunning.clone()))?;
        registry.register(Box::new(StoreCollector::new(store.clone())?))?;
        store.metrics().register(&registry)?;
        Ok(Self {
            registry,
            kinds,
            requests,
            seconds,
            inflight,
            longrunning,
        })
    }

    /// Returns the labels of a request.
    pub(super) fn labels(&self, method: &Method, uri: &Uri) -> RequestLabels {
        // Decoded like in the handlers: a watch with escapes in its path must not pass for a short request.
        let decoded = |segment| percent_decode(segment).unwrap_or_default();
        let segments: Vec<String> = uri
            .path()
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(decoded)
            .collect();
        let mut segments = segments.iter().map(String::as_str);
        let (group, version) = match segments.next() {
            Some("api") => ("", segments.next()),
            Some("apis") => (segments.next().unwrap_or_default(), segments.next()),
            _ => ("", None),
        };
        let version = version.unwrap_or_default();
        let mut rest: Vec<&str> = segments.collect();
        if rest.len() > 1 && rest[0] == "watch" {
            rest.remove(0);
        }
        // `namespaces/{name}` alone is the namespace itself; with more it is a prefix.
        let (namespaced, rest) = match rest.as_slice() {
            ["namespaces", _, rest @ ..]
                if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) =>
            {
                (true, rest)
            }
            rest => (false, rest),
        };
        let resource = rest.first().copied().unwrap_or_default();
        let name = rest.get(1).copied();
        let verb = match (method.as_str(), name.is_some()) {
            ("GET" | "HEAD", _) if Api::is_watch(method, uri) => "WATCH",
            ("GET" | "HEAD", false) if !resource.is_empty() => "LIST",
            ("GET" | "HEAD", _) => "GET",
            ("POST", _) => "POST",
            ("PUT", _) => "PUT",
            ("PATCH", _) => "PATCH",
            ("DELETE", true) => "DELETE",
            ("DELETE", false) => "DELETECOLLECTION",
            _ => "other",
        };
        let scope = match (name.is_some(), namespaced) {
            (true, _) => "resource",
            (false, true) => "namespace",
            (false, false) => "cluster",
        };
        // Unknown paths must not create time series.
        let existing = self.kinds.find(group, version, resource);
        let label = |text: &str| {
            if existing.is_some() {
                text.to_owned()
            } else {
                String::new()
            }
        };
        let subresource = rest.get(2).copied().unwrap_or_default();
        let subresource = existing
            .as_ref()
            .and_then(|kind| kind.subresource(subresource))
            .map(|existing| existing.name.to_string());
        RequestLabels {
            verb,
            group: label(group),
            version: label(version),
            resource: label(resource),
            subresource: subresource.unwrap_or_default(),
            scope,
        }
    }

    /// Counts a request as in progress until the result is dropped.
    pub(super) fn begin(&self, labels: &RequestLabels) -> InFlight {
        let gauge = if labels.long_running() {
            self.longrunning.with_label_values(&labels.values())
        } else {
            let kind = if labels.reading() {
                "readOnly"
            } else {
                "mutating"
            };
            self.inflight.with_label_values(&[kind])
        };
        gauge.inc();
        InFlight(gauge)
    }

    /// Records the response to a request.
    pub(super) fn end(&self, labels: &RequestLabels, status: StatusCode, took: Duration) {
        let [verb, group, version, resource, subresource, scope] = labels.values();
        let code = status.as_str();
        let values = [verb, group, version, resource, subresource, scope, code];
        self.requests.with_label_values(&values).inc();
        if !labels.long_running() {
            self.seconds
                .with_label_values(&labels.values())
                .observe(took.as_secs_f64());
        }
    }

    /// Returns the response to `/metrics`.
    pub(super) fn render(&self) -> Response {
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            Ok(()) => with_type(StatusCode::OK, "text/plain; version=0.0.4", text),
            Err(error) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                with_type(status, "text/plain; charset=utf-8", error.to_string())
            }
        }
    }
}

/// Collector that reads the store when metrics are gathered.
struct StoreCollector {
    store: Store,
    objects: IntGaugeVec,
    bytes: IntGaugeVec,
    history_bytes: IntGaugeVec,
    watchers: IntGaugeVec,
    revision: IntGauge,
}

impl StoreCollector {
    fn new(store: Store) -> Result<Self, prometheus::Error> {
        let per_resource =
            |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["resource"]);
        Ok(Self {
            store,
            objects: per_resource("apiserver_storage_objects", "Stored objects.")?,
            bytes: per_resource(
                "koord_apiserver_storage_bytes",
                "Bytes of the current versions of the stored objects.",
            )?,
            history_bytes: per_resource(
                "koord_apiserver_storage_history_bytes",
                "Bytes of superseded versions kept for watches and paged lists.",
            )?,
            watchers: per_resource("koord_apiserver_storage_watchers", "Open store watches.")?,
            revision: IntGauge::new(
                "koord_apiserver_storage_revision",
                "The newest resource version.",
            )?,
        })
    }

    fn parts(&self) -> [&dyn Collector; 5] {
        [
            &self.objects,
            &self.bytes,
            &self.history_bytes,
            &self.watchers,
            &self.revision,
        ]
    }
}

impl Collector for StoreCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.parts().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for gauges in [
            &self.objects,
            &self.bytes,
            &self.history_bytes,
            &self.watchers,
        ] {
            gauges.reset();
        }
        for stats in self.store.stats() {
            let (group, plural) = (stats.table.group(), stats.table.plural());
            let resource = if group.is_empty() {
                plural.to_owned()
            } else {
                format!("{plural}.{group}")
            };
            let set = |gauges: &IntGaugeVec, value: usize| {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                gauges.with_label_values(&[resource.as_str()]).set(value);
            };
            set(&self.objects, stats.objects);
            set(&self.bytes, stats.bytes);
            set(&self.history_bytes, stats.history_bytes);
            set(&self.watchers, stats.watchers);
        }
        self.revision
            .set(i64::try_from(self.store.revision()).unwrap_or(i64::MAX));
        self.parts()
            .into_iter()
            .flat_map(Collector::collect)
            .collect()
    }
}
