//! What every koord daemon needs before it does any work: clock, shutdown, metrics, logging, flags.
//!
//! Invariant: this crate knows nothing about Kubernetes.

pub mod clock;
pub mod context;

pub use clock::Clock;
pub use context::Context;
