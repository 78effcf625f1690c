//! Jobs against an API server: processing, leader changes, limits and errors.

mod cluster;
mod deaths;
pub(crate) mod jobs;
mod limits;
mod malformed;
mod refusals;
mod wire;
