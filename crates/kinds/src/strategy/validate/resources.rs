//! Validation of resource requirements.

use koord_api::quantity::Quantity;
use serde_json::{Map, Value};

use super::{Errors, names};
use crate::quantity;
use crate::status::FieldError;

const STANDARD: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "storage"];

/// Returns true for names without a domain, and below a `kubernetes.io/` domain. Koordinator's
/// `kubernetes.io/batch-cpu` is native by this rule: fractions and requests without limits are valid.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Returns true for extended resources such as devices: whole numbers that cannot be overcommitted.
pub(super) fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Returns the problems of a container resource's name.
fn name_problems(name: &str) -> Vec<String> {
    let problems = names::qualified_name(name);
    if !problems.is_empty() {
        return problems;
    }
    if !name.contains('/') && !STANDARD.contains(&name) && !is_huge_page(name) {
        return vec!["must be a standard resource type or fully qualified".to_owned()];
    }
    Vec::new()
}

/// Checks that a quantity is not negative and, for extended resources, that it is whole.
pub(super) fn validate_quantity(name: &str, value: &Value, path: &str, errors: &mut Errors) {
    let Some(q) = quantity::parse(value) else {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            format!(
                "quantities must match the regular expression '{}'",
                quantity::PATTERN
            ),
        ));
        return;
    };
    if q < Quantity::from_value(0) {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            "must be greater than or equal to 0",
        ));
    }
    // Rounding up changes a quantity exactly if it has a fraction.
    if is_extended(name) && Quantity::from_value(q.value()) != q {
        errors.push(FieldError::invalid(
            path,
            value.clone(),
            "must be an integer",
        ));
    }
}

/// Validates a list of capacities (nodes) or hard limits (quotas): qualified names, valid quantities.
pub(super) fn validate_list(list: Option<&Value>, path: &str, errors: &mut Errors) {
    for (name, v) in list.and_then(Value::as_object).into_iter().flatten() {
        let at = format!("{path}[{name}]");
        for detail in names::qualified_name(name) {
            errors.push(FieldError::invalid(&at, name.as_str(), detail));
        }
        validate_quantity(name, v, &at, errors);
    }
}

/// Validates the `resources` of a container.
pub(super) fn validate(resources: &Value, path: &str, errors: &mut Errors) {
    let empty = Map::new();
    let limits = resources
        .get("limits")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let requests = resources
        .get("requests")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    for (kind, list) in [("limits", limits), ("requests", requests)] {
        for (name, v) in list {
            let at = format!("{path}.{kind}[{name}]");
            for detail in name_problems(name) {
                errors.push(FieldError::invalid(&at, name.as_str(), detail));
            }
            validate_quantity(name, v, &at, errors);
        }
    }
    for (name, value) in requests {
        let Some(request) = quantity::parse(value) else {
            continue;
        };
        match limits.get(name) {
            Some(raw) => {
                let Some(limit) = quantity::parse(raw) else {
                    continue;
                };
                let overcommit = is_native(name) && !is_huge_page(name);
                let detail = if !overcommit && request != limit {
                    format!("must be equal to {name} limit of {limit}")
                } else if request > limit {
                    format!("must be less than or equal to {name} limit of {limit}")
                } else {
                    continue;
                };
                errors.push(FieldError::invalid(
                    format!("{path}.requests"),
                    request.to_string(),
                    detail,
                ));
            }
            None if !is_native(name) || is_huge_page(name) => {
                errors.push(FieldError::required(
                    format!("{path}.limits"),
                    "Limit must be set for non overcommitable resources",
                ));
            }
            None => {}
        }
    }
}
