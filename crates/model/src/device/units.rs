//! Amounts of device resources, per device.

use crate::resources::{MOST, canonical};
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::resources as names;

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceType {
    /// GPUs and other accelerators.
    Gpu,
    /// RDMA adapters.
    Rdma,
    /// FPGAs.
    Fpga,
}

impl DeviceType {
    /// All of them, in the order in which they are allocated.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Rdma, Self::Fpga];

    /// Its place in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Its name in Device objects and annotations.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["gpu", "rdma", "fpga"][self.index()]
    }

    /// The type called `name`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A resource that devices offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceResource {
    /// `nvidia.com/gpu`: whole cards.
    NvidiaGpu,
    /// `amd.com/gpu`: whole cards.
    AmdGpu,
    /// `dcu.com/gpu`: whole cards.
    Dcu,
    /// `koordinator.sh/gpu`: percent of cards.
    Gpu,
    /// `koordinator.sh/gpu.shared`: the number of cards that are shared.
    GpuShared,
    /// `koordinator.sh/gpu-core`: percent.
    GpuCore,
    /// `koordinator.sh/gpu-memory`: bytes.
    GpuMemory,
    /// `koordinator.sh/gpu-memory-ratio`: percent.
    GpuMemoryRatio,
    /// `huawei.com/npu-core`.
    NpuCore,
    /// `huawei.com/npu-cpu`.
    NpuCpu,
    /// `huawei.com/npu-dvpp`.
    NpuDvpp,
    /// `koordinator.sh/rdma`: 100 for one adapter.
    Rdma,
    /// `koordinator.sh/fpga`: 100 for one FPGA.
    Fpga,
}

const COUNT: usize = 13;
const NAMES: [&str; COUNT] = [
    names::NVIDIA_GPU,
    names::AMD_GPU,
    names::DCU,
    names::GPU,
    names::GPU_SHARED,
    names::GPU_CORE,
    names::GPU_MEMORY,
    names::GPU_MEMORY_RATIO,
    names::HUAWEI_NPU_CORE,
    names::HUAWEI_NPU_CPU,
    names::HUAWEI_NPU_DVPP,
    names::RDMA,
    names::FPGA,
];

impl DeviceResource {
    /// All of them.
    pub const ALL: [Self; COUNT] = [
        Self::NvidiaGpu,
        Self::AmdGpu,
        Self::Dcu,
        Self::Gpu,
        Self::GpuShared,
        Self::GpuCore,
        Self::GpuMemory,
        Self::GpuMemoryRatio,
        Self::NpuCore,
        Self::NpuCpu,
        Self::NpuDvpp,
        Self::Rdma,
        Self::Fpga,
    ];

    /// Its name in resource lists.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// The resource called `name`, possibly by a deprecated name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let name = canonical(name);
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// The type of device that offers it.
    #[must_use]
    pub fn device(self) -> DeviceType {
        match self {
            Self::Rdma => DeviceType::Rdma,
            Self::Fpga => DeviceType::Fpga,
            _ => DeviceType::Gpu,
        }
    }

    /// `amount` as a quantity in the notation that is usual for the resource.
    #[must_use]
    pub fn quantity(self, amount: i64) -> Quantity {
        match self {
            Self::GpuMemory => Quantity::from_bytes(amount),
            _ => Quantity::from_value(amount),
        }
    }

    fn flag(self) -> u16 {
        1 << (self as u16)
    }
}

/// Amounts of device resources. A resource that is not listed is unlimited when it is missing in
/// what is free, and not asked for when it is missing in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Units {
    listed: u16,
    amounts: [i64; COUNT],
}

impl Units {
    /// Nothing listed.
    pub const NONE: Self = Self {
        listed: 0,
        amounts: [0; COUNT],
    };

    /// The device resources of `list`; others are left out.
    #[must_use]
    pub fn of(list: &ResourceList) -> Self {
        let mut out = Self::NONE;
        for (name, quantity) in list {
            if let Some(resource) = DeviceResource::parse(name) {
                out.set(resource, quantity.value().clamp(-MOST, MOST));
            }
        }
        out
    }

    /// The amounts as quantities.
    #[must_use]
    pub fn to_list(&self) -> ResourceList {
        self.iter()
            .map(|(resource, amount)| (resource.name().to_owned(), resource.quantity(amount)))
            .collect()
    }

    /// The amount of `resource`, zero when it is not listed.
    #[must_use]
    pub fn get(&self, resource: DeviceResource) -> i64 {
        self.amounts[resource as usize]
    }

    /// Whether `resource` is listed.
    #[must_use]
    pub fn lists(&self, resource: DeviceResource) -> bool {
        self.listed & resource.flag() != 0
    }

    /// Which resources are listed, as a set of bits; equal for equal sets.
    #[must_use]
    pub fn listed(&self) -> u16 {
        self.listed
    }

    /// Lists `resource` with `amount`.
    pub fn set(&mut self, resource: DeviceResource, amount: i64) {
        self.listed |= resource.flag();
        self.amounts[resource as usize] = amount;
    }

    /// What is listed.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceResource, i64)> + '_ {
        DeviceResource::ALL
            .into_iter()
            .filter(|resource| self.lists(*resource))
            .map(|resource| (resource, self.get(resource)))
    }

    /// Whether every amount is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.amounts.iter().all(|amount| *amount == 0)
    }

    /// Whether no amount is negative.
    #[must_use]
    pub fn is_sane(&self) -> bool {
        self.amounts.iter().all(|amount| *amount >= 0)
    }

    /// Whether every resource that both list is asked for in no larger amount than is `free`.
    #[must_use]
    pub fn fits(&self, free: &Self) -> bool {
        self.iter()
            .all(|(resource, amount)| !free.lists(resource) || amount <= free.get(resource))
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut out = *self;
        for (resource, amount) in other.iter() {
            out.set(resource, out.get(resource).saturating_add(amount));
        }
        out
    }

    /// What is left without `other`, never below zero; lists what `self` lists.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut out = *self;
        for (resource, amount) in self.iter() {
            let left = amount.saturating_sub(other.get(resource));
            out.set(resource, left.max(0));
        }
        out
    }

    /// The smaller of both for every resource that `self` lists; zero where `other` does not.
    #[must_use]
    pub fn capped(&self, other: &Self) -> Self {
        let mut out = *self;
        for (resource, amount) in self.iter() {
            out.set(resource, amount.min(other.get(resource)));
        }
        out
    }

    /// Only the resources of one type of device, without those of amount zero.
    #[must_use]
    pub fn only(&self, device: DeviceType) -> Self {
        let mut out = Self::NONE;
        for (resource, amount) in self.iter() {
            if resource.device() == device && amount != 0 {
                out.set(resource, amount);
            }
        }
        out
    }
}

impl FromIterator<(DeviceResource, i64)> for Units {
    fn from_iter<I: IntoIterator<Item = (DeviceResource, i64)>>(items: I) -> Self {
        let mut out = Self::NONE;
        for (resource, amount) in items {
            out.set(resource, amount);
        }
        out
    }
}

/// The set with one minor; empty for numbers that are out of range.
#[must_use]
pub fn bit(minor: u8) -> u64 {
    1_u64.checked_shl(u32::from(minor)).unwrap_or(0)
}

/// The minors of a set, ascending.
pub fn minors(set: u64) -> impl Iterator<Item = u8> {
    (0..64).filter(move |minor| set & bit(*minor) != 0)
}

/// Amounts by minor, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PerMinor(Vec<(u8, Units)>);

impl PerMinor {
    /// The amounts of `minor`, if it is listed.
    #[must_use]
    pub fn get(&self, minor: u8) -> Option<&Units> {
        let at = self.0.binary_search_by_key(&minor, |(known, _)| *known);
        at.ok().map(|at| &self.0[at].1)
    }

    /// Sets the amounts of `minor`.
    pub fn set(&mut self, minor: u8, units: Units) {
        match self.0.binary_search_by_key(&minor, |(known, _)| *known) {
            Ok(at) => self.0[at].1 = units,
            Err(at) => self.0.insert(at, (minor, units)),
        }
    }

    /// Adds to the amounts of `minor`.
    pub fn add(&mut self, minor: u8, units: &Units) {
        let sum = self.get(minor).map_or(*units, |known| known.plus(units));
        self.set(minor, sum);
    }

    /// All minors with their amounts.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Units)> {
        self.0.iter().map(|(minor, units)| (*minor, units))
    }

    /// The minors as a set.
    #[must_use]
    pub fn set_of(&self) -> u64 {
        self.iter().fold(0, |set, (minor, _)| set | bit(minor))
    }

    /// The minors of which some amount is not zero.
    #[must_use]
    pub fn busy(&self) -> u64 {
        let some = self.iter().filter(|(_, units)| !units.is_zero());
        some.fold(0, |set, (minor, _)| set | bit(minor))
    }

    /// How many minors are listed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no minor is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The amounts of all minors together.
    #[must_use]
    pub fn sum(&self) -> Units {
        self.iter()
            .fold(Units::NONE, |sum, (_, units)| sum.plus(units))
    }
}
