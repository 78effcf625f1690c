//! Deletion: preconditions, grace period, finalizers, propagation.

use super::admission::{AdmissionAttributes, Operation, Options};
use super::check::store_error;
use super::options::{DeleteOptions, Propagation};
use super::query::{Query, check_dry_run};
use super::{Api, meta};
use crate::store::{Entry, Key, StoreError};
use koord_kinds::Resource;
use koord_kinds::status::{ApiError, FieldError};
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;

/// Finalizer of a foreground deletion.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an orphaning deletion.
pub(crate) const ORPHAN: &str = "orphan";
/// Outcome of a delete.
#[derive(Debug)]
pub(crate) enum DeleteOutcome {
    /// The object is gone; holds its last state.
    Gone(Arc<Entry>),
    /// The object waits for its grace period or finalizers.
    Pending(Arc<Entry>),
}

impl DeleteOptions {
    /// Parses the options from the body; the query adds those that the body lacks.
    pub(super) fn parse(body: &Value, query: &Query) -> Result<Self, ApiError> {
        let bad = |field: &str, value: &Value| {
            ApiError::bad_request(format!(
                "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: json: cannot \
                 unmarshal {value} into field DeleteOptions.{field}"
            ))
        };
        if !body.is_null() && !body.is_object() {
            return Err(bad("", body));
        }
        let string = |value: Option<&Value>, field: &str| match value {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(s)) => Ok(Some(s.clone())),
            Some(other) => Err(bad(field, other)),
        };
        let kind = meta::text(body, &["kind"]);
        if !kind.is_empty() && kind != "DeleteOptions" {
            return Err(ApiError::bad_request(format!(
                "{kind} cannot be handled as a DeleteOptions"
            )));
        }
        let grace = match body.get("gracePeriodSeconds") {
            None | Some(Value::Null) => query.number("gracePeriodSeconds")?,
            Some(v) => Some(v.as_i64().ok_or_else(|| bad("gracePeriodSeconds", v))?),
        };
        let mut dry_run = query.dry_run("DeleteOptions")?;
        match body.get("dryRun") {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) => {
                for value in list {
                    let text = value.as_str().ok_or_else(|| bad("dryRun", value))?;
                    check_dry_run("DeleteOptions", text)?;
                    dry_run |= text == "All";
                }
            }
            Some(other) => return Err(bad("dryRun", other)),
        }
        let policy = match string(body.get("propagationPolicy"), "propagationPolicy")? {
            Some(p) if !p.is_empty() => Some(p),
            _ => query.get("propagationPolicy").map(str::to_owned),
        };
        let orphan = match body.get("orphanDependents") {
            None | Some(Value::Null) => query.flag("orphanDependents"),
            Some(v) => Some(v.as_bool().ok_or_else(|| bad("orphanDependents", v))?),
        };
        let propagation = match (policy.as_deref(), orphan) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (None, None) => None,
            (Some(other), _) => {
                let e = FieldError::not_supported(
                    "propagationPolicy",
                    other,
                    &["Background", "Foreground", "Orphan", "nil"],
                );
                return Err(super::query::invalid_option("DeleteOptions", e));
            }
        };
        let preconditions = body.get("preconditions").unwrap_or(&Value::Null);
        Ok(Self {
            grace_period_seconds: grace.map(|g| if g < 0 { 1 } else { g }),
            uid: string(preconditions.get("uid"), "preconditions.uid")?,
            resource_version: string(
                preconditions.get("resourceVersion"),
                "preconditions.resourceVersion",
            )?,
            propagation,
            dry_run,
            ..Self::default()
        })
    }

    /// Checks the preconditions against an object's uid and version.
    ///
    /// # Errors
    /// 409 with both values.
    pub(super) fn check(
        &self,
        resource: &Resource,
        name: &str,
        uid: &str,
        version: &str,
    ) -> Result<(), ApiError> {
        for (what, expected, have) in [
            ("UID", self.uid.as_deref(), uid),
            ("ResourceVersion", self.resource_version.as_deref(), version),
        ] {
            if let Some(expected) = expected.filter(|w| *w != have) {
                let (group, plural) = (&*resource.group, &*resource.plural);
                let e = ApiError::precondition(group, plural, name, what, expected, have);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Returns the warning about a default propagation that the client may not have intended.
    pub(super) fn warning(&self, resource: &Resource) -> Option<String> {
        let unsaid = self.propagation.is_none() && resource.is("batch", "jobs");
        unsaid.then(|| PODS_STAY.to_owned())
    }

    /// Returns options that delete only the object with this uid, without a grace period.
    pub(crate) fn now(uid: &str) -> Self {
        Self {
            grace_period_seconds: Some(0),
            uid: Some(uid.to_owned()),
            ..Self::default()
        }
    }
}

/// Effect of a delete on an object.
#[derive(Debug, PartialEq)]
enum Plan {
    /// Remove it.
    Remove,
    /// Change nothing: the deletion is in progress already.
    Keep,
    /// Store this state and wait.
    Mark(Value),
}

/// Upstream's warning to clients that delete Jobs without a propagation policy.
const PODS_STAY: &str = "child pods are preserved by default when jobs are deleted; set \
    propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// Returns true if dependents are orphaned by default when a client deletes such an object.
fn orphans(resource: &Resource) -> bool {
    resource.is("", "replicationcontrollers") || resource.is("batch", "jobs")
}

/// Decides what a delete does. `now` is the time of the request.
fn plan(
    resource: &Resource,
    object: &Value,
    options: &DeleteOptions,
    now: jiff::Timestamp,
) -> Plan {
    let mut finalizers = meta::finalizers(object);
    let already = meta::deleting(object);
    let before = finalizers.clone();
    let decided = finalizers.iter().any(|f| f == ORPHAN || f == FOREGROUND);
    let default =
        (orphans(resource) && options.user.is_some() && !decided).then_some(Propagation::Orphan);
    match options.propagation.or(default) {
        Some(Propagation::Orphan) => {
            finalizers.retain(|f| f != FOREGROUND);
            push(&mut finalizers, ORPHAN);
        }
        Some(Propagation::Foreground) => {
            finalizers.retain(|f| f != ORPHAN);
            push(&mut finalizers, FOREGROUND);
        }
        Some(Propagation::Background) => finalizers.retain(|f| f != ORPHAN && f != FOREGROUND),
        None => {}
    }
    let is_namespace = resource.is("", "namespaces");
    let owned_rules = is_namespace
        && meta::at(object, &["spec", "finalizers"])
            .and_then(Value::as_array)
            .is_some_and(|f| !f.is_empty());
    let current = meta::int_at(object, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    let mut grace = if resource.is("", "pods") {
        pod_grace(object, options)
    } else {
        0
    };
    if already {
        // A second delete may only shorten the wait.
        grace = match options.grace_period_seconds {
            Some(_) => grace.min(current),
            None => current,
        };
    }
    if grace == 0 && finalizers.is_empty() && !owned_rules {
        return Plan::Remove;
    }
    if already && grace == current && finalizers == before {
        return Plan::Keep;
    }
    let mut new = object.clone();
    meta::set_finalizers(&mut new, &finalizers);
    let since = meta::text(object, &["metadata", "deletionTimestamp"])
        .parse::<jiff::Timestamp>()
        .ok()
        .filter(|_| already)
        .map(|t| {
            t.saturating_sub(jiff::SignedDuration::from_secs(current))
                .unwrap_or(t)
        })
        .unwrap_or(now);
    let at = since
        .saturating_add(jiff::SignedDuration::from_secs(grace))
        .unwrap_or(since);
    meta::set(&mut new, "deletionTimestamp", meta::time(at));
    if !is_namespace {
        meta::set(&mut new, "deletionGracePeriodSeconds", grace);
    } else {
        meta::section(&mut new, "status").insert("phase".to_owned(), "Terminating".into());
    }
    if !already && let Some(g) = meta::int_at(object, &["metadata", "generation"]) {
        meta::set(&mut new, "generation", g.saturating_add(1));
    }
    Plan::Mark(new)
}

fn push(list: &mut Vec<String>, item: &str) {
    if !list.iter().any(|f| f == item) {
        list.push(item.to_owned());
    }
}

/// Returns a pod's grace period in seconds: 0 if no kubelet has the pod or it has ended.
fn pod_grace(pod: &Value, options: &DeleteOptions) -> i64 {
    let phase = meta::text(pod, &["status", "phase"]);
    if meta::text(pod, &["spec", "nodeName"]).is_empty()
        || phase == "Succeeded"
        || phase == "Failed"
    {
        return 0;
    }
    options
        .grace_period_seconds
        .or_else(|| meta::int_at(pod, &["spec", "terminationGracePeriodSeconds"]))
        .map_or(30, |g| if g < 0 { 1 } else { g })
}

impl Api {
    /// Deletes an object or starts its deletion; warnings of admission are dropped.
    pub(crate) async fn delete_object(
        &self,
        resource: &Arc<Resource>,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<DeleteOutcome, ApiError> {
        let mut unheard = Vec::new();
        self.delete_and_warn(resource, key, options, &mut unheard)
            .await
    }

    /// Like [`Api::delete_object`], and returns the warnings of admission in `warnings`.
    pub(super) async fn delete_and_warn(
        &self,
        resource: &Arc<Resource>,
        key: &Key,
        options: &DeleteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<DeleteOutcome, ApiError> {
        let attributes = AdmissionAttributes::new(
            Operation::Delete,
            resource,
            "",
            (&key.namespace, &key.name),
            Options::Delete(options),
        );
        let storage = self.core().storage_of(resource);
        loop {
            let entry = self.entry(resource, key)?;
            let version = entry.revision.to_string();
            options.check(resource, &key.name, &entry.index.uid, &version)?;
            let object = entry.value();
            let old = if resource.reads_stored() {
                Cow::Borrowed(&object)
            } else {
                Cow::Owned(resource.from_storage(object.clone()))
            };
            warnings.clear();
            self.admission()
                .admit(&attributes, &mut Value::Null, Some(&old), warnings, |_| {
                    Ok(())
                })
                .await?;
            let plan = plan(resource, &object, options, self.clock().now());
            let result = match plan {
                Plan::Keep => return Ok(DeleteOutcome::Pending(entry)),
                Plan::Remove if options.dry_run => return Ok(DeleteOutcome::Gone(entry)),
                Plan::Mark(_) if options.dry_run => return Ok(DeleteOutcome::Pending(entry)),
                Plan::Remove => self
                    .remove(resource, key, Some(entry.revision))
                    .await
                    .map(DeleteOutcome::Gone),
                Plan::Mark(new) => {
                    let index = storage.index(&new);
                    self.store()
                        .update(
                            resource.table.clone(),
                            key.clone(),
                            Some(entry.revision),
                            new,
                            index,
                        )
                        .await
                        .map(DeleteOutcome::Pending)
                }
            };
            match result {
                Ok(outcome) => {
                    if let DeleteOutcome::Pending(entry) = &outcome {
                        self.stored(resource, entry).await?;
                    }
                    return Ok(outcome);
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(e) => return Err(store_error(resource, key, e)),
            }
        }
    }

    /// Removes one finalizer from an object. Removing the last one removes an object that is being deleted.
    pub(crate) async fn drop_finalizer(
        &self,
        resource: &Arc<Resource>,
        key: &Key,
        finalizer: &str,
    ) -> Result<(), ApiError> {
        let result = self
            .edit(resource, None, key, |old| {
                let mut list = meta::finalizers(old);
                let before = list.len();
                list.retain(|f| f != finalizer);
                if list.len() == before {
                    return Ok(None);
                }
                let mut new = old.clone();
                meta::set_finalizers(&mut new, &list);
                Ok(Some(new))
            })
            .await;
        match result {
            Err(e) if e.code != 404 => Err(e),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_kinds::Registry;
    use serde_json::json;

    fn resource(group: &str, version: &str, plural: &str) -> Arc<Resource> {
        Registry::builtin().find(group, version, plural).unwrap()
    }

    fn at(text: &str) -> jiff::Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn second_delete_shortens_grace_of_bound_pod() {
        let pods = resource("", "v1", "pods");
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 20},
        });
        let now = at("2026-01-01T00:00:00Z");
        let Plan::Mark(marked) = plan(&pods, &pod, &DeleteOptions::default(), now) else {
            panic!("must wait");
        };
        assert_eq!(
            marked["metadata"]["deletionTimestamp"],
            "2026-01-01T00:00:20Z"
        );
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 20);
        let later = at("2026-01-01T00:00:05Z");
        assert_eq!(
            plan(&pods, &marked, &DeleteOptions::default(), later),
            Plan::Keep
        );
        let longer = DeleteOptions {
            grace_period_seconds: Some(60),
            ..DeleteOptions::default()
        };
        assert_eq!(plan(&pods, &marked, &longer, later), Plan::Keep);
        let shorter = DeleteOptions {
            grace_period_seconds: Some(8),
            ..DeleteOptions::default()
        };
        let Plan::Mark(shorter) = plan(&pods, &marked, &shorter, later) else {
            panic!("shortens")
        };
        assert_eq!(
            shorter["metadata"]["deletionTimestamp"],
            "2026-01-01T00:00:08Z"
        );
        let now_ = DeleteOptions {
            grace_period_seconds: Some(0),
            ..DeleteOptions::default()
        };
        assert_eq!(plan(&pods, &marked, &now_, later), Plan::Remove);
    }

    #[test]
    fn unbound_and_ended_pods_go_at_once() {
        let pods = resource("", "v1", "pods");
        let now = at("2026-01-01T00:00:00Z");
        for pod in [
            json!({"metadata": {"name": "p"}, "spec": {}}),
            json!({"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}),
        ] {
            assert_eq!(
                plan(&pods, &pod, &DeleteOptions::default(), now),
                Plan::Remove
            );
        }
    }

    #[test]
    fn propagation_becomes_a_finalizer() {
        let maps = resource("", "v1", "configmaps");
        let now = at("2026-01-01T00:00:00Z");
        let object = json!({"metadata": {"name": "c"}});
        for (policy, finalizer) in [
            (Propagation::Foreground, FOREGROUND),
            (Propagation::Orphan, ORPHAN),
        ] {
            let options = DeleteOptions {
                propagation: Some(policy),
                ..DeleteOptions::default()
            };
            let Plan::Mark(new) = plan(&maps, &object, &options, now) else {
                panic!("waits")
            };
            assert_eq!(meta::finalizers(&new), [finalizer]);
            let background = DeleteOptions {
                propagation: Some(Propagation::Background),
                ..options
            };
            assert_eq!(plan(&maps, &new, &background, now), Plan::Remove);
        }
    }

    #[test]
    fn options_of_the_wrong_type_are_refused() {
        let q = Query::default();
        for body in [
            json!([]),
            json!({"gracePeriodSeconds": "x"}),
            json!({"propagationPolicy": 1}),
            json!({"dryRun": "All"}),
            json!({"kind": "Pod"}),
        ] {
            assert_eq!(
                DeleteOptions::parse(&body, &q).unwrap_err().code,
                400,
                "{body}"
            );
        }
        let e = DeleteOptions::parse(&json!({"propagationPolicy": "Sideways"}), &q).unwrap_err();
        assert_eq!(e.code, 422);
        let o = DeleteOptions::parse(&json!({"gracePeriodSeconds": -5}), &q).unwrap();
        assert_eq!(o.grace_period_seconds, Some(1));
    }
}
