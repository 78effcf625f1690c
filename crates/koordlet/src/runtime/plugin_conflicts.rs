//! Detects another plugin of the container runtime that sets the same values. The runtime then refuses to
//! create the container and notifies neither plugin, so the conflict is found in the pods' status.

use crate::metrics::Metrics;
use crate::node_events::Warnings;
use crate::states::PodInfo;
use koord_kube::events::Severity;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time without a conflict after which it is reported again. The kubelet retries at most every five minutes,
/// and between attempts the status may have other content.
const REPEAT_AFTER: Duration = Duration::from_secs(600);

/// Conflicts between this plugin and others, each reported once.
#[derive(Debug)]
pub(crate) struct PluginConflicts {
    /// Index and name of this plugin.
    own: String,
    warnings: Arc<Warnings>,
    metrics: Metrics,
    /// Plugin and field, with the time at which the conflict was last seen.
    reported: BTreeMap<(String, String), Instant>,
}

impl PluginConflicts {
    /// Creates the detector for the plugin `own` (index and name, such as `00-koordlet_nri`).
    pub(super) fn new(own: String, warnings: Arc<Warnings>, metrics: Metrics) -> Self {
        Self {
            own,
            warnings,
            metrics,
            reported: BTreeMap::new(),
        }
    }

    /// Reports each new conflict in the status of `pods`: as an error in the log, an event and a metric.
    pub(crate) fn update(&mut self, pods: &[PodInfo]) {
        let now = Instant::now();
        self.reported.retain(|_, seen| now - *seen < REPEAT_AFTER);
        let mut containers = 0;
        for pod in pods {
            let Some(conflict) = &pod.conflict else {
                continue;
            };
            let other = match &conflict.plugins {
                [own, other] | [other, own] if *own == self.own => other,
                _ => continue,
            };
            containers += 1;
            let key = (other.clone(), conflict.field.clone());
            if self.reported.insert(key, now).is_some() {
                continue;
            }
            let container = format!("{} of {}/{}", conflict.container, pod.namespace, pod.name);
            let (field, own) = (conflict.field.as_str(), self.own.as_str());
            let plugins = if other == own {
                format!("two plugins with the name {own:?} of koordlet are connected")
            } else {
                format!("koordlet ({own:?}) and the plugin {other:?} are connected")
            };
            tracing::error!(
                container,
                plugin = other,
                own,
                field,
                "container not created, another plugin of the container runtime sets the same field"
            );
            let message = format!(
                "{plugins} to the container runtime and both set {field}: it does not create \
                 containers such as {container}"
            );
            self.warnings
                .record(Severity::Warning, "RuntimePluginConflict", &message);
        }
        self.metrics.nri_contested(containers);
    }
}
