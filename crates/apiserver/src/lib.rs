//! A Kubernetes control plane as a library: API server, storage and controllers in one process.
//!
//! ```text
//!   kubectl, kube-rs, Go clients             components in this process
//!            │ HTTPS                                   │ tower service
//!         server  (TLS, authentication, health)        │
//!            └──────────────► rest ◄───────────────────┘
//!                     verbs, watch streams, deletion
//!                      │                        │
//!               koord-kinds                 store
//!          what each resource is       one revision counter, history,
//!          (pure functions)            write-ahead log
//! ```
//!
//! Start at [`ApiServer`]. Invariants, which `cargo xtask tidy` checks: `store` uses no other module, and from
//! `koord-kinds` only the names and indexes of objects; `authz` consists of pure functions over roles and
//! requests; `rest` uses neither `controllers` nor `server`. Nothing in this crate depends on a koord component.

pub mod authz;
pub mod controllers;
pub mod rest;
pub mod server;
pub mod store;
pub mod tokens;

mod api_server;

pub use api_server::{ApiServer, Config, Error, Storage};
pub use rest::exec::{ExecOptions, ExecSession, PodExec};
pub use rest::logs::{LogOptions, LogStream, PodLogs};
pub use rest::{Authorization, granted_rights, required_right};
pub use rest::{
    InProcessWebhook, Operation, WebhookKind, WebhookRequest, WebhookResource, WebhookResponse,
};
pub use server::Limits;
