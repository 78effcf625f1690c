//! Tentative placements: room reserved for the replacements of running pods, before any of these is evicted.
//!
//! While a tentative placement exists, the pod is assumed on its target node; on its current node, a
//! placeholder keeps its room, as the pod is still running. [`Engine::withdraw_tentative_placements`] restores the
//! previous state. No event may be handled in between.

use super::Engine;
use super::cluster::Record;
use super::cycle::CycleError;
use super::extender_verdicts::ExtenderVerdicts;
use super::select::NodeSelection;
use crate::framework::{Diagnosis, Effects};
use crate::guard::catch_panic;
use crate::state::PodInfo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::sync::Arc;

/// The reason for refusing the node that the pod is to leave.
const LEFT: &str = "node(s) were what the pod is to leave";

/// A tentative placement of a running pod.
#[derive(Debug)]
pub(super) struct TentativePlacement {
    /// The running pod.
    pod: Arc<PodInfo>,
    /// The node that it runs on.
    home: Arc<str>,
    /// The uid of the placeholder on that node.
    keeper: Arc<str>,
}

impl Engine {
    /// Selects a node for the replacement of a running pod, in addition to all earlier tentative placements,
    /// and reserves room for it there. `pod` is the running pod with all fields that matter for scheduling,
    /// and without a node. It is evaluated as if the running pod had left already, except that its room is
    /// still in use, and never gets its own node. No pod is evicted for it, and extenders are not called.
    /// Outputs of this call must be discarded.
    ///
    /// # Errors
    /// Returns why no node fits.
    pub fn place_tentatively(
        &mut self,
        pod: &Arc<PodInfo>,
        now: Timestamp,
    ) -> Result<Arc<str>, Box<Diagnosis>> {
        let Some(profile) = self.table.profile_of(pod) else {
            let name = pod.scheduler_name();
            return Err(self
                .cluster
                .unplaced(format!("no profile is called {name:?}")));
        };
        let home = match self.cluster.pods.get(&pod.uid) {
            Some(Record {
                node,
                assumed: false,
                ..
            }) => self.cluster.nodes.name(*node).clone(),
            _ => return Err(self.cluster.unplaced("the pod is on no node".to_owned())),
        };
        self.tick(now);
        let Some(running) = self.unbook(&pod.uid, now) else {
            return Err(self.cluster.unplaced("the pod is on no node".to_owned()));
        };
        let placed = catch_panic(|| -> Result<Arc<str>, CycleError> {
            let home_row = self.cluster.nodes.find(&home);
            let extender_verdicts = home_row.map(|home| ExtenderVerdicts::against(home, LEFT));
            let mut selection = NodeSelection::new(self);
            let choice = selection.select(pod, profile, now, extender_verdicts.as_ref(), false)?;
            let name = self.cluster.nodes.name(choice.node).clone();
            self.book(pod.clone(), &name, true, now);
            let (meter, view) = (&self.telemetry.meter, self.cluster.view(now));
            let mut fx = Effects::default();
            let reserved = self
                .table
                .reserve(meter, view, pod, profile, &choice, &mut fx);
            self.apply(fx, now);
            reserved.map(|()| name)
        });
        let placed = placed.unwrap_or_else(|panic| {
            // As in a scheduling cycle, the panic may have left cached evaluations inconsistent.
            self.classes.clear();
            Err(CycleError::panicked(&panic))
        });
        match placed {
            Ok(node) => {
                let keeper = Arc::new(placeholder_of(&running));
                self.tentative.push(TentativePlacement {
                    pod: running,
                    home: home.clone(),
                    keeper: keeper.uid.clone(),
                });
                self.book(keeper, &home, false, now);
                Ok(node)
            }
            Err(stop) => {
                self.unbook(&pod.uid, now);
                self.book(running, &home, false, now);
                Err(match stop {
                    CycleError::Refused(diagnosis) => diagnosis,
                    CycleError::Failed(message) => self.cluster.unplaced(message),
                })
            }
        }
    }

    /// Removes all tentative placements.
    pub fn withdraw_tentative_placements(&mut self, now: Timestamp) {
        while let Some(TentativePlacement { pod, home, keeper }) = self.tentative.pop() {
            self.unbook(&pod.uid, now);
            self.unbook(&keeper, now);
            self.book(pod, &home, false, now);
        }
    }
}

/// Creates a placeholder that takes the same room as `pod` and has no other effect.
fn placeholder_of(pod: &PodInfo) -> PodInfo {
    let (namespace, name) = (pod.namespace.to_string(), pod.name.to_string());
    let object = Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            uid: Some(format!("{}/leaving", pod.uid)),
            ..ObjectMeta::default()
        },
        ..Pod::default()
    };
    let reference = ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace),
        name: Some(name),
        uid: Some(pod.uid.to_string()),
        ..ObjectReference::default()
    };
    let mut keeper = pod.without_node(Arc::new(object)).into_holder(reference);
    keeper.uid = format!("{}/leaving", pod.uid).into();
    keeper
}
