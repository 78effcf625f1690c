//! Custom resources that may fail to decode: their definitions admit objects that do not fit the Rust types.

use koord_kube::kube_core::Resource;
use koord_kube::{Cacheable, Readable, Unread};
use std::sync::Arc;

/// A decoded object, or the decoding error. When an object cannot be decoded any more, its previous version
/// is dropped.
#[derive(Debug)]
pub(super) enum Decoded<V> {
    Object(Arc<V>),
    Unread(Arc<Unread>),
}

impl<V> Decoded<V> {
    /// Converts `read` with `keep`, or logs the decoding error.
    pub(super) fn from_readable<K: Resource<DynamicType = ()>>(
        read: Readable<K>,
        keep: impl FnOnce(K) -> V,
    ) -> Self {
        match read.0 {
            Ok(object) => Self::Object(Arc::new(keep(object))),
            Err(unread) => {
                let (kind, name) = (K::kind(&()), unread.metadata.name.as_deref());
                tracing::warn!(%kind, name, error = %unread, "skipping object that failed to decode");
                Self::Unread(Arc::from(unread))
            }
        }
    }

    /// Returns the object if it could be decoded.
    pub(super) fn object(&self) -> Option<&Arc<V>> {
        match self {
            Self::Object(object) => Some(object),
            Self::Unread(_) => None,
        }
    }

    /// Returns the decoding error if there is one.
    pub(super) fn unread(&self) -> Option<&Arc<Unread>> {
        match self {
            Self::Object(_) => None,
            Self::Unread(unread) => Some(unread),
        }
    }
}

impl<V: Cacheable> Cacheable for Decoded<V> {
    fn names(&self) -> (&str, &str) {
        match self {
            Self::Object(object) => object.names(),
            Self::Unread(unread) => {
                let meta = &unread.metadata;
                let namespace = meta.namespace.as_deref().unwrap_or_default();
                (namespace, meta.name.as_deref().unwrap_or_default())
            }
        }
    }
    /// Returns true if `other` can be the same object. An object that cannot be decoded any more is not treated as
    /// deleted.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(object), Self::Object(other)) => object.is_same(other),
            (Self::Unread(unread), Self::Unread(other)) => {
                unread.metadata.uid == other.metadata.uid
            }
            _ => true,
        }
    }
    fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Object(object) => object.resource_version(),
            Self::Unread(unread) => unread.metadata.resource_version.as_deref(),
        }
    }
}
