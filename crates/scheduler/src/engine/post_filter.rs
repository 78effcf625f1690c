//! The post-filter phase: plugins may make room for a pod that no node fits.

use super::cycle::CycleError;
use super::extender_calls::Resume;
use super::measure::Point;
use super::plugin_table::PluginTable;
use super::preempt::{PreemptionOutcome, PreemptionRequest, VictimSearch};
use super::{Engine, group_preemption};
use crate::framework::{Cycle, Diagnosis, Effects, Instance, PostFilterResult, View};
use crate::state::PodInfo;
use jiff::Timestamp;
use std::sync::Arc;

impl Engine {
    /// Runs the post-filter plugins for a refused pod; with `resume`, those after the plugin that found
    /// victims. Returns `Ok` if extenders must review the victims first.
    pub(super) fn post_filter(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        stop: CycleError,
        resume: Resume,
        now: Timestamp,
    ) -> Result<Option<Arc<str>>, CycleError> {
        let CycleError::Refused(mut diagnosis) = stop else {
            return Err(stop);
        };
        let Resume {
            after,
            mut messages,
            mut waits,
        } = resume;
        let is_void =
            self.cluster.nodes.is_empty() || self.table.profiles[profile].post_filter.is_empty();
        if after.is_none() && is_void {
            diagnosis.nominated = Some(String::new());
        }
        let (mut room, mut shown, mut together) = (None, None, None);
        let shows = self.calls.reviews_victims(pod);
        let view = self.cluster.view(now);
        let meter = &self.telemetry.meter;
        let mut company = self
            .table
            .prepare_group_members(&self.queue, meter, view, pod, profile);
        self.table.prepare_state(meter, pod, profile, view);
        let mut laps =
            self.telemetry
                .meter
                .start_always(&self.table.names, profile, Point::PostFilter);
        laps.ended("Unschedulable");
        let filter_plugins = self.table.filter_plugins_for(pod);
        let instances = &self.table.profiles[profile].post_filter;
        let had = |at: &Instance| instances.iter().position(|instance| instance == at);
        let instances = instances
            .iter()
            .skip(after.as_ref().and_then(had).map_or(0, |index| index + 1));
        for instance in instances.filter(|index| filter_plugins & (1 << **index) != 0) {
            let cycle = Cycle::new(pod, view);
            let mut besides = String::new();
            let answer = match self.table.plugins[*instance].post_filter() {
                Some(role) => role.post_filter(&cycle, &diagnosis),
                None => PostFilterResult::Unhelpful(String::new()),
            };
            let text = match answer {
                PostFilterResult::Nominated(node) => {
                    diagnosis.nominated = Some(node.to_string());
                    break;
                }
                // A holder does not run yet: no pod is evicted for it unless the rules allow that.
                PostFilterResult::Preempt(rules) if pod.is_holder() && !rules.for_holders => {
                    format!("{}not eligible to evict pods.", rules.prefix)
                }
                PostFilterResult::Preempt(mut rules) => {
                    besides = std::mem::take(&mut rules.besides);
                    self.preemptor.searches += 1;
                    let mut preemption_cache = std::mem::take(&mut self.classes.preemption_cache);
                    let request = PreemptionRequest {
                        pod,
                        profile,
                        owner: *instance,
                        rules: &rules,
                        diagnosis: &diagnosis,
                    };
                    let mut all = Vec::new();
                    let search = VictimSearch::new(self);
                    let attempt =
                        search.find_victims(&request, &mut preemption_cache, &mut all, now);
                    preemption_cache.keep_within(self.options.class_bytes);
                    self.classes.preemption_cache = preemption_cache;
                    match attempt {
                        PreemptionOutcome::Room(_) if shows => {
                            shown = Some((*instance, all));
                            break;
                        }
                        PreemptionOutcome::Room(plan) => {
                            laps.lap(*instance, || "Success");
                            room = Some((*instance, plan));
                            break;
                        }
                        PreemptionOutcome::Hopeless(text) => {
                            if !waits {
                                diagnosis.nominated = Some(String::new());
                            }
                            text
                        }
                        PreemptionOutcome::Ineligible(text) => text,
                        // Another plugin that cannot help must not clear the nomination.
                        PreemptionOutcome::Waits(text) => {
                            waits = true;
                            diagnosis.nominated = None;
                            text
                        }
                    }
                }
                PostFilterResult::PreemptForGroup(group) => {
                    self.preemptor.searches += 1;
                    let attempt = VictimSearch::new(self).plan_group_preemption(
                        pod,
                        profile,
                        &group,
                        std::mem::take(&mut company),
                        now,
                    );
                    let succeeded = matches!(attempt, group_preemption::GroupOutcome::Room(_));
                    laps.lap(*instance, || {
                        if succeeded {
                            "Success"
                        } else {
                            "Unschedulable"
                        }
                    });
                    together = Some(group_preemption::GroupAttempt {
                        by: *instance,
                        prefix: group.rules.prefix,
                        attempt,
                        pending: group.pending,
                        held: group.held,
                    });
                    break;
                }
                PostFilterResult::Decided(text) => {
                    laps.lap(*instance, || "Unschedulable");
                    diagnosis.nominated = None;
                    messages.push(text);
                    break;
                }
                PostFilterResult::Unhelpful(text) => text,
            };
            laps.lap(*instance, || "Unschedulable");
            // Two plugins that find no victims return the same text; it is added once.
            for text in [text, besides] {
                if !text.is_empty() && !messages.contains(&text) {
                    messages.push(text);
                }
            }
        }
        drop(laps);
        if let Some((instance, plans)) = shown {
            let resume = Resume {
                after: Some(instance),
                messages,
                waits,
            };
            let nodes = &self.cluster.nodes;
            let request = self
                .calls
                .request_victims(pod, nodes, plans, (diagnosis, resume));
            self.outbox.push(request);
            return Ok(None);
        }
        if let Some((instance, plan)) = room {
            let parts = (&mut self.cluster.nodes, &mut self.outbox);
            let node = self.preemptor.claim(parts, pod, plan.node);
            let by = self.table.names[instance];
            self.evict_victims(pod, &node, plan.victims.clone(), by, now);
            diagnosis.nominated = Some(node.to_string());
        }
        if let Some(tried) = together {
            self.finish_group_attempt(pod, tried, &mut diagnosis, &mut messages, now);
        }
        // If room was made, the earlier messages no longer matter.
        if diagnosis
            .nominated
            .as_ref()
            .is_some_and(|node| !node.is_empty())
        {
            messages.clear();
        }
        diagnosis.post_filter_message = messages.join(", ");
        let (view, mut fx) = (self.cluster.view(now), Effects::default());
        self.table
            .after_post_filter(view, pod, profile, &mut diagnosis, &mut fx);
        self.apply(fx, now);
        self.preemptor.kept.clear();
        Err(CycleError::Refused(diagnosis))
    }
}

impl PluginTable {
    /// Calls the plugins after all post-filters with the result for a refused pod.
    pub(super) fn after_post_filter(
        &mut self,
        view: View<'_>,
        pod: &Arc<PodInfo>,
        profile: usize,
        diagnosis: &mut Diagnosis,
        fx: &mut Effects,
    ) {
        let tracking_plugins = self.tracking_plugins_for(pod);
        let instances = self.profiles[profile].post_filter.iter();
        for instance in instances.filter(|index| tracking_plugins & (1 << **index) != 0) {
            let cycle = Cycle::new(pod, view);
            if let Some(role) = self.plugins[*instance].post_filter_transformer() {
                role.after_post_filter(&cycle, diagnosis, fx);
            }
        }
    }
}
