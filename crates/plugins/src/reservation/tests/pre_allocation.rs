//! Pre-allocation: upstream's tables on the plugin alone, then the effects that users see.

mod failed;
mod random;

use super::rows::PluginBench;
use super::*;
use crate::reservation::pre_allocation::NO_POD;
use koord_api::labels::{POD_PRE_ALLOCATABLE, RESERVATION_PRE_ALLOCATION_REQUIRED};
use koord_scheduler::framework::Overlay;

/// Adds pods to the node: `name=cpu/memory`, with `@priority` for those that are pre-allocatable.
fn with_pods(mut bench: PluginBench, pods: &str, cluster: bool) -> PluginBench {
    for token in pods.split_whitespace() {
        let Some((name, columns)) = token.split_once('=') else {
            bench = bench.on_node(token, "batch-cpu=1", json!({}));
            continue;
        };
        let (amounts, offer) = match columns.split_once('@') {
            Some((amounts, priority)) => (amounts, Some(priority)),
            None => (columns, None),
        };
        let (cpu, memory) = amounts.split_once('/').unwrap();
        let change = match offer {
            None => json!({"metadata": {"labels": {"app": "other"}}}),
            Some(_) if !cluster => json!({}),
            Some(priority) => json!({"metadata": {
                "labels": {"app": "other", POD_PRE_ALLOCATABLE: "true"},
                "annotations": {annotations::POD_PRE_ALLOCATABLE_PRIORITY: priority},
            }}),
        };
        bench = bench.on_node(name, &format!("cpu={cpu} memory={memory}Gi"), change);
    }
    bench
}

fn spec_of(cluster: bool, several: bool, required: bool) -> Value {
    let mode = if cluster { "Cluster" } else { "Default" };
    let policy = json!({"mode": mode, "enableMultiple": several});
    let label = json!({RESERVATION_PRE_ALLOCATION_REQUIRED: required.to_string()});
    json!({"metadata": {"labels": label},
        "spec": {"preAllocation": true, "preAllocationPolicy": policy}})
}

/// Returns why reservation `r` does not fit, or the pods that it absorbs and the score.
fn outcome_of(bench: &PluginBench, victims: &[&str], more: &[Arc<PodInfo>]) -> String {
    let pod = bench.engine.queued("r").unwrap().clone();
    let cycle = Cycle::new(&pod, bench.view());
    let row = bench.row();
    let state = match bench.plugin.pre_filter().unwrap().pre_filter(&cycle) {
        PreFilterResult::Ready { state, nodes } => {
            assert!(nodes.is_none_or(|nodes| nodes == [row]));
            state
        }
        PreFilterResult::Reject(rejection) => return rejection.message(),
        PreFilterResult::Skip => return "skipped".to_owned(),
    };
    let booked = bench.engine.cluster().nodes().booked(row);
    let victims: Vec<_> = booked
        .filter(|pod| victims.contains(&&*pod.name))
        .cloned()
        .collect();
    let release = bench.plugin.release().unwrap();
    let without = Cycle {
        overlay: Overlay {
            removed: &victims,
            added: &[],
        },
        ..cycle
    };
    let absorbed_now = release.absorbed_pods(&without, &state, row, &|_| true);
    let mut released = absorbed_now.clone().unwrap_or_default();
    if absorbed_now.is_none() {
        release.released(&cycle, &state, row, &mut released);
    }
    let mut removed = released.clone();
    removed.extend(victims);
    let overlay = Overlay {
        removed: &removed,
        added: more,
    };
    let cycle = Cycle {
        overlay,
        absorbed: absorbed_now.as_deref(),
        ..cycle
    };
    if let Err(rejection) = bench.plugin.filter().unwrap().filter(&cycle, &state, row) {
        return rejection.message();
    }
    let score = match bench.plugin.pre_score().unwrap().pre_score(&cycle) {
        PreScoreResult::Ready(state) => bench.plugin.score().unwrap().score(&cycle, &state, row),
        PreScoreResult::Skip => return "not scored".to_owned(),
    };
    let names: Vec<&str> = released.iter().map(|pod| &*pod.name).collect();
    format!("{names:?} {score}").replace('"', "")
}

#[test]
fn nodes_are_filtered_with_absorbable_pods() {
    const NODE: &str = "cpu=16 memory=32Gi pods=100";
    const CPU: &str = "Insufficient cpu by node";
    const BOTH: &str = "Insufficient cpu by node, Insufficient memory by node";
    let (free, two) = ("", "pod1=2/4@10 pod2=2/4@20 pod3=1/2");
    let (full, little) = (
        "pod1=8/10 pod2=2/4 pod3=1/2",
        "pod1=8/10 pod2=2/4 pod3=1/2@100 pod4=1/2@90",
    );
    let odd = "pod1=7/14 pod2=1/2@70 pod3=2/10@90 pod4=5/2@50";
    let three = "pod1=4/10 pod2=2/4 pod3=1/1@70 pod4=2/2@90 pod5=1/1@50";
    let pair = "pod1=7/14 pod2=1/2@70 pod3=5/10@90 pod4=1/2@50";
    let (big, small) = ("cpu=8 memory=16Gi", "cpu=4 memory=8Gi");
    let (cluster, default, several, one) = (true, false, true, false);
    // The last two columns: the result, and the result if nodes with enough resources absorb no pod.
    #[rustfmt::skip]
    let rows = [
        (cluster, several, big, free, "[] 100", "[] 100"),
        (cluster, several, big, two, "[pod2] 50", "[] 100"),
        (cluster, several, big, full, "[] 100", CPU),
        (cluster, several, big, little, CPU, CPU),
        (cluster, several, small, "pod1=7/14 pod2=1/2@70 pod3=2/10@90 pod4=4/2@50", BOTH, BOTH),
        (cluster, several, big, three, "[pod4] 50", "[pod4] 50"),
        (cluster, several, small, pair, "[pod2, pod4] 33", "[pod2, pod4] 33"),
        (cluster, one, big, free, "[] 0", "[] 0"),
        (cluster, one, big, two, "[pod2] 25", "[] 0"),
        (cluster, one, big, full, "[] 0", CPU),
        (cluster, one, big, little, CPU, CPU),
        (cluster, one, small, odd, BOTH, BOTH),
        (cluster, one, big, three, "[pod4] 18", "[pod4] 18"),
        (default, several, big, free, "[] 100", "[] 100"),
        (default, several, big, two, "[pod1] 50", "[] 100"),
        (default, several, big, full, "[] 100", CPU),
        (default, several, big, little, CPU, CPU),
        (default, several, small, pair, "[pod2, pod4] 33", "[pod2, pod4] 33"),
        (default, several, big, three, "[pod4] 50", "[pod4] 50"),
        (default, one, big, free, "[] 0", "[] 0"),
        (default, one, big, two, "[pod1] 25", "[] 0"),
        (default, one, big, full, "[] 0", CPU),
        (default, one, big, little, CPU, CPU),
        (default, one, big, three, "[pod4] 18", "[pod4] 18"),
    ];
    for (cluster, several, requests, pods, plain, sparing) in rows {
        for (prefers, expected) in [(false, plain), (true, sparing)] {
            let args = json!({"preAllocationConfig":
                {"enableClusterMode": cluster, "preferNoPreAllocatedPods": prefers}});
            let bench = with_pods(PluginBench::with(NODE, args), pods, cluster);
            let spec = spec_of(cluster, several, false);
            let bench = bench
                .reservation("r", "Restricted", requests, spec)
                .sync_plugin();
            let got = outcome_of(&bench, &[], &[]);
            let case = format!("cluster {cluster} several {several} spares {prefers}: {pods}");
            assert_eq!(got, expected, "{case}");
        }
    }
    let args = json!({"preAllocationConfig": {"enableClusterMode": true}});
    let bench = with_pods(PluginBench::with(NODE, args), odd, true);
    let bench = bench.reservation("r", "Restricted", small, spec_of(true, false, true));
    let all =
        format!("{BOTH}, Reservation(s) Insufficient memory, Reservation(s) Insufficient cpu");
    assert_eq!(outcome_of(&bench.sync_plugin(), &[], &[]), all);
}

#[test]
fn pod_is_absorbed_if_node_and_reservation_fit() {
    const NODE: &str = "cpu=32 memory=64Gi pods=100";
    let unfit = "unfit=8/32@1 fit=4/16@1 others=20/16";
    let half = "unfit=8/8@1 fit=2/8@1 others=20/1 goes=2/4";
    let columns = "unfit=8/8@1 fit=4/8@1 others=20/1";
    let none: &[&str] = &[];
    let (no_pod, nothing_meets) = (
        NO_POD,
        "node(s) no pod(s) to meet the pre-allocation requirements",
    );
    #[rustfmt::skip]
    let rows = [
        ("no pod is needed", false, "others=12/16", none, "", "[] 0"),
        ("the node's own fit check fails", false, "others=30/16", none, "", "[] 0"),
        ("the only candidate does not help", false, "others=29/16 pod=1/1@1", none, "", "Insufficient cpu by node"),
        ("required, without candidates", true, "others=12/16", none, "", no_pod),
        ("the only candidate uses none of it", true, "others=12/16 odd", none, "", nothing_meets),
        ("the second fits", true, unfit, none, "", "[fit] 100"),
        ("with a victim", true, half, &["goes"], "", "[fit] 50"),
        ("with a nominated pod", true, columns, none, "cpu=4 memory=4Gi",
            "Insufficient cpu by node, Reservation(s) Insufficient cpu"),
    ];
    for (name, required, pods, victims, more, expected) in rows {
        let bench = with_pods(PluginBench::new(NODE), pods, false);
        let requests = "cpu=4 memory=16Gi";
        let bench = bench.reservation("r", "Restricted", requests, spec_of(false, false, required));
        let bench = bench.sync_plugin();
        let more: Vec<Arc<PodInfo>> = if more.is_empty() {
            Vec::new()
        } else {
            let pod = super::rows::pod_value("more", more, json!({}));
            let pod = serde_json::from_value(pod).unwrap();
            vec![Arc::new(
                PodInfo::new(Arc::new(pod), bench.engine.cluster().resources()).unwrap(),
            )]
        };
        assert_eq!(outcome_of(&bench, victims, &more), expected, "{name}");
    }
}

#[test]
fn impossible_pre_allocations_are_rejected() {
    let judged = |args: Value, policy: &str, change: Value| {
        let bench = PluginBench::with("cpu=8 pods=9", args).pod_in("p", "cpu=4", "");
        let bench = bench
            .reservation("r", policy, "cpu=6", change)
            .sync_plugin();
        outcome_of(&bench, &[], &[])
    };
    let none = || json!({});
    let unsupported = "node(s) reservation pre allocation is unsupported with current attributes";
    for policy in ["", "Aligned"] {
        assert_eq!(
            judged(none(), policy, spec_of(false, false, false)),
            unsupported
        );
    }
    assert_eq!(
        judged(none(), "Restricted", spec_of(true, false, false)),
        "reservation requires cluster mode pre-allocation which is disabled"
    );
    let mut broken = spec_of(false, false, false);
    let term = json!({"key": "a", "operator": "Near", "values": ["b"]});
    broken["spec"]["owners"] = json!([{"labelSelector": {"matchExpressions": [term]}}]);
    let got = judged(none(), "Restricted", broken);
    assert!(got.starts_with("spec.owners[0].labelSelector"), "{got}");
    // It must absorb a pod, but is not allowed to.
    let label = json!({RESERVATION_PRE_ALLOCATION_REQUIRED: "true"});
    let only = json!({"metadata": {"labels": label}});
    assert_eq!(judged(none(), "Restricted", only), NO_POD);
    // With configured label and annotation keys.
    let config = json!({"enableClusterMode": true, "clusterLabelKey": "app",
        "clusterPriorityAnnotationKey": "first"});
    let offered = |bench: PluginBench, name: &str, first: &str| {
        let change =
            json!({"metadata": {"labels": {"app": "true"}, "annotations": {"first": first}}});
        bench.on_node(name, "cpu=2", change)
    };
    let bench = PluginBench::with("cpu=8 pods=9", json!({ "preAllocationConfig": config }));
    let bench = offered(offered(offered(bench, "a", "x"), "b", "2"), "c", "-1");
    let bench = bench.reservation("r", "Restricted", "cpu=6", spec_of(true, true, false));
    assert_eq!(outcome_of(&bench.sync_plugin(), &[], &[]), "[b, a] 33");
}

#[test]
fn pods_with_other_affinity_are_not_absorbed() {
    let wants = |affinity: Value| json!({annotations::RESERVATION_AFFINITY: affinity.to_string()});
    let exact = json!({"resourceNames": ["cpu"]}).to_string();
    let label = |key: &str| wants(json!({"reservationSelector": {"team": key}}));
    #[rustfmt::skip]
    let rows = [
        ("plain", json!({}), "[p] 66"),
        ("wants this one", wants(json!({"name": "r"})), "[p] 66"),
        ("wants another one", wants(json!({"name": "s"})), "[] 0"),
        ("wants its label", label("a"), "[p] 66"),
        ("wants another label", label("b"), "[] 0"),
        ("wants one of its size", json!({annotations::EXACT_MATCH_RESERVATION: exact}), "[] 0"),
        ("cannot be read", json!({annotations::RESERVATION_AFFINITY: "{"}), "[] 0"),
        ("has one", json!({annotations::RESERVATION_ALLOCATED: r#"{"name":"s","uid":"s"}"#}), "[] 0"),
        ("has this one", json!({annotations::RESERVATION_ALLOCATED: r#"{"name":"r","uid":"r"}"#}), "[p] 66"),
        ("had one", json!({annotations::RESERVATION_ALLOCATED: r#"{"name":"t","uid":"t"}"#}), "[p] 66"),
        ("goes", json!("goes"), "[] 0"),
        ("has who knows what", json!({annotations::RESERVATION_ALLOCATED: "{"}), "[] 0"),
    ];
    for (name, notes, expected) in rows {
        let bench = PluginBench::new("cpu=16 pods=9");
        let metadata = match notes == "goes" {
            true => json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            false => json!({"annotations": notes}),
        };
        let bench = bench.on_node("p", "cpu=4", json!({"metadata": metadata}));
        let mut change = spec_of(false, false, false);
        change["metadata"]["labels"]["team"] = json!("a");
        // That the reservation is closed to new owners does not matter.
        change["spec"]["unschedulable"] = json!(true);
        let bench = bench.reservation("r", "Restricted", "cpu=6", change);
        let bench = bench.reservation("s", "Restricted", "cpu=1", json!({}));
        let mut bench = bench.sync_plugin();
        let row = bench.row();
        let mut fx = Effects::default();
        let pods: Vec<_> = bench.engine.cluster().nodes().pods(row).cloned().collect();
        let mut plugin = std::mem::replace(
            &mut bench.plugin,
            build(None, &BuildContext::default()).unwrap(),
        );
        for pod in &pods {
            plugin
                .pod_events()
                .unwrap()
                .on_assigned(pod, row, bench.view(), &mut fx);
        }
        bench.plugin = plugin;
        let got = outcome_of(&bench, &[], &[]);
        // The score is that of the absorbed pod.
        assert_eq!(got, expected, "{name}");
    }
}

/// Upstream's case: the owners are the pods of a controller, and another controller created the pod.
#[test]
fn pods_of_another_controller_are_not_absorbed() {
    for (of, taken) in [("rs", "[p] 66"), ("other", "[] 0")] {
        let owner_references = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": of, "uid": of,
            "controller": true}]);
        let bench = PluginBench::new("cpu=16 pods=9");
        let pod = json!({"metadata": {"ownerReferences": owner_references}});
        let bench = bench.on_node("p", "cpu=4", pod);
        let mut change = spec_of(false, false, false);
        let controller = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "",
            "controller": true});
        change["spec"]["owners"] = json!([{"controller": controller}]);
        let bench = bench.reservation("r", "Restricted", "cpu=6", change);
        assert_eq!(outcome_of(&bench.sync_plugin(), &[], &[]), taken, "{of}");
    }
}

/// Creates a reservation of `cpu` that may be placed over pods of `app`.
fn pre_allocate(world: &mut ReservationWorld, name: &str, cpu: &str, app: &str, mut change: Value) {
    let mut all = json!({"spec": {"preAllocation": true, "allocatePolicy": "Restricted"}});
    merge(&mut all, &change.take());
    world.reserve(name, cpu, app, all);
}

fn running(world: &mut ReservationWorld, name: &str, cpu: &str, app: &str) {
    world.pod(name, cpu, app, json!({"spec": {"nodeName": "n"}}));
}

#[test]
fn running_pod_becomes_owner() {
    for decide_all_first in [false, true] {
        let mut world = ReservationWorld::new();
        world.decide_all_first = decide_all_first;
        world.node("n", 8);
        running(&mut world, "p", "4", "web");
        world.reserve(
            "plain",
            "6",
            "web",
            json!({"spec": {"allocatePolicy": "Restricted"}}),
        );
        world.run();
        assert_eq!(world.status("plain")["phase"], Value::Null);
        world.unreserve("plain");
        pre_allocate(&mut world, "r", "6", "web", json!({}));
        world.run();
        let status = world.status("r");
        assert_eq!(status["phase"], "Available");
        assert_eq!(status["nodeName"], "n");
        assert_eq!(status["currentOwners"][0]["name"], "p");
        assert_eq!(status["allocated"]["cpu"], "4");
        assert_eq!(world.result_of("p"), "n (r)");
        // Two cores are left in the reservation, and two outside of it.
        assert_eq!(world.booked("n"), 6_000);
        world.pod("owner", "2", "web", json!({}));
        world.pod("stranger", "2", "other", json!({}));
        world.pod("late", "1", "other", json!({}));
        world.run();
        assert_eq!(world.result_of("owner"), "n (r)");
        assert_eq!(world.result_of("stranger"), "n");
        assert_eq!(world.booked("n"), 8_000);
        assert!(world.last_message("late").contains("Insufficient cpu"));
        // The resources of the deleted pod return to the reservation.
        world.pod_gone("p");
        world.later(60);
        assert_eq!(world.booked("n"), 8_000);
        assert_eq!(world.status("r")["allocated"]["cpu"], "2");
        for pods_first in [false, true] {
            world.restart(pods_first);
            assert_eq!(world.booked("n"), 8_000);
        }
    }
}

#[test]
fn absorbed_pod_may_use_up_reservation() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    running(&mut world, "p", "4", "web");
    pre_allocate(
        &mut world,
        "r",
        "6",
        "web",
        json!({"spec": {"allocateOnce": true}}),
    );
    world.run();
    assert_eq!(world.status("r")["phase"], "Succeeded");
    assert_eq!(world.result_of("p"), "n (r)");
    assert_eq!(world.booked("n"), 4_000);
}

#[test]
fn pod_is_absorbed_once() {
    for decide_all_first in [false, true] {
        let mut world = ReservationWorld::new();
        world.decide_all_first = decide_all_first;
        world.node("n", 8);
        running(&mut world, "p", "4", "web");
        running(&mut world, "q", "3", "web");
        for (name, cpu) in [("a", "4"), ("b", "5")] {
            pre_allocate(&mut world, name, cpu, "web", json!({}));
        }
        world.run();
        // One absorbs `p`; the second does not fit with only `q` absorbed.
        let phases = ["a", "b"].map(|name| world.status(name)["phase"].clone());
        assert_eq!(phases, [json!("Available"), Value::Null]);
        assert_eq!(
            (world.result_of("p"), world.result_of("q")),
            ("n (a)".to_owned(), "n".to_owned())
        );
        assert_eq!(
            world.last_message("b"),
            "0/1 nodes are available: 1 Insufficient cpu. \
             1 Reservation(s) for node reason that Insufficient cpu by node, \
             1 Reservation(s) matched owner total"
        );
        assert_eq!(world.booked("n"), 7_000);
    }
}

#[test]
fn several_pods_are_absorbed_together() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    for (name, cpu) in [("a", "2"), ("b", "2"), ("c", "3")] {
        running(&mut world, name, cpu, "web");
    }
    let several = json!({"spec": {"preAllocationPolicy": {"enableMultiple": true}}});
    pre_allocate(&mut world, "one", "6", "web", json!({}));
    world.run();
    assert!(
        world
            .last_message("one")
            .contains("Insufficient cpu by node"),
        "{}",
        world.last_message("one")
    );
    world.unreserve("one");
    pre_allocate(&mut world, "r", "6", "web", several);
    world.run();
    assert_eq!(world.status("r")["phase"], "Available");
    let fates: Vec<String> = ["a", "b", "c"].iter().map(|p| world.result_of(p)).collect();
    assert_eq!(fates, ["n (r)", "n", "n (r)"]);
    assert_eq!(world.status("r")["allocated"]["cpu"], "5");
    assert_eq!(world.booked("n"), 8_000);
}

#[test]
fn required_pre_allocation_waits_for_a_pod() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    let must = json!({"metadata": {"labels": {RESERVATION_PRE_ALLOCATION_REQUIRED: "true"}}});
    pre_allocate(&mut world, "r", "2", "web", must);
    world.run();
    assert!(
        world.last_message("r").contains(NO_POD),
        "{}",
        world.last_message("r")
    );
    running(&mut world, "other", "1", "other");
    world.later(1);
    assert_eq!(world.status("r")["phase"], Value::Null);
    let writes = world.writes;
    world.later(20);
    assert_eq!(world.writes, writes);
    // A pod that already runs counts once it is labeled, and so does one that starts.
    merge(
        world.pods.get_mut("other").unwrap(),
        &json!({"metadata": {"labels": {"app": "web"}}}),
    );
    world.deliver("other");
    world.later(20);
    assert_eq!(world.status("r")["phase"], "Available");
    assert_eq!(world.result_of("other"), "n (r)");
    let must = json!({"metadata": {"labels": {RESERVATION_PRE_ALLOCATION_REQUIRED: "true"}}});
    pre_allocate(&mut world, "s", "2", "db", must);
    world.run();
    world.pod("fresh", "1", "db", json!({}));
    world.later(20);
    assert_eq!(world.result_of("fresh"), "n (s)");
}

#[test]
fn reservation_that_does_not_fit_waits_for_a_pod() {
    // No pod can be absorbed, so only the node's own fit check reports the shortage.
    let refused = |world: &ReservationWorld| world.last_message("r").contains("Insufficient cpu");
    let mut world = ReservationWorld::new();
    world.node("n", 4);
    running(&mut world, "p", "3", "other");
    pre_allocate(&mut world, "r", "4", "web", json!({}));
    world.run();
    assert!(refused(&world), "{}", world.last_message("r"));
    merge(
        world.pods.get_mut("p").unwrap(),
        &json!({"metadata": {"labels": {"app": "web"}}}),
    );
    world.deliver("p");
    world.later(20);
    assert_eq!(world.result_of("p"), "n (r)");

    // A pod that was just placed is not bound yet.
    let mut world = ReservationWorld::new();
    world.decide_all_first = true;
    world.node("n", 4);
    world.pod("p", "3", "web", json!({}));
    assert!(world.engine.schedule_one(world.now).is_some());
    pre_allocate(&mut world, "r", "4", "web", json!({}));
    assert!(world.engine.schedule_one(world.now).is_some());
    world.run();
    assert!(refused(&world), "{}", world.last_message("r"));
    world.later(20);
    assert_eq!(world.result_of("p"), "n (r)");

    // A pod that cannot be absorbed wakes no reservation.
    pre_allocate(&mut world, "s", "4", "db", json!({}));
    world.run();
    let attempts = |world: &ReservationWorld| {
        world
            .messages
            .iter()
            .filter(|(name, _)| name == "s")
            .count()
    };
    let before = attempts(&world);
    world.node("m", 1);
    world.later(20);
    world.pod("q", "1", "other", json!({"spec": {"nodeName": "m"}}));
    world.later(20);
    assert_eq!(attempts(&world), before);
}

#[test]
fn half_failed_placement_is_retried() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    running(&mut world, "p", "4", "web");
    world.broken = true;
    pre_allocate(&mut world, "r", "6", "web", json!({}));
    world.run();
    assert_eq!(world.status("r")["phase"], Value::Null);
    assert_eq!(world.booked("n"), 4_000);
    assert_eq!(world.result_of("p"), "n");
    // The pod was annotated, but the reservation was not placed.
    let uid = world.reservations["r"]["metadata"]["uid"].clone();
    let text = json!({"name": "r", "uid": uid}).to_string();
    let note = json!({"metadata": {"annotations": {annotations::RESERVATION_ALLOCATED: text}}});
    merge(world.pods.get_mut("p").unwrap(), &note);
    world.deliver("p");
    world.broken = false;
    world.later(60);
    assert_eq!(world.status("r")["phase"], "Available");
    assert_eq!(world.status("r")["currentOwners"][0]["name"], "p");
    assert_eq!(world.booked("n"), 6_000);
}

#[test]
fn absorbed_pod_without_annotation_stays_taken() {
    let mut world = ReservationWorld::new();
    world.node("n", 20);
    running(&mut world, "p", "4", "web");
    pre_allocate(&mut world, "r", "6", "web", json!({}));
    while world.engine.schedule_one(world.now).is_some() {}
    // The pod's kubelet updates its status, and another reservation arrives.
    merge(
        world.pods.get_mut("p").unwrap(),
        &json!({"status": {"phase": "Running"}}),
    );
    world.deliver("p");
    pre_allocate(&mut world, "s", "6", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("p"), "n (r)");
    assert_eq!(world.status("r")["phase"], "Available");
    // It also fits without absorbing the pod.
    assert_eq!(world.status("s")["phase"], "Available");
    assert_eq!(world.status("s").get("currentOwners"), None);
    assert_eq!(world.booked("n"), 12_000);
}
