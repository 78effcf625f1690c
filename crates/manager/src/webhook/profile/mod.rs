//! Matches ClusterColocationProfiles to objects and applies them.
//!
//! Matching is done once, on the original object. The profiles are then applied in the order of their names,
//! and later ones overwrite earlier ones. Pods and Reservations share this code; only the location of the pod
//! spec differs. Source: Koordinator `pkg/webhook/pod/mutating/cluster_colocation_profile.go`,
//! `pkg/webhook/reservation/mutating`.

use super::configmap::invalid_label;
use super::json::{self, TypeMismatch};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use koord_api::config::{ClusterColocationProfile, ClusterColocationProfileSpec};
use koord_api::{annotations, labels, selector};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::Hasher;
use std::sync::Arc;

type Labels = BTreeMap<String, String>;

/// The namespace of the object, as far as it is available.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Namespace<'a> {
    /// Labels of the namespace.
    Labels(&'a Labels),
    /// The lookup failed.
    Unknown,
    /// Namespace selectors are ignored.
    Ignored,
}

/// An error in a profile that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ClusterColocationProfile {profile:?}: {field}: {problem}")]
pub(crate) struct ProfileError {
    /// Name of the profile.
    pub(crate) profile: String,
    /// The invalid field.
    pub(crate) field: &'static str,
    /// The problem with the field, including its value.
    pub(crate) problem: String,
}

impl ProfileError {
    fn new(profile: &ClusterColocationProfile, field: &'static str, problem: impl Display) -> Self {
        Self {
            profile: name(profile).to_owned(),
            field,
            problem: problem.to_string(),
        }
    }
}

/// Returns the name of a profile.
pub(crate) fn name(profile: &ClusterColocationProfile) -> &str {
    profile.metadata.name.as_deref().unwrap_or_default()
}

/// Returns true if a profile selects by labels of the namespace, which must be looked up then.
pub(crate) fn needs_namespace(profile: &ClusterColocationProfile) -> bool {
    let selects = |selector: &LabelSelector| {
        selector
            .match_labels
            .as_ref()
            .is_some_and(|m| !m.is_empty())
            || selector
                .match_expressions
                .as_ref()
                .is_some_and(|m| !m.is_empty())
    };
    profile
        .spec
        .namespace_selector
        .as_ref()
        .is_some_and(selects)
}

/// Returns the profiles that match an object with `labels`, sorted by name, and a warning for each one whose
/// match could not be evaluated.
pub(crate) fn matching(
    profiles: impl IntoIterator<Item = Arc<ClusterColocationProfile>>,
    labels: &Labels,
    namespace: Namespace<'_>,
) -> (Vec<Arc<ClusterColocationProfile>>, Vec<String>) {
    let mut matched = Vec::new();
    let mut warnings = Vec::new();
    for profile in profiles {
        match applies(&profile, labels, namespace) {
            Ok(true) => matched.push(profile),
            Ok(false) => {}
            Err(error) => warnings.push(format!("{error}; the profile is not applied")),
        }
    }
    matched.sort_by(|a, b| name(a).cmp(name(b)));
    warnings.sort();
    (matched, warnings)
}

/// Returns true if the selectors of the profile match.
pub(crate) fn applies(
    profile: &ClusterColocationProfile,
    labels: &Labels,
    namespace: Namespace<'_>,
) -> Result<bool, ProfileError> {
    if let Some(selector) = &profile.spec.selector {
        let matches = selector::matches(selector, labels)
            .map_err(|error| ProfileError::new(profile, "spec.selector", error))?;
        if !matches {
            return Ok(false);
        }
    }
    if !needs_namespace(profile) {
        return Ok(true);
    }
    let (Some(selector), field) = (&profile.spec.namespace_selector, "spec.namespaceSelector")
    else {
        return Ok(true);
    };
    match namespace {
        Namespace::Ignored => Ok(true),
        Namespace::Labels(labels) => selector::matches(selector, labels)
            .map_err(|error| ProfileError::new(profile, field, error)),
        Namespace::Unknown => {
            let problem = "the labels of the namespace are not known";
            Err(ProfileError::new(profile, field, problem))
        }
    }
}

/// The fields of a PriorityClass that a profile applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priority {
    /// `value`.
    pub value: i32,
    /// `preemptionPolicy`.
    pub preemption_policy: Option<String>,
}

/// The functions and paths needed to apply profiles to an object.
pub(crate) struct ProfileContext<'a> {
    /// Returns a PriorityClass by name.
    pub(crate) priority: &'a dyn Fn(&str) -> Option<Priority>,
    /// Applies a strategic merge patch to the object.
    pub(crate) merge: &'a dyn Fn(&Value, &Value) -> Result<Value, String>,
    /// Returns a number from 0 to 99 for the name of a profile.
    pub(crate) roll: &'a dyn Fn(&str) -> i64,
    /// Path of the pod spec in the object; `None` if it has none.
    pub(crate) pod_spec: Option<&'static [&'static str]>,
}

/// Applies `profiles`, the result of [`matching`], in their order.
///
/// # Errors
/// A profile has an invalid probability or patch, or names a PriorityClass that does not exist.
pub(crate) fn apply(
    profiles: &[Arc<ClusterColocationProfile>],
    object: &mut Value,
    ctx: &ProfileContext<'_>,
) -> Result<(), ProfileError> {
    for profile in profiles {
        let percent = percent(profile)?;
        if is_skipped(percent, || (ctx.roll)(name(profile))) {
            continue;
        }
        let spec = &profile.spec;
        let misfit = |error: TypeMismatch| ProfileError::new(profile, "metadata.name", error);
        set_metadata(object, spec).map_err(misfit)?;
        if let Some(path) = ctx.pod_spec {
            if !spec.scheduler_name.is_empty() {
                let pod = json::object_at(object, path).map_err(misfit)?;
                pod.insert("schedulerName".into(), json!(spec.scheduler_name));
            }
            if !spec.priority_class_name.is_empty() {
                let class = &spec.priority_class_name;
                let priority = (ctx.priority)(class).ok_or_else(|| missing_class(profile))?;
                let pod = json::object_at(object, path).map_err(misfit)?;
                pod.insert("priorityClassName".into(), json!(class));
                pod.insert("priority".into(), json!(priority.value));
                match priority.preemption_policy {
                    Some(policy) => pod.insert("preemptionPolicy".into(), json!(policy)),
                    None => pod.remove("preemptionPolicy"),
                };
            }
        }
        if let Some(patch) = spec.patch.as_ref().filter(|patch| !patch.is_null()) {
            *object = (ctx.merge)(object, patch)
                .map_err(|error| ProfileError::new(profile, "spec.patch", error))?;
        }
    }
    Ok(())
}

/// Sets labels and annotations in the order of the fields: values, copies, suffixes, QoS, sub-priority.
///
/// A value that already ends with its suffix is left alone, so that repeated application adds it once.
pub(crate) fn set_metadata(
    object: &mut Value,
    spec: &ClusterColocationProfileSpec,
) -> Result<(), TypeMismatch> {
    const LABELS: &[&str] = &["metadata", "labels"];
    const ANNOTATIONS: &[&str] = &["metadata", "annotations"];
    for (path, values, copies) in [
        (LABELS, &spec.labels, &spec.label_keys_mapping),
        (
            ANNOTATIONS,
            &spec.annotations,
            &spec.annotation_keys_mapping,
        ),
    ] {
        if values.is_empty() && copies.is_empty() {
            continue;
        }
        let map = json::object_at(object, path)?;
        for (key, value) in values {
            map.insert(key.clone(), json!(value));
        }
        for (from, to) in copies {
            let value = map.get(from).cloned().unwrap_or_else(|| json!(""));
            map.insert(to.clone(), value);
        }
    }
    let has_labels = !json::labels(object).is_empty();
    if has_labels && !spec.label_suffixes.is_empty() {
        let map = json::object_at(object, LABELS)?;
        for (key, suffix) in &spec.label_suffixes {
            if let Some(Value::String(value)) = map.get_mut(key)
                && !value.ends_with(suffix)
            {
                value.push_str(suffix);
            }
        }
    }
    if !spec.qos_class.is_unset() {
        let map = json::object_at(object, LABELS)?;
        map.insert(labels::POD_QOS.into(), json!(spec.qos_class.as_str()));
    }
    if let Some(priority) = spec.koordinator_priority {
        let map = json::object_at(object, LABELS)?;
        map.insert(labels::POD_PRIORITY.into(), json!(priority.to_string()));
    }
    Ok(())
}

/// Returns true if a profile does not change the resources of its pods.
pub(crate) fn keeps_resources(profile: &ClusterColocationProfile) -> bool {
    let annotations = profile.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(annotations::PROFILE_SKIP_UPDATE_RESOURCES))
}

/// Returns `spec.probability` in percent, 100 if it is absent; percentages are whole numbers.
///
/// # Errors
/// The text is not a percentage.
pub(crate) fn percent(profile: &ClusterColocationProfile) -> Result<i64, ProfileError> {
    match &profile.spec.probability {
        None => Ok(100),
        Some(IntOrString::Int(percent)) => Ok(i64::from(*percent)),
        Some(IntOrString::String(text)) => text
            .strip_suffix('%')
            .and_then(|number| number.parse::<i32>().ok())
            .map(i64::from)
            .ok_or_else(|| {
                let problem =
                    format!("{text:?} is neither a whole percentage such as \"50%\" nor a number");
                ProfileError::new(profile, "spec.probability", problem)
            }),
    }
}

/// Returns true if a profile with probability `percent` skips the object whose number is `roll` (0 to 99).
///
/// The bound is upstream's: a probability of p takes p + 1 of 100 objects.
pub(crate) fn is_skipped(percent: i64, roll: impl FnOnce() -> i64) -> bool {
    percent == 0 || (percent != 100 && roll() > percent)
}

/// Returns a number from 0 to 99 for `subject` (the UID of a request or a pod) and a profile. It is always
/// the same, so that a repeated request has the same result.
pub(crate) fn stable_percentage(subject: &str, profile: &str) -> i64 {
    let mut hasher = rustc_hash::FxHasher::default();
    for text in [subject, profile] {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xff);
    }
    // The low bits of this hash are the weak ones.
    i64::try_from((hasher.finish() >> 32) % 100).unwrap_or(0)
}

/// Returns the error for a profile whose PriorityClass does not exist: matching pods are refused.
pub(crate) fn missing_class(profile: &ClusterColocationProfile) -> ProfileError {
    let class = &profile.spec.priority_class_name;
    let problem = format!("there is no PriorityClass {class:?}");
    ProfileError::new(profile, "spec.priorityClassName", problem)
}

/// Returns the problems of a profile that do not depend on a pod, so that they can be reported early.
pub(crate) fn problems(profile: &ClusterColocationProfile) -> Vec<ProfileError> {
    let spec = &profile.spec;
    let nothing = Labels::new();
    let mut problems = Vec::new();
    for (field, selector) in [
        ("spec.selector", &spec.selector),
        ("spec.namespaceSelector", &spec.namespace_selector),
    ] {
        let result = selector.as_ref().map(|s| selector::matches(s, &nothing));
        if let Some(Err(error)) = result {
            problems.push(ProfileError::new(profile, field, error));
        } else if let Some(problem) = selector.as_ref().and_then(invalid_label) {
            let problem = format!("{problem}; it selects nothing");
            problems.push(ProfileError::new(profile, field, problem));
        }
    }
    match percent(profile) {
        Ok(0..=100) => {}
        Ok(percent) => {
            let counts = if percent > 100 { 100 } else { 0 };
            let problem = format!(
                "invalid value {percent}: expected 0 to 100 percent; it counts as {counts}"
            );
            problems.push(ProfileError::new(profile, "spec.probability", problem));
        }
        Err(error) => problems.push(error),
    }
    if let Some(patch) = spec
        .patch
        .as_ref()
        .filter(|patch| !patch.is_object() && !patch.is_null())
    {
        let problem = format!("{patch} is no object");
        problems.push(ProfileError::new(profile, "spec.patch", problem));
    }
    problems
}

#[cfg(test)]
mod tests;
