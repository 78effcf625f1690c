//! Hints and allocations on one node that already has a pod.

use super::super::allocate::{Assumptions, Plan};
use super::*;
use koord_model::numa::NumaMask;
use koord_scheduler::state::NodeInfo;

/// A running pod and a new one, on a machine of 2 x 26 cores with 2 threads each.
struct ShareCase {
    ratio: &'static str,
    taken: &'static str,
    zones: [Value; 2],
    wanted: Value,
    bind: Option<BindPolicy>,
}

impl ShareCase {
    fn with_plan<T>(
        &self,
        answer: impl FnOnce(&Numa, &NodeAllocations, &Plan<'_>, &ResourceTable) -> T,
    ) -> T {
        let table = ResourceTable::new();
        let machine = CpuLayout([2, 1, 26, 2]);
        let mut topology = machine.topology("n", json!([]), json!({}));
        let mut object = topology.new_as::<NodeResourceTopology>().cloned().unwrap();
        for zone in &mut object.spec.zones {
            for (name, amount) in [("memory", "128Gi"), ("hugepages-1Gi", "4Gi")] {
                zone.resources.retain(|resource| resource.name != name);
                zone.resources.push(koord_api::topology::ResourceInfo {
                    name: name.to_owned(),
                    allocatable: amount.parse().unwrap(),
                    ..koord_api::topology::ResourceInfo::default()
                });
            }
        }
        topology.new = Arc::new(object.clone());
        let key = annotations::NODE_RESOURCE_AMPLIFICATION_RATIO;
        let ratio = json!({key: format!(r#"{{"cpu":{}}}"#, self.ratio)});
        let (node, _) = NodeInfo::new(machine.node("n", json!({}), ratio, 104), None, &table);
        let (report, _) = Report::new(&object.into(), &table, false);
        let (node_topology, _) = NodeTopology::new(&node, Arc::new(report), &table);

        let mut zones = Vec::new();
        for (id, resources) in self.zones.iter().enumerate() {
            zones.push(json!({"node": id, "resources": resources}));
        }
        let status = json!({"cpuset": self.taken, "numaNodeResources": zones}).to_string();
        let annotations = json!({annotations::RESOURCE_STATUS: status});
        let running = pod(
            "there",
            "1",
            json!({"metadata": {"annotations": annotations}}),
        );
        let running = PodInfo::new(Arc::new(running), &table).unwrap();
        let mut node_allocations = NodeAllocations::default();
        node_allocations.set_topology(Some(node_topology));
        if let Some(allocation) = Allocation::read(&running, &table).unwrap() {
            node_allocations.put(&running.uid, allocation);
        }
        let containers = json!([{"name": "c", "resources": {"requests": self.wanted}}]);
        let new_pod = pod("comes", "1", json!({"spec": {"containers": containers}}));
        let new_pod = PodInfo::new(Arc::new(new_pod), &table).unwrap();
        let plugin = Numa {
            last_change: TopologyChange::Nothing,
            settings: PerProfile::new(Args::default().settings().unwrap()),
            reports: FxHashMap::default(),
            allocations: Vec::new(),
            plain: Vec::new(),
            all_policies: false,
            reported: ReportedProblems::default(),
        };
        let incoming = NumaPod::new(&new_pod, plugin.settings.first(), &table)
            .unwrap()
            .unwrap();
        let plan = Plan {
            incoming: &incoming,
            node_topology: node_allocations.node_topology.as_ref().unwrap(),
            bind: self.bind.map(|bind| (bind, true)),
            policy: Some(NumaPolicyKind::BestEffort),
        };
        answer(&plugin, &node_allocations, &plan, &table)
    }

    /// Returns `cpuset; cpu of 0, cpu of 1`, or the rejection reason.
    fn allocation(&self, mask: u64) -> String {
        self.with_plan(|plugin, node_allocations, plan, table| {
            let sources = allocate::sources(node_allocations, plan, &Assumptions::default());
            let mask = Some(NumaMask(mask));
            match allocate::serve(plan, plugin.settings.first(), &sources, mask, table) {
                Ok(given) => {
                    let zones = given
                        .zones
                        .iter()
                        .map(|(id, zone)| format!("{id}: {}", zone.get(CPU)));
                    format!("{}; {}", given.cpus, zones.collect::<Vec<_>>().join(", "))
                }
                Err(rejection) => rejection.message(),
            }
        })
    }

    /// Returns the hints per resource, with the preferred ones marked.
    fn hints(&self) -> String {
        self.with_plan(|plugin, node_allocations, plan, table| {
            let assumptions = Assumptions::default();
            let sources = allocate::sources(node_allocations, plan, &assumptions);
            let max_free = allocate::max_free(node_allocations, plan.node_topology, &assumptions);
            let offers = allocate::hints(plan, plugin.settings.first(), &sources, &max_free, table);
            let list = offers.iter().map(|(name, hints)| {
                let hints = hints.iter().flatten().map(|hint| {
                    let mark = if hint.preferred { "!" } else { "" };
                    format!(" {}{mark}", hint.mask.unwrap_or_default())
                });
                format!("{name}:{}", hints.collect::<String>())
            });
            list.collect::<Vec<_>>().join("; ")
        })
    }
}

fn none() -> [Value; 2] {
    [json!({}), json!({})]
}

fn cpus(a: u32, b: u32) -> [Value; 2] {
    [a, b].map(|cpus| json!({"cpu": cpus.to_string()}))
}

fn cpu(cpus: &str) -> Value {
    json!({"cpu": cpus})
}

const WHOLE: Option<BindPolicy> = Some(BindPolicy::FullPCpus);
const THREADS: Option<BindPolicy> = Some(BindPolicy::SpreadByPCpus);

#[test]
fn pod_across_numa_nodes_is_split_evenly() {
    let gpu = json!({"cpu": "4", "koordinator.sh/gpu-memory": "10Gi"});
    #[rustfmt::skip]
    let rows = [
        ("a resource no NUMA node has", "1", "", none(), gpu, None, 3, "; 0: 2000, 1: 2000"),
        ("too much", "1", "", none(), cpu("108"), None, 3, "Insufficient NUMA cpu"),
        ("cores", "1", "", none(), cpu("4"), WHOLE, 3, "0-1,52-53; 0: 2000, 1: 2000"),
        ("cores next to others", "1", "4-101", cpus(48, 50), cpu("4"), WHOLE, 3, "0-1,102-103; 0: 2000, 1: 2000"),
        ("no whole core", "1", "1,3,5,7-103", cpus(48, 52), cpu("4"), WHOLE, 1, "Insufficient NUMA cpu"),
        ("threads", "1", "", none(), cpu("4"), THREADS, 3, "0,2,52,54; 0: 2000, 1: 2000"),
        ("threads, uneven", "1", "1,3,5,7-101,103", cpus(48, 50), cpu("4"), THREADS, 3, "0,2,4,102; 0: 3000, 1: 1000"),
        ("threads, even", "1", "4-100", cpus(48, 49), cpu("4"), THREADS, 3, "0,2,101-102; 0: 2000, 1: 2000"),
        ("an odd number", "1", "1,3,5,7-97,103", cpus(48, 47), cpu("5"), THREADS, 3, "0,2,4,98,100; 0: 3000, 1: 2000"),
        ("too few cores", "1", "4-103", cpus(48, 52), cpu("4"), THREADS, 3, "Insufficient NUMA cpu"),
        ("amplified", "1.5", "", none(), cpu("4"), THREADS, 3, "0,2,52,54; 0: 2000, 1: 2000"),
        ("amplified, uneven", "1.5", "1,3,5,7-101", cpus(48, 50), cpu("4"), THREADS, 3, "0,2,4,102; 0: 3000, 1: 1000"),
        ("amplified, shared", "1.5", "0-49,52-101", cpus(50, 50), cpu("3.5"), None, 3, "; 0: 1750, 1: 1750"),
        ("amounts without CPUs", "1", "0-101", cpus(2, 2), cpu("4"), WHOLE, 2, "Insufficient NUMA cpu"),
    ];
    for (name, ratio, taken, zones, wanted, bind, mask, expected) in rows {
        let case = ShareCase {
            ratio,
            taken,
            zones,
            wanted,
            bind,
        };
        assert_eq!(case.allocation(mask), expected, "{name}");
    }
}

#[test]
fn pod_within_numa_nodes_gets_their_resources() {
    let gpu = json!({"cpu": "4", "koordinator.sh/gpu-memory": "10Gi"});
    let insufficient_cpu = "Insufficient NUMA cpu";
    #[rustfmt::skip]
    let rows = [
        ("a resource no NUMA node has", "1", "", none(), gpu, None, 1, "; 0: 4000"),
        ("too much", "1", "", none(), cpu("54"), None, 1, insufficient_cpu),
        ("cores", "1", "", none(), cpu("4"), WHOLE, 1, "0-3; 0: 4000"),
        ("cores next to others", "1", "4-103", cpus(48, 52), cpu("4"), WHOLE, 1, "0-3; 0: 4000"),
        ("no whole core", "1", "1,3,5,7-103", cpus(48, 52), cpu("4"), WHOLE, 1, insufficient_cpu),
        ("threads", "1", "", none(), cpu("4"), THREADS, 1, "0,2,4,6; 0: 4000"),
        ("threads next to others", "1", "1,3,5,7-103", cpus(48, 52), cpu("4"), THREADS, 1, "0,2,4,6; 0: 4000"),
        ("too few cores", "1", "4-103", cpus(48, 52), cpu("4"), THREADS, 1, insufficient_cpu),
        ("amplified", "1.5", "", none(), cpu("4"), THREADS, 1, "0,2,4,6; 0: 4000"),
        ("amplified, next to others", "1.5", "1,3,5,7-103", cpus(48, 52), cpu("4"), THREADS, 1, "0,2,4,6; 0: 4000"),
        ("amplified, shared", "1.5", "0-49,52-101", cpus(50, 50), cpu("4"), None, 1, insufficient_cpu),
        ("bound and shared pods there", "1", "0-43,53-96", cpus(48, 48), cpu("8"), WHOLE, 3,
            "44-47,98-101; 0: 4000, 1: 4000"),
    ];
    for (name, ratio, taken, zones, wanted, bind, mask, expected) in rows {
        let case = ShareCase {
            ratio,
            taken,
            zones,
            wanted,
            bind,
        };
        assert_eq!(case.allocation(mask), expected, "{name}");
    }
}

#[test]
fn only_numa_nodes_that_can_serve_are_offered() {
    let full = |memory: &str| json!({"cpu": "4", "memory": memory, "hugepages-1Gi": "4Gi"});
    let all = "cpu: 01! 10! 11";
    #[rustfmt::skip]
    let rows = [
        ("cores", "1", "", none(), cpu("4"), WHOLE, all),
        ("cores next to others", "1", "4-103", cpus(48, 52), cpu("4"), WHOLE, "cpu: 01!"),
        ("no whole core", "1", "1,3,5,7-103", cpus(48, 52), cpu("4"), WHOLE, "cpu:"),
        ("threads", "1", "", none(), cpu("4"), THREADS, all),
        ("threads next to others", "1", "1,3,5,7-103", cpus(48, 52), cpu("4"), THREADS, "cpu: 01!"),
        ("too few cores", "1", "4-103", cpus(48, 52), cpu("4"), THREADS, "cpu:"),
        ("shared, amplified", "1.5", "0-49,52-101", cpus(50, 50), cpu("4"), None, "cpu: 11!"),
        ("one resource lacks", "1", "", [full("120Gi"), full("120Gi")], full("4Gi"), None,
            "cpu:; memory:; hugepages-1Gi:"),
    ];
    for (name, ratio, taken, zones, wanted, bind, expected) in rows {
        let case = ShareCase {
            ratio,
            taken,
            zones,
            wanted,
            bind,
        };
        assert_eq!(case.hints(), expected, "{name}");
    }
}
