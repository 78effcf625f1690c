//! Table output.

use serde_json::{Value, json};

use super::resource::Resource;

/// What a row carries besides its cells (query parameter `includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Include {
    /// Nothing.
    None,
    /// A PartialObjectMetadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

pub(super) fn render(
    _resource: &Resource,
    _items: &[Value],
    _include: Include,
    _now: jiff::Timestamp,
) -> Value {
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "columnDefinitions": [], "rows": []})
}
