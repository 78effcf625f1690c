//! Keys of series.

/// Object that a series is about. Numbers of pods, containers and host applications are the agent's own: each
/// is assigned once per process and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SeriesSubject {
    /// The whole node.
    Node,
    /// Usage outside pods and host applications.
    System,
    /// The kubelet's BestEffort class, by its cgroup.
    Batch,
    /// A pod.
    Pod(u64),
    /// A container.
    Container(u64),
    /// A host application.
    HostApp(u64),
    /// A NUMA node, by its number.
    Numa(u32),
    /// Usage of a NUMA node outside pods and host applications.
    NumaSystem(u32),
    /// A GPU, by its minor number.
    Gpu(u32),
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Quantity that a sample measures. CPU is in milli-cores, memory in bytes, a ratio in 0–1 and a PSI
        /// average in percent.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Metric {
            $($(#[$doc])* $name,)*
        }

        impl Metric {
            /// All metrics.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the name in logs, debug output and the snapshot file.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

metrics! {
    /// CPU usage, in milli-cores.
    CpuUsage = "cpu_usage",
    /// Memory usage without page cache, in bytes.
    MemoryUsage = "memory_usage",
    /// Memory usage with page cache, in bytes.
    MemoryUsageWithPageCache = "memory_usage_with_page_cache",
    /// Memory usage with recently accessed page cache, in bytes.
    MemoryUsageWithHotPageCache = "memory_usage_with_hot_page_cache",
    /// Cold pages, which were not accessed recently, in bytes.
    MemoryCold = "memory_cold_page_size",
    /// Share of enforcement periods that were throttled, 0–1.
    CpuThrottled = "cpu_throttled",
    /// Share of the time since the previous sample in which tasks waited for a CPU, 0–1.
    CpuHeldUp = "cpu_held_up",
    /// CPU that BE pods request, in milli-cores.
    CpuRequest = "cpu_request",
    /// CPU that the BE class can get, in milli-cores.
    CpuRealLimit = "cpu_real_limit",
    /// Cycles of a perf window.
    Cycles = "cycles",
    /// Instructions of a perf window.
    Instructions = "instructions",
    /// PSI, `cpu some avg10`, in percent.
    PsiCpuSome = "psi_cpu_some",
    /// PSI, `cpu full avg10`, in percent.
    PsiCpuFull = "psi_cpu_full",
    /// PSI, `memory some avg10`, in percent.
    PsiMemorySome = "psi_memory_some",
    /// PSI, `memory full avg10`, in percent.
    PsiMemoryFull = "psi_memory_full",
    /// PSI, `io some avg10`, in percent.
    PsiIoSome = "psi_io_some",
    /// PSI, `io full avg10`, in percent.
    PsiIoFull = "psi_io_full",
    /// Streaming multiprocessors in use, in percent.
    GpuCore = "gpu_core_usage",
    /// GPU memory in use, in bytes.
    GpuMemory = "gpu_memory_usage",
    /// Installed GPU memory, in bytes.
    GpuMemoryTotal = "gpu_memory_total",
}

impl Metric {
    /// Returns the metric with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|metric| metric.name() == name)
    }
}

/// Key of a series.
pub type Key = (SeriesSubject, Metric);

/// Retention and resolution of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retention {
    /// Every second for 30 minutes in double precision, for published percentiles.
    Long,
    /// Every second for 5 minutes, then ten-second averages for the rest of 30 minutes.
    Layered,
    /// Every second for 75 seconds, for values that only strategies read.
    Short,
    /// Newest sample only, because older ones are not needed and there are many such series.
    Newest,
}

/// Returns the retention of the series `key`.
pub(super) fn retention((subject, metric): Key) -> Retention {
    use Metric::{
        CpuUsage, GpuCore, GpuMemory, MemoryUsage, MemoryUsageWithHotPageCache,
        MemoryUsageWithPageCache,
    };
    let usage = matches!(
        metric,
        CpuUsage
            | MemoryUsage
            | MemoryUsageWithPageCache
            | MemoryUsageWithHotPageCache
            | GpuCore
            | GpuMemory
    );
    match subject {
        SeriesSubject::Node | SeriesSubject::System if usage => Retention::Long,
        SeriesSubject::Container(_) => Retention::Newest,
        _ if usage => Retention::Layered,
        _ => Retention::Short,
    }
}
