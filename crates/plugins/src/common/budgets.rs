//! Pods protected from preemption: PodDisruptionBudgets and the labels that disable preemption.

use crate::common::trim::Trimmer;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_api::labels::{DISABLE_PREEMPTIBLE, POD_PREEMPTIBLE};
use koord_api::selector;
use koord_api::texts::Texts;
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BuildContext, Effects, Index, IndexKind, ObjectChange, Problem, RulesVersion, View,
};
use koord_scheduler::state::PodInfo;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Kind of PodDisruptionBudget.
pub(crate) const BUDGETS: &str = "poddisruptionbudgets.v1.policy";

/// Id of a budget that is never exhausted, because it already counts the pod as disrupted.
const ENDLESS: u64 = u64::MAX;

/// Returns true if a label protects `pod` from every preemption.
pub(crate) fn is_protected(pod: &PodInfo) -> bool {
    pod.label(DISABLE_PREEMPTIBLE) == Some("true")
}

/// Returns true if `pod` uses the guaranteed part (min) of its quota, so that neither pods of that quota nor
/// gangs may preempt it.
pub(crate) fn is_non_preemptible(pod: &PodInfo) -> bool {
    pod.label(POD_PREEMPTIBLE) == Some("false")
}

/// Setting that makes preemption respect PodDisruptionBudgets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BudgetChecks(bool);

impl BudgetChecks {
    /// Reads the setting from the feature gates.
    pub(crate) fn from_gates(context: &BuildContext) -> Self {
        let gate = |name: &str, default| context.gates.get(name).copied().unwrap_or(default);
        let off = gate("DisablePodDisruptionBudgetInformer", false);
        Self(gate("PodDisruptionBudget", true) && !off)
    }

    /// Returns the watch of PodDisruptionBudgets, if preemption respects them.
    pub(crate) fn watch(self) -> Option<Watch> {
        self.0
            .then(|| Watch::trimmed::<PodDisruptionBudget, Trimmer>(BUDGETS))
    }

    /// Returns the index of PodDisruptionBudgets, if preemption respects them.
    pub(crate) fn index(self) -> Option<IndexKind> {
        self.0.then(IndexKind::new::<Budgets>)
    }
}

/// Returns the id and the remaining evictions of each budget that covers `pod`. A budget that already counts
/// the pod as disrupted has no limit (`i64::MAX`); budgets without a selector are ignored.
pub(crate) fn covering(view: View<'_>, pod: &PodInfo) -> Vec<(u64, i64)> {
    let budgets = view.index::<Budgets>();
    budgets.map_or_else(Vec::new, |budgets| budgets.covering(pod))
}

/// Returns a version that changes whenever the result of [`covering`] may change.
pub(crate) fn version(view: View<'_>) -> RulesVersion {
    let budgets = view.index::<Budgets>();
    budgets.map_or_else(RulesVersion::default, |budgets| budgets.version)
}

/// PodDisruptionBudgets, as received from the informer.
#[derive(Debug, Default)]
struct Budgets {
    version: RulesVersion,
    by_namespace: BTreeMap<String, BTreeMap<String, Arc<PodDisruptionBudget>>>,
    ids: BTreeMap<(String, String), u64>,
}

impl Index for Budgets {
    fn on_object(&mut self, change: &ObjectChange, fx: &mut Effects) {
        if let Ok(budget) = change.new.clone().downcast::<PodDisruptionBudget>() {
            fx.problems.extend(self.apply(change, &budget));
        }
    }
}

impl Budgets {
    /// Applies a change of a budget. Returns a problem if its selector is invalid.
    fn apply(
        &mut self,
        change: &ObjectChange,
        budget: &Arc<PodDisruptionBudget>,
    ) -> Option<Problem> {
        let meta = &budget.metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        let name = meta.name.clone().unwrap_or_default();
        let all = self.by_namespace.entry(namespace.clone()).or_default();
        if change.action == Action::DELETE {
            all.remove(&name);
            self.version.rules += 1;
            return None;
        }
        let selector = |budget: &PodDisruptionBudget| Some(budget.spec.as_ref()?.selector.clone());
        let existing = all.get(&name);
        if existing.is_some_and(|existing| selector(existing) == selector(budget)) {
            self.version.allowances += 1;
        } else {
            self.version.rules += 1;
        }
        let next = self.ids.len() as u64;
        self.ids
            .entry((namespace.clone(), name.clone()))
            .or_insert(next);
        all.insert(name.clone(), budget.clone());
        let selector = budget
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())?;
        let error = selector::matches(selector, &Texts::default()).err()?;
        Some(Problem {
            kind: "PodDisruptionBudget",
            namespace,
            name,
            uid: meta.uid.clone().unwrap_or_default(),
            message: format!("spec.selector: the budget is ignored by preemption: {error}"),
        })
    }

    /// Returns the id and the remaining evictions of each budget that covers `pod`; see [`covering`].
    fn covering(&self, pod: &PodInfo) -> Vec<(u64, i64)> {
        let labels = pod.labels();
        let budgets = self.by_namespace.get(&*pod.namespace);
        let Some(budgets) = budgets.filter(|_| !labels.is_empty()) else {
            return Vec::new();
        };
        let covers = |budget: &PodDisruptionBudget| {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            selector.is_some_and(|selector| {
                let empty = selector.match_labels.iter().flatten().next().is_none()
                    && selector.match_expressions.iter().flatten().next().is_none();
                !empty && selector::matches(selector, labels).unwrap_or(false)
            })
        };
        let mut out = Vec::new();
        for (name, budget) in budgets.iter().filter(|(_, budget)| covers(budget)) {
            let status = budget.status.as_ref();
            let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
            if disrupted.is_some_and(|pods| pods.contains_key(&*pod.name)) {
                out.push((ENDLESS, i64::MAX));
                continue;
            }
            let allowed = status.map_or(0, |status| i64::from(status.disruptions_allowed));
            let key = (pod.namespace.to_string(), name.clone());
            out.push((self.ids.get(&key).copied().unwrap_or_default(), allowed));
        }
        out
    }
}
