//! The flags by part of the agent.

use super::{duration, path, seconds};
use clap::ArgAction::Set;
use koord_host::root::Dirs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Where the agent runs: decides where the host's directories are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentMode {
    /// In a container of a DaemonSet, with the host's directories mounted at upstream's places.
    DaemonSet,
    /// On the host.
    Host,
}

/// A mode that there is not.
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
    /// Where the host's directories are mounted, else on the host.
    fn detect() -> Self {
        if Path::new("/host-cgroup").is_dir() {
            Self::DaemonSet
        } else {
            Self::Host
        }
    }

    /// Upstream's places.
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

/// The machine.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Machine")]
pub struct MachineFlags {
    /// `hostMode` or `dsMode`, for where the host's directories are; `dsMode` where /host-cgroup
    /// exists otherwise.
    #[arg(long, env = "agent_mode", default_value = "")]
    pub agent_mode: String,
    /// Root of the cgroup tree; /host-cgroup/ in dsMode, else /sys/fs/cgroup/.
    #[arg(long, value_parser = path)]
    pub cgroup_root_dir: Option<PathBuf>,
    /// Root of sysfs; /host-sys/ in dsMode, else /sys/.
    #[arg(long, value_parser = path)]
    pub sys_root_dir: Option<PathBuf>,
    /// The host's /sys/fs, with resctrl below; /host-sys-fs/ in dsMode, else /sys/fs/.
    #[arg(long, value_parser = path)]
    pub sys_fs_root_dir: Option<PathBuf>,
    /// Root of procfs; /proc/.
    #[arg(long, value_parser = path)]
    pub proc_root_dir: Option<PathBuf>,
    /// The kubelet's directory on the host, where volumes of pods are mounted.
    #[arg(long, default_value = "/var/lib/kubelet/", value_parser = path)]
    pub var_lib_kubelet_dir: PathBuf,
    /// The group that `kubepods` is in (the kubelet's cgroupRoot); empty is the root group.
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

    /// Returns the directories that these flags and the mode give.
    pub(super) fn dirs(&self) -> Result<Dirs, UnknownAgentMode> {
        let mut dirs = self.mode()?.dirs();
        // Below another /sys, resctrl is there too, unless said otherwise.
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

/// How containers get what hooks want at creation.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Container runtime")]
pub struct RuntimeFlags {
    /// The one way in which containers get their values at creation: `nri` (as the runtime's plugin),
    /// `proxy` (as the hook server of koord-runtime-proxy) or `standalone` (after creation). Otherwise
    /// `nri`, or `proxy` with --enable-nri-runtime-hook=false.
    #[arg(long, default_value = "")]
    pub runtime_hooks_mode: String,
    /// True if `nri` is the mode where none is named.
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_nri_runtime_hook: bool,
    /// What becomes of a container whose hook fails: `Ignore` (it is created as asked for) or `Fail`.
    #[arg(long, default_value = "Ignore")]
    pub runtime_hooks_plugin_failure_policy: String,
    /// Stages that are not served, with commas between.
    #[arg(long, default_value = "", value_delimiter = ',')]
    pub runtime_hooks_disable_stages: Vec<String>,
    /// Kind of the hook server's socket: `unix`.
    #[arg(long, default_value = "unix")]
    pub runtime_hooks_network: String,
    /// Where the hook server listens; /host-var-run-koordlet/koordlet.sock in dsMode, else
    /// --runtime-hooks-host-endpoint.
    #[arg(long, value_parser = path)]
    pub runtime_hooks_addr: Option<PathBuf>,
    /// Where koord-runtime-proxy finds that socket.
    #[arg(long, default_value = "/var/run/koordlet/koordlet.sock")]
    pub runtime_hooks_host_endpoint: String,
    /// What koord-runtime-proxy does when the hook server does not answer: `Ignore` or `Fail`.
    #[arg(long, default_value = "Ignore")]
    pub runtime_hooks_failure_policy: String,
    /// Directory of hook servers' registrations; /host-etc-hookserver/ in dsMode, else
    /// /etc/runtime/hookserver.d.
    #[arg(long, value_parser = path)]
    pub runtime_hooks_config_path: Option<PathBuf>,
    /// The host's /var/run; /host-var-run/ in dsMode, else /var/run/.
    #[arg(long, value_parser = path)]
    pub var_run_root_dir: Option<PathBuf>,
    /// The runtime's NRI socket below --var-run-root-dir.
    #[arg(long, default_value = "nri/nri.sock")]
    pub runtime_hooks_nri_socket_path: PathBuf,
    /// The plugin's name.
    #[arg(long, default_value = "koordlet_nri")]
    pub runtime_hooks_nri_plugin_name: String,
    /// The plugin's place among others: two digits.
    #[arg(long, default_value = "00")]
    pub runtime_hooks_nri_plugin_index: String,
    /// How long the runtime may take to answer the registration; at least 5s.
    #[arg(long, default_value = "6s", value_parser = duration)]
    pub runtime_hooks_nri_connect_timeout: Duration,
    /// Before the second attempt to reach the runtime; doubled for each one more.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub runtime_hooks_nri_backoff_duration: Duration,
    /// The longest time between two attempts; at most 30s.
    #[arg(long, default_value = "1281023h53m38.427387903s", value_parser = duration)]
    pub runtime_hooks_nri_backoff_cap: Duration,
}

impl RuntimeFlags {
    /// Where the host's /var/run, the hook server's socket and the registrations are.
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

/// Where pods come from.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Pods and reports")]
pub struct ReportFlags {
    /// Where pods come from: `kubelet` or `apiserver`.
    #[arg(long, default_value = "kubelet")]
    pub pod_source: String,
    /// URL of the kubelet; made from the Node object otherwise. Not used where pods come from the
    /// API server.
    #[arg(long, default_value = "")]
    pub kubelet_url: String,
    /// Address type of the Node object to reach the kubelet by.
    #[arg(long, default_value = "InternalIP")]
    pub kubelet_preferred_address_type: String,
    /// Time between two reads of the kubelet's pods; 0 never reads them.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub kubelet_sync_interval: Duration,
    /// How long one read may take.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub kubelet_sync_timeout: Duration,
    /// Read the kubelet's read-only port over plain HTTP.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub kubelet_insecure_tls: bool,
    /// The kubelet's read-only port.
    #[arg(long, default_value_t = 10255)]
    pub kubelet_read_only_port: u16,
    /// PEM file with the authority of the kubelet's certificate, or with the certificate; the cluster's
    /// authority and the files in `pki` below the kubelet's directory otherwise.
    #[arg(long, default_value = "")]
    pub kubelet_certificate_authority: String,
    /// True if the kubelet's certificate is verified.
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub kubelet_verify_certificate: bool,
    /// Do not ask the kubelet for its configuration.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_query_kubelet_config: bool,
    /// Between two looks at what has changed of the NodeResourceTopology and of the
    /// devices; 0 never looks.
    #[arg(long, default_value = "3s", value_parser = super::duration)]
    pub node_topology_sync_interval: Duration,
    /// Whose the zones of the NodeResourceTopology are: `koordinator`, `annotations-only` (an
    /// exporter's such as nfd-topology-updater), or `auto`, which leaves them to an exporter that has
    /// left a fingerprint of the pods, or to `--topology-exporter`.
    #[arg(long, default_value = "auto")]
    pub node_topology_mode: String,
    /// True if the NodeResourceTopology says what is free in each NUMA node, as the kubelet's PodResources
    /// service lists it: instead of nfd-topology-updater, and never beside it.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub topology_exporter: bool,
    /// Time between two looks at what the kubelet lists that no change asks for; 0 is never.
    #[arg(long, default_value = "60s", value_parser = super::duration)]
    pub topology_exporter_interval: Duration,
    /// True if NodeMetric is reported.
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_node_metric_report: bool,
}

/// Devices.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Devices (gates Accelerators and RDMADevices)")]
pub struct DeviceFlags {
    /// Where vendors' tools describe their accelerators in files.
    #[arg(long, default_value = "/var/run/koordlet/xpu-device-infos/", value_parser = path)]
    pub xpu_device_infos_dir: PathBuf,
    /// Report the accelerators of these files only, also where there are none.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub xpu_enforce_collect_from_device_infos: bool,
    /// NVIDIA's library: its path, or its name where the loader finds it.
    #[arg(long, default_value = koord_host::nvml::LIBRARY)]
    pub nvml_library: PathBuf,
    /// HAMi-core's library on the host, for containers that share a GPU through it (gate GPUEnvInject).
    #[arg(long, default_value = "/usr/local/vgpu/libvgpu.so")]
    pub hami_core_library_directory_path: String,
}

/// Collectors.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Collectors")]
pub struct CollectorFlags {
    /// Where samples are kept over a restart.
    #[arg(long, default_value = "/metric-data/")]
    pub tsdb_path: PathBuf,
    /// Time between two samples; at least one second.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub collect_res_used_interval: Duration,
    /// Between two readings of the CPU topology.
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub collect_node_cpu_info_interval: Duration,
    /// Between two readings of the local disks.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub collect_node_storage_info_interval: Duration,
    /// Between two readings of pressure.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub psi_collector_interval: Duration,
    /// From the end of a window of performance counters to the next (with gate CPICollector).
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub cpi_collector_interval: Duration,
    /// How long such a window is.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub collect_cpi_timewindow: Duration,
    /// Also measure memory with page cache.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_pagecache_collector: bool,
    /// Count the packets that services send, with eBPF: CPU time per packet shows the pressure guard
    /// harm through memory bandwidth and caches. Needs CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN.
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_packet_collector: bool,
    /// Monitor cache and memory bandwidth by QoS class (with gate ResctrlCollector).
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_resctrl_collector: bool,
    /// Between two readings of these.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub resctrl_collector_interval: Duration,
}

/// Strategies.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Strategies")]
pub struct QosFlags {
    /// Between two reconciles of memory QoS and its like, in seconds; 0 switches them off.
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub reconcile_interval_seconds: u64,
    /// Between two decisions of CPU suppression, in seconds; 0 switches it off.
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub cpu_suppress_interval_seconds: u64,
    /// Between two decisions of eviction for CPU, in seconds; 0 switches it off.
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub cpu_evict_interval_seconds: u64,
    /// Between two decisions of eviction for memory, in seconds; 0 switches it off.
    #[arg(long, default_value = "1", value_parser = seconds, allow_negative_numbers = true)]
    pub memory_evict_interval_seconds: u64,
    /// Pause between two rounds of eviction for memory, in seconds.
    #[arg(long, default_value = "4", value_parser = seconds, allow_negative_numbers = true)]
    pub memory_evict_cool_time_seconds: u64,
    /// Pause between two rounds of eviction for CPU, in seconds.
    #[arg(long, default_value = "20", value_parser = seconds, allow_negative_numbers = true)]
    pub cpu_evict_cool_time_seconds: u64,
    /// The same as --eviction-mode=api.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub only_evict_by_api: bool,
    /// How pods are evicted: `api-then-kill` kills where the API server does not answer or fails,
    /// `api` never does, `kill` does not ask.
    #[arg(long, default_value = "api-then-kill")]
    pub eviction_mode: String,
    /// How batch work is suppressed: `pressure` or `upstream`.
    #[arg(long, default_value = "pressure")]
    pub cpu_suppress_mode: String,
    /// Give batch pods' own groups the idle policy.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub be_pod_cpu_idle: bool,
    /// Bring back, on a clean stop, what was in the kernel's files before this agent wrote them.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub restore_on_stop: bool,
    /// Between two looks at pods' values, by the hooks' reconciler.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub runtime_hooks_reconcile_interval: Duration,
    /// Leave the CFS quota of pods with CPU sets alone.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_unset_cpu_quota: bool,
    /// Values are written again after this time, in seconds.
    #[arg(long, default_value = "60", value_parser = seconds, allow_negative_numbers = true)]
    pub resource_force_update_seconds: u64,
}

/// The audit log.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Audit (gates AuditEvents and AuditEventsHTTPHandler)")]
pub struct AuditFlags {
    /// Where the audit log is written.
    #[arg(long, default_value = "/var/log/koordlet")]
    pub audit_log_dir: PathBuf,
    /// Audit records above this level are dropped; 0 keeps all.
    #[arg(long, default_value_t = 3)]
    pub audit_verbose: u8,
    /// Disk space of the audit log, in MiB.
    #[arg(long, default_value_t = 16)]
    pub audit_max_disk_space_mb: u64,
    /// How many may page through the events at once.
    #[arg(long, default_value_t = 4)]
    pub audit_max_concurrent_readers: usize,
    /// Largest page of audit events.
    #[arg(long, default_value_t = 2048)]
    pub audit_max_events_limit: usize,
}

/// The predictor.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Prediction")]
pub struct PredictionFlags {
    /// Where the predictor keeps its models.
    #[arg(long, default_value = "/prediction-checkpoints")]
    pub prediction_checkpoint_filepath: PathBuf,
    /// Younger pods count with their request.
    #[arg(long, default_value = "24h", value_parser = duration)]
    pub prediction_cold_start_duration: Duration,
    /// Added to every forecast, in percent.
    #[arg(long, default_value_t = 10)]
    pub prediction_safety_margin_percent: i64,
    /// Half-life of memory samples.
    #[arg(long, default_value = "24h", value_parser = duration)]
    pub prediction_memory_histogram_decay_halflife: Duration,
    /// Half-life of CPU samples.
    #[arg(long, default_value = "12h", value_parser = duration)]
    pub prediction_cpu_histogram_decay_halflife: Duration,
    /// Between two training steps.
    #[arg(long, default_value = "1m", value_parser = duration)]
    pub prediction_training_interval: Duration,
    /// Models not trained for this long are dropped.
    #[arg(long, default_value = "30m", value_parser = duration)]
    pub prediction_model_expiration_duration: Duration,
    /// Models are saved this often.
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub prediction_model_checkpoint_interval: Duration,
    /// Models saved at once.
    #[arg(long, default_value_t = 12)]
    pub prediction_model_checkpoint_max_per_step: usize,
}
