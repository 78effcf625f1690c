//! CPU pools of the node and the kubelet's CPU manager, from the NodeResourceTopology's annotations.

use super::malformed::Malformed;
use super::node::{SystemQos, system_qos};
use super::reader::Reader;
use koord_api::annotations;
use koord_api::extension::{
    CpuSharedPool, KubeletCpuManagerPolicy, PodCpuAlloc, ReservedResources,
};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_host::CpuSet;
use std::collections::BTreeMap;

/// The CPUs of a NUMA node that pods without exclusive CPUs share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    /// Number of the socket.
    pub socket: i32,
    /// Number of the NUMA node.
    pub node: i32,
    /// The CPU list as given; joined pools are written in the same way.
    pub cpuset: String,
    /// The parsed CPU list.
    pub cpus: CpuSet,
}

/// The kubelet's CPU manager.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuManager {
    /// True if it assigns exclusive CPUs (policy `static`).
    pub is_static: bool,
    /// Policy options, such as `full-pcpus-only`.
    pub options: BTreeMap<String, String>,
    /// CPUs reserved for the system.
    pub reserved: CpuSet,
}

/// Content of the NodeResourceTopology's annotations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopologyInfo {
    /// Pools of services, in the given order.
    pub shared_pools: Vec<Pool>,
    /// Pools of batch work.
    pub be_shared_pools: Vec<Pool>,
    /// The kubelet's CPU manager; `None` if unknown.
    pub cpu_manager: Option<CpuManager>,
    /// CPUs that the kubelet assigned to pods, by UID.
    pub kubelet_cpus: BTreeMap<String, CpuSet>,
    /// CPUs reserved for SYSTEM pods; `None` without any.
    pub system_qos: Option<SystemQos>,
    /// CPUs reserved by the node's reservation.
    pub reserved: CpuSet,
}

impl TopologyInfo {
    /// Parses a NodeResourceTopology. A malformed annotation has its value in `last`, and is reported in the
    /// second result.
    #[must_use]
    pub fn read(object: &NodeResourceTopology, last: Option<&Self>) -> (Self, Vec<Malformed>) {
        let mut reader = Reader::new(object.metadata.annotations.as_ref());
        let reserved = ReservedResources::from_annotations(reader.annotations())
            .map(|reserved| reserved.map(|reserved| reserved.cpus));
        let info = Self {
            shared_pools: list(
                &mut reader,
                annotations::NODE_CPU_SHARED_POOLS,
                last.map(|last| &last.shared_pools),
                pool,
            ),
            be_shared_pools: list(
                &mut reader,
                annotations::NODE_BE_CPU_SHARED_POOLS,
                last.map(|last| &last.be_shared_pools),
                pool,
            ),
            kubelet_cpus: list(
                &mut reader,
                annotations::NODE_CPU_ALLOCS,
                last.map(|last| &last.kubelet_cpus),
                |alloc: PodCpuAlloc| {
                    let cpus: CpuSet = alloc.cpuset.parse()?;
                    Ok((alloc.managed_by_kubelet && !alloc.uid.is_empty())
                        .then_some((alloc.uid, cpus)))
                },
            ),
            cpu_manager: cpu_manager(&mut reader, last),
            system_qos: system_qos(&mut reader, last.map(|last| &last.system_qos)),
            reserved: reader
                .checked(reserved, last.map(|last| last.reserved.clone()))
                .unwrap_or_default(),
        };
        (info, reader.malformed)
    }

    /// Returns whether the kubelet assigns exclusive CPUs.
    #[must_use]
    pub fn is_static(&self) -> bool {
        self.cpu_manager.as_ref().is_some_and(|m| m.is_static)
    }

    /// Returns the CPUs that batch work must not use, even if they are in its CPU pools: those reserved by
    /// the kubelet or the node, or exclusive to SYSTEM pods.
    #[must_use]
    pub fn excluded_cpus(&self) -> CpuSet {
        let mut cpus = self.reserved.clone();
        if let Some(manager) = &self.cpu_manager {
            cpus = cpus.union(&manager.reserved);
        }
        match &self.system_qos {
            Some(system) if system.exclusive => cpus.union(&system.cpus),
            _ => cpus,
        }
    }
}

fn pool(pool: CpuSharedPool) -> Result<Option<Pool>, koord_host::Malformed> {
    Ok(Some(Pool {
        cpus: pool.cpuset.parse()?,
        socket: pool.socket,
        node: pool.node,
        cpuset: pool.cpuset,
    }))
}

/// Parses a JSON list whose elements `each` checks; returns all of `last` if one element is malformed.
fn list<T, U, L>(
    reader: &mut Reader<'_>,
    key: &str,
    last: Option<&L>,
    each: impl Fn(T) -> Result<Option<U>, koord_host::Malformed>,
) -> L
where
    T: serde::de::DeserializeOwned,
    L: Default + Clone + FromIterator<U>,
{
    let Some(text) = reader.text(key) else {
        return L::default();
    };
    // Upstream writes `null` for an empty list.
    let read = reader.json::<Option<Vec<T>>>(key, None);
    let checked = read.map(|list| {
        let elements = list.into_iter().flatten().map(each);
        elements
            .filter_map(Result::transpose)
            .collect::<Result<L, _>>()
    });
    match checked {
        Some(Ok(list)) => list,
        Some(Err(error)) => {
            reader.malformed.push(Malformed::new(key, text, &error));
            last.cloned().unwrap_or_default()
        }
        None => last.cloned().unwrap_or_default(),
    }
}

fn cpu_manager(reader: &mut Reader<'_>, last: Option<&TopologyInfo>) -> Option<CpuManager> {
    let key = annotations::KUBELET_CPU_MANAGER_POLICY;
    let text = reader.text(key)?;
    let last = || last.and_then(|last| last.cpu_manager.clone());
    let Some(given) = reader.json::<KubeletCpuManagerPolicy>(key, None) else {
        return last();
    };
    match given.reserved_cpus.parse() {
        // `{}` means that the kubelet could not be queried.
        Ok(_) if given == KubeletCpuManagerPolicy::default() => None,
        Ok(reserved) => Some(CpuManager {
            is_static: given.policy == "static",
            options: given.options,
            reserved,
        }),
        Err(error) => {
            let error = koord_host::Malformed::from(error);
            reader.malformed.push(Malformed::new(key, text, &error));
            last()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(notes: &Value, last: Option<&TopologyInfo>) -> (TopologyInfo, Vec<Malformed>) {
        let object = serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology",
            "metadata": {"name": "n", "annotations": notes}, "topologyPolicies": [], "zones": []}));
        TopologyInfo::read(&object.unwrap(), last)
    }

    const POOLS: &str =
        r#"[{"socket":0,"node":0,"cpuset":"0-7"},{"socket":1,"node":1,"cpuset":"16-23"}]"#;

    #[test]
    fn all_annotations_are_read() {
        let (info, malformed) = read(
            &json!({
                annotations::NODE_CPU_SHARED_POOLS: POOLS,
                annotations::NODE_BE_CPU_SHARED_POOLS: r#"[{"cpuset":"2-7"},{"node":1}]"#,
                annotations::KUBELET_CPU_MANAGER_POLICY:
                    r#"{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0"}"#,
                annotations::NODE_CPU_ALLOCS: r#"[
                    {"namespace":"a","name":"p","uid":"u","cpuset":"3-4","managedByKubelet":true},
                    {"namespace":"a","name":"q","uid":"v","cpuset":"5"}]"#,
                annotations::NODE_SYSTEM_QOS_RESOURCE: r#"{"cpuset":"1"}"#,
                annotations::NODE_RESERVATION: r#"{"reservedCPUs":"2"}"#,
            }),
            None,
        );
        assert_eq!(malformed, []);
        let pools: Vec<_> = info
            .shared_pools
            .iter()
            .map(|p| (p.node, p.cpuset.as_str()))
            .collect();
        assert_eq!(pools, [(0, "0-7"), (1, "16-23")]);
        assert!(info.is_static());
        assert_eq!(info.be_shared_pools[1].cpus.len(), 0);
        assert_eq!(info.kubelet_cpus.len(), 1);
        assert_eq!(info.kubelet_cpus["u"].to_string(), "3-4");
        assert_eq!(info.excluded_cpus().to_string(), "0-2");
        let shared = r#"{"cpuset":"1","cpusetExclusive":false}"#;
        let (info, _) = read(
            &json!({annotations::NODE_SYSTEM_QOS_RESOURCE: shared}),
            None,
        );
        assert!(info.excluded_cpus().is_empty() && !info.is_static());
    }

    #[test]
    fn missing_annotations_are_empty() {
        let none = TopologyInfo::default();
        assert_eq!(read(&json!({}), None), (none.clone(), vec![]));
        let unasked = json!({annotations::KUBELET_CPU_MANAGER_POLICY: "{}",
            annotations::NODE_CPU_ALLOCS: "null"});
        assert_eq!(read(&unasked, None), (none, vec![]));
    }

    #[test]
    fn malformed_topology_annotation_keeps_last_value() {
        for (key, good, bad) in [
            (
                annotations::NODE_CPU_SHARED_POOLS,
                POOLS,
                r#"[{"cpuset":"7-0"}]"#,
            ),
            (annotations::NODE_BE_CPU_SHARED_POOLS, POOLS, "0-7"),
            (
                annotations::KUBELET_CPU_MANAGER_POLICY,
                r#"{"policy":"static"}"#,
                r#"{"policy":"static","reservedCPUs":"x"}"#,
            ),
            (
                annotations::NODE_CPU_ALLOCS,
                r#"[{"uid":"u","cpuset":"3","managedByKubelet":true}]"#,
                r#"[{"uid":"u","cpuset":"3","managedByKubelet":"yes"}]"#,
            ),
            (
                annotations::NODE_SYSTEM_QOS_RESOURCE,
                r#"{"cpuset":"1"}"#,
                r#"{"cpuset":1}"#,
            ),
            (
                annotations::NODE_RESERVATION,
                r#"{"reservedCPUs":"2"}"#,
                "2",
            ),
        ] {
            let (first, malformed) = read(&json!({ key: good }), None);
            assert_eq!(malformed, [], "{key}");
            assert_ne!(first, TopologyInfo::default(), "{key}");
            let (kept, malformed) = read(&json!({ key: bad }), Some(&first));
            assert_eq!(kept, first, "{key}");
            assert_eq!(malformed.len(), 1, "{key}: {malformed:?}");
            assert_eq!(
                (malformed[0].field.as_str(), malformed[0].value.as_str()),
                (key, bad)
            );
            assert_eq!(
                read(&json!({ key: bad }), None).0,
                TopologyInfo::default(),
                "{key}"
            );
        }
    }
}
