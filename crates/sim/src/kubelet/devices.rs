//! The device manager.

use super::Refusal;
use super::hint::{Offer, rank};
use super::machine::{Device, Machine};
use koord_model::numa::NumaMask;
use std::collections::{BTreeMap, BTreeSet};

/// Ids of devices that containers hold, by resource.
#[derive(Debug, Clone, Default)]
pub(super) struct Devices(BTreeMap<String, BTreeSet<String>>);

impl Devices {
    /// Returns the healthy devices that no container holds.
    pub(super) fn free<'a>(
        &'a self,
        machine: &'a Machine,
        resource: &str,
    ) -> impl Iterator<Item = &'a Device> {
        let allocated = self.0.get(resource);
        let all = machine.devices.get(resource).into_iter().flatten();
        all.filter(move |device| {
            device.healthy && allocated.is_none_or(|allocated| !allocated.contains(&device.id))
        })
    }

    /// Returns the NUMA nodes that could provide the devices, for each resource. Those in `reuse` must be
    /// near.
    pub(super) fn offers(
        &self,
        machine: &Machine,
        requests: &BTreeMap<String, u64>,
        reuse: &BTreeMap<String, Vec<String>>,
    ) -> Vec<Offer> {
        let offer = |(resource, count): (&String, &u64)| {
            let reuse = reuse.get(resource).map_or(&[][..], Vec::as_slice);
            self.offer(machine, resource, *count, reuse)
        };
        requests.iter().map(offer).collect()
    }

    /// Returns the NUMA nodes that could provide `count` devices; `None` if no device reports NUMA nodes.
    fn offer(&self, machine: &Machine, resource: &str, count: u64, reuse: &[String]) -> Offer {
        let all = machine.devices.get(resource)?;
        // If one reports its NUMA nodes, all are treated as such devices.
        all.iter()
            .find(|device| device.nodes.is_some_and(|nodes| nodes.count() > 0))?;
        let is_reused = |device: &&Device| reuse.contains(&device.id);
        let free: Vec<&Device> = self.free(machine, resource).collect();
        let reused = all
            .iter()
            .filter(|device| is_reused(device) && !free.iter().any(|free| free.id == device.id));
        if ((free.len() + reused.count()) as u64) < count {
            return Some(Vec::new());
        }
        let nodes = machine.nodes();
        let near = |device: &Device, mask: NumaMask| {
            device.nodes.is_some_and(|nodes| nodes.0 & mask.0 != 0)
        };
        let mut least = nodes.count();
        let mut masks = Vec::new();
        for mask in nodes.subsets() {
            let near_count = all.iter().filter(|device| near(device, mask)).count();
            if near_count as u64 >= count {
                least = least.min(mask.count());
            }
            let mut reused = all.iter().filter(is_reused);
            let reused = reused.try_fold(0, |sum: u64, device| match device.nodes {
                None => Some(sum),
                Some(_) => near(device, mask).then_some(sum + 1),
            });
            let fresh = free.iter().filter(|device| !is_reused(device));
            let fresh = fresh.filter(|device| near(device, mask)).count() as u64;
            if reused.is_some_and(|reused| reused + fresh >= count) {
                masks.push(mask);
            }
        }
        Some(rank(masks, least))
    }

    /// Allocates `count` devices: reused ones first, then those near `mask`, then those elsewhere, then those
    /// without NUMA nodes.
    pub(super) fn take(
        &mut self,
        machine: &Machine,
        resource: &str,
        count: u64,
        mask: Option<NumaMask>,
        reuse: &[String],
    ) -> Result<Vec<String>, Refusal> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut ids: Vec<String> = reuse.iter().take(count).cloned().collect();
        let mut free: Vec<&Device> = self.free(machine, resource).collect();
        let missing = count - ids.len();
        if free.len() < missing {
            return Err(Refusal::unexpected(&format!(
                "requested number of devices unavailable for {resource}. \
                 Requested: {missing}, Available: {}",
                free.len()
            )));
        }
        free.sort_by_key(|device| match (device.nodes, mask) {
            (Some(nodes), Some(mask)) if nodes.0 & mask.0 == 0 => 1,
            (None, Some(_)) => 2,
            _ => 0,
        });
        ids.extend(
            free.into_iter()
                .take(missing)
                .map(|device| device.id.clone()),
        );
        ids.sort_unstable();
        let allocated = self.0.entry(resource.to_owned()).or_default();
        allocated.extend(ids.iter().cloned());
        Ok(ids)
    }

    pub(super) fn release(&mut self, devices: &BTreeMap<String, Vec<String>>) {
        for (resource, ids) in devices {
            if let Some(allocated) = self.0.get_mut(resource) {
                allocated.retain(|id| !ids.contains(id));
            }
        }
    }
}
