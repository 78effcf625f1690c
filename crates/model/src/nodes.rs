//! Taints, tolerations and node selectors: the nodes that a pod's spec allows. These rules of Kubernetes are
//! shared by the schedulers and the descheduler.
//!
//! Source: `k8s.io/component-helpers/scheduling/corev1`.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

/// Effect of taints that reject new pods.
pub const NO_SCHEDULE: &str = "NoSchedule";
/// Effect of taints that reject new pods and evict running ones.
pub const NO_EXECUTE: &str = "NoExecute";
/// Effect of taints that the scheduler avoids if possible.
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// Returns true if any of `tolerations` tolerates `taint`.
#[must_use]
pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerates_comparing(tolerations, taint, false)
}

/// Like [`tolerates`], and supports the operators `Lt` and `Gt` if `compares` is true (gate
/// `TaintTolerationComparisonOperators`).
#[must_use]
pub fn tolerates_comparing(tolerations: &[Toleration], taint: &Taint, compares: bool) -> bool {
    let number = |text: &Option<String>| text.as_deref()?.parse::<i64>().ok();
    let text = |field: &'_ Option<String>| field.clone().unwrap_or_default();
    tolerations.iter().any(|toleration| {
        let effect = toleration.effect.as_deref().unwrap_or_default();
        if !effect.is_empty() && effect != taint.effect {
            return false;
        }
        let key = toleration.key.as_deref().unwrap_or_default();
        if !key.is_empty() && key != taint.key {
            return false;
        }
        match toleration.operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            "" | "Equal" => !key.is_empty() && text(&toleration.value) == text(&taint.value),
            operator @ ("Lt" | "Gt") if compares => {
                match (number(&taint.value), number(&toleration.value)) {
                    (Some(is), Some(limit)) if operator == "Lt" => is < limit,
                    (Some(is), Some(limit)) => is > limit,
                    _ => false,
                }
            }
            _ => false,
        }
    })
}

/// Returns the first taint with effect NoSchedule or NoExecute that `tolerations` do not tolerate.
#[must_use]
pub fn untolerated<'a>(tolerations: &[Toleration], taints: &'a [Taint]) -> Option<&'a Taint> {
    let mut hard = taints
        .iter()
        .filter(|taint| matches!(taint.effect.as_str(), NO_SCHEDULE | NO_EXECUTE));
    hard.find(|taint| !tolerates(tolerations, taint))
}

/// Returns true if one of `terms` matches the node `name`. `label` returns the value of a node label. A term
/// without requirements matches no node.
pub fn any_term<'a>(
    terms: &[NodeSelectorTerm],
    name: &str,
    label: impl Fn(&str) -> Option<&'a str>,
) -> bool {
    terms.iter().any(|term| term_matches(term, name, &label))
}

/// Returns true if all requirements of `term` are met. A term without requirements matches no node. The only
/// supported field is `metadata.name`.
pub fn term_matches<'a>(
    term: &NodeSelectorTerm,
    name: &str,
    label: impl Fn(&str) -> Option<&'a str>,
) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let field = |requirement: &NodeSelectorRequirement| {
        requirement_matches(
            requirement,
            (requirement.key == "metadata.name").then_some(name),
        )
    };
    expressions
        .iter()
        .all(|requirement| requirement_matches(requirement, label(&requirement.key)))
        && fields.iter().all(field)
}

/// Returns true if `value`, that of the label or field of `requirement`, meets it. `None` means that it is
/// missing. An unknown operator is never met.
#[must_use]
pub fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let compare = |check: fn(&i64, &i64) -> bool| {
        let bound = values.first().and_then(|bound| bound.parse::<i64>().ok());
        let value = value.and_then(|value| value.parse::<i64>().ok());
        matches!((value, bound), (Some(value), Some(bound)) if check(&value, &bound))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
}
