//! Metrics of whole objects: the extended resources of pods, and the CPU pools.

use super::{Container, Metrics, ReclaimedResources};
use crate::states::topology::Pool;
use crate::states::{PodInfo, TopologyInfo};
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY};
use koord_host::CpuSet;

impl Metrics {
    /// Publishes the batch and mid resources of the containers of `pods` that have an id.
    pub(crate) fn pods(&self, pods: &[PodInfo]) {
        self.resources(pods.iter().flat_map(resource_rows).collect());
    }

    /// Publishes the CPU pools of services and batch work; with `each` (gate PerCPUMetric) also every CPU in
    /// them.
    pub(crate) fn topology(&self, topology: &TopologyInfo, each: bool) {
        let all = |pools: &[Pool]| -> CpuSet {
            let cpus = pools.iter().map(|pool| &pool.cpus);
            cpus.fold(CpuSet::new(), |all, cpus| all.union(cpus))
        };
        let (services, batch) = (&topology.shared_pools, &topology.be_shared_pools);
        self.share_pools(&all(services), &all(batch), each);
    }
}

/// Returns the batch and mid resources of the pod's containers.
fn resource_rows(pod: &PodInfo) -> Vec<ReclaimedResources> {
    let mut rows = Vec::new();
    for container in &pod.containers {
        if container.id.is_none() {
            continue;
        }
        for (tier, cpu, memory) in [
            (container.batch.as_ref(), BATCH_CPU, BATCH_MEMORY),
            (container.mid.as_deref(), MID_CPU, MID_MEMORY),
        ] {
            let Some(tier) = tier else { continue };
            for (resource, request, limit) in [
                (cpu, tier.cpu_request, tier.cpu_limit),
                (memory, tier.memory_request, tier.memory_limit),
            ] {
                rows.push(ReclaimedResources {
                    container: Container::from_pod(pod, container),
                    resource,
                    request,
                    limit,
                });
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::{Driver, Layout};
    use koord_host::CgroupPath;
    use prometheus::Registry;
    use serde_json::json;

    fn text(record: impl FnOnce(&Metrics)) -> String {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.record_start("n1", 0);
        record(&metrics);
        koord_app::metrics::encode(&registry).unwrap()
    }

    #[test]
    fn container_requests_become_metrics() {
        let pod = json!({
            "metadata": {"name": "b", "namespace": "shop", "uid": "u1",
                "labels": {"koordinator.sh/qosClass": "BE"}},
            "spec": {"nodeName": "n1", "containers": [
                {"name": "c", "resources": {
                    "requests": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/mid-cpu": "7"},
                    "limits": {"kubernetes.io/batch-memory": "1Mi"}}},
                {"name": "no-id", "resources": {"requests": {"kubernetes.io/batch-cpu": "1"}}}]},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "c", "containerID": "containerd://c1", "image": "", "imageID": "",
                 "ready": true, "restartCount": 0}]}});
        let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        let pod = serde_json::from_value(pod).unwrap();
        let (pod, _) = PodInfo::read(&pod, &layout, None).unwrap();
        let text = text(|metrics| metrics.pods(&[pod]));
        let labels = r#"pod_name="b",pod_namespace="shop",pod_uid="u1","#;
        let container = r#"container_id="containerd://c1",container_name="c",node="n1","#;
        for (family, resource, unit, value) in [
            ("requests", "batch-cpu", "integer", "500"),
            ("requests", "mid-cpu", "integer", "7"),
            ("limits", "batch-memory", "byte", "1048576"),
        ] {
            let line = format!(
                "koordlet_container_resource_{family}{{{container}{labels}\
                 resource=\"kubernetes.io/{resource}\",unit=\"{unit}\"}} {value}\n"
            );
            assert!(text.contains(&line), "{line}: {text}");
        }
        assert!(!text.contains("no-id"), "{text}");
    }

    #[test]
    fn pools_are_counted_over_numa_nodes() {
        let pool = |cpus: &str| Pool {
            cpus: cpus.parse().unwrap(),
            ..Pool::default()
        };
        let topology = TopologyInfo {
            shared_pools: vec![pool("0-3"), pool("8-9")],
            be_shared_pools: vec![pool("0-1")],
            ..TopologyInfo::default()
        };
        let shown = text(|metrics| metrics.topology(&topology, true));
        for line in [
            r#"cpuset_share_pool_cpu_cores{node="n1"} 6"#,
            r#"cpuset_be_share_pool_cpu_cores{node="n1"} 2"#,
            r#"cpuset_share_pool_info{cpu="9",node="n1"} 1"#,
            r#"cpuset_be_share_pool_info{cpu="1",node="n1"} 1"#,
        ] {
            assert!(
                shown.contains(&format!("koordlet_{line}\n")),
                "{line}: {shown}"
            );
        }
        let closed = text(|metrics| metrics.topology(&topology, false));
        assert!(
            closed.contains("pool_cpu_cores") && !closed.contains("pool_info"),
            "{closed}"
        );
    }
}
