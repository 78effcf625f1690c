//! Host applications: services on the node outside Kubernetes.

use crate::states::{Driver, Layout};
use koord_api::PriorityClass;
use koord_api::configmap::FieldError;
use koord_api::qos::QosClass;
use koord_api::slo::{CgroupPath, HostApplicationSpec};

/// A host application.
#[derive(Debug, Clone, PartialEq)]
pub struct HostApp {
    /// Name in reports.
    pub name: String,
    /// Priority class as given.
    pub priority: PriorityClass,
    /// QoS class as given.
    pub qos: QosClass,
    /// Path of its cgroup; `None` for the default. See [`crate::states::Layout::host_app`].
    pub path: Option<CgroupPath>,
}

impl HostApp {
    pub(super) fn from_spec(spec: &HostApplicationSpec) -> Self {
        Self {
            name: spec.name.clone(),
            priority: spec.priority,
            qos: spec.qos,
            path: spec.cgroup_path.clone(),
        }
    }
}

/// Returns the violation of the last of `apps` that is invalid: it has no name or that of an earlier one, or
/// its cgroup cannot be named. Only one at a time, from the end, because removing it shifts the following
/// ones.
pub(super) fn violation(apps: &[HostApplicationSpec]) -> Option<FieldError> {
    // The layout does not matter here, only whether cgroups can be named.
    let layout = Layout::new(Driver::Cgroupfs, koord_host::CgroupPath::root());
    let violations = (0..).zip(apps).filter_map(|(at, app): (usize, _)| {
        let name = serde_json::Value::from(app.name.as_str());
        let (field, value, reason) = if app.name.is_empty() {
            ("name", name, "must not be empty".to_owned())
        } else if apps.iter().take(at).any(|other| other.name == app.name) {
            (
                "name",
                name,
                "is the name of an earlier one, too".to_owned(),
            )
        } else {
            let error = layout.host_app(&HostApp::from_spec(app)).err()?;
            let field = match app.cgroup_path {
                Some(_) => "cgroupPath",
                None if matches!(app.qos, QosClass::Ls | QosClass::Be) => "name",
                None => "qos",
            };
            (field, name, error.to_string())
        };
        Some(FieldError {
            field: format!("hostApplications[{at}].{field}"),
            value: value.to_string(),
            reason,
        })
    });
    violations.last()
}
