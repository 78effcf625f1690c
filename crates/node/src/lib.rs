//! koord-node: a stand-in for the kubelet on a machine without a cluster.
//!
//! It registers the machine as a Node, renews its heartbeat Lease, and runs the pods that are bound
//! to it as host processes in control groups with the kubelet's layout:
//!
//! ```text
//!   kubepods/pod<uid>/<container id>              guaranteed
//!   kubepods/burstable/pod<uid>/<container id>    burstable
//!   kubepods/besteffort/pod<uid>/<container id>   best effort, including batch pods
//! ```
//!
//! With a container runtime ([`Options::runtime`]) the runtime runs them, in the same groups, from
//! images, with namespaces: see [`cri`].
//!
//! Deliberate limits without a container runtime:
//! * images are not pulled: a container's `command` is a program of this machine, and a container
//!   without one waits with reason `ErrImageNeverPull` and a message that explains it;
//! * there are no volumes, and no namespaces except mount namespaces: every pod sees the host's network,
//!   processes, and files, the latter read-only except for temporary ones: see [`security`];
//! * gRPC and HTTPS probes are not run: they count as successful, and an Event reports it;
//! * containers end with the node: after a restart they are started again (their restart count
//!   rises), or, with restart policy `Never`, the pod fails.
//!
//! In its data directory it serves the kubelet's PodResources service, `pod-resources/kubelet.sock`, which
//! lists the pods for an exporter of NUMA nodes. No pod has exclusive CPUs.
//!
//! Without root, or where the cgroup tree cannot be written, it reports this in the log and in
//! an annotation of the Node, and runs pods unconfined.
//!
//! Every process has the id of its container in `KOORD_CONTAINER_ID`: without groups the node finds
//! the processes that a container left behind by it.
//!
//! Everything it creates is recorded in `state.json` in its data directory beforehand, so the next
//! start after a crash ends and removes exactly that, and nothing else.
//!
//! Decisions are pure: [`pod`] (groups and weights), [`command`] (command lines), [`lifecycle`] (starts
//! and restarts), [`probe`] (probe results), [`status`] (pod status), [`machine`] (the Node).

mod agent;
pub mod command;
mod container;
mod container_registry;
pub mod container_request;
mod context;
pub mod cri;
mod exec;
mod groups;
mod http;
pub mod lifecycle;
mod logs;
pub mod machine;
mod options;
mod pidfd;
pub mod pod;
mod pod_resources;
pub mod probe;
mod publish;
mod runner;
mod runtime;
pub mod security;
mod session;
pub mod state;
pub mod status;
mod table;
mod worker;

pub use agent::Error;
pub use container_registry::Execs;
pub use groups::GroupError;
pub use koord_api::simulation::HOST_LABEL;
pub use logs::{LogOptions, LogStream, Logs};
pub use machine::{CONFINEMENT_ANNOTATION, RIGHTS_ANNOTATION, host_taint, unconfined};
pub use options::{Args, Options, host_name};
pub use pod::pod_cgroup_path;
pub use runtime::{Runtime, RuntimeError};
pub use session::{Ending, ExecOptions, Session, Terminal};

use futures::FutureExt;
use futures::future::BoxFuture;

/// Runs the node until `ctx.shutdown` is cancelled; then stops its pods and removes its groups.
///
/// # Errors
/// When the machine cannot be read, the data directory is unusable or in use, or the listen address is taken.
pub fn run(
    options: Options,
    client: koord_kube::Client,
    ctx: koord_app::Context,
) -> BoxFuture<'static, Result<(), Error>> {
    agent::run(options, client, ctx).boxed()
}
