mod alignment;
mod allocations;
mod binding;
mod closed_loop;
mod reservations;
mod rows;
mod scores;
mod shares;
mod tables;

use super::*;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::topology::Zone;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_scheduler::config::Configuration;
use koord_scheduler::engine::{BindError, BindRequest, Engine, EngineOptions, Output};
use koord_scheduler::framework::Profiles;
use serde_json::json;

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

/// Creates an engine with this plugin and the check of plain resources.
fn engine(args: Value) -> Engine {
    build_engine(args, &[], crate::registry())
}

fn build_engine(
    args: Value,
    more: &[&str],
    registry: koord_scheduler::framework::Registry,
) -> Engine {
    build_engine_with(args, more, registry, &BuildContext::default())
}

fn build_engine_with(
    args: Value,
    more: &[&str],
    registry: koord_scheduler::framework::Registry,
    context: &BuildContext,
) -> Engine {
    let mut enabled = vec![json!({"name": "NodeResourcesFit", "weight": 1})];
    enabled.push(json!({"name": NAME, "weight": 1000}));
    enabled.extend(more.iter().map(|name| json!({"name": name})));
    enabled.push(json!({"name": "DefaultBinder"}));
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "koord-scheduler",
            "plugins": {"multiPoint": {
                "disabled": [{"name": "*"}],
                "enabled": enabled
            }},
            "pluginConfig": [{"name": NAME, "args": args}]
        }]
    });
    let config = Configuration::parse(&config.to_string()).unwrap();
    let profiles = Profiles::build(&config, &registry, context, false).unwrap();
    Engine::new(&config, profiles, EngineOptions::default())
}

/// A machine: sockets, NUMA nodes per socket, cores per node and threads per core; CPUs are numbered in that
/// order.
#[derive(Debug, Clone, Copy)]
struct CpuLayout([u32; 4]);

impl CpuLayout {
    fn cpus(self) -> u32 {
        self.0.iter().product()
    }

    fn nodes(self) -> u32 {
        self.0[0] * self.0[1]
    }

    fn detail(self) -> Value {
        let [_, nodes, cores, threads] = self.0;
        let cpu = |id: u32| {
            let core = id / threads;
            let node = core / cores;
            json!({"id": id, "core": core, "socket": node / nodes, "node": node})
        };
        (0..self.cpus()).map(cpu).collect()
    }

    /// Returns the NodeResourceTopology object; each NUMA node has 32Gi.
    fn topology(self, name: &str, policies: Value, annotations: Value) -> ObjectChange {
        let per_node = self.cpus() / self.nodes();
        let zone = |id: u32| {
            let resource = |name: &str, amount: Value| json!({"name": name, "capacity": amount, "allocatable": amount, "available": amount});
            json!({"name": format!("node-{id}"), "type": "Node", "resources": [
                resource("cpu", json!(per_node.to_string())), resource("memory", json!("32Gi"))
            ]})
        };
        let zones: Value = (0..self.nodes()).map(zone).collect();
        let mut all = json!({
            "node.koordinator.sh/cpu-topology": json!({"detail": self.detail()}).to_string()
        });
        for (key, value) in annotations.as_object().into_iter().flatten() {
            all[key] = value.clone();
        }
        let object: NodeResourceTopology = serde_json::from_value(json!({
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
            "metadata": {"name": name, "annotations": all},
            "topologyPolicies": policies, "zones": zones
        }))
        .unwrap();
        ObjectChange {
            kind: TOPOLOGIES,
            action: Action::ADD,
            old: None,
            new: Arc::new(object),
        }
    }

    fn node(self, name: &str, labels: Value, annotations: Value, cpu: u32) -> Arc<Node> {
        let memory = format!("{}Gi", 32 * self.nodes());
        let value = json!({
            "metadata": {"name": name, "uid": name, "labels": labels, "annotations": annotations},
            "status": {"allocatable": {"cpu": cpu.to_string(), "memory": memory, "pods": "110"}}
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }
}

const TWO: CpuLayout = CpuLayout([2, 1, 4, 2]);

/// Creates an engine with nodes of this kind.
fn cluster(machine: CpuLayout, names: &[&str], labels: Value) -> Engine {
    let mut engine = engine(json!({}));
    for name in names {
        let node = machine.node(name, labels.clone(), json!({}), machine.cpus());
        engine.node_applied(node, now());
        engine.object_changed(&machine.topology(name, json!([]), json!({})), now());
    }
    engine
}

fn one(labels: Value) -> Engine {
    cluster(TWO, &["n"], labels)
}

fn with(mut value: Value, change: Value) -> Value {
    for (key, part) in change.as_object().into_iter().flatten() {
        if part.is_object() && value[key].is_object() {
            value[key] = with(value[key].take(), part.clone());
        } else {
            value[key] = part.clone();
        }
    }
    value
}

/// Returns a production pod with the fields of `change` merged into it.
fn pod(name: &str, cpu: &str, change: Value) -> Pod {
    let base = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {}, "annotations": {}},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priority": 9500,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]
        }
    });
    serde_json::from_value(with(base, change)).unwrap()
}

fn lsr(name: &str, cpu: &str, spec: &str) -> Pod {
    let mut metadata = json!({"labels": {"koordinator.sh/qosClass": "LSR"}});
    if !spec.is_empty() {
        metadata["annotations"] = json!({"scheduling.koordinator.sh/resource-spec": spec});
    }
    pod(name, cpu, json!({"metadata": metadata}))
}

const FULL: &str = r#"{"requiredCPUBindPolicy":"FullPCPUs"}"#;
const SPREAD: &str = r#"{"requiredCPUBindPolicy":"SpreadByPCPUs"}"#;

fn aligned(name: &str, cpu: &str, spec: &str) -> Pod {
    let annotations = json!({"scheduling.koordinator.sh/numa-topology-spec": spec});
    pod(name, cpu, json!({"metadata": {"annotations": annotations}}))
}

/// Schedules one pod and returns the binding, or the condition's message.
fn try_bind(engine: &mut Engine, pod: Pod) -> Result<BindRequest, String> {
    engine.take_outputs();
    engine.pod_applied(Arc::new(pod), now());
    engine.schedule_one(now()).unwrap();
    match engine.take_outputs().remove(0) {
        Output::Bind(bind) => Ok(bind),
        Output::Failed(failure) => Err(failure.message.to_string()),
        other => Err(format!("{other:?}")),
    }
}

/// Schedules one pod and returns its allocation, as `node cpuset | numa node: resources; ...`, or the
/// rejection reason.
fn place(engine: &mut Engine, pod: Pod) -> String {
    match try_bind(engine, pod) {
        Err(message) => reason(&message),
        Ok(bind) => format!("{} {}", bind.node, status(&bind)),
    }
}

fn status(bind: &BindRequest) -> String {
    let Some(text) = bind.patch.annotations.get(annotations::RESOURCE_STATUS) else {
        return "-".to_owned();
    };
    let status: ResourceStatus = serde_json::from_str(text).unwrap();
    let zones = status.numa_node_resources.iter().map(|zone| {
        let list = zone.resources.iter();
        let list: Vec<String> = list.map(|(name, n)| format!("{name} {n}")).collect();
        format!("{}: {}", zone.node, list.join(", "))
    });
    let mut parts = vec![status.cpuset.clone()];
    parts.extend(zones);
    parts.retain(|part| !part.is_empty());
    parts.join(" | ")
}

/// Returns the rejection reasons without the number of nodes.
fn reason(message: &str) -> String {
    let text = message
        .split_once("available: ")
        .map_or(message, |(_, text)| text);
    text.trim_end_matches('.').to_owned()
}

/// Returns the bound pod as the informer reports it.
fn bound(bind: &BindRequest) -> Pod {
    let mut pod = (*bind.pod.object.pod).clone();
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(bind.node.to_string());
    }
    let all = pod.metadata.annotations.get_or_insert_default();
    all.extend(bind.patch.annotations.clone());
    pod
}

/// Returns the plugin's inspection view of node `name`.
fn table(engine: &mut Engine, name: &str) -> Value {
    let query = std::collections::BTreeMap::new();
    let node = engine
        .inspector()
        .inspect(NAME, &["nodes", name], &query, now());
    node.unwrap()
}
