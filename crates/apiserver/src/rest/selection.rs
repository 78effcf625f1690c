//! Selection of the objects of a collection that a request applies to.

use super::path::ResourcePath;
use super::query::Query;
use crate::store::{Entry, Scope};
use koord_kinds::Resource;
use koord_kinds::selector::{FieldSelector, LabelSelector};
use koord_kinds::status::ApiError;

/// Namespace, name and selectors of a list, watch or delete of a collection.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    pub(super) namespace: Option<String>,
    /// Name of the only object that matches: from the path of a watch on one object, or `metadata.name=`.
    name: Option<String>,
    labels: LabelSelector,
    fields: FieldSelector,
    /// True if the request has no selector.
    pub(super) everything: bool,
}

impl Selection {
    /// Parses the selection from path and query.
    pub(super) fn parse(
        resource: &Resource,
        path: &ResourcePath,
        query: &Query,
    ) -> Result<Self, ApiError> {
        let labels = query.get("labelSelector").unwrap_or("");
        let fields = query.get("fieldSelector").unwrap_or("");
        let label_selector = LabelSelector::parse(labels)?;
        let mut field_selector = FieldSelector::parse(fields)?;
        field_selector.check(resource)?;
        let selected = field_selector.required("metadata.name").map(str::to_owned);
        if let (Some(a), Some(b)) = (&path.name, &selected)
            && a != b
        {
            return Err(ApiError::bad_request(format!(
                "fieldSelector metadata.name={b} doesn't match requested name {a:?}"
            )));
        }
        Ok(Self {
            namespace: path.namespace.clone().filter(|_| resource.namespaced),
            name: path.name.clone().or(selected),
            labels: label_selector,
            fields: field_selector,
            everything: labels.is_empty() && fields.is_empty() && path.name.is_none(),
        })
    }

    /// Returns true if the entry is selected.
    pub(super) fn matches(&self, entry: &Entry) -> bool {
        if self.everything {
            return true;
        }
        self.name.as_deref().is_none_or(|n| n == &*entry.key.name)
            && self.labels.matches(&entry.index)
            && self
                .fields
                .matches(&entry.key.namespace, &entry.key.name, &entry.index)
    }

    /// Returns the part of the selection that the store can dispatch events by.
    pub(super) fn scope(&self) -> Scope {
        Scope {
            namespace: self.namespace.as_deref().map(Into::into),
            name: self.name.as_deref().map(Into::into),
            field: self
                .fields
                .required("spec.nodeName")
                // Objects without the field are not indexed under the empty value.
                .filter(|v| !v.is_empty())
                .map(|v| ("spec.nodeName".into(), v.into())),
        }
    }

    /// Returns the key of the only object that can match; `None` if several can.
    pub(super) fn only(&self, resource: &Resource) -> Option<crate::store::Key> {
        let name = self.name.as_deref()?;
        if !resource.namespaced {
            return Some(crate::store::Key::cluster(name));
        }
        Some(crate::store::Key::new(self.namespace.as_deref()?, name))
    }
}
