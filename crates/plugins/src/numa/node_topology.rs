//! CPUs, NUMA nodes and policies of one node, from its NodeResourceTopology and its Node object.

use super::TopologyChange;
use crate::common::topologies::{AnnotationReader, TopologyAnnotations, TrimmedTopology, ratios};
use koord_api::extension::AmplificationRatios;
use koord_api::topology::{ZONE_TYPE_NODE, zone_id};
use koord_api::{labels, resources};
use koord_model::cpuset::{BindPolicy, CpuStrategy, Topology};
use koord_model::numa::{NumaMask, NumaPolicyKind, amplify};
use koord_model::resources::{Amounts, CPU, ResourceTable, amount};
use koord_scheduler::framework::Problem;
use koord_scheduler::state::NodeInfo;
use std::sync::Arc;

/// The parsed NodeResourceTopology of one node.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Report {
    pub(super) annotations: Arc<TopologyAnnotations>,
    policy: Option<NumaPolicyKind>,
    /// Allocatable by NUMA node, ascending, without the reserved CPUs.
    zones: Vec<(u8, Amounts)>,
}

/// CPUs, NUMA resources and policies of one node.
#[derive(Debug, Default)]
pub(super) struct NodeTopology {
    pub(super) report: Arc<Report>,
    /// Allocatable by NUMA node, ascending, amplified.
    pub(super) zones: Vec<(u8, Amounts)>,
    /// CPU amplification ratio of the NUMA nodes: advertised over physical CPU; 1 if not amplified.
    pub(super) ratio: f64,
    /// CPU amplification ratio of the node as a whole; `None` if the annotation is invalid.
    pub(super) node_ratio: Option<f64>,
    /// Bind policy that applies to every pod that requests CPU.
    pub(super) bind: Option<BindPolicy>,
    pub(super) policy: Option<NumaPolicyKind>,
    /// The node's strategy for choosing between NUMA nodes; `None` if the plugin's arguments decide.
    pub(super) strategy: Option<CpuStrategy>,
}

impl Report {
    /// Parses a NodeResourceTopology. Also returns messages about ignored parts. With `all_policies`, the
    /// kubelet's policy counts in every scope.
    pub(super) fn new(
        object: &TrimmedTopology,
        table: &ResourceTable,
        all_policies: bool,
    ) -> (Self, Vec<Problem>) {
        let annotations = &object.annotations;
        let mut problems = object.problems.to_vec();
        let mut problem = |message| problems.push(object.problem(message));
        let mut zones: Vec<(u8, Amounts)> = Vec::new();
        for zone in object.zones.iter().filter(|z| z.type_ == ZONE_TYPE_NODE) {
            let id = zone_id(&zone.name).and_then(|id| u8::try_from(id).ok());
            let Some(id) = id.filter(|id| *id < 64) else {
                problem(format!(
                    "zone {:?} is ignored: not node-0 to node-63",
                    zone.name
                ));
                continue;
            };
            if zones.iter().any(|(other, _)| *other == id) {
                problem(format!("zone {:?} is ignored: listed twice", zone.name));
                continue;
            }
            let mut amounts = Amounts::new();
            for resource in &zone.resources {
                let id = table.intern(&resource.name);
                let mut allocatable = amount(id, &resource.allocatable);
                let field = || format!("zone {:?}: {}", zone.name, resource.name);
                if allocatable < 0 {
                    let value = &resource.allocatable;
                    problem(format!(
                        "{}.allocatable is ignored: {value} is below 0",
                        field()
                    ));
                }
                if amounts.contains(id) {
                    problem(format!("{}: the larger is ignored: listed twice", field()));
                    allocatable = allocatable.min(amounts.get(id));
                }
                amounts.set(id, allocatable.max(0));
            }
            let zone_cpus = annotations.topology.on_node(id);
            let reserved = zone_cpus.map_or(0, |cpus| {
                to_milli(cpus.intersection(&annotations.reserved).len())
            });
            // If the amounts are amplified already, the reserved CPUs must be subtracted amplified too.
            let ratios = annotations.ratios.as_ref();
            let ratio = ratios.and_then(|all| all.factor(resources::CPU));
            let reserved = amplify(reserved, ratio.unwrap_or(1.0));
            if amounts.get(CPU) > 0 {
                amounts.set(CPU, (amounts.get(CPU) - reserved).max(0));
            }
            zones.push((id, amounts));
        }
        zones.sort_by_key(|(id, _)| *id);
        let policy = object.policies.iter().find_map(|name| match name.as_str() {
            "BestEffort" => Some(NumaPolicyKind::BestEffort),
            "Restricted" => Some(NumaPolicyKind::Restricted),
            "SingleNUMANodePodLevel" => Some(NumaPolicyKind::SingleNumaNode),
            // koordlet writes these names, but upstream's plugin does not recognize them.
            "BestEffortContainerLevel" | "BestEffortPodLevel" if all_policies => {
                Some(NumaPolicyKind::BestEffort)
            }
            "RestrictedContainerLevel" | "RestrictedPodLevel" if all_policies => {
                Some(NumaPolicyKind::Restricted)
            }
            "SingleNUMANodeContainerLevel" if all_policies => Some(NumaPolicyKind::SingleNumaNode),
            _ => None,
        });
        let report = Self {
            annotations: annotations.clone(),
            policy,
            zones,
        };
        (report, problems)
    }
}

impl Report {
    /// Returns what changed compared with `before`.
    pub(super) fn changes_since(&self, before: &Self) -> TopologyChange {
        if self == before {
            return TopologyChange::Nothing;
        }
        let ids = |report: &Self| report.zones.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        if (&self.annotations, self.policy, ids(self))
            != (&before.annotations, before.policy, ids(before))
        {
            return TopologyChange::All;
        }
        let pairs = self.zones.iter().zip(&before.zones);
        let mut changed = Vec::new();
        for ((_, now), (_, then)) in pairs {
            let all = now.iter().chain(then.iter()).map(|(id, _)| id);
            // A listed amount of 0 differs from a resource that is not listed.
            let entry = |amounts: &Amounts, id| (amounts.contains(id), amounts.get(id));
            changed.extend(all.filter(|id| entry(now, *id) != entry(then, *id)));
        }
        TopologyChange::Amounts(changed)
    }
}

/// Returns `cpus` CPUs in milli-cores.
pub(super) fn to_milli(cpus: usize) -> i64 {
    i64::try_from(cpus).unwrap_or(i64::MAX).saturating_mul(1000)
}

impl NodeTopology {
    /// Returns true if the node places no constraint on a pod that requests neither bound CPUs nor NUMA
    /// nodes.
    pub(super) fn is_plain(&self) -> bool {
        let unamplified = self.node_ratio.is_some_and(|ratio| ratio <= 1.0) && self.ratio <= 1.0;
        self.policy.is_none() && self.bind.is_none() && unamplified
    }

    /// Combines a node with its topology report. Also returns messages about ignored parts of the node.
    pub(super) fn new(
        node: &NodeInfo,
        report: Arc<Report>,
        table: &ResourceTable,
    ) -> (Self, Vec<Problem>) {
        let mut reader = AnnotationReader::new("Node", &node.object.metadata);
        let own = ratios(&mut reader);
        let node_ratio = own.as_ref().map(|own| cpu_ratio(own.as_ref()));
        let own = own.flatten();
        let mut zones = report.zones.clone();
        let ratio = match (&report.annotations.ratios, &own) {
            (Some(ratios), _) => cpu_ratio(Some(ratios)),
            (None, own) => {
                for (_, amounts) in &mut zones {
                    for (name, ratio) in own.iter().flat_map(|own| &own.0) {
                        if let Some(id) = table.get(name).filter(|id| amounts.contains(*id)) {
                            amounts.set(id, amplify(amounts.get(id), *ratio));
                        }
                    }
                }
                cpu_ratio(own.as_ref())
            }
        };
        let policy = match node.label(labels::NODE_NUMA_TOPOLOGY_POLICY) {
            None | Some("") => report.policy,
            Some(name) => match parse_policy(name) {
                Some(policy) => Some(policy),
                None => {
                    let key = labels::NODE_NUMA_TOPOLOGY_POLICY;
                    reader.problem(format!(
                        "label {key} is ignored: {name:?} is not one of BestEffort, Restricted, \
                         SingleNUMANode"
                    ));
                    report.policy
                }
            },
        };
        let kubelet = report.annotations.kubelet.as_ref();
        let full_only = kubelet.is_some_and(|kubelet| {
            let option = kubelet.options.get("full-pcpus-only");
            kubelet.policy == "static" && option.is_some_and(|value| value == "true")
        });
        let bind = match node.label(labels::NODE_CPU_BIND_POLICY) {
            Some("FullPCPUsOnly") => Some(BindPolicy::FullPCpus),
            _ if full_only => Some(BindPolicy::FullPCpus),
            Some("SpreadByPCPUs") => Some(BindPolicy::SpreadByPCpus),
            _ => None,
        };
        let strategy = match node.label(labels::NODE_NUMA_ALLOCATE_STRATEGY) {
            None | Some("") => None,
            Some("MostAllocated") => Some(CpuStrategy::MostAllocated),
            // `DistributeEvenly` has no meaning of its own within a node.
            Some(_) => Some(CpuStrategy::LeastAllocated),
        };
        let node_topology = Self {
            report,
            zones,
            ratio,
            node_ratio,
            bind,
            policy,
            strategy,
        };
        (node_topology, reader.problems)
    }

    /// Returns true if the kubelet's CPU manager policy is `static`, so that it assigns exclusive CPUs
    /// itself.
    pub(super) fn is_static(&self) -> bool {
        let kubelet = self.report.annotations.kubelet.as_ref();
        kubelet.is_some_and(|kubelet| kubelet.policy == "static")
    }

    /// Returns the mask of the NUMA nodes.
    pub(super) fn mask(&self) -> NumaMask {
        self.zones.iter().map(|(id, _)| *id).collect()
    }

    /// Returns the machine's CPU topology.
    pub(super) fn topology(&self) -> &Topology {
        &self.report.annotations.topology
    }
}

fn cpu_ratio(ratios: Option<&AmplificationRatios>) -> f64 {
    ratios
        .and_then(|all| all.factor(resources::CPU))
        .unwrap_or(1.0)
}

/// Returns the NUMA policy with this name in labels and annotations; `None` if the name is unknown.
pub(super) fn parse_policy(name: &str) -> Option<NumaPolicyKind> {
    match name {
        "BestEffort" => Some(NumaPolicyKind::BestEffort),
        "Restricted" => Some(NumaPolicyKind::Restricted),
        "SingleNUMANode" => Some(NumaPolicyKind::SingleNumaNode),
        _ => None,
    }
}
