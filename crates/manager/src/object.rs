//! Applies planned changes to objects that exist once per node: NodeMetric and NodeSLO.

use koord_kube::{Api, Decode, api, kube_core, patch};
use serde::Serialize;
use serde_json::json;
use std::fmt::Debug;

/// The change to one node's object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ObjectChange<S> {
    Nothing,
    Create(S),
    Update(S),
    Delete,
}

/// Applies `action`. `old` is the spec of the existing object, `make` builds a new object. A conflict with
/// another writer is no failure: its event requeues the node.
pub(crate) async fn apply<K, S>(
    objects: &Api<K>,
    name: &str,
    old: Option<&S>,
    action: ObjectChange<S>,
    make: fn(&str, S) -> K,
) -> Result<(), crate::Error>
where
    K: kube_core::Resource<DynamicType = ()> + Serialize + Decode,
    S: Clone + Default + Serialize,
{
    match action {
        ObjectChange::Nothing => {}
        ObjectChange::Create(spec) => {
            let object = make(name, spec);
            let created = objects.create(&api::PostParams::default(), &object).await;
            ignore_conflict(created)?;
        }
        ObjectChange::Update(spec) => {
            let old = old.cloned().unwrap_or_default();
            if let Some(change) = patch::diff(&old, &spec)? {
                patch::merge(objects, name, &json!({ "spec": change })).await?;
                let kind = K::kind(&());
                tracing::info!(%kind, node = name, %change, "updated object");
            }
        }
        ObjectChange::Delete => {
            ignore_not_found(objects.delete(name, &Default::default()).await)?;
        }
    }
    Ok(())
}

/// Ignores a conflict: another client wrote first, and the event of that write requeues the node.
fn ignore_conflict<T>(result: Result<T, koord_kube::Error>) -> Result<(), koord_kube::Error> {
    match result {
        Err(error) if !patch::is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Ignores a "not found" error: the object is already deleted.
pub(crate) fn ignore_not_found<T>(
    result: Result<T, koord_kube::Error>,
) -> Result<(), koord_kube::Error> {
    match result {
        Err(error) if !patch::is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}
