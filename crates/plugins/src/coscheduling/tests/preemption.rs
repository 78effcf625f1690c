//! Preemption for gangs: pods of lower priority are evicted from several nodes at once, or not at all.

mod limits;
mod promises;
mod search;

use super::*;

const ATTEMPTED: &str = "preemption: preemption already attempted by ns/";

/// Builds a world with quotas, and with preemption for single pods behind that for gangs.
fn evicting() -> GangWorld {
    let plugins = ["ElasticQuota", "DefaultPreemption"];
    let context = BuildContext::default();
    world_with(&plugins, json!({"enablePreemption": true}), &context)
}

/// Returns `pod` with this number of cores and this priority.
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

fn mentions<'a>(messages: impl IntoIterator<Item = &'a String>, text: &str) -> usize {
    messages
        .into_iter()
        .filter(|message| message.contains(text))
        .count()
}

/// Builds members `m1`, `m2` … of gang `a`.
fn members(count: usize, min: usize, cpu: usize, more: &Value) -> Vec<Pod> {
    let member = |nth| annotated(&format!("m{nth}"), "a", min, more.clone());
    (1..=count)
        .map(|nth| sized(member(nth), cpu, 1000))
        .collect()
}

impl GangWorld {
    fn victims(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.evicted.iter().map(|pod| &*pod.name).collect();
        names.sort_unstable();
        names
    }

    /// Deletes the first victim.
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
fn gang_preempts_on_several_nodes() {
    let mut world = GangWorld::full(4, 2, 1);
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
    // Until then, only pods of higher priority may take the place.
    let expected_nodes: BTreeSet<String> = (1..=4).map(|n| format!("n{n}")).collect();
    let promised = world.nominated.clone();
    world.one_leaves();
    let never = json!({"spec": {"preemptionPolicy": "Never"}});
    world.apply(sized(pod("other", never), 2, 1000));
    world.later(60);
    assert!(world.bound.is_empty(), "{:?}", world.bound);
    assert_eq!(world.nominated, promised, "one place is not the gang's");
    let waits = "preemption: not eligible due to terminating pod on the nominated node.";
    let messages = world
        .conditions
        .values()
        .filter(|message| message.ends_with(waits));
    assert_eq!(messages.count(), 1, "{:?}", world.conditions);
    let waits = "with message not eligible due to terminating pod on the nominated node.";
    let messages = world
        .explained
        .values()
        .filter(|message| message.ends_with(waits));
    assert!(messages.count() > 0, "{:?}", world.explained);
    world.one_leaves();
    world.later(60);
    assert!(world.bound.is_empty(), "{:?}", world.bound);
    assert_eq!(world.nominated, promised);
    assert_eq!(
        world.victims().len(),
        1,
        "no other pod is evicted: {:?}",
        world.victims()
    );
    world.one_leaves();
    world.later(60);
    assert_eq!(world.bound(), ["m1", "m2", "m3"]);
    assert_eq!(world.bound, promised);
    assert_eq!(
        expected_nodes
            .difference(&promised.into_values().collect())
            .count(),
        1
    );
}

#[test]
fn gang_that_would_not_fit_evicts_no_pod() {
    let mut world = GangWorld::full(3, 2, 1);
    for pod in members(4, 4, 2, &json!({})) {
        world.apply(pod);
    }
    world.run();
    assert!(world.victims().is_empty(), "{:?}", world.victims());
    assert!(world.nominated.is_empty());
    let fit_message = "0/3 nodes are available: 3 Insufficient cpu.";
    let own_message = format!("preemption: {fit_message}");
    assert_eq!(
        world.condition("m4"),
        format!("{fit_message} {own_message}")
    );
    let group_message = format!("{ATTEMPTED}m4 with message {fit_message}");
    for other in ["m1", "m2", "m3"] {
        let message = &world.explained[other];
        assert!(message.ends_with(&group_message), "{message}");
    }
    // The last member may be one too many.
    let mut world = GangWorld::full(3, 2, 1);
    for pod in members(4, 3, 2, &json!({})) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims().len(), 3);
    world.all_leave();
    world.later(60);
    assert_eq!(world.bound().len(), 3);
}

/// Rows of upstream's `Test_preemptionEvaluatorImpl_preempt`. Nodes have 32 cores, pods 16.
#[test]
fn gang_preemption_matches_upstream_rows() {
    struct Row {
        name: &'static str,
        /// Node and priority of each pod on the nodes.
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
        // The member that failed has the result in its condition; the other one names the preemptor.
        let mut failed = ["m1", "m2"].map(|pod| (world.condition(pod).to_owned(), pod));
        failed.sort_by_key(|(message, _)| message.is_empty() || message.contains("gets rejected"));
        let [(message, trigger), (_, other)] = failed;
        match row.victims {
            0 => assert!(
                message.ends_with(&format!("preemption: {}", row.says)),
                "{name}: {message}"
            ),
            _ => assert!(!message.contains("preemption"), "{name}: {message}"),
        }
        // A waiting member reports that it was rejected.
        if row.victims != 1 {
            let group_message = &world.explained[other];
            let expected = format!("{ATTEMPTED}{trigger} with message {}", row.says);
            assert!(
                group_message.ends_with(&expected),
                "{name}: {group_message}"
            );
        }
        world.all_leave();
        world.later(60);
        assert_eq!(world.bound().len(), row.victims.min(1) * 2, "{name}");
    }
}

#[test]
fn non_strict_members_report_the_earlier_attempt() {
    let mut world = GangWorld::full(3, 2, 1);
    for pod in members(3, 3, 2, &json!({"mode": "NonStrict"})) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims().len(), 3, "one plan for all");
    assert_eq!(world.nominated.len(), 3);
    let group_message = "preemption: preemption already attempted by ns/m";
    assert_eq!(
        mentions(world.conditions.values(), group_message),
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
fn protected_pods_are_not_evicted_for_gangs() {
    type Change = fn(Pod) -> Pod;
    let rows: [(&str, Change, Change, bool); 5] = [
        ("any pod", |pod| pod, |pod| pod, true),
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
        // The least important member decides, whichever is tried first.
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
            let count = mentions(world.conditions.values(), hopeless);
            assert_eq!(
                count,
                usize::from(!evicts),
                "{name}: {:?}",
                world.conditions
            );
        }
    }
    // A gang does not evict its own members either.
    let mut world = evicting();
    world.node("n1", 2);
    let policy = json!({"match-policy": "only-waiting"});
    let victim = sized(annotated("m0", "a", 2, policy.clone()), 2, 1);
    world.apply(on_node(victim, "n1"));
    for pod in members(2, 2, 1, &policy) {
        world.apply(pod);
    }
    world.run();
    assert!(world.victims().is_empty(), "{:?}", world.victims());
}

#[test]
fn pod_without_gang_preempts_by_the_same_rules() {
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
