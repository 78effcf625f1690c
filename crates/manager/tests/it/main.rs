//! The manager against the embedded API server, in one process and under paused time.

mod cluster;
mod colocation;
mod leadership;
