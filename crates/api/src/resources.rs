//! Extended resource names.
//!
//! Units: `batch-cpu` and `mid-cpu` count **milli-cores** as whole numbers; the memory resources count
//! bytes. `gpu`, `gpu-core`, `gpu-memory-ratio`, `rdma` and `fpga` are percent, 100 for one device.
//! Source: Koordinator `apis/extension/resource.go`, `device_share.go`.

/// Native CPU, in cores.
pub const CPU: &str = "cpu";
/// Native memory, in bytes.
pub const MEMORY: &str = "memory";
/// Number of pods that a node can run.
pub const PODS: &str = "pods";
/// Local storage, in bytes.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Reclaimed CPU for batch pods, in milli-cores.
pub const BATCH_CPU: &str = "kubernetes.io/batch-cpu";
/// Reclaimed memory for batch pods, in bytes.
pub const BATCH_MEMORY: &str = "kubernetes.io/batch-memory";
/// Reclaimed CPU for mid pods, in milli-cores.
pub const MID_CPU: &str = "kubernetes.io/mid-cpu";
/// Reclaimed memory for mid pods, in bytes.
pub const MID_MEMORY: &str = "kubernetes.io/mid-memory";

// Devices.

/// Whole NVIDIA GPUs.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// Whole DCUs.
pub const DCU: &str = "dcu.com/gpu";
/// Whole AMD GPUs.
pub const AMD_GPU: &str = "amd.com/gpu";
/// RDMA devices, percent.
pub const RDMA: &str = "koordinator.sh/rdma";
/// FPGAs, percent.
pub const FPGA: &str = "koordinator.sh/fpga";
/// GPUs, percent of core and memory alike.
pub const GPU: &str = "koordinator.sh/gpu";
/// Number of shared GPU instances; a node reports 100 for each healthy GPU.
pub const GPU_SHARED: &str = "koordinator.sh/gpu.shared";
/// GPU cores, percent.
pub const GPU_CORE: &str = "koordinator.sh/gpu-core";
/// GPU memory, bytes.
pub const GPU_MEMORY: &str = "koordinator.sh/gpu-memory";
/// GPU memory, percent.
pub const GPU_MEMORY_RATIO: &str = "koordinator.sh/gpu-memory-ratio";
/// AI cores of Ascend devices.
pub const HUAWEI_NPU_CORE: &str = "huawei.com/npu-core";
/// AI CPUs of Ascend devices.
pub const HUAWEI_NPU_CPU: &str = "huawei.com/npu-cpu";
/// Video units of Ascend devices.
pub const HUAWEI_NPU_DVPP: &str = "huawei.com/npu-dvpp";

/// Deprecated resource names and the names that informers replace them by.
pub const DEPRECATED: [(&str, &str); 8] = [
    ("koordinator.sh/batch-cpu", BATCH_CPU),
    ("koordinator.sh/batch-memory", BATCH_MEMORY),
    ("kubernetes.io/rdma", RDMA),
    ("kubernetes.io/fpga", FPGA),
    ("kubernetes.io/gpu", GPU),
    ("kubernetes.io/gpu-core", GPU_CORE),
    ("kubernetes.io/gpu-memory", GPU_MEMORY),
    ("kubernetes.io/gpu-memory-ratio", GPU_MEMORY_RATIO),
];

/// Returns true if Kubernetes treats `name` as an extended resource: a qualified name whose domain is not
/// Kubernetes' own.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    let Some((domain, rest)) = name.split_once('/') else {
        return false;
    };
    let label = |text: &str, extra: &str| {
        !text.is_empty()
            && text.len() <= 63
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || extra.contains(c))
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let domain_ok = domain.len() <= 253
        && domain
            .split('.')
            .all(|part| label(part, "") && !part.chars().any(|c| c.is_ascii_uppercase()));
    domain_ok
        && label(rest, "._")
        && !name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
}
