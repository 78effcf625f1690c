//! HTTP endpoints in addition to health and metrics, and the report of the last cycle.

use crate::config::Configuration;
use crate::report::{NodeReport, Report};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get};
use koord_app::admin;
use koord_app::configz::GoNames;
use koord_app::logging;
use parking_lot::RwLock;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Names of upstream's Go fields that are not the capitalized names of the file's fields.
const NAMES: GoNames = GoNames {
    as_they_are: &[
        "defaultDeleteOptions",
        "highThresholds",
        "labelSelector",
        "lowThresholds",
        "nodeSelector",
        "objectLimiters",
        "prodHighThresholds",
        "prodLowThresholds",
        "resourceWeights",
        "selector",
    ],
    special: &[
        ("apiVersion", "apiVersion"),
        ("kind", "kind"),
        ("qps", "QPS"),
    ],
    zero: &[],
};

type Reset = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct LastCycleState {
    report: RwLock<Option<Arc<Report>>>,
    /// True if this replica leads and has not read the whole cluster yet.
    reading: AtomicBool,
    resets: RwLock<Vec<Reset>>,
}

/// Report of the last cycle. Clones share it.
#[derive(Clone, Default)]
pub struct LastCycle(Arc<LastCycleState>);

impl fmt::Debug for LastCycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LastCycle")
            .field(&self.0.report.read())
            .finish()
    }
}

impl LastCycle {
    /// Returns the report; `None` before the first cycle of this process has ended.
    #[must_use]
    pub fn get(&self) -> Option<Arc<Report>> {
        self.0.report.read().clone()
    }

    pub(super) fn set(&self, report: Arc<Report>) {
        *self.0.report.write() = Some(report);
    }

    pub(super) fn set_reading(&self, reading: bool) {
        self.0.reading.store(reading, Ordering::Relaxed);
    }

    /// Checks readiness. A replica that does not lead is ready.
    ///
    /// # Errors
    /// Returns an error while the leader reads the cluster for the first time.
    pub fn readiness(&self) -> Result<(), String> {
        if self.0.reading.load(Ordering::Relaxed) {
            return Err("the initial lists of the cluster are incomplete".to_owned());
        }
        Ok(())
    }

    /// Registers `reset` to be called by `DELETE /metrics`.
    pub fn on_reset(&self, reset: impl Fn() + Send + Sync + 'static) {
        self.0.resets.write().push(Box::new(reset));
    }

    /// Returns the routes `/debug/descheduler`, and `/debug/descheduler/NODE` for a single node.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/debug/descheduler", get(get_report))
            .route("/debug/descheduler/{node}", get(get_node))
            .with_state(self.clone())
    }

    /// Returns all routes in addition to health and metrics: `/configz` with `config` by the names of
    /// upstream's Go fields, `DELETE /metrics` and, with `enableProfiling`, those below `/debug`.
    pub fn routes(&self, config: &Configuration) -> Router {
        let shown = NAMES.rename_fields(serde_json::to_value(config).unwrap_or_default());
        let shown = json!({"componentconfig": shown});
        let routes = Router::new()
            .route("/metrics", delete(reset))
            .with_state(self.clone())
            .route(
                "/configz",
                get(async move || axum::Json::<Value>(shown.clone())),
            );
        if !config.enable_profiling {
            return routes;
        }
        routes
            .merge(self.router())
            .merge(admin::refused_profile_routes())
            .route("/debug/flags/v", any(set_verbosity))
    }
}

/// Resets the metrics and answers like upstream.
async fn reset(State(last): State<LastCycle>) -> Response {
    for reset in last.0.resets.read().iter() {
        reset();
    }
    "metrics reset\n".into_response()
}

async fn set_verbosity(method: Method, body: String) -> Response {
    if method != Method::PUT {
        let text = "unsupported http method";
        return (StatusCode::NOT_ACCEPTABLE, text).into_response();
    }
    match logging::put_verbosity(body.trim()) {
        Ok(text) => text.into_response(),
        Err(text) => (StatusCode::BAD_REQUEST, text).into_response(),
    }
}

/// Returns the response when there is no report yet.
fn no_report_response() -> Response {
    let none = "this process has completed no cycle: it has just started, or is not the leader\n";
    (StatusCode::NOT_FOUND, none).into_response()
}

async fn get_report(State(last): State<LastCycle>) -> Response {
    match last.get() {
        Some(report) => axum::Json(&*report).into_response(),
        None => no_report_response(),
    }
}

async fn get_node(State(last): State<LastCycle>, Path(node): Path<String>) -> Response {
    let Some(report) = last.get() else {
        return no_report_response();
    };
    let Some(of) = report.nodes.get(&node) else {
        let none = format!("the last cycle had no node {node:?}\n");
        return (StatusCode::NOT_FOUND, none).into_response();
    };
    let only = Report {
        nodes: [(node, of.clone())].into(),
        elsewhere: NodeReport::default(),
        ..(*report).clone()
    };
    axum::Json(only).into_response()
}
