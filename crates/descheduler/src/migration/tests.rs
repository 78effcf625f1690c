//! Upstream's test tables and additional cases.

mod arbitration;
mod arguments;
mod making;
mod rates;
mod rules;
mod steps;

use crate::migration::args::MigrationControllerArgs;
use crate::state::{Snapshot, Workload};
use crate::testing::merged;
use koord_api::scheduling::PodMigrationJob;
use serde_json::{Value, json};
use std::sync::Arc;

/// Returns arguments modified by `over`.
pub(crate) fn args(over: Value) -> MigrationControllerArgs {
    serde_json::from_value::<MigrationControllerArgs>(over)
        .unwrap()
        .completed()
}

/// Returns a job that moves pod `default/POD`, modified by `over`.
pub(crate) fn job(name: &str, pod: &str, over: Value) -> Arc<PodMigrationJob> {
    let job = json!({
        "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "PodMigrationJob",
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T12:00:00Z"},
        "spec": {"podRef": {"namespace": "default", "name": pod, "uid": format!("uid-{pod}")}},
    });
    Arc::new(serde_json::from_value(merged(job, over)).unwrap())
}

/// Returns a job that has passed the arbitration.
fn passed(name: &str, pod: &str) -> Arc<PodMigrationJob> {
    let annotations = json!({"descheduler.koordinator.sh/passed-arbitration": "true"});
    job(name, pod, json!({"metadata": {"annotations": annotations}}))
}

/// Sets the desired replicas of workload `uid`.
pub(crate) fn replicas(snapshot: &mut Snapshot, uid: &str, replicas: i64) {
    let workload = Workload::Known {
        replicas,
        controllers: vec![uid.into()],
        deleting: false,
    };
    snapshot.workloads.insert(uid.into(), workload);
}
