//! Explains an ElasticQuota: its amounts, and why pods of it are refused.

use super::outline::{Outline, difference, shortfalls};
use super::{UNREPORTED, full_name, is_pending, is_terminal, scheduled_message};
use crate::check::outcome::join_names;
use crate::check::rules::scheduling::excess;
use k8s_openapi::api::core::v1::Pod;
use koord_api::extension::AnnotationError;
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, is_built_in};
use koord_api::scheduling::ElasticQuota;
use koord_api::texts::Lookup as _;
use koord_api::{ResourceList, annotations, labels, requests};
use koord_app::console::counted;
use std::collections::HashMap;

/// Ancestors that are looked at; a circle of parents ends there.
const MAX_DEPTH: usize = 32;

fn name(quota: &ElasticQuota) -> &str {
    quota.metadata.name.as_deref().unwrap_or_default()
}

fn namespace(quota: &ElasticQuota) -> &str {
    quota.metadata.namespace.as_deref().unwrap_or_default()
}

/// Returns the quota that is in effect for each name: the oldest one.
fn in_effect(quotas: &[ElasticQuota]) -> HashMap<&str, &ElasticQuota> {
    let order = |quota: &ElasticQuota| {
        let created = quota.metadata.creation_timestamp.as_ref();
        (
            created.map_or(i64::MAX, |time| time.0.as_second()),
            namespace(quota).to_owned(),
        )
    };
    let mut by_name: HashMap<&str, &ElasticQuota> = HashMap::new();
    for quota in quotas {
        let first = by_name.entry(name(quota)).or_insert(quota);
        if order(quota) < order(first) {
            *first = quota;
        }
    }
    by_name
}

/// Returns the amounts of an annotation. An invalid one is a problem and counts as missing.
fn annotated(quota: &ElasticQuota, key: &str, outline: &mut Outline) -> ResourceList {
    let read = quota.amounts(key);
    read.unwrap_or_else(|error: AnnotationError| {
        outline.add_problem(error.to_string());
        ResourceList::new()
    })
}

/// Returns the upper bound of what pods may use now: the runtime quota, or max without one.
fn limit(quota: &ElasticQuota) -> ResourceList {
    match quota.amounts(annotations::QUOTA_RUNTIME) {
        Ok(runtime) if !runtime.is_empty() => runtime,
        _ => quota.spec.max.clone(),
    }
}

fn used(quota: &ElasticQuota) -> ResourceList {
    quota.status.clone().unwrap_or_default().used
}

/// Finds the quota of pods.
struct QuotaIndex<'a> {
    by_name: HashMap<&'a str, &'a ElasticQuota>,
    /// Quota of pods without a label, by namespace.
    by_namespace: HashMap<String, &'a str>,
}

impl<'a> QuotaIndex<'a> {
    fn new(quotas: &'a [ElasticQuota]) -> Self {
        let mut by_namespace: HashMap<String, &str> = HashMap::new();
        for quota in quotas {
            for claimed in quota.namespaces().unwrap_or_default() {
                let first = by_namespace.entry(claimed).or_insert(name(quota));
                *first = (*first).min(name(quota));
            }
        }
        // A quota named like its namespace comes before those that claim it.
        for quota in quotas
            .iter()
            .filter(|quota| name(quota) == namespace(quota))
        {
            by_namespace.insert(name(quota).to_owned(), name(quota));
        }
        Self {
            by_name: in_effect(quotas),
            by_namespace,
        }
    }

    fn quota_of(&self, pod: &'a Pod) -> &'a str {
        let labels = pod.metadata.labels.as_ref();
        let label = labels.and_then(|all| all.text(labels::POD_QUOTA_NAME));
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let named = match label {
            None | Some("") => self.by_namespace.get(namespace).copied(),
            named => named,
        };
        named
            .filter(|name| self.by_name.contains_key(name) || is_built_in(name))
            .unwrap_or(DEFAULT_QUOTA)
    }

    /// Returns the ancestors of a quota below the root, the nearest first.
    fn ancestors(&self, quota: &ElasticQuota) -> Vec<&'a ElasticQuota> {
        let mut ancestors = Vec::new();
        let mut parent = quota.parent();
        while let Some(found) = self.by_name.get(parent)
            && parent != ROOT_QUOTA
            && ancestors.len() < MAX_DEPTH
        {
            ancestors.push(*found);
            parent = found.parent();
        }
        ancestors
    }
}

/// Explains `quota`, one of `quotas`; `pods` are those of the cluster.
pub(super) fn explain(quota: &ElasticQuota, quotas: &[ElasticQuota], pods: &[Pod]) -> Outline {
    let index = QuotaIndex::new(quotas);
    let own = |pod: &&Pod| !is_terminal(pod) && index.quota_of(pod) == name(quota);
    let (waiting, placed): (Vec<_>, Vec<_>) =
        pods.iter().filter(own).partition(|pod| is_pending(pod));
    let mut outline = Outline {
        title: format!(
            "quota {} of namespace {}: {} on nodes, {} pending",
            name(quota),
            namespace(quota),
            counted(placed.len(), "pod"),
            waiting.len()
        ),
        ..Outline::default()
    };
    add_settings(quota, quotas, &mut outline);
    let [runtime, request, guaranteed] = [
        annotations::QUOTA_RUNTIME,
        annotations::QUOTA_REQUEST,
        annotations::QUOTA_GUARANTEED,
    ]
    .map(|key| annotated(quota, key, &mut outline));
    let used = used(quota);
    outline.add_amounts(&[
        ("used", &used),
        ("request", &request),
        ("runtime", &runtime),
        ("free", &difference(&limit(quota), &used)),
        ("min", &quota.spec.min),
        ("max", &quota.spec.max),
        ("guaranteed", &guaranteed),
    ]);
    if runtime.is_empty() && !is_built_in(name(quota)) {
        outline.add_problem(
            "no runtime quota is published, free is computed from max: is koord-scheduler running?",
        );
    }
    add_mistakes(quota, &index, &mut outline);
    if quota.is_parent() && !(waiting.is_empty() && placed.is_empty()) {
        let names: Vec<String> = waiting
            .iter()
            .chain(&placed)
            .map(|pod| full_name(&pod.metadata))
            .collect();
        outline.add_problem(format!(
            "the quota has children, so koord-manager refuses new pods of it: {}",
            join_names(&names)
        ));
    }
    let rows = waiting.iter().map(|pod| {
        let refusals = refusals(pod, quota, &index);
        let reason = match refusals.as_slice() {
            [] => format!(
                "the quota is sufficient; {}",
                scheduled_message(pod).unwrap_or(UNREPORTED)
            ),
            refusals => refusals.join("; "),
        };
        vec![full_name(&pod.metadata), reason]
    });
    outline.add_table("pending pods", &["pod", "reason"], rows.collect());
    outline
}

/// Adds the quota's place in the tree and its settings.
fn add_settings(quota: &ElasticQuota, quotas: &[ElasticQuota], outline: &mut Outline) {
    let children = quotas.iter().filter(|it| it.parent() == name(quota));
    let children: Vec<&str> = children.map(name).collect();
    if !quota.parent().is_empty() {
        outline.add_fact(format!("parent: {}", quota.parent()));
    }
    if !children.is_empty() {
        outline.add_fact(format!("children: {}", join_names(&children)));
    }
    match quota.label(labels::QUOTA_TREE_ID) {
        "" => {}
        tree => outline.add_fact(format!("tree: {tree}")),
    }
    match quota.namespaces() {
        Ok(namespaces) if namespaces.is_empty() => {}
        Ok(namespaces) => outline.add_fact(format!(
            "pods without a quota label: those of namespaces {}",
            join_names(&namespaces)
        )),
        Err(error) => outline.add_problem(error.to_string()),
    }
    if !quota.is_lendable() {
        outline.add_fact("unused min is not lent to other quotas");
    }
}

/// Adds what is wrong with the quota itself.
fn add_mistakes(quota: &ElasticQuota, index: &QuotaIndex<'_>, outline: &mut Outline) {
    if let Some(first) = index.by_name.get(name(quota))
        && namespace(first) != namespace(quota)
    {
        outline.add_problem(format!(
            "the quota has no effect: the one of namespace {} has the same name and is older",
            namespace(first)
        ));
    }
    let parent = quota.parent();
    match index.by_name.get(parent) {
        None if parent.is_empty() || is_built_in(parent) => {}
        None => outline.add_problem(format!("there is no parent {parent}")),
        Some(found) if is_built_in(parent) || found.is_parent() => {}
        Some(_) => outline.add_problem(format!(
            "parent {parent} has no label {}=true",
            labels::QUOTA_IS_PARENT
        )),
    }
    if quota.spec.max.is_empty() {
        outline.add_problem("spec.max is empty: nothing is limited");
    }
    let used = used(quota);
    for (problem, over) in [
        ("min above max", excess(&quota.spec.min, &quota.spec.max)),
        ("used above max", excess(&used, &quota.spec.max)),
    ] {
        if !over.is_empty() {
            outline.add_problem(format!("{problem}: {}", over.join(", ")));
        }
    }
}

/// Returns why the quota or one of its ancestors refuses a pod; empty if they admit it.
fn refusals(pod: &Pod, quota: &ElasticQuota, index: &QuotaIndex<'_>) -> Vec<String> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let mut requests = match requests::pod_requests(spec) {
        Ok(requests) => requests,
        Err(error) => return vec![error.to_string()],
    };
    // A quota counts only what its max lists.
    requests.retain(|resource, _| quota.spec.max.contains_key(resource));
    let mut refusals = shortfalls(&requests, &difference(&limit(quota), &used(quota)));
    if pod.metadata.labels.as_ref().text(labels::POD_PREEMPTIBLE) == Some("false") {
        let used = quota.amounts(annotations::QUOTA_NON_PREEMPTIBLE_USED);
        let free = difference(&quota.spec.min, &used.unwrap_or_default());
        let over = shortfalls(&requests, &free);
        refusals.extend(
            over.iter()
                .map(|it| format!("{it} of min, because it is not preemptible")),
        );
    }
    for ancestor in index.ancestors(quota) {
        let over = shortfalls(&requests, &difference(&limit(ancestor), &used(ancestor)));
        let name = name(ancestor);
        refusals.extend(
            over.iter()
                .map(|it| format!("{it} in parent {name}, if enableCheckParentQuota is set")),
        );
    }
    refusals
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn quota(name: &str, max: &str, metadata: Value, used: &str) -> ElasticQuota {
        let mut object = json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"min": {"cpu": "2"}, "max": {"cpu": max}}, "status": {"used": {"cpu": used}}});
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn with_runtime(name: &str, runtime: &str, used: &str, labels: Value) -> ElasticQuota {
        let annotations = json!({annotations::QUOTA_RUNTIME: json!({"cpu": runtime}).to_string()});
        quota(
            name,
            "10",
            json!({"annotations": annotations, "labels": labels}),
            used,
        )
    }

    fn pod(name: &str, quota: &str, cpu: &str, more: Value) -> Pod {
        let mut object = json!({
            "metadata": {"name": name, "namespace": "d", "labels": {labels::POD_QUOTA_NAME: quota}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"phase": "Pending"}});
        for (pointer, value) in more.as_object().unwrap() {
            let (part, field) = pointer.split_once('/').unwrap();
            object[part][field] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn refused_pod_has_needed_and_free_amounts() {
        let team = with_runtime("team", "4", "3", json!({}));
        let pods = [
            pod("big", "team", "2", json!({})),
            pod("small", "team", "1", json!({})),
            pod("other", "", "2", json!({})),
            pod("placed", "team", "3", json!({"spec/nodeName": "n"})),
            pod("done", "team", "3", json!({"status/phase": "Succeeded"})),
        ];
        let text = explain(&team, std::slice::from_ref(&team), &pods).render();
        assert_eq!(
            text,
            "\
quota team of namespace default: 1 pod on nodes, 2 pending
  parent: koordinator-root-quota
  amounts:
    resource  used  request  runtime  free  min  max  guaranteed
    cpu       3     -        4        1     2    10   -
  pending pods:
    pod      reason
    d/big    cpu: needs 2, free 1
    d/small  the quota is sufficient; no scheduler has reported on it
"
        );
    }

    #[test]
    fn parent_and_min_can_refuse_a_pod() {
        let parent = with_runtime("p", "5", "5", json!({labels::QUOTA_IS_PARENT: "true"}));
        let child = with_runtime("c", "9", "1", json!({labels::QUOTA_PARENT: "p"}));
        let mut fixed = pod("a", "c", "3", json!({}));
        let labels = fixed.metadata.labels.as_mut().unwrap();
        labels.insert(labels::POD_PREEMPTIBLE.to_owned(), "false".to_owned());
        let quotas = [parent, child];
        let index = QuotaIndex::new(&quotas);
        assert_eq!(
            refusals(&fixed, &quotas[1], &index),
            [
                "cpu: needs 3, free 2 of min, because it is not preemptible",
                "cpu: needs 3, free 0 in parent p, if enableCheckParentQuota is set",
            ]
        );
        let placed = [pod("x", "p", "1", json!({"spec/nodeName": "n"}))];
        let outline = explain(&quotas[0], &quotas, &placed);
        assert_eq!(outline.facts[1], "children: c");
        let expected = "the quota has children, so koord-manager refuses new pods of it: d/x";
        assert_eq!(outline.problems, [expected]);
    }

    #[test]
    fn mistakes_of_a_quota_are_problems() {
        let lone = |metadata: Value| {
            let quota = quota("q", "1", metadata, "3");
            explain(&quota, std::slice::from_ref(&quota), &[]).problems
        };
        let unpublished =
            "no runtime quota is published, free is computed from max: is koord-scheduler running?";
        assert_eq!(
            lone(json!({"labels": {labels::QUOTA_PARENT: "lost"}})),
            [
                unpublished,
                "there is no parent lost",
                "min above max: cpu 2 > 1",
                "used above max: cpu 3 > 1"
            ]
        );
        let broken = lone(
            json!({"annotations": {annotations::QUOTA_RUNTIME: "{", annotations::QUOTA_NAMESPACES: "x"}}),
        );
        assert!(broken[0].contains("/namespaces"), "{broken:?}");
        assert!(broken[1].contains("/runtime"), "{broken:?}");
    }

    #[test]
    fn pods_belong_to_label_then_namespace() {
        let claims =
            |list: Value| json!({"annotations": {annotations::QUOTA_NAMESPACES: list.to_string()}});
        let mut own = quota("n2", "1", json!({}), "0");
        own.metadata.namespace = Some("n2".to_owned());
        let quotas = [
            quota("b", "1", claims(json!(["n1", "n2"])), "0"),
            quota("a", "1", claims(json!(["n1"])), "0"),
            own,
        ];
        let index = QuotaIndex::new(&quotas);
        for (namespace, label, expected) in [
            ("n1", "", "a"),
            ("n2", "", "n2"),
            ("n1", "b", "b"),
            ("n1", "lost", DEFAULT_QUOTA),
            ("n3", "", DEFAULT_QUOTA),
            ("n1", ROOT_QUOTA, ROOT_QUOTA),
        ] {
            let mut pod = pod("p", label, "1", json!({}));
            pod.metadata.namespace = Some(namespace.to_owned());
            assert_eq!(index.quota_of(&pod), expected, "{namespace} {label}");
        }
    }

    #[test]
    fn built_in_quota_needs_no_runtime() {
        let default = quota(DEFAULT_QUOTA, "9", json!({}), "0");
        let outline = explain(&default, std::slice::from_ref(&default), &[]);
        assert!(outline.problems.is_empty(), "{:?}", outline.problems);
    }

    #[test]
    fn circle_of_parents_ends() {
        let quotas = ["a", "b"].map(|name| {
            let parent = if name == "a" { "b" } else { "a" };
            with_runtime(name, "1", "1", json!({labels::QUOTA_PARENT: parent}))
        });
        assert_eq!(
            QuotaIndex::new(&quotas).ancestors(&quotas[0]).len(),
            MAX_DEPTH
        );
    }

    #[test]
    fn younger_quota_of_a_name_has_no_effect() {
        let at = |namespace: &str, time: &str| {
            quota(
                "q",
                "4",
                json!({"namespace": namespace, "creationTimestamp": time}),
                "0",
            )
        };
        let quotas = [
            at("young", "2026-01-02T00:00:00Z"),
            at("old", "2026-01-01T00:00:00Z"),
        ];
        let expected =
            "the quota has no effect: the one of namespace old has the same name and is older";
        let problems = |quota| explain(quota, &quotas, &[]).problems;
        assert!(problems(&quotas[0]).contains(&expected.to_owned()));
        assert!(!problems(&quotas[1]).contains(&expected.to_owned()));
    }
}
