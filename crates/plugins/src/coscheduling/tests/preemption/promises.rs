//! Nominated nodes of gang members: which pods may use them, and when nominations end.

use super::*;

#[test]
fn rest_of_a_gang_blocks_no_other_pod() {
    let mut world = GangWorld::full(2, 2, 1);
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

/// The engine receives its own writes late: a nomination of a member, then its removal.
#[test]
fn stale_status_does_not_restore_nomination() {
    let mut world = GangWorld::full(2, 2, 1);
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
    let pods: Vec<String> = world.echoes.iter().map(|(pod, _)| pod.clone()).collect();
    assert_eq!(pods, expected, "{:?}", world.echoes);
    // The nomination arrives first.
    assert!(world.one_echo());
    let never = json!({"spec": {"preemptionPolicy": "Never"}});
    for name in ["x", "y"] {
        world.apply(sized(pod(name, never.clone()), 2, 1000));
    }
    world.later(60);
    assert_eq!(world.bound(), ["x", "y"], "{:?}", world.conditions);
}

/// The previous leader nominated nodes for members.
#[test]
fn old_nominations_kept_only_for_gangs_that_can_start() {
    let promised = |pod: &Pod, node: &str| {
        let mut pod = pod.clone();
        pod.status.get_or_insert_default().nominated_node_name = Some(node.to_owned());
        pod
    };
    let pods = members(2, 2, 2, &json!({}));
    for is_whole in [false, true] {
        let mut world = GangWorld::full(2, 2, 1);
        // One of the victims still exists.
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
        let node = world
            .engine
            .preemptor()
            .nominated_node("m1")
            .map(|node| &**node);
        match is_whole {
            true => {
                assert_eq!((world.bound.len(), node), (0, Some("n1")));
                world.delete(&plain("v2", "n2", 2, 1));
                world.later(60);
                assert_eq!(world.bound(), ["m1", "m2"]);
            }
            false => {
                assert_eq!((world.bound(), node), (vec!["x"], None));
                let nominated = &world.pods["m1"]
                    .status
                    .as_ref()
                    .unwrap()
                    .nominated_node_name;
                assert_eq!(*nominated, None, "the nomination is removed");
            }
        }
    }
}

#[test]
fn unused_gang_nomination_is_released() {
    let mut world = evicting();
    for (node, cores) in [("n1", 2), ("n2", 4)] {
        world.node(node, cores);
        world.apply(plain(&format!("v-{node}"), node, cores, 1));
    }
    // The larger member is tried first, and only it fails.
    let mut pods = members(2, 2, 2, &json!({}));
    pods[1] = sized(pods[1].clone(), 4, 1001);
    for pod in pods {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.victims(), ["v-n1", "v-n2"], "{:?}", world.conditions);
    let (deleted, remaining) = (world.evicted[0].clone(), world.evicted[1].clone());
    let (deleted, remaining) = match &*deleted.name {
        "v-n1" => (deleted, remaining),
        _ => (remaining, deleted),
    };
    world.delete(&deleted.named_object());
    let never = json!({"spec": {"preemptionPolicy": "Never"}});
    world.apply(sized(pod("x", never), 2, 0));
    world.later(5);
    assert!(world.bound.is_empty(), "n1 is promised: {:?}", world.bound);
    // The victim is now protected, and the gang is retried because the member changed.
    let key = "scheduling.koordinator.sh/disable-preemptible";
    world.apply(labelled(remaining.named_object(), key, "true"));
    let changed = labelled(world.pods["m2"].clone(), "changed", "yes");
    world.apply(changed);
    // Writes are received late from here on: waiting pods are activated by the decision itself.
    world.echo = false;
    world.later(60);
    let state = (&world.nominated, &world.conditions, &world.explained);
    assert!(world.nominated.is_empty(), "{state:?}");
    assert_eq!(world.bound(), ["x"]);
}

#[test]
fn members_do_not_preempt_each_other() {
    let mut world = GangWorld::full(1, 6, 1);
    // A less important pod that was nominated there loses its nomination.
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
    assert_eq!(world.engine.preemptor().nominated_node("low"), None);
    for uid in ["m1", "m2", "m3"] {
        let node = world.engine.preemptor().nominated_node(uid);
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
fn no_eviction_if_other_members_block_the_pod() {
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
        // Both in zone a, and none in zone b.
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
            for (field, value) in rule(key).as_object().unwrap() {
                spec[field] = value.clone();
            }
            let spec = serde_json::from_value(spec).unwrap();
            world.apply(labelled(Pod { spec, ..pod }, "app", "a"));
        }
        world.run();
        let evicted = world.victims();
        let conditions = &world.conditions;
        assert_eq!(
            evicted.len(),
            victims,
            "{plugin} {key}: {evicted:?} {conditions:?}"
        );
        assert_eq!(world.nominated.len(), victims, "{plugin} {key}");
    }
}
