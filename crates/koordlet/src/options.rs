//! What the agent can be told, with upstream's defaults.

use crate::audit;
use crate::devices;
use crate::evictor;
use crate::exporter;
use crate::gates::Gates;
use crate::node_topology;
use crate::predict;
use crate::runtime;
use crate::states::slo::SuppressMode;
use crate::states::{Driver, Layout};
use koord_host::{CgroupPath, Root};
use koord_kube::endpoint::Trust;
use koord_model::guard;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the list of pods comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSource {
    /// The API server, by a watch of the pods bound to this node.
    ApiServer,
    /// The kubelet's `/pods`, polled.
    Kubelet(Kubelet),
}

/// How to reach the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubelet {
    /// The whole URL, such as `https://127.0.0.1:10250`; else it is made from the Node object.
    pub url: Option<String>,
    /// The address type to take from the Node object.
    pub address_type: String,
    /// Plain HTTP on the read-only port.
    pub insecure: bool,
    /// That port.
    pub read_only_port: u16,
    /// How its certificate is verified.
    pub trust: Trust,
    /// Time between two polls; zero never polls.
    pub interval: Duration,
    /// How long one may take.
    pub timeout: Duration,
    /// Whether the kubelet is asked for its configuration.
    pub query_config: bool,
}

impl Default for Kubelet {
    fn default() -> Self {
        Self {
            url: None,
            address_type: "InternalIP".to_owned(),
            insecure: false,
            read_only_port: 10255,
            trust: kubelet_trust(Some(Path::new("/var/lib/kubelet"))),
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(3),
            query_config: true,
        }
    }
}

/// Where a pod finds the cluster's authority.
const CLUSTER_AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Returns how the certificate of this machine's kubelet is verified by default: it is signed by the
/// cluster's authority, or in a file in `pki` below the kubelet's directory `dir`.
#[must_use]
pub fn kubelet_trust(dir: Option<&Path>) -> Trust {
    let own = ["pki/kubelet.crt", "pki/kubelet-server-current.pem"];
    let own = dir
        .into_iter()
        .flat_map(|dir| own.map(|name| dir.join(name)));
    Trust::Files(
        std::iter::once(CLUSTER_AUTHORITY.into())
            .chain(own)
            .collect(),
    )
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

/// What collectors are told. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collectors {
    /// Between two readings of the CPU topology.
    pub cpu_info_ms: u64,
    /// Between two readings of the local disks.
    pub storage_info_ms: u64,
    /// Between two readings of pressure.
    pub psi_ms: u64,
    /// From the end of a window of performance counters to the next.
    pub cpi_ms: u64,
    /// How long such a window is.
    pub cpi_window_ms: u64,
    /// Whether memory with page cache is measured, too.
    pub page_cache: bool,
    /// Whether packets of services are counted, for the pressure guard.
    pub packets: bool,
    /// Whether cache and memory bandwidth are monitored by QoS class.
    pub resctrl: bool,
    /// Between two readings of these.
    pub resctrl_ms: u64,
}

impl Default for Collectors {
    fn default() -> Self {
        Self {
            cpu_info_ms: 60_000,
            storage_info_ms: 1_000,
            psi_ms: 10_000,
            cpi_ms: 60_000,
            cpi_window_ms: 10_000,
            page_cache: false,
            packets: true,
            resctrl: false,
            resctrl_ms: 10_000,
        }
    }
}

/// What the node-side loop is told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Between two samples and decisions, in milliseconds.
    pub interval_ms: u64,
    /// Between two steps of the fast lane, in milliseconds, while a strategy asks for it.
    pub fast_interval_ms: u64,
    /// Whether a clean stop brings back what was in the files before.
    pub restore_on_stop: bool,
    /// Which features are on.
    pub gates: Gates,
    /// How groups are named.
    pub layout: Layout,
    /// The suppression mode where neither node nor NodeSLO names one.
    pub suppress_mode: SuppressMode,
    /// The constants of the pressure guard.
    pub guard: guard::Config,
    /// Whether BE pods' own groups get `cpu.idle` where the NodeSLO does not say.
    pub be_cpu_idle: bool,
    /// Between two looks at BE pods' values, in milliseconds.
    pub reconcile_interval_ms: u64,
    /// A cached value is written again after this long, in milliseconds.
    pub force_update_ms: u64,
    /// Between two decisions of CPU suppression, in milliseconds; 0 is never.
    pub cpu_suppress_interval_ms: u64,
    /// Between two looks at whether pods must go for CPU, in milliseconds; 0 is never.
    pub cpu_evict_interval_ms: u64,
    /// Between two rounds of eviction for CPU, in milliseconds.
    pub cpu_cool_down_ms: u64,
    /// Between two looks at whether pods must go for memory, in milliseconds; 0 is never.
    pub memory_evict_interval_ms: u64,
    /// Between two rounds of memory eviction, in milliseconds.
    pub memory_cool_down_ms: u64,
    /// Between two looks at the files of the reconciling strategies, in milliseconds; 0 is never.
    pub qos_reconcile_interval_ms: u64,
    /// Whether pods with CPUs of their own have no CFS quota.
    pub unset_cpu_quota: bool,
    /// HAMi-core's library on the host, for containers that share a GPU through it.
    pub hami_library: String,
    /// The kubelet's directory on the host, where volumes of pods are mounted.
    pub kubelet_dir: PathBuf,
    /// The collectors.
    pub collectors: Collectors,
    /// Where samples are kept over a restart; `None` keeps them in memory only.
    pub snapshot: Option<PathBuf>,
    /// Between two training steps of the predictor, in milliseconds.
    pub training_interval_ms: u64,
    /// The predictor.
    pub predict: predict::Config,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval_ms: 1000,
            fast_interval_ms: 100,
            restore_on_stop: false,
            gates: Gates::default(),
            layout: Layout::new(Driver::Cgroupfs, CgroupPath::root()),
            suppress_mode: SuppressMode::default(),
            guard: guard::Config::default(),
            be_cpu_idle: false,
            reconcile_interval_ms: 10_000,
            force_update_ms: 60_000,
            cpu_suppress_interval_ms: 1_000,
            cpu_evict_interval_ms: 1_000,
            cpu_cool_down_ms: 20_000,
            memory_evict_interval_ms: 1_000,
            memory_cool_down_ms: 4_000,
            qos_reconcile_interval_ms: 1_000,
            unset_cpu_quota: true,
            hami_library: "/usr/local/vgpu/libvgpu.so".to_owned(),
            kubelet_dir: "/var/lib/kubelet/".into(),
            collectors: Collectors::default(),
            snapshot: None,
            training_interval_ms: 60_000,
            predict: predict::Config::default(),
        }
    }
}

/// What [`crate::run`] needs to know.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name. Must not be empty.
    pub node_name: String,
    /// The machine; the running one when `None`.
    pub root: Option<Root>,
    /// Whether resctrl is mounted where it is not and a strategy could use it. It stays mounted.
    pub mount_resctrl: bool,
    /// Where the cgroup driver is not given it is detected below this group.
    pub detect_layout: Option<CgroupPath>,
    /// The loop.
    pub settings: Settings,
    /// Where pods come from.
    pub pods: PodSource,
    /// Whether NodeMetric is reported.
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
