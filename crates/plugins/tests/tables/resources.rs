//! Scores of NodeResourcesFit and NodeResourcesBalancedAllocation.

use super::*;

/// Parses amounts such as `4000/10000` and optionally `foo=4 bar=8`: CPU, memory and others.
fn amounts(text: &str) -> Value {
    let mut out = json!({});
    for token in text.split_whitespace() {
        if let Some((cpu, memory)) = token.split_once('/') {
            out["cpu"] = json!(cpu);
            out["memory"] = json!(memory);
        } else if let Some((name, amount)) = token.split_once('=') {
            out[format!("intel.com/{name}")] = json!(amount);
        }
    }
    out
}

/// Builds one container per part; an empty text is a pod without containers, `-` a container without
/// requests.
fn pod(containers: &str) -> Value {
    let container = |text: &str| json!({"name": "c", "resources": {"requests": amounts(text)}});
    let parts = containers.split('+').filter(|part| !part.trim().is_empty());
    json!({"spec": {"containers": parts.map(container).collect::<Value>()}, "metadata": {}})
}

fn scores(name: &str, args: Value, nodes: &[&str], there: &[(&str, &str)], asks: &str) -> String {
    let mut alone = Alone::new(name, args);
    let names = ["a", "b"];
    for (name, capacity) in names.iter().zip(nodes) {
        let mut capacity = amounts(capacity);
        capacity["pods"] = json!("110");
        alone.node(
            name,
            json!({}),
            json!({"status": {"allocatable": capacity}}),
        );
    }
    for (node, asked) in there {
        alone.add_pod(node, pod(asked));
    }
    alone.scores(pod(asks), &names[..nodes.len()].join(" "))
}

fn strategy(kind: &str, weights: &[(&str, i64)]) -> Value {
    let weighted = |(name, weight): &(&str, i64)| json!({"name": name, "weight": weight});
    let resources: Value = weights.iter().map(weighted).collect();
    json!({"scoringStrategy": {"type": kind, "resources": resources}})
}

const BOTH: &[(&str, i64)] = &[("cpu", 1), ("memory", 1)];
const MEMORY: &[(&str, i64)] = &[("memory", 2), ("cpu", 1)];
const FOO: &[(&str, i64)] = &[("intel.com/foo", 1), ("cpu", 1), ("memory", 1)];
const TWICE: &[(&str, i64)] = &[("intel.com/foo", 2), ("cpu", 1), ("memory", 1)];
/// Two containers that request 3000 and 5000 together.
const ASKS: &str = "1000/2000 + 2000/3000";

#[test]
fn least_and_most_allocated_scores() {
    let (least, most) = ("LeastAllocated", "MostAllocated");
    let small = ["4000/10000", "4000/10000"];
    let sized = ["4000/10000", "6000/10000"];
    let large = ["10000/20000", "10000/20000"];
    let wide = ["10000/20000", "10000/50000"];
    let foo = ["6000/10000", "6000/10000 foo=4"];
    let foos = ["6000/10000 foo=4", "6000/10000 foo=10"];
    let (none, idle) = (&[][..], &[("a", ""), ("a", ""), ("b", ""), ("b", "")][..]);
    let one_node = &[("a", "3000/0"), ("b", "3000/5000")][..];
    let two = &[
        ("a", "3000/0"),
        ("a", "3000/0"),
        ("b", "3000/0"),
        ("b", "3000/5000"),
    ][..];
    let defaults = &[("a", "-"), ("a", "-")][..];
    #[rustfmt::skip]
    let rows = [
        ("nothing", least, BOTH, small, none, "", "100 100"),
        ("sizes differ", least, BOTH, sized, none, ASKS, "37 50"),
        ("idle pods", least, BOTH, small, idle, "", "100 100"),
        ("pods are there", least, BOTH, large, two, "", "70 57"),
        ("pods are there and one comes", least, BOTH, large, one_node, ASKS, "57 45"),
        ("sizes differ, pods are there", least, BOTH, wide, one_node, ASKS, "57 60"),
        ("more than there is", least, BOTH, small, one_node, "3000/0", "50 25"),
        ("empty nodes", least, BOTH, ["", ""], one_node, "", "0 0"),
        ("memory weighs more", least, MEMORY, sized, none, ASKS, "41 50"),
        ("others are left out", least, FOO, foo, none, ASKS, "50 50"),
        ("others count when asked for", least, FOO, foos, none, "3000/5000 foo=2", "50 60"),
        ("a node without it", least, TWICE, foo, none, "3000/4000", "55 55"),
        ("nothing", most, BOTH, small, none, "", "0 0"),
        ("sizes differ", most, BOTH, sized, none, ASKS, "62 50"),
        ("pods are there", most, BOTH, large, two, "", "30 42"),
        ("pods are there and one comes", most, BOTH, large, one_node, ASKS, "42 55"),
        ("as much as there is", most, BOTH, ["5000/10000", "10000/9000"], none, "2000/4000 + 3000/5000", "95 75"),
        ("memory weighs more", most, MEMORY, sized, none, ASKS, "58 50"),
        ("defaults count", most, BOTH, ["250m/1000Mi", "250m/1000Mi"], defaults, "-", "80 30"),
        ("others are left out", most, FOO, foo, none, ASKS, "50 50"),
        ("others count when asked for", most, FOO, foos, none, "3000/5000 foo=2", "50 40"),
        ("a node without it", most, TWICE, foo, none, "3000/4000", "45 45"),
    ];
    for (name, kind, weights, nodes, there, asks, expected) in rows {
        let args = strategy(kind, weights);
        let got = scores("NodeResourcesFit", args, &nodes, there, asks);
        assert_eq!(got, expected, "{kind}: {name}");
    }
    for (weights, expected) in [
        (&[("memory", -1), ("cpu", 1)][..], "memory].weight: -1"),
        (&[("memory", 1), ("cpu", 0)], "cpu].weight: 0"),
        (&[("memory", 1), ("cpu", 101)], "cpu].weight: 101"),
    ] {
        for kind in [least, most] {
            let error = built("NodeResourcesFit", &strategy(kind, weights), &[]).err();
            assert!(error.clone().unwrap().contains(expected), "{error:?}");
        }
    }
}

#[test]
fn requested_to_capacity_ratio_scores() {
    let shaped = |weights: &[(&str, i64)], shape: [(i64, i64); 2]| {
        let mut args = strategy("RequestedToCapacityRatio", weights);
        let point =
            |(utilization, score): (i64, i64)| json!({"utilization": utilization, "score": score});
        let shape: Value = shape.into_iter().map(point).collect();
        args["scoringStrategy"]["requestedToCapacityRatio"] = json!({ "shape": shape });
        args
    };
    let falling = || shaped(BOTH, [(0, 10), (100, 0)]);
    let one_resource = || shaped(&[("intel.com/foo", 1)], [(0, 0), (100, 1)]);
    let two = || {
        shaped(
            &[("intel.com/foo", 3), ("intel.com/bar", 5)],
            [(0, 0), (100, 1)],
        )
    };
    let idle = &[("a", ""), ("a", "")][..];
    let sized = ["4000/10000", "6000/10000"];
    let foo = ["4000/10000Mi foo=8", "4000/10000Mi foo=4"];
    let bar = ["4000/10000Mi foo=8 bar=4", "4000/10000Mi foo=4 bar=8"];
    #[rustfmt::skip]
    let rows = [
        ("nothing", falling(), ["4000/10000", "4000/10000"], idle, "", "100 100"),
        ("sizes differ", falling(), sized, idle, ASKS, "38 50"),
        ("pods are there", falling(), sized, &[("a", "3000/5000"), ("b", "3000/5000")], "", "38 50"),
        ("one resource, nothing", one_resource(), foo, &[], "", "0 0"),
        ("one resource", one_resource(), foo, &[], "foo=2", "2 5"),
        ("one resource, a pod is there", one_resource(), foo, &[("b", "foo=2")], "foo=2", "2 10"),
        ("more of one resource", one_resource(), foo, &[], "foo=4", "5 10"),
        ("two resources, nothing", two(), bar, &[], "", "0 0"),
        ("two resources", two(), bar, &[], "foo=2 bar=2", "4 3"),
        ("two resources, a pod is there", two(), bar, &[("b", "foo=4 bar=2")], "foo=2 bar=2", "4 7"),
        ("more of two resources", two(), bar, &[], "foo=4 bar=2", "5 5"),
    ];
    for (name, args, nodes, there, asks, expected) in rows {
        let got = scores("NodeResourcesFit", args, &nodes, there, asks);
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn balanced_allocation_scores() {
    let args = |names: &[&str]| {
        let resource = |name: &&str| json!({"name": name, "weight": 1});
        json!({"resources": names.iter().map(resource).collect::<Value>()})
    };
    let cpu_and_memory = || args(&["cpu", "memory"]);
    let three = || args(&["cpu", "memory", "intel.com/gpu"]);
    // In milli-cores, like upstream's nodes.
    let (all, cpu) = ("1/2000 + 2/3000", "1/0 + 2/0");
    let gpu = "1/2000 + 2/3000 gpu=3";
    let pods = &[("a", cpu), ("b", all)][..];
    #[rustfmt::skip]
    let rows = [
        ("nothing", cpu_and_memory(), ["4/10000", "4/10000"], &[][..], "", "0 0"),
        ("sizes differ", cpu_and_memory(), ["4/10000", "6/10000"], &[], all, "87 100"),
        ("pods are there", cpu_and_memory(), ["10/20000", "10/20000"], pods, all, "82 95"),
        ("pods are there, sizes differ", cpu_and_memory(), ["10/20000", "10/50000"], pods, all, "82 80"),
        ("as much as there is", cpu_and_memory(), ["6/10000", "6/10000"], pods, cpu, "50 75"),
        ("another resource", three(), ["3500m/40000 gpu=8", "3500m/40000 gpu=8"], &[("b", all), ("a", gpu)], "gpu=1", "70 65"),
        ("a node without it", three(), ["3500m/40000 gpu=8", "3500m/40000"], &[], all, "63 63"),
    ];
    for (name, args, nodes, there, asks, expected) in rows {
        let got = scores("NodeResourcesBalancedAllocation", args, &nodes, there, asks);
        assert_eq!(got, expected, "{name}");
    }
}

/// Amounts that a pod uses: its containers and sidecars together, or the largest init step.
#[test]
fn init_containers_and_sidecars_count_as_the_kubelet_runs_them() {
    let container = |name: &str, cpu: &str, sidecar: bool| {
        let mut out = json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        if sidecar {
            out["restartPolicy"] = json!("Always");
        }
        out
    };
    let (sidecar, init) = (container("s", "1", true), |cpu| container("i", cpu, false));
    let (two, three) = (container("a", "2", false), container("b", "3", false));
    // 5, 10, 3 and 6 of 20 CPUs are used; the score is the free share. Upstream has 5 for the last row: it
    // ignores that the sidecar is already running during the step after it.
    let rows = [
        ("containers only", json!([]), json!([two, three]), "75"),
        (
            "init containers by the largest",
            json!([init("10")]),
            json!([two]),
            "50",
        ),
        ("sidecars by the sum", json!([sidecar]), json!([two]), "85"),
        ("both", json!([sidecar, init("5")]), json!([two]), "70"),
    ];
    for (name, init, containers, expected) in rows {
        let args = json!({"resources": {"cpu": {"type": "LeastAllocated", "weight": 1}}});
        let mut alone = Alone::new("NodeResourcesFitPlus", args);
        let capacity =
            json!({"status": {"allocatable": {"cpu": "20", "memory": "1Gi", "pods": "10"}}});
        alone.node("n", json!({}), capacity);
        let spec = json!({"initContainers": init, "containers": containers});
        assert_eq!(alone.scores(json!({"spec": spec}), "n"), expected, "{name}");
    }
}
