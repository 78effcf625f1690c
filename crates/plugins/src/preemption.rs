//! `DefaultPreemption`: a pod that fits nowhere may take the place of pods of lower priority.
//!
//! The search for victims is the engine's; here are its limits and the disruption budgets.

use crate::args::invalid;
use crate::budgets::{BUDGETS, Budgets, is_spared};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use koord_scheduler::Watch;
use koord_scheduler::engine::Diagnosis;
use koord_scheduler::framework::{
    Action, BuildContext, BuildError, Cycle, Effects, Holders, Interest, ObjectChange, Plugin,
    Points, PostFilter, Preemption, RulesVersion, Subject, View,
};
use serde::Deserialize;
use serde_json::Value;

pub(crate) const NAME: &str = "DefaultPreemption";

/// The plugin's arguments.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Args {
    min_candidate_nodes_percentage: i64,
    min_candidate_nodes_absolute: i64,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
        }
    }
}

impl Args {
    fn validate(self) -> Result<(), BuildError> {
        let (percentage, absolute) = (
            self.min_candidate_nodes_percentage,
            self.min_candidate_nodes_absolute,
        );
        if !(0..=100).contains(&percentage) {
            let message =
                format!("args.minCandidateNodesPercentage: {percentage} is not within 0 and 100");
            return Err(invalid(NAME, message));
        }
        if absolute < 0 {
            let message = format!("args.minCandidateNodesAbsolute: {absolute} is negative");
            return Err(invalid(NAME, message));
        }
        if percentage == 0 && absolute == 0 {
            let message = "args: minCandidateNodesPercentage and minCandidateNodesAbsolute \
                           cannot both be 0";
            return Err(invalid(NAME, message.to_owned()));
        }
        Ok(())
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct DefaultPreemption {
    args: Args,
    /// Whether budgets are looked at.
    protect: bool,
    budgets: Budgets,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<Box<dyn Plugin>, BuildError> {
    let args: Args = crate::args::decode(NAME, value)?;
    args.validate()?;
    let gate = |name: &str, default| context.gates.get(name).copied().unwrap_or(default);
    Ok(Box::new(DefaultPreemption {
        args,
        protect: gate("PodDisruptionBudget", true)
            && !gate("DisablePodDisruptionBudgetInformer", false),
        budgets: Budgets::default(),
    }))
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::POST_FILTER
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
    fn interests(&self) -> Vec<Interest> {
        vec![Interest {
            subject: Subject::AssignedPod,
            actions: Action::DELETE,
        }]
    }
    fn watches(&self) -> Vec<Watch> {
        let budgets = Watch::of::<PodDisruptionBudget>(BUDGETS);
        self.protect.then_some(budgets).into_iter().collect()
    }
    fn on_object(&mut self, change: &ObjectChange, _view: View<'_>, fx: &mut Effects) {
        if let Some(budget) = change.new_as::<PodDisruptionBudget>() {
            fx.problems.extend(self.budgets.apply(change, budget));
        }
    }
    fn post_filter<'a>(&'a self, _cycle: &Cycle<'a>, _diagnosis: &Diagnosis) -> PostFilter<'a> {
        PostFilter::Preempt(Preemption {
            prefix: "preemption: ",
            min_candidate_percentage: self.args.min_candidate_nodes_percentage,
            min_candidate_absolute: self.args.min_candidate_nodes_absolute,
            may_evict: Box::new(|pod| !is_spared(pod)),
            suffices: Box::new(|_| true),
            budgets: Box::new(|pod| self.budgets.of(pod)),
            pool: None,
        })
    }
    fn preemption_state(&self) -> Option<RulesVersion> {
        Some(self.budgets.version())
    }
}

#[cfg(test)]
mod tests;
