//! Checks of the components' workloads and leases.

use super::read;
use crate::check::outcome::{Findings, Outcome, join_names};
use crate::check::snapshot::Snapshot;
use crate::fetch::{elements, full_name, has_condition, integer, label, name, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const UP: &str = "runs in the process of `koord up`";
/// Restarts of a container that are worth a warning.
const MANY_RESTARTS: i64 = 3;
/// Label with the component's name.
pub(crate) const COMPONENT: &str = "koord-app";
/// The components with a Deployment.
const CONTROL_PLANE: [&str; 3] = ["koord-manager", "koord-scheduler", "koord-descheduler"];
/// Names of the components' leases. A scheduler may use the one of kube-scheduler.
const LEASES: [(&str, &str); 3] = [
    ("koord-manager", "koordinator-manager"),
    ("koord-scheduler", "koord-scheduler"),
    ("koord-descheduler", "koord-descheduler"),
];

pub(super) fn manager(snapshot: &Snapshot) -> Outcome {
    deployment(snapshot, "koord-manager")
}

pub(super) fn scheduler(snapshot: &Snapshot) -> Outcome {
    deployment(snapshot, "koord-scheduler")
}

pub(super) fn descheduler(snapshot: &Snapshot) -> Outcome {
    deployment(snapshot, "koord-descheduler")
}

pub(super) fn koordlet(snapshot: &Snapshot) -> Outcome {
    let sets = read!(snapshot.daemon_sets);
    let Some(set) = sets.iter().find(|it| is_component(it, "koordlet")) else {
        return absent(snapshot, "DaemonSet koordlet");
    };
    let count = |field: &str| integer(set, &format!("/status/{field}")).unwrap_or_default();
    let (desired, ready) = (count("desiredNumberScheduled"), count("numberReady"));
    let updated = count("updatedNumberScheduled");
    let mut findings = Findings::default();
    find_unobserved(&mut findings, set);
    if ready < desired {
        findings.fail(format!("{ready} of {desired} pods are ready"));
    }
    if updated < desired {
        findings.warn(format!(
            "roll-out not finished: {updated} of {desired} pods are updated"
        ));
    }
    find_restarts(&mut findings, snapshot, "koordlet");
    findings.finish(format!("{ready} of {desired} ready, {}", images(set)))
}

fn deployment(snapshot: &Snapshot, component: &str) -> Outcome {
    let deployments = read!(snapshot.deployments);
    let Some(deployment) = deployments.iter().find(|it| is_component(it, component)) else {
        return absent(snapshot, &format!("Deployment {component}"));
    };
    let count = |field: &str| integer(deployment, &format!("/status/{field}")).unwrap_or_default();
    let desired = integer(deployment, "/spec/replicas").unwrap_or(1);
    let (ready, updated) = (count("readyReplicas"), count("updatedReplicas"));
    let mut findings = Findings::default();
    find_unobserved(&mut findings, deployment);
    if desired == 0 {
        findings.warn("scaled to 0 replicas");
    } else if ready == 0 {
        findings.fail(format!("none of {desired} replicas is ready"));
    } else if ready < desired {
        findings.warn(format!("{ready} of {desired} replicas are ready"));
    }
    if updated < desired {
        findings.warn(format!(
            "roll-out not finished: {updated} of {desired} replicas are updated"
        ));
    }
    find_restarts(&mut findings, snapshot, component);
    findings.finish(format!(
        "{ready} of {desired} ready, {}",
        images(deployment)
    ))
}

/// Returns the outcome for a workload that does not exist.
fn absent(snapshot: &Snapshot, workload: &str) -> Outcome {
    if snapshot.is_koord_up() {
        return Outcome::ok(UP);
    }
    let mut findings = Findings::default();
    findings.fail(format!("no {workload} in namespace {}", snapshot.namespace));
    findings.finish("")
}

/// Returns whether an object belongs to `component`, by its label or its name.
pub(crate) fn is_component(object: &Value, component: &str) -> bool {
    match label(object, COMPONENT) {
        "" => name(object) == component,
        app => app == component,
    }
}

/// Returns the images of a workload's or pod's containers.
pub(crate) fn images(object: &Value) -> String {
    let pod = elements(object, "/spec/containers");
    let template = elements(object, "/spec/template/spec/containers");
    let containers = pod.iter().chain(template);
    let images: Vec<&str> = containers.map(|it| text(it, "/image")).collect();
    images.join(", ")
}

fn find_unobserved(findings: &mut Findings, workload: &Value) {
    let generation = integer(workload, "/metadata/generation");
    if integer(workload, "/status/observedGeneration") < generation {
        findings.warn("the status is older than the spec");
    }
}

fn find_restarts(findings: &mut Findings, snapshot: &Snapshot, component: &str) {
    let pods = snapshot.pods.value().into_iter().flatten();
    for pod in pods.filter(|pod| label(pod, COMPONENT) == component) {
        for status in elements(pod, "/status/containerStatuses") {
            let restarts = integer(status, "/restartCount").unwrap_or_default();
            if restarts > MANY_RESTARTS {
                let reason = text(status, "/lastState/terminated/reason");
                findings.warn(format!(
                    "pod {} restarted {restarts} times{}{reason}",
                    full_name(pod),
                    if reason.is_empty() { "" } else { ", last: " },
                ));
            }
            let waiting = text(status, "/state/waiting/reason");
            if !matches!(waiting, "" | "ContainerCreating" | "PodInitializing") {
                findings.warn(format!("pod {} waits: {waiting}", full_name(pod)));
            }
        }
    }
}

pub(super) fn leases(snapshot: &Snapshot) -> Outcome {
    let leases = read!(snapshot.leases);
    let mut findings = Findings::default();
    let mut fine = Vec::new();
    let deployments = snapshot.deployments.value();
    for (component, lease_name) in LEASES {
        let is_installed =
            deployments.is_some_and(|all| all.iter().any(|it| is_component(it, component)));
        let Some(lease) = leases.iter().find(|it| name(it) == lease_name) else {
            // A scheduler may be configured with another lease.
            if is_installed && component != "koord-scheduler" {
                findings.fail(format!(
                    "there is no Lease {lease_name}, {component} has no leader"
                ));
            }
            continue;
        };
        let holder = text(lease, "/spec/holderIdentity");
        if holder.is_empty() {
            findings.fail(format!("Lease {lease_name} has no holder"));
            continue;
        }
        let duration = integer(lease, "/spec/leaseDurationSeconds").unwrap_or(15);
        match snapshot.age(text(lease, "/spec/renewTime")) {
            Some(age) if age > duration => findings.fail(format!(
                "Lease {lease_name} of {holder} was renewed {age} s ago, and is valid for {duration} s"
            )),
            None => findings.fail(format!("Lease {lease_name} of {holder} has no renewTime")),
            Some(_) => fine.push(format!("{component}: {holder}")),
        }
        // Identities are the pod's name with a suffix.
        let holds = |pod: &Value| holder.starts_with(name(pod));
        let pods = snapshot.pods.value().filter(|_| is_installed);
        if pods.is_some_and(|pods| !pods.iter().any(holds)) {
            findings.warn(format!(
                "no pod has the name of the holder of Lease {lease_name}, {holder}"
            ));
        }
    }
    if fine.is_empty() {
        fine.push("no component with a lease is installed".to_owned());
    }
    findings.finish(fine.join(", "))
}

pub(super) fn duplicates(snapshot: &Snapshot) -> Outcome {
    let pods = read!(snapshot.pods);
    let mut findings = Findings::default();
    for component in CONTROL_PLANE {
        let of_component = |pod: &&Value| label(pod, COMPONENT) == component;
        let namespaces: BTreeSet<&str> = pods
            .iter()
            .filter(of_component)
            .map(|pod| text(pod, "/metadata/namespace"))
            .collect();
        if namespaces.len() > 1 {
            let namespaces: Vec<&str> = namespaces.into_iter().collect();
            findings.fail(format!(
                "{component} runs in several namespaces, each with its own lease: {}",
                join_names(&namespaces)
            ));
        }
    }
    if let Some(deployments) = snapshot.deployments.value() {
        for component in CONTROL_PLANE {
            let named: Vec<&str> = deployments
                .iter()
                .filter(|it| is_component(it, component))
                .map(name)
                .collect();
            if named.len() > 1 {
                findings.fail(format!(
                    "several Deployments of {component}: {}",
                    join_names(&named)
                ));
            }
        }
    }
    findings.finish("each component is installed once")
}

/// Returns whether an image is one of Koordinator's, which are published below this organization.
fn is_koordinator_image(image: &str) -> bool {
    image.contains("koordinator-sh/")
}

pub(super) fn origins(snapshot: &Snapshot) -> Outcome {
    let pods = read!(snapshot.pods);
    let mut by_component: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pod in pods {
        let component = label(pod, COMPONENT);
        if CONTROL_PLANE.contains(&component) || component == "koordlet" {
            let images = elements(pod, "/spec/containers").iter();
            let images = images.map(|it| text(it, "/image"));
            by_component.entry(component).or_default().extend(images);
        }
    }
    let mut findings = Findings::default();
    let mut summary = Vec::new();
    for (component, images) in &by_component {
        let koordinator = images.iter().filter(|it| is_koordinator_image(it)).count();
        let all: Vec<&str> = images.iter().copied().collect();
        if koordinator > 0 && koordinator < images.len() {
            findings.warn(format!(
                "{component} has images of Koordinator and others: {}",
                join_names(&all)
            ));
        }
        let origin = if koordinator == images.len() {
            "Koordinator"
        } else {
            "koord"
        };
        summary.push(format!("{component}: {origin}"));
    }
    match summary.is_empty() {
        true if snapshot.is_koord_up() => Outcome::ok(UP),
        true => Outcome::skipped("no component runs in pods"),
        false => findings.finish(summary.join(", ")),
    }
}

pub(super) fn spread(snapshot: &Snapshot) -> Outcome {
    let pods = read!(snapshot.pods);
    let several_nodes = snapshot.nodes.value().is_some_and(|nodes| nodes.len() > 1);
    let mut findings = Findings::default();
    for component in CONTROL_PLANE {
        let running = pods
            .iter()
            .filter(|pod| label(pod, COMPONENT) == component && has_condition(pod, "Ready"));
        let nodes: Vec<&str> = running.map(|pod| text(pod, "/spec/nodeName")).collect();
        let distinct: BTreeSet<&str> = nodes.iter().copied().collect();
        if several_nodes && nodes.len() > 1 && distinct.len() == 1 {
            findings.warn(format!(
                "all replicas of {component} are on node {}",
                nodes[0]
            ));
        }
    }
    for budget in snapshot.budgets.value().into_iter().flatten() {
        let expected = integer(budget, "/status/expectedPods").unwrap_or_default();
        let allowed = integer(budget, "/status/disruptionsAllowed").unwrap_or_default();
        let desired = integer(budget, "/status/desiredHealthy").unwrap_or_default();
        if expected > 0 && allowed == 0 && desired >= expected {
            findings.warn(format!(
                "PodDisruptionBudget {} allows no disruption: {desired} of {expected} pods must be healthy",
                name(budget)
            ));
        }
    }
    findings.finish("replicas are spread, budgets allow disruptions")
}
