//! `PodLifeTime`: evicts pods that exist for too long, or that are in a state for too long.

use super::{
    check_listed, check_namespaces, check_selected, exit_code, seconds_since, state_reason,
    statuses, try_evict,
};
use crate::framework::{Cycle, SkipReason, Strategy, StrategyError};
use crate::rules::Namespaces;
use crate::state::{Condition, PodInfo};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

pub(super) const NAME: &str = "PodLifeTime";

/// Allowed values of `states`: phases, reasons of pods, and reasons why containers wait or ended.
const STATES: [&str; 24] = [
    "Running",
    "Pending",
    "Succeeded",
    "Failed",
    "Unknown",
    "NodeAffinity",
    "NodeLost",
    "Shutdown",
    "UnexpectedAdmissionError",
    "PodInitializing",
    "ContainerCreating",
    "ImagePullBackOff",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "ErrImagePull",
    "CreateContainerError",
    "InvalidImageName",
    "OOMKilled",
    "Error",
    "Completed",
    "DeadlineExceeded",
    "Evicted",
    "ContainerCannotRun",
    "StartError",
];

/// `PodLifeTimeArgs`. A pod is evicted if all conditions that are set hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Namespaces>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner_kinds: Option<OwnerKinds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_pod_life_time_seconds: Option<u64>,
    states: Vec<String>,
    conditions: Vec<ConditionFilter>,
    exit_codes: Vec<i32>,
    including_init_containers: bool,
    including_ephemeral_containers: bool,
}

/// Kinds of owners: only those in `include`, or all except those in `exclude`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OwnerKinds {
    include: Vec<String>,
    exclude: Vec<String>,
}

/// A condition that pods may have: one entry of `conditions`. Fields that are not set match any value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConditionFilter {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_time_since_last_transition_seconds: Option<u64>,
}

/// Checks the arguments of PodLifeTime.
pub(super) fn check(args: &Args) -> Result<(), String> {
    check_namespaces(args.namespaces.as_ref())?;
    if let Some(kinds) = &args.owner_kinds
        && !kinds.include.is_empty()
        && !kinds.exclude.is_empty()
    {
        return Err("ownerKinds: only one of include and exclude can be given".to_owned());
    }
    check_listed("states", &args.states, &STATES)?;
    let empty = |filter: &ConditionFilter| *filter == ConditionFilter::default();
    if let Some(at) = args.conditions.iter().position(empty) {
        return Err(format!(
            "conditions[{at}]: one of type, status, reason and minTimeSinceLastTransitionSeconds has to be given"
        ));
    }
    let none = args.max_pod_life_time_seconds.is_none()
        && args.states.is_empty()
        && args.conditions.is_empty()
        && args.exit_codes.is_empty();
    if none {
        return Err(
            "one of maxPodLifeTimeSeconds, states, conditions and exitCodes has to be given"
                .to_owned(),
        );
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct PodLifeTime(pub(super) Args);

impl Strategy for PodLifeTime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let now = cycle.snapshot().now;
        let mut going = Vec::new();
        for node in cycle.nodes() {
            for pod in cycle.pods_on(&node.name) {
                match self.0.judge(pod, now) {
                    Ok(reason) => going.push((pod, reason)),
                    Err(cause) => cycle.skip_pod(pod, cause),
                }
            }
        }
        // Limits and budgets may stop short of all of them, so the oldest are evicted first.
        going.sort_by_key(|(pod, _)| pod.created);
        for (pod, reason) in going {
            try_evict(cycle, pod, reason);
        }
        Ok(())
    }
}

impl Args {
    /// Returns the reason to evict `pod`, or why it stays.
    fn judge(&self, pod: &PodInfo, now: Timestamp) -> Result<String, SkipReason> {
        check_selected(self.namespaces.as_ref(), self.label_selector.as_ref(), pod)?;
        let mut reasons = Vec::new();
        if let Some(limit) = self.max_pod_life_time_seconds {
            match seconds_since(pod.created, now) {
                Some(age) if age > limit => {
                    reasons.push(format!("lives for {age} s, which is more than {limit} s"));
                }
                age => {
                    let detail = format!(
                        "it lives for {} s, which is not more than {limit} s",
                        age.unwrap_or(0)
                    );
                    return Err(SkipReason::new("TooYoung", detail));
                }
            }
        }
        if !self.states.is_empty() {
            let Some(state) = self.state_of(pod) else {
                let detail = format!("it is in none of the states {}", self.states.join(", "));
                return Err(SkipReason::new("States", detail));
            };
            reasons.push(format!("is in state {state}"));
        }
        self.check_owners(pod)?;
        if !self.conditions.is_empty() {
            let mut conditions = pod.conditions.iter();
            let fits = |of: &&Condition| self.conditions.iter().any(|filter| filter.fits(of, now));
            let Some(found) = conditions.find(fits) else {
                return Err(SkipReason::new("Conditions", "none of conditions is met"));
            };
            reasons.push(format!("has condition {}={}", found.kind, found.status));
        }
        if !self.exit_codes.is_empty() {
            let mut codes =
                statuses(pod, self.including_init_containers, false).filter_map(exit_code);
            let Some(code) = codes.find(|code| self.exit_codes.contains(code)) else {
                return Err(SkipReason::new(
                    "ExitCodes",
                    "no container ended with one of exitCodes",
                ));
            };
            reasons.push(format!("a container ended with {code}"));
        }
        Ok(reasons.join(", "))
    }

    fn state_of<'a>(&self, pod: &'a PodInfo) -> Option<&'a str> {
        let (init, ephemeral) = (
            self.including_init_containers,
            self.including_ephemeral_containers,
        );
        let containers = statuses(pod, init, ephemeral).filter_map(state_reason);
        let mut states = [pod.phase.as_str(), &*pod.reason]
            .into_iter()
            .chain(containers);
        states.find(|state| self.states.iter().any(|listed| listed == state))
    }

    fn check_owners(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        let Some(kinds) = &self.owner_kinds else {
            return Ok(());
        };
        let owned = |by: &[String]| {
            let mut owners = pod.owners.iter();
            owners.find(|owner| by.iter().any(|kind| **kind == *owner.kind))
        };
        if !kinds.include.is_empty() && owned(&kinds.include).is_none() {
            let detail = format!("none of {} owns it", kinds.include.join(", "));
            return Err(SkipReason::new("OwnerKinds", detail));
        }
        match owned(&kinds.exclude) {
            Some(owner) => Err(SkipReason::new(
                "OwnerKinds",
                format!("a {} owns it", owner.kind),
            )),
            None => Ok(()),
        }
    }
}

impl ConditionFilter {
    fn fits(&self, condition: &Condition, now: Timestamp) -> bool {
        let matches = |expected: &str, actual: &str| expected.is_empty() || expected == actual;
        if !matches(&self.kind, &condition.kind)
            || !matches(&self.status, &condition.status)
            || !matches(&self.reason, &condition.reason)
        {
            return false;
        }
        self.min_time_since_last_transition_seconds
            .is_none_or(|least| {
                let since = condition.since.and_then(|since| seconds_since(since, now));
                since.is_some_and(|since| since >= least)
            })
    }
}
