//! What the node-side loop is told, with upstream's defaults.

use crate::gates::Gates;
use crate::predict;
use crate::states::slo::SuppressMode;
use crate::states::{Driver, Layout};
use koord_host::CgroupPath;
use koord_model::guard;
use std::path::PathBuf;

/// What collectors are told. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collectors {
    /// Between two readings of the CPU topology.
    pub cpu_info_ms: u64,
    /// Between two readings of the local disks.
    pub storage_info_ms: u64,
    /// Between two readings of pressure.
    pub psi_ms: u64,
    /// From the end of a window of performance counters to the next.
    pub cpi_ms: u64,
    /// How long such a window is.
    pub cpi_window_ms: u64,
    /// True if memory with page cache is measured, too.
    pub page_cache: bool,
    /// True if packets of services are counted, for the pressure guard.
    pub packets: bool,
    /// True if cache and memory bandwidth are monitored by QoS class.
    pub resctrl: bool,
    /// Between two readings of these.
    pub resctrl_ms: u64,
}

impl Default for Collectors {
    fn default() -> Self {
        Self {
            cpu_info_ms: 60_000,
            storage_info_ms: 1_000,
            psi_ms: 10_000,
            cpi_ms: 60_000,
            cpi_window_ms: 10_000,
            page_cache: false,
            packets: true,
            resctrl: false,
            resctrl_ms: 10_000,
        }
    }
}

/// What the node-side loop is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Between two samples and decisions, in milliseconds.
    pub interval_ms: u64,
    /// Between two steps of the fast lane, in milliseconds, while a strategy asks for it.
    pub fast_interval_ms: u64,
    /// True if a clean stop brings back what was in the files before.
    pub restore_on_stop: bool,
    /// Which features are on.
    pub gates: Gates,
    /// How groups are named.
    pub layout: Layout,
    /// The suppression mode where neither node nor NodeSLO names one.
    pub suppress_mode: SuppressMode,
    /// The constants of the pressure guard.
    pub guard: guard::Config,
    /// True if BE pods' own groups get `cpu.idle` where the NodeSLO does not say.
    pub be_cpu_idle: bool,
    /// Between two looks at BE pods' values, in milliseconds.
    pub reconcile_interval_ms: u64,
    /// A cached value is written again after this long, in milliseconds.
    pub force_update_ms: u64,
    /// Between two decisions of CPU suppression, in milliseconds; 0 is never.
    pub cpu_suppress_interval_ms: u64,
    /// Between two looks at whether pods must go for CPU, in milliseconds; 0 is never.
    pub cpu_evict_interval_ms: u64,
    /// Between two rounds of eviction for CPU, in milliseconds.
    pub cpu_cool_down_ms: u64,
    /// Between two looks at whether pods must go for memory, in milliseconds; 0 is never.
    pub memory_evict_interval_ms: u64,
    /// Between two rounds of memory eviction, in milliseconds.
    pub memory_cool_down_ms: u64,
    /// Between two looks at the files of the reconciling strategies, in milliseconds; 0 is never.
    pub qos_reconcile_interval_ms: u64,
    /// True if pods with CPUs of their own have no CFS quota.
    pub unset_cpu_quota: bool,
    /// HAMi-core's library on the host, for containers that share a GPU through it.
    pub hami_library: String,
    /// The kubelet's directory on the host, where volumes of pods are mounted.
    pub kubelet_dir: PathBuf,
    /// The collectors.
    pub collectors: Collectors,
    /// Where samples are kept over a restart; `None` keeps them in memory only.
    pub snapshot: Option<PathBuf>,
    /// Between two training steps of the predictor, in milliseconds.
    pub training_interval_ms: u64,
    /// The predictor.
    pub predict: predict::Config,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval_ms: 1000,
            fast_interval_ms: 100,
            restore_on_stop: false,
            gates: Gates::default(),
            layout: Layout::new(Driver::Cgroupfs, CgroupPath::root()),
            suppress_mode: SuppressMode::default(),
            guard: guard::Config::default(),
            be_cpu_idle: false,
            reconcile_interval_ms: 10_000,
            force_update_ms: 60_000,
            cpu_suppress_interval_ms: 1_000,
            cpu_evict_interval_ms: 1_000,
            cpu_cool_down_ms: 20_000,
            memory_evict_interval_ms: 1_000,
            memory_cool_down_ms: 4_000,
            qos_reconcile_interval_ms: 1_000,
            unset_cpu_quota: true,
            hami_library: "/usr/local/vgpu/libvgpu.so".to_owned(),
            kubelet_dir: "/var/lib/kubelet/".into(),
            collectors: Collectors::default(),
            snapshot: None,
            training_interval_ms: 60_000,
            predict: predict::Config::default(),
        }
    }
}
