//! Who owns the fields that a write changes.

use super::Api;
use super::options::WriteOptions;
use koord_kinds::Resource;
use koord_kinds::patch::{self, Writer};
use serde_json::Value;

/// The field manager of the controllers of this process.
const CONTROLLERS: &str = "kube-controller-manager";

/// A request whose body is what it changes: of the object itself, or of its status.
pub(super) fn is_plain(subresource: Option<&str>) -> bool {
    matches!(subresource, None | Some("status"))
}

impl Api {
    /// Records a plain write: see [`patch::track`].
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

    /// Records a creation. What controllers of this process make, and pods, Events and Leases, have
    /// no record until somebody applies: nobody asks for theirs, and there are very many.
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
