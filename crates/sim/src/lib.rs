//! Simulated nodes: machines that exist only as API objects, whose pods "run" and report plausible
//! usage, so that a cluster of thousands of nodes fits on one machine.
//!
//! ```text
//! Options ──► nodes ───► Node objects, conditions, leases
//! Pod watch ─► lifecycle ► Running / Succeeded / deleted
//!          ├─► numa ─────► Failed with TopologyAffinityError, NodeResourceTopology
//!          └─► telemetry ► usage by pod and node ──► NodeMetric.status ──► manager: batch resources
//! ```
//!
//! A node is managed here if it carries the annotation [`NODE_ANNOTATION`]` = "true"` or kwok's
//! `kwok.x-k8s.io/node`; no other node and no pod on one is ever touched, so this also runs next to real
//! nodes. One watch on all bound pods serves all nodes.
//!
//! Usage is a pure function of the pod, the time and the seed ([`usage`]): equal seeds give equal
//! curves.

mod cached_pod;
mod driver;
mod heartbeat;
pub mod kubelet;
mod lifecycle;
mod node;
mod numa;
mod refusal;
mod telemetry;
pub mod usage;

pub use koord_api::simulation::{KWOK_NODE_ANNOTATION, NODE_ANNOTATION, is_simulated};
pub use node::{NodeTemplate, is_surplus, name as node_name};
pub use numa::{Kubelets, Layout, LayoutError};

use futures::FutureExt;
use futures::future::BoxFuture;
use std::time::Duration;

/// Label of a simulated node, for selectors; its value is `true`.
pub const NODE_LABEL: &str = "sim.koordinator.sh/node";
/// Annotation of a simulated node with NUMA nodes: JSON of a [`Layout`], read when the node appears. Its
/// kubelet rejects pods that cannot be aligned, and a NodeResourceTopology reports the free resources.
pub const TOPOLOGY_ANNOTATION: &str = "sim.koordinator.sh/topology";
/// Pod annotation: the time that a pod of a Job runs before it succeeds, a Go duration. Without it, the
/// command determines the end if it is as plain as `sleep 30`, `false` or `sh -c "exit 1"`; else the pod
/// succeeds at once. Other pods that are not restarted end by such a command, or run until they are deleted.
pub const DURATION_ANNOTATION: &str = "sim.koordinator.sh/duration";
/// Pod annotation that picks a usage profile: `diurnal`, `batch` or `idle`.
pub const USAGE_ANNOTATION: &str = "sim.koordinator.sh/usage";

/// Options of the simulation.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of nodes to create, `sim-0` and on. Nodes of a larger earlier run are deleted.
    pub nodes: usize,
    /// Properties of each node.
    pub template: NodeTemplate,
    /// Seed of all usage curves.
    pub seed: u64,
    /// Time between two lease renewals of a node.
    pub heartbeat_interval: Duration,
    /// Time between two usage samples of a node.
    pub sample_interval: Duration,
    /// Time between two reports of a node whose NodeMetric does not set it.
    pub report_interval: Duration,
    /// Minimum time between two reports of a node on which no pod starts or ends, even if its NodeMetric sets
    /// a shorter interval: 30 s by default, as in koordlet.
    pub least_report_interval: Duration,
    /// Nodes whose kubelets serve PodResources, for an exporter that reports the allocated resources instead
    /// of the simulation.
    pub kubelets: Kubelets,
    /// Maximum number of in-flight requests for pods, and again for leases and reports.
    pub concurrency: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 0,
            template: NodeTemplate::default(),
            seed: 0,
            heartbeat_interval: Duration::from_secs(10),
            sample_interval: Duration::from_secs(15),
            report_interval: Duration::from_secs(60),
            least_report_interval: Duration::from_secs(30),
            kubelets: Kubelets::default(),
            concurrency: 16,
        }
    }
}

/// An error that prevents the simulation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An interval is zero, or no request may be in flight.
    #[error("option {option} is {value}: must be more than 0")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        value: String,
    },
    /// A node could neither be read nor created.
    #[error("simulated node {node}: {source}")]
    Node {
        /// The node.
        node: String,
        /// The API server's error.
        source: koord_kube::Error,
    },
}

/// Runs the simulated nodes until `ctx.shutdown` is cancelled. The objects stay; starting again resumes.
#[must_use]
pub fn run(
    options: Options,
    client: koord_kube::Client,
    ctx: koord_app::Context,
) -> BoxFuture<'static, Result<(), Error>> {
    driver::run(options, client, ctx).boxed()
}
