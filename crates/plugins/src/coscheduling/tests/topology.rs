//! Gangs that request a network topology; the clusters are those of upstream's
//! `network_topology_workflow_test.go`.

use super::*;
use koord_scheduler::framework::Verb;

const SPEC: &str = "network-topology-spec";
const MUST: &str = r#"{"gatherStrategy":[{"layer":"SpineLayer","strategy":"MustGather"}]}"#;
const PREFER: &str = r#"{"gatherStrategy":[{"layer":"BlockLayer","strategy":"PreferGather"},
    {"layer":"SpineLayer","strategy":"PreferGather"}]}"#;

/// Node, spine and block of each node.
const EIGHT: [(&str, &str, &str); 8] = [
    ("node-8", "s1", "b1"),
    ("node-1", "s1", "b1"),
    ("node-7", "s1", "b2"),
    ("node-2", "s1", "b2"),
    ("node-6", "s2", "b3"),
    ("node-3", "s2", "b3"),
    ("node-5", "s2", "b4"),
    ("node-4", "s2", "b4"),
];

fn layers() -> Value {
    json!([
        {"topologyLayer": "SpineLayer", "labelKey": ["spine"]},
        {"topologyLayer": "BlockLayer", "parentTopologyLayer": "SpineLayer", "labelKey": ["block"]},
        {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "BlockLayer"},
    ])
}

impl GangWorld {
    fn hang(&mut self, name: &str, spine: &str, block: &str, cpu: usize) {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "labels": {"spine": spine, "block": block}},
            "status": {"allocatable": {"cpu": cpu.to_string(), "pods": "110"}}
        }))
        .unwrap();
        self.engine.node_applied(Arc::new(node), at(self.now));
    }

    fn topology(&mut self, name: &str, layers: Value, status: Value, action: Action) {
        let object: ClusterNetworkTopology = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name}, "spec": {"networkTopologySpec": layers},
            "status": status,
        }))
        .unwrap();
        let change = ObjectChange {
            kind: TOPOLOGIES,
            action,
            old: None,
            new: Arc::new(object),
        };
        self.engine.object_changed(&change, at(self.now));
    }

    fn statuses(&mut self) -> Vec<Value> {
        let writes = std::mem::take(&mut self.writes).into_iter();
        let writes = writes.filter(|write| write.plural == "clusternetworktopologies");
        writes
            .map(|write| match write.verb {
                Verb::PatchStatus(body) => body["status"]["detailStatus"].clone(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn nodes_of(&self, pods: &[&str]) -> Vec<&str> {
        let nodes = pods.iter().map(|pod| self.bound.get(*pod));
        nodes.map(|node| node.map_or("", String::as_str)).collect()
    }
}

/// Rows "schedule failure, preempt success" and "…, preempt failure" of upstream's `TestNetworkTopology`.
#[test]
fn gang_preempts_within_one_topology_domain() {
    let none = "no candidate topology nodes can accommodate job, desiredOfferSlot: 4, topology topologyNode \
                SpineLayer/s1: 3;topology topologyNode SpineLayer/s2: 3, 0/8 nodes are available: 8 \
                Insufficient cpu.";
    for (priority, victims) in [(1, &["old-1"][..]), (1000, &[])] {
        let context = BuildContext {
            network_topology: true,
            ..BuildContext::default()
        };
        let args = json!({"awareNetworkTopology": true, "enablePreemption": true});
        let mut world = world_with(&["DefaultPreemption"], args, &context);
        for (name, spine, block) in EIGHT {
            world.hang(name, spine, block, 1);
        }
        world.topology("default", layers(), Value::Null, Action::ADD);
        // One in each spine; the less important one is evicted.
        for (name, node, priority) in [("old-1", "node-1", priority), ("old-4", "node-4", 1000)] {
            let mut pod = on_node(pod(name, json!({})), node);
            pod.spec.as_mut().unwrap().priority = Some(priority);
            world.apply(pod);
        }
        for mut pod in four(MUST) {
            pod.spec.as_mut().unwrap().priority = Some(1000);
            world.apply(pod);
        }
        world.run();
        let evicted = world.evicted.iter().map(|pod| &*pod.name);
        assert_eq!(evicted.collect::<Vec<_>>(), victims);
        assert!(world.bound.is_empty(), "{:?}", world.bound);
        let outcome = match victims.len() {
            0 => none,
            _ => "preempt success, alreadyWaitingForBound: 0/4",
        };
        let expected_message =
            format!("preemption: preemption already attempted by ns/p4 with message {outcome}");
        let message = &world.explained["p1"];
        assert!(message.ends_with(&expected_message), "{message}");
        let pods = ["p1", "p2", "p3", "p4"];
        let promised: BTreeSet<&str> = world.nominated.values().map(String::as_str).collect();
        let nodes = ["node-1", "node-2", "node-7", "node-8"];
        let nodes = if victims.is_empty() { &[][..] } else { &nodes };
        assert_eq!(promised, nodes.iter().copied().collect());
        for old in std::mem::take(&mut world.evicted) {
            world.delete(&old.named_object());
        }
        world.later(60);
        let nodes = ["node-1", "node-8", "node-2", "node-7"];
        let expected = if victims.is_empty() { [""; 4] } else { nodes };
        let message = (&world.conditions, &world.explained, &world.nominated);
        assert_eq!(world.nodes_of(&pods), expected, "{message:?}");
    }
}

fn empty(aware: bool) -> GangWorld {
    let context = BuildContext {
        network_topology: true,
        ..BuildContext::default()
    };
    built_world(json!({"awareNetworkTopology": aware}), &context)
}

/// Builds the cluster with this number of cores per node.
fn eight(cpu: impl Fn(&str) -> usize) -> GangWorld {
    let mut world = empty(true);
    for (name, spine, block) in EIGHT {
        world.hang(name, spine, block, cpu(name));
    }
    world.topology("default", layers(), Value::Null, Action::ADD);
    world
}

fn four(spec: &str) -> Vec<Pod> {
    let names = ["p1", "p2", "p3", "p4"];
    let pods = names.map(|name| annotated(name, "a", 4, json!({SPEC: spec})));
    pods.to_vec()
}

#[test]
fn gang_is_placed_in_one_domain() {
    let names = ["p1", "p2", "p3", "p4"];
    type Cores = fn(&str) -> usize;
    let rows: [(&str, Cores, [&str; 4]); 4] = [
        (PREFER, |_| 1, ["node-1", "node-8", "node-2", "node-7"]),
        (MUST, |_| 1, ["node-1", "node-8", "node-2", "node-7"]),
        (
            MUST,
            |node| if node == "node-4" { 4 } else { 1 },
            ["node-4"; 4],
        ),
        // Only the second spine has four cores.
        (
            MUST,
            |node| usize::from(node != "node-1"),
            ["node-3", "node-6", "node-4", "node-5"],
        ),
    ];
    for (spec, cpu, expected) in rows {
        let mut world = eight(cpu);
        // The last of them is tried first.
        for pod in four(spec).into_iter().rev() {
            world.apply(pod);
        }
        world.run();
        assert_eq!(world.nodes_of(&names), expected, "{spec}");
        assert_eq!(world.cycles, 4);
    }
}

#[test]
fn gang_that_does_not_fit_reports_free_slots() {
    let mut world = eight(|node| usize::from(node != "node-1" && node != "node-4"));
    for pod in four(MUST) {
        world.apply(pod);
    }
    world.run();
    let message = "0/8 nodes are available: no candidate topology nodes can accommodate job, \
               desiredOfferSlot: 4, topology topologyNode SpineLayer/s1: 3;topology topologyNode \
               SpineLayer/s2: 3, 0/8 nodes are available: 8 Insufficient cpu..";
    // The member that completed the gang was tried.
    assert_eq!(world.condition("p4"), message);
    let expected_message = &world.explained["p3"];
    assert!(
        expected_message.contains("gets rejected due to member Pod \"ns/p4\""),
        "{expected_message}"
    );
    assert_eq!((world.bound.len(), world.booked()), (0, (0, 0)));
    assert_eq!(world.cycles, 1, "no member is tried without a plan");
    // Six pods would fit, but not in one spine; one more core in the second is enough.
    world.hang("node-4", "s2", "b4", 1);
    world.later(60);
    let expected = ["node-3", "node-6", "node-4", "node-5"];
    assert_eq!(world.nodes_of(&["p1", "p2", "p3", "p4"]), expected);
}

#[test]
fn non_strict_gang_is_placed_in_one_domain() {
    let mut world = eight(|node| usize::from(node != "node-1" && node != "node-4"));
    for name in ["p1", "p2", "p3", "p4"] {
        let annotations = json!({SPEC: MUST, "mode": "NonStrict"});
        world.apply(annotated(name, "a", 3, annotations));
    }
    // No spine has enough cores for all; three members anywhere would meet the gang's minimum.
    world.run();
    world.later(60);
    assert_eq!((world.bound.len(), world.booked()), (0, (0, 0)));
}

#[test]
fn placed_pods_count_and_labels_move_nodes() {
    let mut world = eight(|_| 1);
    world.apply(on_node(pod("other", json!({})), "node-2"));
    for pod in four(MUST) {
        world.apply(pod);
    }
    world.run();
    let names = ["p1", "p2", "p3", "p4"];
    assert_eq!(
        world.nodes_of(&names),
        ["node-3", "node-6", "node-4", "node-5"]
    );
    // A node that moves to the other spine adds cores there and activates the waiting gang.
    let mut world = eight(|node| usize::from(!["node-7", "node-5"].contains(&node)));
    for pod in four(MUST) {
        world.apply(pod);
    }
    world.run();
    assert_eq!((world.bound.len(), world.cycles), (0, 1));
    world.hang("node-1", "s2", "b4", 1);
    world.later(60);
    let expected = ["node-3", "node-6", "node-1", "node-4"];
    assert_eq!(world.nodes_of(&names), expected);
}

/// Row "same-job nominated pod is excluded" of upstream's `RunFilterPluginsWithNominatedPods`.
#[test]
fn nominated_node_is_free_for_own_gang() {
    // Only the first spine has four cores.
    let mut world = eight(|node| usize::from(node != "node-4"));
    let mut pods = four(MUST);
    for (pod, priority) in pods.iter_mut().zip([1, 1, 1, 1000]) {
        pod.spec.as_mut().unwrap().priority = Some(priority);
    }
    let status = pods[3].status.get_or_insert_default();
    status.nominated_node_name = Some("node-1".to_owned());
    let single = pods[3].clone();
    for pod in pods {
        world.apply(pod);
    }
    world.run();
    let names = ["p1", "p2", "p3", "p4"];
    let nodes = ["node-1", "node-8", "node-2", "node-7"];
    assert_eq!(world.nodes_of(&names), nodes, "{:?}", world.conditions);
    // For pods of other gangs, the nominated node is taken.
    let mut world = eight(|node| usize::from(node == "node-1"));
    world.apply(single);
    world.apply(pod("other", json!({})));
    world.run();
    assert_eq!(world.nodes_of(&["other"]), [""]);
}

#[test]
fn nodes_are_assigned_by_member_index() {
    let mut world = eight(|_| 1);
    let index = |n: &str| json!({SPEC: MUST, "network-topology-index": n});
    for (name, more) in [
        ("p1", index("2")),
        ("p2", index("first")),
        ("p3", index("0")),
        ("p4", index("10")),
    ] {
        world.apply(annotated(name, "a", 4, more));
    }
    world.run();
    // Indexes 0, 2, 10, then the member without an index.
    let expected = ["node-1", "node-8", "node-2", "node-7"];
    assert_eq!(world.nodes_of(&["p3", "p1", "p4", "p2"]), expected);
}

/// Returns `pod` with topology selector `word`.
fn drawn(mut pod: Pod, word: &str) -> Pod {
    let key = annotations::NETWORK_TOPOLOGY_SELECTOR.to_owned();
    let all = pod.metadata.annotations.get_or_insert_default();
    all.insert(key, word.to_owned());
    pod
}

fn near(pod: Pod) -> Pod {
    drawn(pod, "job")
}

/// Rows of upstream's `TestPodGroupManager_PreScore`; each changes the state for the next one.
#[test]
fn single_pods_prefer_nodes_near_their_selector() {
    let names = ["p1", "p2", "p3", "p4", "p5", "p6"];
    for of_gang in [false, true] {
        let mut world = eight(|_| 1);
        world.hang("node-9", "s1", "b1", 1);
        for node in ["node-8", "node-7", "node-6"] {
            world.apply(near(on_node(pod(&format!("on-{node}"), json!({})), node)));
        }
        for name in names {
            // Members of a gang without a topology spec behave like single pods.
            let own = match of_gang {
                true => annotated(name, "a", 6, json!({})),
                false => pod(name, json!({})),
            };
            world.apply(near(own));
            world.run();
        }
        world.run();
        let mut nodes = world.nodes_of(&names);
        if of_gang {
            // The member that completed the gang is the first.
            nodes.rotate_right(1);
        }
        let expected = ["node-2", "node-1", "node-9", "node-3", "node-4", "node-5"];
        assert_eq!(nodes, expected, "{of_gang}");
    }
}

/// Builds a world with a gang in the first spine, one of whose members was deleted and whose node another pod
/// uses.
fn torn(spec: &str, policy: &str) -> GangWorld {
    let mut world = eight(|_| 1);
    let names = ["p1", "p2", "p3", "p4"];
    let annotations = json!({SPEC: spec, "match-policy": policy});
    let pods = names.map(|name| annotated(name, "a", 4, annotations.clone()));
    pods.iter().cloned().for_each(|pod| world.apply(pod));
    world.run();
    let first = ["node-1", "node-8", "node-2", "node-7"];
    assert_eq!(world.nodes_of(&names), first);
    world.delete(&pods[0]);
    world.apply(on_node(pod("other", json!({})), "node-1"));
    world.apply(annotated("p5", "a", 4, annotations));
    world.later(60);
    world
}

#[test]
fn replacement_member_joins_its_gang_domain() {
    let alone = "0/8 nodes are available: 4 Insufficient cpu, 4 node(s) didn't satisfy plugin(s) \
                 [Coscheduling].";
    let planned = "desiredOfferSlot: 1, topology topologyNode SpineLayer/s1: 0;topology topologyNode \
                   SpineLayer/s2: 0, ";
    for (policy, why) in [("once-satisfied", alone), ("waiting-and-running", planned)] {
        let mut world = torn(MUST, policy);
        assert_eq!(world.nodes_of(&["p5"]), [""], "{policy}");
        let message = world.condition("p5");
        assert!(message.contains(why), "{policy}: {message}");
        world.hang("node-9", "s1", "b2", 1);
        world.later(60);
        assert_eq!(world.nodes_of(&["p5"]), ["node-9"], "{policy}");
    }
    // Without any placed member there is no restriction.
    let mut world = torn(MUST, "once-satisfied");
    for (mate, node) in [("p2", "node-8"), ("p3", "node-2"), ("p4", "node-7")] {
        assert_eq!(world.nodes_of(&["p5"]), [""]);
        world.apply(on_node(pod(&format!("on-{node}"), json!({})), node));
        world.delete(&annotated(mate, "a", 4, json!({})));
        world.later(60);
    }
    let second = ["node-3", "node-4", "node-5", "node-6"];
    let node = world.nodes_of(&["p5"])[0];
    assert!(second.contains(&node), "{node:?} {:?}", world.conditions);
}

#[test]
fn late_member_is_placed_as_close_as_possible() {
    let mut world = torn(PREFER, "once-satisfied");
    // The spine of the other members is full.
    assert_eq!(world.nodes_of(&["p5"]), ["node-3"]);
    world.delete(&annotated("p5", "a", 4, json!({})));
    world.delete(&annotated("p2", "a", 4, json!({})));
    for (node, spine, block) in [("node-9", "s1", "b9"), ("a-node", "s2", "b0")] {
        world.hang(node, spine, block, 1);
    }
    world.apply(on_node(pod("on-8", json!({})), "node-8"));
    world.apply(annotated("p6", "a", 4, json!({SPEC: PREFER})));
    world.run();
    assert_eq!(world.nodes_of(&["p6"]), ["node-9"]);
}

#[test]
fn removed_or_relabelled_pod_attracts_no_pod() {
    let mut world = eight(|_| 1);
    let mates = ["node-7", "node-6", "node-4"].map(|node| {
        let mate = on_node(pod(&format!("on-{node}"), json!({})), node);
        near(mate)
    });
    mates.iter().cloned().for_each(|mate| world.apply(mate));
    world.apply(near(pod("first", json!({}))));
    world.run();
    // Two are in s2; b3 and b4 are equivalent.
    assert_eq!(world.nodes_of(&["first"]), ["node-3"]);
    world.delete(&near(pod("first", json!({}))));
    world.delete(&mates[1]);
    world.apply(drawn(mates[2].clone(), "other"));
    world.apply(near(pod("second", json!({}))));
    world.apply(drawn(pod("third", json!({})), "other"));
    world.run();
    assert_eq!(world.nodes_of(&["second", "third"]), ["node-2", "node-5"]);
    // The tree may be deleted and created again: placements are still stored.
    world.delete(&near(pod("second", json!({}))));
    world.topology("default", layers(), Value::Null, Action::DELETE);
    world.run();
    world.topology("default", layers(), Value::Null, Action::ADD);
    world.apply(near(pod("fourth", json!({}))));
    world.run();
    assert_eq!(world.nodes_of(&["fourth"]), ["node-2"]);
}

#[test]
fn pods_join_those_with_the_same_selector() {
    let mut world = eight(|node| if node == "node-5" { 2 } else { 1 });
    world.apply(near(on_node(pod("mate", json!({})), "node-5")));
    for pod in four(PREFER) {
        world.apply(near(pod));
    }
    world.run();
    // Nodes of the other member, then of its block, then of its spine.
    let expected = ["node-5", "node-4", "node-3", "node-6"];
    assert_eq!(world.nodes_of(&["p1", "p2", "p3", "p4"]), expected);
}

#[test]
fn gang_waits_without_tree_or_argument() {
    let mut world = empty(true);
    world.hang("n", "s", "b", 9);
    for pod in four(MUST) {
        world.apply(pod);
    }
    world.run();
    let none = "0/1 nodes are available: no cluster network topology.";
    assert_eq!(world.condition("p4"), none);
    // Only the object `default` counts.
    world.topology("other", layers(), Value::Null, Action::ADD);
    world.later(60);
    assert_eq!(world.bound.len(), 0);
    // Its layers have no order.
    let cycle = json!([{"topologyLayer": "A", "parentTopologyLayer": "A"}]);
    world.topology("default", cycle, Value::Null, Action::ADD);
    world.later(60);
    assert_eq!(world.bound.len(), 0);
    let invalid = "0/1 nodes are available: no cluster network topology: the layers of \
                   ClusterNetworkTopology default are invalid.";
    assert_eq!(world.condition("p4"), invalid);
    world.topology("default", layers(), Value::Null, Action::UPDATE);
    world.later(60);
    assert_eq!(world.bound.len(), 4);

    let mut world = empty(false);
    world.hang("n", "s", "b", 9);
    world.topology("default", layers(), Value::Null, Action::ADD);
    for pod in four(MUST) {
        world.apply(pod);
    }
    world.run();
    let off = format!("0/1 nodes are available: {UNAWARE}.");
    assert_eq!(world.condition("p4"), off);
}

#[test]
fn status_writes_are_rate_limited() {
    let mut world = eight(|_| 1);
    world.run();
    let written = world.statuses();
    assert_eq!(written.len(), 1);
    assert_eq!(written[0].as_array().unwrap().len(), 7);
    assert_eq!(written[0][0]["nodeNum"], 8);
    let shown = json!({"detailStatus": written[0]});
    world.topology("default", layers(), shown.clone(), Action::UPDATE);
    world.later(60);
    // A heartbeat does not change the status.
    world.hang("node-1", "s1", "b1", 1);
    world.later(60);
    assert_eq!(world.statuses(), [Value::Null; 0]);
    world.hang("node-9", "s3", "b9", 1);
    world.later(0);
    assert_eq!(world.statuses()[0][0]["nodeNum"], 9);
    world.hang("node-10", "s3", "b9", 1);
    world.later(1);
    assert_eq!(world.statuses(), [Value::Null; 0], "too soon");
    world.later(10);
    assert_eq!(world.statuses()[0][0]["nodeNum"], 10);
    // A write that was not observed is sent again; a deleted node is subtracted.
    world.later(10);
    assert_eq!(world.statuses().len(), 1);
    world.engine.node_deleted("node-10", at(world.now));
    world.later(10);
    assert_eq!(world.statuses()[0][0]["nodeNum"], 9);
    world.topology("default", layers(), shown, Action::DELETE);
    world.later(60);
    assert_eq!(world.statuses(), [Value::Null; 0]);
}

#[test]
fn nonlinear_layers_are_reported_once() {
    let mut world = empty(true);
    world.hang("n", "s", "b", 9);
    let bad = json!([{"topologyLayer": "SpineLayer"}]);
    for _ in 0..2 {
        world.topology("default", bad.clone(), Value::Null, Action::ADD);
        world.run();
    }
    assert_eq!(world.problems.len(), 1, "{:?}", world.problems);
    let expected = "topology layer \\\"NodeTopologyLayer\\\" is not listed";
    assert!(world.problems[0].contains(expected), "{:?}", world.problems);
    assert_eq!(world.statuses(), [Value::Null; 0]);
    world.topology("default", layers(), Value::Null, Action::UPDATE);
    world.run();
    assert_eq!(world.statuses().len(), 1);
}

#[test]
fn cyclic_layers_are_reported_and_affect_no_other_pod() {
    let mut world = empty(true);
    world.hang("n", "s", "b", 9);
    let layer = |name: &str, parent: &str| json!({"topologyLayer": name, "parentTopologyLayer": parent, "labelKey": ["k"]});
    let circle = json!([
        layer("NodeTopologyLayer", "A"),
        layer("A", "B"),
        layer("B", "A")
    ]);
    for _ in 0..2 {
        world.topology("default", circle.clone(), Value::Null, Action::ADD);
        world.run();
    }
    assert_eq!(world.problems.len(), 1, "{:?}", world.problems);
    assert!(
        world.problems[0].contains("hangs under itself"),
        "{:?}",
        world.problems
    );
    world.apply(pod("plain", json!({})));
    for pod in four(r#"{"gatherStrategy":[]}"#) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.bound(), ["plain"]);
}

#[test]
fn gang_without_topology_spec_is_not_restricted() {
    // Three on each spine.
    let mut world = eight(|node| usize::from(node != "node-1" && node != "node-3"));
    let names = ["p1", "p2", "p3", "p4"];
    for name in names {
        world.apply(annotated(name, "a", 4, json!({})));
    }
    world.run();
    assert_eq!(world.bound(), names);
    world.apply(pod("x", json!({})));
    world.run();
    assert_eq!(world.bound(), ["p1", "p2", "p3", "p4", "x"]);
}
