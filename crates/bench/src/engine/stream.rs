//! Reports of an exporter, each with a fingerprint of the pods that it has counted.

use super::objects::added;
use k8s_openapi::api::core::v1::Pod;
use koord_api::topology::AttributeInfo;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_model::alignment::fingerprint;
use koord_scheduler::framework::ObjectChange;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// Pods by node, and the time to parse the reports about them.
#[derive(Debug, Default)]
pub(crate) struct Exporters {
    /// Fingerprint parts of the pods, by node.
    on: FxHashMap<String, Vec<u64>>,
    /// Time of informers to parse reports: it is not part of the engine's time.
    pub(crate) reading: Duration,
}

impl Exporters {
    /// Adds a pod that runs on its node.
    pub(crate) fn add_pod(&mut self, pod: &Pod) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
        let pods = self.on.entry(node.unwrap_or_default()).or_default();
        pods.push(fingerprint::pod(&namespace, &name));
    }

    /// Returns the report as it comes from an API server, with the pods that are on its node now; `keep`
    /// converts it like informers do.
    pub(crate) fn report(
        &mut self,
        change: &ObjectChange,
        keep: impl FnOnce(ObjectChange) -> ObjectChange,
    ) -> ObjectChange {
        let Some(report) = change.new_as::<NodeResourceTopology>() else {
            return keep(change.clone());
        };
        let mut report = report.clone();
        let name = report.metadata.name.as_deref().unwrap_or_default();
        let pods = self.on.get(name).into_iter().flatten().copied();
        report.spec.attributes.push(AttributeInfo {
            name: "nodeTopologyPodsFingerprint".to_owned(),
            value: fingerprint::from_hashes(pods),
        });
        let bytes = serde_json::to_vec(&report).unwrap_or_default();
        let started = Instant::now();
        let read: NodeResourceTopology = serde_json::from_slice(&bytes).unwrap_or_default();
        let kept = keep(ObjectChange {
            action: change.action,
            ..added(change.kind, read)
        });
        self.reading += started.elapsed();
        kept
    }
}

/// Sets the pod's phase to Running: exporters report running pods only.
pub(crate) fn set_running(pod: &mut Pod) {
    pod.status.get_or_insert_default().phase = Some("Running".to_owned());
}

#[cfg(test)]
mod tests {
    use super::super::objects::{aligned, bound, node_name, pod};
    use super::*;
    use koord_scheduler::framework::Action;
    use serde_json::json;

    #[test]
    fn exporters_report_counts_the_pods_of_its_node() {
        let mut exporters = Exporters::default();
        for number in 0..4 {
            let pod = pod("pod", number, &json!({}));
            exporters.add_pod(&bound(&pod, &node_name(number % 2)));
        }
        let report = exporters.report(&aligned(1, 3), |change| change);
        assert_eq!(report.action, Action::ADD);
        let report = report.new_as::<NodeResourceTopology>().unwrap();
        let names = ["pod-000001", "pod-000003"];
        let want = fingerprint::from_hashes(names.map(|name| fingerprint::pod("bench", name)));
        assert_eq!(report.spec.attributes.last().unwrap().value, want);
        assert_eq!(report.spec.zones.len(), 2);
        assert!(exporters.reading > Duration::ZERO);
    }
}
