//! Requests of plugins to the engine: writes, problem reports and state changes.

#[cfg(doc)]
use super::PreEnqueue;
use super::{Family, Reason};
use crate::state::{NodeIndex, PodInfo};
use rustc_hash::FxHashMap;
use std::fmt::Debug;
use std::sync::Arc;

/// A write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Plural resource name, lower case.
    pub plural: &'static str,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The operation and its content.
    pub verb: Verb,
    /// The histogram that records the duration of the write, if any.
    pub timed: Option<Timed>,
}

/// A histogram without labels that records the duration of a [`Write`], in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Timed(pub &'static Family);

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

/// An additional event for a refused pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalEvent {
    /// The event's reason.
    pub reason: &'static str,
    /// The message of the event.
    pub message: String,
}

/// The operation of a [`Write`].
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    /// JSON merge patch of the object.
    Patch(serde_json::Value),
    /// JSON merge patch of the object's status subresource.
    PatchStatus(serde_json::Value),
    /// Creates the object; succeeds if it exists already.
    Create(serde_json::Value),
    /// Deletes the object; if the uid is not empty, it must match.
    Delete(String),
    /// Evicts the pod with this uid through the eviction API, which disruption budgets may refuse.
    Evict(String),
}

/// A problem of an invalid object, to be reported as an event of that object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind of the object: `Pod`, `Node`, ...
    pub kind: &'static str,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid.
    pub uid: String,
    /// The message; names the key and the value.
    pub message: String,
}

impl Problem {
    /// Returns the message for an invalid value: the field, the value, and what is expected.
    #[must_use]
    pub fn invalid(field: &str, value: impl Debug, expected: &str) -> String {
        format!("invalid value {value:?} for {field}: expected {expected}")
    }
}

/// The last reported problems of each object, by a key that identifies the object among those of its kind: a
/// uid or a name. Each problem is reported once, until the object's problems change.
#[derive(Debug, Default)]
pub struct ReportedProblems(FxHashMap<Arc<str>, Vec<Problem>>);

impl ReportedProblems {
    /// Reports those problems in `found` that the object did not have at the last call. If `found` is empty,
    /// the object is removed.
    pub fn update(&mut self, object: &str, found: Vec<Problem>, fx: &mut Effects) {
        if found.is_empty() {
            self.0.remove(object);
            return;
        }
        let before = self.0.get(object);
        let new = |problem: &&Problem| before.is_none_or(|before| !before.contains(problem));
        fx.problems.extend(found.iter().filter(new).cloned());
        match self.0.get_mut(object) {
            Some(before) => *before = found,
            None => drop(self.0.insert(object.into(), found)),
        }
    }

    /// Removes an object that was deleted.
    pub fn remove(&mut self, object: &str) {
        self.0.remove(object);
    }
}

/// Requests that a plugin makes of the engine while it handles an event.
#[derive(Debug, Default)]
pub struct Effects {
    /// Nodes whose verdicts or scores may have changed.
    pub touched: Vec<NodeIndex>,
    /// Touches all nodes.
    pub touch_all: bool,
    /// Pods (by uid) on no node whose demand changed: the nodes that they are nominated to are touched. Pods
    /// without a nomination are ignored.
    pub demand_changed: Vec<Arc<str>>,
    /// Waiting pods (by uid) that this plugin permits to bind, with the plugin's name.
    pub allow: Vec<(Arc<str>, &'static str)>,
    /// Waiting pods (by uid) whose reservation must be undone, with the plugin's name and the reason.
    pub reject: Vec<(Arc<str>, &'static str, Reason)>,
    /// Waiting pods as in [`Self::reject`], of a group whose reservations are undone in the same step that made
    /// them. No pod was refused because of them, so their removal makes no pod be tried again.
    pub rollback: Vec<(Arc<str>, &'static str, Reason)>,
    /// Refused pods (by uid) to try again at once.
    pub activate: Vec<Arc<str>>,
    /// Problems of invalid objects.
    pub problems: Vec<Problem>,
    /// Queued pods (by uid) whose [`PreEnqueue::pre_enqueue`] result may have changed.
    pub regate: Vec<Arc<str>>,
    /// Pods that stand for other objects, to be treated as if the informer had delivered them: new ones, or
    /// existing ones whose demand changed.
    pub apply: Vec<Arc<PodInfo>>,
    /// Uids of such pods that were removed.
    pub remove: Vec<Arc<str>>,
    /// Queued pods (by uid) that no longer wait for the room that was being made for them.
    pub withdraw: Vec<Arc<str>>,
    /// Queued pods (by uid) that need no attempt of their own, with the text for their condition.
    pub explain: Vec<(Arc<str>, String)>,
    /// Writes to send. Failures are logged. A plugin that needs a write to succeed must compare the object
    /// that the informer delivers with the desired one and request the write again.
    pub writes: Vec<Write>,
}

impl Effects {
    /// Returns true if nothing is requested, as after most events.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            touched,
            touch_all,
            demand_changed,
            allow,
            reject,
            rollback,
            activate,
            problems,
            regate,
            apply,
            remove,
            withdraw,
            explain,
            writes,
        } = self;
        !touch_all
            && touched.is_empty()
            && demand_changed.is_empty()
            && allow.is_empty()
            && reject.is_empty()
            && rollback.is_empty()
            && activate.is_empty()
            && problems.is_empty()
            && regate.is_empty()
            && apply.is_empty()
            && remove.is_empty()
            && withdraw.is_empty()
            && explain.is_empty()
            && writes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(message: &str) -> Problem {
        Problem {
            kind: "Node",
            namespace: String::new(),
            name: "n".to_owned(),
            uid: "u".to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn problem_is_reported_once_until_the_object_changes() {
        let mut reported = ReportedProblems::default();
        for (found, want) in [
            (&["a", "b"][..], &["a", "b"][..]),
            (&["a", "b"], &[]),
            (&["b", "c"], &["c"]),
            (&["a", "b", "c"], &["a"]),
            (&[], &[]),
            (&["a"], &["a"]),
        ] {
            let mut fx = Effects::default();
            let problems = found.iter().map(|message| problem(message)).collect();
            reported.update("u", problems, &mut fx);
            let reported_texts: Vec<_> = fx
                .problems
                .iter()
                .map(|problem| &*problem.message)
                .collect();
            assert_eq!(reported_texts, want);
        }
        let mut fx = Effects::default();
        reported.remove("u");
        reported.update("u", vec![problem("a")], &mut fx);
        assert_eq!(fx.problems.len(), 1);
    }

    #[test]
    fn invalid_value_names_field_value_and_expectation() {
        let text = Problem::invalid("spec.min[cpu]", "-1", "0 or more");
        assert_eq!(
            text,
            r#"invalid value "-1" for spec.min[cpu]: expected 0 or more"#
        );
    }
}
