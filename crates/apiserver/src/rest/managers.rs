//! Field ownership of writes (`metadata.managedFields`).

use super::Api;
use super::options::WriteOptions;
use koord_kinds::Resource;
use koord_kinds::patch::{self, Writer};
use serde_json::Value;

/// Field manager of the controllers of this process.
const CONTROLLERS: &str = "kube-controller-manager";

/// Returns true for writes of the object itself or of its status, whose body is the change.
pub(super) fn is_plain(subresource: Option<&str>) -> bool {
    matches!(subresource, None | Some("status"))
}

impl Api {
    /// Records the field manager of a plain write by [`patch::track`].
    pub(super) fn track(
        &self,
        resource: &Resource,
        old: Option<&Value>,
        new: &mut Value,
        part: Option<&str>,
        options: &WriteOptions,
    ) {
        let manager = match options.field_manager.as_str() {
            "" => CONTROLLERS,
            name => name,
        };
        let writer = Writer {
            manager,
            part,
            now: self.clock().now(),
        };
        patch::track(resource, old, new, writer);
    }

    /// Records the field manager of a creation. Objects created by controllers of this process, and pods,
    /// Events and Leases, have no record until a client applies them: there are very many, and their owners
    /// are not needed.
    pub(super) fn track_created(
        &self,
        resource: &Resource,
        object: &mut Value,
        options: &WriteOptions,
    ) {
        let countless =
            matches!(&*resource.plural, "pods" | "events" | "leases") && !resource.is_custom();
        if options.user.is_some() && !countless {
            self.track(resource, None, object, None, options);
        } else {
            super::meta::section(object, "metadata").remove("managedFields");
        }
    }
}
