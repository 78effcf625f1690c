//! Amounts of device resources per device.

use crate::resources::{MOST, canonical};
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::resources as names;

/// Device type.
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
    /// All types, in the order in which they are allocated.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Rdma, Self::Fpga];

    /// Returns the index in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the name used in Device objects and annotations.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["gpu", "rdma", "fpga"][self.index()]
    }

    /// Returns the type with this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Resource that devices provide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceResource {
    /// `nvidia.com/gpu`: whole cards.
    NvidiaGpu,
    /// `amd.com/gpu`: whole cards.
    AmdGpu,
    /// `dcu.com/gpu`: whole cards.
    Dcu,
    /// `koordinator.sh/gpu`: percent of a card's core and memory.
    Gpu,
    /// `koordinator.sh/gpu.shared`: the number of shared cards.
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
    /// All resources.
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

    /// Returns the name used in resource lists.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Returns the resource with this name or deprecated name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let name = canonical(name);
        Self::ALL
            .into_iter()
            .find(|resource| resource.name() == name)
    }

    /// Returns the device type that provides the resource.
    #[must_use]
    pub fn device(self) -> DeviceType {
        match self {
            Self::Rdma => DeviceType::Rdma,
            Self::Fpga => DeviceType::Fpga,
            _ => DeviceType::Gpu,
        }
    }

    /// Converts `amount` to a quantity in the usual notation of the resource.
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

/// Amounts of device resources. A resource that is not listed is unlimited in free amounts and not requested
/// in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Units {
    listed: u16,
    amounts: [i64; COUNT],
}

impl Units {
    /// Amounts with no listed resource.
    pub const NONE: Self = Self {
        listed: 0,
        amounts: [0; COUNT],
    };

    /// Extracts the device resources of `list`; others are ignored.
    #[must_use]
    pub fn from_list(list: &ResourceList) -> Self {
        let mut out = Self::NONE;
        for (name, quantity) in list {
            if let Some(resource) = DeviceResource::parse(name) {
                out.set(resource, quantity.value().clamp(-MOST, MOST));
            }
        }
        out
    }

    /// Converts to a resource list.
    #[must_use]
    pub fn to_list(&self) -> ResourceList {
        self.iter()
            .map(|(resource, amount)| (resource.name().to_owned(), resource.quantity(amount)))
            .collect()
    }

    /// Returns the amount of `resource`, zero if it is not listed.
    #[must_use]
    pub fn get(&self, resource: DeviceResource) -> i64 {
        self.amounts[resource as usize]
    }

    /// Returns true if `resource` is listed.
    #[must_use]
    pub fn lists(&self, resource: DeviceResource) -> bool {
        self.listed & resource.flag() != 0
    }

    /// Returns the listed resources as a bit set; equal for equal sets.
    #[must_use]
    pub fn listed(&self) -> u16 {
        self.listed
    }

    /// Lists `resource` with `amount`.
    pub fn set(&mut self, resource: DeviceResource, amount: i64) {
        self.listed |= resource.flag();
        self.amounts[resource as usize] = amount;
    }

    /// Returns the listed resources with their amounts.
    pub fn iter(&self) -> impl Iterator<Item = (DeviceResource, i64)> + '_ {
        DeviceResource::ALL
            .into_iter()
            .filter(|resource| self.lists(*resource))
            .map(|resource| (resource, self.get(resource)))
    }

    /// Returns true if every amount is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.amounts.iter().all(|amount| *amount == 0)
    }

    /// Returns true if no amount is negative.
    #[must_use]
    pub fn is_non_negative(&self) -> bool {
        self.amounts.iter().all(|amount| *amount >= 0)
    }

    /// Returns true if no resource that both list has a larger amount here than in `free`.
    #[must_use]
    pub fn fits(&self, free: &Self) -> bool {
        self.iter()
            .all(|(resource, amount)| !free.lists(resource) || amount <= free.get(resource))
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut out = *self;
        for (resource, amount) in other.iter() {
            out.set(resource, out.get(resource).saturating_add(amount));
        }
        out
    }

    /// Returns the amounts minus those of `other`, at least zero; lists the resources of `self`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut out = *self;
        for (resource, amount) in self.iter() {
            let remaining = amount.saturating_sub(other.get(resource));
            out.set(resource, remaining.max(0));
        }
        out
    }

    /// Returns the smaller amount of every resource that `self` lists; zero if `other` does not list it.
    #[must_use]
    pub fn capped(&self, other: &Self) -> Self {
        let mut out = *self;
        for (resource, amount) in self.iter() {
            out.set(resource, amount.min(other.get(resource)));
        }
        out
    }

    /// Returns the non-zero amounts of the resources of one device type.
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

/// Returns the bit set with one minor; empty for numbers above 63.
#[must_use]
pub fn bit(minor: u8) -> u64 {
    1_u64.checked_shl(u32::from(minor)).unwrap_or(0)
}

/// Returns the minors of a bit set, ascending.
pub fn minors(set: u64) -> impl Iterator<Item = u8> {
    (0..64).filter(move |minor| set & bit(*minor) != 0)
}

/// Amounts by minor, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PerMinor(Vec<(u8, Units)>);

impl PerMinor {
    /// Returns the amounts of `minor`, if it is listed.
    #[must_use]
    pub fn get(&self, minor: u8) -> Option<&Units> {
        let index = self.0.binary_search_by_key(&minor, |(listed, _)| *listed);
        index.ok().map(|index| &self.0[index].1)
    }

    /// Sets the amounts of `minor`.
    pub fn set(&mut self, minor: u8, units: Units) {
        match self.0.binary_search_by_key(&minor, |(listed, _)| *listed) {
            Ok(index) => self.0[index].1 = units,
            Err(index) => self.0.insert(index, (minor, units)),
        }
    }

    /// Adds to the amounts of `minor`.
    pub fn add(&mut self, minor: u8, units: &Units) {
        let sum = self
            .get(minor)
            .map_or(*units, |units_before| units_before.plus(units));
        self.set(minor, sum);
    }

    /// Returns all minors with their amounts.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Units)> {
        self.0.iter().map(|(minor, units)| (*minor, units))
    }

    /// Returns the minors as a bit set.
    #[must_use]
    pub fn set_of(&self) -> u64 {
        self.iter().fold(0, |set, (minor, _)| set | bit(minor))
    }

    /// Returns the bit set of minors with a non-zero amount.
    #[must_use]
    pub fn busy(&self) -> u64 {
        let nonzero = self.iter().filter(|(_, units)| !units.is_zero());
        nonzero.fold(0, |set, (minor, _)| set | bit(minor))
    }

    /// Returns the number of listed minors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if no minor is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sum over all minors.
    #[must_use]
    pub fn sum(&self) -> Units {
        self.iter()
            .fold(Units::NONE, |sum, (_, units)| sum.plus(units))
    }
}
