//! What the agent can be told, with upstream's defaults.

use crate::audit;
use crate::devices;
use crate::evictor;
use crate::exporter;
use crate::node_topology;
use crate::runtime;
use crate::settings::Settings;
use crate::states::kubelet::Kubelet;
use koord_host::{CgroupPath, Root};
use std::net::SocketAddr;
use std::time::Duration;

/// Where the list of pods comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSource {
    /// The API server, by a watch of the pods bound to this node.
    ApiServer,
    /// The kubelet's `/pods`, polled.
    Kubelet(Kubelet),
}

/// On which thread the loop runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Thread {
    /// On one of its own, so that a busy runtime does not delay it.
    #[default]
    Own,
    /// As an ordinary task of the caller's runtime: for tests with paused time.
    Shared,
}

/// What [`crate::run`] needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name. Must not be empty.
    pub node_name: String,
    /// The machine; the running one when `None`.
    pub root: Option<Root>,
    /// True if resctrl is mounted where it is not and a strategy could use it. It stays mounted.
    pub mount_resctrl: bool,
    /// Where the cgroup driver is not given it is detected below this group.
    pub detect_layout: Option<CgroupPath>,
    /// The loop.
    pub settings: Settings,
    /// Where pods come from.
    pub pods: PodSource,
    /// True if NodeMetric is reported.
    pub report: bool,
    /// Overrides the NodeMetric's report interval, also below the minimum of 30 s. For tests and
    /// for `koord up`, where somebody waits for the first report.
    pub report_interval: Option<Duration>,
    /// How the NodeResourceTopology is reported; `None` reads the one that is there. Whether it is
    /// written is the gate `NodeTopologyReport`.
    pub topology: Option<node_topology::Reporting>,
    /// Whether and how the node's NodeResourceTopology says what is free in each NUMA node.
    pub exporter: Option<exporter::Settings>,
    /// Where to serve health, metrics and audit events; `None` serves nothing.
    pub address: Option<SocketAddr>,
    /// Serves health, metrics and audit events in place of `address`.
    pub server: Option<koord_app::local::RouteServer>,
    /// The audit log; hand in one to read along.
    pub audit: audit::Log,
    /// How pods are evicted.
    pub evict: evictor::Config,
    /// How devices are reported, with the gates `Accelerators` and `RDMADevices`.
    pub devices: devices::Config,
    /// How containers get their values at creation; not at all by default.
    pub runtime: runtime::Config,
    /// Where the loop runs.
    pub thread: Thread,
    /// Real-time priority (1–99) of the loop's own thread; 0 is normal. A busy node starves an
    /// agent of normal priority for seconds when batch work has a high weight.
    pub realtime_priority: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            root: None,
            mount_resctrl: false,
            detect_layout: Some(CgroupPath::root()),
            settings: Settings::default(),
            pods: PodSource::ApiServer,
            report: true,
            report_interval: None,
            topology: None,
            exporter: None,
            address: None,
            server: None,
            audit: audit::Log::default(),
            evict: evictor::Config::default(),
            devices: devices::Config::default(),
            runtime: runtime::Config::default(),
            thread: Thread::Own,
            realtime_priority: 0,
        }
    }
}
