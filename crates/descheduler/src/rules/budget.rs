//! Remaining disruptions of PodDisruptionBudgets.

use super::SkipReason;
use crate::state::{PodInfo, Snapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::selector;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// A PodDisruptionBudget.
#[derive(Debug, Clone)]
struct Budget {
    name: String,
    selector: LabelSelector,
    /// Remaining disruptions; `None` if the status is older than the current generation.
    left: Option<i32>,
}

/// The budgets of a namespace. There may be as many as workloads, so each is indexed by the rarest label that
/// its selector requires.
#[derive(Debug, Clone, Default)]
struct Namespace {
    budgets: Vec<Budget>,
    /// Indexes of budgets by label and value.
    by_label: FxHashMap<String, FxHashMap<String, Vec<usize>>>,
    /// Indexes of budgets whose selector requires no label by name and value.
    unlabeled: Vec<usize>,
}

impl Namespace {
    fn new(budgets: Vec<Budget>) -> Self {
        let mut label_uses = FxHashMap::<(&str, &str), usize>::default();
        for (label, value) in budgets.iter().flat_map(|budget| labels(&budget.selector)) {
            *label_uses.entry((label, value)).or_default() += 1;
        }
        let mut by_label = FxHashMap::<String, FxHashMap<String, Vec<usize>>>::default();
        let mut unlabeled = Vec::new();
        for (at, budget) in budgets.iter().enumerate() {
            let rarest = labels(&budget.selector).min_by_key(|pair| label_uses.get(pair).copied());
            match rarest {
                Some((label, value)) => by_label
                    .entry(label.to_owned())
                    .or_default()
                    .entry(value.to_owned())
                    .or_default()
                    .push(at),
                None => unlabeled.push(at),
            }
        }
        Self {
            budgets,
            by_label,
            unlabeled,
        }
    }

    /// Returns the indexes of the budgets that select `pod`, in order.
    fn matching(&self, pod: &PodInfo) -> Vec<usize> {
        let labels = pod.shape.labels.iter();
        let named = labels.filter_map(|(label, value)| self.by_label.get(label)?.get(value));
        let all = named.flatten().chain(&self.unlabeled).copied();
        let selects = |at: &usize| {
            let budget = self.budgets.get(*at);
            budget.is_some_and(|budget| selects(&budget.selector, pod))
        };
        let mut matches: Vec<_> = all.filter(selects).collect();
        matches.sort_unstable();
        matches
    }
}

/// Returns the labels that a selector requires by name and value.
fn labels(selector: &LabelSelector) -> impl Iterator<Item = (&str, &str)> {
    let labels = selector.match_labels.iter().flatten();
    labels.map(|(label, value)| (label.as_str(), value.as_str()))
}

/// Remaining disruptions of the budgets in a snapshot, reduced by each counted pod.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    by_namespace: FxHashMap<String, Namespace>,
    counted: FxHashSet<Arc<str>>,
}

impl Budgets {
    /// Builds the index from the current state of the budgets.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut by_namespace = FxHashMap::<String, Vec<Budget>>::default();
        for budget in &snapshot.budgets {
            let meta = &budget.metadata;
            let spec = budget.spec.as_ref();
            let Some(selector) = spec.and_then(|spec| spec.selector.clone()) else {
                continue;
            };
            let current = budget.status.as_ref().filter(|status| {
                status.observed_generation.unwrap_or(0) >= meta.generation.unwrap_or(0)
            });
            let namespace = meta.namespace.clone().unwrap_or_default();
            by_namespace.entry(namespace).or_default().push(Budget {
                name: meta.name.clone().unwrap_or_default(),
                selector,
                left: current.map(|status| status.disruptions_allowed),
            });
        }
        let by_namespace = by_namespace.into_iter();
        let by_namespace = by_namespace.map(|(name, budgets)| (name, Namespace::new(budgets)));
        Self {
            by_namespace: by_namespace.collect(),
            counted: FxHashSet::default(),
        }
    }

    /// Checks whether budgets allow `pod` to be evicted. Pods that are not ready always pass, as the answer
    /// depends on more than is known here.
    ///
    /// # Errors
    /// Returns the budget that forbids it: the API server would refuse the eviction on every attempt.
    pub fn check(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        if !pod.is_ready() {
            return Ok(());
        }
        let keeps = |said: String| Err(SkipReason::new("PodDisruptionBudget", said));
        let mut budgets = self.matching(pod);
        let Some(budget) = budgets.next() else {
            return Ok(());
        };
        if let Some(other) = budgets.next() {
            let (one, other) = (&budget.name, &other.name);
            return keeps(format!(
                "budgets {one} and {other} both select it: no such pod is evicted"
            ));
        }
        match budget.left {
            Some(left) if left <= 0 => {
                keeps(format!("budget {} allows no more disruptions", budget.name))
            }
            _ => Ok(()),
        }
    }

    /// Counts the eviction of `pod` against its budgets; each pod counts once.
    pub fn count(&mut self, pod: &PodInfo) {
        if !pod.is_ready() || !self.counted.insert(pod.uid.clone()) {
            return;
        }
        let Some(of) = self.by_namespace.get_mut(&*pod.namespace) else {
            return;
        };
        for index in of.matching(pod) {
            if let Some(budget) = of.budgets.get_mut(index) {
                budget.left = budget.left.map(|remaining| remaining.saturating_sub(1));
            }
        }
    }

    fn matching(&self, pod: &PodInfo) -> impl Iterator<Item = &Budget> {
        let in_namespace = self.by_namespace.get(&*pod.namespace);
        in_namespace.into_iter().flat_map(|in_namespace| {
            let matches = in_namespace.matching(pod).into_iter();
            matches.filter_map(|index| in_namespace.budgets.get(index))
        })
    }
}

fn selects(selector: &LabelSelector, pod: &PodInfo) -> bool {
    selector::matches(selector, &pod.shape.labels).unwrap_or(false)
}
