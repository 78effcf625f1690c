//! Lookups of the webhook handlers in the caches of the replica.

use super::pod::ProfileLookup;
use super::profile::{self, Priority};
use crate::cache::ObjectKind;
use crate::facts::RecommendationFacts;
use crate::replica::Replica;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use koord_api::config::ClusterColocationProfile;
use koord_kube::events::{self, Severity};
use koord_kube::kube_core::Resource;
use koord_kube::{Api, Change, ObjectKey};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Waits for the caches: a pod must not miss a profile because the manager has just started. The timeout of
/// the admission request ends the wait.
impl ProfileLookup for Arc<Replica> {
    fn profiles(&self) -> BoxFuture<'_, Vec<Arc<ClusterColocationProfile>>> {
        Box::pin(async move {
            self.wait_for(&[], &[ObjectKind::Profiles]).await;
            self.caches.profiles.list()
        })
    }

    fn recommendations(&self) -> BoxFuture<'_, Vec<Arc<RecommendationFacts>>> {
        Box::pin(async move {
            self.wait_for(&[], &[ObjectKind::Recommendations]).await;
            self.caches.recommendations.list()
        })
    }

    fn namespace_labels<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Option<BTreeMap<String, String>>> {
        Box::pin(async move {
            self.wait_for(&[], &[ObjectKind::Namespaces]).await;
            if let Some(found) = self.caches.namespaces.get(&ObjectKey::new("", name)) {
                return Some(found.metadata.labels.clone().unwrap_or_default());
            }
            let namespace: Namespace = read(self, name).await?;
            Some(namespace.metadata.labels.unwrap_or_default())
        })
    }

    fn priority_class<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Priority>> {
        Box::pin(async move {
            self.wait_for(&[], &[ObjectKind::PriorityClasses]).await;
            let class = self.caches.priority_classes.get(&ObjectKey::new("", name));
            let class = match class {
                Some(class) => class,
                None => Arc::new(read(self, name).await?),
            };
            Some(Priority {
                value: class.value,
                preemption_policy: class.preemption_policy.clone(),
            })
        })
    }
}

/// Reads an object that is not in the cache: it may have been created only a moment before the pod that
/// refers to it.
async fn read<K>(replica: &Replica, name: &str) -> Option<K>
where
    K: Resource<DynamicType = ()> + koord_kube::Decode,
{
    let objects: Api<K> = Api::all(replica.client.clone());
    let result = objects.get_opt(name).await.inspect_err(|error| {
        let kind = K::kind(&());
        tracing::warn!(%kind, name, %error, "failed to read object that is not cached");
    });
    result.ok().flatten()
}

/// Records an event for each new or changed profile that cannot be applied, before a pod matches it.
pub(super) fn report_profiles(replica: &Arc<Replica>) {
    let recorder = replica.recorder.clone();
    let weak = Arc::downgrade(replica);
    replica.caches.profiles.on_change(move |change| {
        let Change::Applied { old, new } = change else {
            return;
        };
        if old.as_ref().is_some_and(|old| old.spec == new.spec) {
            return;
        }
        for problem in profile::problems(new) {
            let (about, problem) = (events::reference(&**new), problem.to_string());
            recorder.event(about, Severity::Warning, "InvalidProfile", problem);
        }
        let has_class = !new.spec.priority_class_name.is_empty();
        if let Some(replica) = weak.upgrade().filter(|_| has_class) {
            tokio::spawn(report_missing_class(replica, new.clone()));
        }
    });
}

/// Records an event on a profile whose PriorityClass does not exist, once the cache of classes is synced.
async fn report_missing_class(replica: Arc<Replica>, profile: Arc<ClusterColocationProfile>) {
    let stop = replica.stop.clone();
    let class = tokio::select! {
        () = stop.cancelled() => return,
        class = replica.priority_class(&profile.spec.priority_class_name) => class,
    };
    if class.is_none() {
        let (about, problem) = (
            events::reference(&*profile),
            profile::missing_class(&profile),
        );
        let recorder = &replica.recorder;
        recorder.event(
            about,
            Severity::Warning,
            "InvalidProfile",
            problem.to_string(),
        );
    }
}
