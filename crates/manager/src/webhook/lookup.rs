//! What handlers look up, from the caches of the replica.

use super::pod::Lookup;
use super::profile::Priority;
use crate::cache::Kind;
use crate::replica::Replica;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use koord_api::config::ClusterColocationProfile;
use koord_kube::{Api, ObjectKey};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A replica waits for its caches: a pod must not miss a profile because the manager has just
/// started. The question's time limit ends the wait.
impl Lookup for Arc<Replica> {
    fn profiles(&self) -> BoxFuture<'_, Vec<Arc<ClusterColocationProfile>>> {
        Box::pin(async move {
            self.wait_for(&[], &[Kind::Profiles]).await;
            self.caches.profiles.list()
        })
    }

    fn namespace_labels<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Option<BTreeMap<String, String>>> {
        Box::pin(async move {
            self.wait_for(&[], &[Kind::Namespaces]).await;
            if let Some(found) = self.caches.namespaces.get(&ObjectKey::new("", name)) {
                return Some(found.metadata.labels.clone().unwrap_or_default());
            }
            // Perhaps it is newer than the cache.
            let api: Api<Namespace> = Api::all(self.client.clone());
            match api.get_opt(name).await {
                Ok(found) => found.map(|found| found.metadata.labels.unwrap_or_default()),
                Err(error) => {
                    tracing::warn!(namespace = name, %error, "labels are not known");
                    None
                }
            }
        })
    }

    fn priority_class<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Option<Priority>> {
        Box::pin(async move {
            self.wait_for(&[], &[Kind::PriorityClasses]).await;
            let found = self
                .caches
                .priority_classes
                .get(&ObjectKey::new("", name))?;
            Some(Priority {
                value: found.value,
                preemption_policy: found.preemption_policy.clone(),
            })
        })
    }
}
