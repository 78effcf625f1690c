//! The phases of the demo.

use serde::{Deserialize, Serialize};

/// The phases, in the order they are reported.
pub const PHASES: [Phase; 5] = [
    Phase::Alone,
    Phase::BestEffort,
    Phase::Unmanaged,
    Phase::Suppressed,
    Phase::Managed,
];

/// A phase: one way to share the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The service has the machine to itself.
    Alone,
    /// Plain Kubernetes: batch runs as best-effort pods, and no agent manages the node.
    BestEffort,
    /// Batch runs as ordinary burstable pods that request as much as the service, without any QoS.
    Unmanaged,
    /// Batch runs as BE under upstream's suppression formula and constants.
    Suppressed,
    /// Batch runs as BE under koord's default, pressure-guided suppression.
    Managed,
}

impl Phase {
    /// Returns the name used in the JSON and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Alone => "alone",
            Phase::BestEffort => "besteffort",
            Phase::Unmanaged => "unmanaged",
            Phase::Suppressed => "suppressed",
            Phase::Managed => "managed",
        }
    }

    /// Returns a label for readers without further context.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Phase::Alone => "service alone",
            Phase::BestEffort => "plain Kubernetes",
            Phase::Unmanaged => "no QoS",
            Phase::Suppressed => "Koordinator's cap",
            Phase::Managed => "koord",
        }
    }

    /// Returns a description of the phase in one line.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Phase::Alone => "the service without batch work",
            Phase::BestEffort => "plain Kubernetes: batch as best-effort pods, koordlet idle",
            Phase::Unmanaged => "batch as burstable pods with the service's requests, no QoS",
            Phase::Suppressed => "batch as BE, Koordinator's fixed 65\u{a0}% cap",
            Phase::Managed => "batch as BE, koord's default",
        }
    }
}
