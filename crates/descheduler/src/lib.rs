//! The descheduler: moves pods away from where they no longer belong.
//!
//! ```text
//! Node, Pod, NodeMetric, … ──► state::Snapshot ──► framework (profiles of strategies) ──► Plan
//!                                                                                          │ moves, and who stays and why
//!                              PodMigrationJob ◄── shell ◄─────────────────────────────────┘
//!                                    │
//! Reservation, Pod, Workload ──► migration (arbitrator, state machine) ──► steps ──► shell
//! ```
//!
//! A cycle is a pure function: from a [`state::Snapshot`] to a [`framework::Plan`] of what shall be moved, with a
//! reason for each pod that is taken and each that was looked at and stays. The shell around it reads the cluster and
//! carries the plan out.
//!
//! Invariant: no decision does I/O or reads a clock, and nothing here knows how pods are placed; whoever runs the
//! descheduler may hand it something that does ([`framework::Placement`]).

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
