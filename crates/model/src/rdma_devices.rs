//! Device files through which a container uses the RDMA adapters allocated to its pod.
//!
//! Source: Koordinator `pkg/koordlet/runtimehooks/hooks/rdma`.

use k8s_openapi::api::core::v1::Pod;
use koord_api::extension::DeviceAllocations;
use koord_api::resources::RDMA;
use koord_api::scheduling::DeviceType;

/// Device file of an RDMA adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RdmaFile {
    /// The connection manager, which all adapters share.
    ConnectionManager,
    /// The verbs device of the PCI function with this address, such as `0000:3b:00.1`.
    Verbs(String),
}

/// Error for an RDMA device without a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an RDMA device of a pod is named by its PCI address, such as 0000:3b:00.1, got {0:?}")]
pub struct NoAddress(String);

/// Returns the device files for every container of the pod; empty if the pod has no RDMA device. For a device
/// with virtual functions these are the files of the functions, not of the device.
///
/// # Errors
/// A device or function has no PCI address.
pub fn device_files(devices: &DeviceAllocations) -> Result<Vec<RdmaFile>, NoAddress> {
    let Some(devices) = devices
        .get(DeviceType::Rdma.as_str())
        .filter(|devices| !devices.is_empty())
    else {
        return Ok(Vec::new());
    };
    let mut files = vec![RdmaFile::ConnectionManager];
    for device in devices {
        let functions = device.extension.as_ref().map(|extension| &extension.vfs);
        match functions.filter(|functions| !functions.is_empty()) {
            Some(functions) => {
                for function in functions {
                    files.push(verbs(&function.bus_id)?);
                }
            }
            None => files.push(verbs(&device.id)?),
        }
    }
    Ok(files)
}

/// Name of the resource in Koordinator's first releases.
const RDMA_BEFORE: &str = "kubernetes.io/rdma";

/// Annotation of the API server's copy of a static pod. No kubelet runs a pod because of such an object, so
/// nothing is gained by writing it.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Returns true if `devices`, a pod's allocations, name RDMA devices although no container of the pod
/// requests any: then no scheduler accounted for them, but another client wrote the annotation. Static pods
/// (mirror pods) are exempt, because they are controlled by the node's administrator.
pub fn are_unrequested(pod: &Pod, devices: &DeviceAllocations) -> bool {
    let named = devices.get(DeviceType::Rdma.as_str());
    if named.is_none_or(Vec::is_empty) {
        return false;
    }
    let notes = pod.metadata.annotations.as_ref();
    if notes.is_some_and(|notes| notes.contains_key(MIRROR)) {
        return false;
    }
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        spec.containers.iter().chain(init)
    });
    let mut lists = containers
        .filter_map(|container| container.resources.as_ref())
        .flat_map(|resources| resources.requests.iter().chain(&resources.limits));
    !lists.any(|list| {
        [RDMA, RDMA_BEFORE]
            .iter()
            .any(|name| list.contains_key(*name))
    })
}

/// Validates a PCI address, which becomes part of a path, although any author of a pod can write its
/// annotations.
fn verbs(address: &str) -> Result<RdmaFile, NoAddress> {
    let hex = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = address.split(':');
    let (domain, bus, rest) = (parts.next(), parts.next(), parts.next());
    let is_address = domain.is_some_and(|domain| hex(domain, 4..=8))
        && bus.is_some_and(|bus| hex(bus, 2..=2))
        && parts.next().is_none()
        && rest
            .and_then(|rest| rest.split_once('.'))
            .is_some_and(|(slot, function)| hex(slot, 2..=2) && hex(function, 1..=1));
    if is_address {
        Ok(RdmaFile::Verbs(address.to_ascii_lowercase()))
    } else {
        Err(NoAddress(address.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn files_of(devices: Value) -> Result<Vec<RdmaFile>, NoAddress> {
        device_files(&serde_json::from_value(devices).unwrap())
    }

    fn files(addresses: &[&str]) -> Vec<RdmaFile> {
        let verbs = addresses
            .iter()
            .map(|address| RdmaFile::Verbs((*address).to_owned()));
        [RdmaFile::ConnectionManager]
            .into_iter()
            .chain(verbs)
            .collect()
    }

    #[test]
    fn adapters_and_their_functions() {
        let function = |address: &str| json!({"minor": 1, "busID": address});
        for (devices, want) in [
            (json!({}), vec![]),
            (json!({"rdma": []}), vec![]),
            (json!({"gpu": [{"minor": 0}]}), vec![]),
            (
                json!({"rdma": [{"minor": 0, "id": "0000:3b:00.0"}]}),
                files(&["0000:3b:00.0"]),
            ),
            (
                json!({"rdma": [{"minor": 0, "id": "0000:3b:00.0"}, {"minor": 1, "id": "0000:AF:00.1",
                    "extension": {"vfs": []}}]}),
                files(&["0000:3b:00.0", "0000:af:00.1"]),
            ),
            (
                json!({"rdma": [{"minor": 0, "id": "0000:3b:00.0", "extension":
                    {"vfs": [function("0000:3b:00.2"), function("10000:3b:01.7")]}}]}),
                files(&["0000:3b:00.2", "10000:3b:01.7"]),
            ),
        ] {
            assert_eq!(files_of(devices.clone()), Ok(want), "{devices}");
        }
    }

    #[test]
    fn allocations_without_a_request_are_detected() {
        let one = json!({"rdma": [{"minor": 0}]});
        let asks = |list: &str, name: &str| json!({"resources": {list: {name: "1"}}});
        let plain = || asks("requests", "cpu");
        let (main, init) = ("containers", "initContainers");
        let own = "koordinator.sh/rdma";
        for (devices, place, container, note, want) in [
            (&one, main, plain(), "a", true),
            (&one, main, json!({}), "a", true),
            (&json!({"rdma": []}), main, plain(), "a", false),
            (&json!({"gpu": [{"minor": 0}]}), main, plain(), "a", false),
            (&one, main, asks("requests", own), "a", false),
            (&one, main, asks("limits", own), "a", false),
            (&one, init, asks("requests", own), "a", false),
            (
                &one,
                main,
                asks("requests", "kubernetes.io/rdma"),
                "a",
                false,
            ),
            (
                &one,
                main,
                asks("requests", "koordinator.sh/gpu"),
                "a",
                true,
            ),
            (&one, main, plain(), "kubernetes.io/config.mirror", false),
            (&one, main, plain(), "kubernetes.io/config.source", true),
        ] {
            let pod = json!({"metadata": {"annotations": {note: "file"}},
                "spec": {"containers": [{"name": "other"}], place: [container]}});
            let mut pod: Value = pod;
            for container in pod["spec"][place].as_array_mut().unwrap() {
                container["name"] = "c".into();
            }
            let typed = serde_json::from_value(pod.clone()).unwrap();
            let devices: DeviceAllocations = serde_json::from_value(devices.clone()).unwrap();
            assert_eq!(are_unrequested(&typed, &devices), want, "{pod} {devices:?}");
        }
        let bare = serde_json::from_value(json!({"metadata": {}})).unwrap();
        let devices = serde_json::from_value(one).unwrap();
        assert!(are_unrequested(&bare, &devices), "no spec asks for nothing");
    }

    #[test]
    fn invalid_pci_address_is_in_the_error() {
        for bad in [
            "",
            "../../../..",
            "0000:3b:00",
            "3b:00.0",
            "0000:3b:00.0/..",
            "0000:3b:00.0:1",
            "0000:3b:0g.0",
            "0000:3b:00.01",
        ] {
            let devices = json!({"rdma": [{"id": bad}]});
            assert_eq!(files_of(devices), Err(NoAddress(bad.to_owned())));
            let devices =
                json!({"rdma": [{"id": "0000:3b:00.0", "extension": {"vfs": [{"busID": bad}]}}]});
            let message = files_of(devices).unwrap_err().to_string();
            assert!(message.ends_with(&format!("{bad:?}")), "{message}");
        }
    }
}
