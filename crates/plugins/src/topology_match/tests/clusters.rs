//! Upstream's integration tests of a whole scheduler, rewritten from their facts: two nodes, and the node
//! that each pod gets.

use super::*;

/// Parses `2/8/1` as `2 cpu/8 Gi/1 gpu`; `-` where a zone or a container does not list the resource.
fn amounts(text: &str, names: &[(&str, &str)]) -> Value {
    let pairs = names.iter().zip(text.split('/'));
    let pairs = pairs.filter(|(_, amount)| *amount != "-");
    let pairs = pairs.map(|((name, unit), amount)| {
        let amount = json!(format!("{amount}{unit}"));
        ((*name).to_owned(), amount)
    });
    Value::Object(pairs.collect())
}

const THREE: [(&str, &str); 3] = [("cpu", ""), ("memory", "Gi"), ("x.com/gpu", "")];
const FIVE: [(&str, &str); 5] = [
    ("cpu", ""),
    ("memory", "Gi"),
    ("hugepages-2Mi", "Mi"),
    ("vendor/nic1", ""),
    ("ephemeral-storage", "Mi"),
];

/// Returns a report. Of three zones the first two are near each other.
fn report_of(
    name: &str,
    kubelet_config: &str,
    zones: &str,
    names: &[(&str, &str)],
) -> ObjectChange {
    let (policy, scope) = kubelet_config.split_once(' ').unwrap();
    let zones: Vec<&str> = zones.split(' ').collect();
    let costs = [[10, 12, 20], [12, 10, 20], [20, 20, 10]];
    let zone = |(index, text): (usize, &&str)| {
        let free = amounts(text, names);
        let resources = free.as_object().unwrap().iter().map(|(name, free)| {
            json!({"name": name, "capacity": free, "allocatable": free, "available": free})
        });
        let row = costs.get(index).filter(|_| zones.len() == 3);
        let row = row.into_iter().flatten().enumerate();
        let row = row.map(|(to, cost)| json!({"name": format!("node-{to}"), "value": cost}));
        json!({"name": format!("node-{index}"), "type": "Node",
            "costs": row.collect::<Vec<_>>(), "resources": resources.collect::<Vec<_>>()})
    };
    let object: NodeResourceTopology = serde_json::from_value(json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": name, "uid": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": scope}],
        "zones": zones.iter().enumerate().map(zone).collect::<Vec<_>>(),
    }))
    .unwrap();
    ObjectChange {
        kind: TOPOLOGIES,
        action: Action::UPDATE,
        old: None,
        new: Arc::new(object),
    }
}

/// Returns a pod of containers such as `2/4; init 2/6`; without limits it is Burstable.
fn pod_of(containers: &str, names: &[(&str, &str)], limits: bool) -> Value {
    let mut lists = [Vec::new(), Vec::new()];
    let texts = containers.split(';').map(str::trim);
    for (index, text) in texts.enumerate() {
        let (list, text) = match text.strip_prefix("init ") {
            Some(text) => (0, text),
            None => (1, text),
        };
        let requests = amounts(text, names);
        let mut resources = json!({"requests": requests});
        if limits {
            resources["limits"] = requests;
        }
        lists[list].push(json!({"name": format!("c{index}"), "resources": resources}));
    }
    let mut value = pod("p", &[]);
    value["spec"]["initContainers"] = json!(lists[0]);
    value["spec"]["containers"] = json!(lists[1]);
    value
}

fn two_nodes(engine: &mut Engine) {
    let allocatable = json!({"cpu": "64", "memory": "128Gi", "pods": "32", "hugepages-2Mi": "896Mi",
        "vendor/nic1": "48", "ephemeral-storage": "32Gi", "x.com/gpu": "8"});
    for name in ["n1", "n2"] {
        engine.node_applied(node(name, allocatable.clone()), now());
    }
}

/// TestTopologyMatchPlugin. Where both nodes are equally good, upstream accepts either.
#[test]
fn each_strategy_selects_its_node() {
    // (strategy, policy and scope, pod (b: without limits), zones of either node, expected node)
    let table = "\
        Most | single-numa-node container | 4/5 | 2/8 2/8 | 4/8 0/8 | n2
        Most | single-numa-node container | b 4/- | 4/- 0/- | 2/- 2/- | n1 n2
        Most | single-numa-node container | 1/4 | 2/8 2/8 | 1/4 1/4 | n2
        Balanced | single-numa-node container | 2/2 | 4/50 4/50 | 6/6 6/6 | n2
        Least | single-numa-node container | 1/4 | 2/8 2/8 | 1/4 1/4 | n1
        Most | | b -/- | | | n1 n2
        Balanced | | b -/- | | | n1 n2
        Least | | b -/- | | | n1 n2
        Most | single-numa-node pod | 2/4; 2/4 | 2/8 2/8 | 4/8 4/8 | n2
        Most | single-numa-node container | 3/5; 3/5 | 6/8 2/8 | 4/8 4/8 | n2
        Most | single-numa-node container | 2/4; init 4/4 | 3/8 3/8 | 4/8 4/8 | n2
        Most | single-numa-node container | 4/4; 2/4 | 4/8 2/8 | 3/8 3/8 | n1
        Most | single-numa-node container | 2/4; init 4/10 | 2/8 2/8 | 4/8 4/8 | init container
        Most | single-numa-node container | 4/4; 4/6 | 2/8 2/8 | 4/8 4/3 | container
        Numa | best-effort pod | 2/4 | 2/8 2/8 | 4/8 4/3 | n1 n2
        Numa | best-effort pod | -/4 | 2/8 2/8 | 4/- 4/3 | n1 n2
        Numa | best-effort pod | 4/4 | 2/8 2/8 | 4/8 4/3 | n2
        Numa | best-effort pod | 2/4; init 2/6 | 2/8 2/8 | 4/8 4/3 | n1 n2
        Numa | best-effort pod | 2/4; 2/4 | 2/8 2/8 | 4/8 4/3 | n2
        Numa | best-effort container | 2/4; 2/6 | 2/8 2/8 | 4/8 4/3 | n1 n2
        Numa | best-effort container | 2/4; init 2/6 | 2/8 2/8 | 4/8 4/3 | n1 n2
        Numa | best-effort pod | 3/4; 1/4 | 2/8 2/8 | 4/8 4/3 | n2
        Numa | best-effort container | 3/4; 1/4 | 2/8 2/8 | 4/8 4/3 | n2
        Numa | best-effort pod | 3/4; 4/6 | 2/8 2/8 | 4/8 4/3 | n2
        Numa | best-effort pod | 4/4/2 | 2/8/1 2/8/0 2/8/1 | 4/8/0 4/3/0 | n1
        Numa | best-effort pod | 4/4/2 | 2/8/1 2/8/0 2/8/1 | 4/8/1 4/8/1 4/3/0 | n2";
    for row in table.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [strategy, kubelet_config, requests, first, second, want] = cells[..] else {
            panic!("{row}");
        };
        let strategy = match strategy {
            "Numa" => "LeastNUMANodes".to_owned(),
            name => format!(
                "{name}Allocat{}",
                if name == "Balanced" { "ion" } else { "ed" }
            ),
        };
        let mut engine = engine(json!({"scoringStrategy": {"type": strategy}}));
        two_nodes(&mut engine);
        for (name, zones) in [("n1", first), ("n2", second)] {
            if !kubelet_config.is_empty() {
                engine.object_changed(&report_of(name, kubelet_config, zones, &THREE), now());
            }
        }
        let (requests, limits) = match requests.strip_prefix("b ") {
            Some(requests) => (requests, false),
            None => (requests, true),
        };
        let result = place(&mut engine, pod_of(requests, &THREE, limits));
        match &result {
            Ok(node) => assert!(want.split(' ').any(|it| it == node), "{row}: {node}"),
            Err(why) => {
                let want = format!("0/2 nodes are available: 2 cannot align {want}.");
                assert_eq!(*why, want, "{row}");
            }
        }
    }
    // No zone lists memory, and the second kubelet does not align.
    let mut engine = engine(json!({"scoringStrategy": {"type": "MostAllocated"}}));
    two_nodes(&mut engine);
    for (name, kubelet_config) in [
        ("n1", "single-numa-node container"),
        ("n2", "none container"),
    ] {
        engine.object_changed(
            &report_of(name, kubelet_config, "-/-/2 -/-/2", &THREE),
            now(),
        );
    }
    let result = place(&mut engine, pod_of("-/5", &THREE, false));
    assert_eq!(result, Ok("n2".to_owned()));
}

/// TestTopologyMatchPlugin's table of pods of several containers, all of which have the first node to
/// themselves.
#[test]
fn containers_fit_one_by_one_on_single_node() {
    // Containers as `cpu/memory Gi/huge pages Mi/nics/disk Mi`, and what is rejected, if upstream rejects.
    let table = "\
        2/6/500/16; 2/6/50/8 |
        2/6/400; 2/6/400 | container
        2/6/50/20; 2/6/500/20 | container
        init 40/40; 1/4; 1/4 | init container
        init 4/70; 1/4; 1/4 | init container
        init 4/10; 20/40; 20/40 | ! container
        init 4/10; 20/40; 20/40; 20/10 | container
        init 4/10; 20/40; 20/40; 2/40 | container
        init 4/10; init 4/10; init 4/10; 20/40; 20/40; 6/10 | ! container
        init 4/10; init 4/10; init 4/10; 20/40; 20/40; 20/10 | container
        init 4/10; init 4/10; init 4/10; 20/35; 20/35; 2/50 | container
        init 30/10; init 30/10; 20/40; 20/40; 20/6 | container
        init 30/10; init 30/10; 20/35; 20/35; 2/50 | container
        init 30/10; init 30/10; 35/40 | container
        init 30/10; init 30/10; 20/40; 20/40 | ! container
        init 30/10; init 30/10; init 30/10; 20/40; 20/40; 2/6 | ! container
        init 3/50; init 3/50; init 3/50; 20/40; 20/40; 2/6 | ! container
        init 40/50; init 3/50; init 3/50; 20/40; 2/6 | init container
        init 20/50; init 20/65; init 3/50; 20/40; 2/6 | init container
        2/4/-/-/1024 |
        2/4/-/-/1024; 2/4/-/-/512; 4/8/-/-/2048 |
        2/4/-/-/1024; 2/4; 4/8/-/-/2048 |
        2/4/-/-/1024; 2/4; 4/8 |";
    let both_nodes = |engine: &mut Engine| {
        two_nodes(engine);
        let kubelet_config = "single-numa-node container";
        let (allocatable, none) = ("30/60/384/16 32/64/512/32", "0/0/0/0 0/0/0/0");
        engine.object_changed(&report_of("n1", kubelet_config, allocatable, &FIVE), now());
        engine.object_changed(&report_of("n2", kubelet_config, none, &FIVE), now());
    };
    let mut stricter = 0;
    for row in table.lines() {
        let (requests, want) = row.trim().split_once('|').unwrap();
        // `!`: upstream places the pod, and the kubelet would reject it because of the init container's
        // resources.
        let want = want.trim();
        stricter += u8::from(want.starts_with('!'));
        let want = want.trim_start_matches("! ");
        let mut engine = engine(json!({}));
        both_nodes(&mut engine);
        let result = place(&mut engine, pod_of(requests, &FIVE, true));
        match result {
            Ok(node) => assert_eq!((want, &*node), ("", "n1"), "{row}"),
            Err(why) => {
                // On the second node the first container that requests anything does not fit.
                let first = if requests.starts_with("init") {
                    "init container"
                } else {
                    "container"
                };
                let parts = if want == first {
                    format!("2 cannot align {want}.")
                } else {
                    format!("1 cannot align container, 1 cannot align {first}.")
                };
                assert_eq!(why, format!("0/2 nodes are available: {parts}"), "{row}");
            }
        }
    }
    assert_eq!(stricter, 5);
    for requests in [
        "2/4/-/-/1024",
        "2/4/-/-/1024; 2/4/-/-/512; 4/8/-/-/2048",
        "2/4/-/-/1024; 2/4; 4/8/-/-/2048",
        "2/4/-/-/1024; 2/4; 4/8",
    ] {
        let mut engine = engine(json!({}));
        both_nodes(&mut engine);
        let burstable = pod_of(requests, &FIVE, false);
        assert!(place(&mut engine, burstable).is_ok(), "{requests}");
    }
}

/// TestTopologyCachePluginWithoutUpdates: two pods, one after the other, without a new report.
#[test]
fn placed_pod_reduces_each_zone_of_its_node() {
    const CONTAINER: &str = "single-numa-node container";
    let over =
        json!({"cacheResyncPeriodSeconds": 2, "scoringStrategy": {"type": "LeastAllocated"}});
    let discard = json!({"discardReservedNodes": true});
    let narrow = ("30/60 30/62", "10/14 8/10");
    let nics = ("30/62 30/62", "30/62/-/2 30/62/-/2");
    for (args, zones, requests, limits, want) in [
        (&over, narrow, "16/24", false, [None, None]),
        (&over, nics, "-/-/-/2", true, [Some("n2"), Some("")]),
        (&over, narrow, "16/24", true, [Some("n1"), Some("")]),
        (&discard, narrow, "16/24", true, [Some("n1"), Some("n1")]),
    ] {
        let mut engine = engine(args.clone());
        two_nodes(&mut engine);
        let bare = json!({"cpu": "64", "memory": "128Gi", "pods": "32"});
        engine.node_applied(node("n1", bare), now());
        engine.object_changed(&report_of("n1", CONTAINER, zones.0, &FIVE), now());
        engine.object_changed(&report_of("n2", CONTAINER, zones.1, &FIVE), now());
        for (name, want) in ["a", "b"].into_iter().zip(want) {
            let mut value = pod_of(requests, &FIVE, limits);
            value["metadata"]["name"] = json!(name);
            value["metadata"]["uid"] = json!(name);
            let result = place(&mut engine, value.clone()).ok();
            let case = format!("{args} {requests} {name}: {result:?}");
            assert_eq!(result.is_some(), want != Some(""), "{case}");
            let Some(node) = result else { continue };
            assert!(want.is_none_or(|want| want == node), "{case}");
            engine.bind_finished(name, Ok(()), now());
            engine.pod_applied(bound(value, &node, "Pending"), now());
        }
    }
    // The node's report applies again as soon as no pod is about to be bound to it.
    let mut engine = engine(discard);
    two_nodes(&mut engine);
    engine.object_changed(&report_of("n1", CONTAINER, narrow.0, &FIVE), now());
    engine.object_changed(&report_of("n2", CONTAINER, narrow.1, &FIVE), now());
    let large = pod_of("30/60", &FIVE, true);
    assert_eq!(place(&mut engine, large.clone()), Ok("n1".to_owned()));
    engine.pod_deleted(&bound(large, "n1", "Pending"), now());
    let mut next = pod_of("16/24", &FIVE, true);
    next["metadata"]["name"] = json!("next");
    next["metadata"]["uid"] = json!("next");
    assert_eq!(place(&mut engine, next), Ok("n1".to_owned()));
}

/// TestTopologyCachePluginWithPodFingerprintUpdates and …WithAttributeUpdates: a second pod of the same size
/// waits for the report that has counted the first, and one that is too large for a NUMA node waits for the
/// kubelet to align its containers one by one.
#[test]
fn new_report_admits_waiting_pods() {
    let args = json!({"cacheResyncPeriodSeconds": 2});
    let allocatable = json!({"cpu": "64", "memory": "128Gi", "pods": "32"});
    let zone =
        |cpu: u32, memory: u32| json!({"cpu": cpu.to_string(), "memory": format!("{memory}Gi")});
    let half = [json!({"cpu": "24", "memory": "12Gi"})];
    let mut engine_one = engine(args.clone());
    engine_one.node_applied(node("n", allocatable.clone()), now());
    let free = json!({"node-0": zone(30, 62), "node-1": zone(30, 62)});
    engine_one.object_changed(&report("n", SINGLE, json!({}), free.clone()), now());
    assert!(place(&mut engine_one, pod("pod1", &half)).is_ok());
    assert!(place(&mut engine_one, pod("pod2", &half)).is_err());
    engine_one.pod_applied(bound(pod("pod1", &half), "n", "Running"), now());
    let less = json!({"node-0": zone(6, 48), "node-1": zone(30, 62)});
    engine_one.object_changed(&report("n", SINGLE, printed(POD1), less), now());
    assert_eq!(
        decide(&mut engine_one, at(400)).map(|bind| bind.node.to_string()),
        Ok("n".to_owned())
    );

    let mut engine_two = engine(args);
    engine_two.node_applied(node("n", allocatable), now());
    let scope = |scope: &str| json!({"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": scope});
    engine_two.object_changed(&report("n", "None", scope("pod"), free.clone()), now());
    let large = vec![json!({"cpu": "24", "memory": "48Gi"}); 2];
    assert_eq!(
        place(&mut engine_two, pod("pod1", &large)),
        refused("cannot align pod")
    );
    engine_two.object_changed(&report("n", "None", scope("container"), free), now());
    assert!(decide(&mut engine_two, at(400)).is_ok());
}
