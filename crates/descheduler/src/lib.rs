//! The descheduler: evicts or migrates pods from nodes where they should no longer run.
//!
//! ```text
//! Node, Pod, NodeMetric, … ──► state::Snapshot ──► framework (profiles of strategies) ──► Plan
//!                                                                                          │ moves; skipped pods with reasons
//!                              PodMigrationJob ◄── daemon ◄────────────────────────────────┘
//!                                    │
//! Reservation, Pod, Workload ──► migration (arbitrator, state machine) ──► steps ──► daemon
//! ```
//!
//! A cycle is a pure function from a [`state::Snapshot`] to a [`framework::Plan`] of the moves to make, with
//! a reason for each pod that is moved and for each that was considered and stays. The daemon around it
//! watches the cluster and carries the plan out.
//!
//! Invariant: no decision does I/O or reads a clock, and this crate does not depend on how pods are
//! scheduled. A program may provide target nodes by implementing [`framework::Placement`].

pub mod args;
pub mod config;
pub mod daemon;
pub mod framework;
mod in_tree;
pub mod low_node_load;
pub mod migration;
mod move_history;
pub mod plugins;
pub mod program;
pub mod registry;
pub mod report;
pub mod rules;
pub mod state;
mod upstream_plugins;

pub use args::Args;

#[cfg(test)]
mod testing;
