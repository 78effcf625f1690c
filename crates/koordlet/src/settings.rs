//! Settings of the node-side loop, with upstream's defaults.

use crate::gates::Gates;
use crate::predict;
use crate::states::slo::SuppressMode;
use crate::states::{Driver, Layout};
use koord_host::CgroupPath;
use koord_model::guard;
use std::path::PathBuf;

/// Settings of the collectors. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collectors {
    /// Interval between two readings of the CPU topology.
    pub cpu_info_ms: u64,
    /// Interval between two readings of the local disks.
    pub storage_info_ms: u64,
    /// Interval between two readings of PSI.
    pub psi_ms: u64,
    /// Pause between the end of one window of performance counters and the start of the next.
    pub cpi_ms: u64,
    /// Length of a window of performance counters.
    pub cpi_window_ms: u64,
    /// True if memory usage with page cache is measured, too.
    pub page_cache: bool,
    /// True if packets of services are counted, for the pressure guard.
    pub packets: bool,
    /// True if cache and memory bandwidth are monitored by QoS class through resctrl.
    pub resctrl: bool,
    /// Interval between two readings of resctrl.
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

/// Settings of the node-side loop.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Interval between two ticks (sampling and decisions), in milliseconds.
    pub interval_ms: u64,
    /// Interval between two steps of the fast lane, in milliseconds, while a strategy needs it.
    pub fast_interval_ms: u64,
    /// True if a clean stop restores the values that the files had before.
    pub restore_on_stop: bool,
    /// Feature gates.
    pub gates: Gates,
    /// Naming of cgroups.
    pub layout: Layout,
    /// CPU suppression mode when neither the node's annotation nor the NodeSLO names one.
    pub suppress_mode: SuppressMode,
    /// The constants of the pressure guard.
    pub guard: guard::Config,
    /// True if BE pods' own cgroups get `cpu.idle` when the NodeSLO does not set it.
    pub be_cpu_idle: bool,
    /// Interval between two reconciliations of BE pods' values, in milliseconds.
    pub reconcile_interval_ms: u64,
    /// Age in milliseconds after which a cached value is written again.
    pub force_update_ms: u64,
    /// Interval between two decisions of CPU suppression, in milliseconds; 0 disables it.
    pub cpu_suppress_interval_ms: u64,
    /// Interval between two checks for eviction by CPU, in milliseconds; 0 disables it.
    pub cpu_evict_interval_ms: u64,
    /// Minimum time between two evictions for CPU, in milliseconds.
    pub cpu_cool_down_ms: u64,
    /// Interval between two checks for eviction by memory, in milliseconds; 0 disables it.
    pub memory_evict_interval_ms: u64,
    /// Minimum time between two evictions for memory, in milliseconds.
    pub memory_cool_down_ms: u64,
    /// Interval between two checks of the reconciling strategies' files, in milliseconds; 0 disables it.
    pub qos_reconcile_interval_ms: u64,
    /// True if pods with exclusive CPUs have no CFS quota.
    pub unset_cpu_quota: bool,
    /// Path of HAMi-core's library on the host, for containers that share a GPU through it.
    pub hami_library: String,
    /// The kubelet's directory on the host, where volumes of pods are mounted.
    pub kubelet_dir: PathBuf,
    /// The collectors.
    pub collectors: Collectors,
    /// File that stores samples over a restart; `None` keeps them in memory only.
    pub snapshot: Option<PathBuf>,
    /// Interval between two training steps of the predictor, in milliseconds.
    pub training_interval_ms: u64,
    /// Settings of the predictor.
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
