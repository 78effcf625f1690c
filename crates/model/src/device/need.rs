//! What a pod needs, from its requests and annotations.

use super::inventory::Inventory;
use super::request::{self, RequestError};
use super::units::{DeviceResource as R, DeviceType, Units};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::extension::{DeviceAllocateHints, DeviceJointAllocate, GpuPartitionSpec};
use koord_api::selector;
use koord_api::texts::Texts;

/// A pod whose requests or annotations make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NeedError {
    /// The requests.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A selector of the allocate hint.
    #[error("invalid {field} of DeviceHint, deviceType: {device}, err: {error}")]
    Selector {
        /// `Selector` or `VFSelector`.
        field: &'static str,
        /// The type of device.
        device: String,
        /// What is wrong with it.
        error: String,
    },
}

/// How a request for devices that are not GPUs becomes a number of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// One device, or as many as there are whole hundreds.
    #[default]
    Default,
    /// The same from every device that the selector matches.
    ApplyForAll,
    /// As many devices as are requested.
    RequestsAsCount,
}

/// The pod's wishes for one type of device.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TypeHint {
    /// Only devices with such labels.
    pub selector: Option<LabelSelector>,
    /// A virtual function, of a group with such labels, goes with each device.
    pub vf_selector: Option<LabelSelector>,
    /// How devices are counted.
    pub strategy: Strategy,
    /// The device is not to be shared with others.
    pub exclusive: bool,
}

/// What is needed of GPUs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuNeed {
    /// How many.
    pub count: usize,
    /// What of each.
    pub each: Units,
    /// Whether the GPUs may be shared with others.
    pub shared: bool,
    /// Only GPUs that form a partition.
    pub partition: bool,
    /// Only partitions of the best score.
    pub best_partition: bool,
    /// The least bandwidth within the partition.
    pub bandwidth: Option<i64>,
    /// The GPUs must be within one scope of at least this level: 1 node, 2 NUMA node, 3 PCIe, 4
    /// device; 0 for a scope that is unknown.
    pub scope: Option<u8>,
}

/// What a pod needs of devices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Need {
    /// The converted requests per type.
    pub requests: [Option<Units>; 3],
    /// The wishes per type.
    pub hints: [Option<TypeHint>; 3],
    /// Types that belong together, the leading one first.
    pub joint: Vec<DeviceType>,
    /// They must sit at the same PCIe roots.
    pub same_pcie: bool,
    /// What is needed of GPUs.
    pub gpu: Option<GpuNeed>,
}

impl Need {
    /// Reads the device resources of a pod's requests with its annotations; `None` when it asks
    /// for no device.
    ///
    /// # Errors
    /// The requests are not possible, or a selector is malformed.
    pub fn new(
        requests: &Units,
        hints: &DeviceAllocateHints,
        joint: Option<&DeviceJointAllocate>,
        partition: Option<&GpuPartitionSpec>,
    ) -> Result<Option<Self>, NeedError> {
        let mut need = Self::default();
        for device in DeviceType::ALL {
            let own = requests.only(device);
            if !own.is_zero() {
                need.requests[device.index()] = Some(request::convert(&own)?);
            }
        }
        if need.requests.iter().all(Option::is_none) {
            return Ok(None);
        }
        for (name, hint) in hints {
            for (field, selector) in [
                ("Selector", &hint.selector),
                ("VFSelector", &hint.vf_selector),
            ] {
                check(field, name, selector.as_ref())?;
            }
            let Some(device) = DeviceType::parse(name) else {
                continue;
            };
            need.hints[device.index()] = Some(TypeHint {
                selector: hint.selector.clone(),
                vf_selector: hint.vf_selector.clone(),
                strategy: match hint.allocate_strategy.as_str() {
                    "ApplyForAll" => Strategy::ApplyForAll,
                    "RequestsAsCount" => Strategy::RequestsAsCount,
                    _ => Strategy::Default,
                },
                exclusive: hint.exclusive_policy == "DeviceLevel",
            });
        }
        if let Some(joint) = joint {
            need.same_pcie = joint.required_scope == "SamePCIe";
            for name in &joint.device_types {
                let Some(device) = DeviceType::parse(name) else {
                    continue;
                };
                let hint = need.hint(device).map(|hint| hint.strategy);
                let asked = need.requests[device.index()].is_some();
                let apart = hint == Some(Strategy::ApplyForAll);
                if asked && !apart && !need.joint.contains(&device) {
                    need.joint.push(device);
                }
            }
        }
        need.gpu = need.requests[DeviceType::Gpu.index()].map(|total| {
            let (count, each, shared) = request::per_gpu(&total);
            let scope = hints.get(DeviceType::Gpu.name());
            let scope = scope.map_or("", |hint| hint.required_topology_scope.as_str());
            GpuNeed {
                count,
                each,
                shared,
                partition: partition.is_some(),
                best_partition: partition.is_some_and(|spec| spec.allocate_policy == "Restricted"),
                bandwidth: partition
                    .and_then(|spec| spec.ring_bus_bandwidth.as_ref())
                    .map(|quantity| quantity.value()),
                scope: match scope {
                    "" => None,
                    "Node" => Some(1),
                    "NUMANode" => Some(2),
                    "PCIe" => Some(3),
                    "Device" => Some(4),
                    _ => Some(0),
                },
            }
        });
        Ok(Some(need))
    }

    /// The wishes for `device`.
    #[must_use]
    pub fn hint(&self, device: DeviceType) -> Option<&TypeHint> {
        self.hints[device.index()].as_ref()
    }

    /// Whether `device` is requested.
    #[must_use]
    pub fn asks_for(&self, device: DeviceType) -> bool {
        self.requests[device.index()].is_some()
    }

    /// Whether each device comes with a virtual function.
    #[must_use]
    pub fn wants_functions(&self, device: DeviceType) -> bool {
        self.hint(device)
            .is_some_and(|hint| hint.vf_selector.is_some())
    }

    /// Whether GPUs are shared with others.
    #[must_use]
    pub fn shares_gpus(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.shared)
    }

    /// What is taken of each device of a type that is not GPU, and of how many. `None`: there is
    /// no device to take it from.
    pub(super) fn per_device(&self, device: DeviceType, on: &Inventory) -> Option<(usize, Units)> {
        let total = self.requests[device.index()]?;
        let resource = match device {
            DeviceType::Gpu => {
                let gpu = self.gpu.as_ref()?;
                return Some((gpu.count, gpu.each));
            }
            DeviceType::Rdma => R::Rdma,
            DeviceType::Fpga => R::Fpga,
        };
        let amount = total.get(resource);
        let of = |amount: i64| Units::from_iter([(resource, amount)]);
        let count = |amount: i64| usize::try_from(amount).unwrap_or(usize::MAX);
        if amount > 100 && amount % 100 == 0 {
            return Some((count(amount / 100), of(100)));
        }
        let hint = self.hint(device);
        match hint.map(|hint| hint.strategy).unwrap_or_default() {
            Strategy::Default => Some((1, total)),
            Strategy::ApplyForAll => {
                let selector = hint.and_then(|hint| hint.selector.as_ref());
                let all = on.devices(device).iter();
                let count = all.filter(|found| found.selected(selector)).count();
                (count > 0).then_some((count, total))
            }
            Strategy::RequestsAsCount => {
                let exclusive = hint.is_some_and(|hint| hint.exclusive);
                Some((count(amount), of(if exclusive { 100 } else { 1 })))
            }
        }
    }
}

fn check(
    field: &'static str,
    device: &str,
    selector: Option<&LabelSelector>,
) -> Result<(), NeedError> {
    let Some(selector) = selector else {
        return Ok(());
    };
    match selector::matches(selector, &Texts::default()) {
        Ok(_) => Ok(()),
        Err(error) => Err(NeedError::Selector {
            field,
            device: device.to_owned(),
            error: error.to_string(),
        }),
    }
}
