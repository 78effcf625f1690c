//! CPU usage, request and limit of the kubelet's BestEffort class, from its cgroup.

use super::errors::KernelErrors;
use super::pod::{GroupCollector, SampleOptions};
use crate::states::PodInfo;
use koord_api::qos::QosClass;
use koord_host::{CgroupPath, Root, Scratch};

/// Samples the cgroup of the BestEffort class.
#[derive(Debug, Default)]
pub struct BatchCollector {
    usage: GroupCollector,
}

impl BatchCollector {
    /// Takes a sample at `now_ns` and returns the class's CPU usage, in milli-cores.
    pub fn sample(
        &mut self,
        root: &Root,
        group: &CgroupPath,
        now_ns: u64,
        scratch: &mut Scratch,
        errors: &mut KernelErrors,
    ) -> Option<f64> {
        // Strategies depend on this one cgroup, so a missing one is searched in each sample.
        self.usage.retry_now();
        let options = SampleOptions {
            memory: false,
            throttling: None,
        };
        (self.usage).sample(root, group, now_ns, options, scratch, errors);
        self.usage.cpu.map(|cores| cores * 1000.0)
    }
}

/// Returns the CPU that the class can get, in milli-cores: its CPU set, limited by its quota.
#[must_use]
pub fn real_limit(root: &Root, group: &CgroupPath, errors: &mut KernelErrors) -> Option<f64> {
    let group = root.cgroup(group);
    let mut set = |read: koord_host::Result<Option<koord_host::CpuSet>>| {
        errors.value_of(read).filter(|set| !set.is_empty())
    };
    let cpus = set(group.cpuset()).or_else(|| set(group.effective_cpuset()))?;
    let by_cpus = cpus.len() as i64 * 1000;
    let quota = errors.value_of(group.cfs_quota())?;
    let period = errors.value_of(group.cfs_period())?;
    let limit = if quota < 0 || period <= 0 {
        by_cpus
    } else {
        by_cpus.min(quota.saturating_mul(1000) / period)
    };
    Some(limit as f64)
}

/// Returns the sum of the batch CPU requests of BE pods, in milli-cores.
pub fn request<'a>(pods: impl Iterator<Item = &'a PodInfo>) -> f64 {
    let batch = pods.filter(|pod| pod.qos == QosClass::Be);
    let requests = batch.map(PodInfo::batch_cpu_request);
    requests.filter(|milli| *milli > 0).sum::<i64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::{Driver, Layout};
    use koord_host::fake::Tree;
    use serde_json::json;

    #[test]
    fn the_smaller_of_cpus_and_quota() {
        for tree in [Tree::v1("0-7").unwrap(), Tree::v2("0-7").unwrap()] {
            let group = tree.group("kubepods/besteffort").unwrap();
            let class = tree.root().cgroup(&group);
            let mut errors = KernelErrors::default();
            let mut limit = || real_limit(tree.root(), &group, &mut errors);
            class.set_cpuset(&"0-3".parse().unwrap()).unwrap();
            assert_eq!(limit(), Some(4000.0));
            class.set_cfs_quota(150_000).unwrap();
            assert_eq!(limit(), Some(1500.0));
            class.set_cfs_quota(900_000).unwrap();
            assert_eq!(limit(), Some(4000.0));
            tree.vanish(&group).unwrap();
            assert_eq!(limit(), None);
        }
    }

    #[test]
    fn only_batch_pods_request_batch_cpu() {
        let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        let pod = |qos: &str, milli: &str| {
            let pod = json!({
                "metadata": {"uid": "u", "labels": {"koordinator.sh/qosClass": qos}},
                "spec": {"containers": [{"name": "c", "resources":
                    {"requests": {"kubernetes.io/batch-cpu": milli}}}]}});
            PodInfo::from_pod(&serde_json::from_value(pod).unwrap(), &layout).unwrap()
        };
        let pods = [
            pod("BE", "1500"),
            pod("LS", "700"),
            pod("BE", "-3"),
            pod("BE", "500"),
        ];
        assert_eq!(request(pods.iter()), 2000.0);
    }
}
