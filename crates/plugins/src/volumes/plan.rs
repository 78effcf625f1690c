//! What has to happen to a pod's claims before it can be bound to its node.

use super::Key;
use super::matching::{ClaimId, reachable};
use super::storage::{Storage, annotation, claim_ref, fully_bound, volume_name};
use jiff::Timestamp;
use koord_scheduler::framework::{Verb, Write};
use koord_scheduler::state::NodeInfo;
use serde_json::json;

/// Names the node for which a claim's volume is to be made.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Says that the claim of a volume was chosen by a controller, not by its maker.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// One claim of a plan.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) claim: Key,
    pub(super) id: ClaimId,
    /// The volume it gets; none when one is to be made.
    pub(super) volume: Option<String>,
    /// The informer has shown what was written.
    seen: bool,
}

impl Step {
    pub(super) fn new(claim: Key, id: ClaimId, volume: Option<String>) -> Self {
        Self {
            claim,
            id,
            volume,
            seen: false,
        }
    }
}

/// How far a plan is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Pending,
    Failed(String),
}

/// The claims of one pod that wait for volumes on one node.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) node: String,
    pub(super) steps: Vec<Step>,
    /// When the writes were sent first, and last.
    pub(super) sent: Option<(Timestamp, Timestamp)>,
}

impl Plan {
    /// The writes that the informer has not shown yet.
    pub(super) fn writes(&self, storage: &Storage) -> Vec<Write> {
        let steps = self.steps.iter().filter(|step| !step.seen);
        steps
            .filter_map(|step| match &step.volume {
                Some(volume) => pre_bind(storage, volume, &step.id),
                None => Some(Write {
                    group: "",
                    version: "v1",
                    plural: "persistentvolumeclaims",
                    namespace: step.id.namespace.clone(),
                    name: step.id.name.clone(),
                    verb: Verb::Patch(json!({"metadata": {
                        "uid": step.id.uid,
                        "annotations": {SELECTED_NODE: self.node},
                    }})),
                }),
            })
            .collect()
    }

    /// How far the claims are, as the informers show it.
    pub(super) fn progress(&mut self, storage: &Storage, node: Option<&NodeInfo>) -> Progress {
        let Some(node) = node else {
            return Progress::Failed(format!("node {:?} is gone", self.node));
        };
        let mut done = true;
        for step in &mut self.steps {
            match look(step, storage, node) {
                Progress::Done => {}
                Progress::Pending => done = false,
                failed => return failed,
            }
        }
        if done {
            Progress::Done
        } else {
            Progress::Pending
        }
    }
}

fn look(step: &mut Step, storage: &Storage, node: &NodeInfo) -> Progress {
    let Some(claim) = storage.claims.get(&step.claim) else {
        return Progress::Failed(format!("persistentvolumeclaim {:?} is gone", step.claim));
    };
    let bound_to = volume_name(claim);
    let elsewhere = |name: &str| {
        let volume = storage.volumes.get(name);
        volume
            .is_some_and(|volume| !reachable(volume, node))
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
            let uid = claim_ref(volume).and_then(|of| of.uid.as_deref());
            match uid {
                Some(uid) if uid == step.id.uid => step.seen = true,
                Some(uid) if !uid.is_empty() => {
                    return Progress::Failed(format!("pv {name:?} went to another claim"));
                }
                _ if step.seen => {
                    return Progress::Failed(format!("ClaimRef got reset for pv {name:?}"));
                }
                _ => {}
            }
        }
        None => {
            match annotation(&claim.metadata, SELECTED_NODE) {
                Some(selected) if *selected == *node.name => step.seen = true,
                // The provisioner takes the annotation away when it could not make the volume.
                _ if step.seen => {
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
    if fully_bound(claim) {
        Progress::Done
    } else {
        Progress::Pending
    }
}

/// The write that gives the volume to the claim; none when the volume says so already.
fn pre_bind(storage: &Storage, name: &str, claim: &ClaimId) -> Option<Write> {
    let volume = storage.volumes.get(name)?;
    let of = claim_ref(volume);
    if of.is_some_and(|of| of.uid.as_deref() == Some(&claim.uid)) {
        return None;
    }
    let mut body = json!({
        // Whoever changed the volume since may have given it away.
        "metadata": {"uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version},
        "spec": {"claimRef": {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
        }},
    });
    if of.is_none() {
        body["metadata"]["annotations"] = json!({BOUND_BY_CONTROLLER: "yes"});
    }
    Some(Write {
        group: "",
        version: "v1",
        plural: "persistentvolumes",
        namespace: String::new(),
        name: name.to_owned(),
        verb: Verb::Patch(body),
    })
}
