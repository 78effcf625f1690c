//! The CPUs of a container: those that the scheduler allocated to its pod, otherwise the pools of its class.
//!
//! Source: Koordinator `pkg/koordlet/runtimehooks/hooks/cpuset`.

use koord_api::extension::{CpuSharedPool, NumaNodeResource};
use koord_api::qos::{KubeQos, QosClass};
use koord_api::quantity::Quantity;
use koord_api::resources;

/// CPU pools of a node, from its NodeResourceTopology.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pools {
    /// CPUs that LS pods share, by NUMA node.
    pub shared: Vec<CpuSharedPool>,
    /// CPUs that BE pods share, by NUMA node.
    pub batch: Vec<CpuSharedPool>,
    /// CPUs of SYSTEM pods; empty if none are reserved for them.
    pub system: String,
    /// True if the kubelet allocates CPUs itself (its `static` policy).
    pub kubelet_static: bool,
}

/// Error for a host application whose class has no CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("only LS host applications get CPUs, got QoS {:?}", .0.as_str())]
pub struct UnsupportedQos(pub QosClass);

/// Properties of a pod that determine its CPUs.
#[derive(Debug, Clone, Copy)]
pub struct CpusetRequest<'a> {
    /// QoS class of the pod's label.
    pub qos: QosClass,
    /// Kubernetes QoS class.
    pub kube: KubeQos,
    /// Exclusive CPUs that the scheduler allocated to the pod; never empty.
    pub own: Option<&'a str>,
    /// Resources that the scheduler allocated on single NUMA nodes.
    pub numa: &'a [NumaNodeResource],
    /// True if BE pods are restricted to their pools (gate BECPUManager).
    pub batch_by_pool: bool,
}

/// Returns the CPU list of every container of a pod, sandbox included. `None` leaves the container unchanged;
/// the empty text removes the CPU list of the kubelet's request and writes nothing to a cgroup.
///
/// The first matching case applies: CPUs allocated to the pod; no known pools: `None`; CPU allocated on NUMA
/// nodes: the pools of these nodes; SYSTEM: its own CPUs; LS: all shared pools; Kubernetes class BestEffort:
/// the empty text; the kubelet allocates CPUs: `None`; otherwise all shared pools.
#[must_use]
pub fn container_cpus(ask: CpusetRequest<'_>, pools: Option<&Pools>) -> Option<String> {
    if let Some(own) = ask.own {
        return Some(own.to_owned());
    }
    let pools = pools?;
    if has_numa_cpu(ask.numa) {
        let of_nodes = |pools: &[CpuSharedPool]| {
            let nodes = ask.numa.iter();
            join(nodes.flat_map(|node| pools.iter().filter(|pool| pool.node == node.node)))
        };
        if ask.qos != QosClass::Be {
            return Some(of_nodes(&pools.shared));
        } else if ask.batch_by_pool {
            return Some(of_nodes(&pools.batch));
        }
    }
    if ask.qos == QosClass::System && !pools.system.is_empty() {
        return Some(pools.system.clone());
    }
    if ask.qos == QosClass::Ls {
        return Some(join(&pools.shared));
    }
    if ask.kube == KubeQos::BestEffort {
        return Some(String::new());
    }
    (!pools.kubelet_static).then(|| join(&pools.shared))
}

/// Returns the CPU list of a host application. `None` leaves it unchanged.
///
/// # Errors
/// The class is not LS.
pub fn host_app_cpus(
    qos: QosClass,
    pools: Option<&Pools>,
) -> Result<Option<String>, UnsupportedQos> {
    match (qos, pools) {
        (_, None) => Ok(None),
        (QosClass::Ls, Some(pools)) => Ok(Some(join(&pools.shared))),
        (other, Some(_)) => Err(UnsupportedQos(other)),
    }
}

/// Returns true if CPU was allocated on single NUMA nodes; they may be set for other resources only.
fn has_numa_cpu(numa: &[NumaNodeResource]) -> bool {
    let positive = |list: &koord_api::ResourceList, name: &str| {
        list.get(name)
            .is_some_and(|amount| *amount > Quantity::ZERO)
    };
    numa.iter().any(|node| {
        positive(&node.resources, resources::CPU) || positive(&node.resources, resources::BATCH_CPU)
    })
}

fn join<'a>(pools: impl IntoIterator<Item = &'a CpuSharedPool>) -> String {
    let lists: Vec<&str> = pools
        .into_iter()
        .map(|pool| pool.cpuset.as_str())
        .filter(|list| !list.is_empty())
        .collect();
    lists.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_api::extension::ResourceStatus;
    use serde_json::{Value, json};

    fn pools(shared: [&str; 2], batch: [&str; 2]) -> Pools {
        let pools = |lists: [&str; 2]| {
            let pool = |(node, list): (i32, &str)| CpuSharedPool {
                socket: node,
                node,
                cpuset: list.to_owned(),
            };
            (0..).zip(lists).map(pool).collect()
        };
        Pools {
            shared: pools(shared),
            batch: pools(batch),
            ..Pools::default()
        }
    }

    fn cpus(
        pools: Option<&Pools>,
        qos: &str,
        kube: KubeQos,
        status: Value,
        batch_by_pool: bool,
    ) -> Option<String> {
        let status: Option<ResourceStatus> = serde_json::from_value(status).unwrap();
        let status = status.unwrap_or_default();
        let ask = CpusetRequest {
            qos: QosClass::from_name(qos),
            kube,
            own: Some(status.cpuset.as_str()).filter(|own| !own.is_empty()),
            numa: &status.numa_node_resources,
            batch_by_pool,
        };
        container_cpus(ask, pools)
    }

    #[test]
    fn container_table() {
        use KubeQos::{BestEffort, Burstable, Guaranteed};
        let plain = pools(["0-7", "8-15"], ["", ""]);
        let kubelet = Pools {
            kubelet_static: true,
            ..plain.clone()
        };
        let split = pools(["1-7", "9-15"], ["0-7", "8-15"]);
        let system = Pools {
            system: "0-3".to_owned(),
            ..pools(["4-7", "9-15"], ["4-7", "8-15"])
        };
        let numa = |node: i32, resource: &str, amount: &str| json!({"numaNodeResources": [{"node": node, "resources": {resource: amount}}]});
        let cpu = |node| numa(node, "cpu", "2");
        let pages = |node| numa(node, "hugepages-1Gi", "2Gi");
        let both = json!({"numaNodeResources": [
            {"node": 1, "resources": {"cpu": "1"}}, {"node": 0, "resources": {"cpu": "1"}}]});
        for (pools, qos, kube, status, by_pool, want) in [
            (
                None,
                "LSR",
                Guaranteed,
                json!({"cpuset": "2-4"}),
                false,
                Some("2-4"),
            ),
            (None, "LS", Burstable, json!(null), false, None),
            (
                Some(&split),
                "LSE",
                Guaranteed,
                json!({"cpuset": "2-4"}),
                true,
                Some("2-4"),
            ),
            (Some(&split), "BE", Burstable, cpu(0), true, Some("0-7")),
            (Some(&plain), "", Burstable, cpu(0), false, Some("0-7")),
            (Some(&plain), "", Burstable, both, false, Some("8-15,0-7")),
            (
                Some(&plain),
                "LS",
                Burstable,
                json!(null),
                false,
                Some("0-7,8-15"),
            ),
            (
                Some(&plain),
                "LS",
                Burstable,
                pages(0),
                false,
                Some("0-7,8-15"),
            ),
            (
                Some(&plain),
                "",
                Burstable,
                json!(null),
                false,
                Some("0-7,8-15"),
            ),
            (Some(&kubelet), "", Burstable, json!(null), false, None),
            (
                Some(&kubelet),
                "LS",
                Burstable,
                json!(null),
                false,
                Some("0-7,8-15"),
            ),
            (Some(&plain), "", BestEffort, json!(null), false, Some("")),
            (Some(&split), "LS", Burstable, cpu(1), false, Some("9-15")),
            (
                Some(&split),
                "BE",
                BestEffort,
                numa(1, "kubernetes.io/batch-cpu", "2000"),
                true,
                Some("8-15"),
            ),
            // Suppression owns the CPUs of batch pods otherwise.
            (
                Some(&split),
                "BE",
                BestEffort,
                numa(1, "kubernetes.io/batch-cpu", "2000"),
                false,
                Some(""),
            ),
            (
                Some(&system),
                "SYSTEM",
                Burstable,
                pages(1),
                false,
                Some("0-3"),
            ),
            (
                Some(&split),
                "SYSTEM",
                Burstable,
                json!(null),
                false,
                Some("1-7,9-15"),
            ),
        ] {
            let got = cpus(pools, qos, kube, status.clone(), by_pool);
            assert_eq!(got.as_deref(), want, "{qos} {kube} {status} {by_pool}");
        }
    }

    #[test]
    fn host_applications() {
        let plain = pools(["0-7", "8-15"], ["", ""]);
        assert_eq!(host_app_cpus(QosClass::Ls, None), Ok(None));
        assert_eq!(
            host_app_cpus(QosClass::Ls, Some(&plain)),
            Ok(Some("0-7,8-15".to_owned()))
        );
        assert_eq!(
            host_app_cpus(QosClass::Lsr, Some(&plain)),
            Err(UnsupportedQos(QosClass::Lsr))
        );
    }

    #[test]
    fn empty_pool_adds_no_separator() {
        let some = pools(["", "8-15"], ["", ""]);
        let got = cpus(Some(&some), "LS", KubeQos::Burstable, json!(null), false);
        assert_eq!(got.as_deref(), Some("8-15"));
    }
}
