//! Explains a gang: its members, and what it waits for.

use super::outline::Outline;
use super::{UNREPORTED, full_name, is_pending, scheduled_message};
use crate::check::outcome::join_names;
use k8s_openapi::api::core::v1::Pod;
use koord_api::scheduling::{PodGroup, PodGroupPhase};
use koord_api::texts::Lookup as _;
use koord_api::{GoDuration, annotations};
use koord_app::console::counted;
use koord_model::gang::spec::{self, gang_name, has_pod_group};
use koord_model::gang::{Defaults, GangDescription, Ignored};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Members of a gang by state.
#[derive(Debug, Default)]
struct GangMembers<'a> {
    waiting: Vec<&'a Pod>,
    bound: usize,
    running: usize,
    succeeded: usize,
    failed: usize,
}

impl<'a> GangMembers<'a> {
    fn new(namespace: &str, name: &str, pods: &'a [Pod]) -> Self {
        let mut members = Self::default();
        for pod in pods_of(namespace, name, pods) {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            match phase {
                Some("Succeeded") => members.succeeded += 1,
                Some("Failed") => members.failed += 1,
                _ if is_pending(pod) => members.waiting.push(pod),
                phase => {
                    members.bound += 1;
                    members.running += usize::from(phase == Some("Running"));
                }
            }
        }
        members
    }

    /// Returns the number of members that count toward the minimum.
    fn existing(&self) -> usize {
        self.waiting.len() + self.bound + self.succeeded
    }
}

fn pods_of<'a>(namespace: &str, name: &str, pods: &'a [Pod]) -> impl Iterator<Item = &'a Pod> {
    pods.iter().filter(move |pod| {
        pod.metadata.namespace.as_deref() == Some(namespace)
            && gang_name(&pod.metadata) == Some(name)
    })
}

/// Finds the PodGroup of a gang.
fn find<'a>(namespace: &str, name: &str, groups: &'a [PodGroup]) -> Option<&'a PodGroup> {
    groups.iter().find(|group| {
        group.metadata.namespace.as_deref() == Some(namespace)
            && group.metadata.name.as_deref() == Some(name)
    })
}

/// Returns the description of a gang, by its PodGroup or the oldest member that has one; also the ignored values.
fn describe(
    namespace: &str,
    name: &str,
    groups: &[PodGroup],
    pods: &[Pod],
) -> (Option<GangDescription>, Vec<Ignored>) {
    let (id, defaults) = (spec::id(namespace, name), Defaults::default());
    if let Some(group) = find(namespace, name, groups) {
        let (description, ignored) = spec::from_pod_group(group, &id, &defaults);
        return (Some(description), ignored);
    }
    let members = pods_of(namespace, name, pods).filter(|pod| !has_pod_group(&pod.metadata));
    let mut described: Vec<_> = members
        .map(|pod| (pod, spec::from_pod(&pod.metadata, &id, &defaults)))
        .collect();
    described.sort_by_key(|(pod, (description, _))| {
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (description.is_none(), created, pod.metadata.name.clone())
    });
    let first = described.into_iter().next();
    first.map_or((None, Vec::new()), |(_, description)| description)
}

/// Explains the gang `name`; `groups` and `pods` are those of the cluster. `None` if there is no such gang.
pub(super) fn explain(
    namespace: &str,
    name: &str,
    groups: &[PodGroup],
    pods: &[Pod],
) -> Option<Outline> {
    let members = GangMembers::new(namespace, name, pods);
    let group = find(namespace, name, groups);
    if group.is_none() && pods_of(namespace, name, pods).next().is_none() {
        return None;
    }
    let status = group
        .and_then(|group| group.status.clone())
        .unwrap_or_default();
    let phase = status.phase.as_ref().map_or("", PodGroupPhase::as_str);
    let (description, ignored) = describe(namespace, name, groups, pods);
    let needs = description.as_ref().map_or_else(
        || "the number it needs is unknown".to_owned(),
        |description| format!("needs {}", counted(description.min, "pod")),
    );
    let mut outline = Outline {
        title: format!(
            "gang {namespace}/{name}: {needs}, has {}: {} bound, {} waiting for a node",
            members.existing(),
            members.bound,
            members.waiting.len()
        ),
        ..Outline::default()
    };
    if !phase.is_empty() {
        outline.add_fact(format!("phase {phase} of its PodGroup"));
    }
    if members.running + members.succeeded + members.failed > 0 {
        outline.add_fact(format!(
            "{} running, {} succeeded, {} failed",
            members.running, members.succeeded, members.failed
        ));
    }
    if let Some(description) = &description {
        add_settings(description, &mut outline);
    }
    for Ignored { key, value, why } in ignored {
        outline.add_problem(format!("{key} {value:?}: {why}"));
    }
    let all: Vec<&Pod> = pods_of(namespace, name, pods).collect();
    if group.is_none() && all.iter().any(|pod| has_pod_group(&pod.metadata)) {
        outline.add_problem(format!(
            "there is no PodGroup {namespace}/{name}, which its pods name: they are not scheduled before it exists"
        ));
    }
    let is_over = matches!(
        status.phase,
        Some(PodGroupPhase::Finished | PodGroupPhase::Failed)
    );
    if let Some(description) = &description
        && !is_over
    {
        add_missing(description, &members, groups, pods, &mut outline);
    }
    add_conflicts(&all, &mut outline);
    add_members(&all, &mut outline);
    Some(outline)
}

fn add_settings(description: &GangDescription, outline: &mut Outline) {
    outline.add_fact(format!(
        "mode {}, match policy {}, members wait for others for {}",
        description.mode.as_str(),
        description.policy.as_str(),
        GoDuration::from(description.wait)
    ));
    if description.total > description.min {
        outline.add_fact(format!("{} members in total", description.total));
    }
    if description.topology.is_some() {
        outline.add_fact(format!(
            "it has requirements for the network topology: annotation {}",
            annotations::GANG_NETWORK_TOPOLOGY_SPEC
        ));
    }
}

/// Adds what the gang and those that start together with it still need.
fn add_missing(
    description: &GangDescription,
    members: &GangMembers<'_>,
    groups: &[PodGroup],
    pods: &[Pod],
    outline: &mut Outline,
) {
    let missing = description.min.saturating_sub(members.existing());
    if missing > 0 {
        outline.add_problem(format!(
            "{} missing: create the missing members or lower the minimum",
            counted(missing, "pod")
        ));
    } else if !members.waiting.is_empty() && members.bound + members.succeeded < description.min {
        outline.add_problem(format!(
            "no member starts before {} have a node",
            counted(description.min, "member")
        ));
    }
    if description.group.len() < 2 {
        return;
    }
    let mut rows = Vec::new();
    for id in &description.group {
        let Some((namespace, name)) = id.split_once('/') else {
            outline.add_problem(format!("{id:?} of its gang group is not NAMESPACE/NAME"));
            continue;
        };
        let other = GangMembers::new(namespace, name, pods);
        let min = describe(namespace, name, groups, pods)
            .0
            .map(|other| other.min);
        if min.is_none_or(|min| other.existing() < min) {
            let needs = min.map_or_else(
                || "is not described".to_owned(),
                |min| format!("needs {min}"),
            );
            outline.add_problem(format!(
                "gang {id} of its gang group {needs} and has {}: all start together",
                other.existing()
            ));
        }
        rows.push(vec![
            id.to_string(),
            min.map_or_else(|| "-".to_owned(), |min| min.to_string()),
            other.existing().to_string(),
            other.bound.to_string(),
        ]);
    }
    outline.add_table("gang group", &["gang", "needs", "has", "bound"], rows);
}

/// Adds what the members disagree about.
fn add_conflicts(members: &[&Pod], outline: &mut Outline) {
    let schedulers = members
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.scheduler_name.as_deref());
    let schedulers: BTreeSet<&str> = schedulers.collect();
    if schedulers.len() > 1 {
        let names: Vec<&str> = schedulers.into_iter().collect();
        outline.add_problem(format!(
            "members have several schedulers: {}",
            join_names(&names)
        ));
    }
    let late: Vec<String> = members
        .iter()
        .filter(|pod| {
            let annotations = pod.metadata.annotations.as_ref();
            annotations.text(annotations::GANG_TIMEOUT) == Some("true")
        })
        .map(|pod| full_name(&pod.metadata))
        .collect();
    if !late.is_empty() {
        outline.add_problem(format!("the gang timed out: {}", join_names(&late)));
    }
}

/// Adds a table of the members: those without a node grouped by reason.
fn add_members(members: &[&Pod], outline: &mut Outline) {
    let mut waiting: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut nodes: BTreeMap<Arc<str>, Vec<String>> = BTreeMap::new();
    for pod in members {
        let pod_name = pod.metadata.name.clone().unwrap_or_default();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        match node.filter(|node| !node.is_empty()) {
            Some(node) => nodes.entry(node.into()).or_default().push(pod_name),
            None if is_pending(pod) => {
                let reason = scheduled_message(pod).unwrap_or(UNREPORTED);
                waiting.entry(reason).or_default().push(pod_name);
            }
            None => {}
        }
    }
    let row = |place: &str, pods: &[String]| {
        vec![place.to_owned(), pods.len().to_string(), join_names(pods)]
    };
    let rows = nodes.iter().map(|(node, pods)| row(node, pods)).collect();
    outline.add_table("members on nodes", &["node", "pods", "names"], rows);
    let rows = waiting
        .iter()
        .map(|(reason, pods)| row(reason, pods))
        .collect();
    outline.add_table("members without a node", &["reason", "pods", "names"], rows);
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_api::labels;
    use serde_json::{Value, json};

    fn group(name: &str, min: i32, metadata: Value, phase: &str) -> PodGroup {
        let mut object = json!({"metadata": {"name": name, "namespace": "d"},
            "spec": {"minMember": min}, "status": {"phase": phase}});
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    fn pod(name: &str, gang: &str, node: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "d", "labels": {labels::POD_GROUP: gang}},
            "spec": {"containers": [], "nodeName": node, "schedulerName": "koord-scheduler"},
            "status": {"phase": phase}}))
        .unwrap()
    }

    #[test]
    fn missing_members_are_counted() {
        let groups = [group("g", 3, json!({}), "Pending")];
        let mut waiting = pod("b", "g", "", "Pending");
        waiting.status = serde_json::from_value(json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "gang is incomplete"}]}))
        .unwrap();
        let pods = [
            pod("a", "g", "n1", "Running"),
            waiting,
            pod("x", "other", "", "Pending"),
        ];
        let text = explain("d", "g", &groups, &pods).unwrap().render();
        assert_eq!(
            text,
            "\
gang d/g: needs 3 pods, has 2: 1 bound, 1 waiting for a node
  phase Pending of its PodGroup
  1 running, 0 succeeded, 0 failed
  mode Strict, match policy once-satisfied, members wait for others for 10m0s
  members on nodes:
    node  pods  names
    n1    1     a
  members without a node:
    reason              pods  names
    gang is incomplete  1     b
  problem: 1 pod missing: create the missing members or lower the minimum
"
        );
    }

    #[test]
    fn problems_depend_on_members_and_description() {
        let annotated = |name: &str, min: &str| {
            let mut pod = pod(name, "", "", "Pending");
            let annotations =
                json!({annotations::GANG_NAME: "g", annotations::GANG_MIN_AVAILABLE: min});
            pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
            pod
        };
        let mut alien = pod("c", "g", "", "Pending");
        alien.spec.as_mut().unwrap().scheduler_name = Some("default-scheduler".to_owned());
        let none: [&str; 0] = [];
        let cases = [
            (
                "complete",
                vec![group("g", 1, json!({}), "Running")],
                vec![pod("a", "g", "n", "Running")],
                none.to_vec(),
            ),
            (
                "finished",
                vec![group("g", 2, json!({}), "Finished")],
                vec![pod("a", "g", "n", "Succeeded")],
                none.to_vec(),
            ),
            (
                "enough, but without nodes",
                vec![group("g", 2, json!({}), "PreScheduling")],
                vec![pod("a", "g", "", "Pending"), pod("b", "g", "n", "Running")],
                vec!["no member starts before 2 members have a node"],
            ),
            (
                "no PodGroup",
                Vec::new(),
                vec![pod("a", "g", "", "Pending")],
                vec![
                    "there is no PodGroup d/g, which its pods name: they are not scheduled before it exists",
                ],
            ),
            (
                "described by annotations",
                Vec::new(),
                vec![annotated("a", "2")],
                vec!["1 pod missing: create the missing members or lower the minimum"],
            ),
            (
                "several schedulers",
                vec![group("g", 2, json!({}), "Scheduling")],
                vec![
                    pod("a", "g", "n", "Running"),
                    pod("b", "g", "n", "Running"),
                    alien,
                ],
                vec!["members have several schedulers: default-scheduler, koord-scheduler"],
            ),
        ];
        for (case, groups, pods, expected) in cases {
            let outline = explain("d", "g", &groups, &pods).unwrap();
            assert_eq!(outline.problems, expected, "{case}");
        }
        assert_eq!(explain("d", "g", &[], &[]), None);
    }

    #[test]
    fn gang_group_lists_the_other_gangs() {
        let together =
            json!({"annotations": {annotations::GANG_GROUPS: "[\"d/g\",\"d/h\",\"d/i\"]"}});
        let groups = [
            group("g", 1, together, "Pending"),
            group("h", 2, json!({}), "Pending"),
        ];
        let pods = [pod("a", "g", "n", "Running"), pod("b", "h", "", "Pending")];
        let outline = explain("d", "g", &groups, &pods).unwrap();
        assert_eq!(
            outline.problems,
            [
                "gang d/h of its gang group needs 2 and has 1: all start together",
                "gang d/i of its gang group is not described and has 0: all start together",
            ]
        );
        assert_eq!(outline.tables[0].rows[2], ["d/i", "-", "0", "0"]);
    }

    #[test]
    fn ignored_values_are_problems() {
        let broken = json!({"annotations": {annotations::GANG_MODE: "Loose", annotations::GANG_GROUPS: "x"}});
        let groups = [group("g", 0, broken, "")];
        let problems = explain("d", "g", &groups, &[]).unwrap().problems;
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(
            problems[0].starts_with("spec.minMember \"0\""),
            "{problems:?}"
        );
    }
}
