//! Explains a ClusterColocationProfile: which pods it matches, and what it changes.

use super::outline::Outline;
use super::{full_name, is_terminal};
use crate::check::outcome::join_names;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use koord_api::config::ClusterColocationProfile;
use koord_api::texts::Lookup as _;
use koord_api::{labels, selector};
use koord_app::console::counted;
use koord_manager::explain;
use std::collections::{BTreeMap, BTreeSet, HashMap};

type Labels = BTreeMap<String, String>;

/// The webhooks that apply profiles to pods.
#[derive(Debug)]
pub(super) enum PodWebhooks {
    /// They run in the process of `koord up`, for all pods.
    InProcess,
    /// Entries of the webhook configuration; none if it does not exist.
    Registered(Vec<MutatingWebhook>),
    /// The configuration cannot be read, for this reason.
    Unreadable(String),
}

impl PodWebhooks {
    /// Returns why pods with `labels` in a namespace do not reach the webhooks; `None` if they do.
    fn exemption(&self, labels: &Labels, namespace: &Labels) -> Option<String> {
        let entries = match self {
            Self::InProcess | Self::Unreadable(_) => return None,
            Self::Registered(entries) if entries.is_empty() => {
                return Some(
                    "no webhook changes pods: koord-manager's is not installed".to_owned(),
                );
            }
            Self::Registered(entries) => entries,
        };
        let is_selected = |entry: &&MutatingWebhook| {
            let matches = |selector: Option<&_>, labels| {
                selector.is_none_or(|it| selector::matches(it, labels).unwrap_or(false))
            };
            matches(entry.namespace_selector.as_ref(), namespace)
                && matches(entry.object_selector.as_ref(), labels)
        };
        if entries.iter().any(|entry| is_selected(&entry)) {
            return None;
        }
        let selectors = entries.iter().map(|entry| {
            format!(
                "namespaces {}, pods {}",
                explain::selector_text(entry.namespace_selector.as_ref()),
                explain::selector_text(entry.object_selector.as_ref())
            )
        });
        let selectors: Vec<String> = selectors.collect();
        Some(format!(
            "koord-manager's webhook does not select it: {}",
            join_names(&selectors)
        ))
    }
}

/// The objects that the explanation reads.
#[derive(Debug)]
pub(super) struct ProfileObjects {
    /// Namespaces of the cluster; an error is the reason why there are none.
    pub(super) namespaces: Result<Vec<Namespace>, String>,
    pub(super) pods: Vec<Pod>,
    pub(super) webhooks: PodWebhooks,
    /// Names of the PriorityClasses; `None` if they cannot be read.
    pub(super) classes: Option<BTreeSet<String>>,
}

impl ProfileObjects {
    fn labels_by_namespace(&self) -> HashMap<&str, Labels> {
        let namespaces = self.namespaces.iter().flatten();
        namespaces
            .map(|it| {
                let name = it.metadata.name.as_deref().unwrap_or_default();
                (name, it.metadata.labels.clone().unwrap_or_default())
            })
            .collect()
    }
}

fn pod_labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

fn namespace_of(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// Explains a profile; for one of the pods if `subject` is set.
pub(super) fn explain(
    profile: &ClusterColocationProfile,
    subject: Option<&Pod>,
    objects: &ProfileObjects,
) -> Outline {
    let name = profile.metadata.name.as_deref().unwrap_or_default();
    let by_namespace = objects.labels_by_namespace();
    let reasons = |pod: &Pod| {
        let namespace = by_namespace.get(namespace_of(pod));
        explain::mismatches(profile, &pod_labels(pod), namespace)
    };
    let mut outline = Outline::default();
    let mut matched = Vec::new();
    match subject {
        Some(pod) => {
            let pod_name = full_name(&pod.metadata);
            let reasons = reasons(pod);
            let verb = if reasons.is_empty() {
                "matches"
            } else {
                "does not match"
            };
            outline.title = format!("profile {name} {verb} pod {pod_name}");
            if reasons.is_empty() {
                matched.push(pod);
            }
            outline.problems.extend(reasons);
        }
        None => {
            matched.extend(
                objects
                    .pods
                    .iter()
                    .filter(|pod| !is_terminal(pod) && reasons(pod).is_empty()),
            );
            let namespaces: BTreeSet<&str> = matched.iter().map(|pod| namespace_of(pod)).collect();
            outline.title = format!(
                "profile {name} matches {} in {}",
                counted(matched.len(), "pod"),
                counted(namespaces.len(), "namespace")
            );
        }
    }
    let spec = &profile.spec;
    let selected = spec.namespace_selector.as_ref();
    outline.add_fact(format!("namespaces: {}", explain::selector_text(selected)));
    outline.add_fact(format!(
        "pods: {}",
        explain::selector_text(spec.selector.as_ref())
    ));
    if let Some(percent) = explain::profile_percent(profile).filter(|it| *it != 100) {
        outline.add_fact(format!(
            "of those, {percent} % are changed (spec.probability)"
        ));
    }
    let changes = explain::profile_changes(profile).into_iter();
    outline.add_table("changes", &["change"], changes.map(|it| vec![it]).collect());
    let rows = matched.iter().map(|pod| {
        let namespace = by_namespace
            .get(namespace_of(pod))
            .cloned()
            .unwrap_or_default();
        vec![
            full_name(&pod.metadata),
            describe_effect(profile, pod, &namespace, &objects.webhooks),
        ]
    });
    outline.add_table("matched pods", &["pod", "effect"], rows.collect());
    add_problems(profile, objects, &mut outline);
    outline
}

/// Describes whether a matched pod has the profile's values, and if not why.
fn describe_effect(
    profile: &ClusterColocationProfile,
    pod: &Pod,
    namespace: &Labels,
    webhooks: &PodWebhooks,
) -> String {
    let differences = differences(profile, pod);
    if differences.is_empty() {
        return "has its values".to_owned();
    }
    let created = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        metadata.creation_timestamp.as_ref().map(|time| time.0)
    };
    let ages = created(&pod.metadata).zip(created(&profile.metadata));
    let why = if let Some(exemption) = webhooks.exemption(&pod_labels(pod), namespace) {
        exemption
    } else if ages.is_some_and(|(pod, profile)| pod < profile) {
        "the pod is older than the profile, which changes pods when they are created".to_owned()
    } else if explain::profile_percent(profile).is_some_and(|percent| percent < 100) {
        "it may be among those that spec.probability leaves out".to_owned()
    } else {
        "another profile or the webhook's absence at its creation may be the cause".to_owned()
    };
    format!("{}; {why}", join_names(&differences))
}

/// Returns the values of the profile that a pod does not have.
fn differences(profile: &ClusterColocationProfile, pod: &Pod) -> Vec<String> {
    let spec = &profile.spec;
    let mut wanted = spec.labels.clone();
    if !spec.qos_class.is_unset() {
        wanted.insert(
            labels::POD_QOS.to_owned(),
            spec.qos_class.as_str().to_owned(),
        );
    }
    // A suffix changes the value.
    wanted.retain(|key, _| !spec.label_suffixes.contains_key(key));
    let mut differences = Vec::new();
    let (labels, annotations) = (&pod.metadata.labels, &pod.metadata.annotations);
    for (kind, wanted, actual) in [
        ("label", &wanted, labels),
        ("annotation", &spec.annotations, annotations),
    ] {
        for (key, value) in wanted {
            let actual = actual.as_ref().and_then(|all| all.text(key));
            if actual != Some(value) {
                differences.push(format!("{kind} {key} is {:?}", actual.unwrap_or_default()));
            }
        }
    }
    let pod_spec = pod.spec.as_ref();
    for (field, wanted, actual) in [
        (
            "schedulerName",
            &spec.scheduler_name,
            pod_spec.and_then(|spec| spec.scheduler_name.as_deref()),
        ),
        (
            "priorityClassName",
            &spec.priority_class_name,
            pod_spec.and_then(|spec| spec.priority_class_name.as_deref()),
        ),
    ] {
        if !wanted.is_empty() && actual != Some(wanted) {
            differences.push(format!("{field} is {:?}", actual.unwrap_or_default()));
        }
    }
    differences
}

fn add_problems(
    profile: &ClusterColocationProfile,
    objects: &ProfileObjects,
    outline: &mut Outline,
) {
    outline.problems.extend(explain::profile_problems(profile));
    let class = &profile.spec.priority_class_name;
    if let Some(classes) = &objects.classes
        && !class.is_empty()
        && !classes.contains(class)
    {
        outline.add_problem(format!(
            "there is no PriorityClass {class:?}: matched pods are refused"
        ));
    }
    if let Err(reason) = &objects.namespaces {
        outline.add_problem(format!("namespaces: {reason}"));
    }
    match &objects.webhooks {
        PodWebhooks::Registered(entries) if entries.is_empty() => {
            outline.add_problem("no webhook changes pods: koord-manager's is not installed")
        }
        PodWebhooks::Unreadable(reason) => outline.add_problem(format!("webhooks: {reason}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn profile(spec: Value) -> ClusterColocationProfile {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-02T00:00:00Z"}, "spec": spec}))
        .unwrap()
    }

    fn pod(name: &str, labels: Value, created: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "d", "labels": labels, "creationTimestamp": created},
            "spec": {"containers": [], "priorityClassName": "koord-batch"},
            "status": {"phase": "Pending"}}))
        .unwrap()
    }

    fn objects(pods: Vec<Pod>, webhooks: PodWebhooks) -> ProfileObjects {
        let namespace = json!({"metadata": {"name": "d", "labels": {"team": "a"}}});
        ProfileObjects {
            namespaces: Ok(vec![serde_json::from_value(namespace).unwrap()]),
            pods,
            webhooks,
            classes: Some(BTreeSet::from(["koord-batch".to_owned()])),
        }
    }

    fn batch() -> Value {
        json!({"namespaceSelector": {"matchLabels": {"team": "a"}},
            "selector": {"matchLabels": {"app": "job"}},
            "qosClass": "BE", "priorityClassName": "koord-batch"})
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-03T00:00:00Z";

    #[test]
    fn matched_pods_and_changes_are_listed() {
        let pods = vec![
            pod("old", json!({"app": "job"}), EARLY),
            pod("new", json!({"app": "job", labels::POD_QOS: "BE"}), LATE),
            pod("web", json!({"app": "web"}), LATE),
        ];
        let objects = objects(pods, PodWebhooks::InProcess);
        assert_eq!(
            explain(&profile(batch()), None, &objects).render(),
            "\
profile p matches 2 pods in 1 namespace
  namespaces: team=a
  pods: app=job
  changes:
    change
    label koordinator.sh/qosClass=BE
    priorityClassName koord-batch
    requests and limits become those of the pod's priority class
  matched pods:
    pod    effect
    d/old  label koordinator.sh/qosClass is \"\"; the pod is older than the profile, which changes pods when they are created
    d/new  has its values
"
        );
    }

    #[test]
    fn pod_that_is_not_matched_has_the_reasons() {
        let web = pod("web", json!({"app": "web"}), LATE);
        let objects = objects(Vec::new(), PodWebhooks::InProcess);
        let outline = explain(&profile(batch()), Some(&web), &objects);
        assert_eq!(outline.title, "profile p does not match pod d/web");
        assert_eq!(outline.problems, ["the pod needs app=job, it has app=web"]);
    }

    #[test]
    fn effect_names_the_cause() {
        let entry = |namespaces: Value| {
            let entry = json!({"name": "mpod.koordinator.sh", "namespaceSelector": namespaces,
                "clientConfig": {}, "admissionReviewVersions": ["v1"], "sideEffects": "None"});
            PodWebhooks::Registered(vec![serde_json::from_value(entry).unwrap()])
        };
        let mut half = batch();
        half["probability"] = json!("50%");
        for (spec, webhooks, expected) in [
            (
                batch(),
                PodWebhooks::Registered(Vec::new()),
                "koord-manager's is not installed",
            ),
            (
                batch(),
                entry(json!({"matchLabels": {"team": "b"}})),
                "koord-manager's webhook does not select it: namespaces team=b, pods all",
            ),
            (
                half,
                entry(json!({})),
                "it may be among those that spec.probability leaves out",
            ),
            (
                batch(),
                entry(json!({})),
                "another profile or the webhook's absence",
            ),
        ] {
            let job = pod("job", json!({"app": "job"}), LATE);
            let objects = objects(Vec::new(), webhooks);
            let outline = explain(&profile(spec), Some(&job), &objects);
            let effect = &outline.tables[1].rows[0][1];
            assert!(effect.contains(expected), "{effect}");
        }
    }

    #[test]
    fn problems_of_the_profile_and_reads_are_listed() {
        let mut objects = objects(
            Vec::new(),
            PodWebhooks::Unreadable("needs list x".to_owned()),
        );
        objects.namespaces = Err("needs list namespaces".to_owned());
        let mut wrong = batch();
        wrong["priorityClassName"] = json!("lost");
        wrong["probability"] = json!("some");
        let problems = explain(&profile(wrong), None, &objects).problems;
        let expected = [
            "spec.probability: ",
            "there is no PriorityClass \"lost\"",
            "namespaces: needs list namespaces",
            "webhooks: needs list x",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:?}");
        for (problem, start) in problems.iter().zip(expected) {
            assert!(problem.starts_with(start), "{problem}");
        }
    }
}
