//! Integration tests of the API server.

mod hostile;
mod kubectl;
mod lifecycle;
mod objects;
mod serving;
mod store_crash;
mod support;
mod watching;
mod workloads;
