//! `RemovePodsHavingTooManyRestarts`: evicts pods that restarted too often.

use super::{check_listed, check_namespaces, check_selected, statuses, try_evict};
use crate::framework::{Cycle, SkipReason, Strategy, StrategyError};
use crate::rules::Namespaces;
use crate::state::{ContainerState, PodInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

pub(super) const NAME: &str = "RemovePodsHavingTooManyRestarts";

/// `RemovePodsHavingTooManyRestartsArgs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Namespaces>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
    pod_restart_threshold: i32,
    including_init_containers: bool,
    states: Vec<String>,
}

pub(super) fn check(args: &Args) -> Result<(), String> {
    check_namespaces(args.namespaces.as_ref())?;
    let threshold = args.pod_restart_threshold;
    if threshold < 1 {
        return Err(format!("podRestartThreshold: {threshold} is less than 1"));
    }
    check_listed("states", &args.states, &["Running", "CrashLoopBackOff"])
}

#[derive(Debug)]
pub(super) struct TooManyRestarts(pub(super) Args);

impl Strategy for TooManyRestarts {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        for node in cycle.nodes() {
            let mut going = Vec::new();
            for pod in cycle.pods_on(&node.name) {
                let restarts = self.0.restarts(pod);
                match self.0.judge(pod, restarts) {
                    Ok(()) => going.push((restarts, pod)),
                    // A pod that never restarted need not be reported.
                    Err(_) if restarts == 0 => {}
                    Err(cause) => cycle.skip_pod(pod, cause),
                }
            }
            going.sort_by_key(|(restarts, _)| Reverse(*restarts));
            for (restarts, pod) in going {
                let threshold = self.0.pod_restart_threshold;
                let reason = format!("restarted {restarts} times, which is at least {threshold}");
                try_evict(cycle, pod, reason);
            }
        }
        Ok(())
    }
}

impl Args {
    fn restarts(&self, pod: &PodInfo) -> i64 {
        let statuses = statuses(pod, self.including_init_containers, false);
        statuses.map(|status| i64::from(status.restarts)).sum()
    }

    fn judge(&self, pod: &PodInfo, restarts: i64) -> Result<(), SkipReason> {
        check_selected(self.namespaces.as_ref(), self.label_selector.as_ref(), pod)?;
        let threshold = self.pod_restart_threshold;
        if restarts < i64::from(threshold) {
            let detail = format!("it restarted {restarts} times, which is less than {threshold}");
            return Err(SkipReason::new("FewRestarts", detail));
        }
        if self.states.is_empty() {
            return Ok(());
        }
        let waiting = statuses(pod, self.including_init_containers, false);
        let waiting = waiting.filter_map(|status| match &status.state {
            ContainerState::Waiting(reason) => Some(&**reason),
            _ => None,
        });
        let mut states = [pod.phase.as_str()].into_iter().chain(waiting);
        if states.any(|state| self.states.iter().any(|listed| listed == state)) {
            return Ok(());
        }
        let detail = format!("it is in none of the states {}", self.states.join(", "));
        Err(SkipReason::new("States", detail))
    }
}
