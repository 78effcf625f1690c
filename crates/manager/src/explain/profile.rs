//! Explains which pods a ClusterColocationProfile matches, and what it changes. Matching is that of the webhook.

use crate::webhook::profile::{self, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use koord_api::config::ClusterColocationProfile;
use koord_api::{labels, selector};
use std::collections::BTreeMap;

type LabelMap = BTreeMap<String, String>;

/// Returns the problems of a profile that do not depend on a pod.
#[must_use]
pub fn profile_problems(profile: &ClusterColocationProfile) -> Vec<String> {
    let problems = profile::problems(profile);
    problems
        .iter()
        .map(|error| format!("{}: {}", error.field, error.problem))
        .collect()
}

/// Returns why a profile does not match a pod with `labels`, whose namespace has `namespace_labels`; empty if it
/// matches. `None` stands for a namespace whose labels could not be read.
#[must_use]
pub fn mismatches(
    profile: &ClusterColocationProfile,
    labels: &LabelMap,
    namespace_labels: Option<&LabelMap>,
) -> Vec<String> {
    let namespace = namespace_labels.map_or(Namespace::Unknown, Namespace::Labels);
    match profile::applies(profile, labels, namespace) {
        Ok(true) => return Vec::new(),
        Err(error) => return vec![format!("{}: {}", error.field, error.problem)],
        Ok(false) => {}
    }
    let spec = &profile.spec;
    let mut reasons = unmet(spec.selector.as_ref(), labels, "pod");
    if let Some(labels) = namespace_labels.filter(|_| profile::needs_namespace(profile)) {
        reasons.extend(unmet(spec.namespace_selector.as_ref(), labels, "namespace"));
    }
    reasons
}

/// Returns the requirements of `selector` that an object with `labels` does not meet.
fn unmet(selector: Option<&LabelSelector>, labels: &LabelMap, object: &str) -> Vec<String> {
    let Some(selector) = selector else {
        return Vec::new();
    };
    let equal =
        selector
            .match_labels
            .iter()
            .flatten()
            .map(|(key, value)| LabelSelectorRequirement {
                key: key.clone(),
                operator: "In".to_owned(),
                values: Some(vec![value.clone()]),
            });
    let expressions = selector.match_expressions.iter().flatten().cloned();
    let mut reasons = Vec::new();
    for requirement in equal.chain(expressions) {
        let text = requirement_text(&requirement);
        let actual = labels.get(&requirement.key).map_or_else(
            || "no such label".to_owned(),
            |value| format!("{}={value}", requirement.key),
        );
        let alone = LabelSelector {
            match_expressions: Some(vec![requirement]),
            ..LabelSelector::default()
        };
        if !selector::matches(&alone, labels).unwrap_or(false) {
            reasons.push(format!("the {object} needs {text}, it has {actual}"));
        }
    }
    reasons
}

/// Formats a requirement as kubectl does.
fn requirement_text(requirement: &LabelSelectorRequirement) -> String {
    let LabelSelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    let values = values.as_deref().unwrap_or_default();
    match (operator.as_str(), values) {
        ("In", [one]) => format!("{key}={one}"),
        ("In", _) => format!("{key} in ({})", values.join(",")),
        ("NotIn", _) => format!("{key} notin ({})", values.join(",")),
        ("DoesNotExist", _) => format!("!{key}"),
        ("Exists", _) => key.clone(),
        (operator, _) => format!("{key} {operator} {}", values.join(",")),
    }
}

/// Formats a selector as kubectl does; `all` if it selects everything.
#[must_use]
pub fn selector_text(selector: Option<&LabelSelector>) -> String {
    let requirements = selector.into_iter().flat_map(|selector| {
        let equal = selector.match_labels.iter().flatten();
        let equal = equal.map(|(key, value)| format!("{key}={value}"));
        let expressions = selector.match_expressions.iter().flatten();
        equal.chain(expressions.map(requirement_text))
    });
    let text = requirements.collect::<Vec<_>>().join(", ");
    if text.is_empty() {
        "all".to_owned()
    } else {
        text
    }
}

/// Returns what a profile changes in each pod that it matches, in the order of application.
#[must_use]
pub fn profile_changes(profile: &ClusterColocationProfile) -> Vec<String> {
    let spec = &profile.spec;
    let mut changes = Vec::new();
    for (kind, values, copies) in [
        ("label", &spec.labels, &spec.label_keys_mapping),
        (
            "annotation",
            &spec.annotations,
            &spec.annotation_keys_mapping,
        ),
    ] {
        changes.extend(
            values
                .iter()
                .map(|(key, value)| format!("{kind} {key}={value}")),
        );
        let copies = copies.iter();
        changes.extend(copies.map(|(from, to)| format!("{kind} {to}, copied from {from}")));
    }
    let suffixes = spec.label_suffixes.iter();
    changes.extend(suffixes.map(|(key, suffix)| format!("label {key} with suffix {suffix:?}")));
    if !spec.qos_class.is_unset() {
        changes.push(format!(
            "label {}={}",
            labels::POD_QOS,
            spec.qos_class.as_str()
        ));
    }
    if let Some(priority) = spec.koordinator_priority {
        changes.push(format!("label {}={priority}", labels::POD_PRIORITY));
    }
    for (field, value) in [
        ("schedulerName", &spec.scheduler_name),
        ("priorityClassName", &spec.priority_class_name),
    ] {
        if !value.is_empty() {
            changes.push(format!("{field} {value}"));
        }
    }
    if let Some(patch) = spec.patch.as_ref().filter(|patch| !patch.is_null()) {
        changes.push(format!("patch {patch}"));
    }
    if !profile::keeps_resources(profile) {
        changes.push("requests and limits become those of the pod's priority class".to_owned());
    }
    changes
}

/// Returns the share of matched pods that the profile changes, in percent; `None` if it is invalid.
#[must_use]
pub fn profile_percent(profile: &ClusterColocationProfile) -> Option<i64> {
    let percent = profile::percent(profile).ok()?;
    Some(percent.clamp(0, 100))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn profile(spec: Value) -> ClusterColocationProfile {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn labels(all: &[(&str, &str)]) -> LabelMap {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        all.iter().map(owned).collect()
    }

    #[test]
    fn mismatch_names_needed_and_actual_label() {
        let both = json!({"selector": {"matchLabels": {"app": "job"}},
            "namespaceSelector": {"matchExpressions": [
                {"key": "team", "operator": "In", "values": ["a", "b"]},
                {"key": "off", "operator": "DoesNotExist"}]}});
        let (job, web) = (labels(&[("app", "job")]), labels(&[("app", "web")]));
        let (team, off) = (labels(&[("team", "a")]), labels(&[("off", "")]));
        let none: &[&str] = &[];
        for (spec, pod, namespace, expected) in [
            (json!({}), &web, None, none),
            (both.clone(), &job, Some(&team), none),
            (
                both.clone(),
                &web,
                Some(&off),
                &[
                    "the pod needs app=job, it has app=web",
                    "the namespace needs team in (a,b), it has no such label",
                    "the namespace needs !off, it has off=",
                ],
            ),
            (
                both,
                &job,
                None,
                &["spec.namespaceSelector: the labels of the namespace are not known"],
            ),
        ] {
            assert_eq!(mismatches(&profile(spec), pod, namespace), expected);
        }
        let unknown = json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}});
        let reasons = mismatches(&profile(unknown), &web, None);
        assert!(reasons[0].starts_with("spec.selector: "), "{reasons:?}");
    }

    #[test]
    fn changes_and_share_are_listed() {
        let everything = profile(json!({
            "qosClass": "BE", "priorityClassName": "koord-batch", "koordinatorPriority": 5,
            "schedulerName": "koord-scheduler", "labels": {"a": "b"}, "annotations": {"c": "d"},
            "labelKeysMapping": {"x": "y"}, "labelSuffixes": {"a": "-z"}, "probability": "30%",
            "patch": {"spec": {"hostPID": false}}}));
        assert_eq!(
            profile_changes(&everything),
            [
                "label a=b",
                "label y, copied from x",
                "annotation c=d",
                "label a with suffix \"-z\"",
                "label koordinator.sh/qosClass=BE",
                "label koordinator.sh/priority=5",
                "schedulerName koord-scheduler",
                "priorityClassName koord-batch",
                "patch {\"spec\":{\"hostPID\":false}}",
                "requests and limits become those of the pod's priority class",
            ]
        );
        assert_eq!(profile_percent(&everything), Some(30));
        assert_eq!(profile_percent(&profile(json!({"probability": "x"}))), None);
        let problems = profile_problems(&profile(json!({"probability": "x"})));
        assert!(
            problems[0].starts_with("spec.probability: "),
            "{problems:?}"
        );
    }

    #[test]
    fn selector_is_printed_as_by_kubectl() {
        let spec = profile(json!({"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "c", "operator": "Exists"}, {"key": "d", "operator": "NotIn", "values": ["e", "f"]}]}}))
        .spec;
        let text = selector_text(spec.selector.as_ref());
        assert_eq!(text, "a=b, c, d notin (e,f)");
        assert_eq!(selector_text(None), "all");
    }
}
