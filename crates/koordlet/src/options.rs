//! Options of the agent, with upstream's defaults.

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

/// Source of the list of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSource {
    /// The API server: a watch of the pods bound to this node.
    ApiServer,
    /// The kubelet's `/pods`, polled.
    Kubelet(Kubelet),
}

/// The thread that the loop runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Thread {
    /// A thread of its own, so that a busy runtime does not delay the loop.
    #[default]
    Own,
    /// A task of the caller's runtime, for tests with paused time.
    Shared,
}

/// Options of [`crate::run`].
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name. Must not be empty.
    pub node_name: String,
    /// Root of the machine's file systems; `None` uses the running machine.
    pub root: Option<Root>,
    /// True if resctrl is mounted when it is not mounted yet and an enabled strategy can use it. It stays
    /// mounted on exit.
    pub mount_resctrl: bool,
    /// Parent cgroup below which the cgroup driver is detected; `None` uses the configured layout.
    pub detect_layout: Option<CgroupPath>,
    /// Settings of the loop.
    pub settings: Settings,
    /// Source of the pod list.
    pub pods: PodSource,
    /// True if NodeMetric is reported.
    pub report: bool,
    /// Overrides NodeMetric's report interval, also below the minimum of 30 s. Used by tests and by `koord
    /// up`, where a user waits for the first report.
    pub report_interval: Option<Duration>,
    /// Settings of the NodeResourceTopology report; `None` reads the existing object instead. Whether the
    /// report is written depends on the gate `NodeTopologyReport`.
    pub topology: Option<node_topology::Reporting>,
    /// Settings of the exporter that publishes free resources by NUMA node in NodeResourceTopology; `None`
    /// disables it.
    pub exporter: Option<exporter::ExporterSettings>,
    /// Address that serves health, metrics and audit events; `None` serves nothing.
    pub address: Option<SocketAddr>,
    /// Serves health, metrics and audit events in place of `address`.
    pub server: Option<koord_app::local::RouteServer>,
    /// The audit log. Pass a clone of your own to read its records.
    pub audit: audit::Log,
    /// Settings of pod eviction.
    pub evict: evictor::Config,
    /// Settings of the Device report, which the gates `Accelerators` and `RDMADevices` enable.
    pub devices: devices::Config,
    /// Integration with the container runtime, which sets values at container creation. Disabled by default.
    pub runtime: runtime::Config,
    /// True if nothing is written: neither kernel files nor objects, but for NodeMetric if `report` is set.
    /// What would have been written is in the audit log.
    pub dry_run: bool,
    /// Thread of the loop.
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
            dry_run: false,
            thread: Thread::Own,
            realtime_priority: 0,
        }
    }
}

impl Options {
    /// Switches everything off that writes, for a dry run. `report` stays as it is.
    pub(crate) fn disable_writes(&mut self) {
        self.mount_resctrl = false;
        self.evict.dry_run = true;
        self.settings.restore_on_stop = false;
        // These files are those of another agent on this node.
        self.settings.snapshot = None;
        self.settings.predict.dir = None;
        self.devices.interval = Duration::ZERO;
        if let Some(exporter) = &mut self.exporter {
            exporter.publish = false;
        }
        self.audit.mark_dry_run();
    }
}
