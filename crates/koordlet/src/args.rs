//! Command-line flags, with upstream's names and defaults.
//!
//! Go's forms (`-flag=value`, `--flag value`, `--bool=false`) are normalised before clap sees them.
//! Flags that only upstream's implementation needs are accepted and have no effect.

use crate::audit;
use crate::evictor;
use crate::gates::{Gate, GateError, Gates};
use crate::options::{Kubelet, Options, PodSource, Settings, Thread};
use crate::predict;
use crate::states::slo::{SuppressMode, UnknownMode};
use clap::Parser;
use koord_app::flags;
use koord_host::root::Dirs;
use koord_host::{CgroupPath, HostError, Root};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The flags of the `koordlet` daemon.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "koordlet",
    about = "The koord node agent",
    disable_version_flag = true
)]
pub struct Args {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub node_name: String,
    /// Kubeconfig; the service account or $KUBECONFIG otherwise.
    #[arg(long, default_value = "")]
    pub kubeconfig: String,
    /// Where health, metrics and audit events are served.
    #[arg(long, default_value = ":9316", value_parser = address)]
    pub addr: Bind,
    /// Requests per second to the API server.
    #[arg(long, default_value_t = 20.0)]
    pub kube_api_qps: f64,
    /// Burst of requests to the API server.
    #[arg(long, default_value_t = 30)]
    pub kube_api_burst: u32,
    /// Features, such as `AllAlpha=true,BECPUSuppress=false`.
    #[arg(long, default_value = "")]
    pub feature_gates: String,
    /// Root of the cgroup tree.
    #[arg(long, default_value = "/sys/fs/cgroup")]
    pub cgroup_root_dir: PathBuf,
    /// Root of sysfs.
    #[arg(long, default_value = "/sys")]
    pub sys_root_dir: PathBuf,
    /// Root of procfs.
    #[arg(long, default_value = "/proc")]
    pub proc_root_dir: PathBuf,
    /// The group that `kubepods` is in (the kubelet's cgroupRoot); empty is the root group.
    #[arg(long, default_value = "")]
    pub kubelet_cgroup_root: String,
    /// Where pods come from: `kubelet` or `apiserver`.
    #[arg(long, default_value = "kubelet")]
    pub pod_source: String,
    /// URL of the kubelet; made from the Node object otherwise.
    #[arg(long, default_value = "")]
    pub kubelet_url: String,
    /// Address type of the Node object to reach the kubelet by.
    #[arg(long, default_value = "InternalIP")]
    pub kubelet_preferred_address_type: String,
    /// Time between two reads of the kubelet's pods.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub kubelet_sync_interval: Duration,
    /// How long one read may take.
    #[arg(long, default_value = "3s", value_parser = duration)]
    pub kubelet_sync_timeout: Duration,
    /// Read the kubelet's read-only port over plain HTTP.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub kubelet_insecure_tls: bool,
    /// The kubelet's read-only port.
    #[arg(long, default_value_t = 10255)]
    pub kubelet_read_only_port: u16,
    /// Whether NodeMetric is reported.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_node_metric_report: bool,
    /// Time between two samples; at least one second.
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub collect_res_used_interval: Duration,
    /// Between two looks at batch pods' values, by the hooks' reconciler.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub runtime_hooks_reconcile_interval: Duration,
    /// Pause between two rounds of memory eviction, in seconds.
    #[arg(long, default_value_t = 4)]
    pub memory_evict_cool_time_seconds: u64,
    /// Values are written again after this time, in seconds.
    #[arg(long, default_value_t = 60)]
    pub resource_force_update_seconds: u64,
    /// How batch work is suppressed: `pressure` or `upstream`.
    #[arg(long, default_value = "pressure")]
    pub cpu_suppress_mode: String,
    /// Give batch pods' own groups the idle policy.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub be_pod_cpu_idle: bool,
    /// Real-time priority of the agent's loop, 1-99; 0 is normal.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=99))]
    pub realtime_priority: u8,
    /// Where the audit log is written.
    #[arg(long, default_value = "/var/log/koordlet")]
    pub audit_log_dir: PathBuf,
    /// Audit records above this level are dropped.
    #[arg(long, default_value_t = 3)]
    pub audit_verbose: u8,
    /// Disk space of the audit log, in MiB.
    #[arg(long, default_value_t = 16)]
    pub audit_max_disk_space_mb: u64,
    /// Largest page of audit events.
    #[arg(long, default_value_t = 2048)]
    pub audit_max_events_limit: usize,
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
    /// Flags of upstream that have no meaning here; accepted so that its manifests work.
    #[command(flatten)]
    pub ignored: Ignored,
}

macro_rules! ignored {
    ($($name:ident),+ $(,)?) => {
        /// Flags that are accepted without effect.
        #[derive(Debug, Clone, clap::Args)]
        pub struct Ignored {
            $(
                #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
                $name: Option<String>,
            )+
        }

        impl Ignored {
            /// The names of those that were given.
            #[must_use]
            pub fn given(&self) -> Vec<&'static str> {
                let mut given = Vec::new();
                $(if self.$name.is_some() { given.push(stringify!($name)); })+
                given
            }
        }
    };
}

ignored!(
    enable_pprof,
    pprof_addr,
    configmap_name,
    configmap_namespace,
    report_interval,
    containerd_endpoint,
    docker_endpoint,
    pouch_endpoint,
    default_runtime_type,
    sys_fs_root_dir,
    var_run_root_dir,
    run_root_dir,
    var_lib_kubelet_dir,
    runtime_hooks_config_path,
    hami_core_library_directory_path,
    pod_resources_proxy_path,
    xpu_device_infos_dir,
    node_topology_sync_interval,
    disable_query_kubelet_config,
    enable_pod_taskids,
    xpu_enforce_collect_from_device_infos,
    collect_sys_metric_outdated_interval,
    collect_node_cpu_info_interval,
    collect_node_storage_info_interval,
    cpi_collector_interval,
    psi_collector_interval,
    collect_cpi_timewindow,
    coldpage_collector_interval,
    enable_pagecache_collector,
    enable_resctrl_collector,
    resctrl_collector_interval,
    metric_gc_interval_seconds,
    metric_expire_seconds,
    tsdb_path,
    tsdb_retention_duration,
    tsdb_enable_prometheus_metric,
    tsdb_stripe_size,
    tsdb_max_bytes,
    tsdb_wal_segment_size,
    tsdb_max_block_chunk_segment_size,
    tsdb_min_block_duration,
    tsdb_max_block_duration,
    tsdb_head_chunks_write_buffer_size,
    reconcile_interval_seconds,
    cpu_suppress_interval_seconds,
    cpu_evict_interval_seconds,
    memory_evict_interval_seconds,
    cpu_evict_cool_time_seconds,
    only_evict_by_api,
    qos_extension_plugins,
    runtime_hooks_network,
    runtime_hooks_addr,
    runtime_hooks_failure_policy,
    runtime_hooks_plugin_failure_policy,
    runtime_hooks_host_endpoint,
    runtime_hooks_disable_stages,
    enable_nri_runtime_hook,
    runtime_hooks_nri_connect_timeout,
    runtime_hooks_nri_backoff_duration,
    runtime_hooks_nri_backoff_cap,
    runtime_hooks_nri_backoff_steps,
    runtime_hooks_nri_backoff_factor,
    runtime_hooks_nri_socket_path,
    runtime_hooks_nri_plugin_name,
    runtime_hooks_nri_plugin_index,
    disable_unset_cpu_quota,
    audit_max_concurrent_readers,
    audit_http_handler,
);

/// An address to listen on; none serves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind(pub Option<SocketAddr>);

fn address(text: &str) -> Result<Bind, String> {
    flags::bind_address(text)
        .map(Bind)
        .map_err(|error| error.to_string())
}

fn duration(text: &str) -> Result<Duration, String> {
    flags::duration(text).map_err(|error| error.to_string())
}

/// A flag that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// `--feature-gates`.
    #[error(transparent)]
    Gates(#[from] GateError),
    /// `--cpu-suppress-mode`.
    #[error(transparent)]
    Mode(#[from] UnknownMode),
    /// `--pod-source`.
    #[error("pod-source must be kubelet or apiserver, got {0:?}")]
    PodSource(String),
    /// `--collect-res-used-interval`.
    #[error("collect-res-used-interval must be at least 1s, got {0:?}")]
    Interval(Duration),
    /// A directory or group.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl Args {
    /// The options these flags ask for. Opens the audit log and looks at the cgroup mounts.
    ///
    /// # Errors
    /// Names the flag and its value.
    pub fn options(&self) -> Result<Options, ArgsError> {
        let gates: Gates = self.feature_gates.parse()?;
        let mode: SuppressMode = self.cpu_suppress_mode.parse()?;
        if self.collect_res_used_interval < Duration::from_secs(1) {
            return Err(ArgsError::Interval(self.collect_res_used_interval));
        }
        let kubelet = Kubelet {
            url: Some(self.kubelet_url.clone()).filter(|url| !url.is_empty()),
            address_type: self.kubelet_preferred_address_type.clone(),
            insecure: self.kubelet_insecure_tls,
            read_only_port: self.kubelet_read_only_port,
            interval: self.kubelet_sync_interval,
            timeout: self.kubelet_sync_timeout,
        };
        let pods = match self.pod_source.as_str() {
            "kubelet" => PodSource::Kubelet(kubelet),
            "apiserver" => PodSource::ApiServer,
            other => return Err(ArgsError::PodSource(other.to_owned())),
        };
        let root = Root::with_dirs(Dirs {
            proc: self.proc_root_dir.clone(),
            sys: self.sys_root_dir.clone(),
            cgroup: self.cgroup_root_dir.clone(),
        })?;
        let audit = audit::Config {
            verbose: self.audit_verbose,
            capacity: self.audit_max_events_limit,
            dir: gates
                .is_on(Gate::AuditEvents)
                .then(|| self.audit_log_dir.clone()),
            max_disk_mib: self.audit_max_disk_space_mb,
            max_page: self.audit_max_events_limit,
            ..audit::Config::default()
        };
        let audit = audit::Log::open(audit);
        let ignored = self.ignored.given();
        if !ignored.is_empty() {
            tracing::info!(flags = ignored.join(","), "flags without effect");
        }
        Ok(Options {
            node_name: self.node_name.clone(),
            root: Some(root),
            detect_layout: Some(CgroupPath::new(&self.kubelet_cgroup_root)?),
            settings: Settings {
                interval_ms: millis(self.collect_res_used_interval),
                gates,
                suppress_mode: mode,
                be_cpu_idle: self.be_pod_cpu_idle,
                reconcile_interval_ms: millis(self.runtime_hooks_reconcile_interval),
                force_update_ms: self.resource_force_update_seconds.saturating_mul(1000),
                memory_cool_down_ms: self.memory_evict_cool_time_seconds.saturating_mul(1000),
                training_interval_ms: millis(self.prediction_training_interval),
                predict: self.predict(),
                ..Settings::default()
            },
            pods,
            report: self.enable_node_metric_report,
            report_interval: None,
            address: self.addr.0,
            audit,
            evict: evictor::Config::default(),
            thread: Thread::Own,
            realtime_priority: self.realtime_priority,
        })
    }

    fn predict(&self) -> predict::Config {
        let millis = |duration| i64::try_from(millis(duration)).unwrap_or(i64::MAX);
        predict::Config {
            dir: Some(self.prediction_checkpoint_filepath.clone()),
            cold_start_ms: millis(self.prediction_cold_start_duration),
            safety_margin_percent: self.prediction_safety_margin_percent,
            memory_half_life_ms: millis(self.prediction_memory_histogram_decay_halflife),
            cpu_half_life_ms: millis(self.prediction_cpu_histogram_decay_halflife),
            expiration_ms: millis(self.prediction_model_expiration_duration),
            checkpoint_interval_ms: millis(self.prediction_model_checkpoint_interval),
            checkpoints_per_step: self.prediction_model_checkpoint_max_per_step,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &[&str]) -> Args {
        // As the daemon parses them, klog's flags included.
        let argv = std::iter::once("koordlet").chain(flags.iter().copied());
        koord_app::flags::parse::<Args>(argv.map(Into::into))
            .unwrap()
            .args
    }

    #[test]
    fn upstream_defaults() {
        let args = parse(&["--audit-log-dir=/nonexistent"]);
        let options = args.options().unwrap();
        assert_eq!(options.settings.interval_ms, 1000);
        assert_eq!(options.settings.predict.checkpoints_per_step, 12);
        assert!(matches!(options.pods, PodSource::Kubelet(_)));
        assert_eq!(options.address.map(|a| a.port()), Some(9316));
    }

    #[test]
    fn the_stock_manifest_is_accepted() {
        let args = parse(&[
            "--cgroup-root-dir=/host-cgroup/",
            "--feature-gates=AllAlpha=true,AllBeta=true,AuditEvents=false",
            "--runtime-hooks-network=unix",
            "--runtime-hooks-addr=/host-var-run-koordlet/koordlet.sock",
            "--runtime-hooks-host-endpoint=/var/run/koordlet//koordlet.sock",
            "--logtostderr=true",
            "--v=4",
        ]);
        assert!(
            args.options()
                .unwrap()
                .settings
                .gates
                .is_on(Gate::BEMemoryEvict)
        );
        assert_eq!(args.ignored.given().len(), 3);
    }

    #[test]
    fn bad_values_name_the_flag() {
        for (flag, want) in [
            ("--feature-gates=X=true", "feature-gates: \"X\""),
            ("--cpu-suppress-mode=fast", "cpu-suppress-mode must be"),
            ("--pod-source=file", "pod-source must be"),
            (
                "--collect-res-used-interval=10ms",
                "collect-res-used-interval must be",
            ),
            ("--kubelet-cgroup-root=/abs", "cgroup path \"/abs\""),
        ] {
            let error = parse(&[flag]).options().unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
