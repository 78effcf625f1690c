//! What a series is about.

/// Whose sample it is. Numbers of pods, containers and host applications are the agent's own: each
/// is given once per process and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SeriesSubject {
    /// The whole node.
    Node,
    /// What neither pods nor host applications account for.
    System,
    /// The kubelet's BestEffort class as a group.
    Batch,
    /// A pod.
    Pod(u64),
    /// A container.
    Container(u64),
    /// A host application.
    HostApp(u64),
    /// A NUMA node, by its number.
    Numa(u32),
    /// The system's part of a NUMA node.
    NumaSystem(u32),
    /// A GPU, by its minor number.
    Gpu(u32),
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What a sample measures. CPU is in milli-cores, memory in bytes, a ratio in 0–1 and a PSI
        /// average in percent.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Metric {
            $($(#[$doc])* $name,)*
        }

        impl Metric {
            /// Every metric.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in logs, debug output and the snapshot file.
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
    /// CPU in use, in milli-cores.
    CpuUsage = "cpu_usage",
    /// Memory in use, page cache left out, in bytes.
    MemoryUsage = "memory_usage",
    /// Memory in use, page cache included, in bytes.
    MemoryUsageWithPageCache = "memory_usage_with_page_cache",
    /// Memory in use, page cache included that was touched of late, in bytes.
    MemoryUsageWithHotPageCache = "memory_usage_with_hot_page_cache",
    /// Pages that nobody touched for long, in bytes.
    MemoryCold = "memory_cold_page_size",
    /// Enforcement periods with throttling per period, 0–1.
    CpuThrottled = "cpu_throttled",
    /// Share of the time since the sample before in which tasks waited for a CPU, 0–1.
    CpuHeldUp = "cpu_held_up",
    /// What the BE pods request, in milli-cores.
    CpuRequest = "cpu_request",
    /// What the BE class can get, in milli-cores.
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
    /// Returns the metric of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|metric| metric.name() == name)
    }
}

/// The name of a series.
pub type Key = (SeriesSubject, Metric);

/// How long samples are kept and how densely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Every second for 30 minutes in double precision: what percentiles are published of.
    Long,
    /// Every second for 5 minutes, then ten-second averages for the rest of 30 minutes.
    Layered,
    /// Every second for 75 seconds: what only strategies look at.
    Short,
    /// The newest sample alone: nobody asks for more, and there are many.
    Newest,
}

/// Returns the shape of the series `key`.
pub(super) fn shape((subject, metric): Key) -> Shape {
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
        SeriesSubject::Node | SeriesSubject::System if usage => Shape::Long,
        SeriesSubject::Container(_) => Shape::Newest,
        _ if usage => Shape::Layered,
        _ => Shape::Short,
    }
}
