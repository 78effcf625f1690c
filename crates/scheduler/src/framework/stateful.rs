//! The roles in which a plugin keeps track of objects and allocations, as a basis for its filters and scores.
//!
//! This state follows events in the cluster and decisions of the engine; filters and scores do not change it.

use super::{Cycle, Diagnosis, Effects, ObjectChange, Verdict, View};
#[cfg(doc)]
use super::{Explain, Planning, PreEnqueue};
use crate::state::{NodeIndex, PodInfo};
use jiff::Timestamp;
use std::sync::Arc;

/// Receives changes of nodes and of objects of watched kinds.
pub trait ObjectEvents {
    /// Handles a change of an object of a watched kind. Indexes contain the change already.
    fn on_object(&mut self, _change: &ObjectChange, _view: View<'_>, _fx: &mut Effects) {}
    /// Handles a node that was added, changed or deleted. The engine has touched it already.
    fn on_node(&mut self, _node: NodeIndex, _view: View<'_>, _fx: &mut Effects) {}
}

/// Receives changes of pods and of the nodes that they are on.
pub trait PodEvents {
    /// Handles a pod that was added or changed: pending, on a node or finished, of any scheduler. Called
    /// before the engine acts on the pod, so that [`PreEnqueue::pre_enqueue`] reads the result.
    fn on_pod(&mut self, _pod: &Arc<PodInfo>, _view: View<'_>, _fx: &mut Effects) {}
    /// Handles the end of the pod with this uid: it was deleted, or can no longer be decoded. Called before
    /// the engine removes it.
    fn on_pod_gone(&mut self, _uid: &str, _view: View<'_>, _fx: &mut Effects) {}
    /// Handles a pod that was assumed on a node or found bound to it. The engine has touched the node
    /// already.
    fn on_assigned(
        &mut self,
        _pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
    /// Handles a change of a pod on a node.
    fn on_updated(
        &mut self,
        _old: &Arc<PodInfo>,
        _new: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
    /// Handles a pod that left a node: it was deleted, finished, or its binding failed.
    fn on_unassigned(
        &mut self,
        _pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
}

/// Updates the plugin's state before roles read it that cannot change it.
pub trait Preparation {
    /// Computes what the filters and scores need for this pod and is not computed yet. Called in each cycle
    /// before the nodes are filtered.
    fn prepare(&mut self, _cycle: &Cycle<'_>) {}
    /// Brings the plugin's state up to date before [`Explain`] is used outside a scheduling cycle.
    fn prepare_explain(&mut self, _view: View<'_>) {}
}

/// Reacts to the passing of time.
pub trait Tick {
    /// Touches the nodes whose verdicts change by the passing of time alone. Called before each cycle.
    fn tick(&mut self, _view: View<'_>, _fx: &mut Effects) {}
    /// Returns when [`Tick::tick`] next has something to do by the passing of time alone; `None` for never.
    fn next_tick(&self) -> Option<Timestamp> {
        None
    }
}

/// Allocates what a pod needs in addition to plain resources.
pub trait Reserve {
    /// Allocates what the pod needs on `node` in addition to plain resources. Undone by
    /// [`Reserve::unreserve`].
    fn reserve(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex, _fx: &mut Effects) -> Verdict {
        Ok(())
    }
    /// Releases what [`Reserve::reserve`] allocated; must tolerate that nothing was.
    fn unreserve(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex, _fx: &mut Effects) {}
}

/// Reacts to the refusal of a pod. Upstream: `PostFilterTransformer`.
pub trait PostFilterTransformer {
    /// Handles the refusal of a pod at any extension point, after all post-filters. May amend `diagnosis`.
    fn after_post_filter(
        &mut self,
        _cycle: &Cycle<'_>,
        _diagnosis: &mut Diagnosis,
        _fx: &mut Effects,
    ) {
    }
}

/// Reacts to the binding of a pod.
pub trait PostBind {
    /// Handles the binding of the pod.
    fn post_bind(&mut self, _pod: &Arc<PodInfo>, _node: &str, _view: View<'_>, _fx: &mut Effects) {}
}
