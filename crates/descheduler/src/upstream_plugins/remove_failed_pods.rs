//! `RemoveFailedPods`: evicts pods that failed and were not cleaned up.

use super::{
    check_namespaces, check_selected, exit_code, seconds_since, state_reason, statuses, try_evict,
};
use crate::framework::{Cycle, SkipReason, Strategy, StrategyError};
use crate::rules::Namespaces;
use crate::state::{Phase, PodInfo};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

pub(super) const NAME: &str = "RemoveFailedPods";

/// `RemoveFailedPodsArgs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Namespaces>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
    exclude_owner_kinds: Vec<String>,
    min_pod_lifetime_seconds: u64,
    reasons: Vec<String>,
    exit_codes: Vec<i32>,
    including_init_containers: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            namespaces: None,
            label_selector: None,
            exclude_owner_kinds: Vec::new(),
            min_pod_lifetime_seconds: 3600,
            reasons: Vec::new(),
            exit_codes: Vec::new(),
            including_init_containers: false,
        }
    }
}

pub(super) fn check(args: &Args) -> Result<(), String> {
    check_namespaces(args.namespaces.as_ref())
}

#[derive(Debug)]
pub(super) struct RemoveFailedPods(pub(super) Args);

impl Strategy for RemoveFailedPods {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let now = cycle.snapshot().now;
        for node in cycle.nodes() {
            let pods = cycle.pods_on(&node.name);
            for pod in pods.into_iter().filter(|pod| pod.phase == Phase::Failed) {
                match self.0.judge(pod, now) {
                    Ok(reason) => _ = try_evict(cycle, pod, reason),
                    Err(cause) => cycle.skip_pod(pod, cause),
                }
            }
        }
        Ok(())
    }
}

impl Args {
    /// Returns the reason to evict the failed `pod`, or why it stays.
    fn judge(&self, pod: &PodInfo, now: Timestamp) -> Result<String, SkipReason> {
        check_selected(self.namespaces.as_ref(), self.label_selector.as_ref(), pod)?;
        let (age, least) = (
            seconds_since(pod.created, now).unwrap_or(0),
            self.min_pod_lifetime_seconds,
        );
        if age < least {
            let detail = format!("it lives for {age} s, which is less than {least} s");
            return Err(SkipReason::new("TooYoung", detail));
        }
        let excluded = |kind: &str| self.exclude_owner_kinds.iter().any(|other| other == kind);
        if let Some(owner) = pod.owners.iter().find(|owner| excluded(&owner.kind)) {
            return Err(SkipReason::new(
                "ExcludeOwnerKinds",
                format!("a {} owns it", owner.kind),
            ));
        }
        let mut reason = "failed".to_owned();
        let containers = || statuses(pod, self.including_init_containers, false);
        if !self.reasons.is_empty() {
            let reasons = containers().filter_map(state_reason).chain([&*pod.reason]);
            let mut actual = reasons.filter(|reason| !reason.is_empty());
            let Some(found) =
                actual.find(|actual| self.reasons.iter().any(|listed| listed == actual))
            else {
                let detail = format!("it failed for none of {}", self.reasons.join(", "));
                return Err(SkipReason::new("Reasons", detail));
            };
            reason += &format!(", {found}");
        }
        if !self.exit_codes.is_empty() {
            let mut codes = containers().filter_map(exit_code);
            let Some(code) = codes.find(|code| self.exit_codes.contains(code)) else {
                return Err(SkipReason::new(
                    "ExitCodes",
                    "no container ended with one of exitCodes",
                ));
            };
            reason += &format!(", exit code {code}");
        }
        Ok(reason)
    }
}
