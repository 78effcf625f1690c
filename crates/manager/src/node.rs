//! The work queue of controllers with one key per node.

use crate::replica::Replica;
use koord_kube::queue::WorkQueue;
use koord_kube::{Cacheable, Change, ObjectKey};

/// Returns a queue of node names. A node is added when it is created or deleted and when a cached field
/// changes; all nodes are added when the settings change.
pub(crate) fn queue(replica: &Replica) -> WorkQueue<ObjectKey> {
    let queue = WorkQueue::default();
    let nodes = queue.clone();
    replica.caches.nodes.on_change(move |change| match change {
        Change::Applied { old, new } => {
            // Heartbeats change no cached field.
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
