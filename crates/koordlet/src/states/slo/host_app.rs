//! Services on the node that are not in Kubernetes.

use koord_api::PriorityClass;
use koord_api::qos::QosClass;
use koord_api::slo::{CgroupPath, HostApplicationSpec};

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub struct HostApp {
    /// Name it is reported under.
    pub name: String,
    /// Priority class, as it is given.
    pub priority: PriorityClass,
    /// QoS class, as it is given.
    pub qos: QosClass,
    /// Where its group is, when it says so; see [`crate::states::Layout::host_app`].
    pub path: Option<CgroupPath>,
}

impl HostApp {
    pub(super) fn of(spec: &HostApplicationSpec) -> Self {
        Self {
            name: spec.name.clone(),
            priority: spec.priority,
            qos: spec.qos,
            path: spec.cgroup_path.clone(),
        }
    }
}
