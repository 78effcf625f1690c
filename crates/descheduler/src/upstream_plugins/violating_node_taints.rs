//! `RemovePodsViolatingNodeTaints`: evicts pods that do not tolerate a taint that their node got after they
//! were scheduled.

use super::{check_namespaces, check_selected, try_evict};
use crate::framework::{Cycle, Strategy, StrategyError};
use crate::rules::Namespaces;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_model::nodes::{NO_SCHEDULE, PREFER_NO_SCHEDULE, tolerates};
use serde::{Deserialize, Serialize};

pub(super) const NAME: &str = "RemovePodsViolatingNodeTaints";

/// `RemovePodsViolatingNodeTaintsArgs`. Taints are named `key` or `key=value`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Namespaces>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_selector: Option<LabelSelector>,
    include_prefer_no_schedule: bool,
    excluded_taints: Vec<String>,
    /// Taints that count; none with an empty list, all without a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    included_taints: Option<Vec<String>>,
}

pub(super) fn check(args: &Args) -> Result<(), String> {
    check_namespaces(args.namespaces.as_ref())?;
    let included = args.included_taints.iter().flatten().count();
    if included > 0 && !args.excluded_taints.is_empty() {
        return Err("includedTaints: cannot be given together with excludedTaints".to_owned());
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct NodeTaints(pub(super) Args);

impl Strategy for NodeTaints {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        for node in cycle.nodes() {
            let (counting, ignored): (Vec<_>, Vec<_>) =
                node.taints.iter().partition(|taint| self.0.counts(taint));
            if counting.is_empty() {
                if !ignored.is_empty() {
                    let text = format!("taints that do not count: {}", list(&ignored));
                    cycle.note(Some(&node.name), text);
                }
                continue;
            }
            let mut untolerated = 0;
            for pod in cycle.active_on(&node.name) {
                let tolerations = &pod.shape.tolerations;
                let Some(taint) = counting.iter().find(|taint| !tolerates(tolerations, taint))
                else {
                    continue;
                };
                untolerated += 1;
                match check_selected(
                    self.0.namespaces.as_ref(),
                    self.0.label_selector.as_ref(),
                    pod,
                ) {
                    Ok(()) => {
                        _ = try_evict(cycle, pod, format!("does not tolerate {}", shown(taint)))
                    }
                    Err(reason) => cycle.skip_pod(pod, reason),
                }
            }
            let text = format!(
                "{untolerated} pods do not tolerate all of {}",
                list(&counting)
            );
            cycle.note(Some(&node.name), text);
        }
        Ok(())
    }
}

impl Args {
    fn counts(&self, taint: &Taint) -> bool {
        let effect = taint.effect.as_str();
        let hard = effect == NO_SCHEDULE;
        let soft = self.include_prefer_no_schedule && effect == PREFER_NO_SCHEDULE;
        let included = self.included_taints.as_ref();
        (hard || soft)
            && !named(&self.excluded_taints, taint)
            && included.is_none_or(|list| named(list, taint))
    }
}

fn named(list: &[String], taint: &Taint) -> bool {
    let value = taint.value.as_deref().unwrap_or_default();
    list.iter().any(|name| {
        let pair = || name.strip_prefix(&taint.key)?.strip_prefix('=');
        *name == taint.key || (!value.is_empty() && pair() == Some(value))
    })
}

fn shown(taint: &Taint) -> String {
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

fn list(taints: &[&Taint]) -> String {
    let shown: Vec<_> = taints.iter().map(|taint| shown(taint)).collect();
    shown.join(", ")
}
