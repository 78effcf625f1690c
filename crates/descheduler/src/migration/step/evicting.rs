//! The eviction steps of a job.

use super::{JobView, Operation, Step, conditions, reasons, status, text};
use crate::migration::evict::{self, Policy};
use crate::migration::status::State;
use k8s_openapi::api::core::v1::Pod;
use koord_api::annotations;
use koord_api::scheduling::{PodMigrationJob, Reservation, ReservationPhase};

/// Returns true if an annotation of `pod` requests its eviction.
#[must_use]
pub fn is_eviction_requested(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(annotations::SOFT_EVICTION))
}

/// Returns true if condition `Ready` is `True`.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns true if the status of `job` records that the eviction has begun: the pod may be gone because of
/// it.
#[must_use]
pub fn has_begun_to_evict(job: &PodMigrationJob) -> bool {
    let status = job.status.as_ref();
    status.is_some_and(|status| status::condition(status, conditions::EVICTION).is_some())
}

impl JobView<'_> {
    /// Returns true if this job requested the soft eviction of the pod.
    pub(super) fn has_requested_eviction(&self) -> bool {
        has_begun_to_evict(self.job) && self.policy() == Policy::SoftEviction
    }

    fn policy(&self) -> Policy {
        let pod = self.pod.and_then(|pod| pod.metadata.labels.as_ref());
        let job = self.job.metadata.labels.as_ref();
        Policy::resolve(pod, job, self.settings.policy)
    }

    /// Checks that the pod is gone.
    ///
    /// # Errors
    /// Returns the step to take while it is not, or cannot be evicted.
    pub(super) fn evicted(&self, reservation: Option<&Reservation>) -> Result<(), Step> {
        let now = self.status();
        let condition = status::condition(&now, conditions::EVICTION);
        if condition.is_some_and(|condition| condition.status == "True") {
            return Ok(());
        }
        let Some(pod) = self.target() else {
            // The pod is gone, but not evicted by this job.
            if condition.is_none() {
                return Err(self.missing_pod());
            }
            let state = State {
                kind: conditions::EVICTION,
                holds: true,
                reason: reasons::EVICT_COMPLETE,
                message: "",
            };
            let message = format!("Pod {} has been evicted", self.pod_name());
            let step = self.report_condition(&state).unwrap_or_else(Step::wait);
            return Err(step.with_event(reasons::EVICT_COMPLETE, message));
        };
        let spec = pod.spec.as_ref();
        let node = spec.map(|spec| text(&spec.node_name)).unwrap_or_default();
        let message = format!(
            "Pod {} evicted from node \"{node}\" by the reason \"{}\"",
            self.pod_name(),
            evict::reason(self.job)
        );
        let evicting = State {
            kind: conditions::EVICTION,
            holds: false,
            reason: reasons::EVICTING,
            message: &message,
        };
        let is_deleting = pod.metadata.deletion_timestamp.is_some();
        let is_requested = self.policy() == Policy::SoftEviction && is_eviction_requested(pod);
        if condition.is_some() && (is_deleting || is_requested) {
            return Err(self.report_condition(&evicting).unwrap_or_else(Step::wait));
        }
        let status = reservation.and_then(|reservation| reservation.status.as_ref());
        if status.is_some_and(|status| status.phase == Some(ReservationPhase::Succeeded)) {
            return Err(self.taken());
        }
        if condition.is_some() {
            return Err(Step::act(Operation::Evict(self.policy())));
        }
        // Recorded before the eviction: a leader that takes over in between finds the pod gone and the reason.
        let step = self.report_condition(&evicting).unwrap_or_else(Step::wait);
        Err(step.with_event(reasons::EVICTING, message))
    }
}
