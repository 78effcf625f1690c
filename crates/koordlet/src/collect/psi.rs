//! Pressure stall information of pods and containers, for `/metrics` (gate PSICollector).

use super::slow::{Job, RoundError};
use crate::metrics::{Container, Metrics, Psi};
use crate::states::States;
use koord_host::cgroup::{PressureKind, PressureLine};
use koord_host::{CgroupPath, Root};
use std::sync::Arc;
use std::time::Duration;

/// Reads the pressure files of every running pod and container.
#[derive(Debug)]
pub struct PsiCollector {
    root: Root,
    states: Arc<States>,
    metrics: Metrics,
    every: Duration,
}

impl PsiCollector {
    /// Creates a collector that reads the pods in `states` once per `every`.
    #[must_use]
    pub fn new(root: Root, states: Arc<States>, metrics: Metrics, every: Duration) -> Self {
        Self {
            root,
            states,
            metrics,
            every,
        }
    }

    fn group(&self, group: &CgroupPath, container: Container, into: &mut Vec<Psi>) -> bool {
        let group = self.root.cgroup(group);
        let container = Arc::new(container);
        let before = into.len();
        for kind in PressureKind::ALL {
            let Ok(Some(pressure)) = group.pressure(kind) else {
                continue;
            };
            let averages = |line: PressureLine| [line.avg10, line.avg60, line.avg300];
            into.push(Psi {
                container: container.clone(),
                resource: match kind {
                    PressureKind::Cpu => "cpu",
                    PressureKind::Memory => "mem",
                    PressureKind::Io => "io",
                },
                some: averages(pressure.some),
                full: pressure.full.map(averages),
            });
        }
        into.len() > before
    }
}

impl Job for PsiCollector {
    fn name(&self) -> &'static str {
        "psi"
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn round(&mut self) -> Result<(), RoundError> {
        let Some(pods) = self.states.pods.load_full() else {
            return Ok(());
        };
        let mut rows = Vec::new();
        let (mut checked, mut with_psi) = (0, 0);
        for pod in pods.iter().filter(|pod| pod.is_active()) {
            let label = Container {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                uid: pod.uid.clone(),
                id: String::new(),
                name: String::new(),
            };
            if !self.root.cgroup(&pod.cgroup).exists() {
                continue;
            }
            checked += 1;
            with_psi += u32::from(self.group(&pod.cgroup, label.clone(), &mut rows));
            for container in &pod.containers {
                let (Some(group), Some(id)) = (&container.cgroup, &container.id) else {
                    continue;
                };
                let container = Container {
                    id: id.to_string(),
                    name: container.name.clone(),
                    ..label.clone()
                };
                self.group(group, container, &mut rows);
            }
        }
        self.metrics.psi(rows);
        if checked > 0 && with_psi == 0 {
            return Err("this kernel has no pressure files for groups (PSI)".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::{Driver, Layout, Phase, PodInfo};
    use koord_host::Resource;
    use koord_host::fake::Tree;
    use serde_json::json;

    fn states() -> Arc<States> {
        let pod = json!({"metadata": {"uid": "u", "name": "p", "namespace": "n"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c",
                "containerID": "koord://c1", "image": "", "imageID": "", "ready": true,
                "restartCount": 0}]}});
        let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        let pod = PodInfo::from_pod(&serde_json::from_value(pod).unwrap(), &layout).unwrap();
        let states = States::default();
        states.pods.store(Some(Arc::new(vec![pod])));
        Arc::new(states)
    }

    #[test]
    fn every_file_of_pods_and_containers() {
        let tree = Tree::v2("0-1").unwrap();
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.record_start("node", 0);
        let mut job = PsiCollector::new(tree.root().clone(), states(), metrics, Duration::ZERO);
        job.round().unwrap();
        let group = tree.group("kubepods/besteffort/podu/c1").unwrap();
        let text = "some avg10=1.50 avg60=0.44 avg300=2.98 total=123\n";
        tree.feed(&group, Resource::CpuPressure, text).unwrap();
        let full = format!("{text}full avg10=7.00 avg60=0.00 avg300=0.00 total=1\n");
        tree.feed(&group, Resource::IoPressure, &full).unwrap();
        job.round().unwrap();
        let families = registry.gather();
        let value = |name: &str, labels: &[(&str, &str)]| {
            let family = families.iter().find(|family| family.name() == name)?;
            let metric = family.get_metric().iter().find(|metric| {
                labels.iter().all(|(key, value)| {
                    let mut all = metric.get_label().iter();
                    all.any(|label| label.name() == *key && label.value() == *value)
                })
            })?;
            Some(metric.get_gauge().get_value())
        };
        let container = |resource, precision, degree| {
            let labels = [
                ("container_name", "c"),
                ("psi_resource_type", resource),
                ("psi_precision", precision),
                ("psi_degree", degree),
            ];
            value("koordlet_container_psi", &labels)
        };
        assert_eq!(container("cpu", "avg10", "some"), Some(1.5));
        assert_eq!(container("cpu", "avg300", "some"), Some(2.98));
        assert_eq!(container("io", "avg10", "full"), Some(7.0));
        let pod = [("pod_name", "p"), ("psi_resource_type", "mem")];
        assert_eq!(value("koordlet_pod_psi", &pod), Some(0.0));
    }

    #[test]
    fn pods_that_ended_have_no_pressure() {
        let tree = Tree::v2("0-1").unwrap();
        tree.group("kubepods/besteffort/podu/c1").unwrap();
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.record_start("node", 0);
        let states = states();
        let mut pods = states.pods.load_full().unwrap().as_ref().clone();
        pods[0].phase = Phase::Succeeded;
        states.pods.store(Some(Arc::new(pods)));
        let mut job = PsiCollector::new(tree.root().clone(), states, metrics, Duration::ZERO);
        job.round().unwrap();
        let families = registry.gather();
        let shown = families.iter().any(|f| f.name().ends_with("_psi"));
        assert!(!shown, "{families:?}");
    }

    #[test]
    fn kernel_without_psi_fails_the_round() {
        let tree = Tree::v1("0-1").unwrap();
        tree.group("kubepods/besteffort/podu").unwrap();
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let mut job = PsiCollector::new(tree.root().clone(), states(), metrics, Duration::ZERO);
        let error = job.round().unwrap_err().to_string();
        assert!(error.contains("PSI"), "{error}");
    }
}
