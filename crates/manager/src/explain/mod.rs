//! Explains the batch and mid resources of a node. It runs the same pure functions as the controller on
//! objects that the caller fetched, and lists every term with the setting that determined it.

mod profile;

pub use profile::{mismatches, profile_changes, profile_percent, profile_problems, selector_text};

use crate::config::{Config, Origins, Strategy};
use crate::facts::{FieldMask, MetricReport, PodFacts};
use crate::noderesource::{self, Draft, Input, Reset};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::annotations;
use koord_api::configmap::keys;
use koord_api::extension::{ReservedResources, ThirdPartyAllocation};
use koord_api::quantity::Quantity;
use koord_api::resources::{BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY};
use koord_api::slo::{NodeMetric, NodeMetricStatus};
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_app::flags::Selection;
use koord_model::reclaim::{self, BatchPolicy, NodeView, Sum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The objects that the computation for a node reads.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// The node.
    pub node: Node,
    /// NodeMetric of the node.
    pub metric: Option<NodeMetric>,
    /// NodeResourceTopology of the node.
    pub topology: Option<NodeResourceTopology>,
    /// Pods bound to the node.
    pub pods: Vec<Pod>,
    /// `data` of the ConfigMap with the settings; `None` if there is no ConfigMap.
    pub settings: Option<BTreeMap<String, String>>,
    /// True if services without a measurement are charged; gate `ChargeUnmeasuredPods`.
    pub charge_unmeasured: bool,
}

/// The explanation of a node's resources.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Name of the node.
    pub node: String,
    /// Reason why nothing is reclaimed; `None` if resources are reclaimed.
    pub refused: Option<String>,
    /// Age of the NodeMetric report in seconds; `None` without a report.
    pub report_age_seconds: Option<i64>,
    /// Batch CPU and memory, mid CPU and memory.
    pub resources: Vec<Resource>,
    /// Batch resources of NUMA nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneResources>,
    /// Amounts that pods are charged with, largest CPU first.
    pub services: Vec<Service>,
    /// Host applications (services outside Kubernetes), in the report's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_applications: Vec<Service>,
    /// Further notes: amplification, changes that are not written yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Problems in the settings and in the node's annotations.
    pub problems: Vec<String>,
}

/// An extended resource of a node or zone.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Name of the resource.
    pub name: &'static str,
    /// The amount that the manager publishes, in cores or bytes; `None` if it removes the resource.
    pub computed: Option<Quantity>,
    /// The amount on the node or zone, in the resource's own unit: milli-cores or bytes.
    pub published: Option<Quantity>,
    /// The terms whose sum is `computed`.
    pub terms: Vec<Term>,
}

/// The resources of a NUMA node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ZoneResources {
    /// Name of the zone, such as `node-0`.
    pub name: String,
    /// Batch CPU and memory.
    pub resources: Vec<Resource>,
}

/// One term of a resource's sum.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Term {
    /// Name of the term.
    pub what: String,
    /// Cores or bytes; negative if it is subtracted.
    pub amount: Quantity,
    /// True if the term is subtracted, which the sign of `amount` does not show for zero.
    pub taken: bool,
    /// Reason for the amount.
    pub why: String,
    /// The setting that determined it, as `name=value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    /// Source of that setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A pod or another measured consumer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Namespace and name of a pod; a description of other consumers.
    pub name: String,
    /// Basis of the amounts. For a pod: `measured`, or `request` without a measurement. For a host
    /// application: how it is counted.
    pub by: &'static str,
    /// CPU in cores.
    pub cpu: Quantity,
    /// Memory in bytes.
    pub memory: Quantity,
}

/// Explains the batch and mid resources of a node at `now`.
#[must_use]
pub fn node(objects: &Objects, now: Timestamp) -> Explanation {
    let data = objects.settings.clone().unwrap_or_default();
    let (config, problems) = Config::default().updated(&data);
    let text = data.get(keys::COLOCATION).map_or("", String::as_str);
    let mut strategy = config.strategy(&objects.node);
    if let Some(strategy) = &mut strategy {
        strategy.batch.charge_unmeasured = objects.charge_unmeasured;
    }
    let status = objects.metric.as_ref().and_then(|m| m.status.as_ref());
    let report = status.map(MetricReport::from_status);
    let facts = objects.pods.iter();
    let pods: Vec<_> = facts
        .map(|pod| Arc::new(PodFacts::from_pod(pod, FieldMask::default())))
        .collect();
    let input = Input {
        is_report_ahead: false,
        node: &objects.node,
        strategy: strategy.as_ref(),
        normalization: config.normalization(&objects.node),
        amplification: config.amplification(&objects.node),
        report: report.as_ref(),
        pods: &pods,
        topology: objects.topology.as_ref(),
        device: None,
        plugins: &Selection::all(),
        share_gpus: false,
        devices_always: false,
        synced: None,
        now,
    };
    let mut explanation = from_input(&input, &config, text);
    explanation.host_applications = status.map_or_else(Vec::new, host_applications);
    let messages = problems.into_iter().map(|problem| problem.message);
    drop(explanation.problems.splice(0..0, messages));
    explanation
}

/// Explains the batch and mid resources of the node in `input`, without host applications and without
/// problems of the settings. `text` is the effective `colocation-config`.
pub(crate) fn from_input(input: &Input<'_>, config: &Config, text: &str) -> Explanation {
    let (node, report, pods, now) = (input.node, input.report, input.pods, input.now);
    let strategy = input.strategy;
    let origins = config.origins(node, text);
    let (view, draft, results) = noderesource::decide(input);
    let age = report
        .and_then(|report| report.updated)
        .map(|updated| now.as_second().saturating_sub(updated));
    let mut explanation = Explanation {
        node: node.metadata.name.clone().unwrap_or_default(),
        refused: None,
        report_age_seconds: age,
        resources: Vec::new(),
        zones: Vec::new(),
        services: Vec::new(),
        host_applications: Vec::new(),
        notes: Vec::new(),
        problems: Vec::new(),
    };
    explanation.problems.extend(origins.ignored.iter().cloned());
    let present = node.metadata.annotations.as_ref();
    let reserved = ReservedResources::from_annotations(present);
    let ignored = |error| format!("{error}; it is ignored");
    explanation
        .problems
        .extend(reserved.err().map(|error| ignored(error.to_string())));
    let failed = results
        .iter()
        .filter_map(|(plugin, result)| Some((plugin, result.as_ref().err()?)));
    explanation.problems.extend(
        failed.map(|(plugin, reason)| format!("{plugin}: {reason}; the plugin has no effect")),
    );
    let shown = node.status.as_ref();
    let shown = shown.and_then(|status| status.allocatable.as_ref());
    let mut sums = [None, None, None, None];
    match (view, strategy) {
        (Ok(view), Some(strategy)) => {
            let third_parties = noderesource::third_parties(input);
            let third_parties = third_parties.unwrap_or_else(|error| {
                explanation.problems.push(ignored(error));
                Vec::new()
            });
            let batch = reclaim::batch(&view, &strategy.batch);
            let [cpu, memory] = reclaim::sums(&batch, &strategy.batch);
            let [mid_cpu, mid_memory] = reclaim::mid_sums(&view, &strategy.mid);
            let cpu = batch_cpu(cpu, &draft, &origins);
            sums = [
                Some(subtract_third_parties(cpu, &third_parties, BATCH_CPU)),
                Some(subtract_third_parties(
                    terms(memory, &origins),
                    &third_parties,
                    BATCH_MEMORY,
                )),
                Some(terms(mid_cpu, &origins)),
                Some(terms(mid_memory, &origins)),
            ];
            explanation.zones = zones(input, &view, strategy, &draft, &origins);
            explanation.services = services(pods, &view, &strategy.batch);
        }
        (Err(reset), _) => {
            explanation.refused = Some(reset_reason(&reset, &origins, strategy, age))
        }
        (Ok(_), None) => {}
    }
    let names = [BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY];
    for (name, sum) in names.into_iter().zip(sums) {
        let published = noderesource::read_amount(shown, name);
        explanation.resources.push(resource(name, sum, published));
        if let (Some(Some(desired)), Some(strategy)) = (draft.resources.get(name), strategy) {
            explanation.notes.extend(pending_change_note(
                name, *desired, published, strategy, &origins,
            ));
        }
    }
    explanation
        .notes
        .extend(amplification_note(node, &draft, &origins));
    explanation
}

/// The terms of a resource for display, and their sum.
struct ResourceBreakdown {
    total: Quantity,
    terms: Vec<Term>,
}

fn resource(
    name: &'static str,
    sum: Option<ResourceBreakdown>,
    published: Option<Quantity>,
) -> Resource {
    Resource {
        name,
        computed: sum.as_ref().map(|sum| sum.total),
        published,
        terms: sum.map_or_else(Vec::new, |sum| sum.terms),
    }
}

fn terms(sum: Sum, origins: &Origins) -> ResourceBreakdown {
    let terms = sum.terms.into_iter().map(|term| {
        let setting = term.setting;
        Term {
            what: term.what.to_owned(),
            amount: term.amount,
            taken: term.taken,
            why: term.why,
            from: setting.as_ref().map(|setting| from(origins, setting.name)),
            setting: setting.map(|setting| format!("{}={}", setting.name, setting.value)),
        }
    });
    ResourceBreakdown {
        terms: terms.collect(),
        total: sum.total,
    }
}

fn from(origins: &Origins, field: &str) -> String {
    let origin = origins.fields.get(field);
    origin.map_or_else(|| "default".to_owned(), ToString::to_string)
}

/// Returns the terms of batch CPU, including the amount that normalization adds.
fn batch_cpu(sum: Sum, draft: &Draft, origins: &Origins) -> ResourceBreakdown {
    let milli = Quantity::from_value(sum.total.milli_value());
    let normalized = noderesource::normalized(milli, draft.cpu_ratio);
    let normalized_gain = Quantity::from_milli((normalized - milli).value());
    let mut breakdown = terms(sum, origins);
    if let Some(ratio) = draft.cpu_ratio.filter(|ratio| *ratio > 1.0) {
        breakdown.total += normalized_gain;
        breakdown.terms.push(Term {
            what: "normalization".to_owned(),
            amount: normalized_gain,
            taken: false,
            why: "factor of this CPU model".to_owned(),
            setting: Some(format!("ratio={ratio:.2}")),
            from: Some(origins.normalization.to_string()),
        });
    }
    breakdown
}

/// Subtracts the allocations of third parties.
fn subtract_third_parties(
    mut breakdown: ResourceBreakdown,
    third_parties: &[ThirdPartyAllocation],
    name: &str,
) -> ResourceBreakdown {
    let is_cpu = name == BATCH_CPU;
    for party in third_parties {
        let Some(allocated) = party.resources.get(name) else {
            continue;
        };
        let allocated = if is_cpu {
            Quantity::from_milli(allocated.value())
        } else {
            *allocated
        };
        let allocated = Quantity::ZERO.with_format(allocated.format()) - allocated;
        breakdown.total += allocated;
        breakdown.terms.push(Term {
            what: "third party".to_owned(),
            amount: allocated,
            taken: true,
            why: format!("allocated by {:?}", party.name),
            setting: None,
            from: Some(format!(
                "annotation {}",
                annotations::NODE_THIRD_PARTY_ALLOCATIONS
            )),
        });
    }
    if breakdown.total.signum() < 0 {
        let nothing = Quantity::ZERO.with_format(breakdown.total.format());
        breakdown.terms.push(Term {
            what: "missing".to_owned(),
            amount: nothing - breakdown.total,
            taken: false,
            why: "the amount is never below zero".to_owned(),
            setting: None,
            from: None,
        });
        breakdown.total = nothing;
    }
    breakdown
}

/// Explains the batch resources of each NUMA node.
fn zones(
    input: &Input<'_>,
    view: &NodeView,
    strategy: &Strategy,
    draft: &Draft,
    origins: &Origins,
) -> Vec<ZoneResources> {
    let numbered = noderesource::formula_zones(input);
    let computed = reclaim::batch_by_zone(view, &numbered, &strategy.batch);
    let zones = input
        .topology
        .map_or(&[][..], |topology| &topology.spec.zones);
    let each = zones.iter().zip(computed).map(|(zone, batch)| {
        let [cpu, memory] = reclaim::sums(&batch, &strategy.batch);
        let published = |name: &str| {
            let entry = zone.resources.iter().find(|entry| entry.name == name);
            entry.map(|entry| entry.allocatable)
        };
        let build = |name, mut breakdown: ResourceBreakdown| {
            if let Some(first) = breakdown.terms.first_mut() {
                "of the zone".clone_into(&mut first.why);
            }
            resource(name, Some(breakdown), published(name))
        };
        ZoneResources {
            name: zone.name.clone(),
            resources: vec![
                build(BATCH_CPU, batch_cpu(cpu, draft, origins)),
                build(BATCH_MEMORY, terms(memory, origins)),
            ],
        }
    });
    each.collect()
}

/// Returns why nothing is reclaimed.
fn reset_reason(
    reset: &Reset,
    origins: &Origins,
    strategy: Option<&Strategy>,
    age: Option<i64>,
) -> String {
    match (reset, strategy, age) {
        (Reset::Disabled, ..) if !origins.cluster_is_on && origins.is_on => format!(
            "co-location is off for the cluster, whatever the node's settings: enable in {} is not true",
            keys::COLOCATION
        ),
        (Reset::Disabled, ..) => {
            let from = from(origins, "enable");
            format!("co-location is off for the node (enable: {from})")
        }
        (Reset::Degraded(reason), Some(strategy), Some(age)) if age > 0 => {
            let minutes = strategy.degrade_minutes;
            let from = from(origins, "degradeTimeMinutes");
            format!("{reason}: {age} s old (degradeTimeMinutes={minutes}: {from})")
        }
        (Reset::Degraded(reason), ..) => (*reason).to_owned(),
    }
}

/// Returns a note on when an unwritten change is written; `None` if the node is up to date.
fn pending_change_note(
    name: &str,
    desired: Quantity,
    published: Option<Quantity>,
    strategy: &Strategy,
    origins: &Origins,
) -> Option<String> {
    let threshold = strategy.diff_threshold;
    let shown = if matches!(name, BATCH_CPU | MID_CPU) {
        // CPU resources are counted in milli-cores.
        format!("{}m", desired.value())
    } else {
        reclaim::mebibytes(desired)
    };
    if published == Some(desired) {
        None
    } else if reclaim::differs(published, Some(desired), threshold) {
        Some(format!("{name} is about to change to {shown}"))
    } else {
        Some(format!(
            "{name} changes to {shown} when the node is due: a change of no more than \
             {threshold} of what is published waits up to {} s (resourceDiffThreshold: {}, \
             updateTimeThresholdSeconds: {})",
            strategy.update_threshold_secs,
            from(origins, "resourceDiffThreshold"),
            from(origins, "updateTimeThresholdSeconds"),
        ))
    }
}

/// Returns a note on amplification, which hides the kubelet's own allocatable; `None` if there is none.
fn amplification_note(node: &Node, draft: &Draft, origins: &Origins) -> Option<String> {
    let present = node.metadata.annotations.as_ref();
    let read = |key: &str| present.and_then(|all| all.get(key));
    let key = annotations::NODE_RESOURCE_AMPLIFICATION_RATIO;
    let factors = match draft.annotations.get(key) {
        Some(written) => written.as_ref(),
        None => read(key),
    }?;
    let raw = read(annotations::NODE_RAW_ALLOCATABLE);
    let raw = raw.map_or_else(
        || "not applied yet".to_owned(),
        |raw| format!("allocatable was {raw}"),
    );
    let mut from = origins.amplification.to_string();
    if draft.cpu_ratio.is_some_and(|ratio| ratio > 1.0) {
        from = format!("{from} and {}", origins.normalization);
    }
    Some(format!(
        "allocatable is amplified by {factors} ({from}; {raw}); batch and mid are computed from \
         the capacity"
    ))
}

fn host_applications(status: &NodeMetricStatus) -> Vec<Service> {
    let apps = status.host_application_metric.iter();
    let batch = koord_api::PriorityClass::Batch.default_value();
    apps.map(|app| {
        let get = |name: &str| {
            let usage = app.usage.as_ref();
            let amount = usage.and_then(|usage| usage.resources.get(name));
            amount.copied().unwrap_or_default()
        };
        Service {
            name: app.name.clone(),
            by: if app.priority.default_value() > batch {
                "system use"
            } else {
                "not charged"
            },
            cpu: get(koord_api::resources::CPU),
            memory: get(koord_api::resources::MEMORY),
        }
    })
    .collect()
}

/// Returns the CPU and memory that each pod above batch priority is charged with, largest CPU first. `view`
/// has the active pods in the order of `pods`.
fn services(pods: &[Arc<PodFacts>], view: &NodeView, policy: &BatchPolicy) -> Vec<Service> {
    let active = pods.iter().filter(|pod| pod.active);
    let mut services: Vec<_> = active
        .zip(&view.pods)
        .filter(|(_, pod)| !reclaim::is_low(pod.priority))
        .map(|(facts, pod)| {
            let charged = reclaim::charged(pod, policy);
            Service {
                name: facts.key.to_string(),
                by: if pod.usage.is_some() {
                    "measured"
                } else {
                    "request"
                },
                cpu: charged.cpu,
                memory: charged.memory,
            }
        })
        .collect();
    let dangling = view
        .dangling
        .iter()
        .filter(|dangling| !reclaim::is_low(dangling.priority));
    services.extend(dangling.map(|dangling| Service {
        name: "a pod that no longer exists".to_owned(),
        by: "measured",
        cpu: dangling.usage.cpu,
        memory: dangling.usage.memory,
    }));
    services.sort_by(|a, b| b.cpu.cmp(&a.cpu).then_with(|| a.name.cmp(&b.name)));
    services
}

#[cfg(test)]
mod tests;
