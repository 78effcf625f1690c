//! Why nothing is reported, and who is told.

use super::cpus::STATE_FILE;
use super::facts::FactsError;
use crate::node_events::Warnings;
use crate::states::{Malformed, MalformedInputs};
use koord_host::HostError;
use koord_kube::events::Severity;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// How long nothing is reported before the node's events say so: an agent that has just started does not
/// know its kubelet yet, and one write may fail.
const EVENT_DELAY: Duration = Duration::from_secs(10);

/// The reason of the event.
const REASON: &str = "NodeTopologyNotReported";

/// What is filed under in the complaints; what is left out of a report is under the object's kind alone.
const MALFORMED_OBJECT: &str = "NodeResourceTopology input";

/// Longest part of a file that a complaint shows, in characters.
const EXCERPT: usize = 200;

/// Why nothing is reported. What was said last stands.
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
    /// With the text of the kubelet's file.
    #[error("{error}")]
    Facts { error: FactsError, state: String },
    #[error("it cannot be {what}: {why}")]
    Write { what: &'static str, why: String },
}

impl ReportError {
    /// Returns the field that cannot be understood, if one is to blame.
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

/// What stands in the way now.
struct ActiveError {
    text: String,
    since: Instant,
    /// True if there is an event that says this.
    has_event: bool,
}

/// Tells what stands in the way: the log at once, the complaints where input is to blame, the node's
/// events if it goes on.
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

    /// How a round has ended.
    pub(super) fn record(&mut self, outcome: Result<(), ReportError>) {
        let Err(error) = outcome else {
            if let Some(was) = self.active.take() {
                tracing::info!(was = was.text, "NodeResourceTopology is reported again");
                self.malformed_inputs.replace(MALFORMED_OBJECT, Vec::new());
            }
            return;
        };
        let text = error.to_string();
        let since = self.active.as_ref().map(|active| active.since);
        if self.active.as_ref().is_none_or(|was| was.text != text) {
            tracing::warn!(problem = text, "NodeResourceTopology is not reported");
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
