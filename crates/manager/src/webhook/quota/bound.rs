//! Which pods quotas have, by what the pods say.

use super::check::Bound;
use crate::facts::PodFacts;
use koord_kube::{Change, ObjectKey};
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Pods by the quota they name and by namespace.
#[derive(Debug, Default)]
pub(super) struct BoundPods(RwLock<Index>);

#[derive(Debug, Default)]
struct Index {
    labelled: HashMap<Box<str>, BTreeSet<ObjectKey>>,
    /// Names of pods. Not a count: a listener that comes late may hear of a pod twice.
    namespaces: HashMap<String, HashSet<Box<str>>>,
}

impl BoundPods {
    /// Takes in what the cache of pods says.
    pub(super) fn change(&self, change: &Change<PodFacts>) {
        let (old, new) = match change {
            Change::Applied { old, new } => (old.as_deref(), Some(&**new)),
            Change::Deleted(pod) => (Some(&**pod), None),
            Change::Synced => return,
        };
        let quota = |pod: Option<&PodFacts>| pod.map(|pod| pod.quota.clone());
        if old.is_some() && quota(old) == quota(new) {
            return;
        }
        let mut index = self.0.write();
        if let Some(old) = old {
            index.remove(old);
        }
        if let Some(new) = new {
            index.add(new);
        }
    }
}

impl Index {
    fn add(&mut self, pod: &PodFacts) {
        if !pod.quota.is_empty() {
            let labelled = self.labelled.entry(pod.quota.clone()).or_default();
            labelled.insert(pod.key.clone());
        }
        let namespace = self.namespaces.entry(pod.key.namespace.clone());
        namespace.or_default().insert(pod.key.name.as_str().into());
    }

    fn remove(&mut self, pod: &PodFacts) {
        if let Some(labelled) = self.labelled.get_mut(&pod.quota) {
            labelled.remove(&pod.key);
            if labelled.is_empty() {
                self.labelled.remove(&pod.quota);
            }
        }
        if let Some(names) = self.namespaces.get_mut(&pod.key.namespace) {
            names.remove(pod.key.name.as_str());
            if names.is_empty() {
                self.namespaces.remove(&pod.key.namespace);
            }
        }
    }
}

impl Bound for BoundPods {
    fn labelled(&self, quota: &str) -> Vec<String> {
        let index = self.0.read();
        let pods = index.labelled.get(quota).into_iter().flatten();
        pods.map(|pod| pod.name.clone()).collect()
    }

    fn any_in(&self, namespace: &str) -> bool {
        self.0.read().namespaces.contains_key(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Keep;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;
    use std::sync::Arc;

    fn pod(namespace: &str, name: &str, quota: &str) -> Arc<PodFacts> {
        let pod = json!({"metadata": {"namespace": namespace, "name": name,
            "labels": {koord_api::labels::POD_QUOTA_NAME: quota}}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        Arc::new(PodFacts::of(&pod, Keep::default()))
    }

    #[test]
    fn a_pod_counts_for_its_quota_and_its_namespace_until_it_goes() {
        let bound = BoundPods::default();
        let apply = |old: Option<&Arc<PodFacts>>, new: &Arc<PodFacts>| {
            let (old, new) = (old.cloned(), new.clone());
            bound.change(&Change::Applied { old, new });
        };
        let (first, moved, other) = (pod("a", "p", "q"), pod("a", "p", "r"), pod("a", "o", ""));
        for pod in [&first, &other, &first] {
            apply(None, pod);
        }
        apply(Some(&first), &first);
        assert_eq!(bound.labelled("q"), ["p"]);
        apply(Some(&first), &moved);
        assert_eq!(
            (bound.labelled("q"), bound.labelled("r")),
            (vec![], vec!["p".to_owned()])
        );
        bound.change(&Change::Deleted(moved));
        assert!(bound.any_in("a") && !bound.any_in("b"));
        assert!(bound.labelled("").is_empty());
        bound.change(&Change::Deleted(other));
        assert!(!bound.any_in("a"));
        assert!(bound.0.read().labelled.is_empty());
    }
}
