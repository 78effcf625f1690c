//! The Node object: properties and resources of this machine.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::quantity::Quantity;
use koord_api::simulation::HOST_LABEL;
use koord_host::procfs::{self, MemInfo};
use koord_host::topology::CpuTopology;
use koord_host::{HostError, Root};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};

/// Annotation on the Node with the confinement of containers.
pub const CONFINEMENT_ANNOTATION: &str = "node.koordinator.sh/confinement";

/// Annotation on the Node that describes the rights of its pods in one line.
pub const RIGHTS_ANNOTATION: &str = "node.koordinator.sh/pod-rights";

/// Prefix of the reason in [`CONFINEMENT_ANNOTATION`] when containers are not confined.
pub(crate) const UNCONFINED: &str = "unconfined: ";

/// Returns the reason why containers are not confined, from the value of [`CONFINEMENT_ANNOTATION`]; `None`
/// when they are confined.
#[must_use]
pub fn unconfined(confinement: &str) -> Option<&str> {
    confinement.strip_prefix(UNCONFINED)
}

/// Returns the taint of a node with [`HOST_LABEL`], with the label's key and value, that leaves pods without a
/// toleration to the simulated nodes.
#[must_use]
pub fn host_taint() -> Taint {
    Taint {
        key: HOST_LABEL.to_owned(),
        value: Some("true".to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}

/// Resources and properties of the machine, read once at start.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Machine {
    /// Online CPUs.
    pub cpus: i64,
    /// Bytes of memory.
    pub memory: i64,
    /// Bytes of the file system that holds the data directory.
    pub storage: i64,
    /// Address by which other machines of the network reach it.
    pub ip: String,
    /// Kernel, operating system and ids.
    pub info: NodeSystemInfo,
}

impl Machine {
    /// Reads the properties of the machine.
    ///
    /// # Errors
    /// When procfs or sysfs cannot be parsed.
    pub fn read(root: &Root, data_dir: &std::path::Path) -> Result<Self, HostError> {
        let topology = CpuTopology::read(root)?;
        let memory = MemInfo::read(root)?.unwrap_or_default();
        let file = |path: &str| {
            std::fs::read_to_string(path)
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        };
        let os_release = file("/etc/os-release");
        let os_image = os_release
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="))
            .map_or("Linux", |name| name.trim_matches('"'));
        let info = NodeSystemInfo {
            architecture: architecture().to_owned(),
            boot_id: procfs::boot_id(root)?.unwrap_or_default(),
            container_runtime_version: concat!("koord://", env!("CARGO_PKG_VERSION")).to_owned(),
            kernel_version: procfs::kernel_release(root)?.unwrap_or_default(),
            kube_proxy_version: String::new(),
            kubelet_version: concat!("v1.35.0-koord.", env!("CARGO_PKG_VERSION")).to_owned(),
            machine_id: file("/etc/machine-id"),
            operating_system: "linux".to_owned(),
            os_image: os_image.to_owned(),
            system_uuid: file("/sys/class/dmi/id/product_uuid"),
            ..NodeSystemInfo::default()
        };
        Ok(Self {
            cpus: i64::try_from(topology.len()).unwrap_or(0),
            memory: i64::try_from(memory.total).unwrap_or(i64::MAX),
            storage: storage_of(data_dir),
            ip: primary_ip().to_string(),
            info,
        })
    }
}

/// Returns Go's name of the architecture, as Kubernetes uses.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Returns the source address of packets to the Internet, from the routing table; no packet is sent.
fn primary_ip() -> IpAddr {
    let probe = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // An address reserved for documentation.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    };
    probe().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

fn storage_of(dir: &std::path::Path) -> i64 {
    koord_host::filesystem_size(dir)
        .ok()
        .and_then(|bytes| i64::try_from(bytes).ok())
        .unwrap_or(0)
}

/// Reported facts about the node in addition to the machine.
#[derive(Debug, Clone)]
pub struct NodeFacts<'a> {
    /// Name of the Node.
    pub name: &'a str,
    /// Extra labels.
    pub labels: &'a [(String, String)],
    /// Reserved milli-CPUs.
    pub reserved_cpu_milli: i64,
    /// Reserved memory in bytes.
    pub reserved_memory: i64,
    /// Maximum number of pods.
    pub max_pods: u32,
    /// Port of `/pods`, if served.
    pub port: Option<u16>,
    /// Value of [`CONFINEMENT_ANNOTATION`].
    pub confinement: &'a str,
    /// Value of [`RIGHTS_ANNOTATION`].
    pub rights: &'a str,
}

/// Returns labels and annotations, as a merge patch of metadata.
#[must_use]
pub fn metadata(facts: &NodeFacts<'_>) -> Value {
    let mut labels: BTreeMap<&str, &str> = BTreeMap::from([
        ("kubernetes.io/hostname", facts.name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture()),
        (HOST_LABEL, "true"),
    ]);
    labels.extend(
        facts
            .labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str())),
    );
    json!({"labels": labels, "annotations": {
        CONFINEMENT_ANNOTATION: facts.confinement,
        RIGHTS_ANNOTATION: facts.rights,
    }})
}

/// Returns the Node's status as a strategic merge patch. Resources that other components publish (batch-cpu
/// and the like) are left out and so keep their values.
#[must_use]
pub fn status(
    machine: &Machine,
    facts: &NodeFacts<'_>,
    old: Option<&Node>,
    now: Timestamp,
) -> Value {
    let amounts = |cpu_milli: i64, memory: i64| {
        json!({
            "cpu": Quantity::from_milli(cpu_milli).to_string(),
            "memory": Quantity::from_bytes(memory / 1024 * 1024).to_string(),
            "ephemeral-storage": Quantity::from_bytes(machine.storage / 1024 * 1024).to_string(),
            "pods": facts.max_pods.to_string(),
        })
    };
    let milli = machine.cpus.saturating_mul(1000);
    let condition = |kind: &str, value: &str, reason: &str, message: &str| {
        let since = old
            .and_then(|node| node.status.as_ref()?.conditions.as_ref())
            .into_iter()
            .flatten()
            .find(|existing| existing.type_ == kind && existing.status == value)
            .and_then(|existing| existing.last_transition_time.clone());
        NodeCondition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: since.or(Some(Time(now))),
        }
    };
    let address = |kind: &str, address: &str| NodeAddress {
        type_: kind.to_owned(),
        address: address.to_owned(),
    };
    let endpoints = facts.port.map(|port| NodeDaemonEndpoints {
        kubelet_endpoint: Some(DaemonEndpoint {
            port: i32::from(port),
        }),
    });
    json!({
        "capacity": amounts(milli, machine.memory),
        "allocatable": amounts(
            (milli - facts.reserved_cpu_milli).max(0),
            (machine.memory - facts.reserved_memory).max(0),
        ),
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "memory is available"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "disk space is available"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "process ids are available"),
            condition("Ready", "True", "KubeletReady", "koord-node runs pods as host processes"),
        ],
        "addresses": [address("InternalIP", &machine.ip), address("Hostname", facts.name)],
        "daemonEndpoints": endpoints,
        "nodeInfo": machine.info,
    })
}

/// Returns whether a Node's conditions differ from those of `status`, ignoring times.
#[must_use]
pub(crate) fn conditions_differ(node: &Node, status: &Value) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let has = |condition_json: &Value| {
        conditions.into_iter().flatten().any(|condition| {
            condition_json["type"] == condition.type_
                && condition_json["status"] == condition.status
                && condition_json["reason"].as_str() == condition.reason.as_deref()
        })
    };
    !status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .all(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> NodeFacts<'static> {
        NodeFacts {
            name: "here",
            labels: &[],
            reserved_cpu_milli: 500,
            reserved_memory: 1 << 30,
            max_pods: 20,
            port: Some(10255),
            confinement: "cgroup v1",
            rights: "none",
        }
    }

    #[test]
    fn this_machine_has_cpus_and_memory() {
        let root = Root::system().unwrap();
        let machine = Machine::read(&root, std::path::Path::new("/")).unwrap();
        assert!(machine.cpus > 0 && machine.memory > 0 && machine.storage > 0);
        assert!(!machine.info.kernel_version.is_empty());
    }

    #[test]
    fn the_status_names_only_its_own_resources() {
        let machine = Machine {
            cpus: 4,
            memory: 8 << 30,
            storage: 10 << 30,
            ip: "10.0.0.1".into(),
            ..Machine::default()
        };
        let old: Node = serde_json::from_value(json!({
            "metadata": {"name": "here"},
            "status": {
                "capacity": {"kubernetes.io/batch-cpu": "5"},
                "conditions": [{"type": "Ready", "status": "True",
                    "lastTransitionTime": "1970-01-01T00:00:09Z"}]
            }
        }))
        .unwrap();
        let now = Timestamp::from_second(100).unwrap();
        let status = status(&machine, &facts(), Some(&old), now);
        assert_eq!(
            status["capacity"],
            json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "20"})
        );
        assert_eq!(status["allocatable"]["cpu"], "3500m");
        assert_eq!(status["allocatable"]["memory"], "7Gi");
        let ready = &status["conditions"][3];
        assert_eq!(ready["type"], "Ready");
        assert_eq!(ready["lastTransitionTime"], "1970-01-01T00:00:09Z");
        assert_eq!(ready["lastHeartbeatTime"], "1970-01-01T00:01:40Z");
        assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10255);
        let labels = &metadata(&facts())["labels"];
        assert_eq!(labels["kubernetes.io/hostname"], "here");
        assert_eq!(labels["node.koordinator.sh/host"], "true");
    }

    #[test]
    fn unconfined_containers_have_a_reason() {
        assert_eq!(unconfined("cgroup v1 with unified tree"), None);
        assert_eq!(
            unconfined("unconfined: it was asked for"),
            Some("it was asked for")
        );
    }
}
