//! What disruption budgets leave.

use crate::framework::Why;
use crate::state::{PodInfo, Snapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::selector;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// One budget.
#[derive(Debug, Clone)]
struct Budget {
    name: String,
    selector: LabelSelector,
    /// How many more pods may be disrupted; `None` when its controller has not said so of it as it is now.
    left: Option<i32>,
}

/// What the budgets of a snapshot leave, and less with each pod that is counted.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    of_namespace: FxHashMap<String, Vec<Budget>>,
    counted: FxHashSet<Arc<str>>,
}

impl Budgets {
    /// As they stand.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut of_namespace = FxHashMap::<String, Vec<Budget>>::default();
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
            of_namespace.entry(namespace).or_default().push(Budget {
                name: meta.name.clone().unwrap_or_default(),
                selector,
                left: current.map(|status| status.disruptions_allowed),
            });
        }
        let counted = FxHashSet::default();
        Self {
            of_namespace,
            counted,
        }
    }

    /// Whether budgets would let `pod` be evicted. Of a pod that is not ready that is not known here.
    ///
    /// # Errors
    /// They would not: the API server would refuse it, however often it is asked.
    pub fn check(&self, pod: &PodInfo) -> Result<(), Why> {
        if !pod.is_ready() {
            return Ok(());
        }
        let keeps = |said: String| Err(Why::new("PodDisruptionBudget", said));
        let mut budgets = self.of(pod);
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

    /// `pod` goes; once for each pod.
    pub fn count(&mut self, pod: &PodInfo) {
        if !pod.is_ready() || !self.counted.insert(pod.uid.clone()) {
            return;
        }
        let budgets = self.of_namespace.get_mut(&*pod.namespace);
        for budget in budgets.into_iter().flatten() {
            if selects(&budget.selector, pod) {
                budget.left = budget.left.map(|left| left.saturating_sub(1));
            }
        }
    }

    fn of(&self, pod: &PodInfo) -> impl Iterator<Item = &Budget> {
        let budgets = self.of_namespace.get(&*pod.namespace);
        let budgets = budgets.into_iter().flatten();
        budgets.filter(|budget| selects(&budget.selector, pod))
    }
}

fn selects(selector: &LabelSelector, pod: &PodInfo) -> bool {
    selector::matches(selector, &pod.shape.labels).unwrap_or(false)
}
