//! koordlet, the node agent: measures the node and its pods, reports NodeMetric, and keeps batch
//! work from disturbing services.
//!
//! | module | does |
//! |---|---|
//! | [`states`] | snapshots of pods, node and settings |
//! | [`collect`] | samples from open kernel files |
//! | [`store`] | fixed-size rings |
//! | [`predict`] | peaks from decaying histograms |
//! | [`hooks`] | values for the cgroup files of pods, computed by pure functions |
//! | [`runtime`] | the same values, handed to the container runtime before processes start |
//! | [`qos`] | the table of strategies: intended writes and evictions |
//! | [`executor`] | the one writer of kernel files |
//! | [`audit`] | a record of everything done |
//! | [`agent`] | the loop body that ties these together |
//! | [`report`] | the NodeMetric report |
//! | [`devices`] | the Device report: accelerators and RDMA adapters |
//! | [`node_topology`] | the NodeResourceTopology report |
//! | [`exporter`] | the report of NUMA nodes and their allocated resources |
//! | [`evictor`] | evictions, through the API or by killing |
//! | [`status`], [`metrics`] | status page and metrics of the agent |
//! | [`daemon`] | informers, reporter, evictor and the thread of the loop |
//!
//! Invariants: strategies never write; every kernel file has one claimant; the loop never waits for
//! the network; work per tick is proportional to pods and containers; memory is bounded by their
//! number.

pub mod agent;
pub mod args;
pub mod audit;
pub mod claims;
pub mod collect;
pub mod conditions;
pub mod daemon;
pub mod devices;
pub mod evictor;
pub mod executor;
pub mod exporter;
pub mod gates;
pub mod health;
pub mod hooks;
mod http;
mod log_on_change;
pub mod metrics;
mod node_events;
pub mod node_topology;
pub mod options;
pub mod predict;
pub mod program;
pub mod qos;
pub mod report;
pub mod runtime;
pub mod settings;
pub mod states;
pub mod status;
pub mod store;
pub mod time;

pub use agent::Agent;
pub use args::Args;
pub use daemon::{Error, run};
pub use http::events;
pub use metrics::Metrics;
pub use options::{Options, PodSource, Thread};
pub use settings::Settings;
