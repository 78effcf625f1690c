//! GPU, NPU and RDMA resources, summed over the devices in the node's Device.

use super::{Draft, Plugin};
use crate::noderesource::plan::Input;
use koord_api::quantity::{Quantity, ResourceList};
use koord_api::scheduling::{DeviceInfo, DeviceType};
use koord_api::{labels, resources};
use koord_model::reclaim::NodeView;
use koord_model::resources::current;

pub(super) const GPU_PLUGIN: Plugin = Plugin {
    name: "GPUDeviceResource",
    runs_without_colocation: |input| input.devices_always,
    run: gpus,
};

pub(super) const RDMA_PLUGIN: Plugin = Plugin {
    name: "RDMADeviceResource",
    runs_without_colocation: |input| input.devices_always,
    run: rdma,
};

/// Extended resources of accelerators, of any vendor.
const GPU_RESOURCES: [&str; 8] = [
    resources::GPU,
    resources::GPU_CORE,
    resources::HUAWEI_NPU_CORE,
    resources::HUAWEI_NPU_CPU,
    resources::HUAWEI_NPU_DVPP,
    resources::GPU_MEMORY,
    resources::GPU_MEMORY_RATIO,
    resources::GPU_SHARED,
];

/// Labels that are copied from the Device and never removed.
const GPU_LABELS: [&str; 3] = [
    labels::NODE_GPU_VENDOR,
    labels::NODE_GPU_MODEL,
    labels::NODE_GPU_DRIVER_VERSION,
];

/// Amount of one whole device, in percent.
const ONE_DEVICE: i64 = 100;

/// Publishes the resources and labels of the healthy GPUs.
fn gpus(input: &Input<'_>, _: Option<&NodeView>, draft: &mut Draft) -> Result<(), String> {
    let healthy = healthy(input, &DeviceType::Gpu);
    let Some(device) = input.device.filter(|_| !healthy.is_empty()) else {
        let removed = GPU_RESOURCES.map(|name| (name, None));
        draft.resources.extend(removed);
        return Ok(());
    };
    let mut sum = ResourceList::new();
    for gpu in &healthy {
        for (name, amount) in current(&gpu.resources) {
            *sum.entry(name.to_owned()).or_default() += *amount;
        }
    }
    let of_device = device.metadata.labels.as_ref();
    let label = |key: &str| of_device.and_then(|labels| labels.get(key));
    // Upstream uses this name for whole GPUs of NVIDIA only.
    let vendor = label(labels::NODE_GPU_VENDOR).map_or("", String::as_str);
    if matches!(vendor, "" | "nvidia") {
        let cores = sum.get(resources::GPU_CORE).copied().unwrap_or_default();
        sum.insert(resources::GPU.to_owned(), cores);
    }
    if input.share_gpus {
        sum.insert(resources::GPU_SHARED.to_owned(), devices(healthy.len()));
    }
    // Resources that the Device does not have are left unchanged.
    let names = GPU_RESOURCES.into_iter();
    let offered = names.filter_map(|name| Some((name, Some(*sum.get(name)?))));
    draft.resources.extend(offered);
    let of_node = input.node.metadata.labels.as_ref();
    for key in GPU_LABELS {
        let desired = label(key);
        if let Some(desired) = desired.filter(|w| of_node.and_then(|all| all.get(key)) != Some(*w))
        {
            draft.labels.insert(key, desired.clone());
        }
    }
    Ok(())
}

fn rdma(input: &Input<'_>, _: Option<&NodeView>, draft: &mut Draft) -> Result<(), String> {
    let count = healthy(input, &DeviceType::Rdma).len();
    let amount = (count > 0).then(|| devices(count));
    draft.resources.insert(resources::RDMA, amount);
    Ok(())
}

fn healthy<'a>(input: &Input<'a>, kind: &DeviceType) -> Vec<&'a DeviceInfo> {
    let devices = input.device.into_iter().flat_map(|d| &d.spec.devices);
    devices
        .filter(|device| device.health && device.type_.as_ref() == Some(kind))
        .collect()
}

/// Returns the amount of `count` whole devices.
fn devices(count: usize) -> Quantity {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    Quantity::from_value(count.saturating_mul(ONE_DEVICE))
}
