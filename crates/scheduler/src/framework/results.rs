//! Results that plugins return at the extension points.

#[cfg(doc)]
use super::{Filter, PreFilter, PreScore, Score};
use super::{Rejection, State, Write};
use crate::state::{NodeIndex, PodInfo};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Result of [`PreFilter::pre_filter`].
#[derive(Debug)]
pub enum PreFilterResult {
    /// Run the filter with this state, on the listed nodes only if a list is given.
    Ready {
        /// The state passed to [`Filter::filter`].
        state: State,
        /// The only nodes that can fit; `None` for all.
        nodes: Option<Vec<NodeIndex>>,
    },
    /// The plugin's filter has nothing to check and is not called for this pod.
    Skip,
    /// The pod does not fit any node.
    Reject(Rejection),
}

impl PreFilterResult {
    /// Returns [`PreFilterResult::Ready`] with `value` as state and all nodes.
    #[must_use]
    pub fn ready<T: Any + Send + Sync>(value: T) -> Self {
        Self::Ready {
            state: State::new(value),
            nodes: None,
        }
    }
}

/// Result of [`PreScore::pre_score`].
#[derive(Debug)]
pub enum PreScoreResult {
    /// Score with this state.
    Ready(State),
    /// The plugin scores nothing for this pod.
    Skip,
}

/// The mapping of raw scores to 0..=100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// Unchanged: raw scores are in 0..=100 already.
    None,
    /// Divided by the largest raw score among the feasible nodes.
    Max,
    /// Like [`Self::Max`], then subtracted from 100; all 100 if the largest raw score is 0.
    MaxReversed,
    /// Calls [`Score::normalize`] with the raw scores of all feasible nodes, for each pod.
    Custom,
}

/// A function of a value that captures the plugin's state.
pub type Judge<'a, T, A> = Box<dyn Fn(&T) -> A + 'a>;

/// Rules for making room by evicting pods of lower priority; the engine carries them out.
pub struct Preemption<'a> {
    /// Prefix of the text for the pod's condition.
    pub prefix: &'static str,
    /// The minimum share of the nodes that is tried, in percent.
    pub min_candidate_percentage: i64,
    /// The minimum number of nodes that is tried.
    pub min_candidate_absolute: i64,
    /// Returns true if a pod may be a victim; its lower priority is checked separately.
    pub may_evict: Judge<'a, PodInfo, bool>,
    /// Returns true for a terminating pod that a preemptor nominated to its node must wait for; lower
    /// priority is checked separately. `None`: it waits for those pods that terminate because of a preemption
    /// and that `may_evict` allows.
    pub awaits: Option<Judge<'a, PodInfo, bool>>,
    /// Returns true if evicting the given pods, all on one node, would satisfy the plugin itself, for example
    /// its quota.
    pub suffices: Judge<'a, [Arc<PodInfo>], bool>,
    /// Returns, per disruption budget that covers a pod, an id and how many more evictions it allows.
    pub budgets: Judge<'a, PodInfo, Vec<(u64, i64)>>,
    /// True if holders ([`super::Holders`]) may preempt pods, too.
    pub for_holders: bool,
    /// Text added to the condition if no room is found; may be empty.
    pub besides: String,
    /// Lists, by uid, every pod that `may_evict` allows, and possibly more. `None`: no list shorter than all
    /// pods is available.
    pub pool: Option<Pool<'a>>,
}

/// Calls the given function with one uid after the other.
pub type Pool<'a> = Box<dyn Fn(&mut dyn FnMut(&str)) + 'a>;

/// The version of the rules in [`PostFilterResult::Preempt`]. While both numbers are unchanged, the rules
/// give equal answers for pods of equal shape and priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RulesVersion {
    /// Changes with everything except the disruption budgets that `budgets` returns.
    pub rules: u64,
    /// Changes if a disruption budget allows another number of evictions; a change of the pods that a budget
    /// covers changes `rules`.
    pub allowances: u64,
}

impl std::fmt::Debug for Preemption<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preemption")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// Rules for making room for pods that start together, on several nodes at once or not at all; the engine
/// carries them out.
pub struct GroupPreemption<'a> {
    /// The rules for victims. The lowest priority among the pods of the group is the one that victims are
    /// compared with.
    pub rules: Preemption<'a>,
    /// Uids of the pods that need a node, in the order in which they are tried; the pod that no node fitted
    /// comes first.
    pub pending: Vec<Arc<str>>,
    /// Uids of the pods of the group that are reserved on a node and keep it until the others are, too.
    pub held: Vec<Arc<str>>,
    /// True if the first pod that fits nowhere keeps those behind it from being tried.
    pub strict: bool,
    /// Returns true if the group may start once the given pods of `pending` are placed, too.
    pub enough: Judge<'a, [Arc<PodInfo>], bool>,
}

impl std::fmt::Debug for GroupPreemption<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupPreemption")
            .field("pending", &self.pending)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

/// Result of [`PostFilter::post_filter`](super::PostFilter::post_filter).
#[derive(Debug)]
pub enum PostFilterResult<'a> {
    /// Room is made on this node; the pod is nominated to it.
    Nominated(Arc<str>),
    /// The engine must look for victims under these rules.
    Preempt(Preemption<'a>),
    /// The engine must look for victims for the pods that start together with this one. Later plugins are not
    /// called.
    PreemptForGroup(Box<GroupPreemption<'a>>),
    /// The outcome was decided before; the text is for the pod's condition. Later plugins are not called.
    Decided(String),
    /// The plugin cannot help; the text is for the pod's condition and may be empty.
    Unhelpful(String),
}

/// Result of [`Permit::permit`](super::Permit::permit).
#[derive(Debug)]
pub enum PermitResult {
    /// Bind now.
    Allow,
    /// Keep the reservation and wait, at most this long.
    Wait(Duration),
    /// Undo the reservation.
    Reject(Rejection),
}

/// The way in which a pod is bound.
#[derive(Debug, Clone, PartialEq)]
pub enum BindPlan {
    /// The plugin does not bind the pod; the next bind plugin is tried.
    Skip,
    /// A POST to the pod's binding subresource.
    Binding,
    /// Writes, in order. The last one is to the object that the pod stands for: labels and annotations of the
    /// [`PodPatch`] are written there.
    Writes(Vec<Write>),
}

/// The error of a failed binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindError {
    /// The error message of the API server.
    pub message: String,
    /// True if the pod no longer exists.
    pub gone: bool,
}

/// The labels and annotations that the pre-bind plugins add to a pod; sent as one merge patch before the
/// binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPatch {
    /// Annotations to set.
    pub annotations: std::collections::BTreeMap<String, String>,
    /// Labels to set.
    pub labels: std::collections::BTreeMap<String, String>,
}

impl PodPatch {
    /// Returns true if there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.labels.is_empty()
    }
}

/// The reason why [`Explain::inspect`](super::Explain::inspect) shows nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotShown {
    /// The plugin has no such path.
    NoSuchPath,
    /// The object does not exist; the text names it.
    Missing(String),
    /// The object cannot be shown; the text gives the cause.
    Failed(String),
}

impl NotShown {
    /// Returns [`NotShown::Missing`] with the text `cannot find <what>`.
    #[must_use]
    pub fn missing(what: impl std::fmt::Display) -> Self {
        Self::Missing(format!("cannot find {what}"))
    }
}

/// The shortfall of a node for a pod. The distance is computed for all nodes, the text only for a few of
/// them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shortfall {
    distance: f64,
    found: usize,
    /// The texts, if they were requested.
    texts: Option<Vec<String>>,
}

impl Shortfall {
    /// Creates an empty value that collects texts, too.
    #[must_use]
    pub fn with_texts() -> Self {
        Self {
            texts: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Adds one shortage. `distance` is the missing share of what is needed, 0 to 1; `text` is for users,
    /// with units.
    pub fn add(&mut self, distance: f64, text: impl FnOnce() -> String) {
        self.distance += distance;
        self.found += 1;
        if let Some(texts) = &mut self.texts {
            texts.push(text());
        }
    }

    /// Returns how many shortages were added.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found
    }

    /// Returns how far the node is from fitting: the sum of all distances.
    #[must_use]
    pub fn distance(&self) -> f64 {
        self.distance
    }

    /// Returns all texts, joined by `; `; empty if no texts were requested.
    #[must_use]
    pub fn text(&self) -> String {
        self.texts
            .as_ref()
            .map_or_else(String::new, |all| all.join("; "))
    }
}
