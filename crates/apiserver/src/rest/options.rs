//! Options of requests that are not part of the object.

use super::User;
use std::sync::Arc;

/// Handling of unknown and duplicate fields in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Drop them silently.
    #[default]
    Ignore,
    /// Drop them and warn.
    Warn,
    /// Refuse the request.
    Strict,
}

/// Options of creates, updates and patches.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Run all checks, but store nothing.
    pub dry_run: bool,
    /// Handling of unknown fields.
    pub field_validation: FieldValidation,
    /// Field manager of the written fields; empty: the controllers of this process.
    pub field_manager: String,
    /// Take fields over from other managers (apply only).
    pub force: bool,
    /// The write is a patch.
    pub(crate) patch: bool,
    /// User of the write; `None`: the controllers of this process.
    pub user: Option<Arc<User>>,
    /// The write is part of a request that was admitted as another one, such as an eviction.
    pub(crate) admitted: bool,
}

/// Effect of a deletion on the dependents of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// Dependents lose the owner reference and stay.
    Orphan,
    /// Dependents are deleted after the object.
    Background,
    /// Dependents are deleted before the object.
    Foreground,
}

/// Options of a delete.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// Grace period in seconds; `None`: that of the object.
    pub grace_period_seconds: Option<i64>,
    /// Precondition: uid of the object.
    pub uid: Option<String>,
    /// Precondition: version of the object.
    pub resource_version: Option<String>,
    /// Propagation policy; `None`: the default of the resource, usually background.
    pub propagation: Option<Propagation>,
    /// Check everything, delete nothing.
    pub dry_run: bool,
    /// User of the delete; `None`: the controllers of this process.
    pub user: Option<Arc<User>>,
    /// The deletion is part of a request that was admitted as another one: an eviction.
    pub(crate) admitted: bool,
}
