//! Room for gangs: pods of lower priority go from several nodes at once, or nobody goes.

use super::*;

const ATTEMPTED: &str = "preemption: preemption already attempted by ns/";

/// With whoever evicts for single pods behind it, and quotas.
fn evicting() -> World {
    let others = ["ElasticQuota", "DefaultPreemption"];
    let context = BuildContext::default();
    world_with(&others, json!({"enablePreemption": true}), &context)
}

/// A pod of so many cores and this priority, on a node or not.
fn sized(mut pod: Pod, cpu: usize, priority: i32) -> Pod {
    let spec = pod.spec.get_or_insert_default();
    spec.priority = Some(priority);
    let requests = json!({"requests": {"cpu": cpu.to_string()}});
    spec.containers[0].resources = Some(serde_json::from_value(requests).unwrap());
    pod
}

fn plain(name: &str, node: &str, cpu: usize, priority: i32) -> Pod {
    on_node(sized(pod(name, json!({})), cpu, priority), node)
}

fn labelled(mut pod: Pod, key: &str, value: &str) -> Pod {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(key.to_owned(), value.to_owned());
    pod
}

fn mentions<'a>(said: impl IntoIterator<Item = &'a String>, text: &str) -> usize {
    said.into_iter().filter(|said| said.contains(text)).count()
}

/// Members `m1` … of gang `a`.
fn members(count: usize, min: usize, cpu: usize, more: &Value) -> Vec<Pod> {
    let member = |nth| annotated(&format!("m{nth}"), "a", min, more.clone());
    (1..=count)
        .map(|nth| sized(member(nth), cpu, 1000))
        .collect()
}

impl World {
    fn victims(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.evicted.iter().map(|pod| &*pod.name).collect();
        names.sort_unstable();
        names
    }

    /// The first of those that are to go is gone.
    fn one_leaves(&mut self) {
        let victim = self.evicted.remove(0);
        self.delete(&victim.named_object());
    }

    fn all_leave(&mut self) {
        while !self.evicted.is_empty() {
            self.one_leaves();
        }
    }

    fn full(nodes: usize, cores: usize, priority: i32) -> Self {
        let mut world = evicting();
        for node in 1..=nodes {
            world.node(&format!("n{node}"), cores);
            let (name, node) = (format!("v{node}"), format!("n{node}"));
            world.apply(plain(&name, &node, cores, priority));
        }
        world
    }
}

#[test]
fn a_gang_takes_the_place_of_others_on_several_nodes() {
    let mut world = World::full(4, 2, 1);
    world.apply(plain("more", "n4", 0, 1));
    for pod in members(3, 3, 2, &json!({})) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims().len(), 3, "{:?}", world.victims());
    assert_eq!(world.nominated.len(), 3, "{:?}", world.nominated);
    let nodes: BTreeSet<&String> = world.nominated.values().collect();
    assert_eq!(nodes.len(), 3, "each its own");
    assert!(world.bound.is_empty());
    // Nobody takes the place meanwhile who is not more important.
    let left: BTreeSet<String> = (1..=4).map(|n| format!("n{n}")).collect();
    let promised = world.nominated.clone();
    world.one_leaves();
    let never = json!({"spec": {"preemptionPolicy": "Never"}});
    world.apply(sized(pod("other", never), 2, 1000));
    world.later(60);
    assert!(world.bound.is_empty(), "{:?}", world.bound);
    assert_eq!(world.nominated, promised, "one place is not the gang's");
    let waits = "preemption: not eligible due to terminating pod on the nominated node.";
    let said = world
        .conditions
        .values()
        .filter(|said| said.ends_with(waits));
    assert_eq!(said.count(), 1, "{:?}", world.conditions);
    let waits = "with message not eligible due to terminating pod on the nominated node.";
    let said = world
        .explained
        .values()
        .filter(|said| said.ends_with(waits));
    assert!(said.count() > 0, "{:?}", world.explained);
    world.one_leaves();
    world.later(60);
    assert!(world.bound.is_empty(), "{:?}", world.bound);
    assert_eq!(world.nominated, promised);
    assert_eq!(
        world.victims().len(),
        1,
        "nobody else goes: {:?}",
        world.victims()
    );
    world.one_leaves();
    world.later(60);
    assert_eq!(world.bound(), ["m1", "m2", "m3"]);
    assert_eq!(world.bound, promised);
    assert_eq!(
        left.difference(&promised.into_values().collect()).count(),
        1
    );
}

#[test]
fn nobody_goes_for_a_gang_that_would_not_fit() {
    let mut world = World::full(3, 2, 1);
    for pod in members(4, 4, 2, &json!({})) {
        world.apply(pod);
    }
    world.run();
    assert!(world.victims().is_empty(), "{:?}", world.victims());
    assert!(world.nominated.is_empty());
    let why = "0/3 nodes are available: 3 Insufficient cpu.";
    let room = format!("preemption: {why}");
    assert_eq!(world.condition("m4"), format!("{why} {room}"));
    let told = format!("{ATTEMPTED}m4 with message {why}");
    for other in ["m1", "m2", "m3"] {
        let said = &world.explained[other];
        assert!(said.ends_with(&told), "{said}");
    }
    // Who came last may be too much.
    let mut world = World::full(3, 2, 1);
    for pod in members(4, 3, 2, &json!({})) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims().len(), 3);
    world.all_leave();
    world.later(60);
    assert_eq!(world.bound().len(), 3);
}

/// Upstream: `Test_preemptionEvaluatorImpl_preempt`. Nodes of 32 cores, pods of 16.
#[test]
fn whether_and_for_whom_a_gang_evicts() {
    struct Row {
        name: &'static str,
        /// Node and priority.
        there: &'static [(&'static str, i32)],
        change: fn(Pod) -> Pod,
        victims: usize,
        says: &'static str,
    }
    let rows = [
        Row {
            name: "job not eligible due to preemption policy",
            there: &[("n1", 1), ("n1", 1), ("n2", 1), ("n2", 1)],
            change: |mut pod| {
                let spec = pod.spec.get_or_insert_default();
                spec.preemption_policy = Some("Never".to_owned());
                pod
            },
            victims: 0,
            says: "not eligible due to preemptionPolicy=Never.",
        },
        Row {
            name: "unschedulableAndUnResolvable",
            there: &[("n1", 1), ("n1", 1), ("n2", 1), ("n2", 1)],
            change: |pod| sized(pod, 64, 1000),
            victims: 0,
            says: "0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        },
        Row {
            name: "no potential victims",
            there: &[("n1", 1000), ("n1", 1000), ("n2", 1000), ("n2", 1000)],
            change: |pod| pod,
            victims: 0,
            says: "0/2 nodes are available: 2 no potential victims.",
        },
        Row {
            name: "preempt success",
            there: &[("n1", 1), ("n1", 1), ("n2", 1), ("n2", 1)],
            change: |pod| pod,
            victims: 2,
            says: "preempt success, alreadyWaitingForBound: 0/2",
        },
        Row {
            name: "preempt success with one waiting pod",
            there: &[("n1", 1), ("n1", 1), ("n2", 1)],
            change: |pod| pod,
            victims: 1,
            says: "preempt success, alreadyWaitingForBound: 1/2",
        },
    ];
    for row in rows {
        let name = row.name;
        let mut world = evicting();
        world.node("n1", 32);
        world.node("n2", 32);
        for (nth, (node, priority)) in row.there.iter().enumerate() {
            world.apply(plain(&format!("existing-{nth}"), node, 16, *priority));
        }
        for pod in members(2, 2, 16, &json!({})) {
            world.apply((row.change)(pod));
        }
        world.run();
        assert_eq!(world.victims().len(), row.victims, "{name}");
        assert_eq!(
            world.nominated.len(),
            if row.victims > 0 { 2 } else { 0 },
            "{name}"
        );
        // The one that failed is told what became of it, the other one who asked.
        let mut failed = ["m1", "m2"].map(|pod| (world.condition(pod).to_owned(), pod));
        failed.sort_by_key(|(said, _)| said.is_empty() || said.contains("gets rejected"));
        let [(said, trigger), (_, other)] = failed;
        match row.victims {
            0 => assert!(
                said.ends_with(&format!("preemption: {}", row.says)),
                "{name}: {said}"
            ),
            _ => assert!(!said.contains("preemption"), "{name}: {said}"),
        }
        // Who waited is told that it was rejected.
        if row.victims != 1 {
            let told = &world.explained[other];
            let expected = format!("{ATTEMPTED}{trigger} with message {}", row.says);
            assert!(told.ends_with(&expected), "{name}: {told}");
        }
        world.all_leave();
        world.later(60);
        assert_eq!(world.bound().len(), row.victims.min(1) * 2, "{name}");
    }
}

#[test]
fn members_of_a_lenient_gang_are_told_that_it_was_decided() {
    let mut world = World::full(3, 2, 1);
    for pod in members(3, 3, 2, &json!({"mode": "NonStrict"})) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims().len(), 3, "one plan for all");
    assert_eq!(world.nominated.len(), 3);
    let told = "preemption: preemption already attempted by ns/m";
    assert_eq!(
        mentions(world.conditions.values(), told),
        2,
        "{:?}",
        world.conditions
    );
    let success = "with message preempt success, alreadyWaitingForBound: 0/3";
    assert_eq!(mentions(world.conditions.values(), success), 2);
    world.all_leave();
    world.later(60);
    assert_eq!(world.bound().len(), 3);
}

#[test]
fn who_is_spared() {
    type Change = fn(Pod) -> Pod;
    let rows: [(&str, Change, Change, bool); 5] = [
        ("anybody", |pod| pod, |pod| pod, true),
        (
            "not to be preempted",
            |pod| labelled(pod, "scheduling.koordinator.sh/disable-preemptible", "true"),
            |pod| pod,
            false,
        ),
        (
            "takes what its quota guarantees",
            |pod| labelled(pod, "quota.scheduling.koordinator.sh/preemptible", "false"),
            |pod| pod,
            false,
        ),
        // The least important member decides, whoever is tried first.
        (
            "more important than one of them",
            |pod| sized(pod, 2, 7),
            |pod| sized(pod, 2, 5),
            false,
        ),
        (
            "less than all of them",
            |pod| sized(pod, 2, 3),
            |pod| sized(pod, 2, 5),
            true,
        ),
    ];
    for (name, theirs, first, evicts) in rows {
        for first_fails in [true, false] {
            let mut world = evicting();
            for node in ["n1", "n2"] {
                world.node(node, 2);
                world.apply(theirs(plain(&format!("v{node}"), node, 2, 1)));
            }
            let mut pods = members(2, 2, 2, &json!({}));
            pods[usize::from(first_fails)] = first(pods[usize::from(first_fails)].clone());
            for pod in pods {
                world.apply(pod);
            }
            world.run();
            assert_eq!(world.victims().len(), 2 * usize::from(evicts), "{name}");
            let hopeless = "preemption: 0/2 nodes are available: 2 no potential victims.";
            let said = mentions(world.conditions.values(), hopeless);
            assert_eq!(said, usize::from(!evicts), "{name}: {:?}", world.conditions);
        }
    }
    // Nor does a gang evict its own members.
    let mut world = evicting();
    world.node("n1", 2);
    let policy = json!({"match-policy": "only-waiting"});
    let there = sized(annotated("m0", "a", 2, policy.clone()), 2, 1);
    world.apply(on_node(there, "n1"));
    for pod in members(2, 2, 1, &policy) {
        world.apply(pod);
    }
    world.run();
    assert!(world.victims().is_empty(), "{:?}", world.victims());
}

/// Of the pods labelled with this app, so many may be disrupted.
fn budget(app: &str, allowed: i32) -> ObjectChange {
    let budget: k8s_openapi::api::policy::v1::PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": app, "namespace": "ns", "uid": app},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    }))
    .unwrap();
    ObjectChange {
        kind: budgets::BUDGETS,
        action: Action::ADD,
        old: None,
        new: Arc::new(budget),
    }
}

#[test]
fn budgets_are_kept_over_several_nodes() {
    let mut world = evicting();
    for node in ["n1", "n2"] {
        world.node(node, 2);
        for app in ["db", "web"] {
            let name = format!("{app}-{node}");
            // Were it not for the budget, the database would go.
            let priority = if app == "db" { 1 } else { 2 };
            world.apply(labelled(plain(&name, node, 1, priority), "app", app));
        }
    }
    world.engine.object_changed(&budget("db", 1), at(0));
    // One on each node: they do not share one.
    let mut pods = members(2, 2, 1, &json!({}));
    for pod in &mut pods {
        let ports = json!([{"containerPort": 80, "hostPort": 80}]);
        let containers = &mut pod.spec.as_mut().unwrap().containers;
        containers[0].ports = serde_json::from_value(ports).unwrap();
    }
    for pod in pods {
        world.apply(pod);
    }
    world.run();
    let dbs = world
        .victims()
        .iter()
        .filter(|name| name.starts_with("db"))
        .count();
    assert_eq!(
        (world.victims().len(), dbs),
        (2, 1),
        "{:?}",
        world.victims()
    );
}

#[test]
fn a_budget_is_broken_once_however_many_come() {
    let mut world = evicting();
    world.node("n1", 6);
    world.node("n2", 2);
    world.apply(labelled(plain("p", "n1", 6, 1), "app", "db"));
    world.apply(plain("v", "n2", 2, 1));
    world.engine.object_changed(&budget("db", 0), at(0));
    // The larger one is tried first.
    let mut pods = members(2, 2, 2, &json!({}));
    pods[1] = sized(pods[1].clone(), 4, 1000);
    for pod in pods {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims(), ["p"]);
}

fn quota(name: &str, cpu: usize) -> ObjectChange {
    quota_below("", name, cpu)
}

fn quota_below(parent: &str, name: &str, cpu: usize) -> ObjectChange {
    let quota: koord_api::scheduling::ElasticQuota = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {
            "quota.scheduling.koordinator.sh/parent": parent,
            "quota.scheduling.koordinator.sh/is-parent": if name == "p" { "true" } else { "false" },
        }},
        "spec": {"max": {"cpu": cpu.to_string()}, "min": {"cpu": cpu.to_string()}}
    }))
    .unwrap();
    ObjectChange {
        kind: "elasticquotas.v1alpha1.scheduling.sigs.k8s.io",
        action: Action::ADD,
        old: None,
        new: Arc::new(quota),
    }
}

#[test]
fn a_gang_makes_room_in_its_quota_too() {
    struct Row {
        name: &'static str,
        /// Members, of two cores each, and how many are needed.
        gang: (usize, usize),
        /// Cores of the one node. Its pods of two cores: two of the gang's quota, one of another.
        cores: usize,
        change: fn(Pod) -> Pod,
        victims: &'static [&'static str],
        bound: usize,
    }
    let rows = [
        Row {
            name: "only pods of the quota, however unimportant others are",
            gang: (2, 2),
            cores: 20,
            change: |pod| pod,
            victims: &["q1", "q2"],
            bound: 2,
        },
        Row {
            name: "one member has room in the quota, both have not",
            gang: (2, 2),
            cores: 20,
            change: |pod| {
                if pod.metadata.name.as_deref() == Some("q2") {
                    sized(pod, 0, 1)
                } else {
                    pod
                }
            },
            victims: &["q1"],
            bound: 2,
        },
        Row {
            name: "the quota is too small for them all",
            gang: (3, 3),
            cores: 20,
            change: |pod| pod,
            victims: &[],
            bound: 0,
        },
        Row {
            name: "but not for those that are needed",
            gang: (3, 2),
            cores: 20,
            change: |pod| pod,
            victims: &["q1", "q2"],
            bound: 2,
        },
        Row {
            name: "nor for those, though many come behind them",
            gang: (7, 2),
            cores: 20,
            change: |pod| pod,
            victims: &["q1", "q2"],
            bound: 2,
        },
        Row {
            name: "one of them may not go",
            gang: (2, 2),
            cores: 20,
            change: |pod| match pod.metadata.name.as_deref() {
                Some("q1") => labelled(pod, "quota.scheduling.koordinator.sh/preemptible", "false"),
                _ => pod,
            },
            victims: &[],
            bound: 0,
        },
        Row {
            name: "the node is full besides",
            gang: (2, 2),
            cores: 6,
            change: |pod| pod,
            victims: &["q1", "q2"],
            bound: 2,
        },
    ];
    for row in rows {
        let name = row.name;
        let mut world = evicting();
        world.node("n1", row.cores);
        for (quota_name, cpu) in [("q", 4), ("r", 20)] {
            world.engine.object_changed(&quota(quota_name, cpu), at(0));
        }
        let of = |pod, quota| labelled(pod, "quota.scheduling.koordinator.sh/name", quota);
        for (pod, quota, priority) in [("q1", "q", 1), ("q2", "q", 1), ("r1", "r", 0)] {
            world.apply((row.change)(of(plain(pod, "n1", 2, priority), quota)));
        }
        for pod in members(row.gang.0, row.gang.1, 2, &json!({})) {
            world.apply(of(pod, "q"));
        }
        world.run();
        let victims = world.victims();
        assert_eq!(victims, row.victims, "{name}: {:?}", world.conditions);
        world.all_leave();
        world.later(60);
        assert_eq!(
            world.bound().len(),
            row.bound,
            "{name}: {:?}",
            world.conditions
        );
    }
}

/// Members of two quotas, which have one above them: what one of them takes, the other has not.
#[test]
fn a_gang_of_several_quotas_makes_room_in_the_one_above_them() {
    struct Row {
        name: &'static str,
        /// Cores of the quota above, of the two below, and of the node.
        cores: [usize; 3],
        /// Pods of two cores, with their quotas.
        pods: &'static [(&'static str, &'static str)],
        victims: &'static [&'static str],
    }
    let rows = [
        Row {
            name: "what goes from one quota is room for the other",
            cores: [4, 4, 20],
            pods: &[("v1", "a"), ("v2", "a")],
            victims: &["v1", "v2"],
        },
        Row {
            name: "one has to go, though there is room for each of them",
            cores: [4, 4, 20],
            pods: &[("v1", "a")],
            victims: &["v1"],
        },
        Row {
            name: "the one above is too small for both, so nobody leaves the node",
            cores: [2, 4, 4],
            pods: &[("v1", ""), ("v2", "")],
            victims: &[],
        },
        Row {
            name: "there is room for both",
            cores: [6, 4, 4],
            pods: &[("v1", "a"), ("v2", "")],
            victims: &["v1", "v2"],
        },
    ];
    for row in rows {
        let [above, below, node] = row.cores;
        let config = json!({"enableCheckParentQuota": true, "enableRuntimeQuota": false});
        let mut world = world_given(
            &["ElasticQuota", "DefaultPreemption"],
            &[
                (NAME, json!({"enablePreemption": true})),
                ("ElasticQuota", config),
            ],
            &BuildContext::default(),
        );
        world.node("n1", node);
        let quotas = [
            quota("p", above),
            quota_below("p", "a", below),
            quota_below("p", "b", below),
        ];
        for quota in quotas {
            world.engine.object_changed(&quota, at(0));
        }
        let of = |pod, quota| labelled(pod, "quota.scheduling.koordinator.sh/name", quota);
        for (name, quota) in row.pods {
            world.apply(of(plain(name, "n1", 2, 1), quota));
        }
        for (pod, quota) in members(2, 2, 2, &json!({})).into_iter().zip(["a", "b"]) {
            world.apply(of(pod, quota));
        }
        world.run();
        let victims = world.victims();
        assert_eq!(victims, row.victims, "{}: {:?}", row.name, world.conditions);
        let bound = if victims.is_empty() { 0 } else { 2 };
        world.all_leave();
        world.later(60);
        let said = &world.conditions;
        assert_eq!(world.bound().len(), bound, "{}: {said:?}", row.name);
    }
}

#[test]
fn what_is_left_of_a_gang_keeps_nobody_out() {
    let mut world = World::full(2, 2, 1);
    let pods = members(2, 2, 2, &json!({}));
    for pod in &pods {
        world.apply(pod.clone());
    }
    world.run();
    assert_eq!(world.nominated.len(), 2);
    world.all_leave();
    world.delete(&pods[0]);
    let never = json!({"spec": {"preemptionPolicy": "Never"}});
    for name in ["x", "y"] {
        world.apply(sized(pod(name, never.clone()), 2, 1000));
    }
    world.later(60);
    assert_eq!(world.bound(), ["x", "y"]);
    assert!(!world.nominated.contains_key("m2"), "{:?}", world.nominated);
}

/// The engine sees late what it wrote: a member was promised room, and then was not any more.
#[test]
fn what_was_taken_back_does_not_come_back_with_an_old_status() {
    let mut world = World::full(2, 2, 1);
    world.echo = false;
    let pods = members(2, 2, 2, &json!({}));
    for pod in &pods {
        world.apply(pod.clone());
    }
    world.run();
    assert_eq!(world.nominated.len(), 2);
    world.all_leave();
    world.delete(&pods[0]);
    world.run();
    assert!(world.nominated.is_empty(), "{:?}", world.nominated);
    let expected = ["m2", "m2"].map(str::to_owned);
    let said: Vec<String> = world.echoes.iter().map(|(pod, _)| pod.clone()).collect();
    assert_eq!(said, expected, "{:?}", world.echoes);
    // First comes the promise.
    assert!(world.one_echo());
    let never = json!({"spec": {"preemptionPolicy": "Never"}});
    for name in ["x", "y"] {
        world.apply(sized(pod(name, never.clone()), 2, 1000));
    }
    world.later(60);
    assert_eq!(world.bound(), ["x", "y"], "{:?}", world.conditions);
}

/// A leader before this one promised members room.
#[test]
fn promises_of_before_are_kept_for_gangs_that_can_start_and_for_no_others() {
    let promised = |pod: &Pod, node: &str| {
        let mut pod = pod.clone();
        pod.status.get_or_insert_default().nominated_node_name = Some(node.to_owned());
        pod
    };
    let pods = members(2, 2, 2, &json!({}));
    for is_whole in [false, true] {
        let mut world = World::full(2, 2, 1);
        // One of the victims is still there.
        world.delete(&plain("v1", "n1", 2, 1));
        world.apply(promised(&pods[0], "n1"));
        let never = json!({"spec": {"preemptionPolicy": "Never"}});
        world.apply(sized(pod("x", never), 2, 1000));
        if is_whole {
            world.apply(promised(&pods[1], "n2"));
            let mut going = plain("v2", "n2", 2, 1);
            let since = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0));
            going.metadata.deletion_timestamp = Some(since);
            let condition = json!([{"type": "DisruptionTarget", "status": "True",
                "reason": "PreemptionByScheduler"}]);
            going.status.get_or_insert_default().conditions =
                serde_json::from_value(condition).unwrap();
            world.apply(going);
        }
        world.later(60);
        let node = world.engine.nominated_node("m1").map(|node| &**node);
        match is_whole {
            true => {
                assert_eq!((world.bound.len(), node), (0, Some("n1")));
                world.delete(&plain("v2", "n2", 2, 1));
                world.later(60);
                assert_eq!(world.bound(), ["m1", "m2"]);
            }
            false => {
                assert_eq!((world.bound(), node), (vec!["x"], None));
                let said = &world.pods["m1"]
                    .status
                    .as_ref()
                    .unwrap()
                    .nominated_node_name;
                assert_eq!(*said, None, "it is told");
            }
        }
    }
}

#[test]
fn what_a_gang_was_promised_in_vain_others_may_take() {
    let mut world = evicting();
    for (node, cores) in [("n1", 2), ("n2", 4)] {
        world.node(node, cores);
        world.apply(plain(&format!("v-{node}"), node, cores, 1));
    }
    // The larger one is tried first, and fails alone.
    let mut pods = members(2, 2, 2, &json!({}));
    pods[1] = sized(pods[1].clone(), 4, 1001);
    for pod in pods {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims(), ["v-n1", "v-n2"], "{:?}", world.conditions);
    let (gone, stays) = (world.evicted[0].clone(), world.evicted[1].clone());
    let (gone, stays) = match &*gone.name {
        "v-n1" => (gone, stays),
        _ => (stays, gone),
    };
    world.delete(&gone.named_object());
    let never = json!({"spec": {"preemptionPolicy": "Never"}});
    world.apply(sized(pod("x", never), 2, 0));
    world.later(5);
    assert!(world.bound.is_empty(), "n1 is promised: {:?}", world.bound);
    // Now that one may not go any more, and the gang is tried because the member has changed.
    let key = "scheduling.koordinator.sh/disable-preemptible";
    world.apply(labelled(stays.named_object(), key, "true"));
    let changed = labelled(world.pods["m2"].clone(), "changed", "yes");
    world.apply(changed);
    // What is written now is seen late: who waits is woken by what was decided.
    world.echo = false;
    world.later(60);
    let said = (&world.nominated, &world.conditions, &world.explained);
    assert!(world.nominated.is_empty(), "{said:?}");
    assert_eq!(world.bound(), ["x"]);
}

#[test]
fn members_do_not_outrank_each_other() {
    let mut world = World::full(1, 6, 1);
    // Who was promised room there and is less important loses it.
    let mut low = sized(pod("low", json!({})), 1, 2);
    low.status.get_or_insert_default().nominated_node_name = Some("n1".to_owned());
    world.apply(low);
    let mut pods = members(3, 3, 2, &json!({}));
    for (pod, priority) in pods.iter_mut().zip([5, 7, 10]) {
        pod.spec.as_mut().unwrap().priority = Some(priority);
    }
    for pod in pods {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims(), ["v1"]);
    assert_eq!(world.engine.nominated_node("low"), None);
    for uid in ["m1", "m2", "m3"] {
        let node = world.engine.nominated_node(uid);
        assert_eq!(node.map(|node| &**node), Some("n1"), "{uid}");
        assert_eq!(world.nominated.get(uid).map(String::as_str), Some("n1"));
    }
    world.all_leave();
    let never = json!({"spec": {"preemptionPolicy": "Never"}});
    world.apply(sized(pod("x", never), 2, 5));
    world.later(60);
    assert_eq!(world.bound(), ["m1", "m2", "m3"]);
}

#[test]
fn nobody_goes_where_mates_elsewhere_may_be_in_the_way() {
    let affinity = |key: &str| {
        let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": "a"}}});
        let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        json!({"affinity": {"podAntiAffinity": terms}})
    };
    let spread = |when: &'static str| {
        move |key: &str| {
            json!({"topologySpreadConstraints": [{"topologyKey": key, "maxSkew": 1,
                "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "a"}}}]})
        }
    };
    type Rule<'a> = &'a dyn Fn(&str) -> Value;
    let (hard, soft) = (spread("DoNotSchedule"), spread("ScheduleAnyway"));
    let rows: [(&str, Rule<'_>, &str, usize); 5] = [
        ("InterPodAffinity", &affinity, "zone", 0),
        ("InterPodAffinity", &affinity, "kubernetes.io/hostname", 2),
        // Both in zone a, and nobody in b.
        ("PodTopologySpread", &hard, "zone", 0),
        ("PodTopologySpread", &hard, "kubernetes.io/hostname", 2),
        ("PodTopologySpread", &soft, "zone", 2),
    ];
    for (plugin, rule, key, victims) in rows {
        let context = BuildContext::default();
        let args = json!({"enablePreemption": true});
        let mut world = world_with(&[plugin], args, &context);
        for (name, zone, priority) in [("n1", "a", 1), ("n2", "a", 1), ("n3", "b", 2000)] {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": name, "uid": name,
                    "labels": {"zone": zone, "kubernetes.io/hostname": name}},
                "status": {"allocatable": {"cpu": "2", "pods": "10"}}
            }))
            .unwrap();
            world.engine.node_applied(Arc::new(node), at(0));
            world.apply(plain(&format!("v-{name}"), name, 2, priority));
        }
        for pod in members(2, 2, 2, &json!({})) {
            let mut spec = serde_json::to_value(&pod.spec).unwrap();
            for (field, said) in rule(key).as_object().unwrap() {
                spec[field] = said.clone();
            }
            let spec = serde_json::from_value(spec).unwrap();
            world.apply(labelled(Pod { spec, ..pod }, "app", "a"));
        }
        world.run();
        let gone = world.victims();
        let said = &world.conditions;
        assert_eq!(gone.len(), victims, "{plugin} {key}: {gone:?} {said:?}");
        assert_eq!(world.nominated.len(), victims, "{plugin} {key}");
    }
}

#[test]
fn a_gang_awaits_those_of_its_quota_on_other_nodes() {
    let mut world = evicting();
    world.engine.object_changed(&quota("q", 4), at(0));
    world.engine.object_changed(&budget("q2", 1), at(0));
    let of = |pod| labelled(pod, "quota.scheduling.koordinator.sh/name", "q");
    world.node("n1", 2);
    for (name, node, priority) in [("q2", "n2", 1), ("q3", "n3", 2)] {
        world.node(node, 2);
        let pod = labelled(of(plain(name, node, 2, priority)), "app", name);
        world.apply(pod);
    }
    for pod in members(1, 1, 2, &json!({})) {
        world.apply(of(pod));
    }
    world.run();
    assert_eq!(world.victims(), ["q2"]);
    assert_eq!(world.nominated["m1"], "n1");
    // It terminates, and its budget is used up: the other one would be less harmful.
    world.engine.object_changed(&budget("q2", 0), at(0));
    let mut going = world.evicted[0].named_object();
    let since = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0));
    going.metadata.deletion_timestamp = Some(since);
    world.apply(going);
    world.node("n4", 1);
    world.later(600);
    assert_eq!(world.victims(), ["q2"], "{:?}", world.conditions);
    assert_eq!(world.nominated["m1"], "n1");
    world.all_leave();
    world.later(60);
    assert_eq!(world.bound["m1"], "n1");
}

#[test]
fn a_pod_of_no_gang_finds_victims_by_the_same_rules() {
    for (label, victims) in [("true", 1), ("false", 0)] {
        let context = BuildContext::default();
        let mut world = world_with(&[], json!({"enablePreemption": true}), &context);
        world.node("n1", 2);
        let key = "quota.scheduling.koordinator.sh/preemptible";
        world.apply(labelled(plain("v", "n1", 2, 1), key, label));
        world.apply(sized(pod("x", json!({})), 2, 1000));
        world.run();
        assert_eq!(world.victims().len(), victims);
    }
}

struct Dice(u64);

impl Dice {
    /// Below `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }
}

/// A cluster of little nodes: cores, and the pods there by cores, priority and whether they may go.
type Cluster = Vec<(usize, Vec<(usize, usize, bool)>)>;

/// How many of the wanted sizes, from the first on or in any order, can be placed on nodes with so many
/// cores, all ways tried.
fn most(free: &[usize], sizes: &[usize], strict: bool) -> usize {
    let Some((size, rest)) = sizes.split_first() else {
        return 0;
    };
    let without = if strict { 0 } else { most(free, rest, strict) };
    let placed = (0..free.len())
        .filter(|node| free[*node] >= *size)
        .map(|node| {
            let mut left = free.to_vec();
            left[node] -= size;
            1 + most(&left, rest, strict)
        });
    placed.max().unwrap_or(0).max(without)
}

/// Free cores where all have gone that may go, up to a priority.
fn free(cluster: &Cluster, up_to: Option<usize>) -> Vec<usize> {
    let nodes = cluster.iter().map(|(cores, pods)| {
        let stay = pods
            .iter()
            .filter(|(_, priority, may)| !may || up_to.is_none_or(|up_to| *priority > up_to));
        cores - stay.map(|(cores, ..)| cores).sum::<usize>()
    });
    nodes.collect()
}

#[test]
fn plans_are_those_that_a_plain_search_allows() {
    // Nobody went; all fit anyway; some had to go; on several nodes; not all of them; too many asked.
    let mut seen = [0; 6];
    for seed in 0..1000 {
        let mut dice = Dice(seed);
        let cluster: Cluster = (0..1 + dice.roll(3))
            .map(|_| {
                let cores = 2 + dice.roll(5);
                let mut left = cores;
                let mut pods = Vec::new();
                for _ in 0..dice.roll(4) {
                    let size = (1 + dice.roll(3)).min(left);
                    if size > 0 {
                        left -= size;
                        pods.push((size, dice.roll(4), dice.roll(5) > 0));
                    }
                }
                (cores, pods)
            })
            .collect();
        let count = 1 + dice.roll(4);
        let alike = dice.roll(3) > 0;
        let first = 1 + dice.roll(3);
        let sizes: Vec<usize> = (0..count)
            .map(|_| if alike { first } else { 1 + dice.roll(3) })
            .collect();
        let strict = dice.roll(2) == 0;
        let mut world = evicting();
        for (nth, (cores, pods)) in cluster.iter().enumerate() {
            world.node(&format!("n{nth}"), *cores);
            for (at, (size, priority, may)) in pods.iter().enumerate() {
                let name = format!("v{nth}-{at}");
                let pod = plain(
                    &name,
                    &format!("n{nth}"),
                    *size,
                    i32::try_from(*priority).unwrap(),
                );
                let key = "scheduling.koordinator.sh/disable-preemptible";
                world.apply(if *may {
                    pod
                } else {
                    labelled(pod, key, "true")
                });
            }
        }
        let mode = if strict { "Strict" } else { "NonStrict" };
        let pods = members(count, count, 1, &json!({"mode": mode}));
        for (pod, size) in pods.into_iter().zip(&sizes) {
            world.apply(sized(pod, *size, 1000));
        }
        world.run();
        let case = format!("seed {seed}: {cluster:?}, {mode} {sizes:?}");
        let now = most(&free(&cluster, None), &sizes, false) == count;
        let then = most(&free(&cluster, Some(3)), &sizes, false) == count;
        let victims: Vec<String> = world
            .victims()
            .iter()
            .map(|name| (*name).to_owned())
            .collect();
        if !then {
            seen[0] += 1;
            assert!(
                victims.is_empty() && world.bound.is_empty(),
                "{case}: {victims:?}"
            );
            // Those of a lenient gang that have a place wait in it.
            assert_eq!(world.nominated.len(), world.booked().1, "{case}");
            continue;
        }
        if world.bound.len() == count {
            seen[1] += 1;
            assert!(now && victims.is_empty(), "{case}");
            continue;
        }
        assert!(world.bound.is_empty(), "{case}");
        if victims.is_empty() {
            // Of unlike ones, the first may take what the last needs.
            assert!(!alike, "{case}: a place was overlooked");
            seen[5] += 1;
            continue;
        }
        assert!(!(now && alike), "{case}: {victims:?} went for nothing");
        assert_eq!(world.nominated.len(), count, "{case}");
        // On each node: who was placed there fits without the victims, and with any one of them does not.
        let mut nodes = BTreeSet::new();
        let mut highest = None;
        for (nth, (cores, pods)) in cluster.iter().enumerate() {
            let here = |(pod, _): &(&String, &String)| pod[1..].parse::<usize>().unwrap() - 1;
            let placed = world
                .nominated
                .iter()
                .filter(|(_, node)| **node == format!("n{nth}"));
            let placed: usize = placed.map(|it| sizes[here(&it)]).sum();
            let goes = |at: usize| victims.contains(&format!("v{nth}-{at}"));
            let stay = pods.iter().enumerate().filter(|(at, _)| !goes(*at));
            let left = cores - stay.map(|(_, (size, ..))| size).sum::<usize>();
            assert!(placed <= left, "{case}: {:?}", world.nominated);
            for (at, (size, priority, may)) in pods.iter().enumerate().filter(|(at, _)| goes(*at)) {
                assert!(*may, "{case}: v{nth}-{at} was spared");
                assert!(placed > left - size, "{case}: v{nth}-{at} went for nothing");
                highest = highest.max(Some(*priority));
                nodes.insert(nth);
            }
        }
        if alike {
            let needed =
                (0..4).find(|up_to| most(&free(&cluster, Some(*up_to)), &sizes, false) == count);
            assert_eq!(highest, needed, "{case}: {victims:?}");
        }
        seen[2] += 1;
        seen[3] += usize::from(nodes.len() > 1);
        let all = cluster
            .iter()
            .flat_map(|(_, pods)| pods)
            .filter(|(.., may)| *may);
        seen[4] += usize::from(victims.len() < all.count());
        let promised = world.nominated.clone();
        if dice.roll(2) == 0 {
            world.all_leave();
            world.later(60);
            assert_eq!(world.bound, promised, "{case}: {:?}", world.conditions);
            continue;
        }
        // With some gone, members may swap places: nobody else has to go, and nobody is left out.
        for _ in 0..victims.len() {
            world.one_leaves();
            world.later(60);
        }
        assert!(world.evicted.is_empty(), "{case}: {:?}", world.victims());
        assert_eq!(world.bound.len(), count, "{case}: {:?}", world.conditions);
    }
    assert!(seen.iter().all(|times| *times >= 3), "{seen:?}");
}
