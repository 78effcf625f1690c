//! Metrics of webhooks, with upstream's names and labels.

use super::Operation;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use std::time::Duration;

/// Highest status code in labels: webhooks choose their codes, so higher ones are counted as this one.
const MAX_CODE: u16 = 600;

/// Outcome of a call to a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// The webhook allowed the write.
    Allowed,
    /// The webhook refused the write with this code.
    Refused(u16),
    /// The call failed; with the failure policy `Ignore` the write continues.
    Failed {
        /// True if the failure policy is `Ignore`.
        ignored: bool,
    },
    /// The request or the response cannot be processed.
    Unusable,
}

/// The metrics of webhooks. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    seconds: HistogramVec,
    requests: IntCounterVec,
    rejections: IntCounterVec,
    failed_open: IntCounterVec,
}

impl Metrics {
    /// Creates the metrics and registers them in `registry`.
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let name = format!("apiserver_admission_webhook_{name}");
            IntCounterVec::new(Opts::new(name, help), labels)
        };
        let buckets = vec![0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
        let options = HistogramOpts::new(
            "apiserver_admission_webhook_admission_duration_seconds",
            "Time that a webhook took.",
        );
        let metrics = Self {
            seconds: HistogramVec::new(
                options.buckets(buckets),
                &["name", "type", "operation", "rejected"],
            )?,
            requests: counter(
                "request_total",
                "Questions to webhooks, and what came of them.",
                &["name", "type", "operation", "code", "rejected"],
            )?,
            rejections: counter(
                "rejection_count",
                "Requests that were refused by a webhook, or because it failed.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            )?,
            failed_open: counter(
                "fail_open_count",
                "Requests that went on although a webhook failed.",
                &["name", "type"],
            )?,
        };
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.rejections.clone()))?;
        registry.register(Box::new(metrics.failed_open.clone()))?;
        Ok(metrics)
    }

    /// Records a call to the webhook `name`.
    pub(super) fn observe(
        &self,
        name: &str,
        mutating: bool,
        operation: Operation,
        took: Duration,
        ending: CallOutcome,
    ) {
        let step = if mutating { "admit" } else { "validating" };
        let operation = operation.as_str();
        let (code, error) = match ending {
            CallOutcome::Allowed => (200, None),
            CallOutcome::Refused(code) => (code.min(MAX_CODE), Some("no_error")),
            CallOutcome::Failed { ignored: true } => (500, None),
            CallOutcome::Failed { ignored: false } => (500, Some("calling_webhook_error")),
            CallOutcome::Unusable => (0, Some("apiserver_internal_error")),
        };
        let rejected = if error.is_some() { "true" } else { "false" };
        let code = code.to_string();
        self.requests
            .with_label_values(&[name, step, operation, &code, rejected])
            .inc();
        self.seconds
            .with_label_values(&[name, step, operation, rejected])
            .observe(took.as_secs_f64());
        if let Some(error) = error {
            self.rejections
                .with_label_values(&[name, step, operation, error, &code])
                .inc();
        }
        if ending == (CallOutcome::Failed { ignored: true }) {
            self.failed_open.with_label_values(&[name, step]).inc();
        }
    }
}
