//! Rules about the pods that may be moved at all.
//!
//! Source: Koordinator `pkg/descheduler/evictions`.

use super::SkipReason;
use crate::state::{Phase, PodInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::selector;

/// Annotation of pods that request their eviction in spite of all rules; any value counts.
pub const EVICT: &str = "descheduler.alpha.kubernetes.io/evict";
/// Lowest priority of system-critical pods.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;
const MIRROR: &str = "kubernetes.io/config.mirror";
const SOURCE: &str = "kubernetes.io/config.source";

/// Rules that protect pods from eviction. The default is upstream's default of `MigrationControllerArgs`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evictable {
    /// Pods without an owner may be evicted once they failed.
    pub evict_failed_bare_pods: bool,
    /// Pods without an owner may be evicted.
    pub evict_all_bare_pods: bool,
    /// Pods of any priority may be evicted; `priority_threshold` has no effect then.
    pub evict_system_critical_pods: bool,
    /// Pods with a `hostPath` or an `emptyDir` volume may be evicted.
    pub evict_local_storage_pods: bool,
    /// Pods of a DaemonSet may be evicted.
    pub evict_daemon_set_pods: bool,
    /// Pods with a PersistentVolumeClaim are protected.
    pub ignore_pvc_pods: bool,
    /// Pods of this priority and above are protected.
    pub priority_threshold: Option<i32>,
    /// Selector of the pods that may be evicted; all pods without one.
    pub label_selector: Option<LabelSelector>,
}

/// Returns true if `pod` has the annotation [`EVICT`], which overrides all other rules, and moving it is not
/// pointless. A mirror or static pod would return to its node, and a pod being deleted is leaving already.
#[must_use]
pub fn overrides(pod: &PodInfo) -> bool {
    pod.annotation(EVICT).is_some() && useless(pod).is_none()
}

/// Returns why moving `pod` would be pointless.
fn useless(pod: &PodInfo) -> Option<SkipReason> {
    if pod.annotation(MIRROR).is_some() {
        return Some(SkipReason::new("Mirror", "a mirror of a static pod stays"));
    }
    match pod.annotation(SOURCE) {
        Some(source) if source != "api" => {
            let detail = format!("a static pod stays: its source is {source:?}");
            return Some(SkipReason::new("Static", detail));
        }
        _ => {}
    }
    let deleting = pod.deleting;
    deleting.then(|| SkipReason::new("Terminating", "it is being deleted"))
}

impl Evictable {
    /// Checks whether `pod` may be evicted.
    ///
    /// # Errors
    /// Returns the first rule that protects the pod.
    pub fn check(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        if let Some(reason) = useless(pod) {
            return Err(reason);
        }
        if overrides(pod) {
            return Ok(());
        }
        let mut owners = pod.owners.iter();
        if !self.evict_daemon_set_pods
            && let Some(owner) = owners.find(|owner| &*owner.kind == "DaemonSet")
        {
            let detail = format!("DaemonSet {} would put it back", owner.name);
            return Err(SkipReason::new("OwnedByDaemonSet", detail));
        }
        let failed = self.evict_failed_bare_pods && pod.phase == Phase::Failed;
        if pod.owners.is_empty() && !self.evict_all_bare_pods && !failed {
            return Err(SkipReason::new(
                "BarePods",
                "nobody owns it, so nobody would make it anew",
            ));
        }
        self.by_priority(pod)?;
        let volumes = &pod.shape.volumes;
        if volumes.local && !self.evict_local_storage_pods {
            let detail = "it has a hostPath or an emptyDir, which does not move along";
            return Err(SkipReason::new("LocalStorage", detail));
        }
        if self.ignore_pvc_pods
            && let Some(claim) = volumes.claims.first()
        {
            let detail = format!("it has PersistentVolumeClaim {claim}");
            return Err(SkipReason::new("PVC", detail));
        }
        match &self.label_selector {
            Some(labels) if !selector::matches(labels, &pod.shape.labels).unwrap_or(false) => Err(
                SkipReason::new("LabelSelector", "labelSelector does not select it"),
            ),
            _ => Ok(()),
        }
    }

    fn by_priority(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        let Some(priority) = pod.shape.priority else {
            return Ok(());
        };
        if self.evict_system_critical_pods {
            return Ok(());
        }
        if priority >= SYSTEM_CRITICAL {
            let detail = format!("the system needs it: its priority is {priority}");
            return Err(SkipReason::new("SystemCritical", detail));
        }
        match self.priority_threshold {
            Some(threshold) if priority >= threshold => {
                let detail = format!("its priority {priority} is not below {threshold}");
                Err(SkipReason::new("PriorityThreshold", detail))
            }
            _ => Ok(()),
        }
    }
}
