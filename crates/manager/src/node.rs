//! What controllers with one key per node have in common.

use crate::replica::Replica;
use koord_kube::queue::WorkQueue;
use koord_kube::{Change, Mirrored, ObjectKey};

/// A queue of nodes: each is looked at when it comes or goes, when something of it changes that
/// is kept, and, as all others, when the settings do.
pub(crate) fn queue(replica: &Replica) -> WorkQueue<ObjectKey> {
    let queue = WorkQueue::default();
    let nodes = queue.clone();
    replica.caches.nodes.on_change(move |change| match change {
        Change::Applied { old, new } => {
            // Of a heartbeat nothing is kept.
            if old.as_ref().is_none_or(|old| !old.is_like(new)) {
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
