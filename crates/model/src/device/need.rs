//! Device requirements of a pod, from its requests and annotations.

use super::inventory::Inventory;
use super::request::{self, RequestError};
use super::units::{DeviceResource as R, DeviceType, Units};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::extension::{DeviceAllocateHints, DeviceJointAllocate, GpuPartitionSpec};
use koord_api::selector;
use koord_api::texts::Texts;

/// Error for a pod with invalid requests or annotations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NeedError {
    /// The requests are invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A selector of the allocate hint is invalid.
    #[error("invalid {field} of DeviceHint, deviceType: {device}, err: {error}")]
    Selector {
        /// `Selector` or `VFSelector`.
        field: &'static str,
        /// Device type.
        device: String,
        /// The reason.
        error: String,
    },
}

/// Conversion of a request for non-GPU devices to a number of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CountStrategy {
    /// One device; or, for a multiple of 100, one device per hundred.
    #[default]
    Default,
    /// The full request from every device that the selector matches.
    ApplyForAll,
    /// One device per unit of the requested amount.
    RequestsAsCount,
}

/// Allocation hints of a pod for one device type.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TypeHint {
    /// Selector of the devices.
    pub selector: Option<LabelSelector>,
    /// Selector of virtual-function groups; if set, each device is allocated with a virtual function of a
    /// matching group.
    pub vf_selector: Option<LabelSelector>,
    /// Conversion of the request to a number of devices.
    pub strategy: CountStrategy,
    /// True if devices must not be shared with other pods.
    pub exclusive: bool,
}

/// GPU requirements of a pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuNeed {
    /// Number of GPUs.
    pub count: usize,
    /// Amounts of each GPU.
    pub each: Units,
    /// True if the GPUs may be shared with other pods.
    pub shared: bool,
    /// True if the GPUs must form a partition.
    pub partition: bool,
    /// True if only partitions of the best score may be used.
    pub best_partition: bool,
    /// Minimum bandwidth within the partition.
    pub bandwidth: Option<i64>,
    /// Minimum level of a topology scope that must contain all GPUs: 1 node, 2 NUMA node, 3 PCIe, 4 device; 0
    /// for an unknown scope; `None` means no restriction.
    pub scope: Option<u8>,
}

/// Device requirements of a pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Need {
    /// Converted requests by type.
    pub requests: [Option<Units>; 3],
    /// Allocation hints by type.
    pub hints: [Option<TypeHint>; 3],
    /// Types that are allocated jointly, the leading one first.
    pub joint: Vec<DeviceType>,
    /// True if joint devices must be at the same PCIe roots.
    pub same_pcie: bool,
    /// GPU requirements; `None` if the pod requests no GPU.
    pub gpu: Option<GpuNeed>,
}

impl Need {
    /// Parses the device resources of a pod's requests and its annotations. Returns `None` if the pod
    /// requests no device.
    ///
    /// # Errors
    /// The requests are not satisfiable by any device, or a selector is invalid.
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
                    "ApplyForAll" => CountStrategy::ApplyForAll,
                    "RequestsAsCount" => CountStrategy::RequestsAsCount,
                    _ => CountStrategy::Default,
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
                let is_requested = need.requests[device.index()].is_some();
                let apart = hint == Some(CountStrategy::ApplyForAll);
                if is_requested && !apart && !need.joint.contains(&device) {
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

    /// Returns the allocation hints for `device`.
    #[must_use]
    pub fn hint(&self, device: DeviceType) -> Option<&TypeHint> {
        self.hints[device.index()].as_ref()
    }

    /// Returns true if `device` is requested.
    #[must_use]
    pub fn requests_type(&self, device: DeviceType) -> bool {
        self.requests[device.index()].is_some()
    }

    /// Returns true if each device is allocated with a virtual function.
    #[must_use]
    pub fn needs_functions(&self, device: DeviceType) -> bool {
        self.hint(device)
            .is_some_and(|hint| hint.vf_selector.is_some())
    }

    /// Returns true if GPUs may be shared with other pods.
    #[must_use]
    pub fn shares_gpus(&self) -> bool {
        self.gpu.as_ref().is_some_and(|gpu| gpu.shared)
    }

    /// Returns the number of devices of type `device` and the amounts of each. `None` means that no device on
    /// the node matches.
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
        let units = |amount: i64| Units::from_iter([(resource, amount)]);
        let count = |amount: i64| usize::try_from(amount).unwrap_or(usize::MAX);
        if amount > 100 && amount % 100 == 0 {
            return Some((count(amount / 100), units(100)));
        }
        let hint = self.hint(device);
        match hint.map(|hint| hint.strategy).unwrap_or_default() {
            CountStrategy::Default => Some((1, total)),
            CountStrategy::ApplyForAll => {
                let selector = hint.and_then(|hint| hint.selector.as_ref());
                let all = on.devices(device).iter();
                let count = all.filter(|candidate| candidate.selected(selector)).count();
                (count > 0).then_some((count, total))
            }
            CountStrategy::RequestsAsCount => {
                let exclusive = hint.is_some_and(|hint| hint.exclusive);
                Some((count(amount), units(if exclusive { 100 } else { 1 })))
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
