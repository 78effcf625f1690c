//! Plan of a pod: the steps for its claims before it can be bound to its node.

use super::Key;
use super::matching::{ClaimId, is_reachable};
use super::storage::{Storage, bytes};
use super::trimmed::{SELECTED_NODE, TrimmedClaim, TrimmedVolume};
use crate::common::shape::Shape;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use koord_scheduler::framework::{Verb, Write};
use koord_scheduler::state::NodeInfo;
use serde_json::json;
use std::collections::BTreeMap;

/// Annotation of a volume whose claim was set by a controller instead of by the volume's creator.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// Step of a plan for one claim.
#[derive(Debug, Clone)]
pub(super) struct BindStep {
    pub(super) claim: Key,
    pub(super) id: ClaimId,
    /// Volume that is bound to the claim; `None` if one is to be provisioned.
    pub(super) volume: Option<String>,
    /// Storage utilization after this step; `None` if the capacity is unknown.
    utilization: Option<Utilization>,
    /// True if the informer has shown the write of this step.
    shown: bool,
}

/// Storage that a claim takes from its class, in bytes.
#[derive(Debug, Clone)]
pub(super) struct Utilization {
    class: Box<str>,
    requested: i64,
    capacity: i64,
}

impl Utilization {
    /// Returns the utilization of an existing volume.
    pub(super) fn from_volume(claim: &TrimmedClaim, volume: &TrimmedVolume) -> Self {
        Self {
            class: claim.class.clone(),
            requested: claim.request.unwrap_or(0),
            capacity: volume.capacity,
        }
    }

    /// Returns the utilization of the capacity for new volumes.
    pub(super) fn from_capacity(claim: &TrimmedClaim, capacity: &CSIStorageCapacity) -> Self {
        Self {
            class: claim.class.clone(),
            requested: claim.request.unwrap_or(0),
            capacity: bytes(capacity.capacity.as_ref()),
        }
    }
}

/// Returns the score of the storage utilization after these steps: the mean over storage classes. If any step
/// uses an existing volume, volumes to be provisioned do not count.
pub(super) fn score(steps: &[BindStep], shape: &Shape) -> i64 {
    let uses_existing = steps.iter().any(|step| step.volume.is_some());
    let mut classes: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for step in steps
        .iter()
        .filter(|step| step.volume.is_some() == uses_existing)
    {
        let Some(utilization) = &step.utilization else {
            continue;
        };
        let (requested, capacity) = classes.entry(&utilization.class).or_default();
        *requested = requested.saturating_add(utilization.requested);
        // New volumes of one class share its capacity.
        let counted = if uses_existing { *capacity } else { 0 };
        *capacity = counted.saturating_add(utilization.capacity);
    }
    mean(classes.into_values(), shape)
}

/// Returns the mean score of (requested, capacity) per storage class.
fn mean(classes: impl ExactSizeIterator<Item = (i64, i64)>, shape: &Shape) -> i64 {
    let count = i64::try_from(classes.len()).unwrap_or(i64::MAX);
    if count == 0 {
        return 0;
    }
    let score_of = |(requested, capacity): (i64, i64)| {
        if capacity <= 0 || requested > capacity {
            return shape.at(100);
        }
        let percent = i128::from(requested) * 100 / i128::from(capacity);
        shape.at(i64::try_from(percent).unwrap_or(100))
    };
    let sum: i64 = classes.map(score_of).sum();
    // Rounds half up; scores are never negative.
    (2 * sum + count) / (2 * count)
}

impl BindStep {
    pub(super) fn new(
        claim: Key,
        id: ClaimId,
        volume: Option<String>,
        utilization: Option<Utilization>,
    ) -> Self {
        Self {
            claim,
            id,
            volume,
            utilization,
            shown: false,
        }
    }
}

/// State of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Pending,
    Failed(String),
}

/// Claims of one pod that wait for volumes on one node.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) node: String,
    pub(super) steps: Vec<BindStep>,
    /// Times of the first and the last write; `None` before the first.
    pub(super) sent: Option<(Timestamp, Timestamp)>,
}

impl Plan {
    /// Returns the writes that the informer has not shown yet.
    pub(super) fn writes(&self, storage: &Storage) -> Vec<Write> {
        let steps = self.steps.iter().filter(|step| !step.shown);
        steps
            .filter_map(|step| match &step.volume {
                Some(volume) => bind_write(storage, volume, &step.id),
                None => Some(Write {
                    group: "",
                    version: "v1",
                    plural: "persistentvolumeclaims",
                    namespace: step.id.namespace.to_string(),
                    name: step.id.name.to_string(),
                    verb: Verb::Patch(json!({"metadata": {
                        "uid": step.id.uid,
                        "annotations": {SELECTED_NODE: self.node},
                    }})),
                    timed: None,
                }),
            })
            .collect()
    }

    /// Returns the state of the plan according to the informers, and updates its steps.
    pub(super) fn progress(&mut self, storage: &Storage, node: Option<&NodeInfo>) -> Progress {
        let Some(node) = node else {
            return Progress::Failed(format!("node {:?} is gone", self.node));
        };
        let mut is_done = true;
        for step in &mut self.steps {
            match check_step(step, storage, node) {
                Progress::Done => {}
                Progress::Pending => is_done = false,
                failed => return failed,
            }
        }
        if is_done {
            Progress::Done
        } else {
            Progress::Pending
        }
    }
}

/// Returns the state of one step, and updates whether its write was shown.
fn check_step(step: &mut BindStep, storage: &Storage, node: &NodeInfo) -> Progress {
    let Some(claim) = storage.claims.get(&step.claim) else {
        return Progress::Failed(format!("persistentvolumeclaim {:?} is gone", step.claim));
    };
    let bound_to = &*claim.volume;
    let elsewhere = |name: &str| {
        let volume = storage.volumes.get(name);
        volume
            .is_some_and(|volume| !is_reachable(volume, node))
            .then(|| {
                let node = &node.name;
                format!("pv {name:?} node affinity doesn't match node \"{node}\"")
            })
    };
    match &step.volume {
        Some(name) => {
            let Some(volume) = storage.volumes.get(name) else {
                return Progress::Failed(format!("persistentvolume {name:?} is gone"));
            };
            if let Some(problem) = elsewhere(name) {
                return Progress::Failed(problem);
            }
            let uid = volume.claim.as_ref().map(|reference| &reference.uid);
            match uid {
                Some(uid) if *uid == step.id.uid => step.shown = true,
                Some(uid) if !uid.is_empty() => {
                    return Progress::Failed(format!("pv {name:?} went to another claim"));
                }
                _ if step.shown => {
                    return Progress::Failed(format!("ClaimRef got reset for pv {name:?}"));
                }
                _ => {}
            }
        }
        None => {
            match claim.selected_node.as_deref() {
                Some(selected) if *selected == *node.name => step.shown = true,
                // The provisioner removes the annotation if it failed to provision the volume.
                _ if step.shown => {
                    let name = &step.id.name;
                    return Progress::Failed(format!("provisioning failed for PVC {name:?}"));
                }
                _ => {}
            }
            if let Some(problem) = elsewhere(bound_to) {
                return Progress::Failed(problem);
            }
        }
    }
    if claim.is_fully_bound() {
        Progress::Done
    } else {
        Progress::Pending
    }
}

/// Returns the write that binds the volume to the claim; `None` if it already is.
fn bind_write(storage: &Storage, name: &str, claim: &ClaimId) -> Option<Write> {
    let volume = storage.volumes.get(name)?;
    let reference = volume.claim.as_ref();
    if reference.is_some_and(|reference| reference.uid == claim.uid) {
        return None;
    }
    let mut body = json!({
        // Guards against a concurrent change that assigned the volume to another claim.
        "metadata": {"uid": volume.names.uid, "resourceVersion": volume.names.resource_version},
        "spec": {"claimRef": {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
        }},
    });
    if reference.is_none() {
        body["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
    }
    Some(Write {
        group: "",
        version: "v1",
        plural: "persistentvolumes",
        namespace: String::new(),
        name: name.to_owned(),
        verb: Verb::Patch(body),
        timed: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_weigh_the_same() {
        let rising = json!([{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]);
        let bent = json!([{"utilization": 50, "score": 0}, {"utilization": 80, "score": 3},
            {"utilization": 100, "score": 5}]);
        // Requested share of capacity 100, per class, and the score.
        for (shape, requested, expected) in [
            (&rising, &[0][..], 0),
            (&rising, &[30], 30),
            (&rising, &[50], 50),
            (&rising, &[100], 100),
            (&rising, &[101], 100),
            (&rising, &[], 0),
            (&rising, &[0, 0], 0),
            (&rising, &[0, 30], 15),
            (&rising, &[30, 30], 30),
            (&rising, &[30, 60], 45),
            (&rising, &[50, 50], 50),
            (&rising, &[50, 100], 75),
            (&rising, &[100, 100], 100),
            (&rising, &[0, 1], 1),
            (&bent, &[0, 0], 0),
            (&bent, &[0, 30], 0),
            (&bent, &[30, 30], 0),
            (&bent, &[30, 60], 5),
            (&bent, &[50, 100], 25),
            (&bent, &[90, 90], 40),
            (&bent, &[100, 100], 50),
        ] {
            let shape: Shape = serde_json::from_value(shape.clone()).unwrap();
            let classes = requested.iter().map(|requested| (*requested, 100));
            assert_eq!(mean(classes, &shape), expected, "{requested:?}");
        }
    }
}
