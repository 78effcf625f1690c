//! Checks of ElasticQuotas, by the rules of the manager's webhook: each by itself, and those of all files as a tree.

use super::document::FaultPlace;
use super::fault::Fault;
use super::metadata::read_fault;
use koord_api::lenient::{self, ReadError};
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, labels};
use koord_manager::webhook::offline;
use serde_json::Value;

/// Adds the faults of the values of a quota.
pub(super) fn add_faults(object: &Value, faults: &mut Vec<Fault>) -> Result<(), ReadError> {
    let quota = lenient::from_value::<ElasticQuota>(object)?;
    let lists = [
        annotations::QUOTA_NAMESPACES,
        annotations::QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
    ];
    let amounts = [
        annotations::QUOTA_SHARED_WEIGHT,
        annotations::QUOTA_ADMISSION,
    ];
    let lists = lists.into_iter().filter_map(|key| quota.list(key).err());
    let amounts = amounts
        .into_iter()
        .filter_map(|key| quota.amounts(key).err());
    let mut unreadable = Vec::new();
    for error in lists.chain(amounts) {
        let path = format!("metadata.annotations.{}", error.key);
        faults.push(read_fault(&error.problem, &path));
        unreadable.push(format!("[{}]", error.key));
    }
    for problem in offline::quota_problems(&quota) {
        // Labels have been checked with the metadata.
        let field = field_of(&problem);
        let is_known = unreadable.iter().any(|key| field.ends_with(key));
        if !is_known && !field.starts_with("metadata.labels") {
            faults.push(Fault::error(FaultPlace::value(field), &*problem));
        }
    }
    Ok(())
}

/// Returns the field in a message `invalid value … for FIELD: expected …`.
fn field_of(problem: &str) -> &str {
    let (head, _) = problem.split_once(": expected ").unwrap_or_default();
    head.rsplit_once(" for ").map_or("", |(_, field)| field)
}

/// Returns the place of a refusal of the webhook, which has no field.
fn place(problem: &str) -> FaultPlace {
    if !field_of(problem).is_empty() {
        return FaultPlace::value(field_of(problem));
    }
    let label = |key: &str| format!("metadata.labels.{key}");
    let path = [
        ("max keys", "spec.max".to_owned()),
        ("min keys", "spec.min".to_owned()),
        ("MinQuota", "spec.min".to_owned()),
        ("tree id", label(labels::QUOTA_TREE_ID)),
        ("parentName", label(labels::QUOTA_PARENT)),
        (
            "namespace",
            format!("metadata.annotations.{}", annotations::QUOTA_NAMESPACES),
        ),
    ];
    let path = path.into_iter().find(|(part, _)| problem.contains(part));
    FaultPlace::value(path.map_or_else(|| "metadata.name".to_owned(), |(_, path)| path))
}

/// Returns the faults of quotas against each other, with the index of the document in `documents`.
pub(super) fn faults_across(documents: &[&Value]) -> Vec<(usize, Fault)> {
    let mut quotas = Vec::new();
    for (at, document) in documents.iter().enumerate() {
        if document["kind"] == "ElasticQuota"
            && let Ok(quota) = lenient::from_value::<ElasticQuota>(document)
        {
            quotas.push((at, quota));
        }
    }
    let parents: Vec<&ElasticQuota> = quotas.iter().map(|(_, quota)| quota).collect();
    let problems = offline::quota_tree_problems(&parents);
    let faults = problems
        .into_iter()
        .map(|(index, problem)| (quotas[index].0, Fault::error(place(&problem), &*problem)));
    faults.collect()
}
