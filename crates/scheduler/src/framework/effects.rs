//! What plugins ask of the engine.

#[cfg(doc)]
use super::PreEnqueue;
use super::{Family, Reason};
use crate::state::{NodeIndex, PodInfo};
use rustc_hash::FxHashMap;
use std::fmt::Debug;
use std::sync::Arc;

/// A write to the API.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Group, empty for the core group.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Plural, lower case.
    pub plural: &'static str,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// What is written.
    pub verb: Verb,
    /// What measures it, if anything does.
    pub timed: Option<Timed>,
}

/// A histogram without labels that takes how long a [`Write`] took, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Timed(pub &'static Family);

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

/// An event about a pod that was refused, beside the one that says why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The event's reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}

/// What a [`Write`] does.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    /// A JSON merge patch of the object.
    Patch(serde_json::Value),
    /// A JSON merge patch of its status subresource.
    PatchStatus(serde_json::Value),
    /// Creates the object; that it exists already is no failure.
    Create(serde_json::Value),
    /// Deletes the object; the uid, if not empty, must match.
    Delete(String),
    /// Asks for the eviction of the pod with this uid, which disruption budgets may refuse.
    Evict(String),
}

/// An object that could not be understood, to be reported on the object itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `Pod`, `Node`, ...
    pub kind: &'static str,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's uid.
    pub uid: String,
    /// Names the key and the value.
    pub message: String,
}

impl Problem {
    /// Returns the text for a value that is not used: the field, the value, and what is expected.
    #[must_use]
    pub fn invalid(field: &str, value: impl Debug, expected: &str) -> String {
        format!("invalid value {value:?} for {field}: expected {expected}")
    }
}

/// The problems of objects that were reported, by what identifies the objects of a kind: a uid, or a name.
/// Each is reported once, until the object changes in that.
#[derive(Debug, Default)]
pub struct ReportedProblems(FxHashMap<Arc<str>, Vec<Problem>>);

impl ReportedProblems {
    /// Reports those of `found` that were not among the last ones of this object. Without any, the object
    /// is forgotten.
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

    /// Forgets an object that is gone.
    pub fn forget(&mut self, object: &str) {
        self.0.remove(object);
    }
}

/// What a plugin asks of the engine while it digests an event.
#[derive(Debug, Default)]
pub struct Effects {
    /// Nodes whose verdicts or scores may have changed.
    pub touched: Vec<NodeIndex>,
    /// All of them.
    pub touch_all: bool,
    /// Pods (by uid) that are on no node and take something else than before wherever they go: nodes
    /// that keep room for them are touched. Whether any does need not be known.
    pub imagined: Vec<Arc<str>>,
    /// Waiting pods (by uid) that may bind as far as this plugin is concerned.
    pub allow: Vec<(Arc<str>, &'static str)>,
    /// Waiting pods that must give back what they hold, and why.
    pub reject: Vec<(Arc<str>, &'static str, Reason)>,
    /// As `reject`, for pods of a group that went from booking to giving back with no decision in
    /// between: nobody was refused because of them, so nobody is tried again because they go.
    pub rollback: Vec<(Arc<str>, &'static str, Reason)>,
    /// Refused pods (by uid) to try again at once.
    pub activate: Vec<Arc<str>>,
    /// Objects that could not be understood.
    pub problems: Vec<Problem>,
    /// Queued pods (by uid) whose [`PreEnqueue::pre_enqueue`] answer may have changed.
    pub regate: Vec<Arc<str>>,
    /// Pods that stand for other objects, to be treated as if the informer had delivered them: new
    /// ones, or known ones that take more or less than before.
    pub apply: Vec<Arc<PodInfo>>,
    /// Such pods (by uid) that are gone.
    pub remove: Vec<Arc<str>>,
    /// Queued pods (by uid) that are not waiting for room any more that was being made for them.
    pub withdraw: Vec<Arc<str>>,
    /// Queued pods (by uid) that need no attempt of their own, and the text for their condition.
    pub explain: Vec<(Arc<str>, String)>,
    /// Writes to send. Failures are logged; a plugin that needs one to succeed compares what the
    /// informer shows with what it wants and asks again.
    pub writes: Vec<Write>,
}

impl Effects {
    /// Whether nothing is asked for, as after most events.
    pub(crate) fn is_empty(&self) -> bool {
        let Self {
            touched,
            touch_all,
            imagined,
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
            && imagined.is_empty()
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
            let found = found.iter().map(|message| problem(message)).collect();
            reported.update("u", found, &mut fx);
            let told: Vec<_> = fx
                .problems
                .iter()
                .map(|problem| &*problem.message)
                .collect();
            assert_eq!(told, want);
        }
        let mut fx = Effects::default();
        reported.forget("u");
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
