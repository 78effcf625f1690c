//! The pods of this node as listed at `/pods`.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pods by uid, with the newest status, which the API may not have yet. Clones share the content.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table(Arc<RwLock<BTreeMap<String, Pod>>>);

impl Table {
    pub(crate) fn put(&self, pod: &Pod, status: &PodStatus) {
        let Some(uid) = pod.metadata.uid.clone() else {
            return;
        };
        let mut pod = pod.clone();
        let mut status = status.clone();
        // Conditions of other components (PodScheduled) are kept.
        let old = pod
            .status
            .take()
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let conditions = status.conditions.get_or_insert_default();
        for condition in old {
            if conditions
                .iter()
                .all(|existing| existing.type_ != condition.type_)
            {
                conditions.push(condition);
            }
        }
        pod.status = Some(status);
        self.0.write().insert(uid, pod);
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.0.write().remove(uid);
    }

    pub(crate) fn list(&self) -> Vec<Pod> {
        self.0.read().values().cloned().collect()
    }
}
