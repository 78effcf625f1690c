//! Default roles of every cluster, and aggregated cluster roles.

use super::options::WriteOptions;
use super::write::WriteInput;
use super::{Api, meta};
use crate::authz::bootstrap::{self, AGGREGATED, AUTO_UPDATE, GROUP};
use crate::authz::{Rule, uncovered};
use crate::store::{Key, TableId};
use futures::future::try_join_all;
use koord_kinds::selector::LabelSelector;
use koord_kinds::status::ApiError;
use serde_json::{Value, json};
use std::collections::HashSet;

/// Creates missing default roles and bindings, and adds missing rules and subjects to those of an earlier
/// version unless their auto-update annotation is off.
pub(super) async fn bootstrap(api: &Api) -> Result<(), ApiError> {
    let objects = bootstrap::objects();
    try_join_all(
        objects
            .into_iter()
            .map(|(plural, namespace, object)| ensure_role(api, plural, namespace, object)),
    )
    .await?;
    for (name, _) in AGGREGATED {
        aggregate(api, name).await?;
    }
    Ok(())
}

/// Creates a default role or binding, or adds missing entries to the stored one.
async fn ensure_role(
    api: &Api,
    plural: &str,
    namespace: &str,
    object: Value,
) -> Result<(), ApiError> {
    let resource = api.builtin(GROUP, "v1", plural)?;
    let key = Api::key(&resource, namespace, meta::name(&object));
    let Some(entry) = api.store().get(&resource.table, &key) else {
        return api.ensure(GROUP, "v1", plural, namespace, object).await;
    };
    let Some(field) = missing_items(&entry.value(), &object) else {
        return Ok(());
    };
    let complete = |old: &Value| {
        let mut new = old.clone();
        if let Some((field, items)) = missing_items(old, &object) {
            let list = meta::as_object(&mut new)
                .entry(field)
                .or_insert(Value::Null);
            if let Some(list) = list.as_array_mut() {
                list.extend(items);
            } else {
                *list = items.into();
            }
        }
        Ok(WriteInput::from(new))
    };
    tracing::info!(object = %key, field = field.0, "added missing entries to default role or binding");
    api.modify(&resource, None, &key, &WriteOptions::default(), complete)
        .await
        .map(drop)
}

/// Fills an aggregated cluster role (`aggregationRule`) with the rules of the roles it selects.
///
/// # Errors
/// Those of an update.
pub(crate) async fn aggregate(api: &Api, name: &str) -> Result<(), ApiError> {
    let resource = api.builtin(GROUP, "v1", "clusterroles")?;
    let key = Key::cluster(name);
    let Some(role) = api.store().get(&resource.table, &key) else {
        return Ok(());
    };
    let role = role.value();
    let Some(rules) = aggregated_rules(api, name, &role)? else {
        return Ok(());
    };
    if role.get("rules").unwrap_or(&Value::Null) == &rules {
        return Ok(());
    }
    let options = WriteOptions::default();
    api.modify(&resource, None, &key, &options, |old| {
        let mut new = old.clone();
        meta::as_object(&mut new).insert("rules".to_owned(), rules.clone());
        Ok(WriteInput::from(new))
    })
    .await
    .map(drop)
}

/// Returns the rules of the roles that `role` aggregates, in the order of their names, without duplicates.
/// `None` if it is not aggregated.
fn aggregated_rules(api: &Api, name: &str, role: &Value) -> Result<Option<Value>, ApiError> {
    let selectors = meta::at(role, &["aggregationRule", "clusterRoleSelectors"]);
    let Some(selectors) = selectors.and_then(Value::as_array) else {
        return Ok(None);
    };
    let selectors: Vec<LabelSelector> = selectors
        .iter()
        .filter_map(|selector| LabelSelector::from_json(Some(selector)).ok())
        .collect();
    let table = TableId::new(GROUP, "clusterroles");
    let selected = |entry: &crate::store::Entry| {
        &*entry.key.name != name && selectors.iter().any(|s| s.matches(&entry.index))
    };
    let mut rules: Vec<Value> = Vec::new();
    let mut observed = HashSet::new();
    for entry in api.store().all(&table, None, &selected) {
        let value = entry.value();
        let own = value.get("rules").and_then(Value::as_array);
        for rule in own.into_iter().flatten() {
            if observed.insert(rule.clone()) {
                rules.push(rule.clone());
            }
        }
    }
    Ok(Some(rules.into()))
}

/// Returns what the stored role or binding `old` lacks of the default one (`default`): the field, and the
/// items to append.
fn missing_items(old: &Value, default: &Value) -> Option<(&'static str, Vec<Value>)> {
    if meta::at(old, &["metadata", "annotations", AUTO_UPDATE]) != Some(&json!("true"))
        || default.get("aggregationRule").is_some()
    {
        return None;
    }
    if default.get("roleRef").is_some() {
        let has = old.get("subjects").and_then(Value::as_array);
        let has = |subject: &&Value| has.is_some_and(|list| list.contains(subject));
        let default_subjects = default.get("subjects").and_then(Value::as_array)?;
        let missing: Vec<Value> = default_subjects
            .iter()
            .filter(|s| !has(s))
            .cloned()
            .collect();
        return (!missing.is_empty()).then_some(("subjects", missing));
    }
    let owned_rules = Rule::parse_list(old.get("rules"));
    let missing = uncovered(&owned_rules, &Rule::parse_list(default.get("rules")));
    let missing: Vec<Value> = missing.iter().map(Rule::to_value).collect();
    (!missing.is_empty()).then_some(("rules", missing))
}
