//! Resource kinds as pure functions of JSON values: which resources exist, and how their objects are
//! defaulted, validated, selected, patched, described and printed.
//!
//! Nothing here does I/O or uses the store; the REST layer of the API server calls it for every request.
//!
//! * `schema`, of crates/object, describes the fields of objects, of built-in types and of definitions alike.
//!   Decoding, pruning, defaulting, validation, patches and protobuf use it.
//! * A [`Resource`] describes one kind, as data. [`Registry`] contains them: the built-in ones (`builtin`) and
//!   one per served version of each custom resource definition (`crd`).
//! * `strategy`, [`selector`], [`patch`], [`discovery`], [`openapi`], [`table`], [`proto`] are the algorithms;
//!   [`webhook`] decides which admission webhooks match a write.
//!
//! These modules depend on each other in one direction only, which `cargo xtask tidy` checks.

mod builtin;
pub mod crd;
pub mod discovery;
mod jsonpath;
pub mod limits;
pub mod openapi;
pub mod patch;
pub mod proto;
pub mod quota;
mod registry;
mod resource;
pub mod selector;
mod strategy;
pub mod table;
pub mod webhook;

use koord_object::names;
pub use koord_object::{ApiError, FieldError, Index, TableId, meta, quantity, schema, status};
pub use registry::Registry;
pub use resource::{GroupVersionKind, Resource, ScalePaths, Subresource};
