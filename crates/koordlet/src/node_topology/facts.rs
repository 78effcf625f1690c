//! Content of the report about a node, computed from the known state.

use super::cpus::{self, ExclusiveCpus};
use super::zones;
use crate::collect::machine::MachineInfo;
use crate::states::kubelet::Config;
use crate::states::{Malformed, NodeInfo, PodInfo, TopologyInfo};
use koord_api::extension::{
    CpuBasicInfo, CpuInfo, CpuTopology, KubeletCpuManagerPolicy, SystemQosResource,
};
use koord_api::topology::v1alpha1::NodeResourceTopology;
use koord_api::topology::{AttributeInfo, Zone};
use koord_api::{annotations, labels};
use koord_model::alignment::{Policy, Scope};
use koord_model::export;
use serde::Serialize;
use std::collections::BTreeMap;

/// Inputs of the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// The machine.
    pub(crate) machine: &'a MachineInfo,
    /// The Node.
    pub(crate) node: &'a NodeInfo,
    /// The pods of the node.
    pub(crate) pods: &'a [PodInfo],
    /// The kubelet's configuration. `None` if the agent does not query it.
    pub(crate) kubelet: Option<&'a Config>,
    /// Content of the kubelet's file `cpu_manager_state`. Empty if there is none.
    pub(crate) cpu_manager_state: &'a str,
    /// True if huge pages are counted.
    pub(crate) huge_pages: bool,
}

/// Content of the report.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Report {
    /// Annotations that koordlet owns, as text.
    pub(crate) annotations: BTreeMap<&'static str, String>,
    /// The labels that koordlet owns. `None` for a label to remove.
    pub(crate) labels: BTreeMap<&'static str, Option<String>>,
    /// The kubelet's alignment, as the deprecated name that combines policy and scope.
    pub(crate) policy: String,
    /// The kubelet's alignment as attributes. Empty if it is unknown.
    pub(crate) attributes: Vec<AttributeInfo>,
    /// The NUMA nodes, sorted by name.
    pub(crate) zones: Vec<Zone>,
    /// Malformed inputs, which are left out of the report.
    pub(crate) malformed: Vec<Malformed>,
}

/// Reasons why no report can be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FactsError {
    /// A NUMA node without known memory.
    #[error("memory of NUMA node {0} is not known")]
    Memory(u32),
    /// The machine has no online CPU.
    #[error("no online CPU is known")]
    NoCpus,
    /// The kubelet's file is malformed.
    #[error("cpu_manager_state of the kubelet is not understood: {0}")]
    State(#[source] serde_json::Error),
    /// An annotation cannot be serialized. Does not happen with valid inputs.
    #[error("annotation cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

impl Report {
    /// Makes the report from `inputs`.
    ///
    /// # Errors
    /// Fails if the machine is not known well enough or the kubelet's file cannot be parsed. CPU assignments
    /// are unknown then, and the last report must be kept.
    pub(crate) fn from_inputs(inputs: &Inputs<'_>) -> Result<Self, FactsError> {
        let Inputs {
            machine,
            node,
            pods,
            kubelet,
            ..
        } = *inputs;
        if machine.cpus.is_empty() {
            return Err(FactsError::NoCpus);
        }
        let topology = cpus::topology(machine);
        let mut malformed = Vec::new();
        let mut manager = KubeletCpuManagerPolicy::default();
        let mut exclusive = ExclusiveCpus::default();
        let mut aligned = None;
        if let Some(config) = kubelet {
            manager.policy.clone_from(&config.cpu_manager_policy);
            manager.options.clone_from(&config.cpu_manager_options);
            if config.is_cpu_manager_static() {
                match cpus::kubelet_reserved(&topology, config) {
                    Ok(cpus) => manager.reserved_cpus = cpus.to_string(),
                    Err(error) => malformed.push(error),
                }
                exclusive = ExclusiveCpus::read(inputs.cpu_manager_state, pods)
                    .map_err(FactsError::State)?;
                malformed.append(&mut exclusive.malformed);
            }
            aligned = alignment(config, &mut malformed);
        }
        let (reservation, mut reserved) = cpus::reservation(&topology, node);
        let mut system = SystemQosResource::default();
        if let Some(system_qos) = &node.system_qos {
            system.cpuset = system_qos.cpus.to_string();
            if system_qos.exclusive {
                reserved = reserved.union(&system_qos.cpus);
            } else {
                system.cpuset_exclusive = Some(false);
            }
        }
        let [services, batch] = cpus::pools(machine, &exclusive.cpus, pods, &reserved);
        let annotations = BTreeMap::from([
            (annotations::NODE_CPU_BASIC_INFO, json(&basic(machine))?),
            (annotations::NODE_CPU_TOPOLOGY, json(&detail(machine))?),
            (annotations::NODE_CPU_SHARED_POOLS, list(&services)?),
            (annotations::NODE_BE_CPU_SHARED_POOLS, list(&batch)?),
            (annotations::KUBELET_CPU_MANAGER_POLICY, json(&manager)?),
            (annotations::NODE_CPU_ALLOCS, list(&exclusive.pods)?),
            (annotations::NODE_RESERVATION, json(&reservation)?),
            (annotations::NODE_SYSTEM_QOS_RESOURCE, json(&system)?),
        ]);
        let label = node.numa_reservation.clone();
        let (policy, scope) = aligned.unwrap_or_default();
        Ok(Self {
            annotations,
            labels: BTreeMap::from([(labels::NODE_NUMA_RESERVATION, label)]),
            policy: export::policy_name(policy, scope).to_owned(),
            attributes: aligned
                .map(|(policy, scope)| export::attributes(policy, scope, None))
                .unwrap_or_default(),
            zones: zones::zones(machine, node, inputs.huge_pages).map_err(FactsError::Memory)?,
            malformed,
        })
    }

    /// Returns the report as parsed by the agent itself.
    #[must_use]
    pub(crate) fn read(&self) -> TopologyInfo {
        let mut object = NodeResourceTopology::default();
        let annotations = self.annotations.iter();
        let annotations = annotations.map(|(key, text)| ((*key).to_owned(), text.clone()));
        object.metadata.annotations = Some(annotations.collect());
        TopologyInfo::read(&object, None).0
    }
}

/// Returns the kubelet's topology policy and scope if both are known. Without a scope there is no policy, as
/// in upstream; every kubelet reports a scope.
fn alignment(config: &Config, malformed: &mut Vec<Malformed>) -> Option<(Policy, Scope)> {
    let (policy, scope) = (&config.topology_policy, &config.topology_scope);
    if policy.is_empty() || scope.is_empty() {
        return None;
    }
    let mut add_malformed = |field: &str, value: &String, error: &dyn std::fmt::Display| {
        let field = format!("kubeletconfig.{field}");
        malformed.push(Malformed::new(field, value, &error.to_string()));
    };
    let parsed: Result<Policy, _> = policy.parse();
    let policy = parsed.map_err(|error| add_malformed("topologyManagerPolicy", policy, &error));
    let parsed: Result<Scope, _> = scope.parse();
    let scope = parsed.map_err(|error| add_malformed("topologyManagerScope", scope, &error));
    Some((policy.ok()?, scope.ok()?))
}

fn json(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value)
}

/// Returns `list` as JSON. An empty list is `null`, as Go writes it.
fn list<T: Serialize>(list: &[T]) -> serde_json::Result<String> {
    json(&(!list.is_empty()).then_some(list))
}

fn basic(machine: &MachineInfo) -> CpuBasicInfo {
    CpuBasicInfo {
        cpu_model: machine.model.clone(),
        hyper_thread_enabled: machine.hyper_threads,
        turbo_enabled: machine.turbo == Some(true),
        cat_l3_cbm_mask: machine.cat_l3_mask.clone(),
        vendor_id: machine.vendor.clone(),
    }
}

fn detail(machine: &MachineInfo) -> CpuTopology {
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let mut detail: Vec<CpuInfo> = machine
        .cpus
        .iter()
        .map(|cpu| CpuInfo {
            id: number(cpu.cpu),
            core: number(cpu.core),
            socket: number(cpu.socket),
            node: number(cpu.node),
        })
        .collect();
    detail.sort_by_key(|cpu| cpu.id);
    CpuTopology { detail }
}
