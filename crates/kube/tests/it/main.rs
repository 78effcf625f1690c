//! Integration tests of what the repository ships for clusters.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod manifests;
