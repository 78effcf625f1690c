//! koord-scheduler with its real plugins: against an exhaustive twin, and against an API server.

mod api;
mod differential;
mod profile;
