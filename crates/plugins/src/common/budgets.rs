//! Who is spared when room is made: disruption budgets, and a label.

use crate::common::slim::Slim;
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

pub(crate) const BUDGETS: &str = "poddisruptionbudgets.v1.policy";

/// The id of a budget that never runs out.
const ENDLESS: u64 = u64::MAX;

/// Whether the pod's label spares it from every preemption.
pub(crate) fn is_spared(pod: &PodInfo) -> bool {
    pod.label(DISABLE_PREEMPTIBLE) == Some("true")
}

/// Whether the pod takes what its quota guarantees, and is not to be preempted for pods of that quota or of
/// gangs.
pub(crate) fn is_non_preemptible(pod: &PodInfo) -> bool {
    pod.label(POD_PREEMPTIBLE) == Some("false")
}

/// Whether preemption looks at disruption budgets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looks(bool);

impl Looks {
    /// What the feature gates say.
    pub(crate) fn of(context: &BuildContext) -> Self {
        let gate = |name: &str, default| context.gates.get(name).copied().unwrap_or(default);
        let off = gate("DisablePodDisruptionBudgetInformer", false);
        Self(gate("PodDisruptionBudget", true) && !off)
    }

    /// The kind, if it is to be watched.
    pub(crate) fn watch(self) -> Option<Watch> {
        self.0
            .then(|| Watch::of_trimmed::<PodDisruptionBudget, Slim>(BUDGETS))
    }

    /// The index of budgets, if it is read.
    pub(crate) fn index(self) -> Option<IndexKind> {
        self.0.then(IndexKind::of::<Budgets>)
    }
}

/// Per budget that covers `pod`: an id, and how many more evictions it allows. One that has counted
/// the pod as disrupted already has no end; one without a selector says nothing.
pub(crate) fn covering(view: View<'_>, pod: &PodInfo) -> Vec<(u64, i64)> {
    let budgets = view.index::<Budgets>();
    budgets.map_or_else(Vec::new, |budgets| budgets.of(pod))
}

/// Changes with what [`covering`] may say.
pub(crate) fn version(view: View<'_>) -> RulesVersion {
    let budgets = view.index::<Budgets>();
    budgets.map_or_else(RulesVersion::default, |budgets| budgets.version)
}

/// Disruption budgets, as the informer shows them.
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
    /// Takes note of a change; says what cannot be understood.
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

    fn of(&self, pod: &PodInfo) -> Vec<(u64, i64)> {
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
