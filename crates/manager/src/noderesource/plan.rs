//! What to write to a node: a pure function of the node, its report, its pods and the settings.

use super::view;
use crate::config::Strategy;
use crate::facts::{PodFacts, Report};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use koord_api::annotations;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY};
use koord_app::flags::Selection;
use koord_model::reclaim;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The plugin that computes mid resources.
pub(crate) const MID: &str = "MidResource";
/// The plugin that computes batch resources.
pub(crate) const BATCH: &str = "BatchResource";

/// Everything a decision is made from.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) node: &'a Node,
    /// `None` where co-location is off for the node.
    pub(crate) strategy: Option<&'a Strategy>,
    /// The node's newest report.
    pub(crate) report: Option<&'a Report>,
    pub(crate) pods: &'a [Arc<PodFacts>],
    pub(crate) plugins: &'a Selection,
    /// When the node's status was last brought up to date.
    pub(crate) synced: Option<Timestamp>,
    pub(crate) now: Timestamp,
}

/// Why resources are taken away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reset {
    /// Co-location is off for the node.
    Disabled,
    /// The report is missing, incomplete or old.
    Degraded(&'static str),
}

/// What to write, and why.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Plan {
    /// A merge patch for the node's metadata.
    pub(crate) meta: Option<Value>,
    /// A merge patch for the node's status.
    pub(crate) status: Option<Value>,
    /// The status is up to date as of now, written or not.
    pub(crate) in_sync: bool,
    /// The computed amount of each resource, before thresholds and third parties.
    pub(crate) computed: BTreeMap<&'static str, Quantity>,
    /// The arithmetic, for the operator.
    pub(crate) messages: Vec<String>,
    pub(crate) reset: Option<Reset>,
    /// When time alone will change the answer.
    pub(crate) recheck: Option<Duration>,
}

/// Decides what to write to a node.
pub(crate) fn plan(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut wanted: BTreeMap<&'static str, Option<Quantity>> = BTreeMap::new();
    let (mid, batch) = (input.plugins.enabled(MID), input.plugins.enabled(BATCH));
    plan.reset = calculate(input, mid, batch, &mut plan, &mut wanted);

    let mut original = None;
    if batch {
        let published;
        (original, published) = origin(input.node, &wanted);
        wanted.extend(published);
    }
    let (diff_threshold, update_threshold) = input.strategy.map_or((0.1, 300), |strategy| {
        (strategy.diff_threshold, strategy.update_threshold_secs)
    });
    let status = input.node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let differs = wanted.iter().any(|(name, amount)| {
        reclaim::differs(view::read(allocatable, name), *amount, diff_threshold)
    });
    let next_sync = input
        .synced
        .map(|synced| synced.as_second().saturating_add(update_threshold))
        .filter(|due| *due >= input.now.as_second());
    if differs || next_sync.is_none() {
        plan.meta = original.map(|value| {
            let key = annotations::NODE_ORIGIN_EXTENDED_ALLOCATABLE;
            json!({ "metadata": { "annotations": { key: value } } })
        });
        plan.status = status_patch(input.node, &wanted);
        plan.in_sync = true;
    } else if status_patch(input.node, &wanted).is_some() {
        // A change too small to write now is written when the node is due.
        let due = next_sync
            .unwrap_or_default()
            .saturating_sub(input.now.as_second())
            .saturating_add(1);
        plan.recheck = earliest(plan.recheck, u64::try_from(due).ok());
    }
    plan
}

/// Computes the wanted amounts; `None` for a resource means that it is to be taken away.
fn calculate(
    input: &Input<'_>,
    mid: bool,
    batch: bool,
    plan: &mut Plan,
    wanted: &mut BTreeMap<&'static str, Option<Quantity>>,
) -> Option<Reset> {
    let mut take_away = |reset| {
        wanted.extend(
            [MID_CPU, MID_MEMORY]
                .into_iter()
                .filter(|_| mid)
                .map(|name| (name, None)),
        );
        let names = [BATCH_CPU, BATCH_MEMORY];
        wanted.extend(names.into_iter().filter(|_| batch).map(|name| (name, None)));
        Some(reset)
    };
    let Some(strategy) = input.strategy else {
        return take_away(Reset::Disabled);
    };
    let Some(report) = input.report else {
        return take_away(Reset::Degraded("there is no report"));
    };
    let now = input.now.as_second();
    if reclaim::is_stale(report.updated, now, strategy.degrade_minutes) {
        return take_away(Reset::Degraded("the report is too old"));
    }
    if !report.measured {
        return take_away(Reset::Degraded("the report is empty"));
    }
    let patience = strategy.degrade_minutes.saturating_mul(60);
    let stale_in = report.updated.map(|updated| {
        let last = updated.saturating_add(patience);
        last.saturating_sub(now).saturating_add(1)
    });
    plan.recheck = earliest(
        plan.recheck,
        stale_in.and_then(|secs| u64::try_from(secs).ok()),
    );

    let view = view::node_view(input.node, report, input.pods.iter().map(|pod| &**pod));
    if mid {
        let amount = reclaim::mid(&view, &strategy.mid);
        wanted.insert(MID_CPU, Some(amount.milli_cpu()));
        wanted.insert(MID_MEMORY, Some(whole(amount.memory)));
        plan.computed.insert(MID_CPU, amount.cpu);
        plan.computed.insert(MID_MEMORY, amount.memory);
        plan.messages
            .extend([amount.cpu_message, amount.memory_message]);
    }
    if batch {
        let amount = reclaim::batch(&view, &strategy.batch);
        wanted.insert(BATCH_CPU, Some(amount.milli_cpu()));
        wanted.insert(BATCH_MEMORY, Some(whole(amount.memory)));
        plan.computed.insert(BATCH_CPU, amount.cpu);
        plan.computed.insert(BATCH_MEMORY, amount.memory);
        let (cpu, memory) = reclaim::explain(&amount, &strategy.batch);
        plan.messages.extend([cpu, memory]);
    }
    None
}

fn earliest(known: Option<Duration>, secs: Option<u64>) -> Option<Duration> {
    let new = secs.map(Duration::from_secs);
    known.into_iter().chain(new).min()
}

/// Whole units: extended resources must not be fractional.
fn whole(quantity: Quantity) -> Quantity {
    Quantity::from_value(quantity.value()).with_format(quantity.format())
}

/// The annotation that keeps what was computed (a change to it, `Null` to remove it), and the
/// batch resources that are left after third parties' allocations.
fn origin(
    node: &Node,
    wanted: &BTreeMap<&'static str, Option<Quantity>>,
) -> (Option<Value>, BTreeMap<&'static str, Option<Quantity>>) {
    let all = node.metadata.annotations.as_ref();
    let get = |key| all.and_then(|annotations| annotations.get(key));
    let current = get(annotations::NODE_ORIGIN_EXTENDED_ALLOCATABLE);
    let amount = |name| wanted.get(name).copied().flatten();
    let (Some(cpu), Some(memory)) = (amount(BATCH_CPU), amount(BATCH_MEMORY)) else {
        return (current.map(|_| Value::Null), BTreeMap::new());
    };
    let text = json!({ "resources": { BATCH_CPU: cpu, BATCH_MEMORY: memory } }).to_string();
    let change = (current != Some(&text)).then_some(Value::String(text));
    let taken = get(annotations::NODE_THIRD_PARTY_ALLOCATIONS).map(|text| third_parties(text));
    let mut published = BTreeMap::new();
    if let Some(taken) = taken {
        for (name, original) in [(BATCH_CPU, cpu), (BATCH_MEMORY, memory)] {
            let taken = taken.get(name).copied().unwrap_or_default();
            published.insert(
                name,
                Some(whole(reclaim::after_third_parties(original, taken))),
            );
        }
    }
    (change, published)
}

/// What other schedulers have allocated of the batch resources, by their annotation.
fn third_parties(text: &str) -> ResourceList {
    #[derive(Deserialize, Default)]
    struct Allocations {
        #[serde(default)]
        allocations: Vec<Allocation>,
    }
    #[derive(Deserialize)]
    struct Allocation {
        #[serde(default)]
        priority: String,
        #[serde(default)]
        resources: ResourceList,
    }
    let parsed: Allocations = serde_json::from_str(text).unwrap_or_else(|error| {
        let annotation = annotations::NODE_THIRD_PARTY_ALLOCATIONS;
        tracing::warn!(annotation, value = text, %error, "ignored");
        Allocations::default()
    });
    let batch = koord_api::PriorityClass::Batch.as_str();
    let mut sum = ResourceList::new();
    for allocation in parsed
        .allocations
        .into_iter()
        .filter(|one| one.priority == batch)
    {
        for (name, amount) in allocation.resources {
            *sum.entry(name).or_default() += amount;
        }
    }
    sum
}

/// The merge patch that brings capacity and allocatable to the wanted amounts, owned keys only, so
/// that a kubelet's concurrent write is never undone.
fn status_patch(node: &Node, wanted: &BTreeMap<&'static str, Option<Quantity>>) -> Option<Value> {
    let status = node.status.as_ref();
    let change = |list: Option<&BTreeMap<_, _>>| {
        let mut change = Map::new();
        for (name, amount) in wanted {
            let present = list.is_some_and(|list| list.contains_key(*name));
            match amount {
                Some(amount) if view::read(list, name) != Some(*amount) => {
                    change.insert((*name).to_owned(), json!(amount));
                }
                None if present => {
                    change.insert((*name).to_owned(), Value::Null);
                }
                _ => {}
            }
        }
        change
    };
    let mut patch = Map::new();
    for (field, list) in [
        (
            "capacity",
            status.and_then(|status| status.capacity.as_ref()),
        ),
        (
            "allocatable",
            status.and_then(|status| status.allocatable.as_ref()),
        ),
    ] {
        let change = change(list);
        if !change.is_empty() {
            patch.insert(field.to_owned(), Value::Object(change));
        }
    }
    (!patch.is_empty()).then(|| json!({ "status": patch }))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
