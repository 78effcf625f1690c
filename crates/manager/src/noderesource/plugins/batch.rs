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
    /// Milli-cores.
    pub(in crate::noderesource) cpu: Quantity,
    /// Bytes.
    pub(in crate::noderesource) memory: Quantity,
}

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
    let taken = third_party_sum(input);
    for (name, amount) in [(BATCH_CPU, cpu), (BATCH_MEMORY, memory)] {
        // A negative allocation would publish what does not exist.
        let left = match taken.get(name).filter(|taken| **taken > Quantity::ZERO) {
            Some(taken) => to_whole_units(reclaim::after_third_parties(amount, *taken)),
            None => amount,
        };
        draft.resources.insert(name, Some(left));
    }
    add_zones(input, view, draft);
    Ok(())
}

/// Milli-cores, more of them where a core counts for more than one.
pub(crate) fn normalized(milli: Quantity, ratio: Option<f64>) -> Quantity {
    match ratio {
        Some(ratio) if ratio > 1.0 => to_whole_units(reclaim::scale_milli(milli, ratio)),
        _ => milli,
    }
}

/// The annotation that keeps what was computed, whatever third parties have allocated of it. What
/// others keep in it stays, and a text that says the same stays as it is.
fn set_origin(input: &Input<'_>, amounts: Option<(Quantity, Quantity)>, draft: &mut Draft) {
    let key = annotations::NODE_ORIGIN_EXTENDED_ALLOCATABLE;
    let present = input.node.metadata.annotations.as_ref();
    let text = present.and_then(|all| all.get(key));
    let known: Option<OriginAllocatable> = extension::read(present, key).ok().flatten();
    let (cpu, memory) = match amounts {
        Some(amounts) => amounts,
        // Where there never was an annotation nothing needs to be taken back.
        None if text.is_none() => return,
        None => (Quantity::ZERO, Quantity::ZERO),
    };
    let mut wanted = known.clone().unwrap_or_default();
    // As upstream writes it.
    let memory = memory.with_format(Format::BinarySi);
    wanted.resources.insert(BATCH_CPU.to_owned(), cpu);
    wanted.resources.insert(BATCH_MEMORY.to_owned(), memory);
    if known.as_ref() != Some(&wanted)
        && let Ok(text) = serde_json::to_string(&wanted)
    {
        draft.with_status.insert(key, Some(text));
    }
}

/// What other schedulers have allocated of the batch resources, by their annotation.
///
/// # Errors
/// The annotation cannot be read; it counts for nothing.
pub(crate) fn third_parties(input: &Input<'_>) -> Result<Vec<ThirdPartyAllocation>, String> {
    let key = annotations::NODE_THIRD_PARTY_ALLOCATIONS;
    let present = input.node.metadata.annotations.as_ref();
    let parsed: Option<ThirdPartyAllocations> =
        extension::read(present, key).map_err(|error| error.to_string())?;
    let mut allocations = parsed.map_or_else(Vec::new, |parsed| parsed.allocations);
    allocations.retain(|allocation| allocation.priority == PriorityClass::Batch.as_str());
    Ok(allocations)
}

/// The sum of [`third_parties`].
fn third_party_sum(input: &Input<'_>) -> ResourceList {
    let allocations = third_parties(input).unwrap_or_else(|error| {
        tracing::warn!(node = input.node.metadata.name, %error, "ignored");
        Vec::new()
    });
    let mut sum = ResourceList::new();
    for (name, amount) in allocations.into_iter().flat_map(|one| one.resources) {
        *sum.entry(name).or_default() += amount;
    }
    sum
}

/// The zones that can be divided: all of them, if any has CPU or memory.
fn zones<'a>(input: &Input<'a>) -> &'a [Zone] {
    let zones = input.topology.map_or(&[][..], |known| &known.spec.zones);
    let counts = |name: &str| name == resources::CPU || name == resources::MEMORY;
    let mut all = zones.iter().flat_map(|zone| &zone.resources);
    if all.any(|resource| counts(&resource.name)) {
        zones
    } else {
        &[]
    }
}

/// The zones that can be divided, as the formulas take them.
pub(crate) fn numbered(input: &Input<'_>) -> Vec<reclaim::Zone> {
    let amount = |zone: &Zone, name: &str| {
        let found = zone.resources.iter().find(|resource| resource.name == name);
        found
            .map(|resource| resource.allocatable)
            .unwrap_or_default()
    };
    let zones = zones(input).iter().enumerate();
    zones
        .map(|(position, zone)| reclaim::Zone {
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
    let numbered = numbered(input);
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

/// Zones that have batch resources have none of them any more.
fn clear_zones(input: &Input<'_>, draft: &mut Draft) {
    let batch = |name: &str| name == BATCH_CPU || name == BATCH_MEMORY;
    let left = zones(input)
        .iter()
        .filter(|zone| zone.resources.iter().any(|resource| batch(&resource.name)));
    draft.zones = left
        .map(|zone| ZoneAmounts {
            zone: zone.name.clone(),
            cpu: Quantity::ZERO,
            memory: Quantity::ZERO,
        })
        .collect();
}
