//! Batch resources of the node and of its NUMA nodes.

use super::{Draft, Plugin, to_whole_units};
use crate::noderesource::plan::Input;
use koord_api::extension::{self, OriginAllocatable, ThirdPartyAllocation, ThirdPartyAllocations};
use koord_api::quantity::{Format, Quantity, ResourceList};
use koord_api::resources::{self, BATCH_CPU, BATCH_MEMORY};
use koord_api::topology::{self, Zone};
use koord_api::{PriorityClass, annotations};
use koord_model::reclaim::{self, Amount, NodeView};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "BatchResource",
    runs_without_colocation: |_| true,
    run,
};

/// Batch resources of one zone of the NodeResourceTopology.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::noderesource) struct ZoneAmounts {
    /// The zone's name.
    pub(in crate::noderesource) zone: String,
    /// Batch CPU in milli-cores.
    pub(in crate::noderesource) cpu: Quantity,
    /// Batch memory in bytes.
    pub(in crate::noderesource) memory: Quantity,
}

/// Computes the batch resources of the node and of its zones; removes them if co-location is off or `view` is
/// `None`.
fn run(input: &Input<'_>, view: Option<&NodeView>, draft: &mut Draft) -> Result<(), String> {
    let (Some(strategy), Some(view)) = (input.strategy, view) else {
        draft
            .resources
            .extend([(BATCH_CPU, None), (BATCH_MEMORY, None)]);
        set_origin(input, None, draft);
        clear_zones(input, draft);
        return Ok(());
    };
    let amount = reclaim::batch(view, &strategy.batch);
    let cpu = normalized(amount.milli_cpu(), draft.cpu_ratio);
    let memory = to_whole_units(amount.memory);
    draft.computed.insert(BATCH_CPU, amount.cpu);
    draft.computed.insert(BATCH_MEMORY, amount.memory);
    let (cpu_message, memory_message) = reclaim::explain(&amount, &strategy.batch);
    draft.messages.extend([cpu_message, memory_message]);
    set_origin(input, Some((cpu, memory)), draft);
    let allocated = third_party_sum(input);
    for (name, amount) in [(BATCH_CPU, cpu), (BATCH_MEMORY, memory)] {
        // A negative allocation would publish resources that do not exist.
        let available = match allocated
            .get(name)
            .filter(|allocated| **allocated > Quantity::ZERO)
        {
            Some(allocated) => to_whole_units(reclaim::after_third_parties(amount, *allocated)),
            None => amount,
        };
        draft.resources.insert(name, Some(available));
    }
    add_zones(input, view, draft);
    Ok(())
}

/// Returns milli-cores multiplied with the normalization ratio, if that is above one.
pub(crate) fn normalized(milli: Quantity, ratio: Option<f64>) -> Quantity {
    match ratio {
        Some(ratio) if ratio > 1.0 => to_whole_units(reclaim::scale_milli(milli, ratio)),
        _ => milli,
    }
}

/// Sets the annotation with the computed amounts before third-party allocations are subtracted. Other content
/// of the annotation is preserved, and an equal annotation is not rewritten.
fn set_origin(input: &Input<'_>, amounts: Option<(Quantity, Quantity)>, draft: &mut Draft) {
    let key = annotations::NODE_ORIGIN_EXTENDED_ALLOCATABLE;
    let present = input.node.metadata.annotations.as_ref();
    let text = present.and_then(|all| all.get(key));
    let existing: Option<OriginAllocatable> = extension::read(present, key).ok().flatten();
    let (cpu, memory) = match amounts {
        Some(amounts) => amounts,
        // Without an annotation there is nothing to reset.
        None if text.is_none() => return,
        None => (Quantity::ZERO, Quantity::ZERO),
    };
    let mut origin = existing.clone().unwrap_or_default();
    // Upstream writes this format.
    let memory = memory.with_format(Format::BinarySi);
    origin.resources.insert(BATCH_CPU.to_owned(), cpu);
    origin.resources.insert(BATCH_MEMORY.to_owned(), memory);
    if existing.as_ref() != Some(&origin)
        && let Ok(text) = serde_json::to_string(&origin)
    {
        draft.with_status.insert(key, Some(text));
    }
}

/// Returns the batch resources that other schedulers allocated, from the node's annotation.
///
/// # Errors
/// The annotation is invalid; callers ignore it.
pub(crate) fn third_parties(input: &Input<'_>) -> Result<Vec<ThirdPartyAllocation>, String> {
    let key = annotations::NODE_THIRD_PARTY_ALLOCATIONS;
    let present = input.node.metadata.annotations.as_ref();
    let parsed: Option<ThirdPartyAllocations> =
        extension::read(present, key).map_err(|error| error.to_string())?;
    let mut allocations = parsed.map_or_else(Vec::new, |parsed| parsed.allocations);
    allocations.retain(|allocation| allocation.priority == PriorityClass::Batch.as_str());
    Ok(allocations)
}

/// Returns the sum of [`third_parties`].
fn third_party_sum(input: &Input<'_>) -> ResourceList {
    let allocations = third_parties(input).unwrap_or_else(|error| {
        tracing::warn!(node = input.node.metadata.name, %error, "ignoring invalid third-party allocations annotation");
        Vec::new()
    });
    let mut sum = ResourceList::new();
    for (name, amount) in allocations
        .into_iter()
        .flat_map(|allocation| allocation.resources)
    {
        *sum.entry(name).or_default() += amount;
    }
    sum
}

/// Returns the zones to divide batch resources among: all zones if any has CPU or memory, otherwise none.
fn zones<'a>(input: &Input<'a>) -> &'a [Zone] {
    let zones = input
        .topology
        .map_or(&[][..], |topology| &topology.spec.zones);
    let counts = |name: &str| name == resources::CPU || name == resources::MEMORY;
    let mut all = zones.iter().flat_map(|zone| &zone.resources);
    if all.any(|resource| counts(&resource.name)) {
        zones
    } else {
        &[]
    }
}

/// Returns [`zones`] in the form that the formulas take.
pub(crate) fn formula_zones(input: &Input<'_>) -> Vec<reclaim::NumaZone> {
    let amount = |zone: &Zone, name: &str| {
        let entry = zone.resources.iter().find(|resource| resource.name == name);
        entry
            .map(|resource| resource.allocatable)
            .unwrap_or_default()
    };
    let zones = zones(input).iter().enumerate();
    zones
        .map(|(position, zone)| reclaim::NumaZone {
            // The list is sorted by name, so `node-10` comes before `node-2`.
            index: topology::zone_id(&zone.name)
                .and_then(|id| usize::try_from(id).ok())
                .unwrap_or(position),
            allocatable: Amount::new(
                amount(zone, resources::CPU),
                amount(zone, resources::MEMORY),
            ),
        })
        .collect()
}

fn add_zones(input: &Input<'_>, view: &NodeView, draft: &mut Draft) {
    let (Some(strategy), zones) = (input.strategy, zones(input)) else {
        return;
    };
    let numbered = formula_zones(input);
    let computed = reclaim::batch_by_zone(view, &numbered, &strategy.batch);
    draft.zones = zones
        .iter()
        .zip(computed)
        .map(|(zone, batch)| ZoneAmounts {
            zone: zone.name.clone(),
            cpu: normalized(batch.milli_cpu(), draft.cpu_ratio),
            memory: to_whole_units(batch.memory),
        })
        .collect();
}

/// Sets the batch resources of zones that have some to zero.
fn clear_zones(input: &Input<'_>, draft: &mut Draft) {
    let batch = |name: &str| name == BATCH_CPU || name == BATCH_MEMORY;
    let with_batch = zones(input)
        .iter()
        .filter(|zone| zone.resources.iter().any(|resource| batch(&resource.name)));
    draft.zones = with_batch
        .map(|zone| ZoneAmounts {
            zone: zone.name.clone(),
            cpu: Quantity::ZERO,
            memory: Quantity::ZERO,
        })
        .collect();
}
