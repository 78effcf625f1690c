//! `DeviceShare`: schedules GPUs, RDMA adapters and FPGAs.
//!
//! The node's Device object lists its devices. Allocations come from the annotation of the pods on the node,
//! which this plugin writes before it binds them, and from the reservations of assumed pods. The devices of a
//! node without a Device object are left to its kubelet.
//!
//! Invalid input never frees a device: a pod whose annotation turns invalid keeps its last known allocation.
//! While a pod on a node holds devices that cannot be identified, nothing more is allocated on that node.

mod allocations;
mod args;
mod device_object;
mod metrics;
mod place;
mod pod;
#[cfg(test)]
mod tests;

use crate::common::allocate_policy;
use crate::common::patches::clear_annotation;
use allocations::{DeviceRecord, NodeDevices};
use args::Args;
pub(crate) use device_object::DeviceObject;
use koord_api::{annotations, labels, scheduling};
use koord_model::device::{
    DeviceHolding, DeviceResource, DeviceType, Quirks, Rules, Scorer, numa_hints, score_node,
};
use koord_model::numa::{NumaPolicy, Offers};
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::{
    Action, Alignment, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects,
    Explain, Filter, Holders, IndexKind, Inputs, Interest, MetricSamples, MetricSource, Normalize,
    NotShown, ObjectChange, ObjectEvents, PerProfile, Plugin, PodEvents, PodPatch, Points, PreBind,
    PreFilter, PreFilterResult, PreScore, PreScoreResult, Problem, QueueHints, QueueingHint,
    Rejection, Reserve, Roles, Score, Shortfall, Sign, Signable, Signature, State, Subject,
    Verdict, View,
};
use koord_scheduler::state::{NodeIndex, PodInfo};
use koord_scheduler::{Watch, event_names};
use place::{NodeRejection, PlacementMode, add_shortfall, allocation_site};
use pod::{DevicePod, DeviceResourceIds};
use rustc_hash::FxHashMap;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const NAME: &str = "DeviceShare";
const DEVICES: &str = "devices.v1alpha1.scheduling.koordinator.sh";

const UNKNOWN: &str = "node(s) have pods whose devices are unknown";

/// The `DeviceShare` plugin.
#[derive(Debug)]
pub(crate) struct DeviceShare {
    settings: PerProfile<DeviceShareSettings>,
    quirks: Quirks,
    /// Ids of the device resources; `None` until the first node event.
    resource_ids: Option<DeviceResourceIds>,
    /// The last state of each Device object, by node name. A Device may arrive before its node.
    records: FxHashMap<Arc<str>, DeviceRecord>,
    /// Devices and allocations per node, by node index.
    rows: Vec<NodeDevices>,
    /// True if the last Device event changed something that matters for scheduling. Some Device objects are
    /// written every few seconds; those writes need not wake every pod that waits for devices.
    last_event_matters: bool,
}

/// Settings of one profile, computed from the plugin arguments.
#[derive(Debug)]
struct DeviceShareSettings {
    args: Args,
    scorer: Scorer,
    /// Resources whose shared requests must match a template.
    templated: Vec<DeviceResource>,
}

impl DeviceShareSettings {
    fn new(value: Option<&Value>, context: &BuildContext) -> Result<Self, BuildError> {
        let args: Args = crate::common::args::decode(NAME, value)?;
        let scorer = args.scorer()?;
        args.warn_about_unused(context.gates.get("DevicePluginAdaption") == Some(&true));
        Ok(Self {
            scorer,
            templated: args.matched_resources(),
            args,
        })
    }
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let gate = |name: &str| context.gates.get(name).copied().unwrap_or(false);
    Ok(Box::new(DeviceShare {
        settings: PerProfile::new(DeviceShareSettings::new(value, context)?),
        resource_ids: None,
        quirks: Quirks {
            worst_partition_first: gate("UpstreamGPUPartitionOrder"),
            straight_shared_score: gate("StraightSharedGPUScore"),
        },
        records: FxHashMap::default(),
        rows: Vec::new(),
        last_event_matters: false,
    }))
}

impl DeviceShare {
    /// Returns the row of `node`; a new row starts with the devices that are known for the node.
    fn row(&mut self, node: NodeIndex, view: View<'_>) -> &mut NodeDevices {
        if self.rows.len() <= node.row() {
            self.rows.resize_with(node.row() + 1, NodeDevices::default);
        }
        let row = &mut self.rows[node.row()];
        let name = view.nodes.name(node);
        if row.name != *name {
            // The row belonged to a deleted node, whose pods are gone too.
            let inventory = self
                .records
                .get(name)
                .map(|record| record.inventory.clone());
            *row = NodeDevices::new(name.clone(), inventory);
        }
        row
    }

    fn resource_ids(&self, table: &ResourceTable) -> DeviceResourceIds {
        self.resource_ids
            .unwrap_or_else(|| pod::resource_ids(table))
    }

    fn device_pod(&self, cycle: &Cycle<'_>) -> Result<Option<DevicePod>, Rejection> {
        let templated = &self.settings.for_pod(cycle.pod).templated;
        let resource_ids = self.resource_ids(cycle.view.resources);
        let read = pod::device_pod(cycle.pod, templated, &resource_ids);
        read.map_err(Rejection::unresolvable)
    }

    /// Records the devices that a pod on `node` holds according to its annotation.
    fn record_allocation(
        &mut self,
        old: Option<&PodInfo>,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let allocation = pod::parse_holding(pod);
        let wants = pod::requests_devices(pod, &self.resource_ids(view.resources));
        let had = old.is_some_and(|old| old.annotation(annotations::DEVICE_ALLOCATED).is_some());
        let row = self.row(node, view);
        let before = row.allocations.get(&pod.uid).is_some();
        match allocation {
            Ok(Some(holding)) => {
                row.unknown.remove(&pod.uid);
                if row.allocations.get(&pod.uid) != Some(&holding) {
                    row.put(pod, holding);
                    fx.touched.push(node);
                }
            }
            Ok(None) if before && had => {
                let key = annotations::DEVICE_ALLOCATED;
                let message = format!(
                    "annotation {key} is gone; what the pod holds stays booked until it leaves"
                );
                fx.problems.push(pod::problem(pod, message));
            }
            Ok(None) => {}
            Err(message) => {
                let message = if before {
                    format!("{message}; what the pod is known to hold stays booked")
                } else if wants {
                    row.unknown.insert(pod.uid.clone());
                    fx.touched.push(node);
                    format!("{message}; the node gives no devices away while the pod is on it")
                } else {
                    format!("{message}; the pod asks for no devices: ignored")
                };
                fx.problems.push(pod::problem(pod, message));
            }
        }
    }

    fn device_changed(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        self.last_event_matters = false;
        let full = || change.new_as::<scheduling::Device>().cloned();
        let full = full().map(DeviceObject::from);
        let Some(object) = change.new_as::<DeviceObject>().or(full.as_ref()) else {
            return;
        };
        let name = object.name.clone();
        let node = view.nodes.find(&name);
        let deleted = change.action == Action::DELETE;
        let (inventory, problems) = if deleted {
            match self.records.get(&name) {
                Some(record) => (Arc::new(record.inventory.withdrawn()), Vec::new()),
                None => return,
            }
        } else {
            (object.inventory.clone(), object.problems.clone())
        };
        let before = self.records.get(&name);
        if before.is_none_or(|record| record.problems != problems) {
            let problem = |message: &String| Problem {
                kind: "Device",
                namespace: String::new(),
                name: name.to_string(),
                uid: object.uid.as_deref().unwrap_or_default().to_owned(),
                message: message.clone(),
            };
            fx.problems.extend(problems.iter().map(problem));
        }
        let same_inventory = before.is_some_and(|record| record.inventory == inventory);
        self.last_event_matters = !same_inventory;
        let exists = node.is_some_and(|node| view.nodes.info(node).is_some());
        if deleted && !exists {
            self.records.remove(&name);
        } else {
            let record = DeviceRecord {
                inventory: inventory.clone(),
                problems,
                deleted,
                not_well_planned: object.not_well_planned,
            };
            self.records.insert(name, record);
        }
        if let Some(node) = node
            && !same_inventory
        {
            self.row(node, view).inventory = Some(inventory);
            fx.touched.push(node);
        }
    }
}

impl Plugin for DeviceShare {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .filter()
        .pre_score()
        .score()
        .alignment()
        .pre_bind()
        .explain()
        .object_events()
        .pod_events()
        .reserve()
        .metric_source();

    fn name(&self) -> &'static str {
        NAME
    }
    fn points(&self) -> Points {
        let filter = Points::PRE_FILTER.or(Points::FILTER);
        let score = Points::PRE_SCORE.or(Points::SCORE);
        filter.or(score).or(Points::RESERVE).or(Points::PRE_BIND)
    }
    fn holders(&self) -> Holders {
        Holders::Booked
    }
    fn join(
        &mut self,
        profile: &str,
        args: Option<&Value>,
        context: &BuildContext,
    ) -> Option<Result<(), BuildError>> {
        let settings = DeviceShareSettings::new(args, context);
        Some(settings.map(|settings| self.settings.join(profile, settings)))
    }
}

impl Sign for DeviceShare {
    fn sign(&self, pod: &PodInfo, table: &ResourceTable, signature: &mut Signature) -> Signable {
        pod::sign(pod, &self.resource_ids(table), signature);
        Signable::Yes
    }
}

impl Inputs for DeviceShare {
    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::mapped::<scheduling::Device, DeviceObject>(DEVICES)
                .counted_as(event_names!("devices.v1alpha1.scheduling.koordinator.sh")),
            allocate_policy::watch(),
        ]
    }
    fn indexes(&self) -> Vec<IndexKind> {
        vec![allocate_policy::index()]
    }
}

impl PreFilter for DeviceShare {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        match self.device_pod(cycle) {
            Ok(Some(pod)) => PreFilterResult::ready(pod),
            Ok(None) => PreFilterResult::Skip,
            Err(rejection) => PreFilterResult::Reject(rejection),
        }
    }
}

impl Filter for DeviceShare {
    fn filter(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let (Some(pod), Some(info)) = (state.get::<DevicePod>(), cycle.view.nodes.info(node))
        else {
            return Ok(());
        };
        if pod.need.shares_gpus() {
            let label = |key| info.label(key).unwrap_or_default();
            if let Some(provider) = &pod.isolation
                && label(labels::GPU_ISOLATION_PROVIDER) != provider
            {
                let reason = "GPUIsolationProviderHAMICore not found on the node";
                return Err(Rejection::unresolvable(reason));
            }
            let (vendor, model) = (
                label(labels::NODE_GPU_VENDOR),
                label(labels::NODE_GPU_MODEL),
            );
            if self
                .settings
                .for_pod(cycle.pod)
                .args
                .forbids_sharing(vendor, model)
            {
                return Err(Rejection::unresolvable(format!(
                    "model {model:?} of vendor {vendor:?} does not support GPU Share"
                )));
            }
        }
        let placed = self.place(cycle, pod, node, PlacementMode::default());
        placed
            .map(|_| ())
            .map_err(|NodeRejection(rejection)| rejection)
    }
}

impl PreScore for DeviceShare {
    fn pre_score(&self, cycle: &Cycle<'_>) -> PreScoreResult {
        match self.device_pod(cycle) {
            Ok(Some(pod)) => PreScoreResult::Ready(State::new(pod)),
            _ => PreScoreResult::Skip,
        }
    }
}

impl Score for DeviceShare {
    fn score(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> i64 {
        let (Some(pod), Some(row)) = (state.get::<DevicePod>(), self.rows.get(node.row())) else {
            return 0;
        };
        let Some(inventory) = row.managed_devices() else {
            return 0;
        };
        let without;
        let used = if cycle.overlay.removed.is_empty() {
            row.allocations.used()
        } else {
            without = row.allocations.without(|uid| cycle.overlay.removes(uid));
            &without
        };
        let rules = Rules {
            numa: cycle.numa,
            ..self.rules(cycle.pod, PlacementMode::default())
        };
        let site = allocation_site(inventory, used, cycle.view, node);
        score_node(&pod.need, &site, &rules).unwrap_or(0)
    }
    fn normalization(&self) -> Normalize {
        Normalize::Max
    }
}

impl QueueHints for DeviceShare {
    fn interests(&self) -> Vec<Interest> {
        let any = Action::ADD.or(Action::UPDATE).or(Action::DELETE);
        vec![
            Interest {
                subject: Subject::AssignedPod,
                actions: Action::DELETE,
            },
            Interest {
                subject: Subject::Object(DEVICES),
                actions: any,
            },
            Interest {
                subject: Subject::Node,
                actions: Action::ADD.or(Action::NODE_LABEL),
            },
        ]
    }
    fn hint(&self, _pod: &PodInfo, event: &ClusterEvent<'_>, view: View<'_>) -> QueueingHint {
        match (event.subject, event.pod) {
            (Subject::AssignedPod, Some(deleted))
                if !pod::requests_devices(deleted, &self.resource_ids(view.resources)) =>
            {
                QueueingHint::Skip
            }
            (Subject::Object(DEVICES), _) if !self.last_event_matters => QueueingHint::Skip,
            _ => QueueingHint::Queue,
        }
    }
}

impl PreBind for DeviceShare {
    fn pre_bind(&self, cycle: &Cycle<'_>, node: NodeIndex, patch: &mut PodPatch) -> Verdict {
        let key = annotations::DEVICE_ALLOCATED;
        let row = self.rows.get(node.row());
        let holding = row.and_then(|row| Some((row, row.allocations.get(&cycle.pod.uid)?)));
        let Some((row, holding)) = holding else {
            clear_annotation(cycle.pod, key, patch);
            return Ok(());
        };
        let allocation = holding.devices.to_annotation(row.inventory.as_deref());
        let text = serde_json::to_string(&allocation)
            .map_err(|error| Rejection::error(error.to_string()))?;
        patch.annotations.insert(key.to_owned(), text);
        Ok(())
    }
}

impl Explain for DeviceShare {
    fn explain_shortfall(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        out: &mut Shortfall,
    ) {
        let (Some(pod), Some(row)) = (state.get::<DevicePod>(), self.rows.get(node.row())) else {
            return;
        };
        let Some(inventory) = row.managed_devices() else {
            return;
        };
        let used = row.allocations.without(|uid| cycle.overlay.removes(uid));
        let site = allocation_site(inventory, &used, cycle.view, node);
        let rules = self.rules(cycle.pod, PlacementMode::default());
        add_shortfall(&pod.need, &site, &rules, out);
    }
    fn explain(&self, pod: &PodInfo, _view: View<'_>) -> Option<Value> {
        let holding = self.rows.iter().find_map(|row| {
            let holding = row.allocations.get(&pod.uid)?;
            Some((row, holding))
        });
        let (row, holding) = holding?;
        let devices = holding.devices.to_annotation(row.inventory.as_deref());
        Some(serde_json::json!({"node": &*row.name, "devices": devices}))
    }
    fn inspections(&self) -> &'static [&'static str] {
        &["nodeDeviceSummaries", "nodeDeviceSummaries/:name"]
    }
    fn inspect(
        &self,
        path: &[&str],
        _query: &BTreeMap<String, String>,
        _view: View<'_>,
    ) -> Result<Value, NotShown> {
        let managed = |row: &&NodeDevices| row.managed_devices().is_some();
        match path {
            ["nodeDeviceSummaries"] => {
                let rows = self.rows.iter().filter(managed);
                Ok(rows
                    .map(|row| (row.name.to_string(), row.summary()))
                    .collect())
            }
            ["nodeDeviceSummaries", name] => {
                let mut rows = self.rows.iter().filter(managed);
                let row = rows.find(|row| *row.name == **name);
                row.map(NodeDevices::summary)
                    .ok_or_else(|| NotShown::missing(format_args!("node {name}")))
            }
            _ => Err(NotShown::NoSuchPath),
        }
    }
}

impl MetricSource for DeviceShare {
    fn read(&mut self, _view: View<'_>, out: &mut MetricSamples) {
        self.export_metrics(out);
    }
}

impl ObjectEvents for DeviceShare {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        if change.kind == DEVICES {
            self.device_changed(change, view, fx);
        }
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        if self.resource_ids.is_none() {
            self.resource_ids = Some(pod::resource_ids(view.resources));
        }
        let name = self.rows.get(node.row()).map(|row| row.name.clone());
        // When a node is deleted, a Device object that was deleted before is dropped with it.
        if view.nodes.info(node).is_none()
            && let Some(name) = name
            && self.records.get(&name).is_some_and(|record| record.deleted)
        {
            self.records.remove(&name);
        }
        // The row may have been unused since it last had this name.
        let record = self.records.get(view.nodes.name(node));
        let inventory = record.map(|record| record.inventory.clone());
        self.row(node, view).inventory = inventory;
    }
}

impl PodEvents for DeviceShare {
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        // An assumed pod's annotation comes from an earlier attempt that failed.
        if pod.node.is_some() {
            self.record_allocation(None, pod, node, view, fx);
        }
    }
    fn on_updated(
        &mut self,
        old: &Arc<PodInfo>,
        new: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let same_annotation = |key| old.annotation(key) == new.annotation(key);
        let unchanged = old.node.is_some()
            && same_annotation(annotations::DEVICE_ALLOCATED)
            && same_annotation(annotations::RESERVATION_ALLOCATED);
        if new.node.is_some() && !unchanged {
            let old = Some(&**old).filter(|old| old.node.is_some());
            self.record_allocation(old, new, node, view, fx);
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.row(node, view).remove(&pod.uid);
    }
}

impl Reserve for DeviceShare {
    fn reserve(&mut self, cycle: &Cycle<'_>, node: NodeIndex, fx: &mut Effects) -> Verdict {
        let Some(pod) = self.device_pod(cycle)? else {
            return Ok(());
        };
        let mode = PlacementMode {
            numa: cycle.numa,
            in_full: true,
        };
        let placed = self.place(cycle, &pod, node, mode);
        let Some(devices) = placed.map_err(|NodeRejection(rejection)| rejection)? else {
            return Ok(());
        };
        let holding = DeviceHolding {
            devices,
            reserves: cycle.pod.is_holder(),
            from: cycle.nominated.map(|from| from.uid.clone()),
        };
        self.row(node, cycle.view).put(cycle.pod, holding);
        fx.touched.push(node);
        Ok(())
    }
    fn unreserve(&mut self, cycle: &Cycle<'_>, node: NodeIndex, fx: &mut Effects) {
        self.row(node, cycle.view).remove(&cycle.pod.uid);
        fx.touched.push(node);
    }
}

impl Alignment for DeviceShare {
    fn numa_hints(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        _policy: &NumaPolicy,
    ) -> Result<Offers, Rejection> {
        let (Some(pod), Some(row)) = (state.get::<DevicePod>(), self.rows.get(node.row())) else {
            return Ok(Offers::new());
        };
        let aligns = !self.settings.for_pod(cycle.pod).args.disable_alignment();
        let Some(inventory) = row.managed_devices().filter(|_| aligns) else {
            return Ok(Offers::new());
        };
        let place = |mask| {
            let mode = PlacementMode {
                numa: Some(mask),
                ..PlacementMode::default()
            };
            let placed = self.place(cycle, pod, node, mode)?;
            Ok(placed.unwrap_or_default())
        };
        let hints = numa_hints(&pod.need, inventory, place)
            .map_err(|NodeRejection(rejection)| rejection)?;
        let offer = |(kind, hints): (DeviceType, _)| (Arc::from(kind.name()), Some(hints));
        Ok(hints.into_iter().map(offer).collect())
    }
    fn numa_allocate(&self, cycle: &Cycle<'_>, state: &State, node: NodeIndex) -> Verdict {
        let Some(pod) = state.get::<DevicePod>() else {
            return Ok(());
        };
        let mode = PlacementMode {
            numa: cycle.numa,
            ..PlacementMode::default()
        };
        let placed = self.place(cycle, pod, node, mode);
        placed
            .map(|_| ())
            .map_err(|NodeRejection(rejection)| rejection)
    }
    fn agrees(
        &self,
        cycle: &Cycle<'_>,
        state: &State,
        node: NodeIndex,
        from: &Arc<PodInfo>,
    ) -> bool {
        let Some(pod) = state.get::<DevicePod>() else {
            return true;
        };
        let cycle = Cycle {
            nominated: Some(from),
            ..*cycle
        };
        let mode = PlacementMode {
            numa: cycle.numa,
            ..PlacementMode::default()
        };
        self.place(&cycle, pod, node, mode).is_ok()
    }
}
