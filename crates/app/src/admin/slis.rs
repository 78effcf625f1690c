//! Results of health checks for service level indicators: `/metrics/slis`, in the format of Kubernetes'
//! components.

use crate::metrics;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

/// The two metrics, in a registry of their own.
#[derive(Debug, Clone)]
pub(super) struct Slis {
    registry: Registry,
    last: IntGaugeVec,
    total: IntCounterVec,
}

impl Slis {
    pub(super) fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let last = Opts::new(
            "kubernetes_healthcheck",
            "[STABLE] Whether a check passed when it was last made.",
        );
        let total = Opts::new(
            "kubernetes_healthchecks_total",
            "[STABLE] Checks made, by result.",
        );
        Ok(Self {
            last: metrics::register(&registry, IntGaugeVec::new(last, &["name", "type"])?)?,
            total: metrics::register(
                &registry,
                IntCounterVec::new(total, &["name", "type", "status"])?,
            )?,
            registry,
        })
    }
}

/// Records the result of the health check `name` that was run for a request to `/<kind>`, such as `/readyz`.
pub(super) fn observe(slis: Option<&Slis>, name: &str, kind: &str, passed: bool) {
    let Some(slis) = slis else { return };
    slis.last
        .with_label_values(&[name, kind])
        .set(i64::from(passed));
    let status = if passed { "success" } else { "error" };
    slis.total.with_label_values(&[name, kind, status]).inc();
}

pub(super) fn routes(slis: Option<Slis>) -> Router {
    match slis {
        Some(slis) => {
            Router::new().route("/metrics/slis", get(text).delete(reset).with_state(slis))
        }
        None => Router::new(),
    }
}

async fn text(State(slis): State<Slis>) -> Response {
    match metrics::encode(&slis.registry) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn reset(State(slis): State<Slis>) -> &'static str {
    slis.last.reset();
    slis.total.reset();
    "metrics reset\n"
}
