//! Parser of the annotations in which koordlet and operators describe a machine's CPUs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::annotations;
use koord_api::extension::{
    self, AmplificationRatios, CpuTopology, KubeletCpuManagerPolicy, PodCpuAlloc, SystemQosResource,
};
use koord_model::cpuset::{Cpu, CpuSet, Topology};
use koord_scheduler::framework::Problem;
use serde::de::DeserializeOwned;

/// Parsed annotations of a NodeResourceTopology.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct TopologyAnnotations {
    pub(crate) topology: Topology,
    /// CPUs to which no pod is bound.
    pub(crate) reserved: CpuSet,
    pub(crate) kubelet: Option<KubeletCpuManagerPolicy>,
    /// Amplification ratios. If set here, the reported amounts are already amplified.
    pub(crate) ratios: Option<AmplificationRatios>,
}

/// Reads annotations of one object and collects the problems of invalid ones.
pub(crate) struct AnnotationReader<'a> {
    kind: &'static str,
    meta: &'a ObjectMeta,
    pub(crate) problems: Vec<Problem>,
}

impl<'a> AnnotationReader<'a> {
    pub(crate) fn new(kind: &'static str, meta: &'a ObjectMeta) -> Self {
        Self {
            kind,
            meta,
            problems: Vec::new(),
        }
    }

    /// Records a problem of the object.
    pub(crate) fn problem(&mut self, message: String) {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        self.problems.push(Problem {
            kind: self.kind,
            namespace: text(&self.meta.namespace),
            name: text(&self.meta.name),
            uid: text(&self.meta.uid),
            message,
        });
    }

    /// Returns the JSON annotation `key`; an invalid one is ignored and recorded as a problem.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        match extension::read(self.meta.annotations.as_ref(), key) {
            Ok(value) => value,
            Err(error) => {
                self.problem(format!("{error}; it is ignored"));
                None
            }
        }
    }

    /// Parses the CPU list `text` of annotation `key`; an invalid one is ignored and recorded as a problem.
    fn cpus(&mut self, key: &str, text: &str) -> CpuSet {
        text.parse().unwrap_or_else(|error| {
            self.problem(format!("annotation {key}: {error}; it is ignored"));
            CpuSet::new()
        })
    }
}

impl TopologyAnnotations {
    /// Parses the annotations of a NodeResourceTopology. Also returns the problems of those that were
    /// ignored.
    pub(crate) fn new(meta: &ObjectMeta) -> (Self, Vec<Problem>) {
        let mut reader = AnnotationReader::new("NodeResourceTopology", meta);
        let parsed = Self {
            topology: topology(&mut reader),
            reserved: reserved(&mut reader),
            kubelet: reader.read(annotations::KUBELET_CPU_MANAGER_POLICY),
            ratios: ratios(&mut reader).unwrap_or_default(),
        };
        (parsed, reader.problems)
    }
}

/// Parses the CPU topology; an invalid entry makes it empty.
fn topology(reader: &mut AnnotationReader<'_>) -> Topology {
    let key = annotations::NODE_CPU_TOPOLOGY;
    let listed: CpuTopology = reader.read(key).unwrap_or_default();
    let (mut cpus, mut parsed, mut twice) = (Vec::new(), CpuSet::new(), CpuSet::new());
    for cpu in &listed.detail {
        let id = u32::try_from(cpu.id).ok().filter(|id| *id <= CpuSet::MAX);
        let node = u8::try_from(cpu.node).ok().filter(|node| *node < 64);
        match (id, u32::try_from(cpu.core).ok(), node) {
            (Some(id), Some(core), Some(node)) if cpu.socket >= 0 => {
                if parsed.contains(id) {
                    twice.insert(id);
                }
                parsed.insert(id);
                cpus.push(Cpu::new(id, core, cpu.socket, node));
            }
            _ => {
                // A partial topology would be worse than none: pods would get wrong neighbors.
                reader.problem(format!("annotation {key} is ignored: impossible {cpu:?}"));
                return Topology::default();
            }
        }
    }
    if !twice.is_empty() {
        let expected = "each CPU once; the last entry of a CPU counts";
        let field = format!("detail of annotation {key}");
        reader.problem(Problem::invalid(&field, twice.to_string(), expected));
    }
    Topology::new(cpus)
}

/// Returns the CPUs reserved by the kubelet's allocations and policy, the node reservation, and exclusive
/// system QoS.
fn reserved(reader: &mut AnnotationReader<'_>) -> CpuSet {
    let key = annotations::NODE_CPU_ALLOCS;
    let allocs: Option<Vec<PodCpuAlloc>> = reader.read(key);
    let mut reserved = CpuSet::new();
    for alloc in allocs.into_iter().flatten() {
        if alloc.managed_by_kubelet && !alloc.uid.is_empty() {
            reserved.add(&reader.cpus(key, &alloc.cpuset));
        }
    }
    let key = annotations::KUBELET_CPU_MANAGER_POLICY;
    // A parse error is reported where the annotation as a whole is read.
    let annotations = reader.meta.annotations.as_ref();
    if let Ok(Some(policy)) = extension::read::<KubeletCpuManagerPolicy>(annotations, key) {
        reserved.add(&reader.cpus(key, &policy.reserved_cpus));
    }
    match extension::ReservedResources::from_annotations(annotations) {
        Ok(aside) => {
            if let Some(aside) = aside {
                reserved.add(&aside.cpus);
            }
        }
        Err(error) => reader.problem(format!("{error}; it is ignored")),
    }
    let key = annotations::NODE_SYSTEM_QOS_RESOURCE;
    if let Some(system) = reader.read::<SystemQosResource>(key)
        && system.is_exclusive()
    {
        reserved.add(&reader.cpus(key, &system.cpuset));
    }
    reserved
}

/// Returns the amplification annotation: `None` if invalid, `Some(None)` if absent.
pub(crate) fn ratios(reader: &mut AnnotationReader<'_>) -> Option<Option<AmplificationRatios>> {
    let key = annotations::NODE_RESOURCE_AMPLIFICATION_RATIO;
    let Some(text) = reader
        .meta
        .annotations
        .as_ref()
        .and_then(|all| all.get(key))
    else {
        return Some(None);
    };
    match AmplificationRatios::parse(text) {
        Ok(ratios) => Some(Some(ratios)),
        Err(error) => {
            reader.problem(format!("annotation {key} is ignored: {error}: {text:?}"));
            None
        }
    }
}
