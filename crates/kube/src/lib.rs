//! Access to a Kubernetes cluster for all components: clients, informers, leases, events, patches, evictions
//! and webhooks.
//!
//! Components use [`Client`] and [`informer`]; they never build HTTP requests themselves and never
//! find out whether the API server is a real one or the embedded one in the same process.
//!
//! Invariant: no scheduling or QoS rule lives here.

pub mod certs;
pub mod client;
pub mod component_config;
pub mod controller;
pub mod decode;
pub mod delegated_auth;
pub mod endpoint;
pub mod events;
pub mod evict;
pub mod failure_log;
pub mod guard;
pub mod informer;
pub mod lease;
mod object_api;
pub mod owners;
pub mod patch;
pub mod queue;
mod raw_object;
pub mod secure;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod webhook;
pub mod webhook_client;

pub use decode::Decode;
pub use informer::{Cacheable, Change, Informer, ObjectKey, Readable, Scope, Store, Text, Unread};
pub use kube::{Client, Error, ResourceExt, api, core as kube_core};
pub use object_api::Api;
