//! Key prefixes of Koordinator. Each ends before its slash: `format!("{KOORDINATOR}/name")`.

/// Prefix for QoS, priority and general pod protocol.
pub const KOORDINATOR: &str = "koordinator.sh";
/// Resource prefix of batch and mid resources.
pub const KUBERNETES: &str = "kubernetes.io";
/// Scheduling protocol.
pub const SCHEDULING: &str = "scheduling.koordinator.sh";
/// Prefix of keys that only schedulers write and read.
pub const INTERNAL_SCHEDULING: &str = "internal.scheduling.koordinator.sh";
/// Node protocol.
pub const NODE: &str = "node.koordinator.sh";
/// Pod admission protocol.
pub const POD: &str = "pod.koordinator.sh";
/// Gang scheduling.
pub const GANG: &str = "gang.scheduling.koordinator.sh";
/// Elastic quota.
pub const QUOTA: &str = "quota.scheduling.koordinator.sh";
/// State of the kubelet as reported by koordlet.
pub const KUBELET: &str = "kubelet.koordinator.sh";
/// Colocation profiles.
pub const CONFIG: &str = "config.koordinator.sh";
