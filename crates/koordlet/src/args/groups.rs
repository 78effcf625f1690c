//! The flags, grouped by part of the agent.

use super::{duration, path, seconds};
use clap::ArgAction::Set;
use koord_host::root::Dirs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Environment of the agent, which determines the paths of the host's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentMode {
    /// In a container of a DaemonSet, with the host's directories mounted at upstream's paths.
    DaemonSet,
    /// Directly on the host.
    Host,
}

/// Error for an unknown agent mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("agent_mode must be dsMode or hostMode, got {0:?}")]
pub struct UnknownAgentMode(String);

impl FromStr for AgentMode {
    type Err = UnknownAgentMode;

    fn from_str(text: &str) -> Result<Self, UnknownAgentMode> {
        match text {
            "dsMode" => Ok(Self::DaemonSet),
            "hostMode" => Ok(Self::Host),
            other => Err(UnknownAgentMode(other.to_owned())),
        }
    }
}

impl AgentMode {
    /// Returns [`Self::DaemonSet`] if the host's cgroups are mounted at upstream's path, else [`Self::Host`].
    fn detect() -> Self {
        if Path::new("/host-cgroup").is_dir() {
            Self::DaemonSet
        } else {
            Self::Host
        }
    }

    /// Returns upstream's paths of the host's directories.
    fn dirs(self) -> Dirs {
        let [cgroup, sys, sys_fs] = match self {
            Self::DaemonSet => ["/host-cgroup/", "/host-sys/", "/host-sys-fs/"],
            Self::Host => ["/sys/fs/cgroup/", "/sys/", "/sys/fs/"],
        };
        Dirs {
            proc: "/proc/".into(),
            sys: sys.into(),
            sys_fs: sys_fs.into(),
            cgroup: cgroup.into(),
        }
    }
}

/// Flags of the machine.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineFlags {
    /// `hostMode` or `dsMode`: selects the default paths of the host's directories. Default: `dsMode` if
    /// /host-cgroup exists, else `hostMode`.
    #[arg(long, env = "agent_mode", default_value = "")]
    pub agent_mode: String,
    /// Root of the cgroup tree. Default: /host-cgroup/ in dsMode, else /sys/fs/cgroup/.
    #[arg(long, value_parser = path)]
    pub cgroup_root_dir: Option<PathBuf>,
    /// Root of sysfs. Default: /host-sys/ in dsMode, else /sys/.
    #[arg(long, value_parser = path)]
    pub sys_root_dir: Option<PathBuf>,
    /// The host's /sys/fs, with resctrl below. Default: /host-sys-fs/ in dsMode, else /sys/fs/.
    #[arg(long, value_parser = path)]
    pub sys_fs_root_dir: Option<PathBuf>,
    /// Root of procfs. Default: /proc/.
    #[arg(long, value_parser = path)]
    pub proc_root_dir: Option<PathBuf>,
    /// The kubelet's directory on the host, where volumes of pods are mounted.
    #[arg(long, default_value = "/var/lib/kubelet/", value_parser = path)]
    pub var_lib_kubelet_dir: PathBuf,
    /// Parent cgroup of `kubepods` (the kubelet's cgroupRoot); empty is the root cgroup.
    #[arg(long, default_value = "")]
    pub kubelet_cgroup_root: String,
}

impl MachineFlags {
    pub(super) fn mode(&self) -> Result<AgentMode, UnknownAgentMode> {
        match self.agent_mode.as_str() {
            "" => Ok(AgentMode::detect()),
            text => text.parse(),
        }
    }

    /// Returns the host's directories by these flags and the mode.
    pub(super) fn dirs(&self) -> Result<Dirs, UnknownAgentMode> {
        let mut dirs = self.mode()?.dirs();
        // Without its own flag, /sys/fs is taken from the configured sysfs root.
        if let Some(sys) = &self.sys_root_dir {
            dirs.sys_fs = sys.join("fs");
        }
        for (flag, dir) in [
            (&self.cgroup_root_dir, &mut dirs.cgroup),
            (&self.sys_root_dir, &mut dirs.sys),
            (&self.sys_fs_root_dir, &mut dirs.sys_fs),
            (&self.proc_root_dir, &mut dirs.proc),
        ] {
            if let Some(path) = flag {
                path.clone_into(dir);
            }
        }
        Ok(dirs)
    }
}

/// Flags of the container runtime's hooks.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Container runtime")]
pub struct RuntimeFlags {
    /// How the hooks set values of new containers: `nri` (as a plugin of the runtime), `proxy` (as the hook
    /// server of koord-runtime-proxy) or `standalone` (after the container is created). Default: `nri`, or `proxy` with
    /// --enable-nri-runtime-hook=false.
    #[arg(long, default_value = "")]
    pub runtime_hooks_mode: String,
    /// Use `nri` if --runtime-hooks-mode is empty.
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_nri_runtime_hook: bool,
    /// What happens to a container whose hook fails: `Ignore` (create it as requested) or `Fail` (do not create it).
    #[arg(long, default_value = "Ignore")]
    pub runtime_hooks_plugin_failure_policy: String,
    /// Hook stages to disable, separated by commas.
    #[arg(long, default_value = "", value_delimiter = ',')]
    pub runtime_hooks_disable_stages: Vec<String>,
    /// Network of the hook server's socket: `unix`.
    #[arg(long, default_value = "unix")]
    pub runtime_hooks_network: String,
    /// Listen address of the hook server. Default: /host-var-run-koordlet/koordlet.sock in dsMode, else
    /// --runtime-hooks-host-endpoint.
    #[arg(long, value_parser = path)]
    pub runtime_hooks_addr: Option<PathBuf>,
    /// Path of the hook server's socket on the host, for koord-runtime-proxy.
    #[arg(long, default_value = "/var/run/koordlet/koordlet.sock")]
    pub runtime_hooks_host_endpoint: String,
    /// What koord-runtime-proxy does if the hook server does not respond: `Ignore` or `Fail`.
    #[arg(long, default_value = "Ignore")]
    pub runtime_hooks_failure_policy: String,
    /// Directory of hook server registrations. Default: /host-etc-hookserver/ in dsMode, else
    /// /etc/runtime/hookserver.d.
    #[arg(long, value_parser = path)]
    pub runtime_hooks_config_path: Option<PathBuf>,
    /// The host's /var/run. Default: /host-var-run/ in dsMode, else /var/run/.
    #[arg(long, value_parser = path)]
    pub var_run_root_dir: Option<PathBuf>,
    /// The runtime's NRI socket below --var-run-root-dir.
    #[arg(long, default_value = "nri/nri.sock")]
    pub runtime_hooks_nri_socket_path: PathBuf,
    /// Name of the NRI plugin.
    #[arg(long, default_value = "koordlet_nri")]
    pub runtime_hooks_nri_plugin_name: String,
    /// Index of the NRI plugin, two digits: plugins run in the order of their indices.
    #[arg(long, default_value = "00")]
    pub runtime_hooks_nri_plugin_index: String,
    /// Timeout of the registration with the runtime; at least 5s.
    #[arg(long, default_value = "6s", value_parser = duration)]
    pub runtime_hooks_nri_connect_timeout: Duration,
    /// Delay before the second attempt to connect to the runtime; it doubles with each further attempt.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub runtime_hooks_nri_backoff_duration: Duration,
    /// Maximum delay between two attempts; at most 30s.
    #[arg(long, default_value = "1281023h53m38.427387903s", value_parser = duration)]
    pub runtime_hooks_nri_backoff_cap: Duration,
}

impl RuntimeFlags {
    /// Returns the paths of the host's /var/run, the hook server's socket and the registrations.
    pub(super) fn locations(&self, mode: AgentMode) -> [PathBuf; 3] {
        let usual = match mode {
            AgentMode::DaemonSet => [
                "/host-var-run/",
                "/host-var-run-koordlet/koordlet.sock",
                "/host-etc-hookserver/",
            ],
            AgentMode::Host => [
                "/var/run/",
                self.runtime_hooks_host_endpoint.as_str(),
                koord_api::hookserver::DIRECTORY,
            ],
        };
        let configured = [
            &self.var_run_root_dir,
            &self.runtime_hooks_addr,
            &self.runtime_hooks_config_path,
        ];
        let mut locations = usual.map(PathBuf::from);
        for (place, configured) in locations.iter_mut().zip(configured) {
            if let Some(configured) = configured {
                place.clone_from(configured);
            }
        }
        locations
    }
}

/// Flags of the pod source and of reports.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Pods and reports")]
pub struct ReportFlags {
    /// Source of pods: `kubelet` or `apiserver`.
    #[arg(long, default_value = "kubelet")]
    pub pod_source: String,
    /// URL of the kubelet. Default: built from the Node object. Unused with --pod-source=apiserver.
    #[arg(long, default_value = "")]
    pub kubelet_url: String,
    /// Type of the Node address at which to reach the kubelet.
    #[arg(long, default_value = "InternalIP")]
    pub kubelet_preferred_address_type: String,
    /// Time between two reads of the kubelet's pods; 0 disables them.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub kubelet_sync_interval: Duration,
    /// Timeout of a read of the kubelet's pods.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub kubelet_sync_timeout: Duration,
    /// Use the kubelet's read-only port, over plain HTTP.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub kubelet_insecure_tls: bool,
    /// The kubelet's read-only port.
    #[arg(long, default_value_t = 10255)]
    pub kubelet_read_only_port: u16,
    /// PEM file with the certificate authority or the certificate of the kubelet. Default: the cluster's
    /// authority and the files in `pki` below the kubelet's directory.
    #[arg(long, default_value = "")]
    pub kubelet_certificate_authority: String,
    /// Verify the kubelet's certificate.
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub kubelet_verify_certificate: bool,
    /// Do not query the kubelet's configuration.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_query_kubelet_config: bool,
    /// Time between two checks of the NodeResourceTopology and of the devices for changes; 0 disables both.
    #[arg(long, default_value = "3s", value_parser = super::duration)]
    pub node_topology_sync_interval: Duration,
    /// Writer of the zones of the NodeResourceTopology: `koordinator` (koordlet), `annotations-only` (another
    /// exporter, such as nfd-topology-updater), or `auto` (another exporter if the object has its fingerprint of
    /// the pods, or `--topology-exporter`; else koordlet).
    #[arg(long, default_value = "auto")]
    pub node_topology_mode: String,
    /// Report the free resources of each NUMA node, as listed by the kubelet's PodResources service, in the
    /// NodeResourceTopology. Replaces nfd-topology-updater; never run both.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub topology_exporter: bool,
    /// Time between two periodic scans of the kubelet's lists; 0 disables them.
    #[arg(long, default_value = "60s", value_parser = super::duration)]
    pub topology_exporter_interval: Duration,
    /// Report usage in the NodeMetric.
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_node_metric_report: bool,
}

/// Flags of devices.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Devices (gates Accelerators and RDMADevices)")]
pub struct DeviceFlags {
    /// Directory of files in which vendors' tools describe their accelerators.
    #[arg(long, default_value = "/var/run/koordlet/xpu-device-infos/", value_parser = path)]
    pub xpu_device_infos_dir: PathBuf,
    /// Report only the accelerators in these files, even if there are none.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub xpu_enforce_collect_from_device_infos: bool,
    /// NVIDIA's management library (NVML): its path, or a name that the loader can resolve.
    #[arg(long, default_value = koord_host::nvml::LIBRARY)]
    pub nvml_library: PathBuf,
    /// Path of HAMi-core's library on the host, for containers that share a GPU through it (gate GPUEnvInject).
    #[arg(long, default_value = "/usr/local/vgpu/libvgpu.so")]
    pub hami_core_library_directory_path: String,
}

/// Flags of collectors.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Collectors")]
pub struct CollectorFlags {
    /// Directory in which samples are kept across restarts.
    #[arg(long, default_value = "/metric-data/")]
    pub tsdb_path: PathBuf,
    /// Time between two samples; at least one second.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub collect_res_used_interval: Duration,
    /// Time between two reads of the CPU topology.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub collect_node_cpu_info_interval: Duration,
    /// Time between two reads of the local disks.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub collect_node_storage_info_interval: Duration,
    /// Time between two reads of pressure stall information (PSI).
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub psi_collector_interval: Duration,
    /// Time from the end of one window of performance counters to the start of the next (gate CPICollector).
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub cpi_collector_interval: Duration,
    /// Length of a window of performance counters.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub collect_cpi_timewindow: Duration,
    /// Also collect memory usage including page cache.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_pagecache_collector: bool,
    /// Count the packets that services send, with eBPF. From the CPU time per packet, the pressure guard detects
    /// harm through memory bandwidth and caches. Needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN.
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_packet_collector: bool,
    /// Monitor cache and memory bandwidth by QoS class (gate ResctrlCollector).
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_resctrl_collector: bool,
    /// Time between two reads of cache and memory bandwidth.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub resctrl_collector_interval: Duration,
}

/// Flags of strategies.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Strategies")]
pub struct QosFlags {
    /// Time between two reconciles of memory QoS and similar strategies, in seconds; 0 disables them.
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub reconcile_interval_seconds: u64,
    /// Time between two decisions on CPU suppression, in seconds; 0 disables it.
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub cpu_suppress_interval_seconds: u64,
    /// Time between two decisions on CPU eviction, in seconds; 0 disables it.
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub cpu_evict_interval_seconds: u64,
    /// Time between two decisions on memory eviction, in seconds; 0 disables it.
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub memory_evict_interval_seconds: u64,
    /// Pause after a memory eviction, in seconds.
    #[arg(long, default_value = "4", value_parser = seconds, allow_negative_numbers = true)]
    pub memory_evict_cool_time_seconds: u64,
    /// Pause after a CPU eviction, in seconds.
    #[arg(long, default_value = "20", value_parser = seconds, allow_negative_numbers = true)]
    pub cpu_evict_cool_time_seconds: u64,
    /// Same as --eviction-mode=api.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub only_evict_by_api: bool,
    /// How pods are evicted: `api-then-kill` kills their processes if the API server fails or does not
    /// respond, `api` never kills, `kill` does not call the API server.
    #[arg(long, default_value = "api-then-kill")]
    pub eviction_mode: String,
    /// Mode of CPU suppression for batch work: `pressure` or `upstream`.
    #[arg(long, default_value = "pressure")]
    pub cpu_suppress_mode: String,
    /// Set `cpu.idle` on the cgroups of batch pods.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub be_pod_cpu_idle: bool,
    /// On a clean stop, restore the values that kernel files had before this agent changed them.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub restore_on_stop: bool,
    /// Time between two checks of the values that hooks set for running pods.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub runtime_hooks_reconcile_interval: Duration,
    /// Do not change the CFS quota of pods with CPU sets.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_unset_cpu_quota: bool,
    /// Time after which unchanged values are written again, in seconds.
    #[arg(long, default_value = "60", value_parser = seconds, allow_negative_numbers = true)]
    pub resource_force_update_seconds: u64,
}

/// Flags of the audit log.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Audit (gates AuditEvents and AuditEventsHTTPHandler)")]
pub struct AuditFlags {
    /// Directory of the audit log.
    #[arg(long, default_value = "/var/log/koordlet")]
    pub audit_log_dir: PathBuf,
    /// Highest level of recorded audit events; 0 records all.
    #[arg(long, default_value_t = 3)]
    pub audit_verbose: u8,
    /// Maximum disk space of the audit log, in MiB.
    #[arg(long, default_value_t = 16)]
    pub audit_max_disk_space_mb: u64,
    /// Maximum number of clients that read pages of audit events at once.
    #[arg(long, default_value_t = 4)]
    pub audit_max_concurrent_readers: usize,
    /// Maximum number of audit events in a page.
    #[arg(long, default_value_t = 2048)]
    pub audit_max_events_limit: usize,
}

/// Flags of the predictor.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Prediction")]
pub struct PredictionFlags {
    /// Directory of the checkpoints of the prediction models.
    #[arg(long, default_value = "/prediction-checkpoints")]
    pub prediction_checkpoint_filepath: PathBuf,
    /// Age below which a pod is predicted to use its request.
    #[arg(long, default_value = "24h", value_parser = duration)]
    pub prediction_cold_start_duration: Duration,
    /// Margin added to every forecast, in percent.
    #[arg(long, default_value_t = 10)]
    pub prediction_safety_margin_percent: i64,
    /// Half-life of the weight of memory samples.
    #[arg(long, default_value = "24h", value_parser = duration)]
    pub prediction_memory_histogram_decay_halflife: Duration,
    /// Half-life of the weight of CPU samples.
    #[arg(long, default_value = "12h", value_parser = duration)]
    pub prediction_cpu_histogram_decay_halflife: Duration,
    /// Time between two training steps.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub prediction_training_interval: Duration,
    /// Time without training after which a model is dropped.
    #[arg(long, default_value = "30m", value_parser = duration)]
    pub prediction_model_expiration_duration: Duration,
    /// Time between two checkpoints of a model.
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub prediction_model_checkpoint_interval: Duration,
    /// Maximum number of models to checkpoint per step.
    #[arg(long, default_value_t = 12)]
    pub prediction_model_checkpoint_max_per_step: usize,
}
