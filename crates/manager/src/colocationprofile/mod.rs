//! Applies ClusterColocationProfiles to pending pods that were created before the profile, which the webhook
//! could not mutate.
//!
//! Only labels, annotations, QoS class, sub-priority and patch of a profile are applied; scheduler, priority
//! class and resources of an existing pod cannot be changed. Source: Koordinator
//! `pkg/controller/colocationprofile`.

mod flags;
mod plan;

pub use flags::{ProfileFlags, ProfileOptions};

use crate::cache::ObjectKind;
use crate::controller::{Action, Controller, ControllerSpec};
use crate::replica::Replica;
use crate::webhook::profile;
use crate::webhook::strategic_pod;
use k8s_openapi::api::core::v1::Pod;
use koord_api::config::ClusterColocationProfile;
use koord_kube::events::{self, Severity};
use koord_kube::queue::WorkQueue;
use koord_kube::{Api, Change, ObjectKey, patch};
use parking_lot::Mutex;
use plan::{AppliedVersions, TokenBucket};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The controller.
pub(crate) const SPEC: ControllerSpec = ControllerSpec {
    name: "colocationprofile",
    gate: Some("ColocationProfileController"),
    needs: &[
        ObjectKind::Profiles,
        ObjectKind::Pods,
        ObjectKind::Namespaces,
    ],
    wants: &[],
    build,
};

/// State kept between reconciles.
struct ProfileState {
    budget: TokenBucket,
    applied: AppliedVersions,
}

fn build(replica: &Arc<Replica>) -> Controller {
    let queue = WorkQueue::default();
    let profiles = queue.clone();
    replica.caches.profiles.on_change(move |change| {
        if let Change::Applied { new, .. } = change {
            profiles.add(ObjectKey::from_object(&**new));
        }
    });
    let options = &replica.options.colocation_profile;
    let state = Arc::new(Mutex::new(ProfileState {
        budget: TokenBucket::new(options.qps, options.burst),
        applied: AppliedVersions::default(),
    }));
    let own = replica.clone();
    SPEC.controller(replica, queue, move |key| {
        reconcile(own.clone(), state.clone(), key)
    })
}

/// Applies a profile to the pending pods that it matches.
async fn reconcile(
    replica: Arc<Replica>,
    state: Arc<Mutex<ProfileState>>,
    key: ObjectKey,
) -> Result<Action, crate::Error> {
    let options = &replica.options.colocation_profile;
    let Some(profile) = replica.caches.profiles.get(&key) else {
        return Ok(Action::Done);
    };
    if !plan::is_managed(&profile, options.by_default) {
        return Ok(Action::Done);
    }
    let pods = replica.caches.pods.list();
    let namespace = |name: &str| {
        let namespace = replica.caches.namespaces.get(&ObjectKey::new("", name))?;
        Some(namespace.metadata.labels.clone().unwrap_or_default())
    };
    let chosen = match plan::pods(&profile, &pods, namespace) {
        Ok(chosen) => chosen,
        Err(error) => {
            warn(&replica, &profile, "InvalidProfile", &error.to_string());
            // A change of the profile requeues it.
            return Ok(Action::Done);
        }
    };
    let version = profile
        .metadata
        .resource_version
        .as_deref()
        .unwrap_or_default();
    for pod in chosen {
        let uid = pod.uid().unwrap_or_default();
        {
            let now = Instant::now();
            let mut state = state.lock();
            if state.applied.has(version, uid, now, options.force_update) {
                continue;
            }
            if !state.budget.take(now) {
                // The remaining pods are updated in the next round.
                break;
            }
        }
        match apply(&replica, &profile, &pod.key, uid).await {
            Ok(()) => {
                let mut state = state.lock();
                state
                    .applied
                    .add(version, uid, Instant::now(), options.force_update);
            }
            Err(problem) => {
                let message = format!("pod {}: {problem}", pod.key);
                warn(&replica, &profile, "PodUpdateFailed", &message);
            }
        }
    }
    // At least one second apart, whatever the flag's value.
    Ok(Action::RequeueAfter(
        options.interval.max(Duration::from_secs(1)),
    ))
}

/// Applies the profile to one pod if the pod still exists and is pending.
async fn apply(
    replica: &Replica,
    profile: &ClusterColocationProfile,
    key: &ObjectKey,
    uid: &str,
) -> Result<(), String> {
    let pods: Api<Pod> = Api::namespaced(replica.client.clone(), &key.namespace);
    let read = pods
        .get_opt(&key.name)
        .await
        .map_err(|error| error.to_string())?;
    let is_current = |pod: &Pod| pod.metadata.uid.as_deref() == Some(uid) && plan::is_pending(pod);
    let Some(pod) = read.filter(is_current) else {
        return Ok(());
    };
    let old = serde_json::to_value(pod).map_err(|error| error.to_string())?;
    let new = plan::applied(profile, &old, strategic_pod)?;
    let Some(change) = patch::diff(&old, &new).map_err(|error| error.to_string())? else {
        return Ok(());
    };
    let written = patch::retry_on_conflict(|| patch::merge(&pods, &key.name, &change)).await;
    match written {
        Ok(_) => {
            tracing::info!(profile = profile::name(profile), pod = %key, %change, "applied profile to pod");
            Ok(())
        }
        Err(error) if patch::is_not_found(&error) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn warn(replica: &Replica, profile: &ClusterColocationProfile, reason: &str, message: &str) {
    tracing::warn!(profile = profile::name(profile), reason, message);
    let about = events::reference(profile);
    replica
        .recorder
        .event(about, Severity::Warning, reason, message);
}
