//! The roles in which a plugin keeps count of what there is and of what was given away, for its rules to judge by.
//!
//! Its books follow what happens in the cluster and what the engine decides; no rule changes them.

use super::{Cycle, Diagnosis, Effects, ObjectChange, Verdict, View};
#[cfg(doc)]
use super::{Insight, Planning, PreEnqueue};
use crate::state::{NodeIndex, PodInfo};
use jiff::Timestamp;
use std::sync::Arc;

/// Follows nodes and the objects of watched kinds.
pub trait ObjectEvents {
    /// An object of a watched kind changed. Indexes know of it already.
    fn on_object(&mut self, _change: &ObjectChange, _view: View<'_>, _fx: &mut Effects) {}
    /// A node appeared, changed or went. The engine has touched it already.
    fn on_node(&mut self, _node: NodeIndex, _view: View<'_>, _fx: &mut Effects) {}
}

/// Follows pods, and which node each is on.
pub trait PodEvents {
    /// A pod appeared or changed: pending, on a node or finished, of whatever scheduler. Comes
    /// before the engine acts on it, so that [`PreEnqueue::pre_enqueue`] already knows.
    fn on_pod(&mut self, _pod: &Arc<PodInfo>, _view: View<'_>, _fx: &mut Effects) {}
    /// The pod with this uid does not exist any more, or cannot be read any more. Comes before the
    /// engine forgets it.
    fn on_pod_gone(&mut self, _uid: &str, _view: View<'_>, _fx: &mut Effects) {}
    /// A pod was assumed on or found bound to a node. The engine has touched the node already.
    fn on_assigned(
        &mut self,
        _pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
    /// A pod on a node changed.
    fn on_updated(
        &mut self,
        _old: &Arc<PodInfo>,
        _new: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
    /// A pod left a node: deleted, finished, or its binding failed.
    fn on_unassigned(
        &mut self,
        _pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
    }
}

/// Brings what the plugin stores up to date before it is read: other roles change nothing, and so find it there.
pub trait Preparation {
    /// Before the rules are asked where the cycle's pod may go, each time: adds what they need to know for
    /// this pod and nobody has counted yet. Rules change nothing, and so find it there.
    fn prepare(&mut self, _cycle: &Cycle<'_>) {}
    /// Before [`Insight`] is asked for what people want to see, which no cycle precedes.
    fn prepare_to_show(&mut self, _view: View<'_>) {}
}

/// Reacts to the passing of time.
pub trait Tick {
    /// Before each cycle: touch the nodes whose verdicts change by the passing of time alone.
    fn tick(&mut self, _view: View<'_>, _fx: &mut Effects) {}
    /// When [`Tick::tick`] next has something to do by the passing of time alone.
    fn next_tick(&self) -> Option<Timestamp> {
        None
    }
}

/// Books what a pod takes beyond plain resources.
pub trait Reserve {
    /// Books what the pod takes beyond plain resources. Undone by [`Reserve::unreserve`].
    fn reserve(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex, _fx: &mut Effects) -> Verdict {
        Ok(())
    }
    /// Gives back what [`Reserve::reserve`] booked; must tolerate that it booked nothing.
    fn unreserve(&mut self, _cycle: &Cycle<'_>, _node: NodeIndex, _fx: &mut Effects) {}
}

/// Reacts to the refusal of a pod. Upstream: `PostFilterTransformer`.
pub trait PostFilterTransformer {
    /// The pod was refused, at whatever point, after all post-filters; `diagnosis` may be amended.
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
    /// The pod is bound.
    fn post_bind(&mut self, _pod: &Arc<PodInfo>, _node: &str, _view: View<'_>, _fx: &mut Effects) {}
}
