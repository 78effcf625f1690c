//! The descheduler against the embedded API server, in one process and under paused time.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue must panic")]

mod daemon;
mod default_evictor;
mod deploy;
mod migration;
