//! Selection of devices on one node.

use super::Quirks;
use super::gpu;
use super::inventory::{Device, Inventory};
use super::ledger::Used;
use super::need::Need;
use super::partition::PartitionTable;
use super::score::Scorer;
use super::units::{DeviceResource as R, DeviceType, PerMinor, Units, bit};
use crate::numa::NumaMask;
use koord_api::extension;
use std::collections::BTreeMap;

/// Virtual function of a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualFunction {
    /// PCI bus id.
    pub bus_id: String,
    /// Minor number; -1 if it has none.
    pub minor: i32,
}

/// Allocation from one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    /// Minor number of the device.
    pub minor: u8,
    /// Allocated amounts.
    pub units: Units,
    /// Allocated virtual functions of the device.
    pub functions: Vec<VirtualFunction>,
}

/// Allocated devices by type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation([Vec<Grant>; 3]);

impl Allocation {
    /// Returns the allocated devices of one type.
    #[must_use]
    pub fn grants(&self, kind: DeviceType) -> &[Grant] {
        &self.0[kind.index()]
    }

    /// Returns the minors of one type as a bit set.
    #[must_use]
    pub fn set_of(&self, kind: DeviceType) -> u64 {
        set(self.grants(kind))
    }

    /// Returns true if no device is allocated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    /// Returns the amounts per device of one type.
    #[must_use]
    pub fn units(&self, kind: DeviceType) -> PerMinor {
        let mut out = PerMinor::default();
        for grant in self.grants(kind) {
            out.add(grant.minor, &grant.units);
        }
        out
    }

    /// Subtracts the amounts and virtual functions that `other` has of the same devices.
    pub fn take(&mut self, other: &Self) {
        for kind in DeviceType::ALL {
            for taken in other.grants(kind) {
                for grant in &mut self.0[kind.index()] {
                    if grant.minor == taken.minor {
                        grant.units = grant.units.minus(&taken.units);
                        let is_kept = |f: &VirtualFunction| !taken.functions.contains(f);
                        grant.functions.retain(is_kept);
                    }
                }
            }
        }
    }

    /// Returns true if every device of `other`, the amounts of type `kind` by minor, is allocated here with
    /// at least its amounts.
    #[must_use]
    pub fn covers(&self, kind: DeviceType, other: &PerMinor) -> bool {
        let own = self.units(kind);
        let has = |(minor, units): (u8, &Units)| own.get(minor).is_some_and(|own| units.fits(own));
        other.iter().all(has)
    }

    /// Adds the missing one of GPU memory and memory ratio, computed from the other.
    fn complete(&mut self, inventory: &Inventory) {
        for grant in &mut self.0[DeviceType::Gpu.index()] {
            let device = inventory.device(DeviceType::Gpu, grant.minor);
            let total = device.map_or(Units::NONE, |device| device.total);
            grant.units = completed(&grant.units, &total);
        }
    }

    /// Converts to the device annotation of a pod. `inventory` supplies the device ids.
    #[must_use]
    pub fn to_annotation(&self, inventory: Option<&Inventory>) -> extension::DeviceAllocations {
        let entry = |kind: DeviceType, grant: &Grant| extension::DeviceAllocation {
            minor: i32::from(grant.minor),
            resources: grant.units.to_list(),
            id: inventory
                .and_then(|all| all.device(kind, grant.minor))
                .map(|device| device.id.clone())
                .unwrap_or_default(),
            extension: (!grant.functions.is_empty()).then(|| {
                let function = |f: &VirtualFunction| extension::AllocatedVirtualFunction {
                    minor: f.minor,
                    bus_id: f.bus_id.clone(),
                };
                extension::DeviceAllocationExtension {
                    vfs: grant.functions.iter().map(function).collect(),
                    gpu_shared_resource_template: String::new(),
                }
            }),
        };
        let mut out = BTreeMap::new();
        for kind in DeviceType::ALL {
            let list: Vec<_> = self
                .grants(kind)
                .iter()
                .map(|grant| entry(kind, grant))
                .collect();
            if !list.is_empty() {
                out.insert(kind.name().to_owned(), list);
            }
        }
        out
    }

    /// Parses the device annotation of a pod. Unknown device types are skipped.
    ///
    /// # Errors
    /// A minor is out of range or an amount is negative.
    pub fn from_annotation(annotation: &extension::DeviceAllocations) -> Result<Self, String> {
        let mut out = Self::default();
        for (name, list) in annotation {
            let Some(kind) = DeviceType::parse(name) else {
                continue;
            };
            for entry in list {
                let minor = u8::try_from(entry.minor).ok().filter(|minor| *minor < 64);
                let minor = minor
                    .ok_or_else(|| format!("{name}: minor {} is not within 0..=63", entry.minor))?;
                let units = Units::from_list(&entry.resources);
                if !units.is_non_negative() {
                    return Err(format!("{name}: minor {minor}: an amount is negative"));
                }
                let functions = entry.extension.iter().flat_map(|extension| &extension.vfs);
                let function = |f: &extension::AllocatedVirtualFunction| VirtualFunction {
                    bus_id: f.bus_id.clone(),
                    minor: f.minor,
                };
                out.0[kind.index()].push(Grant {
                    minor,
                    units,
                    functions: functions.map(function).collect(),
                });
            }
        }
        Ok(out)
    }
}

pub(super) fn set(grants: &[Grant]) -> u64 {
    grants.iter().fold(0, |set, grant| set | bit(grant.minor))
}

/// Returns the `units` of a GPU with its memory both in bytes and in percent.
fn completed(units: &Units, total: &Units) -> Units {
    let total = total.get(R::GpuMemory);
    let mut out = *units;
    match (units.lists(R::GpuMemory), units.lists(R::GpuMemoryRatio)) {
        (true, true) => {}
        (true, false) => out.set(R::GpuMemoryRatio, ratio(units.get(R::GpuMemory), total)),
        (false, _) => {
            let share = i128::from(units.get(R::GpuMemoryRatio));
            let memory = share * i128::from(total) / 100;
            out.set(R::GpuMemory, i64::try_from(memory).unwrap_or(i64::MAX));
        }
    }
    out
}

/// Returns `bytes` in percent of `total`, truncated; in floating point, as upstream computes it.
fn ratio(bytes: i64, total: i64) -> i64 {
    if total <= 0 {
        return 0;
    }
    (bytes as f64 / total as f64 * 100.0) as i64
}

/// Reason why a node cannot satisfy a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Text for the pod's condition.
    pub reason: &'static str,
    /// True if preemption of other pods could help.
    pub resolvable: bool,
}

impl Refusal {
    pub(super) const fn unresolvable(reason: &'static str) -> Self {
        Self {
            reason,
            resolvable: false,
        }
    }
    pub(super) const fn resolvable(reason: &'static str) -> Self {
        Self {
            reason,
            resolvable: true,
        }
    }
    fn insufficient(kind: DeviceType) -> &'static str {
        match kind {
            DeviceType::Gpu => "Insufficient gpu devices",
            DeviceType::Rdma => "Insufficient rdma devices",
            DeviceType::Fpga => "Insufficient fpga devices",
        }
    }
}

/// Device state of a node.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// Devices of the node.
    pub inventory: &'a Inventory,
    /// Allocated amounts and virtual functions.
    pub used: &'a Used,
    /// Partitions of the GPU model, used if the Device object lists none.
    pub model: Option<&'static PartitionTable>,
    /// True if the node's label requires partitions.
    pub honor_model: bool,
}

/// Restrictions and preferences of a selection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules<'a> {
    /// NUMA nodes that devices must belong to; `None` means any.
    pub numa: Option<NumaMask>,
    /// Devices to restrict the allocation to, with their maximum amounts, for types with entries; `None` means no
    /// restriction.
    pub within: Option<&'a [PerMinor; 3]>,
    /// Bit sets of the devices to take first, by type.
    pub preferred: [u64; 3],
    /// Virtual functions to restrict the allocation to, as sorted pairs of minor and bus id, for devices with entries.
    pub functions: Option<&'a [Vec<(u8, String)>; 3]>,
    /// Scorer that orders the devices; without it the lowest minors are taken.
    pub scorer: Option<&'a Scorer>,
    /// True if devices joined with the leading type are selected even on nodes whose wiring guarantees them.
    pub in_full: bool,
    /// Upstream quirks to reproduce.
    pub quirks: Quirks,
}

/// Request for one device type and the available devices.
pub(super) struct Pool<'a> {
    pub(super) kind: DeviceType,
    pub(super) count: usize,
    pub(super) each: Units,
    pub(super) total: PerMinor,
    pub(super) free: PerMinor,
    pub(super) site: &'a Site<'a>,
    pub(super) rules: &'a Rules<'a>,
    pub(super) need: &'a Need,
}

/// Number of requested devices and the amounts of each, by type.
pub(super) type RequestedDevices = [Option<(usize, Units)>; 3];

/// Returns the requested devices of `need` on a node with the devices `on`.
///
/// # Errors
/// The node has no such devices.
pub(super) fn requested_devices(
    need: &Need,
    on: &Inventory,
    in_full: bool,
) -> Result<RequestedDevices, Refusal> {
    let mut out = RequestedDevices::default();
    for kind in DeviceType::ALL {
        if !need.requests_type(kind) {
            continue;
        }
        let leads = need.joint.first().is_none_or(|leading| *leading == kind);
        let whole = need.gpu.as_ref().is_some_and(|gpu| !gpu.shared);
        if !leads && whole && on.well_planned && !in_full {
            continue;
        }
        let per_device = need
            .per_device(kind, on)
            .filter(|_| !on.devices(kind).is_empty());
        let per_device = per_device.ok_or(Refusal::unresolvable(Refusal::insufficient(kind)))?;
        out[kind.index()] = Some(per_device);
    }
    for kind in DeviceType::ALL {
        let needs_functions = out[kind.index()].is_some() && need.needs_functions(kind);
        if needs_functions && !on.has_functions(kind) {
            return Err(Refusal::unresolvable(match kind {
                DeviceType::Gpu => "Insufficient gpu VirtualFunctions",
                DeviceType::Rdma => "Insufficient rdma VirtualFunctions",
                DeviceType::Fpga => "Insufficient fpga VirtualFunctions",
            }));
        }
    }
    Ok(out)
}

/// Selects the devices for a pod that needs `need`.
///
/// # Errors
/// The reason why the node cannot satisfy the request.
pub fn allocate(need: &Need, site: &Site<'_>, rules: &Rules<'_>) -> Result<Allocation, Refusal> {
    let requested = requested_devices(need, site.inventory, rules.in_full)?;
    let pool = |kind: DeviceType| {
        let (count, each) = requested[kind.index()]?;
        Some(Pool::new(kind, count, each, need, site, rules))
    };
    let mut out = Allocation::default();
    let types = requested
        .iter()
        .filter(|requested| requested.is_some())
        .count();
    if types > 1
        && let Some((leading, others)) = need.joint.split_first()
    {
        let Some(pool_of_leading) = pool(*leading) else {
            return Err(Refusal::resolvable("node(s) Insufficient primary device"));
        };
        let count = pool_of_leading.count;
        let grants = pool_of_leading.pick(count, &[])?;
        let pcies = site.inventory.pcies(*leading, set(&grants));
        out.0[leading.index()] = grants;
        for kind in others {
            let Some(pool) = pool(*kind) else { continue };
            let count = if need.same_pcie {
                pool.count.max(pcies.len())
            } else {
                pool.count
            };
            let grants = pool.pick(count, &pcies)?;
            let same_pcies = site.inventory.pcies(*kind, set(&grants)) == pcies;
            out.0[kind.index()] = grants;
            if need.same_pcie && !same_pcies {
                let reason = "node(s) Device Joint-Allocate rules violation";
                return Err(Refusal::resolvable(reason));
            }
        }
    }
    for kind in DeviceType::ALL {
        if out.grants(kind).is_empty()
            && let Some(pool) = pool(kind)
        {
            out.0[kind.index()] = pool.pick(pool.count, &[])?;
        }
    }
    out.complete(site.inventory);
    Ok(out)
}

/// Returns for each requested type the number of devices, the amounts of each, and the number of devices that
/// have them free. Empty if the node has no such devices at all.
#[must_use]
pub fn supply(
    need: &Need,
    site: &Site<'_>,
    rules: &Rules<'_>,
) -> Vec<(DeviceType, usize, Units, usize)> {
    let requested = requested_devices(need, site.inventory, rules.in_full).unwrap_or_default();
    let mut out = Vec::new();
    for kind in DeviceType::ALL {
        if let Some((count, each)) = requested[kind.index()] {
            let pool = Pool::new(kind, count, each, need, site, rules);
            let serving = pool.free.iter().filter(|(minor, _)| pool.serves(*minor));
            out.push((kind, count, each, serving.count()));
        }
    }
    out
}

/// Returns the score of a node for `need`: 0 to 100 per device type.
///
/// # Errors
/// The node has no such devices.
pub fn score_node(need: &Need, site: &Site<'_>, rules: &Rules<'_>) -> Result<i64, Refusal> {
    let Some(scorer) = rules.scorer else {
        return Ok(0);
    };
    let mut sum = 0;
    for (kind, wanted) in
        DeviceType::ALL
            .into_iter()
            .zip(requested_devices(need, site.inventory, rules.in_full)?)
    {
        if let Some((count, each)) = wanted {
            let pool = Pool::new(kind, count, each, need, site, rules);
            if !pool.total.is_empty() {
                sum += scorer.devices(&each, &pool.total, &pool.free);
            }
        }
    }
    Ok(sum)
}

impl<'a> Pool<'a> {
    /// Collects the devices that match the selector, the NUMA nodes and the limits, with their free amounts.
    fn new(
        kind: DeviceType,
        count: usize,
        each: Units,
        need: &'a Need,
        site: &'a Site<'a>,
        rules: &'a Rules<'a>,
    ) -> Self {
        let selector = need.hint(kind).and_then(|hint| hint.selector.as_ref());
        let within = rules.within.map(|within| &within[kind.index()]);
        let within = within.filter(|within| !within.is_empty());
        let (mut total, mut free) = (PerMinor::default(), PerMinor::default());
        for device in site.inventory.devices(kind) {
            if rules.numa.is_some_and(|mask| !device.within(mask)) || !device.selected(selector) {
                continue;
            }
            let used = site.used.units[kind.index()].get(device.minor);
            let mut unused = used.map_or(device.total, |used| device.total.minus(used));
            if let Some(within) = within {
                let Some(most) = within.get(device.minor) else {
                    continue;
                };
                // A reservation may list GPU memory in one unit only.
                unused = match kind {
                    DeviceType::Gpu => unused.capped(&completed(most, &device.total)),
                    _ => unused.capped(most),
                };
            }
            total.set(device.minor, device.total);
            free.set(device.minor, unused);
        }
        Self {
            kind,
            count,
            each,
            total,
            free,
            site,
            rules,
            need,
        }
    }

    /// Selects `count` devices, or more if that covers more of `pcies`.
    fn pick(&self, count: usize, pcies: &[&str]) -> Result<Vec<Grant>, Refusal> {
        let count = count.max(1);
        let most = count.max(pcies.len());
        if self.kind == DeviceType::Gpu {
            return gpu::pick(self, count, most);
        }
        self.pick_any(count, most, pcies)
    }

    /// Returns true if one device has the requested amounts free. GPU memory and its ratio are both compared,
    /// whichever is requested: ratios are truncated, and many small ones would add up.
    pub(super) fn serves(&self, minor: u8) -> bool {
        let Some(free) = self.free.get(minor).filter(|free| !free.is_zero()) else {
            return false;
        };
        let total = self.total.get(minor).unwrap_or(&Units::NONE);
        match self.kind {
            DeviceType::Gpu => completed(&self.each, total).fits(free),
            _ => self.each.fits(free),
        }
    }

    /// Selects between `count` and `most` devices, best first.
    pub(super) fn pick_any(
        &self,
        count: usize,
        most: usize,
        pcies: &[&str],
    ) -> Result<Vec<Grant>, Refusal> {
        let mut out = Vec::new();
        for minor in self.order(pcies) {
            if !self.serves(minor) {
                continue;
            }
            let mut functions = Vec::new();
            if self.need.needs_functions(self.kind) {
                match self.function(minor) {
                    Some(function) => functions.push(function),
                    None => continue,
                }
            }
            out.push(Grant {
                minor,
                units: self.each,
                functions,
            });
            if out.len() == most {
                break;
            }
        }
        if out.len() < count {
            return Err(Refusal::resolvable(Refusal::insufficient(self.kind)));
        }
        Ok(out)
    }

    /// Returns all minors, best first: preferred ones, otherwise one of each of `pcies` in turn; then by
    /// score, then by number.
    fn order(&self, pcies: &[&str]) -> Vec<u8> {
        let preferred = self.rules.preferred[self.kind.index()];
        let scored = self.free.iter().map(|(minor, free)| {
            let total = self.total.get(minor).unwrap_or(&Units::NONE);
            let score = |scorer: &Scorer| scorer.device(&self.each, total, free);
            (minor, self.rules.scorer.map_or(0, score))
        });
        let mut scored: Vec<(u8, i64)> = scored.collect();
        let by_score = |(minor, score): &(u8, i64)| (std::cmp::Reverse(*score), *minor);
        scored.sort_by_key(by_score);
        if preferred != 0 || pcies.is_empty() {
            scored.sort_by_key(|(minor, _)| preferred & bit(*minor) == 0);
            return scored.into_iter().map(|(minor, _)| minor).collect();
        }
        // Turn in which a device is taken: the number of better devices of its PCIe root.
        let mut counts = vec![0_usize; pcies.len()];
        let turn = |minor: u8| {
            let device = self.site.inventory.device(self.kind, minor);
            let place = device.and_then(|device| device.place.as_ref())?;
            pcies.iter().position(|pcie| *pcie == place.pcie)
        };
        let mut turns: Vec<(usize, (u8, i64))> = Vec::new();
        for entry in scored {
            let number = match turn(entry.0) {
                Some(at) => {
                    counts[at] += 1;
                    counts[at]
                }
                None => usize::MAX,
            };
            turns.push((number, entry));
        }
        turns.sort_by_key(|(number, entry)| (*number, by_score(entry)));
        turns.into_iter().map(|(_, (minor, _))| minor).collect()
    }

    /// Returns the free virtual function of `minor` with the lowest bus id.
    fn function(&self, minor: u8) -> Option<VirtualFunction> {
        let device: &Device = self.site.inventory.device(self.kind, minor)?;
        let selector = self.need.hint(self.kind)?.vf_selector.as_ref()?;
        let groups = device
            .functions
            .iter()
            .filter(|group| koord_api::selector::matches(selector, &group.labels).unwrap_or(false));
        let used = &self.site.used.functions[self.kind.index()];
        let listed = |list: &[(u8, String)], bus_id: &str| {
            let search = list.binary_search_by(|(of, listed_id)| {
                (*of, listed_id.as_str()).cmp(&(minor, bus_id))
            });
            search.is_ok()
        };
        let only = self
            .rules
            .functions
            .map(|only| only[self.kind.index()].as_slice());
        let only = only.filter(|only| only.iter().any(|(of, _)| *of == minor));
        let free = groups.flat_map(|group| &group.vfs).filter(|function| {
            !listed(used, &function.bus_id)
                && only.is_none_or(|only| listed(only, &function.bus_id))
        });
        let first = free.min_by(|a, b| a.bus_id.cmp(&b.bus_id))?;
        Some(VirtualFunction {
            bus_id: first.bus_id.clone(),
            minor: first.minor,
        })
    }
}
