//! The manager against the embedded API server, in one process and under paused time.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on must panic")]

mod cluster;
mod colocation;
mod dashboard;
mod deploy;
mod devices;
mod dry_run;
mod flags;
mod https;
mod invalid;
mod leadership;
mod log;
mod metrics;
mod pods;
mod profiles;
mod protected;
mod quotas;
mod reapply;
mod recommender;
mod refusals;
mod rounds;
mod shell;
mod trees;
mod webhooks;
