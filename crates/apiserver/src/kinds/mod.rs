//! Everything about kinds that is a pure function of JSON values: what resources exist and how
//! their objects are defaulted, validated, selected, patched, described and printed.
//!
//! Nothing here does I/O or knows the store; `rest` calls it for every request.
//!
//! * [`Registry`] holds the [`Resource`]s: the built-in ones (`builtin`) and one per served version
//!   of each custom resource definition (`crd`, with its `structural` schema).
//! * `facts` is the table of wire facts of the built-in types (field names, protobuf numbers,
//!   merge keys) that strict decoding, strategic merge and protobuf decoding share; `schema` is one
//!   view of them and of the schemas of definitions, for server-side apply.
//! * [`selector`], [`patch`], [`status`], [`discovery`], [`openapi`], [`table`], [`proto`] are the
//!   algorithms; [`webhook`] says which admission webhooks a write concerns.

mod builtin;
pub mod crd;
pub mod discovery;
mod facts;
mod jsonpath;
pub mod limits;
pub mod meta;
pub mod openapi;
pub mod patch;
pub mod proto;
pub mod quantity;
pub mod quota;
mod registry;
mod resource;
mod schema;
pub mod selector;
pub mod status;
mod strategy;
pub mod structural;
pub mod table;
pub mod webhook;

pub use registry::Registry;
pub use resource::{Behavior, GroupVersionKind, Resource, Subresource};
pub use status::{ApiError, FieldError};
