//! Command-line flags, with upstream's names and defaults.
//!
//! Go's forms (`-flag=value`, `--flag value`, `--bool=false`) are normalized before clap parses them. Flags
//! that have no effect here are accepted and logged at start: [`inert::IGNORED_FLAGS`].

pub mod groups;
pub mod inert;
#[cfg(test)]
mod tests;

use crate::audit;
use crate::devices;
use crate::evictor;
use crate::exporter;
use crate::gates::{Gate, GateError, Gates};
use crate::node_topology::{self, TopologyMode};
use crate::options::{Options, PodSource, Thread};
use crate::predict;
use crate::runtime;
use crate::settings::{Collectors, Settings};
use crate::states::kubelet::{Kubelet, kubelet_trust};
use crate::states::slo::{SuppressMode, UnknownSuppressMode};
use clap::ArgAction::Set;
use clap::Parser;
use koord_app::flags;
use koord_host::{CgroupPath, HostError, Root};
use koord_kube::endpoint::Trust;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::time::Duration;

/// Name of the file of samples in `--tsdb-path`.
const SNAPSHOT: &str = "koordlet-samples";

/// Port of upstream's default of `--addr`.
const PORT: u16 = 9316;
/// Port that replaces it in a dry run.
const DRY_RUN_PORT: u16 = 9319;

/// The flags of the `koordlet` daemon.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "koordlet",
    about = "Node agent: measures the node, reports it, and enforces QoS"
)]
pub struct Args {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub node_name: String,
    /// Path of a kubeconfig. Default: the service account or $KUBECONFIG.
    #[arg(long, default_value = "")]
    pub kubeconfig: String,
    /// Listen address of the HTTP server for health, metrics and audit events.
    #[arg(long, default_value = ":9316", value_parser = address)]
    pub addr: Bind,
    /// Maximum requests per second to the API server.
    #[arg(long, default_value_t = 20.0)]
    pub kube_api_qps: f64,
    /// Maximum burst of requests to the API server.
    #[arg(long, default_value_t = 30)]
    pub kube_api_burst: u32,
    /// Feature gates, such as `AllAlpha=true,BECPUSuppress=false`.
    #[arg(long, default_value = "")]
    pub feature_gates: String,
    /// Real-time priority of the agent's main loop, 1-99; 0 selects normal scheduling.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=99))]
    pub realtime_priority: u8,
    /// Write nothing: record what would be written in the audit log, below `dry-run` in its directory. For use
    /// next to another koordlet: the port of --addr is 9319 instead of 9316, values are not set through the
    /// container runtime unless --runtime-hooks-mode=nri, and no report is sent.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub dry_run: bool,
    /// Report NodeMetric also with --dry-run. Only for nodes without another koordlet.
    #[arg(long, default_value_t = false, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub dry_run_report: bool,
    /// Flags of the machine.
    #[command(flatten)]
    pub system: groups::MachineFlags,
    /// Flags of the pod source and of reports.
    #[command(flatten)]
    pub states: groups::ReportFlags,
    /// Flags of collectors.
    #[command(flatten)]
    pub collectors: groups::CollectorFlags,
    /// Flags of strategies.
    #[command(flatten)]
    pub qos: groups::QosFlags,
    /// Flags of the container runtime's hooks.
    #[command(flatten)]
    pub runtime: groups::RuntimeFlags,
    /// Flags of devices.
    #[command(flatten)]
    pub devices: groups::DeviceFlags,
    /// Flags of the audit log.
    #[command(flatten)]
    pub audit: groups::AuditFlags,
    /// Flags of the predictor.
    #[command(flatten)]
    pub prediction: groups::PredictionFlags,
    /// Flags of upstream that have no effect here.
    #[command(flatten)]
    pub inert: inert::Flags,
}

/// Listen address. `None` disables the server.
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

/// Parses whole seconds. Negative values count as 0, as in upstream.
fn seconds(text: &str) -> Result<u64, String> {
    let seconds: i64 = text
        .parse()
        .map_err(|error: ParseIntError| error.to_string())?;
    Ok(u64::try_from(seconds).unwrap_or(0))
}

/// Parses a directory. An empty text is invalid, because it would mean the working directory.
fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("a directory must be named".to_owned());
    }
    Ok(text.into())
}

/// Errors of the agent's command line.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// `--feature-gates`.
    #[error("feature-gates: {0}")]
    Gates(#[from] GateError),
    /// `--cpu-suppress-mode`.
    #[error(transparent)]
    Mode(#[from] UnknownSuppressMode),
    /// `--eviction-mode`.
    #[error(transparent)]
    Eviction(#[from] evictor::UnknownEvictionMode),
    /// `--node-topology-mode`.
    #[error(transparent)]
    Topology(#[from] node_topology::UnknownTopologyMode),
    /// `--node-topology-mode` and `--topology-exporter`.
    #[error(
        "node-topology-mode koordinator and topology-exporter exclude each other: a list of zones has \
         one owner"
    )]
    TwoOwners,
    /// `agent_mode`.
    #[error(transparent)]
    Agent(#[from] groups::UnknownAgentMode),
    /// `--pod-source`.
    #[error("pod-source must be kubelet or apiserver, got {0:?}")]
    PodSource(String),
    /// `--collect-res-used-interval`.
    #[error("collect-res-used-interval must be at least 1s, got {0:?}")]
    Interval(Duration),
    /// `--prediction-safety-margin-percent`.
    #[error("prediction-safety-margin-percent must be 0 to 100, got {0}")]
    SafetyMargin(i64),
    /// `--runtime-hooks-mode`.
    #[error(transparent)]
    Delivery(#[from] runtime::UnknownHooksMode),
    /// A flag of the container runtime's hooks has an invalid value.
    #[error("{flag} {why}")]
    Runtime {
        /// Name of the flag.
        flag: &'static str,
        /// Reason why the value is invalid.
        why: String,
    },
    /// A directory or cgroup is invalid.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl Args {
    /// Returns the agent's options by these flags. Opens the audit log and reads the cgroup mounts.
    ///
    /// # Errors
    /// Names the invalid flag and its value.
    pub fn options(&self) -> Result<Options, ArgsError> {
        let gates: Gates = self.feature_gates.parse()?;
        let root = Root::with_dirs(self.system.dirs()?)?;
        let settings = self.settings(gates)?;
        let pods = self.pods()?;
        let evict = self.evict()?;
        let detect_layout = Some(CgroupPath::new(&self.system.kubelet_cgroup_root)?);
        for inert in self.inert.set_flags() {
            tracing::warn!(flag = inert.name, why = inert.why, "flag without effect");
        }
        let audit = self.audit(&settings.gates);
        Ok(Options {
            node_name: self.node_name.clone(),
            root: Some(root),
            mount_resctrl: true,
            detect_layout,
            settings,
            pods,
            report: self.states.enable_node_metric_report && (!self.dry_run || self.dry_run_report),
            report_interval: None,
            topology: self.topology()?,
            exporter: self.exporter(),
            address: self.address(),
            server: None,
            audit,
            evict,
            devices: self.devices(),
            runtime: self.runtime()?,
            dry_run: self.dry_run,
            thread: Thread::Own,
            realtime_priority: self.realtime_priority,
        })
    }

    /// Returns the address to listen on. A dry run leaves the usual port to another koordlet.
    fn address(&self) -> Option<SocketAddr> {
        let mut address = self.addr.0?;
        if self.dry_run && address.port() == PORT {
            address.set_port(DRY_RUN_PORT);
        }
        Some(address)
    }

    /// Returns the agent's settings. Fails on an invalid flag.
    fn settings(&self, gates: Gates) -> Result<Settings, ArgsError> {
        let (qos, collectors) = (&self.qos, &self.collectors);
        let suppress_mode: SuppressMode = qos.cpu_suppress_mode.parse()?;
        let interval = collectors.collect_res_used_interval;
        if interval < Duration::from_secs(1) {
            return Err(ArgsError::Interval(interval));
        }
        let seconds = |seconds: u64| seconds.saturating_mul(1000);
        Ok(Settings {
            interval_ms: millis(interval),
            gates,
            suppress_mode,
            be_cpu_idle: qos.be_pod_cpu_idle,
            collectors: Collectors {
                cpu_info_ms: millis(collectors.collect_node_cpu_info_interval),
                storage_info_ms: millis(collectors.collect_node_storage_info_interval),
                psi_ms: millis(collectors.psi_collector_interval),
                cpi_ms: millis(collectors.cpi_collector_interval),
                cpi_window_ms: millis(collectors.collect_cpi_timewindow),
                page_cache: collectors.enable_pagecache_collector,
                packets: collectors.enable_packet_collector,
                resctrl: collectors.enable_resctrl_collector,
                resctrl_ms: millis(collectors.resctrl_collector_interval),
            },
            kubelet_dir: self.system.var_lib_kubelet_dir.clone(),
            snapshot: Some(collectors.tsdb_path.join(SNAPSHOT)),
            qos_reconcile_interval_ms: seconds(qos.reconcile_interval_seconds),
            cpu_suppress_interval_ms: seconds(qos.cpu_suppress_interval_seconds),
            cpu_evict_interval_ms: seconds(qos.cpu_evict_interval_seconds),
            memory_evict_interval_ms: seconds(qos.memory_evict_interval_seconds),
            cpu_cool_down_ms: seconds(qos.cpu_evict_cool_time_seconds),
            memory_cool_down_ms: seconds(qos.memory_evict_cool_time_seconds),
            unset_cpu_quota: !qos.disable_unset_cpu_quota,
            reconcile_interval_ms: millis(qos.runtime_hooks_reconcile_interval),
            force_update_ms: seconds(qos.resource_force_update_seconds),
            hami_library: self.devices.hami_core_library_directory_path.clone(),
            restore_on_stop: qos.restore_on_stop,
            training_interval_ms: millis(self.prediction.prediction_training_interval),
            predict: self.predict()?,
            ..Settings::default()
        })
    }

    fn exporter(&self) -> Option<exporter::ExporterSettings> {
        let dir = &self.system.var_lib_kubelet_dir;
        self.states
            .topology_exporter
            .then(|| exporter::ExporterSettings {
                node: self.node_name.clone(),
                socket: dir.join("pod-resources/kubelet.sock"),
                interval: self.states.topology_exporter_interval,
                state_dir: Some(dir.clone()),
                kubelet: exporter::ConfigSource::Node(self.kubelet()),
                fingerprint: true,
                exclude: BTreeSet::new(),
                publish: true,
                // koordlet's own zones, written in another mode.
                take_over: exporter::TakeOver::From(node_topology::FIELD_MANAGER),
            })
    }

    fn kubelet(&self) -> Kubelet {
        let states = &self.states;
        Kubelet {
            url: Some(states.kubelet_url.clone()).filter(|url| !url.is_empty()),
            address_type: states.kubelet_preferred_address_type.clone(),
            insecure: states.kubelet_insecure_tls,
            read_only_port: states.kubelet_read_only_port,
            trust: match states.kubelet_certificate_authority.as_str() {
                _ if !states.kubelet_verify_certificate => Trust::Any,
                "" => kubelet_trust(Some(&self.system.var_lib_kubelet_dir)),
                file => Trust::Files(vec![file.into()]),
            },
            interval: states.kubelet_sync_interval,
            timeout: states.kubelet_sync_timeout,
            query_config: !states.disable_query_kubelet_config,
        }
    }

    fn pods(&self) -> Result<PodSource, ArgsError> {
        let (states, kubelet) = (&self.states, self.kubelet());
        match states.pod_source.as_str() {
            "kubelet" => Ok(PodSource::Kubelet(kubelet)),
            "apiserver" => {
                if let Some(url) = kubelet.url {
                    let why = "pods come from the API server";
                    tracing::warn!(flag = "kubelet-url", url, why, "flag without effect");
                }
                Ok(PodSource::ApiServer)
            }
            other => Err(ArgsError::PodSource(other.to_owned())),
        }
    }

    fn topology(&self) -> Result<Option<node_topology::Reporting>, ArgsError> {
        let interval = self.states.node_topology_sync_interval;
        let mode = match (
            self.states.node_topology_mode.parse()?,
            self.states.topology_exporter,
        ) {
            (TopologyMode::Koordinator, true) => return Err(ArgsError::TwoOwners),
            // The exporter's first report does not exist yet, so `auto` could not detect it.
            (TopologyMode::Auto, true) => TopologyMode::AnnotationsOnly,
            (mode, _) => mode,
        };
        let reporting = node_topology::Reporting { interval, mode };
        Ok((!interval.is_zero()).then_some(reporting))
    }

    fn evict(&self) -> Result<evictor::Config, ArgsError> {
        let mode = if self.qos.only_evict_by_api {
            evictor::EvictionMode::Api
        } else {
            self.qos.eviction_mode.parse()?
        };
        Ok(evictor::Config {
            mode,
            ..evictor::Config::default()
        })
    }

    fn devices(&self) -> devices::Config {
        devices::Config {
            files: self.devices.xpu_device_infos_dir.clone(),
            files_only: self.devices.xpu_enforce_collect_from_device_infos,
            library: self.devices.nvml_library.clone(),
            interval: self.states.node_topology_sync_interval,
        }
    }

    /// Returns the configuration of the integration with the container runtime. Fails on an invalid flag.
    fn runtime(&self) -> Result<runtime::Config, ArgsError> {
        let flags = &self.runtime;
        let flag_error = |flag, why: &dyn Display| ArgsError::Runtime {
            flag,
            why: why.to_string(),
        };
        let policy = |flag, text: &str| -> Result<runtime::Policy, ArgsError> {
            text.parse()
                .map_err(|error: runtime::UnknownPolicy| flag_error(flag, &error))
        };
        let mode = match flags.runtime_hooks_mode.as_str() {
            "" if self.dry_run => runtime::Mode::Standalone,
            "" if flags.enable_nri_runtime_hook => runtime::Mode::Nri,
            "" => runtime::Mode::Proxy,
            named => named.parse()?,
        };
        if flags.runtime_hooks_network != "unix" {
            let why = format!("must be unix, got {:?}", flags.runtime_hooks_network);
            return Err(flag_error("runtime-hooks-network", &why));
        }
        let stages = flags.runtime_hooks_disable_stages.iter();
        let disabled: Vec<String> = stages.filter(|stage| !stage.is_empty()).cloned().collect();
        for stage in &disabled {
            if !runtime::STAGES.contains(&stage.as_str()) {
                tracing::warn!(
                    flag = "runtime-hooks-disable-stages",
                    stage,
                    "ignoring unknown stage"
                );
            }
        }
        let index = &flags.runtime_hooks_nri_plugin_index;
        if index.len() != 2 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            let why = format!("must be two digits, got {index:?}");
            return Err(flag_error("runtime-hooks-nri-plugin-index", &why));
        }
        let name = &flags.runtime_hooks_nri_plugin_name;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.+".contains(letter);
        if name.is_empty() || !name.chars().all(plain) {
            let why = format!("must be letters, digits and -_.+, got {name:?}");
            return Err(flag_error("runtime-hooks-nri-plugin-name", &why));
        }
        let [run, socket, directory] = flags.locations(self.system.mode()?);
        let flag = "runtime-hooks-plugin-failure-policy";
        Ok(runtime::Config {
            mode,
            policy: policy(flag, &flags.runtime_hooks_plugin_failure_policy)?,
            disabled,
            nri: runtime::Nri {
                socket: run.join(&flags.runtime_hooks_nri_socket_path),
                name: name.clone(),
                index: index.clone(),
                connect_within: flags.runtime_hooks_nri_connect_timeout,
                backoff: flags.runtime_hooks_nri_backoff_duration,
                backoff_cap: flags
                    .runtime_hooks_nri_backoff_cap
                    .min(runtime::BACKOFF_CAP),
            },
            server: runtime::Server {
                socket,
                endpoint: flags.runtime_hooks_host_endpoint.clone(),
                policy: policy(
                    "runtime-hooks-failure-policy",
                    &flags.runtime_hooks_failure_policy,
                )?,
                directory,
            },
        })
    }

    fn audit(&self, gates: &Gates) -> audit::Log {
        let audit = &self.audit;
        let dir = gates.is_on(Gate::AuditEvents);
        let read = gates.is_on(Gate::AuditEventsHTTPHandler);
        audit::Log::open(audit::Config {
            verbose: audit.audit_verbose,
            // Without the HTTP handler, events cannot be read back, so few suffice.
            capacity: if read {
                audit.audit_max_events_limit
            } else {
                64
            },
            dir: dir.then(|| match self.dry_run {
                true => audit.audit_log_dir.join("dry-run"),
                false => audit.audit_log_dir.clone(),
            }),
            max_disk_mib: audit.audit_max_disk_space_mb,
            max_page: audit.audit_max_events_limit,
            max_readers: audit.audit_max_concurrent_readers,
        })
    }

    fn predict(&self) -> Result<predict::Config, ArgsError> {
        let prediction = &self.prediction;
        let margin = prediction.prediction_safety_margin_percent;
        if !(0..=100).contains(&margin) {
            return Err(ArgsError::SafetyMargin(margin));
        }
        let millis = |duration| i64::try_from(millis(duration)).unwrap_or(i64::MAX);
        Ok(predict::Config {
            dir: Some(prediction.prediction_checkpoint_filepath.clone()),
            cold_start_ms: millis(prediction.prediction_cold_start_duration),
            safety_margin_percent: margin,
            memory_half_life_ms: millis(prediction.prediction_memory_histogram_decay_halflife),
            cpu_half_life_ms: millis(prediction.prediction_cpu_histogram_decay_halflife),
            expiration_ms: millis(prediction.prediction_model_expiration_duration),
            checkpoint_interval_ms: millis(prediction.prediction_model_checkpoint_interval),
            checkpoints_per_step: prediction.prediction_model_checkpoint_max_per_step,
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
