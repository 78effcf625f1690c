//! What devices a node has, from its Device object.

use super::partition::PartitionTable;
use super::topology::Scope;
use super::units::{DeviceType, Units, bit};
use crate::numa::NumaMask;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::{annotations, labels, scheduling, selector};
use std::collections::BTreeMap;

/// One device.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Its minor number, below 64.
    pub minor: u8,
    /// Its unique id.
    pub id: String,
    /// What it offers; nothing while it is unhealthy.
    pub total: Units,
    /// What selectors look at.
    pub labels: BTreeMap<String, String>,
    /// Where it sits, when that is known.
    pub place: Option<Place>,
    /// Groups of virtual functions.
    pub functions: Vec<scheduling::VirtualFunctionGroup>,
}

/// Where a device sits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The NUMA node, when it is known.
    pub numa: Option<u8>,
    /// The PCIe root.
    pub pcie: String,
}

impl Device {
    /// Whether `selector`, if there is one, selects the device.
    #[must_use]
    pub fn selected(&self, selector: Option<&LabelSelector>) -> bool {
        selector.is_none_or(|selector| selector::matches(selector, &self.labels).unwrap_or(false))
    }

    /// Whether the device may serve a pod that is aligned to the NUMA nodes `mask`. A device of
    /// unknown place may not; one that is known to belong to no NUMA node may.
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
    /// By type, ascending by minor.
    devices: [Vec<Device>; 3],
    /// The partitions its GPUs can form, when the Device object says.
    pub(super) partitions: Option<PartitionTable>,
    /// No GPUs outside of partitions are to be given away.
    pub(super) honor_partitions: bool,
    /// Whichever GPUs are taken, the other devices that belong to them are there.
    pub(super) well_planned: bool,
    /// How the GPUs hang together, when the place of each is known.
    pub(super) tree: Option<Scope>,
}

impl Inventory {
    /// Reads a Device object; with what was ignored.
    #[must_use]
    pub fn new(object: &scheduling::Device) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let mut out = Self::default();
        for (at, info) in object.spec.devices.iter().enumerate() {
            let kind = info.type_.as_ref().map_or("", |kind| kind.as_str());
            // Types that nobody asks for by a resource of theirs are none of our business.
            let Some(kind) = DeviceType::parse(kind) else {
                continue;
            };
            match device(info) {
                Ok(device) => {
                    let known = &mut out.devices[kind.index()];
                    match known.binary_search_by_key(&device.minor, |known| known.minor) {
                        Ok(same) => {
                            let minor = device.minor;
                            known[same] = device;
                            problems.push(format!(
                                "spec.devices[{at}].minor: {kind} {minor} is listed before; the last one counts",
                                kind = kind.name(),
                            ));
                        }
                        Err(place) => known.insert(place, device),
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
        out.tree = Scope::of(&out.devices[DeviceType::Gpu.index()]);
        (out, problems)
    }

    /// The devices of one type, ascending by minor.
    #[must_use]
    pub fn devices(&self, kind: DeviceType) -> &[Device] {
        &self.devices[kind.index()]
    }

    /// The device with this minor.
    #[must_use]
    pub fn device(&self, kind: DeviceType, minor: u8) -> Option<&Device> {
        let all = self.devices(kind);
        let at = all.binary_search_by_key(&minor, |device| device.minor);
        at.ok().map(|at| &all[at])
    }

    /// The same devices, none of which can be given away any more: the Device object is gone.
    #[must_use]
    pub fn withdrawn(&self) -> Self {
        let mut out = self.clone();
        for device in out.devices.iter_mut().flatten() {
            device.total = Units::NONE;
        }
        out
    }

    /// The NUMA nodes that have devices, ascending.
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

    /// How many devices of `kind` sit in the NUMA nodes of `mask`.
    #[must_use]
    pub fn count_in(&self, kind: DeviceType, mask: NumaMask) -> usize {
        let sits = |device: &&Device| {
            let numa = device.place.as_ref().and_then(|place| place.numa);
            numa.is_some_and(|numa| mask.has(numa))
        };
        self.devices(kind).iter().filter(sits).count()
    }

    /// Whether some device of `kind` has virtual functions.
    #[must_use]
    pub fn has_functions(&self, kind: DeviceType) -> bool {
        let mut devices = self.devices(kind).iter();
        devices.any(|device| !device.functions.is_empty())
    }

    /// The PCIe roots of devices of `kind`.
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

fn device(info: &scheduling::DeviceInfo) -> Result<Device, String> {
    let minor = info.minor.ok_or("minor: is missing")?;
    let minor = u8::try_from(minor)
        .ok()
        .filter(|minor| *minor < 64)
        .ok_or_else(|| format!("minor: {minor} is not within 0..=63"))?;
    let total = Units::of(&info.resources);
    if !total.is_sane() {
        return Err(format!(
            "resources: an amount is negative: {:?}",
            info.resources
        ));
    }
    let place = info.topology.as_ref().map(|topology| Place {
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
