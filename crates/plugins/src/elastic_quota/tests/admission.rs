//! Admission of pods by quota, and the messages for rejected pods.

use super::*;

#[test]
fn quota_borrows_from_sibling_and_returns() {
    let mut engine = engine(&json!({}), 100, 1000);
    apply(&mut engine, &quota("a", "", (100, 1000), (50, 500)), 0);
    apply(&mut engine, &quota("b", "", (100, 1000), (50, 500)), 0);
    for at in 0..8 {
        assert_eq!(
            place(&mut engine, &pod(&format!("a{at}"), "a", 10, 1), 0),
            "n"
        );
    }
    // The lender requests resources: the borrower keeps what it uses and gets no more.
    assert_eq!(place(&mut engine, &pod("b0", "b", 20, 1), 0), "n");
    assert_eq!(
        place(&mut engine, &pod("a8", "a", 10, 1), 0),
        refused(
            "Insufficient quotas, quotaName: a, runtime: cpu:80,memory:9Gi, used: cpu:80,memory:8Gi, \
             pod's request: cpu:10,memory:1Gi, exceedDimensions: [cpu]"
        )
    );
    let result = place(&mut engine, &pod("b1", "b", 30, 1), 0);
    assert_eq!(
        result,
        refused("1 Insufficient cpu"),
        "its quota has room, the node has not"
    );
    assert_eq!(summary(&mut engine, "a")["runtime"]["cpu"], "50");
    // When borrowing pods end, the lender's pod is admitted as soon as it fits.
    for at in 0..3 {
        delete(&mut engine, &pod(&format!("a{at}"), "a", 10, 1), 5);
    }
    assert_eq!(
        schedule(&mut engine, 5),
        [("b1".to_owned(), "n".to_owned())]
    );
}

#[test]
fn maximum_is_never_exceeded() {
    let mut engine = engine(&json!({}), 100, 100);
    apply(&mut engine, &quota("a", "", (10, 20), (0, 0)), 0);
    assert_eq!(place(&mut engine, &pod("p0", "a", 6, 2), 0), "n");
    assert_eq!(
        place(&mut engine, &pod("p1", "a", 6, 2), 0),
        refused(
            "Insufficient quotas, quotaName: a, runtime: cpu:10,memory:4Gi, used: cpu:6,memory:2Gi, \
             pod's request: cpu:6,memory:2Gi, exceedDimensions: [cpu]"
        )
    );
    let fixed = json!({"enableRuntimeQuota": false});
    let mut fixed = super::engine(&fixed, 100, 100);
    apply(&mut fixed, &quota("a", "", (10, 20), (0, 0)), 0);
    assert_eq!(
        place(&mut fixed, &pod("p", "a", 11, 30), 0),
        refused(
            "Insufficient quotas, quotaName: a, runtime: cpu:10,memory:20Gi, used: <empty>, \
             pod's request: cpu:11,memory:30Gi, exceedDimensions: [cpu memory]"
        )
    );
}

/// The gate `SupportParentQuotaSubmitPod` belongs to the webhook: pods that it admits are charged here.
#[test]
fn parent_quota_may_have_pods() {
    for gates in [&[][..], &["SupportParentQuotaSubmitPod"]] {
        let mut engine = engine_with(&json!({}), gates);
        engine.node_applied(node("n", 100, 100), at(0));
        let mut parent = quota("p", "", (40, 40), (10, 10));
        parent["metadata"]["labels"][labels::QUOTA_IS_PARENT] = json!("true");
        apply(&mut engine, &parent, 0);
        apply(&mut engine, &quota("p-a", "p", (40, 40), (5, 5)), 0);
        assert_eq!(place(&mut engine, &firm(pod("own", "p", 10, 1)), 0), "n");
        assert_eq!(place(&mut engine, &pod("child", "p-a", 20, 2), 0), "n");
        let is = summary(&mut engine, "p");
        for (field, expected) in [
            ("selfUsed", list(10, 1)),
            ("selfRequest", list(10, 1)),
            ("selfNonPreemptibleUsed", list(10, 1)),
            ("used", list(30, 3)),
            ("request", list(30, 3)),
            ("childRequest", list(30, 3)),
            ("nonPreemptibleUsed", list(10, 1)),
        ] {
            assert_eq!(is[field], expected, "{field}");
        }
        assert_eq!(is["isParent"], true);
        assert_eq!(summary(&mut engine, "p-a")["used"], list(20, 2));
        // The use of its children limits its own pods.
        assert_eq!(
            place(&mut engine, &pod("more", "p", 11, 1), 0),
            refused(
                "Insufficient quotas, quotaName: p, runtime: cpu:40,memory:4Gi, used: cpu:30,memory:3Gi, \
                 pod's request: cpu:11,memory:1Gi, exceedDimensions: [cpu]"
            )
        );
        // It keeps its pods when its children are deleted, and when it is no longer a parent.
        let child = quota("p-a", "p", (40, 40), (5, 5));
        engine.object_changed(&change(&child, Action::DELETE), at(1));
        apply(&mut engine, &quota("p", "", (40, 40), (10, 10)), 1);
        assert_eq!(summary(&mut engine, "p")["used"], list(10, 1));
    }
}

#[test]
fn small_runtime_is_ignored_when_disabled() {
    // Upstream's row: a pod of 1 core and 3 GiB, and a runtime of 1 core and 2 GiB, because the nodes have no
    // more.
    for (shares, expected) in [(true, ""), (false, "n")] {
        let mut engine = engine_with(&json!({"enableRuntimeQuota": shares}), &[]);
        engine.node_applied(node("n", 2, 4), at(0));
        apply(&mut engine, &quota("a", "", (10, 20), (0, 0)), 0);
        apply(&mut engine, &quota("b", "", (10, 20), (0, 0)), 0);
        add(&mut engine, &pod("other", "b", 5, 10), 0);
        schedule(&mut engine, 0);
        let is = place(&mut engine, &pod("p", "a", 1, 3), 0);
        if expected.is_empty() {
            assert!(is.contains("runtime: cpu:1,memory:2Gi,"), "{is}");
            assert!(is.contains("exceedDimensions: [memory]"), "{is}");
        } else {
            assert_eq!(is, expected);
        }
    }
}

#[test]
fn resource_missing_in_max_is_unlimited() {
    let mut engine = engine(&json!({}), 100, 100);
    let mut cpu_only = quota("a", "", (10, 0), (0, 0));
    cpu_only["spec"] = json!({"max": {"cpu": "10"}});
    apply(&mut engine, &cpu_only, 0);
    assert_eq!(place(&mut engine, &pod("p", "a", 1, 90), 0), "n");
    assert_eq!(summary(&mut engine, "a")["used"], json!({"cpu": "1"}));
}

#[test]
fn non_lending_quota_keeps_its_min() {
    for (lent, expected) in [("true", "n"), ("false", "")] {
        let mut engine = engine(&json!({}), 100, 100);
        apply(&mut engine, &quota("a", "", (100, 100), (60, 60)), 0);
        let mut b = quota("b", "", (100, 100), (40, 40));
        b["metadata"]["labels"][labels::QUOTA_ALLOW_LENT_RESOURCE] = json!(lent);
        apply(&mut engine, &b, 0);
        let is = place(&mut engine, &pod("p", "a", 61, 1), 0);
        if expected.is_empty() {
            assert!(is.contains("runtime: cpu:60,"), "{is}");
        } else {
            assert_eq!(is, expected);
        }
    }
}

#[test]
fn nested_quotas_are_limited_by_their_parent() {
    let build = |check: bool| {
        let args = json!({"enableCheckParentQuota": check, "enableRuntimeQuota": false});
        let mut engine = engine(&args, 100, 100);
        apply(&mut engine, &quota("p", "", (10, 30), (0, 0)), 0);
        apply(&mut engine, &quota("p-a", "p", (8, 30), (0, 0)), 0);
        apply(&mut engine, &quota("p-b", "p", (8, 30), (0, 0)), 0);
        add(&mut engine, &bound(pod("x", "p-b", 7, 1)), 0);
        place(&mut engine, &pod("y", "p-a", 4, 3), 0)
    };
    assert_eq!(build(false), "n");
    assert_eq!(
        build(true),
        refused(
            "Insufficient quotas, quotaNameTopo: [p p-a], runtime: cpu:10,memory:30Gi, \
             used: cpu:7,memory:1Gi, pod's request: cpu:4,memory:3Gi, exceedDimensions: [cpu]"
        )
    );
    // The runtime is limited along the tree, so no check of the parent is needed.
    let mut engine = engine(&json!({}), 100, 100);
    apply(&mut engine, &quota("p", "", (10, 30), (0, 0)), 0);
    apply(&mut engine, &quota("p-a", "p", (20, 30), (0, 0)), 0);
    let is = place(&mut engine, &pod("y", "p-a", 11, 3), 0);
    assert!(is.contains("quotaName: p-a, runtime: cpu:10,"), "{is}");
    // A quota without a parent, or with a cycle of parents, has its guarantee and no more.
    let args = json!({"enableCheckParentQuota": true});
    let mut lost = super::engine(&args, 100, 100);
    for (name, parent) in [("lost", "nowhere"), ("a", "b"), ("b", "a")] {
        apply(&mut lost, &quota(name, parent, (20, 30), (2, 2)), 0);
    }
    let is = place(&mut lost, &pod("y", "lost", 3, 1), 0);
    assert!(is.contains("runtime: cpu:2,"), "{is}");
    let is = place(&mut lost, &pod("z", "a", 3, 1), 0);
    assert!(is.contains("runtime: cpu:2,"), "{is}");
    let is = place(&mut lost, &pod("ok", "lost", 0, 1), 0);
    assert!(
        is.contains("Could not find the elasticQuota nowhere, quotaNameTopo: [nowhere lost]"),
        "{is}"
    );
}

#[test]
fn non_preemptible_pods_stay_within_min() {
    struct Row {
        name: &'static str,
        max: (i64, i64),
        total: (i64, i64),
        /// Cores, GiB and whether non-preemptible.
        before: [(i64, i64, bool); 3],
        pod: (i64, i64),
        expected: &'static str,
    }
    let rows = [
        Row {
            name: "room in both",
            max: (10, 10),
            total: (10, 10),
            before: [(2, 1, false), (1, 1, false), (1, 1, false)],
            pod: (2, 2),
            expected: "n",
        },
        Row {
            name: "no room in the minimum",
            max: (10, 8),
            total: (9, 8),
            before: [(2, 1, false), (2, 1, true), (2, 1, true)],
            pod: (2, 2),
            expected: "0/1 nodes are available: Insufficient non-preemptible quotas, \
                       quotaName: test1, min: cpu:5,memory:5Gi, \
                       nonPreemptibleUsed: cpu:4,memory:2Gi, pod's request: cpu:2,memory:2Gi, \
                       exceedDimensions: [cpu].",
        },
        Row {
            name: "no room in the share",
            max: (10, 8),
            total: (7, 5),
            before: [(2, 1, false), (2, 1, false), (2, 2, true)],
            pod: (2, 1),
            expected: "0/1 nodes are available: Insufficient quotas, \
                       quotaName: test1, runtime: cpu:7,memory:5Gi, \
                       used: cpu:6,memory:4Gi, pod's request: cpu:2,memory:1Gi, \
                       exceedDimensions: [cpu].",
        },
    ];
    for row in rows {
        let mut engine = engine(&json!({}), row.total.0, row.total.1);
        apply(&mut engine, &quota("test1", "", row.max, (5, 5)), 0);
        for (at, (cpu, memory, is_firm)) in row.before.into_iter().enumerate() {
            let other = bound(pod(&at.to_string(), "test1", cpu, memory));
            add(&mut engine, &if is_firm { firm(other) } else { other }, 0);
        }
        let pod = firm(pod("p", "test1", row.pod.0, row.pod.1));
        assert_eq!(place(&mut engine, &pod, 0), row.expected, "{}", row.name);
    }
}

#[test]
fn pod_quota_from_label_namespace_or_default() {
    let mut engine = engine(&json!({}), 100, 100);
    let pods_of = |engine: &mut Engine, name: &str| -> Vec<String> {
        let all = engine.inspector().inspect(
            NAME,
            &["quotas"],
            &query(&[("includePods", "true")]),
            at(0),
        );
        let all = all.unwrap();
        let holds = |(_, quota): &(&String, &Value)| {
            quota["podCache"].get(format!("team/{name}")).is_some()
        };
        let all = all.as_object().unwrap().iter();
        all.filter(holds).map(|(name, _)| name.clone()).collect()
    };
    add(&mut engine, &bound(pod("labelled", "q", 1, 1)), 0);
    add(&mut engine, &bound(pod("plain", "", 1, 1)), 0);
    assert_eq!(pods_of(&mut engine, "labelled"), [DEFAULT_QUOTA]);
    assert_eq!(pods_of(&mut engine, "plain"), [DEFAULT_QUOTA]);
    let used = |engine: &mut Engine, name| summary(engine, name)["used"]["cpu"].clone();
    assert_eq!(used(&mut engine, DEFAULT_QUOTA), "2");

    // The quota is created: its pods leave the default quota immediately.
    apply(&mut engine, &quota("q", "", (10, 10), (0, 0)), 0);
    assert_eq!(pods_of(&mut engine, "labelled"), ["q"]);
    assert_eq!(
        (used(&mut engine, DEFAULT_QUOTA), used(&mut engine, "q")),
        (json!("1"), json!("1"))
    );

    let mut claimed = quota("claims", "", (10, 10), (0, 0));
    claimed["metadata"]["annotations"][annotations::QUOTA_NAMESPACES] = json!("[\"team\"]");
    apply(&mut engine, &claimed, 0);
    assert_eq!(pods_of(&mut engine, "plain"), ["claims"]);

    // A quota with the name of its namespace takes precedence.
    let mut own = quota("team", "", (10, 10), (0, 0));
    own["metadata"]["namespace"] = json!("team");
    apply(&mut engine, &own, 0);
    assert_eq!(pods_of(&mut engine, "plain"), ["team"]);
    engine.object_changed(&change(&own, Action::DELETE), at(0));
    assert_eq!(pods_of(&mut engine, "plain"), ["claims"]);
    claimed["metadata"]["annotations"][annotations::QUOTA_NAMESPACES] = json!("[\"other\"]");
    apply(&mut engine, &claimed, 0);
    assert_eq!(pods_of(&mut engine, "plain"), [DEFAULT_QUOTA]);

    // The pods of a deleted quota move to the default quota.
    engine.object_changed(
        &change(&quota("q", "", (10, 10), (0, 0)), Action::DELETE),
        at(0),
    );
    assert_eq!(pods_of(&mut engine, "labelled"), [DEFAULT_QUOTA]);
    assert_eq!(used(&mut engine, DEFAULT_QUOTA), "2");
    delete(&mut engine, &pod("labelled", "q", 1, 1), 0);
    assert_eq!(used(&mut engine, DEFAULT_QUOTA), "1");
    let deleted = engine
        .inspector()
        .inspect(NAME, &["quotas", "q"], &query(&[]), at(0));
    assert_eq!(
        deleted,
        Err(NotShown::Missing("cannot find quota q".to_owned()))
    );
}

#[test]
fn default_quota_has_no_runtime_limit_and_can_be_off() {
    let tight = json!({"defaultQuotaGroupMax": {"cpu": "1"}});
    assert_eq!(
        place(&mut engine(&tight, 100, 100), &pod("p", "", 5, 5), 0),
        "n"
    );
    let tight = json!({"defaultQuotaGroupMax": {"cpu": "1"}, "enableRuntimeQuota": false});
    let mut fixed = engine(&tight, 100, 100);
    fixed.schedule_one(at(0));
    let is = place(&mut fixed, &pod("p", "", 5, 5), 0);
    assert!(
        is.contains(&format!("quotaName: {DEFAULT_QUOTA}, runtime: cpu:1,")),
        "{is}"
    );

    let mut off = engine_with(&tight, &["DisableDefaultQuota"]);
    off.node_applied(node("n", 100, 100), at(0));
    assert_eq!(place(&mut off, &pod("p", "", 5, 5), 0), "n");
    assert_eq!(place(&mut off, &pod("q", "unknown", 5, 5), 0), "n");
    assert!(summary(&mut off, DEFAULT_QUOTA).get("podCache").is_none());
}

#[test]
fn default_quota_use_is_not_divided() {
    let mut engine = engine(&json!({}), 100, 100);
    apply(&mut engine, &quota("a", "", (100, 100), (0, 0)), 0);
    add(&mut engine, &bound(pod("x", "", 30, 30)), 0);
    let is = place(&mut engine, &pod("p", "a", 71, 1), 0);
    assert!(is.contains("runtime: cpu:70,"), "{is}");
    engine.node_applied(node("m", 100, 100), at(2));
    assert_eq!(schedule(&mut engine, 2), [("p".to_owned(), "m".to_owned())]);
}

#[test]
fn rejected_pods_are_activated_as_far_as_they_fit() {
    let mut engine = engine(&json!({}), 100, 100);
    apply(&mut engine, &quota("a", "", (10, 100), (0, 0)), 0);
    for at in 0..5 {
        add(&mut engine, &pod(&format!("p{at}"), "a", 10, 1), 0);
    }
    assert_eq!(
        schedule(&mut engine, 0).len(),
        5,
        "one placed, four refused"
    );
    assert_eq!(schedule(&mut engine, 5).len(), 0);
    apply(&mut engine, &quota("a", "", (30, 100), (0, 0)), 10);
    let names = |out: Vec<(String, String)>| -> Vec<String> {
        out.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(
        names(schedule(&mut engine, 10)),
        ["p1", "p2"],
        "and no other pod is tried"
    );
    delete(&mut engine, &pod("p0", "a", 10, 1), 20);
    assert_eq!(names(schedule(&mut engine, 20)), ["p3"]);
    // A waiting pod of a sibling is deleted: its request is available again.
    let mut engine = super::engine(&json!({}), 100, 100);
    apply(&mut engine, &quota("a", "", (100, 100), (0, 0)), 0);
    apply(&mut engine, &quota("b", "", (100, 100), (60, 60)), 0);
    let big = pod("b0", "b", 70, 200);
    add(&mut engine, &big, 0);
    add(&mut engine, &pod("a0", "a", 41, 1), 0);
    assert_eq!(schedule(&mut engine, 0).len(), 2);
    assert_eq!(schedule(&mut engine, 9).len(), 0);
    delete(&mut engine, &big, 10);
    assert_eq!(names(schedule(&mut engine, 10)), ["a0"]);
}

#[test]
fn failed_binding_releases_the_quota() {
    let mut engine = engine(&json!({}), 100, 100);
    apply(&mut engine, &quota("a", "", (10, 100), (0, 0)), 0);
    assert_eq!(place(&mut engine, &pod("p", "a", 10, 1), 0), "n");
    assert_eq!(summary(&mut engine, "a")["used"]["cpu"], "10");
    let error = koord_scheduler::engine::BindError {
        message: "no".to_owned(),
        gone: false,
    };
    engine.bind_finished("p", Err(error), at(1));
    assert_eq!(summary(&mut engine, "a")["used"]["cpu"], "0");
    assert_eq!(
        summary(&mut engine, "a")["request"]["cpu"],
        "10",
        "it still asks"
    );
}

#[test]
fn gates_select_what_is_charged() {
    let used = |gates: &[&str], pod: &Value| {
        let mut engine = engine_with(&json!({}), gates);
        engine.node_applied(node("n", 100, 100), at(0));
        apply(&mut engine, &quota("a", "", (100, 100), (0, 0)), 0);
        add(&mut engine, &bound(pod.clone()), 0);
        let initial = summary(&mut engine, "a")["used"]["cpu"].clone();
        engine.schedule_one(at(100));
        (initial, summary(&mut engine, "a")["used"]["cpu"].clone())
    };
    let mut heavy = pod("p", "a", 4, 1);
    heavy["spec"]["overhead"] = json!({"cpu": "1"});
    assert_eq!(used(&[], &heavy).0, "5");
    assert_eq!(used(&["ElasticQuotaIgnorePodOverhead"], &heavy).0, "4");
    let mut ending = pod("p", "a", 4, 1);
    ending["metadata"]["deletionTimestamp"] = json!(at(10).to_string());
    ending["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    let four = json!("4");
    assert_eq!(used(&[], &ending), (four.clone(), four.clone()));
    let gate = ["ElasticQuotaIgnoreTerminatingPod"];
    assert_eq!(used(&gate, &ending), (four, json!("0")));
    let gate = ["ElasticQuotaImmediateIgnoreTerminatingPod"];
    assert_eq!(used(&gate, &ending).0, Value::Null);
}

#[test]
fn arguments_are_checked() {
    let build = |args: Value| build(Some(&args), &BuildContext::default()).err();
    let is = |args: Value| build(args).map(|error| error.message).unwrap_or_default();
    for (args, expected) in [
        (json!({}), ""),
        (
            json!({"enableQueueHint": true, "quotaSnapshotUpdateInterval": "120s",
                   "hookPlugins": [{"key": "k", "factoryKey": "f"}], "monitorAllQuotas": true}),
            "",
        ),
        (
            json!({"delayEvictTime": "-1s"}),
            "args.delayEvictTime: -1s must not be negative",
        ),
        (
            json!({"revokePodInterval": "-1s"}),
            "args.revokePodInterval: -1s must not be negative",
        ),
        (
            json!({"defaultQuotaGroupMax": {"cpu": "-1"}}),
            "args.defaultQuotaGroupMax[cpu]: -1 must not be negative",
        ),
        (
            json!({"systemQuotaGroupMax": {"memory": "-1Gi"}}),
            "args.systemQuotaGroupMax[memory]: -1Gi must not be negative",
        ),
    ] {
        assert_eq!(is(args), expected);
    }
    assert!(is(json!({"enableQueueHints": true})).contains("enableQueueHints"));
}

#[test]
fn pods_of_all_quotas_share_node_results() {
    let plugin = build(None, &BuildContext::default()).unwrap();
    let mut signature = Signature::default();
    let pod: Pod = serde_json::from_value(pod("p", "a", 1, 1)).unwrap();
    let resources = ResourceTable::new();
    let pod = PodInfo::new(Arc::new(pod), &resources).unwrap();
    let sign = plugin.sign().unwrap();
    assert_eq!(sign.sign(&pod, &resources, &mut signature), Signable::Yes);
    let view = View {
        nodes: &NodeStore::default(),
        resources: &resources,
        indexes: &Indexes::default(),
        now: Timestamp::UNIX_EPOCH,
    };
    assert_eq!(
        sign.sign_external(&pod, view, &mut signature),
        Signable::Yes
    );
    assert_eq!(signature.finish(), Signature::default().finish());
}
