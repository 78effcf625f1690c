//! Jobs against an API server: how they are worked on, and by whom.

mod cluster;
mod deaths;
pub(crate) mod jobs;
mod limits;
mod malformed;
mod refusals;
mod wire;
