//! Index of pods by quota and namespace.

use super::check::QuotaPods;
use crate::cache::Cache;
use crate::facts::PodFacts;
use koord_kube::{Change, ObjectKey};
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashMap};

/// Index of pods by the quota in their label.
pub(super) struct BoundPods {
    labelled: RwLock<PodsByLabel>,
    pods: Cache<PodFacts>,
}

type PodsByLabel = HashMap<Box<str>, BTreeSet<ObjectKey>>;

impl BoundPods {
    /// Creates an empty index; pods of a namespace are searched in `pods`.
    pub(super) fn new(pods: Cache<PodFacts>) -> Self {
        Self {
            labelled: RwLock::default(),
            pods,
        }
    }

    /// Applies a change of the pod cache.
    pub(super) fn apply_change(&self, change: &Change<PodFacts>) {
        let (old, new) = match change {
            Change::Applied { old, new } => (old.as_deref(), Some(&**new)),
            Change::Deleted(pod) => (Some(&**pod), None),
            Change::Synced => return,
        };
        if old.is_some() && old.map(PodFacts::quota) == new.map(PodFacts::quota) {
            return;
        }
        let mut labelled = self.labelled.write();
        if let Some(old) = old
            && let Some(pods) = labelled.get_mut(old.quota())
        {
            pods.remove(&old.key);
            if pods.is_empty() {
                labelled.remove(old.quota());
            }
        }
        if let Some(new) = new.filter(|pod| !pod.quota().is_empty()) {
            let pods = labelled.entry(new.quota().into()).or_default();
            pods.insert(new.key.clone());
        }
    }
}

impl QuotaPods for BoundPods {
    fn pods_of_quota(&self, quota: &str) -> Vec<String> {
        let labelled = self.labelled.read();
        let pods = labelled.get(quota).into_iter().flatten();
        pods.map(|pod| pod.name.clone()).collect()
    }

    // Called only when a quota is deleted or becomes a parent: an index would cost more than it saves.
    fn has_pods_in(&self, namespace: &str) -> bool {
        let pods = self.pods.list();
        pods.iter().any(|pod| pod.key.namespace == namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::FieldMask;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;
    use std::sync::Arc;

    fn pod(namespace: &str, name: &str, quota: &str) -> Arc<PodFacts> {
        let pod = json!({"metadata": {"namespace": namespace, "name": name,
            "labels": {koord_api::labels::POD_QUOTA_NAME: quota}}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        Arc::new(PodFacts::from_pod(&pod, FieldMask::default()))
    }

    #[test]
    fn pod_counts_for_quota_until_deleted() {
        let never = |_| unreachable!("the cache is not started");
        let bound = BoundPods::new(Cache::new(crate::cache::ObjectKind::Pods, never));
        let apply = |old: Option<&Arc<PodFacts>>, new: &Arc<PodFacts>| {
            let (old, new) = (old.cloned(), new.clone());
            bound.apply_change(&Change::Applied { old, new });
        };
        let (first, moved, other) = (pod("a", "p", "q"), pod("a", "p", "r"), pod("a", "o", ""));
        for pod in [&first, &other, &first] {
            apply(None, pod);
        }
        apply(Some(&first), &first);
        assert_eq!(bound.pods_of_quota("q"), ["p"]);
        apply(Some(&first), &moved);
        assert_eq!(
            (bound.pods_of_quota("q"), bound.pods_of_quota("r")),
            (vec![], vec!["p".to_owned()])
        );
        bound.apply_change(&Change::Deleted(moved));
        assert!(bound.pods_of_quota("").is_empty());
        bound.apply_change(&Change::Deleted(other));
        assert!(bound.labelled.read().is_empty());
    }
}
