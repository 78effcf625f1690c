//! Sources of devices, in order of precedence.

use super::Config;
use super::files::{DeviceProblems, XpuFiles};
use super::nvidia::Nvidia;
use crate::gates::{Gate, Gates};
use crate::states::malformed::Malformed;
use koord_api::scheduling::{
    DeviceInfo, DeviceTopology, DeviceType, VirtualFunction, VirtualFunctionGroup,
};
use koord_api::{Quantity, resources};
use koord_host::Root;
use koord_host::rdma::{Adapter, adapters};
use koord_model::device_report::{Detected, Report};

/// Finds the devices of a machine.
#[derive(Debug)]
pub struct DeviceFinder {
    root: Root,
    files: Option<XpuFiles>,
    nvidia: Option<Nvidia>,
    rdma: bool,
    /// RDMA adapters of the last successful search.
    adapters: Vec<Detected>,
}

impl DeviceFinder {
    /// Creates the sources that the gates enable; `None` if there are none.
    #[must_use]
    pub fn new(root: Root, gates: &Gates, config: &Config) -> Option<Self> {
        let accelerators = gates.is_on(Gate::Accelerators);
        let rdma = gates.is_on(Gate::RDMADevices);
        let asks = accelerators && !config.files_only;
        (accelerators || rdma).then(|| Self {
            nvidia: asks.then(|| Nvidia::new(root.clone(), config.library.clone())),
            root,
            files: accelerators.then(|| XpuFiles::new(config.files.clone())),
            rdma,
            adapters: Vec::new(),
        })
    }

    /// Returns the devices, and invalid input by the object that it is reported for.
    pub fn find(&mut self) -> (Report, DeviceProblems) {
        let mut report = Report::default();
        let mut problems_by_object = Vec::new();
        if let Some(files) = &mut self.files {
            let (found, wrong) = files.find();
            problems_by_object = wrong;
            match (found, &mut self.nvidia) {
                (Some(found), _) => report = found,
                (None, Some(nvidia)) => {
                    let (found, wrong) = nvidia.find();
                    report = found.unwrap_or_default();
                    problems_by_object.extend(wrong);
                }
                (None, None) => {}
            }
        }
        if self.rdma {
            let wrong = self.find_adapters();
            report.devices.extend(self.adapters.iter().cloned());
            problems_by_object.push(("RDMA devices".to_owned(), wrong));
        }
        (report, problems_by_object)
    }

    fn find_adapters(&mut self) -> Vec<Malformed> {
        let all_adapters = match adapters(&self.root) {
            Ok(all_adapters) => all_adapters,
            Err(error) => return vec![Malformed::new("", "", &error)],
        };
        self.adapters = all_adapters.adapters.iter().map(adapter).collect();
        let left_out = all_adapters.left_out.into_iter();
        let wrong = left_out.map(|(device, why)| Malformed::new("device", device, &why));
        wrong.collect()
    }
}

/// Returns the RDMA device of an adapter, with its virtual functions.
fn adapter(adapter: &Adapter) -> Detected {
    let place = &adapter.place;
    let functions = adapter.functions.iter();
    let vfs: Vec<VirtualFunction> = functions
        .map(|address| VirtualFunction {
            minor: -1,
            bus_id: address.clone(),
        })
        .collect();
    let group = VirtualFunctionGroup {
        vfs,
        ..VirtualFunctionGroup::default()
    };
    let has_functions = !group.vfs.is_empty();
    Detected {
        info: DeviceInfo {
            id: place.address.clone(),
            minor: Some(adapter.minor),
            type_: Some(DeviceType::Rdma),
            health: adapter.active,
            resources: [(resources::RDMA.to_owned(), Quantity::from_value(100))].into(),
            topology: Some(DeviceTopology {
                socket_id: -1,
                node_id: place.numa_node,
                pcie_id: place.root_complex.clone(),
                bus_id: place.address.clone(),
            }),
            vf_groups: has_functions.then_some(group).into_iter().collect(),
            ..DeviceInfo::default()
        },
        health: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_host::pci::PciLocation;
    use serde_json::json;

    /// Upstream: the adapter of `Test_reportGPUDevice`, with functions.
    #[test]
    fn an_adapter_is_reported_with_its_functions() {
        let mut sample = Adapter {
            devices: vec!["mlx5_0".to_owned()],
            minor: 0,
            place: PciLocation {
                address: "0000:00:09.0".to_owned(),
                numa_node: 1,
                root_complex: "pci0000:00".to_owned(),
            },
            active: true,
            functions: vec!["0000:00:09.2".to_owned(), "0000:00:09.3".to_owned()],
        };
        let mut expected = json!({"id": "0000:00:09.0", "minor": 0, "type": "rdma", "health": true,
            "resources": {"koordinator.sh/rdma": "100"},
            "topology": {"socketID": -1, "nodeID": 1, "pcieID": "pci0000:00", "busID": "0000:00:09.0"},
            "vfGroups": [{"vfs": [{"minor": -1, "busID": "0000:00:09.2"},
                {"minor": -1, "busID": "0000:00:09.3"}]}]});
        let written = |it: &Adapter| serde_json::to_value(adapter(it).info).unwrap();
        assert_eq!(written(&sample), expected);
        sample.functions.clear();
        sample.active = false;
        expected.as_object_mut().unwrap().remove("vfGroups");
        expected["health"] = json!(false);
        assert_eq!(written(&sample), expected);
    }
}
