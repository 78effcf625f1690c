//! Resource lists compared and combined, exactly and by name. For decisions about what people wrote
//! (quotas, limits), whose refusals show the amounts; the schedulers' hot paths have
//! [`crate::resources::Amounts`].
//!
//! Source: `k8s.io/apiserver/pkg/quota/v1` and Koordinator `pkg/util/resource.go`.

use koord_api::quantity::{Quantity, ResourceList};

/// The resources with an amount below zero.
#[must_use]
pub fn negative(list: &ResourceList) -> Vec<&str> {
    let below = list.iter().filter(|(_, amount)| amount.signum() < 0);
    below.map(|(name, _)| name.as_str()).collect()
}

/// The resources of `list` that `limit` names and that are above it. What `limit` does not name is
/// unlimited.
#[must_use]
pub fn above<'a>(list: &'a ResourceList, limit: &ResourceList) -> Vec<&'a str> {
    let over = list
        .iter()
        .filter(|(name, amount)| limit.get(*name).is_some_and(|limit| *amount > limit));
    over.map(|(name, _)| name.as_str()).collect()
}

/// Whether nothing of `list` is above `limit`, where what `limit` does not name is zero.
#[must_use]
pub fn fits_in(list: &ResourceList, limit: &ResourceList) -> bool {
    list.iter()
        .all(|(name, amount)| *amount <= limit.get(name).copied().unwrap_or(Quantity::ZERO))
}

/// The amounts of `list` whose name `keep` accepts.
#[must_use]
pub fn masked(list: &ResourceList, keep: impl Fn(&str) -> bool) -> ResourceList {
    let kept = list.iter().filter(|(name, _)| keep(name));
    kept.map(|(name, amount)| (name.clone(), *amount)).collect()
}

/// Whether every resource of `list` is one of `names`.
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
    fn a_missing_limit_is_none_for_one_question_and_zero_for_the_other() {
        let asked = list(json!({"cpu": "2", "memory": "1Gi"}));
        assert!(above(&asked, &list(json!({"cpu": "2"}))).is_empty());
        assert_eq!(above(&asked, &list(json!({"cpu": "1999m"}))), ["cpu"]);
        assert!(!fits_in(&asked, &list(json!({"cpu": "2"}))));
        assert!(fits_in(&asked, &list(json!({"cpu": "2", "memory": "1Gi"}))));
        assert!(fits_in(&list(json!({"cpu": "0"})), &list(json!({}))));
        assert_eq!(
            negative(&list(json!({"cpu": "-1m", "memory": "0"}))),
            ["cpu"]
        );
        assert!(names_within(&list(json!({"cpu": "2"})), &asked));
        assert!(!names_within(&asked, &list(json!({"cpu": "2"}))));
        assert_eq!(
            masked(&asked, |name| name == "cpu"),
            list(json!({"cpu": "2"}))
        );
    }
}
