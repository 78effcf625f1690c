//! Computes what to write to a node: a pure function of the node, its report, its pods and the settings.

use super::plugins::{self, Draft, PluginResult, ZoneAmounts};
use super::view;
use crate::config::Strategy;
use crate::facts::{MetricReport, PodFacts};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use koord_api::configmap::{CPUNormalizationStrategy, ResourceAmplificationStrategy};
use koord_api::quantity::Quantity;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY};
use koord_api::scheduling::Device;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_api::topology::{ResourceInfo, Zone};
use koord_app::flags::Selection;
use koord_model::reclaim::{self, NodeView};
use koord_model::report_time;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Inputs of the computation.
pub(crate) struct Input<'a> {
    pub(crate) node: &'a Node,
    /// Co-location strategy of the node; `None` if co-location is off for it.
    pub(crate) strategy: Option<&'a Strategy>,
    pub(crate) normalization: &'a CPUNormalizationStrategy,
    pub(crate) amplification: &'a ResourceAmplificationStrategy,
    /// The node's newest report.
    pub(crate) report: Option<&'a MetricReport>,
    /// True if the report was dated too far ahead of now when it arrived.
    pub(crate) is_report_ahead: bool,
    pub(crate) pods: &'a [Arc<PodFacts>],
    pub(crate) topology: Option<&'a NodeResourceTopology>,
    pub(crate) device: Option<&'a Device>,
    pub(crate) plugins: &'a Selection,
    /// Gate `EnableSyncGPUSharedResource`.
    pub(crate) share_gpus: bool,
    /// Gate `DeviceResourceWithoutColocation`.
    pub(crate) devices_always: bool,
    /// Time of the last sync of the node's status; `None` if there was none.
    pub(crate) synced: Option<Timestamp>,
    pub(crate) now: Timestamp,
}

/// Reason why resources are removed from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reset {
    /// Co-location is off for the node.
    Disabled,
    /// The report is missing, incomplete or stale.
    Degraded(&'static str),
}

/// The planned writes, with their reasons.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Plan {
    /// A merge patch for the node's metadata.
    pub(crate) meta: Option<Value>,
    /// A merge patch for the node's status.
    pub(crate) status: Option<Value>,
    /// A merge patch for the node's NodeResourceTopology, valid for the resourceVersion it was computed from.
    pub(crate) topology: Option<Value>,
    /// True if the status is up to date once the plan is applied.
    pub(crate) in_sync: bool,
    /// The computed amount of each resource, before thresholds and third parties.
    pub(crate) computed: BTreeMap<&'static str, Quantity>,
    /// Messages that show the arithmetic, for the log.
    pub(crate) messages: Vec<String>,
    pub(crate) reset: Option<Reset>,
    /// True if the node has a non-zero amount of a computed resource, which a reset removes.
    pub(crate) has_resources: bool,
    /// Results of the plugins.
    pub(crate) plugin_results: Vec<PluginResult>,
    /// Time until the plan changes without an event; `None` if it does not.
    pub(crate) recheck: Option<Duration>,
}

/// Plans the writes to a node.
pub(crate) fn plan(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    let view = match reclaimable(input, &mut plan) {
        Ok(view) => Some(view),
        Err(reset) => {
            plan.reset = Some(reset);
            None
        }
    };
    let mut draft = Draft::default();
    plan.plugin_results = plugins::run(input, view.as_ref(), &mut draft);

    let (diff_threshold, update_threshold) = input.strategy.map_or((0.1, 300), |strategy| {
        (strategy.diff_threshold, strategy.update_threshold_secs)
    });
    let status = input.node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let differs = draft.resources.iter().any(|(name, amount)| {
        reclaim::differs(
            view::read_amount(allocatable, name),
            *amount,
            diff_threshold,
        )
    });
    plan.has_resources = draft.resources.iter().any(|(name, _)| {
        view::read_amount(allocatable, name).is_some_and(|amount| !amount.is_zero())
    });
    let next_sync = input
        .synced
        .map(|synced| synced.as_second().saturating_add(update_threshold))
        .filter(|due| *due >= input.now.as_second());
    let zones = input.topology.map(|topology| &topology.spec.zones[..]);
    let zones = zones.and_then(|zones| zones_after(zones, &draft.zones, diff_threshold));
    let status_change = status_patch(input.node, &draft.resources);
    if differs || next_sync.is_none() {
        draft.annotations.append(&mut draft.with_status);
        plan.status = status_change;
        plan.in_sync = true;
    } else if status_change.is_some() || !draft.with_status.is_empty() || zones.is_some() {
        // A change too small to write now is written when the node is due.
        let due = next_sync
            .unwrap_or_default()
            .saturating_sub(input.now.as_second())
            .saturating_add(1);
        plan.recheck = earliest(plan.recheck, u64::try_from(due).ok());
    }
    if let (Some((zones, far)), Some(topology)) = (zones, input.topology)
        && (far || next_sync.is_none())
    {
        // The list is written as a whole, and must not overwrite a concurrent write of koordlet.
        let version = &topology.metadata.resource_version;
        plan.topology = Some(json!({
            "metadata": { "resourceVersion": version }, "zones": zones,
        }));
    }
    plan.meta = meta_patch(&draft);
    plan.computed = draft.computed;
    plan.messages = draft.messages;
    plan
}

/// Returns the view that resources are reclaimed from, or why none are.
pub(super) fn reclaimable(input: &Input<'_>, plan: &mut Plan) -> Result<NodeView, Reset> {
    let strategy = input.strategy.ok_or(Reset::Disabled)?;
    let report = input.report.ok_or(Reset::Degraded("there is no report"))?;
    let now = input.now.as_second();
    if reclaim::is_stale(report.updated, now, strategy.degrade_minutes) {
        return Err(Reset::Degraded("the report is too old"));
    }
    let life = SignedDuration::from_secs(strategy.degrade_minutes.saturating_mul(60));
    let date = report
        .updated
        .and_then(|second| Timestamp::from_second(second).ok());
    if input.is_report_ahead
        || date.is_some_and(|date| report_time::excess(date, input.now, life).is_some())
    {
        return Err(Reset::Degraded("the report is dated ahead of now"));
    }
    if !report.measured {
        return Err(Reset::Degraded("the report is empty"));
    }
    let max_age = strategy.degrade_minutes.saturating_mul(60);
    let stale_in = report.updated.map(|updated| {
        let last = updated.saturating_add(max_age);
        last.saturating_sub(now).saturating_add(1)
    });
    let stale_in = stale_in.and_then(|secs| u64::try_from(secs).ok());
    plan.recheck = earliest(plan.recheck, stale_in);
    let pods = input.pods.iter().map(|pod| &**pod);
    Ok(view::node_view(input.node, report, pods))
}

fn earliest(current: Option<Duration>, secs: Option<u64>) -> Option<Duration> {
    let new = secs.map(Duration::from_secs);
    current.into_iter().chain(new).min()
}

/// Returns the merge patch for a draft's metadata changes; `None` if there are none.
fn meta_patch(draft: &Draft) -> Option<Value> {
    let mut metadata = Map::new();
    if !draft.annotations.is_empty() {
        metadata.insert("annotations".to_owned(), json!(draft.annotations));
    }
    if !draft.labels.is_empty() {
        metadata.insert("labels".to_owned(), json!(draft.labels));
    }
    (!metadata.is_empty()).then(|| json!({ "metadata": metadata }))
}

/// Returns the zones with `amounts` set, and whether an amount changes by more than `threshold`; `None` if
/// nothing changes. In zones without an entry, existing batch amounts become zero.
fn zones_after(
    zones: &[Zone],
    amounts: &[ZoneAmounts],
    threshold: f64,
) -> Option<(Vec<Zone>, bool)> {
    let (mut changed, mut far) = (false, false);
    let mut after = zones.to_vec();
    for zone in &mut after {
        let zone_amounts = amounts.iter().find(|amounts| amounts.zone == zone.name);
        let desired = [
            (BATCH_CPU, zone_amounts.map(|amounts| amounts.cpu)),
            (BATCH_MEMORY, zone_amounts.map(|amounts| amounts.memory)),
        ];
        for (name, desired) in desired {
            let existing = zone
                .resources
                .iter_mut()
                .find(|resource| resource.name == name);
            let (old, amount) = match (&existing, desired) {
                (None, None) => continue,
                (existing, desired) => {
                    let old = existing.as_ref().map(|existing| {
                        [existing.capacity, existing.allocatable, existing.available]
                    });
                    (old, desired.unwrap_or_default())
                }
            };
            // Fractions of a byte, which upstream writes, count as no change.
            if old.is_some_and(|old| old.iter().all(|old| old.value() == amount.value())) {
                continue;
            }
            changed = true;
            far |= old.is_none_or(|old| {
                old.iter()
                    .any(|old| reclaim::differs(Some(*old), Some(amount), threshold))
            });
            let resource = ResourceInfo {
                name: name.to_owned(),
                capacity: amount,
                allocatable: amount,
                available: amount,
            };
            match existing {
                Some(existing) => *existing = resource,
                None => zone.resources.push(resource),
            }
        }
        zone.resources.sort_by(|a, b| a.name.cmp(&b.name));
    }
    changed.then_some((after, far))
}

/// Returns the merge patch that sets capacity and allocatable to the planned amounts. It contains own keys
/// only, so a concurrent write of the kubelet is never undone.
fn status_patch(node: &Node, desired: &BTreeMap<&'static str, Option<Quantity>>) -> Option<Value> {
    let status = node.status.as_ref();
    let change = |list: Option<&BTreeMap<_, _>>| {
        let mut change = Map::new();
        for (name, amount) in desired {
            let present = list.is_some_and(|list| list.contains_key(*name));
            match amount {
                Some(amount) if view::read_amount(list, name) != Some(*amount) => {
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
mod tests;
