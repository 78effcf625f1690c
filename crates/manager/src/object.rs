//! One object per node, kept as a plan says: what NodeMetric and NodeSLO have in common.

use koord_kube::{Api, Decode, api, kube_core, patch};
use serde::Serialize;
use serde_json::json;
use std::fmt::Debug;

/// What to do about one node's object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ObjectChange<S> {
    Nothing,
    Create(S),
    Update(S),
    Delete,
}

/// Does it: `old` is the spec of the object that exists, `make` makes a new object. That somebody
/// else was faster is no failure: the next event brings the object back here.
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
                tracing::info!(%kind, node = name, %change, "object changed");
            }
        }
        ObjectChange::Delete => {
            ignore_not_found(objects.delete(name, &Default::default()).await)?;
        }
    }
    Ok(())
}

/// A conflict means that somebody was faster; the event of it brings the object back here.
fn ignore_conflict<T>(result: Result<T, koord_kube::Error>) -> Result<(), koord_kube::Error> {
    match result {
        Err(error) if !patch::is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}

/// What is gone need not be deleted.
pub(crate) fn ignore_not_found<T>(
    result: Result<T, koord_kube::Error>,
) -> Result<(), koord_kube::Error> {
    match result {
        Err(error) if !patch::is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}
