//! Adoption and release of dependents: a controller adopts objects that its selector matches and that have no
//! controller, and releases those it controls that no longer match.

use super::{objects, pods};
use crate::rest::{Api, meta};
use crate::store::{Entry, Key};
use koord_kinds::Resource;
use koord_kinds::selector::LabelSelector;
use koord_kinds::status::ApiError;
use serde_json::{Value, json};
use std::sync::Arc;

/// Returns the selector of a workload; an invalid or empty one matches nothing.
fn selector(resource: &Resource, owner: &Value) -> LabelSelector {
    let provided = meta::at(owner, &["spec", "selector"]);
    let read = if resource.is("", "replicationcontrollers") {
        Ok(LabelSelector::from_map(provided.unwrap_or(&Value::Null)))
    } else {
        LabelSelector::from_json(provided)
    };
    match read {
        Ok(selector) if !selector.is_everything() => selector,
        _ => LabelSelector::nothing(),
    }
}

fn controlled(object: &Value) -> bool {
    meta::owners(object).iter().any(|o| o.controller)
}

/// Adopts and releases objects of the kind `of` so that `owner` controls exactly those its selector matches.
/// Only objects without owners for which `fit` is true are adopted.
pub(super) async fn claim(
    api: &Api,
    resource: &Resource,
    owner: &Value,
    of: &Arc<Resource>,
    fit: &(dyn Fn(&Key) -> bool + Sync),
) -> Result<(), ApiError> {
    if meta::deleting(owner) {
        return Ok(());
    }
    let (namespace, uid) = (meta::namespace(owner), meta::uid(owner));
    let selector = selector(resource, owner);
    for entry in api.store().owned(&of.table, uid) {
        if !selector.matches(&entry.index) {
            release(api, of, &entry.key, uid).await?;
        }
    }
    let free = |e: &Entry| e.index.owners.is_empty() && selector.matches(&e.index) && fit(&e.key);
    for entry in api.store().all(&of.table, Some(namespace), &free) {
        let reference = pods::controller_reference(resource, owner);
        let result = api
            .edit(of, None, &entry.key, |old| {
                let is_unavailable = meta::deleting(old) || pods::ended(old) || controlled(old);
                if is_unavailable || meta::uid(old) != &*entry.index.uid {
                    return Ok(None);
                }
                let mut new = old.clone();
                let metadata = meta::section(&mut new, "metadata");
                let owners = metadata.entry("ownerReferences").or_insert(json!([]));
                if let Some(list) = owners.as_array_mut() {
                    list.push(reference.clone());
                }
                Ok(Some(new))
            })
            .await;
        ignore_not_found(result.map(drop))?;
    }
    Ok(())
}

async fn release(api: &Api, of: &Arc<Resource>, key: &Key, uid: &str) -> Result<(), ApiError> {
    let controls = |o: &Value| {
        meta::text(o, &["uid"]) == uid && o.get("controller").and_then(Value::as_bool) == Some(true)
    };
    ignore_not_found(objects::drop_owners(api, of, key, controls).await)
}

fn ignore_not_found(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(e) if e.code == 404 => Ok(()),
        other => other,
    }
}

/// Returns the keys of the workloads of the kind `plural` that would adopt an entry; none if it has an owner.
pub(super) fn candidates(api: &Api, entry: &Entry, group: &str, plural: &str) -> Vec<Key> {
    if !entry.index.owners.is_empty() {
        return Vec::new();
    }
    let Ok(resource) = api.builtin(group, "v1", plural) else {
        return Vec::new();
    };
    api.entries(&resource, Some(&entry.key.namespace))
        .iter()
        .filter(|owner| selector(&resource, &owner.value()).matches(&entry.index))
        .map(|owner| owner.key.clone())
        .collect()
}
