//! Devices of a node, from its Device object.

use super::partition::PartitionTable;
use super::topology::TopologyScope;
use super::units::{DeviceType, Units, bit};
use crate::numa::NumaMask;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::{annotations, labels, scheduling, selector};
use std::collections::BTreeMap;

/// A device of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Minor number, below 64.
    pub minor: u8,
    /// Unique id.
    pub id: String,
    /// Capacity; empty while the device is unhealthy.
    pub total: Units,
    /// Labels that selectors match.
    pub labels: BTreeMap<String, String>,
    /// Position in the machine, if known.
    pub place: Option<DevicePosition>,
    /// Groups of virtual functions.
    pub functions: Vec<scheduling::VirtualFunctionGroup>,
}

/// Position of a device in the machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePosition {
    /// NUMA node; `None` if the device belongs to none.
    pub numa: Option<u8>,
    /// PCIe root.
    pub pcie: String,
}

impl Device {
    /// Returns true if `selector` matches the device; `None` matches every device.
    #[must_use]
    pub fn selected(&self, selector: Option<&LabelSelector>) -> bool {
        selector.is_none_or(|selector| selector::matches(selector, &self.labels).unwrap_or(false))
    }

    /// Returns true if the device may be allocated to a pod that is aligned to the NUMA nodes `mask`. A
    /// device of unknown position may not; one that is known to belong to no NUMA node may.
    #[must_use]
    pub fn within(&self, mask: NumaMask) -> bool {
        self.place
            .as_ref()
            .is_some_and(|place| place.numa.is_none_or(|numa| mask.has(numa)))
    }
}

/// All devices of a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// Devices by type, ascending by minor.
    devices: [Vec<Device>; 3],
    /// Partitions of the GPUs, if the Device object lists them.
    pub(super) partitions: Option<PartitionTable>,
    /// True if GPUs are only allocated as partitions.
    pub(super) honor_partitions: bool,
    /// True if the wiring guarantees the other devices that belong to any selected GPUs.
    pub(super) well_planned: bool,
    /// Topology of the GPUs, if the position of each is known.
    pub(super) tree: Option<TopologyScope>,
}

impl Inventory {
    /// Parses a Device object. Returns the devices and descriptions of the ignored parts.
    #[must_use]
    pub fn new(object: &scheduling::Device) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let mut out = Self::default();
        for (at, info) in object.spec.devices.iter().enumerate() {
            let kind = info.type_.as_ref().map_or("", |kind| kind.as_str());
            // Types without a resource name of their own cannot be requested.
            let Some(kind) = DeviceType::parse(kind) else {
                continue;
            };
            match device(info) {
                Ok(device) => {
                    let listed = &mut out.devices[kind.index()];
                    match listed.binary_search_by_key(&device.minor, |listed| listed.minor) {
                        Ok(same) => {
                            let minor = device.minor;
                            listed[same] = device;
                            problems.push(format!(
                                "spec.devices[{at}].minor: {kind} {minor} is listed before; the last one counts",
                                kind = kind.name(),
                            ));
                        }
                        Err(place) => listed.insert(place, device),
                    }
                }
                Err(error) => problems.push(format!("spec.devices[{at}].{error}; it is ignored")),
            }
        }
        let key = annotations::DEVICE_GPU_PARTITIONS;
        let text = object
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(key));
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            match PartitionTable::parse(text) {
                Ok((table, left_out)) => {
                    out.partitions = Some(table);
                    let ignored = |what| format!("annotation {key}: {what}; it is ignored");
                    problems.extend(left_out.into_iter().map(ignored));
                }
                Err(error) => {
                    problems.push(format!("annotation {key} is ignored: {error}: {text:?}"))
                }
            }
        }
        let label = |key: &str| {
            let labels = object.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get(key))
                .map(String::as_str)
        };
        out.honor_partitions = label(labels::NODE_GPU_PARTITION_POLICY) == Some("Honor");
        out.well_planned = label(labels::SECONDARY_DEVICE_WELL_PLANNED) == Some("true");
        out.tree = TopologyScope::from_gpus(&out.devices[DeviceType::Gpu.index()]);
        (out, problems)
    }

    /// Returns the devices of one type, ascending by minor.
    #[must_use]
    pub fn devices(&self, kind: DeviceType) -> &[Device] {
        &self.devices[kind.index()]
    }

    /// Returns the device with this minor.
    #[must_use]
    pub fn device(&self, kind: DeviceType, minor: u8) -> Option<&Device> {
        let all = self.devices(kind);
        let index = all.binary_search_by_key(&minor, |device| device.minor);
        index.ok().map(|index| &all[index])
    }

    /// Returns the devices with no capacity, because the Device object was deleted.
    #[must_use]
    pub fn withdrawn(&self) -> Self {
        let mut out = self.clone();
        for device in out.devices.iter_mut().flatten() {
            device.total = Units::NONE;
        }
        out
    }

    /// Returns the NUMA nodes that have devices, ascending.
    #[must_use]
    pub fn numa_nodes(&self) -> Vec<u8> {
        let places = self
            .devices
            .iter()
            .flatten()
            .filter_map(|d| d.place.as_ref());
        let mut ids: Vec<u8> = places.filter_map(|place| place.numa).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the number of devices of `kind` in the NUMA nodes of `mask`.
    #[must_use]
    pub fn count_in(&self, kind: DeviceType, mask: NumaMask) -> usize {
        let sits = |device: &&Device| {
            let numa = device.place.as_ref().and_then(|place| place.numa);
            numa.is_some_and(|numa| mask.has(numa))
        };
        self.devices(kind).iter().filter(sits).count()
    }

    /// Returns true if a device of `kind` has virtual functions.
    #[must_use]
    pub fn has_functions(&self, kind: DeviceType) -> bool {
        let mut devices = self.devices(kind).iter();
        devices.any(|device| !device.functions.is_empty())
    }

    /// Returns the PCIe roots of the devices of `kind` in `set`.
    pub(super) fn pcies(&self, kind: DeviceType, set: u64) -> Vec<&str> {
        let chosen = self
            .devices(kind)
            .iter()
            .filter(|d| set & bit(d.minor) != 0);
        let places = chosen.filter_map(|device| device.place.as_ref());
        let mut pcies: Vec<&str> = places.map(|place| place.pcie.as_str()).collect();
        pcies.sort_unstable();
        pcies.dedup();
        pcies
    }
}

/// Parses an entry of a Device object; an unhealthy device has no capacity.
fn device(info: &scheduling::DeviceInfo) -> Result<Device, String> {
    let minor = info.minor.ok_or("minor: is missing")?;
    let minor = u8::try_from(minor)
        .ok()
        .filter(|minor| *minor < 64)
        .ok_or_else(|| format!("minor: {minor} is not within 0..=63"))?;
    let total = Units::from_list(&info.resources);
    if !total.is_non_negative() {
        return Err(format!(
            "resources: an amount is negative: {:?}",
            info.resources
        ));
    }
    let place = info.topology.as_ref().map(|topology| DevicePosition {
        numa: u8::try_from(topology.node_id).ok().filter(|id| *id < 64),
        pcie: topology.pcie_id.clone(),
    });
    Ok(Device {
        minor,
        id: info.id.clone(),
        total: if info.health { total } else { Units::NONE },
        labels: info.labels.clone(),
        place,
        functions: info.vf_groups.clone(),
    })
}
