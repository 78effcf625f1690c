//! Upstream's filter table, rewritten from its facts: five nodes, and the result of each pod on them.

use super::*;
use koord_model::resources::ResourceTable;
use koord_scheduler::state::PodInfo;

/// Parses requests in upstream's words: `nic` are devices that belong to NUMA nodes, `ext` is on the host,
/// `old` on node 2 only, `none` nowhere.
fn parse_requests(text: &str) -> Value {
    let pairs = text.split(", ").filter(|part| !part.is_empty());
    let pairs = pairs.map(|part| {
        let (amount, name) = part.split_once(' ').unwrap();
        let name = match name {
            "nic" => "vendor/nic1",
            "ext" => "namespace/extended",
            "old" => "vendor.com/old-nic-model",
            "none" => "vendor/notexistingnic",
            "huge" => "hugepages-2Mi",
            "disk" => "ephemeral-storage",
            name => name,
        };
        (name.to_owned(), json!(amount))
    });
    Value::Object(pairs.collect())
}

fn five_nodes() -> Vec<(ObjectChange, Value)> {
    let zone = |cpu: u32, memory: &str, huge: Option<&str>, nic: u32| {
        let mut zone =
            json!({"cpu": cpu.to_string(), "memory": memory, "vendor/nic1": nic.to_string()});
        if let Some(huge) = huge {
            zone["hugepages-2Mi"] = json!(huge);
        }
        zone
    };
    let pod_level = "SingleNUMANodePodLevel";
    let huge = Some("128Mi");
    let zones = json!({"node-0": zone(4, "8Gi", None, 10), "node-1": zone(8, "8Gi", None, 10)});
    let two = json!({"node-0": zone(2, "4Gi", huge, 5), "node-1": zone(4, "4Gi", huge, 2)});
    let three = json!({"node-0": zone(2, "4Gi", None, 5), "node-1": zone(4, "4Gi", None, 2)});
    let bad = json!({"node-0": zone(2, "4Gi", None, 5), "node-75": zone(4, "4Gi", None, 2)});
    let on_two = json!({"hugepages-2Mi": "256Mi", "vendor.com/old-nic-model": "4"});
    let all = [
        (SINGLE, &zones, json!({})),
        (SINGLE, &two, on_two),
        (pod_level, &three, json!({})),
        (pod_level, &bad, json!({})),
        (SINGLE, &zones, json!({"namespace/extended": "1"})),
    ];
    let all = all.into_iter().map(|(policy, zones, more)| {
        let mut allocatable = json!({"cpu": "50", "memory": "16Gi", "pods": "110",
            "vendor/nic1": "60", "ephemeral-storage": "1Ti"});
        for (name, amount) in more.as_object().unwrap() {
            allocatable[name] = amount.clone();
        }
        (report("n", policy, json!({}), zones.clone()), allocatable)
    });
    all.collect()
}

#[test]
fn filter() {
    // (QoS (g: limits are the requests, b: no limits), containers (as often as `*` says), node, what is
    // rejected: c a container, p the pod)
    let table = "\
        g | 2 cpu, 2Gi memory, 1 ext, 3 nic | 5 |
        g | 2 cpu, 2Gi memory, 1 ext | 5 |
        g | | 1 |
        g | 5 nic | 3 |
        g | 20 nic | 3 | p
        g | 5 nic | 2 |
        g | 20 nic | 1 | c
        g | 1 ext, 10 nic | 5 |
        b | 3 cpu, 3Gi memory, 11 nic | 2 | c
        b | 1 cpu, 1Gi memory, 6 nic | 3 | p
        b | 1 cpu, 1Gi memory, 5 nic | 3 |
        b | 19 cpu, 5Gi memory, 5 nic | 3 |
        b | 3 cpu, 3Gi memory, 5 nic | 2 |
        b | 5 cpu, 5Gi memory, 5 nic | 2 |
        g | 2 cpu, 2Gi memory | 1 |
        g | 8 cpu, 8Gi memory | 1 |
        g | 2 cpu, 2Gi memory, 0 huge, 3 nic | 1 |
        g | 2 cpu, 2Gi memory, 3 nic | 2 |
        g | 2 cpu, 2Gi memory, 64Mi huge, 3 nic | 2 |
        g | 4 cpu, 3 nic | 2 |
        g | 4 cpu, 11 nic | 2 | c
        g | 2 cpu, 6 nic | 3 | p
        g | 2 cpu, 5 nic | 3 |
        g | 20 cpu, 5 nic | 3 |
        g | 2 cpu, 5 nic | 2 |
        g | 4 cpu, 5 nic | 2 |
        g | 2Gi memory, 11 nic | 2 | c
        g | 2Gi memory, 6 nic | 3 | p
        g | 2Gi memory, 5 nic | 3 |
        g | 5Gi memory, 5 nic | 3 |
        g | 4Gi memory, 5 nic | 2 |
        g | 5Gi memory, 5 nic | 2 |
        b | 4 cpu, 4Gi memory, 11 nic | 2 | c
        b | 2 cpu, 2Gi memory, 6 nic | 3 | p
        b | 2 cpu, 2Gi memory, 5 nic | 3 |
        b | 20 cpu, 5Gi memory, 5 nic | 3 |
        b | 4 cpu, 4Gi memory, 5 nic | 2 |
        b | 5 cpu, 5Gi memory, 5 nic | 2 |
        g | 1 ext, 4 cpu, 3 nic | 5 |
        g | 2 cpu, 2Gi memory, 256Mi huge, 3 nic | 2 | c
        g | 9 cpu, 1Gi memory, 3 nic | 1 | c
        g | 2 cpu, 1Gi memory, 0 none | 1 |
        g*3 | 3 cpu, 1Gi memory, 0 none | 3 | p
        g | 1 cpu, 1Gi memory | 3 |
        g | 2 cpu, 4Gi memory | 4 |
        g*3 | 1 cpu, 1Gi memory, 0 none | 3 |
        g*3 | 1 cpu, 1Gi memory, 0 none | 4 | p
        g | 2 cpu, 2Gi memory, 64Mi huge, 3 old | 2 |
        g | 2 cpu, 2Gi memory, 100Mi disk | 2 |";
    let nodes = five_nodes();
    for row in table.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [qos, containers, at, wrong] = cells[..] else {
            panic!("{row}");
        };
        let (qos, times) = qos.split_once('*').unwrap_or((qos, "1"));
        let containers = vec![parse_requests(containers); times.parse().unwrap()];
        let mut value = pod("p", &containers);
        if qos == "b" {
            for container in value["spec"]["containers"].as_array_mut().unwrap() {
                container["resources"]["limits"] = json!({});
            }
        }
        let (report, allocatable) = &nodes[at.parse::<usize>().unwrap() - 1];
        let mut engine = engine(json!({}));
        engine.node_applied(node("n", allocatable.clone()), now());
        engine.object_changed(report, now());
        let want = match wrong {
            "" => Ok("n".to_owned()),
            "c" => refused("cannot align container"),
            _ => refused("cannot align pod"),
        };
        assert_eq!(place(&mut engine, value), want, "{row}");
    }
}

/// Covers pods of several containers on a node of 30 and 32 free CPUs.
#[test]
fn filter_of_a_pod_as_a_whole() {
    let zones = json!({
        "node-0": {"cpu": "30", "memory": "60Gi", "hugepages-2Mi": "384Mi", "vendor/nic1": "16"},
        "node-1": {"cpu": "32", "memory": "64Gi", "hugepages-2Mi": "512Mi", "vendor/nic1": "32"}});
    let allocatable = json!({"cpu": "64", "memory": "128Gi", "pods": "110",
        "hugepages-2Mi": "896Mi", "vendor/nic1": "48"});
    let small = "2 cpu, 2Gi memory";
    let middle = "4 cpu, 8Gi memory";
    for (containers, fits) in [
        (
            [small, middle, "26 cpu, 32Gi memory, 512Mi huge, 26 nic"],
            true,
        ),
        (
            [
                small,
                "8 cpu, 8Gi memory",
                "26 cpu, 26Gi memory, 52Mi huge, 26 nic",
            ],
            false,
        ),
        (
            [
                small,
                "4 cpu, 16Gi memory",
                "26 cpu, 52Gi memory, 52Mi huge, 26 nic",
            ],
            false,
        ),
        (
            [small, middle, "26 cpu, 32Gi memory, 3328Mi huge, 26 nic"],
            false,
        ),
        (
            [small, middle, "26 cpu, 26Gi memory, 52Mi huge, 52 nic"],
            false,
        ),
    ] {
        let mut engine = engine(json!({}));
        engine.node_applied(node("n", allocatable.clone()), now());
        let change = report("n", "SingleNUMANodePodLevel", json!({}), zones.clone());
        engine.object_changed(&change, now());
        let containers = containers.map(parse_requests);
        let result = place(&mut engine, pod("p", &containers));
        let want = if fits {
            Ok("n".to_owned())
        } else {
            refused("cannot align pod")
        };
        assert_eq!(result, want, "{containers:?}");
    }
}

/// Checks whether a pod has exclusive resources, given what its node's zones list.
#[test]
fn exclusive_resources() {
    const FPGA: &str = "veryfast.io/fpga";
    let cores = || json!({"cpu": "4", "memory": "2Gi"});
    let fpga = || json!({FPGA: "1"});
    let (both, some) = (
        json!({"cpu": "8", "memory": "16Gi", FPGA: "1"}),
        json!({"cpu": "8", FPGA: "1"}),
    );
    #[derive(Clone, Copy, PartialEq)]
    enum As {
        Main,
        Init,
        Sidecar,
    }
    use As::*;
    let none = json!({});
    let rows = [
        ("no containers", Main, none, true, false),
        ("cores", Main, cores(), true, true),
        ("cores of an init container", Init, cores(), true, false),
        ("cores of a sidecar", Sidecar, cores(), true, true),
        ("devices", Main, fpga(), true, true),
        ("devices of an init container", Init, fpga(), true, false),
        ("devices of a sidecar", Sidecar, fpga(), true, true),
        ("cores and devices", Main, both, true, true),
        ("shared cores and devices", Main, some, true, true),
        ("shared cores", Main, json!({"cpu": "8"}), true, false),
        ("a device that zones list", Main, fpga(), true, true),
        ("a device that they do not list", Main, fpga(), false, false),
        ("cores, whatever they list", Main, cores(), false, true),
    ];
    for (name, role, sized_pod, listed, want) in rows {
        let mut value = pod("pod", std::slice::from_ref(&sized_pod));
        if role != Main {
            let spec = value["spec"].as_object_mut().unwrap();
            let mut container = spec["containers"][0].take();
            if role == Sidecar {
                container["restartPolicy"] = json!("Always");
            }
            spec.insert("initContainers".to_owned(), json!([container]));
            spec.insert("containers".to_owned(), json!([]));
        }
        let table = ResourceTable::new();
        let info = PodInfo::new(object(value), &table).unwrap();
        let print = crate::topology_match::pod::PodFingerprint::from_pod(&info, &table);
        let fpga = table.intern(FPGA);
        let result = print.is_exclusive(|id| listed && id == fpga);
        assert_eq!(result, want, "{name}");
    }
}
