//! Everything about kinds that is a pure function of JSON values: what resources exist and how
//! their objects are defaulted, validated, selected, patched, described and printed.
//!
//! Nothing here does I/O or knows the store; `rest` calls it for every request.
//!
//! * `schema`, of crates/object, says what objects are made of, of built-in types and of definitions alike; it is what
//!   decoding, pruning, defaulting, validation, patches and protobuf walk.
//! * A [`Resource`] is what is known of one kind, as data. [`Registry`] holds them: the built-in ones
//!   (`builtin`) and one per served version of each custom resource definition (`crd`).
//! * `strategy`, [`selector`], [`patch`], [`discovery`], [`openapi`], [`table`], [`proto`] are the
//!   algorithms; [`webhook`] says which admission webhooks a write concerns.
//!
//! These modules know each other in one direction only, which `cargo xtask tidy` checks.

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
