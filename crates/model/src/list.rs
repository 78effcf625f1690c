//! Exact comparison and combination of resource lists by name. It serves decisions about amounts that users
//! wrote (quotas, limits), whose errors show the amounts; the schedulers' hot paths use
//! [`crate::resources::Amounts`].
//!
//! Source: `k8s.io/apiserver/pkg/quota/v1` and Koordinator `pkg/util/resource.go`.

use koord_api::quantity::{Quantity, ResourceList};

/// Returns the resources with an amount below zero.
#[must_use]
pub fn negative(list: &ResourceList) -> Vec<&str> {
    let below = list.iter().filter(|(_, amount)| amount.signum() < 0);
    below.map(|(name, _)| name.as_str()).collect()
}

/// Returns the resources of `list` whose amount is above that of `limit`. A resource missing in `limit` is
/// unlimited.
#[must_use]
pub fn above<'a>(list: &'a ResourceList, limit: &ResourceList) -> Vec<&'a str> {
    let over = list
        .iter()
        .filter(|(name, amount)| limit.get(*name).is_some_and(|limit| *amount > limit));
    over.map(|(name, _)| name.as_str()).collect()
}

/// Returns true if no amount of `list` is above that of `limit`. A resource missing in `limit` counts as
/// zero.
#[must_use]
pub fn fits_in(list: &ResourceList, limit: &ResourceList) -> bool {
    list.iter()
        .all(|(name, amount)| *amount <= limit.get(name).copied().unwrap_or(Quantity::ZERO))
}

/// Returns the amounts of `list` whose name `keep` accepts.
#[must_use]
pub fn masked(list: &ResourceList, keep: impl Fn(&str) -> bool) -> ResourceList {
    let selected = list.iter().filter(|(name, _)| keep(name));
    selected
        .map(|(name, amount)| (name.clone(), *amount))
        .collect()
}

/// Returns true if every resource of `list` is in `names`.
#[must_use]
pub fn names_within(list: &ResourceList, names: &ResourceList) -> bool {
    list.keys().all(|name| names.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn list(value: Value) -> ResourceList {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn missing_limit_is_unlimited_above_and_zero_in_fits_in() {
        let requested = list(json!({"cpu": "2", "memory": "1Gi"}));
        assert!(above(&requested, &list(json!({"cpu": "2"}))).is_empty());
        assert_eq!(above(&requested, &list(json!({"cpu": "1999m"}))), ["cpu"]);
        assert!(!fits_in(&requested, &list(json!({"cpu": "2"}))));
        assert!(fits_in(
            &requested,
            &list(json!({"cpu": "2", "memory": "1Gi"}))
        ));
        assert!(fits_in(&list(json!({"cpu": "0"})), &list(json!({}))));
        assert_eq!(
            negative(&list(json!({"cpu": "-1m", "memory": "0"}))),
            ["cpu"]
        );
        assert!(names_within(&list(json!({"cpu": "2"})), &requested));
        assert!(!names_within(&requested, &list(json!({"cpu": "2"}))));
        assert_eq!(
            masked(&requested, |name| name == "cpu"),
            list(json!({"cpu": "2"}))
        );
    }
}
