//! What controllers with one key per node have in common.

use crate::facts::Text;
use crate::replica::Replica;
use k8s_openapi::api::core::v1::Node;
use koord_kube::queue::WorkQueue;
use koord_kube::{Change, Mirrored, ObjectKey};

/// A queue of nodes: each is looked at when it comes or goes, when something of it changes that
/// matters, and, as all others, when the settings do.
pub(crate) fn queue(replica: &Replica) -> WorkQueue<ObjectKey> {
    let queue = WorkQueue::default();
    let nodes = queue.clone();
    replica.caches.nodes.on_change(move |change| match change {
        Change::Applied { old, new } => {
            if old.as_ref().is_none_or(|old| is_relevant(old, new)) {
                nodes.add(new.key());
            }
        }
        Change::Deleted(node) => nodes.add(node.key()),
        Change::Synced => {}
    });
    let (nodes, all) = (replica.caches.nodes.clone(), queue.clone());
    replica.settings.on_change(move || {
        for node in nodes.list() {
            all.add(node.key());
        }
    });
    queue
}

/// Whether a change of a node can change what is decided about it. Heartbeats cannot.
fn is_relevant(old: &Text<Node>, new: &Text<Node>) -> bool {
    // Most are heartbeats, of which nothing is kept.
    if old.is_like(new) {
        return false;
    }
    let (old, new) = (old.read(), new.read());
    let lists = |node: &Node| {
        let status = node.status.as_ref();
        status.map(|status| (status.capacity.clone(), status.allocatable.clone()))
    };
    old.metadata.labels != new.metadata.labels
        || old.metadata.annotations != new.metadata.annotations
        || lists(&old) != lists(&new)
}
