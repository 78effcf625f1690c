//! Picking devices on one node.

use super::Quirks;
use super::books::Used;
use super::gpu;
use super::inventory::{Device, Inventory};
use super::need::Need;
use super::partition::PartitionTable;
use super::score::Scorer;
use super::units::{DeviceResource as R, DeviceType, PerMinor, Units, bit};
use crate::numa::NumaMask;
use koord_api::extension;
use std::collections::BTreeMap;

/// A virtual function of a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualFunction {
    /// Its PCI bus id.
    pub bus_id: String,
    /// Its minor, -1 when it has none.
    pub minor: i32,
}

/// What is taken of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    /// The device.
    pub minor: u8,
    /// The amounts.
    pub units: Units,
    /// The virtual functions that go with it.
    pub functions: Vec<VirtualFunction>,
}

/// Devices by type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation([Vec<Grant>; 3]);

impl Allocation {
    /// The devices of one type.
    #[must_use]
    pub fn of(&self, kind: DeviceType) -> &[Grant] {
        &self.0[kind.index()]
    }

    /// The minors of one type as a set.
    #[must_use]
    pub fn set_of(&self, kind: DeviceType) -> u64 {
        set(self.of(kind))
    }

    /// Whether no device is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    /// The amounts per device of one type.
    #[must_use]
    pub fn units(&self, kind: DeviceType) -> PerMinor {
        let mut out = PerMinor::default();
        for grant in self.of(kind) {
            out.add(grant.minor, &grant.units);
        }
        out
    }

    /// Takes what `other` has of the same devices out, as far as it is there.
    pub fn take(&mut self, other: &Self) {
        for kind in DeviceType::ALL {
            for taken in other.of(kind) {
                for grant in &mut self.0[kind.index()] {
                    if grant.minor == taken.minor {
                        grant.units = grant.units.minus(&taken.units);
                        let others = |f: &VirtualFunction| !taken.functions.contains(f);
                        grant.functions.retain(others);
                    }
                }
            }
        }
    }

    /// Whether every device of `other`, which is what is had of a type by minor, is in it, with no less of
    /// what it lists.
    #[must_use]
    pub fn covers(&self, kind: DeviceType, other: &PerMinor) -> bool {
        let own = self.units(kind);
        let has = |(minor, units): (u8, &Units)| own.get(minor).is_some_and(|own| units.fits(own));
        other.iter().all(has)
    }

    /// Completes GPU memory by its share, or the share by the memory.
    fn complete(&mut self, inventory: &Inventory) {
        for grant in &mut self.0[DeviceType::Gpu.index()] {
            let device = inventory.device(DeviceType::Gpu, grant.minor);
            let total = device.map_or(Units::NONE, |device| device.total);
            grant.units = completed(&grant.units, &total);
        }
    }

    /// The annotation of the pod that gets the devices.
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
                .of(kind)
                .iter()
                .map(|grant| entry(kind, grant))
                .collect();
            if !list.is_empty() {
                out.insert(kind.name().to_owned(), list);
            }
        }
        out
    }

    /// What the annotation of a pod says.
    ///
    /// # Errors
    /// A minor or an amount that cannot be.
    pub fn from_annotation(said: &extension::DeviceAllocations) -> Result<Self, String> {
        let mut out = Self::default();
        for (name, list) in said {
            let Some(kind) = DeviceType::parse(name) else {
                continue;
            };
            for entry in list {
                let minor = u8::try_from(entry.minor).ok().filter(|minor| *minor < 64);
                let minor = minor
                    .ok_or_else(|| format!("{name}: minor {} is not within 0..=63", entry.minor))?;
                let units = Units::of(&entry.resources);
                if !units.is_sane() {
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

/// `units` of a GPU with its memory in bytes and in percent.
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

/// `bytes` in percent of `total`, cut off; in floating point, as upstream computes it.
fn ratio(bytes: i64, total: i64) -> i64 {
    if total <= 0 {
        return 0;
    }
    (bytes as f64 / total as f64 * 100.0) as i64
}

/// Why a node cannot serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The text for the pod's condition.
    pub reason: &'static str,
    /// Whether it could if others gave devices back.
    pub resolvable: bool,
}

impl Refusal {
    pub(super) const fn lasting(reason: &'static str) -> Self {
        Self {
            reason,
            resolvable: false,
        }
    }
    pub(super) const fn passing(reason: &'static str) -> Self {
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

/// The node.
#[derive(Debug, Clone, Copy)]
pub struct Site<'a> {
    /// Its devices.
    pub inventory: &'a Inventory,
    /// What is taken of them.
    pub used: &'a Used,
    /// Partitions of its GPU model, for when its Device object lists none.
    pub model: Option<&'static PartitionTable>,
    /// Whether the node's label asks to keep to them.
    pub honor_model: bool,
}

/// How to pick.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules<'a> {
    /// Only devices of these NUMA nodes.
    pub numa: Option<NumaMask>,
    /// For the types with entries: only these devices, and no more of them than this.
    pub within: Option<&'a [PerMinor; 3]>,
    /// Devices to take first, by type.
    pub preferred: [u64; 3],
    /// For the devices with entries, sorted: only these virtual functions.
    pub functions: Option<&'a [Vec<(u8, String)>; 3]>,
    /// Orders the devices; without, the lowest minors are taken.
    pub scorer: Option<&'a Scorer>,
    /// Devices that belong to the leading type are looked for although the node is planned such
    /// that they are there.
    pub in_full: bool,
    /// Which oddities are kept.
    pub quirks: Quirks,
}

/// What is wanted of one type, and what there is.
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

/// Per type, how many devices are wanted and what of each.
pub(super) type Wanted = [Option<(usize, Units)>; 3];

/// What `need` means on a node.
///
/// # Errors
/// The node has no such devices.
pub(super) fn wanted(need: &Need, on: &Inventory, in_full: bool) -> Result<Wanted, Refusal> {
    let mut out = Wanted::default();
    for kind in DeviceType::ALL {
        if !need.asks_for(kind) {
            continue;
        }
        let leads = need.joint.first().is_none_or(|leading| *leading == kind);
        let whole = need.gpu.as_ref().is_some_and(|gpu| !gpu.shared);
        if !leads && whole && on.well_planned && !in_full {
            continue;
        }
        let found = need
            .per_device(kind, on)
            .filter(|_| !on.devices(kind).is_empty());
        let found = found.ok_or(Refusal::lasting(Refusal::insufficient(kind)))?;
        out[kind.index()] = Some(found);
    }
    for kind in DeviceType::ALL {
        let asked = out[kind.index()].is_some() && need.wants_functions(kind);
        if asked && !on.has_functions(kind) {
            return Err(Refusal::lasting(match kind {
                DeviceType::Gpu => "Insufficient gpu VirtualFunctions",
                DeviceType::Rdma => "Insufficient rdma VirtualFunctions",
                DeviceType::Fpga => "Insufficient fpga VirtualFunctions",
            }));
        }
    }
    Ok(out)
}

/// The devices to give to a pod that needs `need`.
///
/// # Errors
/// Why the node cannot serve it.
pub fn allocate(need: &Need, site: &Site<'_>, rules: &Rules<'_>) -> Result<Allocation, Refusal> {
    let wanted = wanted(need, site.inventory, rules.in_full)?;
    let pool = |kind: DeviceType| {
        let (count, each) = wanted[kind.index()]?;
        Some(Pool::new(kind, count, each, need, site, rules))
    };
    let mut out = Allocation::default();
    let types = wanted.iter().filter(|wanted| wanted.is_some()).count();
    if types > 1
        && let Some((leading, others)) = need.joint.split_first()
    {
        let Some(pool_of_leading) = pool(*leading) else {
            return Err(Refusal::passing("node(s) Insufficient primary device"));
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
            let same = site.inventory.pcies(*kind, set(&grants)) == pcies;
            out.0[kind.index()] = grants;
            if need.same_pcie && !same {
                let reason = "node(s) Device Joint-Allocate rules violation";
                return Err(Refusal::passing(reason));
            }
        }
    }
    for kind in DeviceType::ALL {
        if out.of(kind).is_empty()
            && let Some(pool) = pool(kind)
        {
            out.0[kind.index()] = pool.pick(pool.count, &[])?;
        }
    }
    out.complete(site.inventory);
    Ok(out)
}

/// Per requested type, how many devices are wanted, what of each, and how many could give it; empty
/// when the node has no such devices at all.
#[must_use]
pub fn supply(
    need: &Need,
    site: &Site<'_>,
    rules: &Rules<'_>,
) -> Vec<(DeviceType, usize, Units, usize)> {
    let wanted = wanted(need, site.inventory, rules.in_full).unwrap_or_default();
    let mut out = Vec::new();
    for kind in DeviceType::ALL {
        if let Some((count, each)) = wanted[kind.index()] {
            let pool = Pool::new(kind, count, each, need, site, rules);
            let serving = pool.free.iter().filter(|(minor, _)| pool.serves(*minor));
            out.push((kind, count, each, serving.count()));
        }
    }
    out
}

/// The score of a node for `need`: 0 to 100 per type of device.
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
            .zip(wanted(need, site.inventory, rules.in_full)?)
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
            let mut left = used.map_or(device.total, |used| device.total.minus(used));
            if let Some(within) = within {
                let Some(most) = within.get(device.minor) else {
                    continue;
                };
                // A GPU's memory may be listed in one unit only.
                left = match kind {
                    DeviceType::Gpu => left.capped(&completed(most, &device.total)),
                    _ => left.capped(most),
                };
            }
            total.set(device.minor, device.total);
            free.set(device.minor, left);
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

    /// Takes `count` devices, or more of them if that covers more of `pcies`.
    fn pick(&self, count: usize, pcies: &[&str]) -> Result<Vec<Grant>, Refusal> {
        let count = count.max(1);
        let most = count.max(pcies.len());
        if self.kind == DeviceType::Gpu {
            return gpu::pick(self, count, most);
        }
        self.pick_any(count, most, pcies)
    }

    /// Whether one device can give what is wanted of each. GPU memory and its share are both looked
    /// at, whichever is asked for: shares are cut off, and many small ones would add up.
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

    /// Takes between `count` and `most` devices, best first.
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
            if self.need.wants_functions(self.kind) {
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
            return Err(Refusal::passing(Refusal::insufficient(self.kind)));
        }
        Ok(out)
    }

    /// All minors, best first: preferred ones, else one of each of `pcies` in turn; by score; by
    /// number.
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
        // The turn in which a device is taken: how many of its PCIe root come before it.
        let mut taken = vec![0_usize; pcies.len()];
        let turn = |minor: u8| {
            let device = self.site.inventory.device(self.kind, minor);
            let place = device.and_then(|device| device.place.as_ref())?;
            pcies.iter().position(|pcie| *pcie == place.pcie)
        };
        let mut turns: Vec<(usize, (u8, i64))> = Vec::new();
        for entry in scored {
            let number = match turn(entry.0) {
                Some(at) => {
                    taken[at] += 1;
                    taken[at]
                }
                None => usize::MAX,
            };
            turns.push((number, entry));
        }
        turns.sort_by_key(|(number, entry)| (*number, by_score(entry)));
        turns.into_iter().map(|(_, (minor, _))| minor).collect()
    }

    /// The free virtual function of `minor` with the lowest bus id.
    fn function(&self, minor: u8) -> Option<VirtualFunction> {
        let device: &Device = self.site.inventory.device(self.kind, minor)?;
        let wanted = self.need.hint(self.kind)?.vf_selector.as_ref()?;
        let groups = device
            .functions
            .iter()
            .filter(|group| koord_api::selector::matches(wanted, &group.labels).unwrap_or(false));
        let used = &self.site.used.functions[self.kind.index()];
        let listed = |list: &[(u8, String)], bus_id: &str| {
            let at =
                list.binary_search_by(|(of, known)| (*of, known.as_str()).cmp(&(minor, bus_id)));
            at.is_ok()
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
