//! ControllerRevisions of StatefulSets and DaemonSets: their earlier templates, for `kubectl rollout history`
//! and `undo`.

use super::{objects, pods};
use crate::rest::{Api, meta};
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::{Value, json};

/// Label of a revision with the hash of its template.
const HASH_LABEL: &str = "controller-revision-hash";

fn number(revision: &Value) -> i64 {
    revision
        .get("revision")
        .and_then(Value::as_i64)
        .unwrap_or(0)
}

/// Records that `owner` now has `template`, whose hash is `hash`. Deletes the oldest revisions beyond the
/// history limit except those for which `used` is true because a pod still has them.
pub(super) async fn record(
    api: &Api,
    resource: &Resource,
    owner: &Value,
    template: &Value,
    hash: &str,
    used: impl Fn(&str) -> bool,
) -> Result<(), ApiError> {
    let revisions = api.builtin("apps", "v1", "controllerrevisions")?;
    let namespace = meta::namespace(owner);
    let mut cached = pods::owned(api, &revisions, namespace, meta::uid(owner));
    let newest = cached.iter().map(|(_, r)| number(r)).max().unwrap_or(0);
    let name = format!("{}-{hash}", meta::name(owner));
    match cached.iter().find(|(e, _)| *e.key.name == *name) {
        Some((_, revision)) if number(revision) == newest => {}
        Some((entry, _)) => {
            api.edit(&revisions, None, &entry.key, |old| {
                let mut new = old.clone();
                new["revision"] = newest.saturating_add(1).into();
                Ok(Some(new))
            })
            .await?;
        }
        None => {
            let mut labels = meta::at(template, &["metadata", "labels"])
                .cloned()
                .unwrap_or_else(|| json!({}));
            meta::as_object(&mut labels).insert(HASH_LABEL.to_owned(), hash.into());
            let mut data = template.clone();
            meta::as_object(&mut data).insert("$patch".to_owned(), "replace".into());
            let revision = json!({
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "name": name,
                    "labels": labels,
                    "ownerReferences": [pods::controller_reference(resource, owner)],
                },
                "data": { "spec": { "template": data } },
                "revision": newest.saturating_add(1),
            });
            match objects::create(api, &revisions, namespace, revision).await {
                // The existing revision belongs to a deleted owner of the same name; a later reconcile
                // handles it.
                Err(e) if e.code != 409 => return Err(e),
                _ => {}
            }
        }
    }
    let limit = meta::at(owner, &["spec", "revisionHistoryLimit"])
        .and_then(Value::as_u64)
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(10);
    cached.retain(|(entry, revision)| {
        let of = meta::text(revision, &["metadata", "labels", HASH_LABEL]);
        *entry.key.name != *name && !used(of)
    });
    cached.sort_by_key(|(_, revision)| number(revision));
    let surplus = cached.len().saturating_sub(limit);
    for (entry, _) in &cached[..surplus] {
        pods::delete(api, &revisions, entry).await?;
    }
    Ok(())
}
