use super::merge::{TopologyV1Alpha1, TopologyV1Alpha2};
use super::{TopologyMode as Mode, *};
use crate::collect::machine::{HugePages, MachineInfo, NumaNode};
use crate::states::kubelet::Config;
use crate::states::{Driver, Layout, NodeInfo, PodInfo};
use k8s_openapi::api::core::v1::{Node, Pod};
use koord_api::topology::Zone;
use koord_api::{annotations, labels};
use koord_host::CgroupPath;
use koord_host::procfs::MemInfo;
use koord_host::topology::CpuLocation;
use serde_json::{Value, json};

/// Returns a machine with a CPU at each of these places: core, socket, NUMA node.
fn machine(places: &[(u32, u32, u32)], kib: &[u64]) -> MachineInfo {
    let cpu = |(cpu, &(core, socket, node)): (u32, &(u32, u32, u32))| CpuLocation {
        cpu,
        core,
        socket,
        node,
        l3: socket,
    };
    let numa = |(id, kib): (u32, &u64)| NumaNode {
        id,
        memory: Some(MemInfo {
            total: kib * 1024,
            ..MemInfo::default()
        }),
        huge_pages: Vec::new(),
    };
    MachineInfo {
        vendor: "GenuineIntel".to_owned(),
        model: "XXX".to_owned(),
        hyper_threads: true,
        turbo: Some(true),
        cpus: (0..).zip(places).map(cpu).collect(),
        numa: (0..).zip(kib).map(numa).collect(),
        ..MachineInfo::default()
    }
}

/// Upstream's machine of `Test_reportNodeTopology`: two NUMA nodes of two cores.
fn eight_cpu_machine() -> MachineInfo {
    let places: Vec<_> = (0..8).map(|cpu| (cpu / 2, cpu / 4, cpu / 4)).collect();
    machine(&places, &[263_432_804, 263_432_000])
}

/// Upstream's machine of `Test_getNodeReserved` and of the kubelet's tests: twelve CPUs, sockets and
/// NUMA nodes in turn.
fn twelve_cpu_machine() -> MachineInfo {
    let places: Vec<_> = (0..12).map(|cpu| (cpu % 6, cpu % 2, cpu % 2)).collect();
    machine(&places, &[1 << 20, 1 << 20])
}

fn node(value: Value) -> NodeInfo {
    let mut object: Node = serde_json::from_value(value).unwrap();
    object.metadata.name = Some("test".to_owned());
    object.metadata.uid = Some("node-uid".to_owned());
    NodeInfo::from_node(&object)
}

fn pod(name: &str, uid: &str, qos: &str, cpus: &str) -> PodInfo {
    let mut labels = serde_json::Map::new();
    if !qos.is_empty() {
        labels.insert(labels::POD_QOS.to_owned(), json!(qos));
    }
    let mut notes = serde_json::Map::new();
    if !cpus.is_empty() {
        let status = json!({"cpuset": cpus}).to_string();
        notes.insert(annotations::RESOURCE_STATUS.to_owned(), json!(status));
    }
    let namespace = name.replace("pod", "ns");
    let object: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": namespace, "uid": uid,
            "labels": labels, "annotations": notes},
        "status": {"phase": "Running"}}))
    .unwrap();
    let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
    PodInfo::from_pod(&object, &layout).unwrap()
}

fn kubelet(config: Value) -> Config {
    let (config, malformed) =
        Config::read(&json!({ "kubeletconfig": config }).to_string()).unwrap();
    assert_eq!(malformed, []);
    config
}

fn static_config() -> Config {
    kubelet(json!({"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "2000m"}}))
}

/// Upstream's pods of `Test_reportNodeTopology`, with the QoS class set on the third where it takes effect.
fn four_pods() -> Vec<PodInfo> {
    vec![
        pod("pod1", "xxx-y1", "LSR", "4"),
        pod("pod2", "xxx-y2", "LSR", "3"),
        pod("pod3", "xxx-y3", "LSE", "5"),
        pod("pod4", "xxx-y4", "", ""),
    ]
}

struct Case {
    machine: MachineInfo,
    node: NodeInfo,
    pods: Vec<PodInfo>,
    kubelet: Option<Config>,
    state: &'static str,
    huge_pages: bool,
}

impl Case {
    fn new() -> Self {
        Self {
            machine: eight_cpu_machine(),
            node: node(json!({})),
            pods: four_pods(),
            kubelet: Some(static_config()),
            state: "",
            huge_pages: false,
        }
    }

    fn report(&self) -> Result<Report, facts::FactsError> {
        Report::from_inputs(&Inputs {
            machine: &self.machine,
            node: &self.node,
            pods: &self.pods,
            kubelet: self.kubelet.as_ref(),
            cpu_manager_state: self.state,
            huge_pages: self.huge_pages,
        })
    }

    fn note(&self, key: &str) -> String {
        self.report().unwrap().annotations[key].clone()
    }
}

fn zone_text(zones: &[Zone]) -> Vec<String> {
    let zone = |zone: &Zone| {
        let resources = zone.resources.iter().map(|it| {
            let amounts = [it.capacity, it.allocatable, it.available].map(|it| it.to_string());
            if amounts[0] == amounts[1] && amounts[1] == amounts[2] {
                format!("{}={}", it.name, amounts[0])
            } else {
                format!("{}={}", it.name, amounts.join("/"))
            }
        });
        let resources: Vec<String> = resources.collect();
        format!("{} {} {}", zone.name, zone.type_, resources.join(" "))
    };
    zones.iter().map(zone).collect()
}

const SERVICES: &str = annotations::NODE_CPU_SHARED_POOLS;
const BATCH: &str = annotations::NODE_BE_CPU_SHARED_POOLS;

/// Upstream's `Test_reportNodeTopology`: everything of its first case.
#[test]
fn a_node_as_upstream_reports_it() {
    let report = Case::new().report().unwrap();
    let detail: Vec<String> = (0..8)
        .map(|cpu| {
            let (core, node) = (cpu / 2, cpu / 4);
            format!(r#"{{"id":{cpu},"core":{core},"socket":{node},"node":{node}}}"#)
        })
        .collect();
    let expected = [
        (
            annotations::NODE_CPU_BASIC_INFO,
            r#"{"cpuModel":"XXX","hyperThreadEnabled":true,"turboEnabled":true,"vendorID":"GenuineIntel"}"#.to_owned(),
        ),
        (
            annotations::NODE_CPU_TOPOLOGY,
            format!(r#"{{"detail":[{}]}}"#, detail.join(",")),
        ),
        (
            SERVICES,
            r#"[{"socket":0,"node":0,"cpuset":"0-2"},{"socket":1,"node":1,"cpuset":"6-7"}]"#.to_owned(),
        ),
        (
            BATCH,
            r#"[{"socket":0,"node":0,"cpuset":"0-3"},{"socket":1,"node":1,"cpuset":"4,6-7"}]"#.to_owned(),
        ),
        (
            annotations::KUBELET_CPU_MANAGER_POLICY,
            r#"{"policy":"static","reservedCPUs":"0-1"}"#.to_owned(),
        ),
        (annotations::NODE_CPU_ALLOCS, "null".to_owned()),
        (annotations::NODE_RESERVATION, "{}".to_owned()),
        (annotations::NODE_SYSTEM_QOS_RESOURCE, "{}".to_owned()),
    ];
    assert_eq!(report.annotations, expected.into());
    assert_eq!(report.policy, "None");
    assert_eq!(
        zone_text(&report.zones),
        [
            "node-0 Node cpu=4 hugepages-1Gi=0 hugepages-2Mi=0 memory=263432804Ki",
            "node-1 Node cpu=4 hugepages-1Gi=0 hugepages-2Mi=0 memory=263432000Ki",
        ]
    );
    assert_eq!(report.malformed, []);
    let read = report.read();
    assert!(read.is_static());
    assert_eq!(read.shared_pools[1].cpuset, "6-7");
}

/// Upstream's `Test_reportNodeTopology`: reservation and system QoS, no query, CPUs of the kubelet's.
#[test]
fn the_other_cases_of_upstreams_report() {
    let mut case = Case::new();
    case.node = node(json!({"metadata": {"annotations": {
        annotations::NODE_RESERVATION: r#"{"reservedCPUs":"1-2"}"#,
        annotations::NODE_SYSTEM_QOS_RESOURCE: r#"{"cpuset":"7"}"#}}}));
    assert_eq!(
        case.note(SERVICES),
        r#"[{"socket":0,"node":0,"cpuset":"0"},{"socket":1,"node":1,"cpuset":"6"}]"#
    );
    assert_eq!(
        case.note(annotations::NODE_RESERVATION),
        r#"{"reservedCPUs":"1-2"}"#
    );
    assert_eq!(
        case.note(annotations::NODE_SYSTEM_QOS_RESOURCE),
        r#"{"cpuset":"7"}"#
    );

    let mut case = Case::new();
    case.kubelet = None;
    assert_eq!(case.note(annotations::KUBELET_CPU_MANAGER_POLICY), "{}");
    assert_eq!(case.report().unwrap().attributes, []);

    let mut case = Case::new();
    case.state = r#"{"policyName":"static","defaultCpuSet":"2-7",
        "entries":{"xxx-y4":{"demo":"1"}},"checksum":1000000000}"#;
    assert_eq!(
        case.note(SERVICES),
        r#"[{"socket":0,"node":0,"cpuset":"0,2"},{"socket":1,"node":1,"cpuset":"6-7"}]"#
    );
    assert_eq!(
        case.note(annotations::NODE_CPU_ALLOCS),
        r#"[{"namespace":"ns4","name":"pod4","uid":"xxx-y4","cpuset":"1","managedByKubelet":true}]"#
    );
    case.kubelet = Some(kubelet(json!({"cpuManagerPolicy": "none"})));
    assert_eq!(case.note(annotations::NODE_CPU_ALLOCS), "null");
    assert_eq!(
        case.note(annotations::KUBELET_CPU_MANAGER_POLICY),
        r#"{"policy":"none"}"#
    );
}

#[test]
fn pool_taken_by_pods_is_absent_and_reserved_pool_is_empty() {
    let mut case = Case::new();
    case.pods = vec![pod("pod1", "a", "LSE", "0-3")];
    let second = r#"{"socket":1,"node":1,"cpuset":"4-7"}"#;
    assert_eq!(case.note(SERVICES), format!("[{second}]"));
    assert_eq!(case.note(BATCH), format!("[{second}]"));
    // Terminated pods use no CPUs.
    case.pods[0].phase = crate::states::Phase::Failed;
    assert!(case.note(BATCH).contains("0-3"));
    case.node = node(json!({"metadata": {"annotations": {
        annotations::NODE_RESERVATION: r#"{"reservedCPUs":"0-3"}"#}}}));
    let empty = r#"{"socket":0,"node":0}"#;
    assert_eq!(case.note(SERVICES), format!("[{empty},{second}]"));
    case.pods = vec![pod("pod1", "a", "LSE", "0-7")];
    assert_eq!(case.note(SERVICES), "null");
}

/// Upstream's `Test_removeSystemQOSCPUs`, and the annotation of the system QoS resource.
#[test]
fn cpus_of_system_pods_are_kept_from_others() {
    for (text, said, pool) in [
        ("", "{}", "0-3"),
        (r#"{"cpuset":""}"#, "{}", "0-3"),
        (
            r#"{"cpuset":"0-1","cpusetExclusive":false}"#,
            r#"{"cpuset":"0-1","cpusetExclusive":false}"#,
            "0-3",
        ),
        (r#"{"cpuset":"0b"}"#, "{}", "0-3"),
        (r#"{"cpuset":"0-1"}"#, r#"{"cpuset":"0-1"}"#, "2-3"),
    ] {
        let mut case = Case::new();
        case.pods.clear();
        case.node = node(json!({"metadata": {"annotations":
            {annotations::NODE_SYSTEM_QOS_RESOURCE: text}}}));
        assert_eq!(
            case.note(annotations::NODE_SYSTEM_QOS_RESOURCE),
            said,
            "{text}"
        );
        let first = format!(r#"[{{"socket":0,"node":0,"cpuset":"{pool}"}}"#);
        assert!(case.note(SERVICES).starts_with(&first), "{text}");
        assert!(case.note(BATCH).starts_with(&first), "{text}");
    }
}

/// Upstream's `Test_calGuaranteedCpu` and `Test_calKubeletAllocatedCPUs`.
#[test]
fn exclusive_cpus_reads_cpu_manager_state() {
    let pods = [
        pod("test-pod", "pod", "", ""),
        pod("test-ls-pod", "LSPod", "LS", "3-4"),
        pod("test-be-pod", "BEPod", "BE", ""),
        pod("test-lsr-pod", "LSRPod", "LSR", "4-5"),
        pod("test-lse-pod", "LSEPod", "LSE", "5-6"),
    ];
    let all = r#"{"policyName":"none","defaultCPUSet":"1-8","entries":{
        "pod":{"container1":"1-2","container2":"2-3"},"LSPod":{"container1":"3-4"},
        "BEPod":{"container1":"4-5"},"LSRPod":{"container1":"5-6"},
        "LSEPod":{"container1":"6-7"}},"checksum":962272150}"#;
    let state_text = r#"{"policyName":"none","defaultCPUSet":"1-3","entries":{
        "pod":{"container1":"1-2","container2":"2-3"}},"checksum":962272150}"#;
    let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1000000000}"#;
    let empty = r#"{"policyName":"none","defaultCPUSet":"4-6","entries":{},"checksum":354655845}"#;
    for (state, pods, wanted) in [
        // No file, and one that is being created.
        ("", &pods[..], Some("")),
        (none, &pods, Some("")),
        (empty, &pods, Some("")),
        (state_text, &[], Some("/ pod 1-3")),
        (all, &pods, Some("test-ns/test-pod pod 1-3")),
        ("{", &pods, None),
        ("invalidContent", &pods, None),
        (r#"{"entries":{"pod":"1-2"}}"#, &pods, None),
    ] {
        let exclusive = cpus::ExclusiveCpus::read(state, pods).ok();
        let text = exclusive.map(|exclusive| {
            assert_eq!(exclusive.malformed, []);
            let all = exclusive.pods.iter().map(|it| {
                assert!(it.managed_by_kubelet);
                format!("{}/{} {} {}", it.namespace, it.name, it.uid, it.cpuset)
            });
            all.collect::<Vec<_>>().join(" ")
        });
        assert_eq!(text.as_deref(), wanted, "{state}");
    }
    // Koordinator's own case: a pod of class LSR without CPUs from the scheduler has those from the kubelet.
    let mut case = Case::new();
    case.pods = vec![pod("pod9", "u", "LSR", "")];
    case.state = r#"{"entries":{"u":{"a":"1","b":"x-"}}}"#;
    let report = case.report().unwrap();
    assert!(report.annotations[annotations::NODE_CPU_ALLOCS].contains(r#""cpuset":"1""#));
    let bad = &report.malformed[0];
    assert_eq!(
        (&*bad.field, &*bad.value),
        ("cpu_manager_state: entries.u.b", "x-")
    );
    case.state = "{";
    let error = case.report().unwrap_err().to_string();
    assert!(error.starts_with("cpu_manager_state"), "{error}");
}

/// Upstream's `TestGetStaticCPUManagerPolicyReservedCPUs`, and configurations that its kubelet rejects.
#[test]
fn kubelet_reserved_returns_cpus_of_static_policy() {
    let topology = cpus::topology(&twelve_cpu_machine());
    for (config, wanted) in [
        (
            json!({"evictionHard": {"imagefs.available": "15%", "memory.available": "300Mi"},
                "systemReserved": {"cpu": "200m", "memory": "2732Mi"},
                "kubeReserved": {"cpu": "1800m", "memory": "2732Mi"}}),
            Ok("0,6"),
        ),
        (json!({"reservedSystemCPUs": "1-4"}), Ok("1-4")),
        (json!({"systemReserved": {"cpu": "2100m"}}), Ok("0,2,6")),
        (json!({}), Err("kubeletconfig.kubeReserved")),
        (
            json!({"kubeReserved": {"cpu": "13"}}),
            Err("kubeletconfig.kubeReserved"),
        ),
        (
            json!({"reservedSystemCPUs": "11-12"}),
            Err("kubeletconfig.reservedSystemCPUs"),
        ),
    ] {
        let mut settings = config.clone();
        settings["cpuManagerPolicy"] = json!("static");
        let reserved = cpus::kubelet_reserved(&topology, &kubelet(settings));
        let reserved = reserved
            .map(|cpus| cpus.to_string())
            .map_err(|error| error.field);
        let expected = wanted.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(reserved, expected, "{config}");
    }
}

/// Upstream's `Test_getNodeReserved`.
#[test]
fn reservations_come_to_cpus() {
    let topology = cpus::topology(&twelve_cpu_machine());
    for (text, wanted) in [
        (None, "{}"),
        (Some("{}"), "{}"),
        (
            Some(r#"{"resources":{"cpu":"2"}}"#),
            r#"{"resources":{"cpu":"2"},"reservedCPUs":"0,6"}"#,
        ),
        (
            Some(r#"{"resources":{"cpu":"2500m"}}"#),
            r#"{"resources":{"cpu":"2500m"},"reservedCPUs":"0,2,6"}"#,
        ),
        (
            Some(r#"{"resources":{"cpu":"-2"}}"#),
            r#"{"resources":{"cpu":"-2"}}"#,
        ),
        (
            Some(r#"{"reservedCPUs":"0-1"}"#),
            r#"{"reservedCPUs":"0-1"}"#,
        ),
        (Some(r#"{"reservedCPUs":"-1"}"#), "{}"),
        (
            Some(r#"{"resources":{"cpu":"10"},"reservedCPUs":"0-1"}"#),
            r#"{"resources":{"cpu":"10"},"reservedCPUs":"0-1"}"#,
        ),
        // Not upstream's: other fields of the annotation are kept.
        (
            Some(r#"{"reservedCPUs":"1,0","applyPolicy":"ReservedCPUsOnly"}"#),
            r#"{"reservedCPUs":"0-1","applyPolicy":"ReservedCPUsOnly"}"#,
        ),
        (
            Some(r#"{"resources":{"cpu":"13"}}"#),
            r#"{"resources":{"cpu":"13"}}"#,
        ),
    ] {
        let node = node(match text {
            Some(text) => {
                json!({"metadata": {"annotations": {annotations::NODE_RESERVATION: text}}})
            }
            None => json!({}),
        });
        let (said, _) = cpus::reservation(&topology, &node);
        assert_eq!(serde_json::to_string(&said).unwrap(), wanted, "{text:?}");
    }
}

/// Upstream's `Test_getTopologyPolicy`, and the attributes that accompany the deprecated name.
#[test]
fn policies_of_the_topology_manager() {
    for (policy, scope, wanted) in [
        ("", "", "None"),
        ("", "container", "None"),
        ("best-effort", "", "None"),
        (
            "single-numa-node",
            "container",
            "SingleNUMANodeContainerLevel",
        ),
        ("restricted", "container", "RestrictedContainerLevel"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("none", "container", "None"),
        ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("best-effort", "pod", "BestEffortPodLevel"),
        ("none", "pod", "None"),
        ("strict", "pod", "None"),
    ] {
        let mut case = Case::new();
        case.kubelet = Some(kubelet(json!({"cpuManagerPolicy": "none",
            "topologyManagerPolicy": policy, "topologyManagerScope": scope})));
        let report = case.report().unwrap();
        assert_eq!(report.policy, wanted, "{policy} {scope}");
        let malformed: Vec<_> = report
            .attributes
            .iter()
            .map(|it| it.value.as_str())
            .collect();
        if policy.is_empty() || scope.is_empty() || policy == "strict" {
            assert_eq!(malformed, [""; 0], "{policy} {scope}");
        } else {
            assert_eq!(malformed, [policy, scope]);
        }
        assert_eq!(report.malformed.len(), usize::from(policy == "strict"));
    }
}

/// Upstream's `Test_calTopologyZoneList`.
#[test]
fn huge_pages_are_no_memory() {
    let mut case = Case::new();
    case.machine = machine(&[(0, 0, 0), (1, 0, 0)], &[157_286_400]);
    let plain = "node-0 Node cpu=2 hugepages-1Gi=0 hugepages-2Mi=0 memory=150Gi";
    assert_eq!(zone_text(&case.report().unwrap().zones), [plain]);
    let pages = |size_kib| HugePages {
        size_kib,
        total: 30,
        free: 0,
    };
    // 64 KiB pages are not reported in zones.
    case.machine.numa[0].huge_pages = vec![pages(64), pages(2048), pages(1 << 20)];
    assert_eq!(zone_text(&case.report().unwrap().zones), [plain]);
    case.huge_pages = true;
    let zones = case.report().unwrap().zones;
    assert_eq!(
        zone_text(&zones),
        ["node-0 Node cpu=2 hugepages-1Gi=30Gi hugepages-2Mi=60Mi memory=122820Mi"]
    );
    assert_eq!(zones[0].resources[3].capacity.value(), 128_786_104_320);

    case.machine.numa[0].memory = None;
    let error = case.report().unwrap_err().to_string();
    assert!(error.contains("NUMA node 0"), "{error}");
    case.machine.cpus.clear();
    assert!(
        case.report()
            .unwrap_err()
            .to_string()
            .contains("no online CPU")
    );
}

/// Upstream's `Test_applyNUMAReservationToZoneResources` and `getNodeKubeletReservedResources`.
#[test]
fn each_numa_node_keeps_back_its_part() {
    let reserved = |cpus: u32, kib: &[u64], kept: (&str, &str), of: (&str, &str), label: &str| {
        let count = u32::try_from(kib.len()).unwrap();
        let places: Vec<_> = (0..cpus * count).map(|cpu| (cpu, 0, cpu / cpus)).collect();
        let mut case = Case::new();
        case.pods.clear();
        case.machine = machine(&places, kib);
        case.node = node(json!({
            "metadata": {"labels": {labels::NODE_NUMA_RESERVATION: label}},
            "status": {"capacity": {"cpu": of.0, "memory": of.1},
                "allocatable": {"cpu": kept.0, "memory": kept.1}}}));
        let report = case.report().unwrap();
        let text = zone_text(&report.zones);
        assert!(text.iter().all(|it| it[6..] == text[0][6..]), "{text:?}");
        let copied = &report.labels[labels::NODE_NUMA_RESERVATION];
        assert_eq!(copied.as_deref(), (!label.is_empty()).then_some(label));
        text[0].replace(" hugepages-1Gi=0 hugepages-2Mi=0", "")
    };
    let kib = 128_849_018_880 / 1024;
    let two = |label| reserved(48, &[kib, kib], ("92", "238Gi"), ("96", "240Gi"), label);
    assert_eq!(
        two("true"),
        "node-0 Node cpu=48/46/46 memory=120Gi/119Gi/119Gi"
    );
    assert_eq!(two("false"), "node-0 Node cpu=48 memory=120Gi");
    assert_eq!(two(""), "node-0 Node cpu=48 memory=120Gi");
    let kib = 85_899_345_920 / 1024;
    assert_eq!(
        reserved(
            32,
            &[kib, kib, kib],
            ("90", "237Gi"),
            ("96", "240Gi"),
            "true"
        ),
        "node-0 Node cpu=32/30/30 memory=80Gi/79Gi/79Gi"
    );
    assert_eq!(
        reserved(1, &[1 << 20], ("0", "0"), ("4", "8Gi"), "true"),
        "node-0 Node cpu=1/0/0 memory=1Gi/0/0"
    );
    // Nothing is reserved, and the capacity is unknown.
    for allocatable in [("1", "1Gi"), ("0", "0")] {
        let zone = reserved(1, &[1 << 20], ("1", "1Gi"), allocatable, "true");
        assert_eq!(zone, "node-0 Node cpu=1 memory=1Gi");
    }
}

/// Memory without CPUs, as with CXL: upstream reports no node at all. CPUs are reserved in nodes that have
/// some.
#[test]
fn numa_node_without_cpus_is_a_zone() {
    let mut case = Case::new();
    case.machine.numa.push(NumaNode {
        id: 10,
        ..case.machine.numa[0].clone()
    });
    case.node = node(json!({
        "metadata": {"labels": {labels::NODE_NUMA_RESERVATION: "true"}},
        "status": {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "6"}}}));
    let zones = zone_text(&case.report().unwrap().zones);
    // Sorted by name, as upstream sorts.
    assert!(zones[1].starts_with("node-1 Node cpu=4/3/3 "), "{zones:?}");
    assert!(zones[2].starts_with("node-10 Node cpu=0 "), "{zones:?}");
}

fn object(value: Value) -> TopologyV1Alpha2 {
    serde_json::from_value(value).unwrap()
}

/// Returns the object after a merge patch.
fn patched(object: &TopologyV1Alpha2, patch: &Value) -> TopologyV1Alpha2 {
    fn merge(at: &mut Value, patch: &Value) {
        let Some(fields) = patch.as_object() else {
            *at = patch.clone();
            return;
        };
        if !at.is_object() {
            *at = json!({});
        }
        for (key, value) in fields {
            if value.is_null() {
                at.as_object_mut().unwrap().remove(key);
            } else {
                merge(&mut at[key], value);
            }
        }
    }
    let mut value = serde_json::to_value(object).unwrap();
    merge(&mut value, patch);
    self::object(value)
}

#[test]
fn created_object_has_the_full_report() {
    let mut case = Case::new();
    case.node.numa_reservation = Some("false".to_owned());
    case.kubelet = Some(kubelet(json!({"cpuManagerPolicy": "none",
        "topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"})));
    let report = case.report().unwrap();
    let created = TopologyV1Alpha2::created("test", "node-uid", &report, Mode::Auto);
    let value = serde_json::to_value(&created).unwrap();
    assert_eq!(value["apiVersion"], "topology.node.k8s.io/v1alpha2");
    assert_eq!(value["kind"], "NodeResourceTopology");
    let metadata = &value["metadata"];
    assert_eq!(
        metadata["labels"],
        json!({"app.kubernetes.io/managed-by": "Koordinator",
            "node.koordinator.sh/enable-numa-reservation": "false"})
    );
    assert_eq!(
        metadata["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Node", "name": "test", "uid": "node-uid",
            "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(value["topologyPolicies"], json!(["RestrictedPodLevel"]));
    assert_eq!(value["attributes"].as_array().unwrap().len(), 2);
    for mode in [Mode::Auto, Mode::Koordinator, Mode::AnnotationsOnly] {
        assert_eq!(created.changes(&report, mode), None, "{mode:?}");
    }
    let older = TopologyV1Alpha1::created("test", "node-uid", &report, Mode::Koordinator);
    let value = serde_json::to_value(&older).unwrap();
    assert_eq!(value["apiVersion"], "topology.node.k8s.io/v1alpha1");
    let bare = TopologyV1Alpha2::created("test", "node-uid", &report, Mode::AnnotationsOnly);
    let value = serde_json::to_value(&bare).unwrap();
    assert_eq!(
        (&value["zones"], &value["topologyPolicies"]),
        (&json!([]), &json!(["None"]))
    );
    assert_eq!(bare.changes(&report, Mode::AnnotationsOnly), None);
    assert!(bare.changes(&report, Mode::Auto).unwrap()["zones"].is_array());
}

/// Upstream's `Test_nodeTopology_isChanged`: an annotation that differs, is new or is missing is
/// written, the same JSON in another order is not; and upstream's cases of merging zones.
#[test]
fn changes_contains_only_differences() {
    let report = Case::new().report().unwrap();
    let created = TopologyV1Alpha2::created("test", "node-uid", &report, Mode::Koordinator);
    let changes = |edit: &dyn Fn(&mut Value)| {
        let mut value = serde_json::to_value(&created).unwrap();
        value["metadata"]["resourceVersion"] = json!("7");
        edit(&mut value);
        let stored = object(value);
        let patch = stored.changes(&report, Mode::Koordinator);
        if let Some(patch) = &patch {
            assert_eq!(patch["metadata"]["resourceVersion"], "7");
            let settled = patched(&stored, patch);
            assert_eq!(settled.changes(&report, Mode::Koordinator), None, "{patch}");
        }
        patch
    };
    assert_eq!(changes(&|_| {}), None);
    let other_order =
        r#"[{"cpuset":"0-2","socket":0,"node":0},{"node":1,"socket":1,"cpuset":"6-7"}]"#;
    assert_eq!(
        changes(&|it| it["metadata"]["annotations"][SERVICES] = json!(other_order)),
        None
    );
    for text in [json!("[]"), json!("{"), Value::Null] {
        let patch = changes(&|it| match &text {
            Value::Null => drop(
                it["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .remove(BATCH),
            ),
            text => it["metadata"]["annotations"][BATCH] = text.clone(),
        });
        let notes = patch.unwrap()["metadata"]["annotations"].clone();
        assert_eq!(notes, json!({BATCH: report.annotations[BATCH]}), "{text}");
    }
    // A label that the node no longer has is removed; upstream rewrites it endlessly.
    let key = labels::NODE_NUMA_RESERVATION;
    let patch = changes(&|it| it["metadata"]["labels"][key] = json!("true")).unwrap();
    assert_eq!(patch["metadata"]["labels"], json!({key: null}));
    let patch = changes(&|it| it["topologyPolicies"] = json!([])).unwrap();
    assert_eq!(patch["topologyPolicies"], json!(["None"]));
    // An amount, one of the three numbers of it, a type, an expired zone.
    for edit in [
        &(|it: &mut Value| it["zones"][0]["resources"][0]["allocatable"] = json!("2"))
            as &dyn Fn(&mut Value),
        &|it| it["zones"][0]["resources"][0]["available"] = json!("2"),
        &|it| it["zones"][1]["resources"][3]["capacity"] = json!("much"),
        &|it| it["zones"][0]["type"] = json!(""),
        &|it| it["zones"][0]["name"] = json!("fake-name"),
        &|it| it["zones"] = json!([]),
        &|it| it["zones"][1]["resources"] = Value::Null,
    ] {
        let patch = changes(edit).unwrap();
        assert_eq!(patch.as_object().unwrap().len(), 2, "{patch}");
        let zones: Vec<Zone> = serde_json::from_value(patch["zones"].clone()).unwrap();
        let named: Vec<Zone> = zones
            .into_iter()
            .filter(|zone| zone.type_ == "Node")
            .collect();
        assert_eq!(named, report.zones);
    }
    // The same amounts in other words, and another order.
    assert_eq!(
        changes(&|it| {
            it["zones"][0]["resources"][0]["allocatable"] = json!("4000m");
            it["zones"].as_array_mut().unwrap().reverse();
        }),
        None
    );
}

/// Two kinds of content that upstream loses: other writers' fields of resources, and of the zone.
#[test]
fn changes_keeps_content_of_other_writers() {
    let report = Case::new().report().unwrap();
    let created = TopologyV1Alpha2::created("test", "node-uid", &report, Mode::Koordinator);
    let mut value = serde_json::to_value(&created).unwrap();
    let batch = json!({"name": "kubernetes.io/batch-cpu",
        "capacity": "3000", "allocatable": "2000", "available": "1000"});
    let gpu = json!({"name": "koordinator.sh/gpu",
        "capacity": "100", "allocatable": "100", "available": "100"});
    let costs = json!([{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]);
    let zone = &mut value["zones"][0];
    zone["costs"] = costs.clone();
    zone["attributes"] = json!([{"name": "die", "value": "3"}]);
    zone["parent"] = json!("package-0");
    zone["newField"] = json!({"a": 1});
    let resources = zone["resources"].as_array_mut().unwrap();
    resources[0]["allocatable"] = json!("1");
    resources.extend([batch.clone(), gpu.clone()]);
    let package = json!({"name": "package-0", "type": "Package"});
    value["zones"].as_array_mut().unwrap().push(package.clone());
    value["attributes"] = json!([{"name": "nodeTopologyPodsFingerprintMethod", "value": "all"}]);
    value["metadata"]["annotations"]["other"] = json!("note");
    let stored = object(value);
    let patch = stored.changes(&report, Mode::Koordinator).unwrap();
    assert!(patch.get("attributes").is_none());
    let after = serde_json::to_value(patched(&stored, &patch)).unwrap();
    assert_eq!(after["metadata"]["annotations"]["other"], "note");
    assert_eq!(after["attributes"][0]["value"], "all");
    let zone = &after["zones"][0];
    assert_eq!(
        (&zone["costs"], &zone["parent"]),
        (&costs, &json!("package-0"))
    );
    assert_eq!(zone["attributes"][0]["value"], "3");
    assert_eq!(zone["newField"]["a"], 1);
    let names: Vec<&str> = zone["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    let sorted = [
        "cpu",
        "hugepages-1Gi",
        "hugepages-2Mi",
        "koordinator.sh/gpu",
        "kubernetes.io/batch-cpu",
        "memory",
    ];
    assert_eq!(names, sorted);
    assert_eq!(
        (&zone["resources"][3], &zone["resources"][4]),
        (&gpu, &batch)
    );
    assert_eq!(zone["resources"][0]["allocatable"], "4");
    assert_eq!(after["zones"][2], package);
}

#[test]
fn an_exporters_zones_are_left_alone() {
    let mut case = Case::new();
    case.kubelet = Some(kubelet(json!({"cpuManagerPolicy": "none",
        "topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"})));
    let report = case.report().unwrap();
    let exporter = json!({"metadata": {"name": "test"}, "topologyPolicies": ["RestrictedPodLevel"],
        "zones": [{"name": "node-0", "type": "Node", "resources": [
            {"name": "cpu", "capacity": "4", "allocatable": "3", "available": "1"}]}],
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"}]});
    let stored = object(exporter.clone());
    let patch = stored.changes(&report, Mode::Auto).unwrap();
    assert_eq!(
        patch.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["metadata"]
    );
    assert_eq!(patched(&stored, &patch).changes(&report, Mode::Auto), None);
    // In mode `koordinator` the zones are written, and the exporter's other content is kept.
    let patch = stored.changes(&report, Mode::Koordinator).unwrap();
    assert_eq!(patch["zones"].as_array().unwrap().len(), 2);
    assert_eq!(
        patch["attributes"],
        json!([{"name": "topologyManagerPolicy", "value": "restricted"},
            {"name": "nodeTopologyPodsFingerprint", "value": "pfp0v001ef46db3751d8e999"},
            {"name": "topologyManagerScope", "value": "pod"}])
    );
    // The older version has no attributes: a patch must not contain what the server drops.
    let older: TopologyV1Alpha1 = serde_json::from_value(exporter.clone()).unwrap();
    assert!(
        TopologyV1Alpha2::from(older)
            .changes(&report, Mode::Koordinator)
            .unwrap()
            .get("attributes")
            .is_none()
    );
    let mut old = exporter;
    old["attributes"] = json!([]);
    assert!(
        object(old.clone())
            .changes(&report, Mode::Auto)
            .unwrap()
            .get("zones")
            .is_some()
    );
    old["metadata"]["annotations"] = json!({"topology.node.k8s.io/fingerprint": "pfp0v001"});
    assert!(
        object(old)
            .changes(&report, Mode::Auto)
            .unwrap()
            .get("zones")
            .is_none()
    );
}

/// koordlet and the exporter of a kubelet without resource managers, with and without a fingerprint.
#[test]
fn exporter_and_koordlet_keep_each_others_zones() {
    let mut case = Case::new();
    case.kubelet = Some(kubelet(json!({"cpuManagerPolicy": "none"})));
    let report = case.report().unwrap();
    let amount = |name: &str, capacity: &str, allocatable: &str| {
        json!({"name": name, "capacity": capacity, "allocatable": allocatable,
            "available": allocatable})
    };
    let zone = |number: u32| {
        json!({"name": format!("node-{number}"), "type": "Node", "resources": [
            amount("cpu", "4", "3500m"), amount("memory", "8Gi", "7Gi")]})
    };
    for fingerprint in [Some("pfp0v001ef46db3751d8e999".to_owned()), None] {
        let exported = koord_model::export::Report {
            zones: serde_json::from_value(json!([zone(0), zone(1)])).unwrap(),
            attributes: koord_model::export::attributes(
                koord_model::alignment::Policy::None,
                koord_model::alignment::Scope::Container,
                fingerprint,
            ),
            policy: "None".to_owned(),
        };
        // koordlet writes first, then the exporter, which runs in the same agent.
        let created = TopologyV1Alpha2::created("test", "node-uid", &report, Mode::Auto);
        let mut value = serde_json::to_value(created).unwrap();
        let fields = |value: &Value| serde_json::from_value(value.clone()).unwrap();
        let merged = koord_model::export::merged(&fields(&value), &exported);
        for (key, part) in serde_json::to_value(&merged).unwrap().as_object().unwrap() {
            value[key] = part.clone();
        }
        value["metadata"]["managedFields"] = json!([{"manager": crate::exporter::FIELD_MANAGER,
            "operation": "Update", "apiVersion": "topology.node.k8s.io/v1alpha2",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:zones": {}, "f:attributes": {}}}]);
        let stored = object(value.clone());
        assert_eq!(stored.changes(&report, Mode::Auto), None);
        // Later patches of koordlet leave the zones unchanged, and the exporter has nothing to repair.
        value["metadata"]["annotations"] = json!({});
        let stored = object(value);
        let patch = stored.changes(&report, Mode::Auto).unwrap();
        assert!(patch.get("zones").is_none(), "{patch}");
        let after = serde_json::to_value(patched(&stored, &patch)).unwrap();
        let remerged = koord_model::export::merged(&fields(&after), &exported);
        assert!(koord_model::export::is_same(&fields(&after), &remerged));
    }
}

#[test]
fn modes_have_names() {
    for (name, mode) in [
        ("auto", Mode::Auto),
        ("koordinator", Mode::Koordinator),
        ("annotations-only", Mode::AnnotationsOnly),
    ] {
        assert_eq!(name.parse(), Ok(mode));
    }
    let error = "nfd".parse::<TopologyMode>().unwrap_err().to_string();
    assert!(
        error.contains("node-topology-mode") && error.contains("\"nfd\""),
        "{error}"
    );
}
