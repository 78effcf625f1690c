//! koord-apiserver: a Kubernetes control plane that fits into a process.
//!
//! ```text
//!   kubectl, kube-rs, Go clients             components in this process
//!            │ HTTPS                                   │ tower service
//!         server  (TLS, who are you, health)           │
//!            └──────────────► rest ◄───────────────────┘
//!                     verbs, watch streams, deletion
//!                      │                        │
//!               koord-kinds                 store
//!          what each resource is       one revision counter, history,
//!          (pure functions)            write-ahead log
//! ```
//!
//! Start at [`ApiServer`]. Invariants, which `cargo xtask tidy` checks: `store` knows none of the
//! others, and of `koord-kinds` only how objects are named and indexed; `authz`, which says who may
//! do what, is a function of values; `rest` knows neither `controllers` nor `server`. Nothing here
//! knows any koord component.

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
pub use rest::{Authorization, given_rights, needed_right};
pub use rest::{
    InProcessWebhook, Operation, WebhookKind, WebhookRequest, WebhookResource, WebhookResponse,
};
pub use server::Limits;
