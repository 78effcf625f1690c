//! What comes out of a cycle.

use crate::rules::Why;
use crate::state::PodInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use koord_api::scheduling::PodMigrationJob;
use std::sync::Arc;

/// What has to be done for a pod to go.
#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    /// This job is created.
    Job(Box<PodMigrationJob>),
    /// Nothing: the evictor only shows what it would do.
    Nothing,
    /// It is evicted through its sub-resource.
    Evict(Option<DeleteOptions>),
}

/// A pod that goes.
#[derive(Debug, Clone)]
pub struct Move {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The profile's name.
    pub profile: Arc<str>,
    /// The strategy's name.
    pub strategy: &'static str,
    /// Why it goes, for people.
    pub reason: String,
    /// What is to be done; nothing in a dry run.
    pub intent: Option<Intent>,
    /// Where there was found to be room, if anybody looked.
    pub target: Option<Arc<str>>,
    /// The node that is cleared of pods by this and other moves; when one fails, the rest of them is off.
    pub drains: Option<Arc<str>>,
}

impl Move {
    /// Whether its pod goes, rather than that it would go is shown.
    #[must_use]
    pub fn is_real(&self) -> bool {
        matches!(self.intent, Some(Intent::Job(_) | Intent::Evict(_)))
    }
}

/// What a plan asks for, in order.
#[derive(Debug, Clone)]
pub enum Action {
    /// Move a pod.
    Move(Box<Move>),
    /// Make a node unschedulable before it is drained; undone when a move that drains it fails.
    Cordon {
        /// Its name.
        node: Arc<str>,
        /// Which strategy wants it.
        strategy: &'static str,
    },
    /// Set the annotation `controller.kubernetes.io/pod-deletion-cost`.
    DeletionCost {
        /// Whose.
        pod: Arc<PodInfo>,
        /// The value.
        cost: i32,
        /// Which strategy wants it.
        strategy: &'static str,
    },
}

/// A pod that was looked at and stays.
#[derive(Debug, Clone)]
pub struct SkippedPod {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The profile's name.
    pub profile: Arc<str>,
    /// Which strategy looked at it.
    pub strategy: &'static str,
    /// Why it stays.
    pub why: Why,
}

/// What a strategy has to say about a node, or about the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The profile's name.
    pub profile: Arc<str>,
    /// Which strategy.
    pub strategy: &'static str,
    /// The node, if it is about one.
    pub node: Option<Arc<str>>,
    /// For people: `hot: cpu usage 71.00% > threshold 65.00%, 2 of 5 cycles`.
    pub text: String,
    /// What it means to others.
    pub finding: Finding,
}

/// What a note says of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Finding {
    /// Something for people alone.
    #[default]
    Other,
    /// It is too hot, so that somebody may ask why nothing is moved from it.
    Hot,
    /// It is too hot, but not yet for long enough.
    Early,
    /// It was not looked at: this is wrong with what is known of it, the same for all of which it is.
    Skipped(&'static str),
}

impl Note {
    /// Whether it says of a node that it is too hot.
    #[must_use]
    pub fn is_hot(&self) -> bool {
        matches!(self.finding, Finding::Hot | Finding::Early)
    }

    /// Whether it says that a node is too hot, but not yet for long enough.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.finding == Finding::Early
    }
}

/// What a cycle wants, and why it does not want more.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// In the order in which it is to be done.
    pub actions: Vec<Action>,
    /// Each pod once for each strategy and rule.
    pub kept: Vec<SkippedPod>,
    /// In the order of strategies.
    pub notes: Vec<Note>,
    /// What ended the cycle early.
    pub error: Option<String>,
}

impl Plan {
    /// The moves among the actions.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.actions.iter().filter_map(|action| match action {
            Action::Move(planned) => Some(&**planned),
            Action::Cordon { .. } | Action::DeletionCost { .. } => None,
        })
    }
}
