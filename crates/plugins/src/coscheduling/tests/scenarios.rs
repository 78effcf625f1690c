//! Scenarios of gangs: queueing, permit, rollback, restart and match policies.

use super::*;

const STRICT: fn() -> Value = || json!({});

/// Builds `count` pods `a0`, `a1`, … of gang `a`.
fn gang(count: usize, min: usize, more: Value) -> Vec<Pod> {
    (0..count)
        .map(|at| annotated(&format!("a{at}"), "a", min, more.clone()))
        .collect()
}

#[test]
fn complete_gang_is_bound_together() {
    let mut world = world(json!({}));
    world.node("n", 10);
    for pod in gang(3, 3, STRICT()) {
        world.apply(pod);
    }
    world.apply(pod("single", json!({"spec": {"priority": -1}})));
    world.run();
    assert_eq!(world.bound(), ["a0", "a1", "a2", "single"]);
    assert_eq!(world.cycles, 4);
    for name in ["a0", "a1", "a2"] {
        let patch = &world.patches[name];
        assert_eq!(
            patch["internal.scheduling.koordinator.sh/bind-gang-group-id"],
            "ns/a"
        );
        assert_eq!(
            patch["internal.scheduling.koordinator.sh/bind-gang-member-count"],
            "3"
        );
        assert_eq!(
            patch["scheduling.koordinator.sh/bind-gang-group-id"],
            "ns/a"
        );
        assert_eq!(
            patch["scheduling.koordinator.sh/bind-gang-member-count"],
            "3"
        );
        assert!(world.labels[name].is_empty(), "labels are left as they are");
    }
    assert!(world.patches["single"].is_empty());
}

#[test]
fn members_are_scheduled_without_interruption() {
    let mut world = world(json!({}));
    world.node("n", 3);
    for pod in gang(3, 3, STRICT()) {
        world.apply(pod);
    }
    world.engine.schedule_one(at(0));
    world.apply(pod("urgent", json!({"spec": {"priority": 1000}})));
    world.run();
    assert_eq!(world.bound(), ["a0", "a1", "a2"]);
    let text = "0/1 nodes are available: 1 Insufficient cpu.";
    assert_eq!(world.condition("urgent"), text);
}

#[test]
fn gate_off_leaves_untried_members_without_condition() {
    let gates = BTreeMap::from([(EXPLAIN_GATE.to_owned(), false)]);
    let mut world = gated_world(json!({}), gates);
    world.node("n", 1);
    for pod in gang(3, 3, STRICT()) {
        world.apply(pod);
    }
    world.run();
    assert_eq!((world.conditions.len(), world.explained.len()), (2, 0));
}

#[test]
fn status_write_is_repeated_until_observed() {
    let mut world = world(json!({}));
    world.declare(group("a", 2, json!({}), json!({})));
    world.run();
    let patch = |world: &mut GangWorld| -> Option<Value> {
        let write = world.writes.pop()?;
        assert!(world.writes.is_empty(), "one at a time");
        assert_eq!(
            (write.plural, &*write.namespace, &*write.name),
            ("podgroups", "ns", "a")
        );
        match write.verb {
            koord_scheduler::framework::Verb::Patch(body) => Some(body),
            other => panic!("{other:?}: the kind has no status subresource"),
        }
    };
    let pending = json!({"status": {"phase": "Pending"}, "metadata": {"uid": "pg-a"}});
    assert_eq!(patch(&mut world), Some(pending.clone()));
    world.later(1);
    assert_eq!(patch(&mut world), None, "under way");
    assert_eq!(world.engine.next_deadline(), Some(at(5)));
    world.later(5);
    assert_eq!(patch(&mut world), Some(pending), "not seen in time");
    world.object(
        group("a", 2, json!({}), json!({"phase": "Pending"})),
        Action::UPDATE,
    );
    world.later(100);
    assert_eq!(patch(&mut world), None, "nothing changed");
    for name in ["a0", "a1"] {
        world.apply(member(name, "a"));
    }
    world.run();
    let body = patch(&mut world).unwrap();
    assert_eq!(body["status"], json!({"phase": "PreScheduling"}));
    world.object(group("a", 2, json!({}), json!({})), Action::DELETE);
    world.later(100);
    assert_eq!(patch(&mut world), None, "gone");
}

#[test]
fn incomplete_gang_stays_out_of_queue_with_reason() {
    let mut world = world(json!({}));
    world.node("n", 10);
    let pods = gang(3, 3, STRICT());
    world.apply(pods[0].clone());
    world.apply(pods[1].clone());
    world.run();
    assert_eq!((world.cycles, world.booked()), (0, (0, 0)));
    world.apply(pods[2].clone());
    world.run();
    assert_eq!(world.bound(), ["a0", "a1", "a2"]);

    let texts = |objects: &[PodGroup], pods: &[Pod]| -> Vec<String> {
        let plugin = plugin(objects, pods);
        let admit = |pod: &Pod| {
            let uid = pod.metadata.uid.as_deref().unwrap();
            plugin
                .gangs
                .admit(uid)
                .err()
                .map(|e| e.to_string())
                .unwrap_or_default()
        };
        pods.iter().map(admit).collect()
    };
    let ab = json!({"groups": r#"["ns/b","ns/a"]"#});
    for (case, objects, pods, expected) in [
        (
            "no PodGroup",
            vec![],
            vec![member("p", "a")],
            vec!["gang has not init, gangName: ns/a, podName: ns/p"],
        ),
        (
            "no usable minimum",
            vec![],
            vec![annotated("p", "a", 1, json!({"min-available": "x"}))],
            vec!["gang has not init, gangName: ns/a, podName: ns/p"],
        ),
        (
            "too few",
            vec![group("a", 4, json!({}), json!({}))],
            vec![member("p", "a")],
            vec![
                "gangGroup [ns/a] basic check: memberGangs [ns/a] child pod not collect enough, \
                 current gang: ns/a, podName: ns/p",
            ],
        ),
        (
            "the other gang does not exist",
            vec![],
            vec![annotated("p", "a", 1, ab.clone())],
            vec![
                "gangGroup [ns/a ns/b] basic check: memberGangs [ns/b] doesn't exists, \
                 current gang: ns/a, podName: ns/p",
            ],
        ),
        (
            "the other gang is not described, the own one is too small",
            vec![],
            vec![annotated("p", "a", 2, ab), member("q", "b")],
            vec![
                "gangGroup [ns/a ns/b] basic check: memberGangs [ns/b] has not init, memberGangs \
                 [ns/a] child pod not collect enough, current gang: ns/a, podName: ns/p",
                "gang has not init, gangName: ns/b, podName: ns/q",
            ],
        ),
        (
            "the pod that completes the gang represents it",
            vec![group("a", 2, json!({}), json!({}))],
            vec![member("p", "a"), member("q", "a"), member("r", "a")],
            vec![
                "representative pod ns/q of gangGroupID ns/a already exists",
                "",
                "representative pod ns/q of gangGroupID ns/a already exists",
            ],
        ),
        ("no gang", vec![], vec![pod("p", json!({}))], vec![""]),
    ] {
        assert_eq!(texts(&objects, &pods), expected, "{case}");
    }
}

/// One member does not fit, so all are rolled back; the gang is scheduled when a node is added.
#[test]
fn gang_rolls_back_then_schedules() {
    let mut world = world(json!({}));
    world.node("n", 2);
    for pod in gang(4, 3, STRICT()) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.booked(), (0, 0), "nothing is left booked");
    assert_eq!(world.bound(), Vec::<&str>::new());
    let nodes = world.engine.cluster().nodes();
    let row = nodes.find("n").unwrap();
    assert_eq!(nodes.requested(row, koord_model::resources::CPU), 0);
    // The third member reports its own reason: it completed the gang, or was next in order.
    let own = "0/1 nodes are available: 1 Insufficient cpu.";
    let gang = |nodes: &str, trigger: &str, waiting: usize| {
        format!(
            "0/1 nodes are available: {nodes}GangGroup \"ns/a\" gets rejected due to member Pod \
             \"ns/{trigger}\" is unschedulable with reason \"{own}\", alreadyWaitForBound: \
             {waiting}."
        )
    };
    assert_eq!(world.condition("a1"), own);
    assert_eq!(world.condition("a0"), gang("1 ", "a1", 2));
    assert_eq!(world.condition("a2"), gang("1 ", "a1", 2));
    assert_eq!(
        world.explained["a3"],
        gang("", "a1", 2),
        "not tried, but explained"
    );
    assert_eq!(world.cycles, 3, "the others are not tried");
    world.run();
    assert_eq!(world.cycles, 3, "its own rollback activates no pod");

    world.node("m", 2);
    world.later(20);
    assert_eq!(world.bound(), ["a0", "a1", "a2", "a3"]);
    assert_eq!(world.booked(), (4, 4));
}

#[test]
fn pre_filter_rejection_counts_for_all_nodes() {
    let mut world = world(json!({}));
    for name in ["n", "m", "o"] {
        world.node(name, 3);
    }
    let [free, mut claiming] = <[_; 2]>::try_from(gang(2, 2, json!({}))).unwrap();
    claiming.spec.as_mut().unwrap().resource_claims =
        serde_json::from_value(json!([{"name": "c"}])).unwrap();
    world.apply(free);
    world.apply(claiming);
    world.run();
    let own = "the pod has resource claims, which this scheduler does not allocate.";
    assert_eq!(
        world.condition("a1"),
        format!("0/3 nodes are available: {own}")
    );
    assert_eq!(
        world.explained["a0"],
        format!(
            "0/3 nodes are available: GangGroup \"ns/a\" gets rejected due to member Pod \
             \"ns/a1\" is unschedulable with reason \"0/3 nodes are available: 3 {own}\", \
             alreadyWaitForBound: 0."
        )
    );
}

#[test]
fn non_strict_gang_keeps_nodes_until_timeout() {
    let mut world = world(json!({}));
    world.node("n", 2);
    let lenient = json!({"mode": "NonStrict", "waiting-time": "60s"});
    for pod in gang(3, 3, lenient) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.booked(), (2, 2), "two hold their places");
    let refused = world.conditions.clone();
    assert_eq!(refused.len(), 1);
    world.later(30);
    assert_eq!(world.booked(), (2, 2));
    world.node("m", 1);
    world.later(1);
    assert_eq!(world.bound(), ["a0", "a1", "a2"]);
}

#[test]
fn waiting_ends_at_the_gang_timeout() {
    for (case, args, more, longest) in [
        ("its own", json!({}), json!({"waiting-time": "60s"}), 60),
        (
            "the default",
            json!({"defaultTimeout": "90s"}),
            json!({}),
            90,
        ),
        (
            "unusable: the default",
            json!({"defaultTimeout": "90s"}),
            json!({"waiting-time": "soon"}),
            90,
        ),
        (
            "negative: the default",
            json!({"defaultTimeout": "90s"}),
            json!({"waiting-time": "-5s"}),
            90,
        ),
        (
            "zero: the default",
            json!({"defaultTimeout": "90s"}),
            json!({"waiting-time": "0"}),
            90,
        ),
    ] {
        let mut world = world(args);
        world.node("n", 2);
        let mut more = more;
        more["mode"] = json!("NonStrict");
        for pod in gang(3, 3, more) {
            world.apply(pod);
        }
        world.run();
        assert_eq!(world.booked().1, 2, "{case}");
        assert_eq!(
            world.engine.next_deadline().map(|d| d <= at(longest)),
            Some(true)
        );
        world.later(longest - 1);
        let before = world.booked().1;
        assert_eq!(before, 2, "{case}");
        world.conditions.clear();
        world.now += 1;
        world.engine.schedule_one(at(world.now));
        world.collect();
        let timeout = format!(
            "0/1 nodes are available: 1 rejected due to timeout after waiting {}s at plugin \
             Coscheduling.",
            if longest < 60 {
                longest.to_string()
            } else {
                format!("{}m{}", longest / 60, longest % 60)
            }
        );
        let texts: Vec<&String> = world.conditions.values().collect();
        assert!(
            texts.iter().any(|text| **text == timeout),
            "{case}: {texts:?}"
        );
    }
}

#[test]
fn gangs_of_a_group_start_together() {
    let groups = json!({"groups": r#"["ns/a","other/b"]"#});
    let in_other = |name: &str| {
        let mut pod = annotated(name, "b", 2, groups.clone());
        pod.metadata.namespace = Some("other".to_owned());
        pod
    };
    let mut world = world(json!({}));
    world.node("n", 3);
    world.apply(annotated("a0", "a", 2, groups.clone()));
    world.apply(annotated("a1", "a", 2, groups.clone()));
    world.apply(in_other("b0"));
    world.run();
    assert_eq!(world.cycles, 0, "the other gang is not complete");
    world.apply(in_other("b1"));
    world.run();
    assert_eq!(world.booked(), (0, 0), "three of four fit: none stays");
    world.node("m", 1);
    world.later(20);
    assert_eq!(world.bound(), ["a0", "a1", "b0", "b1"]);
    let count = "internal.scheduling.koordinator.sh/bind-gang-member-count";
    assert!(world.patches.values().all(|patch| patch[count] == "4"));
    let group = "internal.scheduling.koordinator.sh/bind-gang-group-id";
    assert!(
        world
            .patches
            .values()
            .all(|patch| patch[group] == "ns/a,other/b")
    );
}

#[test]
fn match_policy_selects_members_that_count() {
    for (policy, goes) in [
        ("only-waiting", false),
        ("waiting-and-running", true),
        ("once-satisfied", true),
    ] {
        for key in [
            "gang.scheduling.koordinator.sh/match-policy",
            "pod-group.scheduling.sigs.k8s.io/match-policy",
        ] {
            let mut world = world(json!({}));
            world.node("n", 10);
            world.declare(group("a", 2, json!({key: policy}), json!({})));
            for at in 0..2 {
                world.apply(member(&format!("a{at}"), "a"));
            }
            world.run();
            assert_eq!(world.bound(), ["a0", "a1"], "{policy}");
            world.apply(member("late", "a"));
            world.run();
            assert_eq!(world.bound.contains_key("late"), goes, "{policy}");
            assert_eq!(world.booked().0, if goes { 3 } else { 2 }, "{policy}");
            if goes {
                assert!(
                    world.patches["late"].is_empty(),
                    "alone, it is no gang binding"
                );
            } else {
                assert_eq!(
                    world.condition("late"),
                    "0/1 nodes are available: 1 all pending pods is already been attempted."
                );
                // With a second late member, two wait.
                world.apply(member("later", "a"));
                world.run();
                assert!(world.bound.contains_key("late") && world.bound.contains_key("later"));
            }
        }
    }
}

#[test]
fn members_above_the_minimum_follow() {
    let mut world = world(json!({}));
    world.node("n", 3);
    world.answer = false;
    for pod in gang(5, 2, STRICT()) {
        world.apply(pod);
    }
    world.run();
    // Two were released together; the third follows while they are being bound; nothing is rolled back.
    assert_eq!(world.pending.len(), 3);
    let key = "internal.scheduling.koordinator.sh/bind-gang-member-count";
    let counts = world.pending.iter().map(|(pod, _)| {
        let count = world.patches[&*pod.name].get(key);
        count.map_or("", String::as_str)
    });
    assert_eq!(counts.collect::<Vec<_>>(), ["2", "2", ""]);
    world.answer = true;
    world.answer();
    world.run();
    assert_eq!(world.bound.len(), 3);
    assert_eq!(world.booked(), (3, 3));
    world.node("m", 2);
    world.later(20);
    assert_eq!(world.bound.len(), 5);
}

/// Row "no patches when all others are attempted" of upstream's `TestPatchGangPendingPodsCondition`.
#[test]
fn last_failing_member_explains_no_other() {
    let mut world = world(json!({}));
    world.node("n", 2);
    for pod in gang(3, 3, STRICT()) {
        world.apply(pod);
    }
    world.run();
    assert_eq!((world.cycles, world.conditions.len()), (3, 3));
    assert!(world.explained.is_empty(), "{:?}", world.explained);
}

/// Row "resourceSatisfied but matchPolicy is only-waiting, reject the gang" of upstream's `TestPostFilter`.
#[test]
fn started_gang_is_rejected_only_with_only_waiting() {
    for (policy, bound) in [("only-waiting", 2), ("once-satisfied", 3)] {
        let mut world = world(json!({}));
        world.node("n", 3);
        let key = "gang.scheduling.koordinator.sh/match-policy";
        world.declare(group("a", 2, json!({key: policy}), json!({})));
        for name in ["a0", "a1"] {
            world.apply(member(name, "a"));
        }
        world.run();
        assert_eq!(world.bound(), ["a0", "a1"], "{policy}");
        for name in ["a2", "a3"] {
            world.apply(member(name, "a"));
        }
        world.run();
        assert_eq!(world.bound.len(), bound, "{policy}");
        assert_eq!(world.booked().0, bound, "{policy}");
        let messages = world.conditions.values().chain(world.explained.values());
        let rejected = messages.filter(|text| text.contains("gets rejected due to member Pod"));
        assert_eq!(
            rejected.count(),
            3 - bound,
            "{policy}: {:?}",
            world.conditions
        );
    }
}

#[test]
fn failed_binding_keeps_bound_members() {
    let mut world = world(json!({}));
    world.node("n", 10);
    world.refuse.insert("a1".to_owned());
    for pod in gang(3, 3, STRICT()) {
        world.apply(pod);
    }
    world.run();
    assert_eq!(world.bound(), ["a0", "a2"]);
    assert_eq!(world.condition("a1"), "binding rejected: no");
    world.refuse.clear();
    world.later(20);
    assert_eq!(world.bound(), ["a0", "a1", "a2"]);
}

#[test]
fn restart_counts_bound_members_only() {
    for (policy, goes) in [
        ("once-satisfied", true),
        ("waiting-and-running", true),
        ("only-waiting", false),
    ] {
        // The leader stopped when one of three was bound. The new one receives pods in any order, and the
        // PodGroup last.
        let mut world = world(json!({}));
        world.node("n", 10);
        world.apply(member("a2", "a"));
        world.apply(on_node(member("a0", "a"), "n"));
        world.apply(member("a1", "a"));
        let key = "gang.scheduling.koordinator.sh/match-policy";
        world.declare(group("a", 3, json!({key: policy}), json!({})));
        world.run();
        assert_eq!(world.bound.len(), if goes { 2 } else { 0 }, "{policy}");
        assert_eq!(world.booked().0, if goes { 3 } else { 1 }, "{policy}");
    }
}

#[test]
fn member_that_cannot_be_scheduled_does_not_count() {
    for (case, change) in [
        (
            "gated",
            json!({"spec": {"schedulingGates": [{"name": "x"}]}}),
        ),
        (
            "going",
            json!({"metadata": {"deletionTimestamp": at(0).to_string()}}),
        ),
    ] {
        let mut world = world(json!({}));
        world.node("n", 10);
        let pods = gang(3, 3, STRICT());
        world.apply(pods[0].clone());
        world.apply(pods[1].clone());
        let mut value = serde_json::to_value(&pods[2]).unwrap();
        for (key, part) in change.as_object().unwrap() {
            for (field, content) in part.as_object().unwrap() {
                value[key][field] = content.clone();
            }
        }
        world.apply(serde_json::from_value(value).unwrap());
        world.run();
        assert_eq!(world.cycles, 0, "{case}");
        world.apply(pods[2].clone());
        world.run();
        assert_eq!(world.bound.len(), 3, "{case}");
    }
}

/// The member is deleted while it is being bound; a finalizer keeps its object.
#[test]
fn member_deleted_while_binding_does_not_count() {
    for goes in 0..3 {
        let case = format!("a{goes} goes");
        let mut world = world(json!({}));
        world.node("n", 10);
        let pods = gang(4, 3, STRICT());
        for pod in &pods[..3] {
            world.apply(pod.clone());
        }
        world.answer = false;
        world.run();
        assert_eq!(world.pending.len(), 3, "{case}");
        let mut going = pods[goes].clone();
        going.metadata.finalizers = Some(vec!["batch.kubernetes.io/job-tracking".to_owned()]);
        going.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        world.apply(going);
        world.refuse = BTreeSet::from(["a0", "a1", "a2"].map(str::to_owned));
        world.answer = true;
        world.answer();
        world.refuse.clear();
        world.later(20);
        assert_eq!(world.bound(), [""; 0], "{case}: the other two are too few");
        world.apply(pods[3].clone());
        world.later(20);
        let mut remaining = vec!["a0", "a1", "a2", "a3"];
        remaining.remove(goes);
        assert_eq!(world.bound(), remaining, "{case}");
    }
}

#[test]
fn deleted_waiting_member_rolls_back_the_others() {
    let mut world = world(json!({}));
    world.node("n", 2);
    let lenient = json!({"mode": "NonStrict"});
    let pods = gang(3, 3, lenient);
    for pod in &pods {
        world.apply(pod.clone());
    }
    world.run();
    assert_eq!(world.booked(), (2, 2));
    for pod in &pods {
        world.delete(pod);
    }
    world.run();
    assert_eq!(world.booked(), (0, 0));
    let summary = world.engine.take_outputs();
    assert!(summary.is_empty());
}

#[test]
fn deleted_representative_is_replaced() {
    let mut world = world(json!({}));
    let pods = gang(4, 3, STRICT());
    for pod in &pods {
        world.apply(pod.clone());
    }
    // The gang was completed by a2, which represents it. Nothing was tried yet, because there is no node.
    world.delete(&pods[2]);
    world.node("n", 10);
    world.run();
    assert_eq!(world.bound(), ["a0", "a1", "a3"]);
}

#[test]
fn changed_pod_group_applies_immediately() {
    let mut world = world(json!({}));
    world.node("n", 10);
    world.declare(group("a", 3, json!({}), json!({})));
    world.apply(member("a0", "a"));
    world.apply(member("a1", "a"));
    world.run();
    assert_eq!(world.cycles, 0);
    world.object(group("a", 2, json!({}), json!({})), Action::UPDATE);
    world.run();
    assert_eq!(world.bound(), ["a0", "a1"]);
}

#[test]
fn invalid_values_are_reported_and_replaced() {
    for (more, expected, starts) in [
        (
            json!({"min-available": "two"}),
            "gang.scheduling.koordinator.sh/min-available: \"two\"",
            false,
        ),
        (json!({"total-number": "1"}), "total-number: \"1\"", true),
        (json!({"mode": "Rigid"}), "mode: \"Rigid\"", true),
        (
            json!({"match-policy": "any"}),
            "match-policy: \"any\"",
            true,
        ),
        (json!({"waiting-time": "30"}), "waiting-time: \"30\"", true),
        (
            json!({"groups": "ganga,gangx"}),
            "groups: \"ganga,gangx\"",
            true,
        ),
        (
            json!({"network-topology-spec": "["}),
            "network-topology-spec: \"[\"",
            true,
        ),
    ] {
        let mut world = world(json!({}));
        world.node("n", 10);
        for pod in gang(2, 2, more) {
            world.apply(pod.clone());
            world.apply(pod);
        }
        world.run();
        assert_eq!(
            world.problems.len(),
            2,
            "once per pod: {:?}",
            world.problems
        );
        assert!(world.problems[0].contains(expected), "{:?}", world.problems);
        assert_eq!(world.bound.len(), if starts { 2 } else { 0 }, "{expected}");
        // One member that describes the gang correctly is enough for all.
        world.apply(annotated("good", "a", 2, json!({})));
        world.run();
        assert_eq!(world.bound.len(), 3, "{expected}");
    }
}

#[test]
fn gang_reports_disabled_network_topology() {
    let mut world = world(json!({}));
    world.node("n", 10);
    let annotations = json!({"network-topology-spec": r#"{"gatherStrategy":[]}"#});
    for pod in gang(2, 2, annotations) {
        world.apply(pod);
    }
    world.run();
    assert!(world.bound.is_empty());
    let text = "0/1 nodes are available: no cluster network topology: \
                --enable-network-topology-manager is off.";
    assert_eq!(world.condition("a1"), text);
}

#[test]
fn thousand_members_are_tried_once_each() {
    let mut world = world(json!({}));
    for at in 0..50 {
        world.node(&format!("n{at}"), 20);
    }
    for pod in gang(1000, 1000, STRICT()) {
        world.apply(pod);
    }
    world.run();
    assert_eq!((world.cycles, world.bound.len()), (1000, 1000));
    for pod in gang(1000, 1000, STRICT()) {
        world.delete(&pod);
    }
    assert_eq!(world.booked(), (0, 0));
    for at in 0..1001 {
        world.apply(annotated(&format!("b{at}"), "b", 1001, json!({})));
    }
    world.run();
    assert_eq!(world.booked(), (0, 0), "one too many: none stays");
    assert_eq!(world.conditions.len(), 1001);
}

#[test]
fn inspection_api_lists_gangs() {
    let mut world = world(json!({}));
    world.node("n", 1);
    world.declare(group("a", 2, json!({}), json!({})));
    world.apply(member("a0", "a"));
    world.apply(on_node(member("a1", "a"), "n"));
    let plugin = plugin(
        &[group("a", 2, json!({}), json!({}))],
        &[member("a0", "a"), on_node(member("a1", "a"), "n")],
    );
    let gang = plugin.gangs.summary("ns/a").unwrap();
    assert_eq!(gang["waitTime"], 30_000_000_000_i64);
    assert_eq!(gang["pendingChildren"], json!({"ns/a0": {}}));
    assert_eq!(gang["boundChildren"], json!({"ns/a1": {}}));
    assert_eq!(gang["onceResourceSatisfied"], true);
    assert_eq!(gang["gangFrom"], "GangFromPodGroupCrd");
    assert_eq!(gang["gangGroup"], json!(["ns/a"]));
    assert!(plugin.gangs.summary("ns/b").is_none());
    let explained = plugin.gangs.explain("a0").unwrap();
    assert_eq!(
        (&explained["needs"], &explained["bound"]),
        (&json!(2), &json!(1))
    );
}
