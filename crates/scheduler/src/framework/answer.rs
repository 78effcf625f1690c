//! What plugins answer at the extension points.

#[cfg(doc)]
use super::{Filter, PreFilter, PreScore, Score};
use super::{Rejection, State, Write};
use crate::state::{NodeIndex, PodInfo};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Answer of [`PreFilter::pre_filter`].
#[derive(Debug)]
pub enum PreFilterResult {
    /// Filter with this state, on the listed nodes only if any are listed.
    Ready {
        /// Handed to [`Filter::filter`].
        state: State,
        /// Only these nodes can fit.
        nodes: Option<Vec<NodeIndex>>,
    },
    /// Nothing to check: the plugin's filter is not called for this pod.
    Skip,
    /// No node can fit.
    Reject(Rejection),
}

impl PreFilterResult {
    /// Ready with `value` as state and no restriction.
    #[must_use]
    pub fn ready<T: Any + Send + Sync>(value: T) -> Self {
        Self::Ready {
            state: State::of(value),
            nodes: None,
        }
    }
}

/// Answer of [`PreScore::pre_score`].
#[derive(Debug)]
pub enum PreScoreResult {
    /// Score with this state.
    Ready(State),
    /// The plugin scores nothing for this pod.
    Skip,
}

/// How raw scores become 0..=100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// They already are.
    None,
    /// Divided by the largest among the feasible nodes.
    Max,
    /// As `Max`, then subtracted from 100; all 100 when the largest is 0.
    MaxReversed,
    /// By [`Score::normalize`], over all feasible nodes for each pod.
    Custom,
}

/// A question about a value, with the plugin's state at hand.
pub type Judge<'a, T, A> = Box<dyn Fn(&T) -> A + 'a>;

/// How to make room by evicting pods of lower priority; carried out by the engine.
pub struct Preemption<'a> {
    /// Opens the text for the pod's condition.
    pub prefix: &'static str,
    /// At least this share of the nodes, in percent, is tried.
    pub min_candidate_percentage: i64,
    /// At least this many nodes are tried.
    pub min_candidate_absolute: i64,
    /// Whether a pod may be a victim, beside having lower priority.
    pub may_evict: Judge<'a, PodInfo, bool>,
    /// For whom a pod waits that was promised the node which they leave, beside having lower
    /// priority. `None`: for those who go because of a preemption and whom `may_evict` allows.
    pub awaits: Option<Judge<'a, PodInfo, bool>>,
    /// Whether evicting `victims` (all on one node) would satisfy the plugin itself, e.g. a quota.
    pub suffices: Judge<'a, [Arc<PodInfo>], bool>,
    /// Per disruption budget that covers a pod: an id, and how many more evictions it allows.
    pub budgets: Judge<'a, PodInfo, Vec<(u64, i64)>>,
    /// Whether holders may take the place of pods, too.
    pub for_holders: bool,
    /// What the condition says besides, where no room is found; may be empty.
    pub besides: String,
    /// Names, by uid, everybody whom `may_evict` allows, and perhaps more. `None`: there is no
    /// shorter list than all pods.
    pub pool: Option<Pool<'a>>,
}

/// Hands uids over, one by one.
pub type Pool<'a> = Box<dyn Fn(&mut dyn FnMut(&str)) + 'a>;

/// What the rules of [`PostFilterResult::Preempt`] stand on. While both numbers stay, they answer the same
/// for pods of one shape and priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RulesVersion {
    /// Changes with anything but what `budgets` counts.
    pub rules: u64,
    /// Changes with what disruption budgets allow, where whom they cover stays as it was.
    pub allowances: u64,
}

impl std::fmt::Debug for Preemption<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preemption")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// How to make room for pods that start together, on several nodes at once or not at all; carried out by
/// the engine.
pub struct GroupPreemption<'a> {
    /// Who may go; the pods of lowest priority decide for all of them who has less.
    pub rules: Preemption<'a>,
    /// The pods that need a place, by uid, in the order in which they will be tried; the one that found none
    /// first.
    pub pending: Vec<Arc<str>>,
    /// Pods of the group that have a place and keep it until the others have theirs, by uid.
    pub held: Vec<Arc<str>>,
    /// Whether the first that finds no place keeps those behind it from being tried.
    pub strict: bool,
    /// Whether the group may start once these of `pending` have a place, too.
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

/// Answer of [`PostFilter::post_filter`](super::PostFilter::post_filter).
#[derive(Debug)]
pub enum PostFilterResult<'a> {
    /// Room will be made on this node; the pod is nominated to it.
    Nominated(Arc<str>),
    /// The engine is to look for victims under these rules.
    Preempt(Preemption<'a>),
    /// The same for the pods that start together with this one. Plugins behind this one are not asked.
    PreemptForGroup(Box<GroupPreemption<'a>>),
    /// It was decided before, with the text for the pod's condition. Plugins behind this one are not asked.
    Decided(String),
    /// No help, with the text for the pod's condition; may be empty.
    Unhelpful(String),
}

/// Answer of [`Permit::permit`](super::Permit::permit).
#[derive(Debug)]
pub enum PermitResult {
    /// Bind now.
    Allow,
    /// Keep what is booked and wait, at most this long.
    Wait(Duration),
    /// Give back what is booked.
    Reject(Rejection),
}

/// How a pod is bound.
#[derive(Debug, Clone, PartialEq)]
pub enum BindPlan {
    /// Not by this plugin.
    Skip,
    /// By a POST to the pod's binding subresource.
    Binding,
    /// By writes, in order, the last of which is to the object that the pod stands for: labels and
    /// annotations of the [`PodPatch`] go there.
    Writes(Vec<Write>),
}

/// Why a binding failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindError {
    /// The API server's words.
    pub message: String,
    /// The pod does not exist any more.
    pub gone: bool,
}

/// What the pre-bind plugins add to a pod; sent as one merge patch before the binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodPatch {
    /// Annotations to set.
    pub annotations: std::collections::BTreeMap<String, String>,
    /// Labels to set.
    pub labels: std::collections::BTreeMap<String, String>,
}

impl PodPatch {
    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.labels.is_empty()
    }
}

/// Why [`Insight::inspect`](super::Insight::inspect) shows nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotShown {
    /// The plugin has no such path.
    NoSuchPath,
    /// There is no such thing; says what cannot be found.
    Missing(String),
    /// It cannot be shown as it is; says why.
    Failed(String),
}

impl NotShown {
    /// `cannot find <what>`.
    #[must_use]
    pub fn missing(what: impl std::fmt::Display) -> Self {
        Self::Missing(format!("cannot find {what}"))
    }
}

/// What a node lacks for a pod. All nodes are asked how far away they are, and a few of them for words.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lacks {
    distance: f64,
    found: usize,
    /// Where they are asked for.
    words: Option<Vec<String>>,
}

impl Lacks {
    /// Nothing so far, to be told in words, too.
    #[must_use]
    pub fn in_words() -> Self {
        Self {
            words: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Adds one. `distance`: the missing part of what is needed, 0 to 1; `text` is for people, with units.
    pub fn add(&mut self, distance: f64, text: impl FnOnce() -> String) {
        self.distance += distance;
        self.found += 1;
        if let Some(words) = &mut self.words {
            words.push(text());
        }
    }

    /// How many were added.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found
    }

    /// How far away the node is: the sum over all that is lacking.
    #[must_use]
    pub fn distance(&self) -> f64 {
        self.distance
    }

    /// All of it; empty where nobody asked for words.
    #[must_use]
    pub fn text(&self) -> String {
        self.words
            .as_ref()
            .map_or_else(String::new, |all| all.join("; "))
    }
}
