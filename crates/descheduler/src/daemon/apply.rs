//! Carries out a plan.

use super::view::ClusterView;
use crate::framework::{Action, Intent, Move, Plan};
use crate::state::{PodInfo, Snapshot};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use koord_api::scheduling::PodMigrationJob;
use koord_kube::api::PostParams;
use koord_kube::evict::{EvictOptions, EvictOutcome, evict_pod};
use koord_kube::{Api, Client, patch};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Outcome of an action: what was done, or the error.
pub(super) type ActionOutcome = Result<String, String>;

/// State of draining a node.
#[derive(Debug, Default)]
struct Drain {
    /// True if the node was made unschedulable here.
    cordoned: bool,
    failed: bool,
}

/// Carries out `plan` in order until `stop`; returns the outcomes in the order of its actions. Nothing is
/// retried: the next cycle plans what is left.
pub(super) async fn apply(
    (client, view): (&Client, &ClusterView),
    snapshot: &Snapshot,
    plan: &Plan,
    stop: &CancellationToken,
) -> Vec<ActionOutcome> {
    let mut drains = FxHashMap::<Arc<str>, Drain>::default();
    let mut outcomes = Vec::with_capacity(plan.actions.len());
    for action in &plan.actions {
        let outcome = if stop.is_cancelled() {
            Err("not done: this process stops or does not lead any more".to_owned())
        } else {
            act((client, view), snapshot, action, &mut drains).await
        };
        outcomes.push(outcome);
    }
    outcomes
}

/// Carries out one action. A node whose draining fails is made schedulable again, and its other moves are
/// skipped.
async fn act(
    (client, view): (&Client, &ClusterView),
    snapshot: &Snapshot,
    action: &Action,
    drains: &mut FxHashMap<Arc<str>, Drain>,
) -> ActionOutcome {
    match action {
        Action::Cordon { node, .. } => {
            if snapshot.node(node).is_some_and(|node| node.unschedulable) {
                return Ok("was unschedulable already".to_owned());
            }
            let drain = drains.entry(node.clone()).or_default();
            let cordoned = set_unschedulable(client, node, true).await;
            (drain.cordoned, drain.failed) = (cordoned.is_ok(), cordoned.is_err());
            cordoned
        }
        Action::DeletionCost { pod, cost, .. } => set_deletion_cost(client, pod, *cost).await,
        Action::Move(planned) => {
            let Some(node) = &planned.drains else {
                return execute_move((client, view), planned).await;
            };
            if drains.get(node).is_some_and(|drain| drain.failed) {
                return Err(format!("not done: node {node} is not cleared after all"));
            }
            let outcome = execute_move((client, view), planned).await;
            if outcome.is_err() {
                let drain = drains.entry(node.clone()).or_default();
                drain.failed = true;
                if std::mem::take(&mut drain.cordoned)
                    && let Err(error) = set_unschedulable(client, node, false).await
                {
                    tracing::warn!(%node, error, "failed to make node schedulable again");
                }
            }
            outcome
        }
    }
}

/// Carries out a planned move: creates its job, or evicts the pod.
async fn execute_move((client, view): (&Client, &ClusterView), planned: &Move) -> ActionOutcome {
    let pod = &planned.pod;
    match &planned.intent {
        None | Some(Intent::Nothing) => Ok("nothing is done in a dry run".to_owned()),
        Some(Intent::Job(job)) => {
            let jobs = Api::<PodMigrationJob>::all(client.clone());
            let created = jobs.create(&PostParams::default(), job).await;
            let created = created.map_err(|error| format!("PodMigrationJob: {error}"))?;
            // The next cycle must count the job even if the informer has not delivered it yet.
            view.jobs.write_cache().update(&created);
            let name = created.metadata.name.unwrap_or_default();
            Ok(format!("PodMigrationJob {name} is created"))
        }
        Some(Intent::Evict(options)) => {
            let options = EvictOptions {
                uid: Some(pod.uid.to_string()),
                grace_period_seconds: grace_period(options.as_ref())?,
                ..EvictOptions::default()
            };
            match evict_pod(client, &pod.namespace, &pod.name, &options).await {
                Ok(EvictOutcome::Evicted) => Ok("is evicted".to_owned()),
                // A webhook may deny the eviction with the same response.
                Ok(EvictOutcome::Gone { message }) => {
                    match super::still_exists(client, pod).await {
                        Ok(false) => Ok("was gone already".to_owned()),
                        Ok(true) => Err(format!("eviction: {message}")),
                        Err(error) => Err(format!("eviction: {message}; {error}")),
                    }
                }
                Ok(EvictOutcome::Blocked { message, .. }) => Err(format!("eviction: {message}")),
                Err(error) => Err(format!("eviction: {error}")),
            }
        }
    }
}

/// Returns the grace period in `options`. Other options are an error, so that a pod is never evicted in
/// another way than requested.
fn grace_period(options: Option<&DeleteOptions>) -> Result<Option<i64>, String> {
    let Some(options) = options else {
        return Ok(None);
    };
    let grace_period = options.grace_period_seconds;
    let unsupported = DeleteOptions {
        grace_period_seconds: None,
        api_version: None,
        kind: None,
        ..options.clone()
    };
    if unsupported == DeleteOptions::default() {
        return Ok(grace_period);
    }
    Err(format!(
        "deleteOptions: only gracePeriodSeconds can be asked for, not {}",
        json!(unsupported)
    ))
}

async fn set_unschedulable(client: &Client, node: &str, to: bool) -> ActionOutcome {
    let change = json!({"spec": {"unschedulable": to}});
    match patch::merge_node(client, node, &change).await {
        Ok(_) => Ok("is unschedulable".to_owned()),
        Err(error) => Err(format!("spec.unschedulable: {error}")),
    }
}

async fn set_deletion_cost(client: &Client, pod: &PodInfo, cost: i32) -> ActionOutcome {
    let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace);
    // The UID is a precondition: another pod of this name keeps its own cost.
    let change = json!({"metadata": {
        "uid": pod.uid,
        "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost.to_string()},
    }});
    match patch::merge(&pods, &pod.name, &change).await {
        Ok(_) => Ok(format!("deletion cost is {cost}")),
        Err(error) => Err(format!("deletion cost: {error}")),
    }
}
