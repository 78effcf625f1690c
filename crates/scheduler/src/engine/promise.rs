//! Room promised to what will replace pods that run: asked for before any of them has to go.
//!
//! While a promise stands, the pod is booked where it would go, as if it were on its way there; at home a
//! stand-in that only takes up room keeps its place, as the pod has not gone yet. [`Engine::withdraw_promises`]
//! brings everything back as it was. No event may come in between.

use super::Engine;
use super::cluster::Record;
use super::cycle::Stop;
use super::opinion::Opinion;
use super::select::NodeSelection;
use crate::framework::{Diagnosis, Effects};
use crate::guard::attempted;
use crate::state::PodInfo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::sync::Arc;

/// What the node that the pod is to leave says.
const LEFT: &str = "node(s) were what the pod is to leave";

/// A pod that was promised room.
#[derive(Debug)]
pub(super) struct Promise {
    /// The pod as it runs.
    pod: Arc<PodInfo>,
    /// Where.
    home: Arc<str>,
    /// The uid of who keeps its place there.
    keeper: Arc<str>,
}

impl Engine {
    /// Finds a node for what will replace a pod that runs, beside all that was promised before, and promises it.
    /// `pod` is that pod with all that decides where it goes, and without a node. It is judged as if it had left
    /// already, but for the room that it takes, and does not go back to its own node. Nobody is evicted for it, and
    /// extenders are not asked. What outputs follow concern nothing that is to be done.
    ///
    /// # Errors
    /// Why no node takes it.
    pub fn promise(
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
        let placed = attempted(|| -> Result<Arc<str>, Stop> {
            let left = self.cluster.nodes.find(&home);
            let opinion = left.map(|home| Opinion::against(home, LEFT));
            let mut selection = NodeSelection::new(self);
            let choice = selection.select(pod, profile, now, opinion.as_ref(), false)?;
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
        let placed = placed.unwrap_or_else(|said| {
            // As in a cycle: nothing cached is trusted after it.
            self.classes.clear();
            Err(Stop::panicked(&said))
        });
        match placed {
            Ok(node) => {
                let keeper = Arc::new(keeper_of(&running));
                self.promises.push(Promise {
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
                    Stop::Refused(diagnosis) => diagnosis,
                    Stop::Failed(message) => self.cluster.unplaced(message),
                })
            }
        }
    }

    /// Forgets all promises.
    pub fn withdraw_promises(&mut self, now: Timestamp) {
        while let Some(Promise { pod, home, keeper }) = self.promises.pop() {
            self.unbook(&pod.uid, now);
            self.unbook(&keeper, now);
            self.book(pod, &home, false, now);
        }
    }
}

/// What takes the room that `pod` does and means nothing else to anybody.
fn keeper_of(pod: &PodInfo) -> PodInfo {
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
    let mut keeper = pod.without_node(Arc::new(object)).holding_for(reference);
    keeper.uid = format!("{}/leaving", pod.uid).into();
    keeper
}
