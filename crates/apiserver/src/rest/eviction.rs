//! The `pods/eviction` subresource: a delete that disruption budgets may refuse.

use super::admission::{AdmissionAttributes, Operation, Options};
use super::binding::created;
use super::call::Call;
use super::delete::DeleteOutcome;
use super::options::DeleteOptions;
use super::options::WriteOptions;
use super::query::Query;
use super::write::WriteInput;
use super::{Api, meta};
use crate::store::{Entry, Key};
use axum::response::Response;
use koord_kinds::Resource;
use koord_kinds::selector::LabelSelector;
use koord_kinds::status::ApiError;
use serde_json::{Value, json};
use std::sync::Arc;

/// Decision of a budget about the eviction of one more pod.
#[derive(Debug, PartialEq)]
enum BudgetDecision {
    /// Take one disruption from the budget.
    Take,
    /// Evict without taking a disruption: the pod does not count as healthy.
    Free,
}

/// Decides whether a budget allows an eviction. `healthy` is whether the pod is Ready.
fn decide(budget: &Value, healthy: bool) -> Result<BudgetDecision, ApiError> {
    let name = meta::name(budget);
    let number = |path: &[&str]| meta::at(budget, path).and_then(Value::as_i64).unwrap_or(0);
    if number(&["status", "observedGeneration"]) < number(&["metadata", "generation"]) {
        return Err(ApiError::too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            10,
        )
        .cause(
            "DisruptionBudget",
            format!("The disruption budget {name} is still being processed by the server."),
            "",
        ));
    }
    let (current, desired) = (
        number(&["status", "currentHealthy"]),
        number(&["status", "desiredHealthy"]),
    );
    if !healthy {
        match meta::text(budget, &["spec", "unhealthyPodEvictionPolicy"]) {
            "AlwaysAllow" => return Ok(BudgetDecision::Free),
            _ if current >= desired && desired > 0 => return Ok(BudgetDecision::Free),
            _ => {}
        }
    }
    if number(&["status", "disruptionsAllowed"]) <= 0 {
        return Err(ApiError::disruption_budget(
            name,
            format!("needs {desired} healthy pods and has {current} currently"),
        ));
    }
    Ok(BudgetDecision::Take)
}

/// Returns the budgets that select the pod.
fn budgets_of(entries: &[Arc<Entry>], pod: &Entry) -> Vec<(Key, Value)> {
    entries
        .iter()
        .filter_map(|e| {
            let value = e.value();
            let selector =
                LabelSelector::from_json(meta::at(&value, &["spec", "selector"])).ok()?;
            selector.matches(&pod.index).then(|| (e.key.clone(), value))
        })
        .collect()
}

/// Returns true for pods that no budget protects: they have ended, have not started or are being deleted.
fn unprotected(pod: &Value) -> bool {
    let phase = meta::text(pod, &["status", "phase"]);
    matches!(phase, "Succeeded" | "Failed" | "Pending") || meta::deleting(pod)
}

/// Parses the delete options of an Eviction.
fn delete_options(eviction: &Value) -> Result<DeleteOptions, ApiError> {
    let provided = eviction.get("deleteOptions").unwrap_or(&Value::Null);
    DeleteOptions::parse(provided, &Query::default())
}

/// Serves the POST of an Eviction.
pub(super) async fn serve(api: &Api, call: &Call) -> Result<Response, ApiError> {
    let mut body = call.decode()?.value;
    let name = call.name();
    let (kind, version) = (
        meta::text(&body, &["kind"]),
        meta::text(&body, &["apiVersion"]),
    );
    if !body.is_object()
        || (!kind.is_empty() && kind != "Eviction")
        || !matches!(version, "" | "policy/v1" | "policy/v1beta1")
    {
        return Err(ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as an Eviction"
        )));
    }
    let provided = meta::name(&body);
    if !provided.is_empty() && provided != name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let kind = if kind.is_empty() { "Eviction" } else { kind }.to_owned();
    let version = if version.is_empty() {
        "policy/v1"
    } else {
        version
    }
    .to_owned();
    body["kind"] = kind.into();
    body["apiVersion"] = version.into();
    meta::set(&mut body, "name", name);
    let options = call.write_options("CreateOptions")?;
    delete_options(&body)?;
    let pods = api.builtin("", "v1", "pods")?;
    let attributes = AdmissionAttributes::new(
        Operation::Create,
        &pods,
        "eviction",
        (call.namespace(), name),
        Options::Write(&options),
    );
    let (mut warnings, mut requested) = (Vec::new(), DeleteOptions::default());
    api.admission()
        .admit(&attributes, &mut body, None, &mut warnings, |body| {
            requested = delete_options(body)?;
            Ok(())
        })
        .await?;
    requested.dry_run |= options.dry_run;
    requested.user = options.user;
    requested.admitted = true;
    let key = Api::key(&pods, call.namespace(), name);
    evict(api, &pods, &key, &requested).await?;
    Ok(created(call, &warnings))
}

/// Evicts a pod: charges its disruption budget and deletes it.
async fn evict(
    api: &Api,
    pods: &Arc<Resource>,
    key: &Key,
    options: &DeleteOptions,
) -> Result<DeleteOutcome, ApiError> {
    let entry = api.entry(pods, key)?;
    let pod = entry.value();
    // Check first: an eviction that fails must take nothing from a budget.
    options.check(
        pods,
        &key.name,
        &entry.index.uid,
        &entry.revision.to_string(),
    )?;
    // The budget is checked for this pod only, not for a new one of the same name.
    let mut pinned = DeleteOptions {
        uid: Some(entry.index.uid.to_string()),
        ..options.clone()
    };
    if !unprotected(&pod) {
        charge_budget(api, &entry, &pod, options.dry_run).await?;
    }
    if !options.dry_run && !meta::deleting(&pod) {
        let now = api.clock().now();
        let marked = api
            .core()
            .modify_admitted(pods, key, false, |old| {
                let mut new = old;
                let (uid, version) = (meta::uid(&new), meta::resource_version(&new));
                pinned.check(pods, &key.name, uid, version)?;
                let changed = meta::set_condition(
                    meta::section(&mut new, "status"),
                    "DisruptionTarget",
                    "True",
                    "EvictionByEvictionAPI",
                    "Eviction API: evicting",
                    now,
                );
                Ok(changed.then_some(new))
            })
            .await;
        marked?;
        // Setting the condition created a new version.
        pinned.resource_version = None;
    }
    api.delete_object(pods, key, &pinned).await
}

/// Takes a disruption from the budget that protects the pod.
async fn charge_budget(
    api: &Api,
    entry: &Entry,
    pod: &Value,
    dry_run: bool,
) -> Result<(), ApiError> {
    let budgets = api.builtin("policy", "v1", "poddisruptionbudgets")?;
    let all = api.entries(&budgets, Some(&entry.key.namespace));
    let matches = budgets_of(&all, entry);
    let key = match matches.as_slice() {
        [] => return Ok(()),
        [(key, _)] => key.clone(),
        _ => {
            return Err(ApiError::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction \
                 subresource does not support.",
            ));
        }
    };
    let healthy =
        meta::condition(pod, "Ready").is_some_and(|c| meta::text(c, &["status"]) == "True");
    let now = meta::time(api.clock().now());
    let options = WriteOptions {
        dry_run,
        admitted: true,
        ..WriteOptions::default()
    };
    let name = &*entry.key.name;
    let result = api
        .modify(&budgets, Some("status"), &key, &options, |budget| {
            let mut new = budget.clone();
            if decide(budget, healthy)? == BudgetDecision::Take {
                let status = meta::section(&mut new, "status");
                let remaining = status
                    .get("disruptionsAllowed")
                    .and_then(Value::as_i64)
                    .unwrap_or(0)
                    .saturating_sub(1);
                status.insert("disruptionsAllowed".to_owned(), remaining.into());
                let disrupted = meta::as_object(status.entry("disruptedPods").or_insert(json!({})));
                disrupted.insert(name.to_owned(), now.as_str().into());
            }
            Ok(WriteInput::from(new))
        })
        .await;
    match result {
        Ok(_) => Ok(()),
        Err(e) if e.code == 404 => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(allowed: i64, current: i64, desired: i64) -> Value {
        json!({"metadata": {"name": "b", "generation": 1}, "spec": {}, "status": {
            "observedGeneration": 1, "disruptionsAllowed": allowed,
            "currentHealthy": current, "desiredHealthy": desired}})
    }

    #[test]
    fn a_used_up_budget_refuses_with_429() {
        let e = decide(&budget(0, 2, 2), true).unwrap_err();
        assert_eq!(e.code, 429);
        assert_eq!(
            e.details.unwrap().causes[0].message,
            "The disruption budget b needs 2 healthy pods and has 2 currently"
        );
        assert_eq!(
            decide(&budget(1, 3, 2), true).unwrap(),
            BudgetDecision::Take
        );
        assert_eq!(
            decide(&budget(0, 2, 2), false).unwrap(),
            BudgetDecision::Free
        );
        assert_eq!(decide(&budget(0, 1, 2), false).unwrap_err().code, 429);
    }

    #[test]
    fn unprocessed_budget_refuses_eviction() {
        let mut b = budget(5, 5, 0);
        b["metadata"]["generation"] = 2.into();
        assert_eq!(
            decide(&b, true).unwrap_err().retry_after_seconds(),
            Some(10)
        );
    }
}
