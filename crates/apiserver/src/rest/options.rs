//! What a request says besides its object.

use super::User;
use std::sync::Arc;

/// What to do with unknown and duplicate fields in a body.
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
    /// Do everything but store.
    pub dry_run: bool,
    /// What happens to unknown fields.
    pub field_validation: FieldValidation,
    /// Who owns the fields that are written; empty: the controllers of this process.
    pub field_manager: String,
    /// Take fields over from other managers (apply only).
    pub force: bool,
    /// The write is a patch.
    pub(crate) patch: bool,
    /// Who writes; `None`: the controllers of this process.
    pub user: Option<Arc<User>>,
    /// The write is part of a request that was admitted under another name, as an eviction.
    pub(crate) admitted: bool,
}

/// What happens to the objects that the deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They lose the owner and live on.
    Orphan,
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
}

/// Options of a delete.
#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    /// Seconds to wait before the object goes; `None`: what the object says.
    pub grace_period_seconds: Option<i64>,
    /// Only this incarnation of the object.
    pub uid: Option<String>,
    /// Only this version of the object.
    pub resource_version: Option<String>,
    /// What happens to dependents; `None`: the default, background.
    pub propagation: Option<Propagation>,
    /// Check everything, delete nothing.
    pub dry_run: bool,
    /// Who deletes; `None`: the controllers of this process.
    pub user: Option<Arc<User>>,
    /// The deletion is part of a request that was admitted under another name: an eviction.
    pub(crate) admitted: bool,
}
