//! Which nodes a pod's spec allows: taints and tolerations, node selectors. Rules of Kubernetes, read by whoever
//! places pods and by whoever moves them.
//!
//! Source: `k8s.io/component-helpers/scheduling/corev1`.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

/// Effect of taints that keep new pods off.
pub const NO_SCHEDULE: &str = "NoSchedule";
/// Effect of taints that also end pods that run.
pub const NO_EXECUTE: &str = "NoExecute";
/// Effect of taints that pods rather avoid.
pub const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";

/// Whether any of `tolerations` tolerates `taint`.
#[must_use]
pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerates_comparing(tolerations, taint, false)
}

/// As [`tolerates`]; with `compares`, the operators `Lt` and `Gt` count (gate
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

/// The first taint that keeps a pod with these tolerations off a node.
#[must_use]
pub fn untolerated<'a>(tolerations: &[Toleration], taints: &'a [Taint]) -> Option<&'a Taint> {
    let mut hard = taints
        .iter()
        .filter(|taint| matches!(taint.effect.as_str(), NO_SCHEDULE | NO_EXECUTE));
    hard.find(|taint| !tolerates(tolerations, taint))
}

/// Whether one of `terms` matches the node `name` whose labels `label` tells; a term without requirements
/// matches nothing.
pub fn any_term<'a>(
    terms: &[NodeSelectorTerm],
    name: &str,
    label: impl Fn(&str) -> Option<&'a str>,
) -> bool {
    terms.iter().any(|term| term_matches(term, name, &label))
}

/// Whether all requirements of `term` are met; one without any matches nothing. `metadata.name` is the only
/// field there is.
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

/// Whether `value`, of the label or field that `requirement` names, meets it. Unknown operators are never met.
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
