//! What is read from whole objects: the pods' extended resources, and NodeMetric.

use super::{Container, HostApplication, Metrics, Resources, Usage};
use crate::states::topology::Pool;
use crate::states::{PodInfo, TopologyInfo};
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY};
use koord_api::slo::{NodeMetricStatus, ResourceMap};
use koord_host::CpuSet;

impl Metrics {
    /// Shows the batch and mid resources of the containers of `pods` that have an id.
    pub(crate) fn pods(&self, pods: &[PodInfo]) {
        self.resources(pods.iter().flat_map(of_pod).collect());
    }

    /// Shows the pools of CPUs that services and batch work share; with `each` (gate PerCPUMetric)
    /// also every CPU in them.
    pub(crate) fn topology(&self, topology: &TopologyInfo, each: bool) {
        let all = |pools: &[Pool]| -> CpuSet {
            let cpus = pools.iter().map(|pool| &pool.cpus);
            cpus.fold(CpuSet::new(), |all, cpus| all.union(cpus))
        };
        let (services, batch) = (&topology.shared_pools, &topology.be_shared_pools);
        self.share_pools(&all(services), &all(batch), each);
    }

    /// Shows the use of host applications and, with `usage` (gate NodeMetricPromMetrics), of the
    /// node, as `status` reports them.
    pub(crate) fn reported(&self, status: &NodeMetricStatus, usage: bool) {
        let applications = status.host_application_metric.iter();
        let applications = applications.filter_map(|application| {
            let (cpu, memory) = amounts(application.usage.as_ref())?;
            Some(HostApplication {
                name: application.name.clone(),
                priority: application.priority.as_str().to_owned(),
                qos: application.qos.as_str().to_owned(),
                cpu,
                memory,
            })
        });
        self.host_applications(applications.collect());
        let Some(info) = status.node_metric.as_ref().filter(|_| usage) else {
            return;
        };
        let whole = (None, &info.node_usage, &info.system_usage);
        let numa = info.numa_usages.iter();
        let numa = numa.map(|n| (Some(n.numa_node_id), &n.node_usage, &n.system_usage));
        let usages = std::iter::once(whole).chain(numa);
        let usages = usages.filter_map(|(numa, node, system)| {
            Some(Usage {
                numa,
                node: amounts(node.as_ref())?,
                system: amounts(system.as_ref()),
            })
        });
        self.node_metric(usages.collect());
    }
}

/// Cores and bytes.
fn amounts(usage: Option<&ResourceMap>) -> Option<(f64, f64)> {
    let resources = &usage?.resources;
    let amount = |name: &str| Some(resources.get(name)?.to_f64());
    Some((amount("cpu")?, amount("memory")?))
}

fn of_pod(pod: &PodInfo) -> Vec<Resources> {
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
                rows.push(Resources {
                    container: Container::of(pod, container),
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
        metrics.started("n1", 0);
        record(&metrics);
        koord_app::metrics::encode(&registry).unwrap()
    }

    #[test]
    fn containers_show_what_they_ask_for() {
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
        let rest = r#"pod_name="b",pod_namespace="shop",pod_uid="u1","#;
        let container = r#"container_id="containerd://c1",container_name="c",node="n1","#;
        for (family, resource, unit, value) in [
            ("requests", "batch-cpu", "integer", "500"),
            ("requests", "mid-cpu", "integer", "7"),
            ("limits", "batch-memory", "byte", "1048576"),
        ] {
            let line = format!(
                "koordlet_container_resource_{family}{{{container}{rest}\
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

    #[test]
    fn reports_are_shown_behind_their_gate() {
        let status = json!({
            "nodeMetric": {
                "nodeUsage": {"resources": {"cpu": "1500m", "memory": "2Ki"}},
                "systemUsage": {"resources": {"cpu": "250m", "memory": "1Ki"}},
                "numaUsages": [
                    {"numaNodeID": 1, "nodeUsage": {"resources": {"cpu": "1", "memory": "1Ki"}}}]},
            "hostApplicationMetric": [{"name": "nginx", "priority": "koord-prod", "qos": "LS",
                "usage": {"resources": {"cpu": "50m", "memory": "512"}}}]});
        let status: NodeMetricStatus = serde_json::from_value(status).unwrap();
        let shown = text(|metrics| metrics.reported(&status, true));
        for line in [
            r#"node_metric_node_usage{node="n1",resource="cpu",unit="core"} 1.5"#,
            r#"node_metric_system_usage{node="n1",resource="memory",unit="byte"} 1024"#,
            r#"node_metric_numa_node_usage{node="n1",numa_node_id="1",resource="cpu",unit="core"} 1"#,
            r#"host_application_resource_usage{host_application_name="nginx",node="n1",priority_class="koord-prod",qos="LS",resource="cpu"} 0.05"#,
        ] {
            let line = format!("koordlet_{line}\n");
            assert!(shown.contains(&line), "{line}: {shown}");
        }
        assert!(!shown.contains("numa_system_usage{"), "{shown}");
        let closed = text(|metrics| metrics.reported(&status, false));
        assert!(
            closed.contains("nginx") && !closed.contains("node_metric_"),
            "{closed}"
        );
    }
}
