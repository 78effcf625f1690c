//! Preemption for gangs that do not fit: allowed victims, and one attempt per gang attempt.

use super::Coscheduling;
use crate::common::budgets::{self, is_non_preemptible, is_protected};
use koord_model::gang::Job;
use koord_scheduler::framework::{
    Cycle, Diagnosis, GroupPreemption, PostFilter, PostFilterResult, Preemption, RulesVersion, View,
};
use koord_scheduler::state::PodInfo;
use std::sync::Arc;

impl Coscheduling {
    /// Returns true if any profile allows preemption for gangs.
    pub(super) fn preempts(&self) -> bool {
        self.settings.all().any(|settings| settings.preempts)
    }

    /// Returns the preemption rules for pods of `group`, or for a pod that is scheduled alone if `None`.
    fn rules<'a>(&'a self, view: View<'a>, group: Option<Arc<str>>) -> Preemption<'a> {
        Preemption {
            prefix: "preemption: ",
            min_candidate_percentage: 10,
            min_candidate_absolute: 100,
            may_evict: Box::new(move |pod| {
                let mate = || {
                    let victim_group = self.gangs.group_of(&pod.uid);
                    group.is_some() && victim_group == group.as_ref()
                };
                !is_protected(pod) && !is_non_preemptible(pod) && !mate()
            }),
            awaits: None,
            suffices: Box::new(|_| true),
            budgets: Box::new(move |pod| budgets::covering(view, pod)),
            for_holders: false,
            besides: String::new(),
            pool: None,
        }
    }

    /// Returns the message for further members if preemption already ran in the current attempt.
    fn earlier_result(&self, job: &Job) -> Option<&str> {
        let (attempt, message) = self.preempted.as_ref()?;
        (job.attempt == Some(*attempt)).then_some(message)
    }

    /// Records that preemption ran in the current attempt, with the message for members that are tried later.
    pub(super) fn record_preemption(&mut self, uid: &str, message: &str) {
        if let Some(group) = self.gangs.group_of(uid).cloned() {
            self.gangs.promise(&group);
        }
        let attempt = self.gangs.current_attempt();
        self.preempted = attempt.map(|(number, _)| (number, message.to_owned()));
    }
}

impl PostFilter for Coscheduling {
    fn post_filter<'a>(
        &'a self,
        cycle: &Cycle<'a>,
        _diagnosis: &Diagnosis,
    ) -> PostFilterResult<'a> {
        let uid = &cycle.pod.uid;
        if !self.settings.for_pod(cycle.pod).preempts {
            return PostFilterResult::Unhelpful(String::new());
        }
        if self.gangs.schedules_alone(uid) {
            return PostFilterResult::Preempt(self.rules(cycle.view, None));
        }
        let Some(job) = self.gangs.job(uid) else {
            return PostFilterResult::Unhelpful(String::new());
        };
        if let Some(message) = self.earlier_result(&job) {
            return PostFilterResult::Decided(message.to_owned());
        }
        let group = job.group.clone();
        PostFilterResult::PreemptForGroup(Box::new(GroupPreemption {
            rules: self.rules(cycle.view, Some(job.group)),
            pending: job.pending,
            held: job.held,
            strict: job.strict,
            enough: Box::new(move |placed| {
                let uids = placed.iter().map(|pod| &*pod.uid);
                self.gangs.would_start(&group, uids)
            }),
        }))
    }
    fn group_members(&self, pod: &PodInfo) -> Vec<Arc<str>> {
        let preempts = self.settings.for_pod(pod).preempts;
        let job = preempts.then(|| self.gangs.job(&pod.uid)).flatten();
        let open = job.filter(|job| self.earlier_result(job).is_none());
        open.map(|job| job.pending).unwrap_or_default()
    }
    fn preemption_state(&self, view: View<'_>) -> Option<RulesVersion> {
        Some(budgets::version(view))
    }
}
