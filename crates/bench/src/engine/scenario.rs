//! Scenarios of the benchmark: clusters and the pods that come to them.

use super::objects::{
    aligned, bound, device, merge, metric, migration, node, node_name, pod, quota, requests,
    reservation, topology, unique_fields,
};
use super::workload::{DEPLOYMENTS, daemon, replica, replica_set, service};
use super::{Options, openb, storage};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_scheduler::framework::{Action, ObjectChange};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::str::FromStr;
use std::sync::Arc;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// Cluster and pods of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Equal nodes, equal pods.
    Basic,
    /// Pods of ten shapes, while nodes and bound pods come and go.
    MixedChurn,
    /// Pods of which every fifth fits on no node.
    UnschedulableMixed,
    /// Pods that may use two of ten zones, and prefer one.
    NodeAffinity,
    /// Pods of ten applications, spread over zones.
    TopologySpread,
    /// Pods of ten applications with affinity to a zone.
    PodAffinity,
    /// Pods with anti-affinity to each other on a host.
    PodAntiAffinity,
    /// Full nodes, and pods that preempt others.
    Preemption,
    /// Gangs of 1,000, or of a tenth of the pods where there are fewer than 10,000.
    Gang,
    /// Pods of a hundred quota groups in ten.
    QuotaTree,
    /// Reservations, one per node; half of the pods own some.
    ReservationHeavy,
    /// Pods that bind CPUs.
    Numa,
    /// Pods that share GPUs.
    GpuShare,
    /// Measured load on all nodes, and production and batch pods in turn.
    Colocation,
    /// Pods of 1,000 Deployments with a Service each, spread by default.
    Deployment,
    /// A pod of each DaemonSet for each node.
    Daemonset,
    /// Pods of 500 sizes.
    Shapes,
    /// Half of the nodes are there at first, the others join while pods come.
    NodeGrowth,
    /// The scenario colocation, while every node reports its load each minute and 1,000 pods come a second.
    MetricStream,
    /// Pods with a disk in a zone, one that is made for them, or one of a node, in turn.
    Volumes,
    /// Pods that leave their node for one with a reservation for them.
    ReservationMigration,
    /// Guaranteed pods, and kubelets that give each one NUMA node.
    Nrt,
    /// The scenario nrt, while every node's NodeResourceTopology is updated each minute, 1,000 pods come a
    /// second, and every fiftieth fits no NUMA node and waits. Placed pods hold their resources until an update has
    /// counted them. Compared with the same scenario without the updates, which has room for eight pods a
    /// node.
    NrtStream,
    /// Deployments of the sizes of the openb trace on its nodes, some daemon pods and some pods with
    /// volumes, while every node reports its load each minute.
    Everything,
}

impl Scenario {
    /// The scenarios with their names.
    pub const ALL: [(Self, &'static str); 24] = [
        (Self::Basic, "basic"),
        (Self::MixedChurn, "mixed-churn"),
        (Self::UnschedulableMixed, "unschedulable-mixed"),
        (Self::NodeAffinity, "node-affinity"),
        (Self::TopologySpread, "topology-spread"),
        (Self::PodAffinity, "pod-affinity"),
        (Self::PodAntiAffinity, "pod-anti-affinity"),
        (Self::Preemption, "preemption"),
        (Self::Gang, "gang"),
        (Self::QuotaTree, "quota-tree"),
        (Self::ReservationHeavy, "reservation-heavy"),
        (Self::Numa, "numa"),
        (Self::GpuShare, "gpu-share"),
        (Self::Colocation, "colocation"),
        (Self::Deployment, "deployment"),
        (Self::Daemonset, "daemonset"),
        (Self::Shapes, "shapes-500"),
        (Self::NodeGrowth, "node-growth"),
        (Self::MetricStream, "metric-stream"),
        (Self::Volumes, "volumes"),
        (Self::ReservationMigration, "reservation-migration"),
        (Self::Nrt, "nrt"),
        (Self::NrtStream, "nrt-stream"),
        (Self::Everything, "everything"),
    ];

    /// Returns the plugin that is off unless a configuration turns it on, and its arguments.
    pub(crate) fn extra(self) -> Option<(&'static str, Value)> {
        let arguments = match self {
            Self::Nrt => json!({}),
            // Placed pods hold their resources until a report has counted them.
            Self::NrtStream => json!({"cacheResyncPeriodSeconds": 5}),
            _ => return None,
        };
        Some(("NodeResourceTopologyMatch", arguments))
    }

    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(scenario, _)| *scenario == self);
        named.map_or("", |(_, name)| name)
    }
}

/// A name that no scenario has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no scenario {0:?}; there are {names}", names = names())]
pub struct UnknownScenario(String);

fn names() -> String {
    Scenario::ALL.map(|(_, name)| name).join(", ")
}

impl FromStr for Scenario {
    type Err = UnknownScenario;

    fn from_str(text: &str) -> Result<Self, UnknownScenario> {
        let named = Self::ALL.iter().find(|(_, name)| *name == text);
        named
            .map(|(scenario, _)| *scenario)
            .ok_or_else(|| UnknownScenario(text.to_owned()))
    }
}

/// Next event of a scenario.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Pods to be placed, all at once.
    Pods(Vec<Arc<Pod>>),
    /// A node appears or changes.
    Node(Arc<Node>),
    /// A node is deleted.
    NodeGone(String),
    /// The n-th placed pod is deleted.
    PodGone(usize),
    /// A pod that was bound from the start is deleted.
    Leaves(Arc<Pod>),
    /// An object of another kind appears or changes.
    Object(ObjectChange),
}

/// Equal pods that are bound to all nodes in turn. They are made on demand: a cluster has many, and the
/// benchmark's own objects would count as the scheduler's memory.
#[derive(Debug)]
struct BoundPods {
    prefix: &'static str,
    change: Value,
    pods: usize,
}

/// A cluster and its events.
#[derive(Debug, Default)]
pub(crate) struct Fixture {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) objects: Vec<ObjectChange>,
    /// Pods that are bound from the start, of several kinds.
    before: Vec<BoundPods>,
    /// Pods have unique fields, see [`Options::distinct`].
    distinct: bool,
    pub(crate) steps: Vec<Step>,
    /// A plugin to turn on, and its arguments.
    pub(crate) extra: Option<(&'static str, Value)>,
    /// Exporters report which pods they have counted.
    pub(crate) exporters: bool,
}

impl Fixture {
    /// Creates the cluster and the events of a scenario.
    pub(crate) fn from_options(options: &Options) -> Self {
        let Options {
            scenario,
            nodes,
            pods,
            bound: before,
            ..
        } = *options;
        let mut out = Self {
            distinct: options.distinct,
            nodes: (0..initial_nodes(scenario, nodes))
                .map(|number| node(number, &node_change(scenario, number)))
                .collect(),
            ..Self::default()
        };
        out.objects = objects(scenario, nodes, pods);
        out.extra = scenario.extra();
        out.exporters = scenario == Scenario::NrtStream;
        out.before.push(BoundPods {
            prefix: "before",
            change: json!({}),
            pods: before,
        });
        match scenario {
            Scenario::Preemption => out.fill(nodes),
            Scenario::ReservationMigration => out.before.push(BoundPods {
                prefix: "old",
                change: json!({}),
                pods,
            }),
            Scenario::Gang => {
                let size = (pods / 10).clamp(1, 1000);
                for start in (0..pods).step_by(size) {
                    let members = start..(start + size).min(pods);
                    let name = format!("gang-{}", start / size);
                    let change = gang(&name, members.len());
                    let members = members.map(|number| pod("pod", number, &change));
                    out.steps.push(Step::Pods(members.collect()));
                }
                return out;
            }
            _ => {}
        }
        for number in 0..pods {
            match scenario {
                Scenario::MixedChurn => out.churn(number, nodes),
                Scenario::NodeGrowth => out.grow(number, pods, nodes),
                Scenario::MetricStream | Scenario::Everything => {
                    out.report(number, nodes, metric);
                }
                Scenario::NrtStream => out.report(number, nodes, aligned),
                Scenario::ReservationMigration => {
                    out.steps.push(Step::Object(migration(number)));
                    let old = pod("old", number, &json!({}));
                    let old = bound(&old, &node_name(number % nodes.max(1)));
                    out.steps.push(Step::Leaves(Arc::new(old)));
                }
                _ => {}
            }
            let change = pod_change(scenario, number, nodes);
            out.steps
                .push(Step::Pods(vec![pod("pod", number, &change)]));
        }
        out
    }

    /// Adds four pods of low priority on each node, which leave too little for another.
    fn fill(&mut self, nodes: usize) {
        let mut change = requests(json!({"cpu": "7", "memory": "1Gi"}));
        merge(&mut change, &json!({"spec": {"priority": 5000}}));
        self.before.push(BoundPods {
            prefix: "low",
            change,
            pods: 4 * nodes,
        });
    }

    /// Returns the fixture without changes after the start, except pods.
    pub(crate) fn without_updates(mut self) -> Self {
        self.steps.retain(|step| !matches!(step, Step::Object(_)));
        self
    }

    /// Returns the nodes' numbers by their names.
    pub(crate) fn numbers(&self) -> FxHashMap<String, usize> {
        let names = self
            .nodes
            .iter()
            .filter_map(|node| node.metadata.name.clone());
        names.zip(0..).collect()
    }

    /// Returns the pods that are bound from the start.
    pub(crate) fn bound(&self) -> impl Iterator<Item = Pod> {
        let nodes = self.nodes.len().max(1);
        self.before.iter().flat_map(move |before| {
            (0..before.pods).map(move |number| {
                let mut change = before.change.clone();
                if self.distinct {
                    merge(&mut change, &unique_fields(before.prefix, number));
                }
                let pod = pod(before.prefix, number, &change);
                bound(&pod, &node_name(number % nodes))
            })
        })
    }

    /// Adds the nodes that join by the time of pod `number`.
    fn grow(&mut self, number: usize, pods: usize, nodes: usize) {
        let (few, late) = (nodes.div_ceil(2), nodes / 2);
        let by = |number: usize| few + late * number / pods.max(1);
        for joins in by(number)..by(number + 1) {
            self.steps.push(Step::Node(node(joins, &json!({}))));
        }
    }

    /// Adds the reports of the millisecond in which pod `number` comes.
    fn report(&mut self, number: usize, nodes: usize, make: fn(usize, usize) -> ObjectChange) {
        let by = |number: usize| nodes * number / 60_000;
        for report in by(number)..by(number + 1) {
            let change = make(report % nodes, 1 + report / nodes);
            self.steps.push(Step::Object(updated(change)));
        }
    }

    /// Adds nodes and pods that come and go while pod `number` is placed.
    fn churn(&mut self, number: usize, nodes: usize) {
        if number % 10 == 5 {
            let extra = nodes + number % 20;
            if number % 20 == 5 {
                self.steps.push(Step::Node(node(extra, &json!({}))));
            } else {
                self.steps.push(Step::NodeGone(node_name(extra - 10)));
            }
        }
        if number % 10 == 7 {
            self.steps.push(Step::PodGone(number / 3));
        }
        if number % 10 == 9 {
            let labels = json!({"metadata": {"labels": {"seen": format!("{number}")}}});
            self.steps
                .push(Step::Node(node(number % nodes.max(1), &labels)));
        }
    }
}

/// Returns the number of nodes before the first pod.
fn initial_nodes(scenario: Scenario, nodes: usize) -> usize {
    match scenario {
        Scenario::NodeGrowth => nodes.div_ceil(2),
        _ => nodes,
    }
}

fn node_change(scenario: Scenario, number: usize) -> Value {
    match scenario {
        Scenario::Everything => openb::node(number),
        Scenario::Colocation | Scenario::MetricStream => json!({"status": {"allocatable": {
            koord_api::resources::BATCH_CPU: "16000",
            koord_api::resources::BATCH_MEMORY: "128Gi",
        }}}),
        Scenario::GpuShare => json!({"status": {"allocatable": {
            "koordinator.sh/gpu-core": "800",
            "koordinator.sh/gpu-memory-ratio": "800",
            "koordinator.sh/gpu-memory": "640Gi",
        }}}),
        _ => json!({}),
    }
}

/// Returns the objects other than nodes and pods that exist from the start.
fn objects(scenario: Scenario, nodes: usize, pods: usize) -> Vec<ObjectChange> {
    let each = |make: fn(usize) -> ObjectChange| (0..nodes).map(make).collect();
    match scenario {
        Scenario::Colocation | Scenario::MetricStream => each(|number| metric(number, 0)),
        Scenario::Deployment => deployments().collect(),
        Scenario::Numa => each(topology),
        Scenario::Nrt | Scenario::NrtStream => each(|number| aligned(number, 0)),
        Scenario::Volumes => storage::objects(nodes, pods),
        Scenario::GpuShare => each(|number| device(number, 8)),
        Scenario::Everything => everything(nodes, pods),
        Scenario::QuotaTree => {
            let capacity = 32 * nodes;
            let mut out = Vec::new();
            for parent in 0..10 {
                let name = format!("team-{parent}");
                out.push(quota(&name, "koordinator-root-quota", true, capacity));
                for child in 0..10 {
                    out.push(quota(
                        &format!("{name}-{child}"),
                        &name,
                        false,
                        capacity / 10,
                    ));
                }
            }
            out
        }
        Scenario::ReservationHeavy => (0..nodes)
            .map(|number| reservation(number, &node_name(number)))
            .collect(),
        _ => Vec::new(),
    }
}

fn deployments() -> impl Iterator<Item = ObjectChange> {
    (0..DEPLOYMENTS).flat_map(|number| [replica_set(number), service(number)])
}

fn everything(nodes: usize, pods: usize) -> Vec<ObjectChange> {
    let mut out = storage::objects(nodes, pods);
    out.extend(deployments());
    out.extend((0..nodes).map(|number| metric(number, 0)));
    let with = (0..nodes).map(|number| (number, openb::gpus(number)));
    out.extend(
        with.filter(|(_, gpus)| *gpus > 0)
            .map(|(number, gpus)| device(number, gpus)),
    );
    out
}

/// Returns pod `number` of a mix: among 50 pods, one is of a DaemonSet and two have a volume.
fn mixed_pod(number: usize, nodes: usize) -> Value {
    match number % 50 {
        7 => daemon(0, number / 50 % nodes.max(1)),
        23 | 42 => storage::pod(number),
        _ => {
            let deployment = number % DEPLOYMENTS;
            let mut change = replica(deployment);
            merge(&mut change, &openb::pod_patch(deployment));
            change
        }
    }
}

fn gang(name: &str, size: usize) -> Value {
    json!({"metadata": {"annotations": {
        koord_api::annotations::GANG_NAME: name,
        koord_api::annotations::GANG_MIN_AVAILABLE: size.to_string(),
    }}})
}

fn labelled(app: &str, spec: &Value) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": spec})
}

/// Returns how the n-th pod differs from a basic one.
fn pod_change(scenario: Scenario, number: usize, nodes: usize) -> Value {
    let app = format!("app-{}", number % 10);
    let selector = json!({"matchLabels": {"app": app}});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    match scenario {
        Scenario::Basic | Scenario::Gang => json!({}),
        Scenario::MixedChurn => requests(json!({
            "cpu": format!("{}m", 300 + 20 * (number % 10)), "memory": "512Mi"
        })),
        Scenario::UnschedulableMixed if number % 5 == 4 => {
            requests(json!({"cpu": "100", "memory": "512Mi"}))
        }
        Scenario::UnschedulableMixed => json!({}),
        Scenario::NodeAffinity => {
            let zones = |zones: &[usize]| {
                let zones: Vec<String> = zones.iter().map(|zone| format!("zone-{zone}")).collect();
                json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": zones}]})
            };
            let first = number % 9;
            json!({"spec": {"affinity": {"nodeAffinity": {
                required: {"nodeSelectorTerms": [zones(&[first, first + 1])]},
                "preferredDuringSchedulingIgnoredDuringExecution":
                    [{"weight": 10, "preference": zones(&[first])}],
            }}}})
        }
        Scenario::TopologySpread => labelled(
            &app,
            &json!({"topologySpreadConstraints": [{
                "maxSkew": 5, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": selector,
            }, {
                "maxSkew": 3, "topologyKey": HOST, "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": selector,
            }]}),
        ),
        Scenario::PodAffinity => labelled(
            &app,
            &json!({"affinity": {"podAffinity": {
                required: [{"topologyKey": ZONE, "labelSelector": selector}]
            }}}),
        ),
        Scenario::PodAntiAffinity => {
            // No application has more pods than there are hosts.
            let app = format!("app-{}", number / (nodes / 2).max(1));
            let selector = json!({"matchLabels": {"app": app}});
            labelled(
                &app,
                &json!({"affinity": {"podAntiAffinity": {
                    required: [{"topologyKey": HOST, "labelSelector": selector}]
                }}}),
            )
        }
        Scenario::Preemption => requests(json!({"cpu": "6", "memory": "1Gi"})),
        Scenario::QuotaTree => json!({"metadata": {"labels": {
            koord_api::labels::POD_QUOTA_NAME:
                format!("team-{}-{}", number % 10, number / 10 % 10),
        }}}),
        Scenario::ReservationHeavy if number.is_multiple_of(2) => {
            json!({"metadata": {"labels": {"owner": format!("o{}", number / 2 % 100)}}})
        }
        Scenario::ReservationHeavy => json!({}),
        Scenario::Numa => {
            let mut change = requests(json!({"cpu": "4", "memory": "4Gi"}));
            let policy = json!({"requiredCPUBindPolicy": "FullPCPUs"}).to_string();
            merge(
                &mut change,
                &json!({"metadata": {
                    "labels": {koord_api::labels::POD_QOS: "LSR"},
                    "annotations": {koord_api::annotations::RESOURCE_SPEC: policy},
                }, "spec": {"priority": 9500}}),
            );
            change
        }
        Scenario::GpuShare => requests(json!({
            "cpu": "1", "memory": "4Gi",
            "koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50",
        })),
        Scenario::Deployment => replica(number % DEPLOYMENTS),
        Scenario::Daemonset => daemon(number / nodes.max(1), number % nodes.max(1)),
        // Any five in a row differ in size, and the same returns after 500.
        Scenario::Shapes => requests(json!({
            "cpu": format!("{}m", 100 + 10 * (number % 50)),
            "memory": format!("{}Mi", 128 * (1 + number / 50 % 10)),
        })),
        Scenario::NodeGrowth => json!({}),
        Scenario::Volumes => storage::pod(number),
        Scenario::ReservationMigration => {
            json!({"metadata": {"labels": {"migrates": format!("migrate-{number:06}")}}})
        }
        Scenario::Everything => mixed_pod(number, nodes),
        // A NUMA node has 16 CPUs, a node 32.
        Scenario::NrtStream if number % 50 == 49 => requests(json!({"cpu": "17", "memory": "4Gi"})),
        Scenario::Nrt | Scenario::NrtStream => requests(json!({"cpu": "2", "memory": "4Gi"})),
        Scenario::Colocation | Scenario::MetricStream if number.is_multiple_of(2) => {
            let mut change = requests(json!({
                koord_api::resources::BATCH_CPU: "1000",
                koord_api::resources::BATCH_MEMORY: "2Gi",
            }));
            merge(
                &mut change,
                &json!({"metadata": {"labels": {koord_api::labels::POD_QOS: "BE"}},
                    "spec": {"priority": 5500}}),
            );
            change
        }
        Scenario::Colocation | Scenario::MetricStream => json!({}),
    }
}

fn updated(change: ObjectChange) -> ObjectChange {
    ObjectChange {
        action: Action::UPDATE,
        ..change
    }
}
