//! Upstream's test tables of node scores.

use super::*;

/// A node, in units of cores and GiB.
struct ScoredNode {
    name: &'static str,
    /// CPU in the Node object; amplified.
    cpu: u32,
    memory: u32,
    ratio: f64,
    labels: Value,
    machine: Option<(CpuLayout, u32)>,
}

impl ScoredNode {
    /// Returns a node with `zones` NUMA nodes, one per socket, that share everything evenly.
    fn split(name: &'static str, cpu: u32, memory: u32, zones: u32, policy: &str) -> Self {
        Self {
            name,
            cpu,
            memory,
            ratio: 1.0,
            labels: json!({"node.koordinator.sh/numa-topology-policy": policy}),
            machine: Some((CpuLayout([zones, 1, cpu / zones / 2, 2]), memory / zones)),
        }
    }

    fn apply(&self, engine: &mut Engine) {
        let key = "node.koordinator.sh/resource-amplification-ratio";
        let value = json!({
            "metadata": {"name": self.name, "uid": self.name, "labels": self.labels,
                "annotations": {key: format!(r#"{{"cpu":{}}}"#, self.ratio)}},
            "status": {"allocatable": {"cpu": self.cpu.to_string(), "pods": "110",
                "memory": format!("{}Gi", self.memory)}}
        });
        let node: Node = serde_json::from_value(value).unwrap();
        engine.node_applied(Arc::new(node), now());
        let Some((machine, gib)) = self.machine else {
            return;
        };
        let mut change = machine.topology(self.name, json!([]), json!({}));
        let mut object = change.new_as::<NodeResourceTopology>().cloned().unwrap();
        let memory: Quantity = format!("{gib}Gi").parse().unwrap();
        for resource in object.spec.zones.iter_mut().flat_map(|z| &mut z.resources) {
            if resource.name == "memory" {
                resource.allocatable = memory;
            }
        }
        change.new = Arc::new(object);
        engine.object_changed(&change, now());
    }
}

fn sized_pod(name: &str, cpu: u32, memory: u32, bound: bool) -> Pod {
    let requests = json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")});
    let containers = json!([{"name": "c", "resources": {"requests": requests}}]);
    let change = json!({"spec": {"containers": containers}});
    match bound {
        true => serde_json::from_value(with(
            serde_json::to_value(lsr(name, "1", "")).unwrap(),
            change,
        ))
        .unwrap(),
        false => pod(name, "1", change),
    }
}

/// Adds a running pod. If it is bound, it has the first CPUs of the machine; if `zone`, its requests are
/// allocated on NUMA node 0.
fn apply_running(engine: &mut Engine, name: &str, node: &str, of: (u32, u32, bool), zone: bool) {
    let (cpu, memory, bound) = of;
    let mut pod = sized_pod(name, cpu, memory, bound);
    let mut status = json!({});
    if bound {
        status["cpuset"] = json!(format!("0-{}", cpu - 1));
    }
    if zone {
        let resources = json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")});
        status["numaNodeResources"] = json!([{"node": 0, "resources": resources}]);
    }
    let all = pod.metadata.annotations.get_or_insert_default();
    if bound || zone {
        all.insert(annotations::RESOURCE_STATUS.to_owned(), status.to_string());
    }
    pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
    engine.pod_applied(Arc::new(pod), now());
}

/// Returns the plugin's raw score of each node, by name, or the rejection reason.
fn scores(engine: &mut Engine, pod: Pod) -> String {
    let uid = pod.metadata.uid.clone().unwrap();
    if let Err(message) = try_bind(engine, pod) {
        return reason(&message);
    }
    let table = engine
        .telemetry
        .decision(&uid)
        .unwrap()
        .table
        .clone()
        .unwrap();
    let mut all: Vec<String> = Vec::new();
    for node in &table.ranking {
        let own = node.scores.iter().find(|score| score.plugin == NAME);
        all.push(format!("{} {}", node.node, own.map_or(0, |own| own.raw)));
    }
    all.sort();
    all.join(", ")
}

fn strategy(kind: &str, names: &[&str]) -> Value {
    let resources = names.iter().map(|name| json!({"name": name, "weight": 1}));
    json!({"scoringStrategy": {"type": kind, "resources": resources.collect::<Value>()}})
}

const BOTH: [&str; 2] = ["cpu", "memory"];

#[test]
fn by_the_numa_nodes_that_would_be_used() {
    let single = "SingleNUMANode";
    let pair = |policy: &str| {
        vec![
            ScoredNode::split("n1", 104, 256, 2, policy),
            ScoredNode::split("n2", 64, 128, 1, policy),
        ]
    };
    let three = || ["n1", "n2", "n3"].map(|name| ScoredNode::split(name, 104, 256, 2, single));
    let shared = [(4, 8), (8, 32), (32, 40)];
    let bound = [(4, 8), (8, 32), (16, 40)];
    type Row<'a> = (
        &'a str,
        Vec<ScoredNode>,
        &'a [(u32, u32)],
        bool,
        Pod,
        &'a str,
    );
    #[rustfmt::skip]
    let rows: Vec<Row<'_>> = vec![
        ("single", pair(single), &[], false, sized_pod("p", 21, 40, false), "n1 35, n2 31"),
        ("restricted", pair("Restricted"), &[], false, sized_pod("p", 50, 40, false), "n1 63, n2 54"),
        ("next to others", three().into(), &shared, false, sized_pod("p", 4, 40, false), "n1 19, n2 19, n3 19"),
        ("bound, next to others", three().into(), &bound, true, sized_pod("p", 4, 40, true), "n1 23, n2 27, n3 34"),
    ];
    for (name, nodes, there, twice, pod, expected) in rows {
        let mut engine = engine(strategy("MostAllocated", &BOTH));
        for (at, node) in nodes.iter().enumerate() {
            node.apply(&mut engine);
            let Some((cpu, memory)) = there.get(at) else {
                continue;
            };
            apply_running(
                &mut engine,
                &format!("s{at}"),
                node.name,
                (*cpu, *memory, false),
                true,
            );
            if twice {
                apply_running(
                    &mut engine,
                    &format!("b{at}"),
                    node.name,
                    (*cpu, *memory, true),
                    true,
                );
            }
        }
        assert_eq!(scores(&mut engine, pod), expected, "{name}");
    }
}

#[test]
fn by_the_cpus_that_would_be_bound() {
    let bound_pod = |cpu: &str, policy: &str| {
        lsr(
            "p",
            cpu,
            &format!(r#"{{"preferredCPUBindPolicy":"{policy}"}}"#),
        )
    };
    let (full, spread) = ("FullPCPUs", "SpreadByPCPUs");
    let four = CpuLayout([2, 2, 4, 2]);
    let least = json!({"node.koordinator.sh/numa-allocate-strategy": "LeastAllocated"});
    let only = json!({"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"});
    let none = || json!({});
    #[rustfmt::skip]
    let rows = [
        ("asks for nothing", TWO, none(), pod("p", "0", json!({})), "n 0"),
        ("no topology", CpuLayout([0, 0, 0, 0]), none(), bound_pod("4", full), "1 node(s) invalid CPU Topology"),
        ("whole cores", TWO, none(), bound_pod("4", full), "n 25"),
        ("a NUMA node", TWO, none(), bound_pod("8", full), "n 50"),
        ("threads", TWO, none(), bound_pod("4", spread), "n 25"),
        ("beyond a socket", TWO, none(), bound_pod("16", full), "n 100"),
        ("a socket", four, none(), bound_pod("16", full), "n 50"),
        ("threads of a socket", TWO, none(), bound_pod("4", spread), "n 25"),
        ("the node's strategy", TWO, least, bound_pod("2", spread), "n 12"),
        ("the node's policy", TWO, only, bound_pod("8", spread), "n 50"),
    ];
    for (name, machine, labels, pod, expected) in rows {
        let mut engine = engine(strategy("MostAllocated", &["cpu"]));
        let cpus = if machine.cpus() == 0 {
            96
        } else {
            machine.cpus()
        };
        let allocatable = json!({"cpu": cpus.to_string(), "memory": "512Gi", "pods": "110"});
        let node = json!({"metadata": {"name": "n", "uid": "n", "labels": labels},
            "status": {"allocatable": allocatable}});
        let node: Node = serde_json::from_value(node).unwrap();
        engine.node_applied(Arc::new(node), now());
        if machine.cpus() > 0 {
            engine.object_changed(&machine.topology("n", json!([]), json!({})), now());
        }
        assert_eq!(scores(&mut engine, pod), expected, "{name}");
    }
}

#[test]
fn amplified_nodes_score_bound_cpus_amplified() {
    // (name, amplified cores, memory, ratio)
    let n1 = ("n1", 32, 40, 1.0);
    let n2 = ("n2", 128, 60, 2.0);
    let n3 = ("n3", 64, 40, 2.0);
    let (two, three) = ([n1, n2].to_vec(), [n1, n2, n3].to_vec());
    let (most, least) = ("MostAllocated", "LeastAllocated");
    let (shared, bound) = (Some(false), Some(true));
    #[rustfmt::skip]
    let rows = [
        ("shared", most, &three, false, None, false, "n1 32, n2 16, n3 26"),
        ("bound", most, &three, true, None, true, "n1 32, n2 19, n3 32"),
        ("shared next to bound", most, &two, true, bound, false, "n1 68, n2 35"),
        ("bound next to shared", most, &two, true, shared, true, "n1 68, n2 30"),
        ("bound next to bound", most, &two, true, bound, true, "n1 68, n2 38"),
        ("shared next to shared", least, &two, false, shared, false, "n1 31, n2 72"),
        ("shared next to bound", least, &two, true, bound, false, "n1 31, n2 64"),
        ("bound next to shared", least, &two, true, shared, true, "n1 31, n2 68"),
        ("bound next to bound", least, &two, true, bound, true, "n1 31, n2 61"),
    ];
    for (name, kind, nodes, topology, there, comes, expected) in rows {
        let mut engine = engine(strategy(kind, &BOTH));
        for (at, (node, cpu, memory, ratio)) in nodes.iter().enumerate() {
            let there_is = ScoredNode {
                name: node,
                cpu: *cpu,
                memory: *memory,
                ratio: *ratio,
                labels: json!({}),
                machine: topology.then_some((CpuLayout([2, 1, 8, 2]), 20)),
            };
            there_is.apply(&mut engine);
            if let Some(is_bound) = there {
                apply_running(
                    &mut engine,
                    &format!("t{at}"),
                    node,
                    (20, 4, is_bound),
                    false,
                );
            }
        }
        assert_eq!(
            scores(&mut engine, sized_pod("p", 8, 16, comes)),
            expected,
            "{kind}: {name}"
        );
    }
}

#[test]
fn within_a_node_the_strategy_chooses_the_numa_node() {
    let (single, restricted) = ("SingleNUMANode", "Restricted");
    #[rustfmt::skip]
    let rows = [
        ("fuller", single, 2, "MostAllocated", &[4, 40][..], "1"),
        ("emptier", single, 2, "LeastAllocated", &[4, 40], "0"),
        ("the only one", single, 2, "LeastAllocated", &[4, 52], "0"),
        ("fuller of four", restricted, 4, "MostAllocated", &[24, 23, 4, 8], "3"),
        ("emptier of four", restricted, 4, "LeastAllocated", &[24, 23, 4, 8], "2"),
    ];
    for (name, policy, zones, kind, taken, expected) in rows {
        let mut args = strategy("LeastAllocated", &BOTH);
        args["numaScoringStrategy"] = strategy(kind, &BOTH)["scoringStrategy"].clone();
        let mut engine = engine(args);
        ScoredNode::split("n", 104, 256, zones, policy).apply(&mut engine);
        for (zone, cpu) in taken.iter().enumerate() {
            let mut pod = sized_pod(&format!("t{zone}"), *cpu, 8, false);
            let resources = json!({"cpu": cpu.to_string(), "memory": "8Gi"});
            let status = json!({"numaNodeResources": [{"node": zone, "resources": resources}]});
            let all = pod.metadata.annotations.get_or_insert_default();
            all.insert(annotations::RESOURCE_STATUS.to_owned(), status.to_string());
            pod.spec.as_mut().unwrap().node_name = Some("n".to_owned());
            engine.pod_applied(Arc::new(pod), now());
        }
        let got = place(&mut engine, sized_pod("p", 4, 40, false));
        assert_eq!(got, format!("n {expected}: cpu 4, memory 40Gi"), "{name}");
    }
}
