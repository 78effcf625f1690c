//! Settings of a pod from annotations and labels, beyond its class. Few pods have any.

use super::super::malformed::Malformed;
use super::super::reader::Reader;
use super::PodInfo;
use k8s_openapi::api::core::v1::Pod;
use koord_api::extension::{
    self, DeviceAllocations, NumaNodeResource, OomScoreAdj, PodMemoryQOSConfig, PodNetworkQOS,
    Resctrl, ResourceStatus,
};
use koord_api::slo::{BlkIOQOSCfg, BlockType, CPUBurstConfig, CPUBurstPolicy, CPUQOSCfg};
use koord_api::{annotations, labels};
use koord_host::CpuSet;
use koord_model::blkio;
use std::collections::BTreeMap;

/// Policy for pods that may share a physical core with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CoreSchedPolicy {
    /// Pods of its core scheduling group may.
    #[default]
    Group,
    /// Core scheduling does not apply: any pod may.
    None,
    /// Other pods may not.
    Exclusive,
}

/// Source of a pod's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSource {
    /// The persistent volume claim of this name in the pod's namespace.
    Claim(String),
    /// A CSI driver, for this pod only.
    Csi,
}

/// Settings from annotations and labels.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodSettings {
    /// `koordinator.sh/cpuBurst`, which overrides the node's strategy.
    pub cpu_burst: Option<CPUBurstConfig>,
    /// `koordinator.sh/cpuQOS`.
    pub cpu_qos: Option<CPUQOSCfg>,
    /// `koordinator.sh/memoryQOS`.
    pub memory_qos: Option<PodMemoryQOSConfig>,
    /// `koordinator.sh/blkioQOS`.
    pub blkio_qos: Option<BlkIOQOSCfg>,
    /// The volumes that `blkio_qos` refers to, by name.
    pub volumes: BTreeMap<String, VolumeSource>,
    /// `koordinator.sh/networkQOS`.
    pub network_qos: Option<PodNetworkQOS>,
    /// `koordinator.sh/oom-score-adj` and `oom-score-adj-spec`.
    pub oom_score_adj: OomScoreAdj,
    /// Resources by NUMA node, from `scheduling.koordinator.sh/resource-status`.
    pub numa: Vec<NumaNodeResource>,
    /// `scheduling.koordinator.sh/device-allocated`.
    pub devices: DeviceAllocations,
    /// `node.koordinator.sh/resctrl`, with its text: a group is created once per pod and text.
    pub resctrl: Option<(Resctrl, String)>,
    /// Label `koordinator.sh/core-sched-group-id`; the empty group is valid, too.
    pub core_sched_group: Option<String>,
    /// Label `koordinator.sh/core-sched-policy`.
    pub core_sched_policy: CoreSchedPolicy,
    /// Label `koordinator.sh/gpu-isolation-provider`.
    pub gpu_isolation: Option<String>,
}

/// Empty settings, as for most pods.
pub(super) static NONE: PodSettings = PodSettings {
    cpu_burst: None,
    cpu_qos: None,
    memory_qos: None,
    blkio_qos: None,
    volumes: BTreeMap::new(),
    network_qos: None,
    oom_score_adj: OomScoreAdj {
        default: None,
        containers: BTreeMap::new(),
    },
    numa: Vec::new(),
    devices: BTreeMap::new(),
    resctrl: None,
    core_sched_group: None,
    core_sched_policy: CoreSchedPolicy::Group,
    gpu_isolation: None,
};

/// Parsed annotations and labels of a pod.
pub(super) struct ParsedAnnotations {
    pub(super) settings: Option<Box<PodSettings>>,
    /// CPUs from `resource-status`; never empty.
    pub(super) cpus: Option<CpuSet>,
    pub(super) evictable_by: Option<Vec<String>>,
    pub(super) eviction_priority: i32,
}

impl ParsedAnnotations {
    /// Parses annotations and labels; malformed ones have their value in `last`.
    pub(super) fn parse(reader: &mut Reader<'_>, pod: &Pod, last: Option<&PodInfo>) -> Self {
        let labels = pod.metadata.labels.as_ref();
        let before = last.map_or(&NONE, PodInfo::settings);
        let annotations = reader.annotations();
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).cloned();
        let status = reader.json::<ResourceStatus>(annotations::RESOURCE_STATUS, None);
        let (cpus, numa) = resource_status(reader, status, last);
        let key = annotations::POD_RESCTRL;
        let text = reader.text(key).unwrap_or_default().to_owned();
        let resctrl = match reader.json::<Resctrl>(key, None) {
            Some(resctrl) => Some((resctrl, text)),
            None if text.is_empty() => None,
            None => before.resctrl.clone(),
        };
        let key = annotations::POD_CPU_BURST;
        let mut cpu_burst = reader.json::<CPUBurstConfig>(key, before.cpu_burst.clone());
        if let Some(error) = cpu_burst.as_ref().and_then(bad_burst) {
            let text = reader.text(key).unwrap_or_default();
            reader.malformed.push(Malformed::new(key, text, &error));
            cpu_burst = before.cpu_burst.clone();
        }
        let key = annotations::POD_BLKIO_QOS;
        let mut blkio_qos = reader.json::<BlkIOQOSCfg>(key, before.blkio_qos.clone());
        if let Some(error) = blkio_qos.as_ref().and_then(bad_block) {
            let text = reader.text(key).unwrap_or_default();
            reader.malformed.push(Malformed::new(key, text, &error));
            blkio_qos = before.blkio_qos.clone();
        }
        let default = OomScoreAdj::read_default(annotations);
        let default = reader.checked(default, before.oom_score_adj.default);
        let containers = OomScoreAdj::read_containers(annotations).map(Some);
        let containers = reader.checked(containers, Some(before.oom_score_adj.containers.clone()));
        let cpu_qos = extension::pod_cpu_qos(annotations);
        let all = PodSettings {
            cpu_burst,
            cpu_qos: reader.checked(cpu_qos, before.cpu_qos.clone()),
            memory_qos: reader.json(annotations::POD_MEMORY_QOS, before.memory_qos.clone()),
            volumes: volumes(pod, blkio_qos.as_ref()),
            blkio_qos,
            network_qos: reader.json(annotations::POD_NETWORK_QOS, before.network_qos.clone()),
            oom_score_adj: OomScoreAdj {
                default,
                containers: containers.unwrap_or_default(),
            },
            numa,
            devices: reader
                .json(annotations::DEVICE_ALLOCATED, Some(before.devices.clone()))
                .unwrap_or_default(),
            resctrl,
            core_sched_group: label(labels::POD_CORE_SCHED_GROUP),
            core_sched_policy: match label(labels::POD_CORE_SCHED_POLICY).as_deref() {
                Some("none") => CoreSchedPolicy::None,
                Some("exclusive") => CoreSchedPolicy::Exclusive,
                _ => CoreSchedPolicy::Group,
            },
            gpu_isolation: label(labels::GPU_ISOLATION_PROVIDER),
        };
        // A malformed list allows no feature to evict.
        let evictable_before = last.map_or(Some(Vec::new()), |last| last.evictable_by.clone());
        let policy = extension::eviction_policy(annotations);
        let priority = extension::eviction_priority(annotations);
        Self {
            evictable_by: reader.checked(policy, evictable_before),
            eviction_priority: reader
                .checked(priority, last.map(|last| last.eviction_priority))
                .unwrap_or_default(),
            cpus,
            settings: (all != NONE).then(|| Box::new(all)),
        }
    }
}

fn resource_status(
    reader: &mut Reader<'_>,
    status: Option<ResourceStatus>,
    last: Option<&PodInfo>,
) -> (Option<CpuSet>, Vec<NumaNodeResource>) {
    let key = annotations::RESOURCE_STATUS;
    let Some(text) = reader.text(key) else {
        return (None, Vec::new());
    };
    let read = status.and_then(|status| match status.cpuset.parse::<CpuSet>() {
        Ok(cpus) => Some((cpus, status.numa_node_resources)),
        Err(error) => {
            let error = koord_host::Malformed::from(error);
            reader.malformed.push(Malformed::new(key, text, &error));
            None
        }
    });
    match read {
        Some((cpus, numa)) => (Some(cpus).filter(|cpus| !cpus.is_empty()), numa),
        None => last.map_or((None, Vec::new()), |last| {
            (last.cpus.clone(), last.settings().numa.clone())
        }),
    }
}

/// Returns why a burst annotation of valid JSON is invalid; `None` if it is valid.
fn bad_burst(config: &CPUBurstConfig) -> Option<String> {
    let policy = config.policy.as_ref().map(CPUBurstPolicy::as_str);
    if let Some(policy) = policy.filter(|policy| !CPUBurstPolicy::from(*policy).is_known()) {
        return Some(format!("field policy: unknown value {policy:?}"));
    }
    let strategy = koord_api::slo::CPUBurstStrategy {
        policy: config.policy.clone(),
        cpu_burst_percent: config.cpu_burst_percent,
        cfs_quota_burst_percent: config.cfs_quota_burst_percent,
        cfs_quota_burst_period_seconds: config.cfs_quota_burst_period_seconds,
        share_pool_threshold_percent: None,
    };
    let errors = koord_api::configmap::burst_violations(&strategy);
    errors.first().map(ToString::to_string)
}

/// Returns why a block I/O annotation of valid JSON is invalid; `None` if it is valid.
fn bad_block(config: &BlkIOQOSCfg) -> Option<String> {
    config.blocks.iter().enumerate().find_map(|(at, block)| {
        let error = blkio::violations(block.io_cfg.as_ref()?)
            .into_iter()
            .next()?;
        Some(format!("blocks[{at}].ioCfg.{error}"))
    })
}

/// Returns the volumes of claims and CSI drivers that `config` refers to.
fn volumes(pod: &Pod, config: Option<&BlkIOQOSCfg>) -> BTreeMap<String, VolumeSource> {
    let blocks = config.into_iter().flat_map(|config| &config.blocks);
    let named = blocks.filter(|block| block.type_ == Some(BlockType::PodVolume));
    let all = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let source = |name: &str| {
        let volume = all.clone().find(|volume| volume.name == name)?;
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(VolumeSource::Claim(claim.claim_name.clone()));
        }
        // The claim is created for the pod, and named after pod and volume.
        if volume.ephemeral.is_some() {
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            return Some(VolumeSource::Claim(format!("{pod}-{name}")));
        }
        volume.csi.as_ref().map(|_| VolumeSource::Csi)
    };
    named
        .filter_map(|block| Some((block.name.clone(), source(&block.name)?)))
        .collect()
}
