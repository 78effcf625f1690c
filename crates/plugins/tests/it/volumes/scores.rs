//! Scores by storage utilization, with their feature gate: rows of kube-scheduler 1.35.

use super::*;
use koord_scheduler::framework::BuildContext;

fn scoring(args: Value) -> Engine {
    let context = BuildContext::with_gates([("StorageCapacityScoring".to_owned(), true)].into());
    let mut engine = crate::small::engine_with(&["VolumeBinding"], args, &context);
    let wait = "WaitForFirstConsumer";
    let by_hand = "kubernetes.io/no-provisioner";
    for name in ["ssd", "hdd"] {
        set(&mut engine, "sc", class(name, by_hand, wait, json!({})));
    }
    set(
        &mut engine,
        "sc",
        class("made", "csi.example", wait, json!({})),
    );
    let driver = json!({"metadata": {"name": "csi.example"}, "spec": {"storageCapacity": true}});
    set(&mut engine, "driver", driver);
    engine
}

/// Creates volumes on nodes, with their capacities.
fn volumes(engine: &mut Engine, class: &str, list: &[(&str, u32)]) {
    for (at, (zone, gib)) in list.iter().enumerate() {
        let size = json!({"spec": {"capacity": {"storage": format!("{gib}Gi")}}});
        let name = format!("{class}-{zone}-{at}");
        let local_volume = merge(zone_affinity(zone), &size);
        set(engine, "pv", volume(&name, class, local_volume));
    }
}

fn capacities(engine: &mut Engine, list: &[(&str, u32)]) {
    for (zone, gib) in list {
        let capacity = json!({"metadata": {"name": format!("room-{zone}"), "namespace": "x"},
            "storageClassName": "made", "capacity": format!("{gib}Gi"),
            "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": zone}}});
        set(engine, "capacity", capacity);
    }
}

/// Returns `node score` of the chosen node and the next two, best first.
fn scores(engine: &mut Engine, asks: &[(&str, &str, u32)]) -> Vec<String> {
    for (name, class, gib) in asks {
        let size = json!({"spec": {"resources": {"requests": {"storage": format!("{gib}Gi")}}}});
        set(engine, "pvc", claim(name, class, size));
    }
    let names: Vec<&str> = asks.iter().map(|(name, ..)| *name).collect();
    let out = place(engine, pod("p", uses(&names), None));
    let Some(decision) = engine.telemetry.decision("pod-p") else {
        return out;
    };
    let ranking = decision.table.as_ref().unwrap().ranking.iter();
    let mut all: Vec<_> = ranking
        .map(|node| (-node.total, node.node.to_string()))
        .collect();
    all.sort();
    all.iter()
        .map(|(total, node)| format!("{node} {}", -total))
        .collect()
}

#[test]
fn storage_utilization_score_selects_node() {
    let fuller =
        || json!({"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]});
    let (ssd, hdd) = (
        [("a", 200), ("a", 200), ("b", 100), ("b", 100)],
        [("a", 200), ("b", 100)],
    );
    type Row<'a> = (
        &'a str,
        Value,
        &'a [(&'a str, u32)],
        &'a [(&'a str, u32)],
        &'a [(&'a str, u32)],
        &'a [(&'a str, &'a str, u32)],
        &'a [&'a str],
    );
    // Columns: case, arguments, volumes of class ssd and hdd, capacity for new ones, claims, scores.
    let rows: &[Row<'_>] = &[
        (
            "local volumes of close size",
            fuller(),
            &ssd,
            &[],
            &[],
            &[("c", "ssd", 50)],
            &["b 50", "a 25"],
        ),
        (
            "several claims",
            fuller(),
            &ssd,
            &hdd,
            &[],
            &[("c", "ssd", 50), ("d", "hdd", 100)],
            &["b 75", "a 38"],
        ),
        (
            "room for new ones",
            fuller(),
            &[],
            &[],
            &[("a", 100), ("b", 50), ("c", 10)],
            &[("c", "made", 10)],
            &["c 100", "b 20", "a 10"],
        ),
        (
            "found volumes count alone",
            fuller(),
            &[("a", 100), ("b", 100), ("c", 100)],
            &[],
            &[("a", 100), ("b", 50), ("c", 10)],
            &[("c", "made", 10), ("d", "ssd", 50)],
            &["a 50", "b 50", "c 50"],
        ),
        (
            "claims of one class share its room",
            fuller(),
            &[],
            &[],
            &[("a", 100)],
            &[("c", "made", 50), ("d", "made", 50)],
            &["a 100"],
        ),
        (
            "least room first",
            fuller(),
            &[],
            &[],
            &[("a", 100), ("b", 20), ("c", 10)],
            &[("c", "made", 10)],
            &["c 100", "b 50", "a 10"],
        ),
        (
            "most room first, by default",
            json!({}),
            &[],
            &[],
            &[("a", 100), ("b", 20), ("c", 10)],
            &[("c", "made", 10)],
            &["a 90", "b 50", "c 0"],
        ),
    ];
    for (case, args, ssd, hdd, capacity, asks, expected) in rows {
        let mut engine = scoring(args.clone());
        for name in ["a", "b", "c"] {
            node(
                &mut engine,
                name,
                json!({"topology.kubernetes.io/zone": name}),
            );
        }
        volumes(&mut engine, "ssd", ssd);
        volumes(&mut engine, "hdd", hdd);
        capacities(&mut engine, capacity);
        assert_eq!(scores(&mut engine, asks), *expected, "{case}");
    }
}

#[test]
fn storage_score_with_zones_and_bent_shapes() {
    // Two nodes per zone; the third zone has no volumes.
    let bent = json!({"shape": [{"utilization": 0, "score": 0}, {"utilization": 50, "score": 3},
        {"utilization": 100, "score": 5}]});
    for (case, shape, expected) in [
        (
            "straight",
            json!({"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]}),
            ["b1 50", "b2 50", "25"],
        ),
        ("bent", bent, ["b1 30", "b2 30", "15"]),
    ] {
        let mut engine = scoring(shape);
        for zone in ["a", "b", "c"] {
            for number in 1..3 {
                let labels = json!({"topology.kubernetes.io/zone": zone});
                node(&mut engine, &format!("{zone}{number}"), labels);
            }
        }
        volumes(
            &mut engine,
            "ssd",
            &[("a", 200), ("a", 200), ("b", 100), ("b", 100)],
        );
        let outcome = scores(&mut engine, &[("c", "ssd", 50)]);
        assert_eq!(outcome[..2], expected[..2], "{case}");
        assert!(
            outcome[2].starts_with('a') && outcome[2].ends_with(expected[2]),
            "{case}: {outcome:?}"
        );
    }
}

#[test]
fn shape_requires_gate_and_is_validated() {
    let build = |args: Value, on: bool| {
        let mut factories = koord_plugins::registry().factories.into_iter();
        let factory = factories.find(|f| f.name == "VolumeBinding").unwrap();
        let context = BuildContext::with_gates([("StorageCapacityScoring".to_owned(), on)].into());
        (factory.build)(Some(&args), &context)
            .err()
            .map(|error| error.to_string())
    };
    let point = |utilization: i32, score: i32| json!({"shape": [{"utilization": utilization, "score": score}]});
    for (args, on, expected) in [
        (json!({}), false, None),
        (json!({}), true, None),
        (json!({"shape": []}), true, None),
        (point(0, 5), true, None),
        (point(0, 5), false, Some("StorageCapacityScoring")),
        (point(101, 5), true, Some("utilization 101")),
        (point(0, 11), true, Some("score 11")),
        (
            json!({"bindTimeoutSeconds": -10}),
            true,
            Some("bindTimeoutSeconds: -10"),
        ),
    ] {
        let error = build(args.clone(), on);
        match expected {
            None => assert_eq!(error, None, "{args}"),
            Some(part) => assert!(error.unwrap().contains(part), "{args}"),
        }
    }
}
