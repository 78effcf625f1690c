//! Common base of all koord daemons: clock, shutdown, metrics, logging, flags.
//!
//! Invariant: this crate does not depend on Kubernetes.

pub mod admin;
pub mod certificate;
pub mod clock;
pub mod configz;
pub mod console;
pub mod context;
pub mod daemon;
pub mod features;
mod flag_values;
pub mod flags;
pub mod local;
pub mod logging;
pub mod metrics;
pub mod shutdown;
mod token_bucket;

pub use clock::Clock;
pub use context::Context;
pub use token_bucket::TokenBucket;
