//! The kubelet's BestEffort class as a group: what it uses, requests and can get.

use super::pod::{GroupCollector, Wanted};
use crate::states::PodInfo;
use koord_api::qos::QosClass;
use koord_host::{CgroupPath, Root, Scratch};

/// One sample of the class, in milli-cores.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BatchSample {
    /// In use.
    pub usage: Option<f64>,
    /// What the class can get: its CPUs, and no more than its quota.
    pub real_limit: Option<f64>,
}

/// Samples the class's group.
#[derive(Debug, Default)]
pub struct BatchCollector {
    usage: GroupCollector,
}

impl BatchCollector {
    /// Takes a sample at `now_ns`; the limit when asked.
    pub fn sample(
        &mut self,
        root: &Root,
        group: &CgroupPath,
        now_ns: u64,
        limit: bool,
        scratch: &mut Scratch,
    ) -> BatchSample {
        // One group, and much depends on it: looked for every time.
        self.usage.hurry();
        let wanted = Wanted {
            memory: false,
            throttling: false,
        };
        self.usage.sample(root, group, now_ns, wanted, scratch);
        BatchSample {
            usage: self.usage.cpu.map(|cores| cores * 1000.0),
            real_limit: limit.then(|| real_limit(root, group)).flatten(),
        }
    }
}

/// 1000 × the CPUs of the class, and no more than quota × 1000 / period.
fn real_limit(root: &Root, group: &CgroupPath) -> Option<f64> {
    let group = root.cgroup(group);
    let set = |read: koord_host::Result<Option<koord_host::CpuSet>>| {
        read.ok().flatten().filter(|set| !set.is_empty())
    };
    let cpus = set(group.cpuset()).or_else(|| set(group.effective_cpuset()))?;
    let by_cpus = cpus.len() as i64 * 1000;
    let quota = group.cfs_quota().ok().flatten()?;
    let period = group.cfs_period().ok().flatten()?;
    let limit = if quota < 0 || period <= 0 {
        by_cpus
    } else {
        by_cpus.min(quota.saturating_mul(1000) / period)
    };
    Some(limit as f64)
}

/// What the pods labelled BE request, in milli-cores of batch CPU.
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
            let mut collector = BatchCollector::default();
            let mut sample = |limit: bool| {
                let mut scratch = Scratch::new();
                collector
                    .sample(tree.root(), &group, 1, limit, &mut scratch)
                    .real_limit
            };
            assert_eq!(sample(false), None, "nobody asks");
            class.set_cpuset(&"0-3".parse().unwrap()).unwrap();
            assert_eq!(sample(true), Some(4000.0));
            class.set_cfs_quota(150_000).unwrap();
            assert_eq!(sample(true), Some(1500.0));
            class.set_cfs_quota(900_000).unwrap();
            assert_eq!(sample(true), Some(4000.0));
            tree.vanish(&group).unwrap();
            assert_eq!(sample(true), None);
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
            PodInfo::of(&serde_json::from_value(pod).unwrap(), &layout).unwrap()
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
