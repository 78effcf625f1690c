//! Selection of GPUs: as a partition, close together, or any.

use super::allocate::{Grant, Pool, Refusal};
use super::need::GpuNeed;
use super::topology::ScopeSearch;
use super::units::{DeviceType, Units, bit};

/// Selects `count` GPUs, or up to `most` if neither partition nor topology matters.
pub(super) fn pick(pool: &Pool<'_>, count: usize, most: usize) -> Result<Vec<Grant>, Refusal> {
    let Some(need) = &pool.need.gpu else {
        return Err(Refusal::resolvable("No GPU Requirements"));
    };
    // Devices outside of the pool count as busy if they are in use.
    let pool_minors = pool.total.set_of();
    let elsewhere = pool.site.used.units[DeviceType::Gpu.index()].busy() & !pool_minors;
    let used = pool.free.iter().filter(|(minor, free)| {
        let total = pool.total.get(*minor).unwrap_or(&Units::NONE);
        !total.minus(free).is_zero()
    });
    let busy = used.fold(elsewhere, |set, (minor, _)| set | bit(minor));

    let (table, honor) = match &pool.site.inventory.partitions {
        Some(table) => (Some(table), pool.site.inventory.honor_partitions),
        None => (pool.site.model, pool.site.honor_model),
    };
    let serves = pool.free.iter().filter(|(minor, _)| pool.serves(*minor));
    let fit = serves.fold(0, |set, (minor, _)| set | bit(minor));
    if !need.shared {
        let partition = match table {
            None => Err(Refusal::unresolvable("node(s) missing GPU Partition Table")),
            Some(table) if !table.covers(need.count) => Err(Refusal::unresolvable(
                "node(s) Unsupported number of GPU requests",
            )),
            Some(table) => table
                .choose(need, fit, busy, pool.rules.quirks)
                .ok_or(Refusal::resolvable("Insufficient Partitioned GPU Devices")),
        };
        match partition {
            Ok(partition) => return Ok(grants(&partition.minors, need)),
            Err(refusal) if honor || need.partition => return Err(refusal),
            Err(_) => {}
        }
    }
    match find_close_gpus(pool, need, fit, busy) {
        Ok(minors) => Ok(grants(&minors, need)),
        Err(refusal) if need.scope.is_none() && !refusal.resolvable => {
            pool.pick_any(count, most, &[])
        }
        Err(refusal) => Err(refusal),
    }
}

/// Selects GPUs that are close together in the topology tree.
fn find_close_gpus(
    pool: &Pool<'_>,
    need: &GpuNeed,
    fit: u64,
    busy: u64,
) -> Result<Vec<u8>, Refusal> {
    let Some(tree) = &pool.site.inventory.tree else {
        let reason = "node(s) missing GPU Device Topology Tree";
        return Err(Refusal::unresolvable(reason));
    };
    if need.shared && need.count > 1 {
        return Err(Refusal::unresolvable(
            "node(s) Unsupported Multi-Shared GPU",
        ));
    }
    let score = |minor: u8| {
        let total = pool.total.get(minor).unwrap_or(&Units::NONE);
        let free = pool.free.get(minor).unwrap_or(&Units::NONE);
        match pool.rules.scorer {
            None => 0,
            Some(scorer) if pool.rules.quirks.straight_shared_score => {
                scorer.device(&need.each, total, free)
            }
            Some(scorer) => scorer.device(&need.each, free, total),
        }
    };
    let search = ScopeSearch {
        need,
        fit,
        busy,
        score: &score,
    };
    match tree.find(&search) {
        Some(found) => Ok(found.minors),
        None if need.scope.is_some() => {
            let reason = "Insufficient Topology Scoped GPU Devices";
            Err(Refusal::resolvable(reason))
        }
        None => Err(Refusal::resolvable("Insufficient GPU Devices")),
    }
}

fn grants(minors: &[u8], need: &GpuNeed) -> Vec<Grant> {
    let grant = |minor: &u8| Grant {
        minor: *minor,
        units: need.each,
        functions: Vec::new(),
    };
    minors.iter().map(grant).collect()
}
