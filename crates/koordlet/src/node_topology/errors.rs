//! Errors of the report, and their logs and events.

use super::cpus::STATE_FILE;
use super::facts::FactsError;
use crate::node_events::Warnings;
use crate::states::{Malformed, MalformedInputs};
use koord_host::HostError;
use koord_kube::events::Severity;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// Time without a report until the node gets an event. The kubelet's configuration is missing
/// right after the start, and a single write may fail.
const EVENT_DELAY: Duration = Duration::from_secs(10);

/// Reason of the event.
const REASON: &str = "NodeTopologyNotReported";

/// Object under which malformed inputs are reported. Those of the report's content are reported under the
/// object's kind.
const MALFORMED_OBJECT: &str = "NodeResourceTopology input";

/// Maximum length of a file's excerpt in a malformed-input report, in characters.
const EXCERPT: usize = 200;

/// Reason why the object is not updated. The last report is kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    #[error("the API server has no NodeResourceTopology: its definition is not installed")]
    NoDefinition,
    #[error("the kubelet's configuration is not known")]
    NoConfiguration,
    #[error(transparent)]
    Machine(#[from] HostError),
    #[error("the machine was not looked at: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
    #[error("{}: {source}", path.display())]
    StateFile {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Invalid facts, with the content of the kubelet's file.
    #[error("{error}")]
    Facts { error: FactsError, state: String },
    #[error("it cannot be {what}: {why}")]
    Write { what: &'static str, why: String },
}

impl ReportError {
    /// Returns the malformed input that caused the error. `None` if the cause is not an input.
    fn malformed(&self) -> Option<Malformed> {
        let named = |field: &dyn std::fmt::Display, value: &str, error: &dyn std::fmt::Display| {
            let value: String = value.chars().take(EXCERPT).collect();
            Some(Malformed::new(field.to_string(), value, &error.to_string()))
        };
        match self {
            Self::Machine(HostError::Malformed { path, malformed }) => {
                let expected = format!("expected {}", malformed.expected);
                named(&path.display(), &malformed.found, &expected)
            }
            Self::Machine(HostError::Io { path, source, .. })
            | Self::StateFile { path, source } => named(&path.display(), "", source),
            Self::Facts { error, state } => match error {
                FactsError::Memory(id) => named(&format!("node{id}/meminfo"), "", error),
                FactsError::NoCpus => named(&"cpu/online", "", error),
                FactsError::State(why) => named(&STATE_FILE, state, why),
                FactsError::Json(_) => None,
            },
            _ => None,
        }
    }
}

/// The current error.
struct ActiveError {
    text: String,
    since: Instant,
    /// True if an event for this error was recorded.
    has_event: bool,
}

/// Reports errors: in the log at once, as malformed input if an input is the cause, and as an event of the
/// node if the error persists.
pub(super) struct ErrorReporter {
    malformed_inputs: MalformedInputs,
    warnings: Warnings,
    active: Option<ActiveError>,
}

impl ErrorReporter {
    pub(super) fn new(malformed_inputs: MalformedInputs, warnings: Warnings) -> Self {
        Self {
            malformed_inputs,
            warnings,
            active: None,
        }
    }

    /// Records the outcome of one update.
    pub(super) fn record(&mut self, outcome: Result<(), ReportError>) {
        let Err(error) = outcome else {
            if let Some(was) = self.active.take() {
                tracing::info!(was = was.text, "NodeResourceTopology report recovered");
                self.malformed_inputs.replace(MALFORMED_OBJECT, Vec::new());
            }
            return;
        };
        let text = error.to_string();
        let since = self.active.as_ref().map(|active| active.since);
        if self.active.as_ref().is_none_or(|was| was.text != text) {
            tracing::warn!(problem = text, "failed to report NodeResourceTopology");
            let malformed = error.malformed().into_iter().collect();
            self.malformed_inputs.replace(MALFORMED_OBJECT, malformed);
            self.active = Some(ActiveError {
                text,
                since: since.unwrap_or_else(Instant::now),
                has_event: false,
            });
        }
        let Some(active) = &mut self.active else {
            return;
        };
        if !active.has_event && active.since.elapsed() >= EVENT_DELAY {
            let message = format!("NodeResourceTopology is not reported: {}", active.text);
            self.warnings.record(Severity::Warning, REASON, &message);
            active.has_event = true;
        }
    }
}
