//! `DefaultPreemption`: evicts pods of lower priority for a pod that does not fit.
//!
//! The engine searches for victims; this plugin provides the limits and the disruption budgets.

use crate::common::args::invalid;
use crate::common::budgets::{self, is_protected};
use koord_scheduler::Watch;
use koord_scheduler::framework::{
    Action, BoxedPlugin, BuildContext, BuildError, Cycle, Diagnosis, Holders, IndexKind, Inputs,
    Interest, Plugin, Points, PostFilter, PostFilterResult, Preemption, QueueHints, Roles,
    RulesVersion, Subject, View,
};
use serde::Deserialize;
use serde_json::Value;

pub(crate) const NAME: &str = "DefaultPreemption";

/// DefaultPreemptionArgs.
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
    /// Validates the limits of candidate nodes.
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

/// State of the `DefaultPreemption` plugin.
#[derive(Debug)]
pub(crate) struct DefaultPreemption {
    args: Args,
    budgets: budgets::BudgetChecks,
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let args: Args = crate::common::args::decode(NAME, value)?;
    args.validate()?;
    Ok(Box::new(DefaultPreemption {
        args,
        budgets: budgets::BudgetChecks::from_gates(context),
    }))
}

impl Plugin for DefaultPreemption {
    const ROLES: Roles<Self> = Roles::none().inputs().queue_hints().post_filter();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        Points::POST_FILTER
    }
    fn holders(&self) -> Holders {
        Holders::Judged
    }
}

impl Inputs for DefaultPreemption {
    fn watches(&self) -> Vec<Watch> {
        self.budgets.watch().into_iter().collect()
    }
    fn indexes(&self) -> Vec<IndexKind> {
        self.budgets.index().into_iter().collect()
    }
}

impl QueueHints for DefaultPreemption {
    fn interests(&self) -> Vec<Interest> {
        vec![Interest {
            subject: Subject::AssignedPod,
            actions: Action::DELETE,
        }]
    }
}

impl PostFilter for DefaultPreemption {
    fn post_filter<'a>(
        &'a self,
        cycle: &Cycle<'a>,
        _diagnosis: &Diagnosis,
    ) -> PostFilterResult<'a> {
        let view = cycle.view;
        PostFilterResult::Preempt(Preemption {
            prefix: "preemption: ",
            min_candidate_percentage: self.args.min_candidate_nodes_percentage,
            min_candidate_absolute: self.args.min_candidate_nodes_absolute,
            may_evict: Box::new(|pod| !is_protected(pod)),
            awaits: None,
            suffices: Box::new(|_| true),
            budgets: Box::new(move |pod| budgets::covering(view, pod)),
            for_holders: false,
            besides: String::new(),
            pool: None,
        })
    }
    fn preemption_state(&self, view: View<'_>) -> Option<RulesVersion> {
        Some(budgets::version(view))
    }
}

#[cfg(test)]
mod tests;
