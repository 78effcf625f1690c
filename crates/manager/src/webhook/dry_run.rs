//! Decisions of the pod webhooks in a dry run: what they would do with the pods that exist.
//!
//! Nothing is registered with the API server, so no request arrives. Instead, each pod is reviewed as if it were
//! created now. A pod that went through the same webhooks before needs no change.

use super::{Deps, WebhookSpec};
use crate::dry_run::DryRun;
use crate::replica::Replica;
use k8s_openapi::api::core::v1::Pod;
use koord_kube::webhook::{Answer, Handler, Kind, Operation, Request, Resource, User};
use koord_kube::{Cacheable as _, Change, Informer, Scope, Text};
use serde_json::Value;
use std::sync::Arc;

/// Name of the reviewed pods in the report.
const PODS: &str = "pods/admission";

/// Reviews pods with the handlers of `rows` until the replica stops.
pub(super) fn start(
    replica: &Arc<Replica>,
    deps: &Deps,
    rows: &[&'static WebhookSpec],
    report: Arc<DryRun>,
) {
    let handler = |path: &str| {
        let row = rows.iter().find(|row| row.path == path)?;
        Some((row.caches, row.handler?(deps)))
    };
    let reviewers = [handler("/mutate-pod"), handler("/validate-pod")];
    let own = replica.clone();
    tokio::spawn(async move {
        let mut handlers = Vec::new();
        for (caches, handler) in reviewers.into_iter().flatten() {
            own.wait_for(&[], caches).await;
            handlers.push(handler);
        }
        let text = |mut pod: Pod| {
            pod.status = None;
            pod.metadata.managed_fields = None;
            Text::encode(pod)
        };
        let (client, stop) = (own.client.clone(), own.stop.clone());
        let mut pods = Informer::start_mapped(client, Scope::default(), text, stop);
        while let Some(change) = pods.changes.recv().await {
            match change {
                Change::Applied { old: None, new } => review(&handlers, &new.read(), &report).await,
                Change::Applied { .. } | Change::Synced => {}
                Change::Deleted(pod) => {
                    let (namespace, name) = pod.names();
                    report.resolve(PODS, namespace, name);
                }
            }
        }
    });
}

/// Reviews one pod as if it were created now, and records the decision.
async fn review(handlers: &[Arc<dyn Handler>], pod: &Pod, report: &DryRun) {
    let Ok(before) = serde_json::to_value(pod) else {
        return;
    };
    let name = pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let mut after = before.clone();
    let mut refusal = None;
    for handler in handlers {
        match handler.handle(request(pod, &after)).await {
            Answer::Allow { .. } => {}
            Answer::Mutate { object, .. } => after = object,
            Answer::Deny { message, .. } => {
                refusal = Some(message);
                break;
            }
        }
    }
    let decision = match &refusal {
        None => Ok(&after),
        Some(message) => Err(message.as_str()),
    };
    report.record_admission(PODS, (&namespace, &name), &before, decision);
}

/// Creates the request that the API server would send for `object`. The user may write every annotation, as the
/// pod's author is not known any more.
fn request(pod: &Pod, object: &Value) -> Request {
    let of = |text: &str| text.to_owned();
    Request {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        kind: Kind {
            version: of("v1"),
            kind: of("Pod"),
            ..Kind::default()
        },
        resource: Resource {
            version: of("v1"),
            resource: of("pods"),
            ..Resource::default()
        },
        sub_resource: String::new(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        operation: Operation::Create,
        user: User {
            name: of("koord-manager:dry-run"),
            groups: vec![of("system:masters")],
            ..User::anonymous()
        },
        object: Some(object.clone()),
        old_object: None,
        dry_run: true,
    }
}
