//! Jobs against an API server: how they are worked on, and by whom.

mod cluster;
mod deaths;
mod jobs;
mod wire;
