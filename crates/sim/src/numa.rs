//! Simulated nodes with NUMA nodes: their kubelets admit or reject pods, and an exporter reports the free
//! resources in a NodeResourceTopology.
//!
//! The kubelet is [`kubelet`](crate::kubelet), the exporter [`koord_model::export`]. A kubelet lives as long
//! as its node is in this process's cache. A restarted one allocates for the pods that run already before any
//! other; their former CPUs are not stored.

mod foreign_zones;
mod layout;
mod served;

pub(crate) use foreign_zones::ForeignZones;
pub use layout::{Layout, LayoutError};
pub use served::Kubelets;
pub(crate) use served::{serve, write_cpu_manager_state};

use crate::TOPOLOGY_ANNOTATION;
use crate::kubelet::{self, CpuManager, Kubelet};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::annotations;
use koord_api::topology::Zone;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_kube::kube_core::Resource as _;
use koord_model::alignment::fingerprint;
use koord_model::export;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

/// The kubelet of one node.
struct NodeKubelet {
    kubelet: Kubelet,
    /// Namespace and name of each running pod, by uid.
    pods: FxHashMap<String, (String, String)>,
    owner: Value,
    /// The last written report; `None` if the object does not exist.
    written: Option<Value>,
    /// Entries of other components in the zones.
    foreign: Vec<Zone>,
}

/// The kubelets by node. Workers admit pods, the event loop releases them: each holds the lock for one pod.
#[derive(Default)]
pub(crate) struct NodeKubelets {
    kubelets: Mutex<FxHashMap<String, NodeKubelet>>,
    /// Rejected layouts, by node.
    refused: Mutex<FxHashMap<String, String>>,
}

/// Admission decision for a pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The pod is admitted. `true` if the free resources have changed.
    Admitted(bool),
    /// The pod is rejected: reason and message of its status.
    Refused(String, String),
    /// The kubelet has not started yet.
    NotYet,
}

impl NodeKubelets {
    /// Adds a node. Returns `Ok(true)` if its kubelet has just started, and an error only the first time that
    /// its layout is seen.
    pub(crate) fn add(&self, node: &Node) -> Result<bool, LayoutError> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let layout = Layout::from_node(node);
        let annotations = node.metadata.annotations.as_ref();
        let annotation = annotations.and_then(|all| all.get(TOPOLOGY_ANNOTATION));
        let mut refused = self.refused.lock();
        let layout = match (layout, annotation) {
            (Ok(layout), _) => {
                refused.remove(name);
                layout
            }
            (Err(error), Some(annotation)) => {
                let before = refused.insert(name.to_owned(), annotation.clone());
                return if before.as_ref() == Some(annotation) {
                    Ok(false)
                } else {
                    Err(error)
                };
            }
            (Err(error), None) => return Err(error),
        };
        drop(refused);
        let Some(layout) = layout else {
            return Ok(false);
        };
        let mut kubelets = self.kubelets.lock();
        if kubelets.contains_key(name) {
            return Ok(false);
        }
        let kubelet_state = NodeKubelet {
            kubelet: layout.kubelet()?,
            pods: FxHashMap::default(),
            owner: json!(node.controller_owner_ref(&())),
            written: None,
            foreign: Vec::new(),
        };
        kubelets.insert(name.to_owned(), kubelet_state);
        Ok(true)
    }

    pub(crate) fn remove(&self, node: &str) {
        self.kubelets.lock().remove(node);
        self.refused.lock().remove(node);
    }

    /// Stores the current object of `node`, `None` when it was deleted. Returns whether it has to be written
    /// again.
    pub(crate) fn update_foreign_zones(&self, node: &str, object: Option<&ForeignZones>) -> bool {
        let mut kubelets = self.kubelets.lock();
        let Some(kubelet_state) = kubelets.get_mut(node) else {
            return false;
        };
        kubelet_state.foreign = object.map_or_else(Vec::new, |object| object.foreign.clone());
        if object.is_none() {
            kubelet_state.written = None;
        }
        object.is_none()
    }

    /// Returns the kubelet's admission decision for a pod of `node`.
    pub(crate) fn admit(&self, node: &Node, pod: &Pod) -> Admission {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let mut kubelets = self.kubelets.lock();
        let Some(kubelet_state) = kubelets.get_mut(name) else {
            return match Layout::from_node(node) {
                Ok(Some(_)) => Admission::NotYet,
                _ => Admission::Admitted(false),
            };
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if kubelet_state.pods.contains_key(&uid) {
            return Admission::Admitted(false);
        }
        let machine = kubelet_state.kubelet.machine();
        let read = kubelet::Pod::read(pod, |name| machine.devices.contains_key(name));
        match kubelet_state.kubelet.admit(&read) {
            Ok(()) => {
                kubelet_state.pods.insert(uid, name_of(pod));
                Admission::Admitted(true)
            }
            Err(refusal) => Admission::Refused(
                refusal.reason.to_owned(),
                format!("Pod was rejected: {}", refusal.message),
            ),
        }
    }

    /// Counts a running pod without exclusive resources; an exporter lists it all the same. Returns whether
    /// it is new.
    pub(crate) fn count(&self, node: &str, pod: &Pod) -> bool {
        let mut kubelets = self.kubelets.lock();
        let Some(kubelet_state) = kubelets.get_mut(node) else {
            return false;
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        kubelet_state.pods.insert(uid, name_of(pod)).is_none()
    }

    /// Removes a pod that has ended or was deleted. Returns whether the kubelet of `node` had it.
    pub(crate) fn release(&self, node: &str, uid: &str) -> bool {
        let mut kubelets = self.kubelets.lock();
        let Some(kubelet_state) = kubelets.get_mut(node) else {
            return false;
        };
        kubelet_state.kubelet.release(uid);
        kubelet_state.pods.remove(uid).is_some()
    }

    /// Returns the report about `node`; `None` if it equals the last written one.
    pub(crate) fn report(&self, node: &str) -> Option<Value> {
        let kubelets = self.kubelets.lock();
        let kubelet_state = kubelets.get(node)?;
        let report = kubelet_state.report(node);
        (kubelet_state.written.as_ref() != Some(&report)).then_some(report)
    }

    /// Returns the additions to an exporter's report about `node`; `None` if they equal the last written
    /// ones.
    pub(crate) fn annotation_patch(&self, node: &str) -> Option<Value> {
        let kubelets = self.kubelets.lock();
        let kubelet_state = kubelets.get(node)?;
        let change = json!({"metadata": {"annotations": kubelet_state.annotations()}});
        (kubelet_state.written.as_ref() != Some(&change)).then_some(change)
    }

    /// Returns the result of `read` for the kubelet of `node`, if that is up.
    fn with_kubelet<T>(&self, node: &str, read: impl FnOnce(&NodeKubelet) -> T) -> Option<T> {
        self.kubelets.lock().get(node).map(read)
    }

    /// Records that the report was written.
    pub(crate) fn reported(&self, node: &str, report: Value) {
        if let Some(kubelet_state) = self.kubelets.lock().get_mut(node) {
            kubelet_state.written = Some(report);
        }
    }
}

fn name_of(pod: &Pod) -> (String, String) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (text(&pod.metadata.namespace), text(&pod.metadata.name))
}

impl NodeKubelet {
    /// Returns the object as an exporter and koordlet write it together.
    fn report(&self, node: &str) -> Value {
        let kubelet = &self.kubelet;
        let listed = kubelet.pods().flat_map(|uid| kubelet.listed(uid));
        let shares: Vec<export::Share> = listed.map(|(_, share)| share).collect();
        let mut result = export::zones(&kubelet.exported(), &kubelet.allocatable(), &shares);
        // The list is written as a whole.
        export::keep_foreign(&mut result.zones, &self.foreign);
        let settings = kubelet.settings();
        let prints = self.pods.values();
        let prints = prints.map(|(namespace, name)| fingerprint::pod(namespace, name));
        let print = fingerprint::from_hashes(prints);
        json!({
            "apiVersion": NodeResourceTopology::api_version(&()),
            "kind": NodeResourceTopology::kind(&()),
            "metadata": {
                "name": node,
                "ownerReferences": [self.owner],
                "annotations": self.annotations(),
            },
            "topologyPolicies": [export::policy_name(settings.policy, settings.scope)],
            "attributes": export::attributes(settings.policy, settings.scope, Some(print)),
            "zones": result.zones,
        })
    }

    /// Returns koordlet's annotations about the machine.
    fn annotations(&self) -> Value {
        let kubelet = &self.kubelet;
        let cpu = |cpu: &koord_model::cpuset::Cpu| {
            let core = cpu.core & u64::from(u32::MAX);
            json!({"id": cpu.id, "core": core, "socket": cpu.socket, "node": cpu.node})
        };
        let cpus = kubelet.machine().topology.cpus();
        let manager = match &kubelet.settings().cpu {
            CpuManager::None => json!({"policy": "none"}),
            CpuManager::Static { reserved, .. } => {
                json!({"policy": "static", "reservedCPUs": reserved.to_string()})
            }
        };
        json!({
            annotations::NODE_CPU_TOPOLOGY:
                json!({"detail": cpus.iter().map(cpu).collect::<Vec<_>>()}).to_string(),
            annotations::KUBELET_CPU_MANAGER_POLICY: manager.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(layout: &Value) -> Node {
        let node = json!({"metadata": {"name": "n", "uid": "u", "annotations": {
            crate::TOPOLOGY_ANNOTATION: layout.to_string()}}});
        serde_json::from_value(node).unwrap()
    }

    fn pod(name: &str, cpu: &str) -> Pod {
        let amounts = json!({"cpu": cpu, "memory": "1Gi"});
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": "n", "containers": [
                {"name": "c", "resources": {"requests": amounts, "limits": amounts}}]}
        }))
        .unwrap()
    }

    fn free(report: &Value) -> Vec<&str> {
        let zones = report["zones"].as_array().unwrap().iter();
        zones
            .map(|zone| zone["resources"][0]["available"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn a_kubelet_admits_refuses_and_reports() {
        let kubelets = NodeKubelets::default();
        let node = node(&json!({"numaNodes": 2, "cpusPerNode": 8}));
        let first = pod("pod1", "5");
        assert_eq!(kubelets.admit(&node, &first), Admission::NotYet);
        assert_eq!(kubelets.add(&node), Ok(true));
        assert_eq!(kubelets.add(&node), Ok(false));
        assert_eq!(kubelets.admit(&node, &first), Admission::Admitted(true));
        assert_eq!(kubelets.admit(&node, &first), Admission::Admitted(false));
        let report = kubelets.report("n").unwrap();
        assert_eq!(free(&report), ["3", "8"]);
        assert_eq!(
            report["topologyPolicies"],
            json!(["SingleNUMANodeContainerLevel"])
        );
        // The value of an independent implementation for only pod1 of namespace default.
        assert_eq!(report["attributes"][2]["value"], "pfp0v001a5e1c50c557adb9d");
        kubelets.reported("n", report);
        assert_eq!(kubelets.report("n"), None);

        assert_eq!(
            kubelets.admit(&node, &pod("b", "5")),
            Admission::Admitted(true)
        );
        let refused = kubelets.admit(&node, &pod("c", "5"));
        let Admission::Refused(reason, message) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(reason, "TopologyAffinityError");
        assert_eq!(
            message,
            "Pod was rejected: Resources cannot be allocated with Topology locality"
        );
        assert!(kubelets.release("n", "pod1") && !kubelets.release("n", "pod1"));
        assert_eq!(free(&kubelets.report("n").unwrap()), ["8", "3"]);
        assert_eq!(
            kubelets.admit(&node, &pod("c", "5")),
            Admission::Admitted(true)
        );
    }

    /// An invalid layout is reported once, and again when it changes.
    #[test]
    fn invalid_layout_is_reported_once() {
        let kubelets = NodeKubelets::default();
        let bad = |nodes: u32| node(&json!({"numaNodes": nodes, "cpusPerNode": 8}));
        for _ in 0..2 {
            assert!(
                kubelets
                    .add(&bad(20))
                    .unwrap_err()
                    .to_string()
                    .contains("20")
            );
            assert_eq!(kubelets.add(&bad(20)), Ok(false));
            assert!(
                kubelets
                    .add(&bad(21))
                    .unwrap_err()
                    .to_string()
                    .contains("21")
            );
        }
        assert_eq!(kubelets.add(&bad(2)), Ok(true));
        assert_eq!(kubelets.add(&bad(2)), Ok(false));
        kubelets.add(&bad(20)).unwrap_err();
        kubelets.remove("n");
        kubelets.add(&bad(20)).unwrap_err();
    }

    /// The pod ran before its kubelet restarted, and its resources went to other pods.
    #[test]
    fn a_pod_that_runs_unaligned_is_in_the_fingerprint() {
        let kubelets = NodeKubelets::default();
        let node = node(&json!({"numaNodes": 1, "cpusPerNode": 4}));
        assert_eq!(kubelets.add(&node), Ok(true));
        let print =
            |kubelets: &NodeKubelets| kubelets.report("n").unwrap()["attributes"][2].clone();
        let unaligned = pod("pod1", "5");
        let Admission::Refused(..) = kubelets.admit(&node, &unaligned) else {
            panic!("five CPUs of four")
        };
        let empty = print(&kubelets);
        assert!(kubelets.count("n", &unaligned) && !kubelets.count("n", &unaligned));
        // The value of an independent implementation for only pod1 of namespace default.
        assert_eq!(print(&kubelets)["value"], "pfp0v001a5e1c50c557adb9d");
        assert_eq!(free(&kubelets.report("n").unwrap()), ["4"]);
        // It is not checked again, and it is removed when the pod is deleted.
        assert_eq!(
            kubelets.admit(&node, &unaligned),
            Admission::Admitted(false)
        );
        assert!(kubelets.release("n", "pod1"));
        assert_eq!(print(&kubelets), empty);
    }

    #[test]
    fn what_is_reported_is_a_report() {
        let kubelets = NodeKubelets::default();
        let layout = json!({"numaNodes": 2, "cpusPerNode": 4, "policy": "restricted",
            "scope": "pod", "memoryPerNode": "32Gi", "devices": {"ex.com/a": [0, 1, 1]}});
        assert_eq!(kubelets.add(&node(&layout)), Ok(true));
        let report = kubelets.report("n").unwrap();
        let read: NodeResourceTopology = serde_json::from_value(report.clone()).unwrap();
        assert_eq!(read.spec.topology_policies, ["RestrictedPodLevel"]);
        let devices = &read.spec.zones[1].resources[1];
        assert_eq!((&*devices.name, devices.capacity.value()), ("ex.com/a", 2));
        assert_eq!(report["zones"][0]["resources"][2]["capacity"], "32Gi");
        assert_eq!(report["metadata"]["ownerReferences"][0]["name"], "n");
    }
}
