//! One honest view of a Kubernetes cluster: clients, informers, leases, events, patches, eviction.
//!
//! Components use [`Client`] and [`informer`]; they never build HTTP requests themselves and never
//! learn whether the API server is a real one or the embedded one in the same process.
//!
//! Invariant: no scheduling or QoS rule lives here.

pub mod informer;

pub use informer::{Change, Informer, ObjectKey, Scope, Store};
pub use kube::{Api, Client, Error, ResourceExt, core as kube_core, api};
