//! Table of all metrics: name, type, labels, and the endpoint that shows each.

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, exponential_buckets as buckets,
};

/// Audience of a family. Each audience has an endpoint of its own; `/metrics` has both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    /// State of the agent itself.
    Internal,
    /// Metrics for users and other components.
    External,
}

/// A family of metrics. The name has no prefix yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) audience: Audience,
    pub(super) labels: &'static [&'static str],
    help: &'static str,
}

macro_rules! families {
    ($($id:ident $audience:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(super) const $id: Family = Family {
            name: $name,
            audience: Audience::$audience,
            labels: &[$($label),*],
            help: $help,
        };)+
        pub(super) const ALL: &[Family] = &[$($id),+];
    };
}

families! {
    START_TIME Internal "start_time" ["node"]
        "When the agent started, in Unix seconds";
    CPU_INFO Internal "collect_node_cpu_info_status" ["node", "status"]
        "Readings of the CPU topology";
    NUMA_INFO Internal "collect_node_numa_info_status" ["node", "status"]
        "Readings of the NUMA nodes";
    STORAGE_INFO Internal "collect_node_local_storage_info_status" ["node", "status"]
        "Readings of the local disks";
    EVICTIONS Internal "pod_eviction" ["node", "reason"]
        "Evictions by koordlet";
    EVICTION_DETAIL Internal "pod_eviction_detail" ["node", "pod_namespace", "pod_name", "reason"]
        "Evictions by koordlet, by pod";
    USED_CPU Internal "node_used_cpu_cores" ["node"]
        "CPU in use, in cores";
    USED_MEMORY Internal "node_used_memory_bytes" ["node"]
        "Memory in use, in bytes";
    SUPPRESS Internal "be_suppress_cpu_cores" ["node", "type"]
        "CPU that batch work may use, in cores";
    SUPPRESS_LS Internal "be_suppress_ls_used_cpu_cores" ["node"]
        "CPU that services use, in cores";
    SUPPRESS_BE Internal "be_suppress_be_used_cpu_cores" ["node"]
        "CPU that batch work uses, in cores";
    SCALED_BURST Internal "container_scaled_cfs_burst_us"
        ["node", "pod_namespace", "pod_name", "container_id", "container_name"]
        "CFS burst given to a container, in microseconds";
    SCALED_QUOTA Internal "container_scaled_cfs_quota_us"
        ["node", "pod_namespace", "pod_name", "container_id", "container_name"]
        "CFS quota given to a throttled container, in microseconds";
    SHARE_POOL Internal "cpuset_share_pool_cpu_cores" ["node"]
        "Size of the pool that services share";
    BE_SHARE_POOL Internal "cpuset_be_share_pool_cpu_cores" ["node"]
        "Size of the pool that batch work shares";
    SHARE_POOL_INFO Internal "cpuset_share_pool_info" ["node", "cpu"]
        "1 for every CPU in the pool that services share";
    BE_SHARE_POOL_INFO Internal "cpuset_be_share_pool_info" ["node", "cpu"]
        "1 for every CPU in the pool that batch work shares";
    PREDICTED_RECLAIMABLE Internal "node_predicted_resource_reclaimable"
        ["node", "predictor", "resource", "unit"]
        "Predicted reclaimable resources";
    PREDICTED_PEAK Internal "node_predicted_resource_peak"
        ["node", "predictor", "resource", "unit"]
        "Predicted peak use";
    COOKIE Internal "container_core_sched_cookie"
        ["node", "pod_name", "pod_namespace", "pod_uid", "container_name", "container_id",
         "core_sched_group", "core_sched_cookie"]
        "1 for the core scheduling cookie of a container";
    COOKIE_STATUS Internal "core_sched_cookie_manage_status" ["node", "core_sched_group", "status"]
        "Changes of core scheduling cookies";
    METRIC_NODE Internal "node_metric_node_usage" ["node", "resource", "unit"]
        "Use of the node, as reported in NodeMetric";
    METRIC_SYSTEM Internal "node_metric_system_usage" ["node", "resource", "unit"]
        "Use by what is no pod, as reported in NodeMetric";
    METRIC_NUMA_NODE Internal "node_metric_numa_node_usage"
        ["node", "numa_node_id", "resource", "unit"]
        "Use of a NUMA node, as reported in NodeMetric";
    METRIC_NUMA_SYSTEM Internal "node_metric_numa_system_usage"
        ["node", "numa_node_id", "resource", "unit"]
        "Use of a NUMA node by what is no pod, as reported in NodeMetric";
    OOM_SCORE_ADJ Internal "container_oom_score_adj"
        ["node", "pod_name", "pod_namespace", "pod_uid", "container_name"]
        "oom_score_adj set for a container";
    UPDATES Internal "resource_update_duration_milliseconds" ["type", "status"]
        "Time of one kernel write";
    KUBELET Internal "kubelet_request_duration_seconds" ["verb", "path", "code"]
        "Time of requests to the kubelet";
    HOOKS Internal "runtime_hook_invoked_duration_milliseconds" ["node", "hook", "stage", "status"]
        "Time of a hook's call";
    RECONCILES Internal "runtime_hook_reconciler_invoked_duration_milliseconds"
        ["node", "level", "resource_type", "status"]
        "Time of a reconcile of hooks' values";
    HOST_APPLICATIONS Internal "host_application_resource_usage"
        ["node", "host_application_name", "resource", "priority_class", "qos"]
        "Use of host applications, in cores and bytes";
    // Koord's own.
    SUPPRESS_CAP Internal "be_suppress_cap_percent" ["node"]
        "Cap on the node's CPU for batch work, in percent; 100 is none";
    GUARD Internal "pressure_guard_events_total" ["node", "lever", "kind"]
        "What the pressure guard did: trials of levers, their results and what followed";
    NRI_CONNECTED Internal "nri_connected" ["node"]
        "1 while this agent is a plugin of the container runtime, else 0";
    NRI_LOST Internal "nri_connections_lost_total" ["node"]
        "Connections to the container runtime that were lost or could not be made";
    NRI_CONTESTED Internal "nri_contested_containers" ["node"]
        "Containers that are not created because another plugin of the runtime sets the same of them";
    RUNTIME_REQUESTS Internal "runtime_request_duration_milliseconds" ["node", "event", "status"]
        "Time of the answers to the container runtime and its proxy";
    TICK Internal "tick_seconds" ["node"]
        "Time the last collection and decision took";
    BAD_INPUT Internal "bad_input_total" ["node", "kind", "field"]
        "Malformed values met, by what they are in and which field; the last good value stayed";
    COLLECT_ERRORS Internal "collect_errors_total" ["node", "collector"]
        "Kernel files that a collector or a strategy could not read or parse";
    FAILURES Internal "failures_total" ["node", "part", "name"]
        "Rounds in which a part of the agent failed, such as a collector or a strategy";
    WITHHELD Internal "dry_run_withheld_total" ["node", "type", "reason"]
        "Actions that were not done because of --dry-run, by what they are about and reason";

    ALLOCATABLE External "node_resource_allocatable" ["node", "resource", "unit"]
        "Batch and mid resources of the node";
    RECLAIMABLE External "node_priority_resource_reclaimable"
        ["node", "priority", "resource", "unit"]
        "Reclaimable resources by priority";
    RECLAIMABLE_STATUS External "node_resource_priority_reclaimable_status" ["node", "priority"]
        "0 when the prediction is available, 1 when not";
    REQUESTS External "container_resource_requests"
        ["node", "resource", "unit", "pod_uid", "pod_name", "pod_namespace", "container_id",
         "container_name"]
        "Batch and mid resources that a container requests";
    LIMITS External "container_resource_limits"
        ["node", "resource", "unit", "pod_uid", "pod_name", "pod_namespace", "container_id",
         "container_name"]
        "Batch and mid resources that a container is limited to";
    CPI External "container_cpi"
        ["node", "container_id", "container_name", "pod_uid", "pod_name", "pod_namespace",
         "cpi_field"]
        "Cycles and instructions of a container in one window";
    CONTAINER_PSI External "container_psi"
        ["node", "container_id", "container_name", "pod_uid", "pod_name", "pod_namespace",
         "psi_resource_type", "psi_precision", "psi_degree", "cpu_full_supported"]
        "Pressure of a container";
    POD_PSI External "pod_psi"
        ["node", "pod_uid", "pod_name", "pod_namespace", "psi_resource_type", "psi_precision",
         "psi_degree", "cpu_full_supported"]
        "Pressure of a pod";
    LLC External "resctrl_llc_occupancy" ["node", "cache_id", "qos"]
        "Last-level cache in use by a QoS class, in bytes";
    MB External "resctrl_memory_bandwidth" ["node", "cache_id", "qos", "mb_type"]
        "Memory traffic of a QoS class, in bytes";
}

impl Family {
    /// Returns the full name as scraped.
    pub(super) fn full_name(&self) -> String {
        format!("koordlet_{}", self.name)
    }

    fn opts(&self) -> Opts {
        Opts::new(self.full_name(), self.help)
    }

    pub(super) fn gauge(&self) -> prometheus::Result<GaugeVec> {
        GaugeVec::new(self.opts(), self.labels)
    }

    pub(super) fn counter(&self) -> prometheus::Result<IntCounterVec> {
        IntCounterVec::new(self.opts(), self.labels)
    }

    /// Creates a histogram with `count` buckets from `start` on, each `factor` times the previous one.
    pub(super) fn histogram(
        &self,
        (start, factor, count): (f64, f64, usize),
    ) -> prometheus::Result<HistogramVec> {
        let opts: HistogramOpts = self.opts().into();
        HistogramVec::new(opts.buckets(buckets(start, factor, count)?), self.labels)
    }
}
