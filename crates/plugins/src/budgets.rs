//! Who is spared when room is made: disruption budgets, and a label.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_api::labels::DISABLE_PREEMPTIBLE;
use koord_api::selector;
use koord_scheduler::framework::{Action, ObjectChange, Problem, RulesVersion};
use koord_scheduler::state::PodInfo;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kind, as plugins watch it.
pub(crate) const BUDGETS: &str = "poddisruptionbudgets.v1.policy";

/// The id of a budget that never runs out.
const ENDLESS: u64 = u64::MAX;

/// Whether the pod's label spares it from every preemption.
pub(crate) fn is_spared(pod: &PodInfo) -> bool {
    let labels = pod.object.metadata.labels.as_ref();
    let value = labels.and_then(|labels| labels.get(DISABLE_PREEMPTIBLE));
    value.is_some_and(|value| value == "true")
}

/// Disruption budgets, as the informer shows them.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    version: RulesVersion,
    by_namespace: BTreeMap<String, BTreeMap<String, Arc<PodDisruptionBudget>>>,
    ids: BTreeMap<(String, String), u64>,
}

impl Budgets {
    /// Takes note of a change; says what cannot be understood.
    pub(crate) fn apply(
        &mut self,
        change: &ObjectChange,
        budget: &PodDisruptionBudget,
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
        let known = all.get(&name);
        if known.is_some_and(|known| selector(known) == selector(budget)) {
            self.version.allowances += 1;
        } else {
            self.version.rules += 1;
        }
        let next = self.ids.len() as u64;
        self.ids
            .entry((namespace.clone(), name.clone()))
            .or_insert(next);
        all.insert(name.clone(), Arc::new(budget.clone()));
        let selector = budget
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref())?;
        let error = selector::matches(selector, &BTreeMap::new()).err()?;
        Some(Problem {
            kind: "PodDisruptionBudget",
            namespace,
            name,
            uid: meta.uid.clone().unwrap_or_default(),
            message: format!("spec.selector: the budget is ignored by preemption: {error}"),
        })
    }

    /// Changes with what [`Self::of`] may say.
    pub(crate) fn version(&self) -> RulesVersion {
        self.version
    }

    /// Per budget that covers `pod`: an id, and how many more evictions it allows. One that has
    /// counted the pod as disrupted already has no end; one without a selector says nothing.
    pub(crate) fn of(&self, pod: &PodInfo) -> Vec<(u64, i64)> {
        let labels = pod.object.metadata.labels.as_ref();
        let (Some(labels), Some(budgets)) = (
            labels.filter(|labels| !labels.is_empty()),
            self.by_namespace.get(&*pod.namespace),
        ) else {
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
