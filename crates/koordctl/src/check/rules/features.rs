//! Checks of settings and of what the manager computes from them.

use super::read;
use crate::check::outcome::{Findings, Outcome, join_names};
use crate::check::snapshot::Snapshot;
use crate::fetch::{label, name, text};
use koord_api::configmap::{SloControllerConfig, keys};
use koord_api::{labels, resources};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the data of the ConfigMap; `None` if there is no ConfigMap.
fn data(snapshot: &Snapshot) -> Result<Option<BTreeMap<String, String>>, String> {
    let map = snapshot.slo_config.read()?;
    let Some(map) = map else { return Ok(None) };
    let data = serde_json::from_value(map["data"].clone());
    Ok(Some(data.unwrap_or_default()))
}

/// Returns whether the cluster strategy turns co-location on.
fn is_colocation_on(data: &BTreeMap<String, String>) -> bool {
    let section = data
        .get(keys::COLOCATION)
        .map(String::as_str)
        .unwrap_or_default();
    let section: Value = serde_json::from_str(section).unwrap_or_default();
    section["enable"] == true
}

pub(super) fn settings(snapshot: &Snapshot) -> Outcome {
    let data = match data(snapshot) {
        Ok(Some(data)) => data,
        Ok(None) => {
            return Outcome::skipped(
                "there is no ConfigMap slo-controller-config: defaults are in effect",
            );
        }
        Err(reason) => return Outcome::skipped(reason),
    };
    let (_, report) = SloControllerConfig::parse(&data);
    let mut findings = Findings::default();
    for error in &report.errors {
        findings.fail(error.to_string());
    }
    for problem in report
        .warnings
        .iter()
        .chain(&report.doubts)
        .chain(&report.left_out)
    {
        findings.warn(problem.to_string());
    }
    for remark in &report.remarks {
        findings.warn(remark.to_string());
    }
    let state = if is_colocation_on(&data) { "on" } else { "off" };
    findings.finish(format!("co-location of the cluster is {state}"))
}

pub(super) fn batch(snapshot: &Snapshot) -> Outcome {
    let nodes = read!(snapshot.nodes);
    match data(snapshot) {
        Ok(data) if !data.as_ref().is_some_and(is_colocation_on) => {
            return Outcome::skipped("co-location is off");
        }
        Ok(_) => {}
        Err(reason) => return Outcome::skipped(reason),
    }
    let (mut absent, mut zero) = (Vec::new(), Vec::new());
    for node in nodes {
        let allocatable = node.pointer("/status/allocatable");
        let amount = allocatable.and_then(|it| it.get(resources::BATCH_CPU));
        match amount.and_then(Value::as_str) {
            None => absent.push(name(node)),
            Some("0") => zero.push(name(node)),
            Some(_) => {}
        }
    }
    let mut findings = Findings::default();
    if !absent.is_empty() {
        findings.warn(format!(
            "{} nodes without batch-cpu: {}",
            absent.len(),
            join_names(&absent)
        ));
    }
    if !zero.is_empty() {
        findings.warn(format!(
            "{} nodes with batch-cpu 0: {}",
            zero.len(),
            join_names(&zero)
        ));
    }
    findings.finish(format!("{} nodes have batch-cpu", nodes.len()))
}

pub(super) fn node_slos(snapshot: &Snapshot) -> Outcome {
    let nodes = read!(snapshot.nodes);
    let slos = read!(snapshot.node_slos);
    let named: BTreeSet<&str> = slos.iter().map(name).collect();
    let names = nodes.iter().map(name);
    let missing: Vec<&str> = names.filter(|node| !named.contains(node)).collect();
    let mut findings = Findings::default();
    if !missing.is_empty() {
        findings.warn(format!(
            "{} nodes without NodeSLO: {}",
            missing.len(),
            join_names(&missing)
        ));
    }
    findings.finish(format!("{} NodeSLOs", slos.len()))
}

pub(super) fn profiles(snapshot: &Snapshot) -> Outcome {
    let profiles = read!(snapshot.profiles);
    let classes = read!(snapshot.priority_classes);
    let classes: BTreeSet<&str> = classes.iter().map(name).collect();
    let mut findings = Findings::default();
    let own = koord_api::priority_class_values();
    let missing: Vec<&str> = own
        .iter()
        .map(name)
        .filter(|it| !classes.contains(it))
        .collect();
    // A cluster without koord has neither.
    if !missing.is_empty() && snapshot.node_metrics.value().is_some() {
        findings.warn(format!("missing PriorityClasses: {}", join_names(&missing)));
    }
    for profile in profiles {
        let class = text(profile, "/spec/priorityClassName");
        if !class.is_empty() && !classes.contains(class) {
            findings.fail(format!(
                "{}: there is no PriorityClass {class}",
                name(profile)
            ));
        }
        let qos = text(profile, "/spec/qosClass");
        if !matches!(qos, "" | "LSE" | "LSR" | "LS" | "BE" | "SYSTEM") {
            findings.fail(format!("{}: invalid qosClass {qos:?}", name(profile)));
        }
        if !matches!(label(profile, labels::POD_QOS), "") {
            findings.warn(format!(
                "{}: label {} has no effect on the profile itself",
                name(profile),
                labels::POD_QOS
            ));
        }
    }
    findings.finish(format!("{} profiles", profiles.len()))
}
