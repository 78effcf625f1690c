use super::*;
use koord_model::resources::ResourceTable;
use koord_scheduler::framework::Indexes;
use koord_scheduler::state::NodeStore;

const NO_RESERVATION_FITS: &str = "node(s) no reservations match reservation affinity";

fn affinity(value: Value) -> Value {
    json!({"metadata": {"annotations": {annotations::RESERVATION_AFFINITY: value.to_string()}}})
}

/// Creates a node of 8 cores with a pod of `used`, a reservation of `cpu` with `spec`, and an owner of
/// `owned` if that is not zero. Returns the result of a pod that requests `requests`.
fn owner_result(
    spec: Value,
    cpu: i64,
    used: i64,
    owned: i64,
    requests: &str,
    change: Value,
) -> String {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    if used > 0 {
        world.pod("used", &used.to_string(), "any", json!({}));
    }
    world.reserve("r", &cpu.to_string(), "web", json!({ "spec": spec }));
    world.run();
    if owned > 0 {
        world.pod("first", &owned.to_string(), "web", json!({}));
        world.run();
    }
    world.pod("p", requests, "web", change);
    world.run();
    world.result_of("p")
}

#[test]
fn owners_allocate_by_policy() {
    let aligned = || json!({"allocatePolicy": "Aligned"});
    let restricted = || json!({"allocatePolicy": "Restricted"});
    let default = || json!({});
    let node = "0/1 nodes are available: 1 Insufficient cpu by node.";
    let node_fit = "0/1 nodes are available: 1 Insufficient cpu.";
    let tail = "1 Reservation(s) matched owner total";
    let fit_reason = "1 Reservation(s) for node reason that Insufficient cpu";
    let node_reason = "1 Reservation(s) for node reason that Insufficient cpu by node";
    for (name, spec, cpu, used, owned, requests, expected) in [
        ("within", default(), 4, 2, 0, "4", "n (r)".to_owned()),
        (
            "the rest from the node",
            default(),
            4,
            2,
            0,
            "6",
            "n (r)".to_owned(),
        ),
        (
            "aligned, the rest from the node",
            aligned(),
            4,
            2,
            2,
            "4",
            "n (r)".to_owned(),
        ),
        (
            "too much for both",
            default(),
            4,
            2,
            0,
            "7",
            format!("{node_fit} {fit_reason}, {tail}"),
        ),
        (
            "restricted, within",
            restricted(),
            4,
            2,
            0,
            "4",
            "n (r)".to_owned(),
        ),
        (
            "restricted, beyond, from the node alone",
            restricted(),
            4,
            2,
            2,
            "2",
            "n (r)".to_owned(),
        ),
        (
            "restricted, node alone has room",
            restricted(),
            2,
            0,
            1,
            "2",
            "n".to_owned(),
        ),
        (
            "restricted, neither has room",
            restricted(),
            4,
            2,
            2,
            "3",
            format!("{node} {node_reason}, {tail}"),
        ),
    ] {
        let result = owner_result(spec, cpu, used, owned, requests, json!({}));
        assert_eq!(result, expected, "{name}");
    }
}

#[test]
fn required_reservation_is_the_only_choice() {
    let restricted = || json!({"allocatePolicy": "Restricted"});
    let any = || affinity(json!({}));
    let named = || affinity(json!({"name": "r"}));
    let total = "1 Reservation(s) matched owner total";
    let exactly = "1 Reservation(s) exactly matches the requested reservation name";
    for (name, spec, cpu, owned, requests, change, expected) in [
        (
            "any, within",
            restricted(),
            4,
            0,
            "4",
            any(),
            "n (r)".to_owned(),
        ),
        (
            "any, beyond",
            restricted(),
            4,
            2,
            "3",
            any(),
            format!("0/1 nodes are available: 1 Reservation(s) Insufficient cpu. {total}"),
        ),
        (
            "by name",
            restricted(),
            4,
            0,
            "4",
            named(),
            "n (r)".to_owned(),
        ),
        (
            "by name, beyond",
            restricted(),
            4,
            2,
            "3",
            named(),
            format!(
                "0/1 nodes are available: 1 Reservation(s) Insufficient cpu, requested: 3000, \
             used: 2000, capacity: 4000. {exactly}, {total}"
            ),
        ),
        (
            "by name, aligned",
            json!({"allocatePolicy": "Aligned"}),
            4,
            2,
            "3",
            named(),
            "n (r)".to_owned(),
        ),
        (
            "used up",
            json!({"allocateOnce": true}),
            4,
            2,
            "1",
            any(),
            format!(
                "0/1 nodes are available: {NO_RESERVATION_FITS}. 0 Reservation(s) matched owner total"
            ),
        ),
        (
            "another label",
            json!({}),
            4,
            0,
            "1",
            affinity(json!({"reservationSelector": {"a": "b"}})),
            format!(
                "0/1 nodes are available: {NO_RESERVATION_FITS}. \
             1 Reservation(s) didn't match affinity rules, {total}"
            ),
        ),
        (
            "another name",
            json!({}),
            4,
            0,
            "1",
            affinity(json!({"name": "x"})),
            format!(
                "0/1 nodes are available: {NO_RESERVATION_FITS}. \
             1 Reservation(s) didn't match the requested reservation name, {total}"
            ),
        ),
        (
            "a taint",
            json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}),
            4,
            0,
            "1",
            any(),
            format!(
                "0/1 nodes are available: {NO_RESERVATION_FITS}. \
             1 Reservation(s) had untolerated taint {{k: v}}, {total}"
            ),
        ),
        (
            "closed",
            json!({"unschedulable": true}),
            4,
            0,
            "1",
            any(),
            format!(
                "0/1 nodes are available: {NO_RESERVATION_FITS}. \
             1 Reservation(s) is unschedulable, {total}"
            ),
        ),
    ] {
        assert_eq!(
            owner_result(spec, cpu, 0, owned, requests, change),
            expected,
            "{name}"
        );
    }
}

#[test]
fn restricted_options_and_set_aside_amounts_count() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    let restricted = json!({"allocatePolicy": "Restricted"});
    let note = |key: &str, value: Value| json!({"annotations": {key: value.to_string()}});
    let options = note(
        annotations::RESERVATION_RESTRICTED_OPTIONS,
        json!({"resources": ["memory"]}),
    );
    let aside = note(
        annotations::NODE_RESERVATION,
        json!({"resources": {"cpu": "1"}}),
    );
    let limit = json!([{"name": "c", "resources": {"requests": {"cpu": "1", "pods": "1"}}}]);
    let memory = json!([{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]);
    for (name, meta, spec) in [
        (
            "options",
            options,
            json!({"template": {"spec": {"containers": memory}}}),
        ),
        ("aside", aside, json!({})),
        (
            "limit",
            json!({}),
            json!({"template": {"spec": {"containers": limit}}}),
        ),
    ] {
        let mut spec = spec;
        merge(&mut spec, &restricted);
        world.reserve(name, "2", name, json!({"metadata": meta, "spec": spec}));
    }
    world.run();
    for (name, app, cpu, expected) in [
        ("options-1", "options", "2", "n (options)"),
        ("aside-1", "aside", "1500m", "capacity: 1000"),
        ("aside-2", "aside", "1", "n (aside)"),
        ("limit-1", "limit", "500m", "n (limit)"),
        (
            "limit-2",
            "limit",
            "500m",
            "Reservation(s) Too many pods, requested: 1, used: 1, capacity: 1",
        ),
    ] {
        world.pod(name, cpu, app, affinity(json!({"name": app})));
        world.run();
        assert!(
            world.result_of(name).contains(expected),
            "{name}: {}",
            world.result_of(name)
        );
    }
    // What is set aside stays held: 1 (aside) + 2 + 1 + 0.5 in use + 0.5 of the limited one.
    assert_eq!(world.booked("n"), 2000 + 2000 + 1000);
}

#[test]
fn ordered_then_fullest_reservation_is_nominated() {
    let order = |order: &str| json!({"metadata": {"labels": {koord_api::labels::RESERVATION_ORDER: order}}});
    let none = || json!({});
    for (name, reservations, expected) in [
        (
            "fullest",
            [("a", "4", none()), ("b", "2", none()), ("c", "3", none())],
            "n (b)",
        ),
        (
            "lowest order",
            [
                ("a", "4", order("7")),
                ("b", "2", none()),
                ("c", "3", order("9")),
            ],
            "n (a)",
        ),
        (
            "order 0 is none",
            [
                ("a", "4", order("0")),
                ("b", "2", none()),
                ("c", "3", order("x")),
            ],
            "n (b)",
        ),
        (
            "negative order",
            [
                ("a", "4", order("1")),
                ("b", "2", none()),
                ("c", "3", order("-1")),
            ],
            "n (c)",
        ),
    ] {
        let mut world = ReservationWorld::new();
        world.node("n", 16);
        for (name, cpu, change) in reservations {
            let mut change = change;
            merge(
                &mut change,
                &json!({"spec": {"allocatePolicy": "Restricted"}}),
            );
            world.reserve(name, cpu, "web", change);
        }
        world.run();
        world.pod("p", "2", "web", json!({}));
        world.run();
        assert_eq!(world.result_of("p"), expected, "{name}");
    }
}

/// A job that moves a pod without requests makes such a reservation, and waits for its owner.
#[test]
fn reservation_of_nothing_is_used_once() {
    let none = || json!({"spec": {"containers": [{"name": "c"}]}});
    let some = || json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
    for (name, pod) in [
        ("no request", none()),
        // For example by a recommender that did not know the first pod.
        ("a request that the first pod did not have", some()),
    ] {
        let mut world = ReservationWorld::new();
        world.node("m", 8);
        world.node("n", 8);
        let order = json!({koord_api::labels::RESERVATION_ORDER: "1"});
        let once = json!({
            "metadata": {"labels": order},
            "spec": {"allocateOnce": true, "template": {"spec": {"nodeName": "n", "containers": none()["spec"]["containers"]}}},
        });
        world.reserve("r", "0", "web", once);
        world.run();
        assert_eq!(world.status("r")["phase"], "Available", "{name}");
        world.pod("p", "0", "web", pod);
        world.run();
        assert_eq!(world.result_of("p"), "n (r)", "{name}");
        let status = world.status("r");
        assert_eq!(status["currentOwners"][0]["uid"], "p", "{name}");
        assert_eq!(status["allocated"], Value::Null, "{name}");
        assert_eq!(status["phase"], "Succeeded", "{name}");
        world.pod("q", "0", "web", none());
        world.run();
        assert!(!world.result_of("q").contains("(r)"), "{name}");
    }
}

#[test]
fn reservation_of_nothing_is_the_last_choice() {
    let order = |order: &str| json!({"metadata": {"labels": {koord_api::labels::RESERVATION_ORDER: order}}});
    let empty = json!({"spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}});
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    world.reserve("a", "0", "web", super::hardware::merged(empty, order("1")));
    world.reserve("b", "2", "web", json!({}));
    world.run();
    world.pod("p", "1", "web", json!({}));
    world.run();
    assert_eq!(world.result_of("p"), "n (b)");
    let none = json!({"spec": {"containers": [{"name": "c"}]}});
    world.pod("q", "0", "web", none);
    world.run();
    assert_eq!(
        world.result_of("q"),
        "n (a)",
        "none of the other is requested"
    );
}

#[test]
fn node_with_best_reservation_is_chosen() {
    let fixed = |node: &str, order: Option<&str>| {
        let labels = order.map(|order| json!({koord_api::labels::RESERVATION_ORDER: order}));
        json!({"metadata": {"labels": labels.unwrap_or_else(|| json!({}))},
            "spec": {"allocatePolicy": "Restricted",
                "template": {"spec": {"nodeName": node}}}})
    };
    for (name, orders, expected) in [
        ("fullest", [None, None, None], "n2 (r2)"),
        ("order", [Some("5"), None, Some("9")], "n1 (r1)"),
        (
            "orders close together",
            [Some("9"), None, Some("8")],
            "n3 (r3)",
        ),
    ] {
        let mut world = ReservationWorld::new();
        for node in ["n1", "n2", "n3", "n4"] {
            world.node(node, 8);
        }
        for (at, order) in orders.into_iter().enumerate() {
            let cpu = ["4", "2", "3"][at];
            let node = format!("n{}", at + 1);
            world.reserve(&format!("r{}", at + 1), cpu, "web", fixed(&node, order));
        }
        world.run();
        world.pod("p", "2", "web", json!({}));
        world.run();
        assert_eq!(world.result_of("p"), expected, "{name}");
    }
}

#[test]
fn reservations_keep_to_their_node_and_their_kind() {
    let mut world = ReservationWorld::new();
    world.node("n1", 8);
    let fixed = |node: &str| json!({"template": {"spec": {"nodeName": node}}});
    let mut aligned = fixed("n1");
    aligned["allocatePolicy"] = json!("Aligned");
    world.reserve("elsewhere", "1", "web", json!({"spec": fixed("n9")}));
    world.reserve("default", "1", "web", json!({"spec": fixed("n1")}));
    world.run();
    world.reserve("aligned", "1", "web", json!({ "spec": aligned }));
    world.run();
    assert!(world.last_message("elsewhere").contains(OTHER_NODE));
    assert!(world.last_message("aligned").contains(POLICY_CONFLICT));
    world.unreserve("default");
    world.later(60);
    assert_eq!(world.status("aligned")["phase"], "Available");
    let mut restricted = fixed("n1");
    restricted["allocatePolicy"] = json!("Restricted");
    world.reserve("restricted", "1", "web", json!({ "spec": restricted }));
    world.run();
    assert_eq!(world.status("restricted")["phase"], "Available");
}

#[test]
fn ignoring_pod_uses_reserved_resources() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    world.reserve("r", "6", "web", json!({}));
    world.run();
    let label = json!({"metadata": {"labels": {koord_api::labels::RESERVATION_IGNORED: "true"}}});
    world.pod("p", "5", "web", label);
    world.run();
    assert_eq!(world.result_of("p"), "n");
    assert_eq!(world.booked("n"), 11_000);
    assert_eq!(world.status("r").get("currentOwners"), None);
}

#[test]
fn signature_follows_owner_match() {
    let mut plugin = Reservations {
        args: PerProfile::new(Args::default()),
        node_labels: true,
        clean_owners: false,
        expire_pending: false,
        budgets: budgets::BudgetChecks::from_gates(&BuildContext::default()),
        is_controller: true,
        table: ReservationTable::default(),
        pre_allocatable: PreAllocatableIndex::default(),
        checks: CheckQueue::default(),
        metrics_exported: None,
    };
    let (nodes, resources) = (NodeStore::default(), ResourceTable::new());
    let view = View {
        nodes: &nodes,
        resources: &resources,
        indexes: &Indexes::default(),
        now: Timestamp::UNIX_EPOCH,
    };
    let show = |plugin: &mut Reservations, name: &str, app: &str, node: &str| {
        let object: Reservation = serde_json::from_value(json!({
            "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Reservation",
            "metadata": {"name": name, "uid": name},
            "spec": {"ttl": "1h", "owners": [{"labelSelector": {"matchLabels": {"app": app}}}],
                "template": {"spec": {"containers": []}}},
            "status": {"phase": "Available", "nodeName": node}
        }))
        .unwrap();
        plugin
            .table
            .apply(Arc::new(object), view, &mut Effects::default());
    };
    let sign = |plugin: &Reservations, app: &str, cpu: &str| {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "x", "namespace": "ns", "uid": "x", "labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
        }))
        .unwrap();
        let pod = PodInfo::new(Arc::new(pod), &resources).unwrap();
        let mut signature = Signature::default();
        assert_eq!(
            plugin.sign_external(&pod, view, &mut signature),
            Signable::Yes
        );
        signature.finish()
    };
    show(&mut plugin, "r1", "web", "n1");
    let (web, db) = (sign(&plugin, "web", "1"), sign(&plugin, "db", "1"));
    assert_ne!(web, db);
    assert_eq!(
        db,
        sign(&plugin, "db", "2"),
        "what it asks for does not matter here"
    );
    assert_ne!(web, sign(&plugin, "web", "2"));
    show(&mut plugin, "r2", "web", "n1");
    show(&mut plugin, "r1", "web", "n2");
    show(&mut plugin, "r3", "api", "n1");
    assert_eq!(
        (sign(&plugin, "web", "1"), sign(&plugin, "db", "1")),
        (web, db)
    );
    show(&mut plugin, "r4", "db", "n1");
    assert_eq!(sign(&plugin, "web", "1"), web);
}

/// Returns the explained reservations of a pod: name, node, whether it is usable, why not, and the remaining
/// CPU.
fn explained(world: &mut ReservationWorld, pod: &str) -> Vec<String> {
    let explanation = world
        .engine
        .inspector()
        .explain_pod("ns", pod, world.now)
        .unwrap();
    let listed = explanation["plugins"][NAME]["reservations"]
        .as_array()
        .cloned();
    let mut lines: Vec<String> = listed
        .unwrap_or_default()
        .iter()
        .map(|item| {
            let text = |key: &str| item[key].as_str().unwrap_or("-").to_owned();
            let cpu = item["remaining"]["cpu"].as_str().unwrap_or("-");
            let usable = &item["usable"];
            let (name, node, why) = (text("name"), text("node"), text("why"));
            format!("{name} on {node}: {usable}, {why}, cpu {cpu}")
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn explain_lists_owned_reservations_and_reasons() {
    let mut world = ReservationWorld::new();
    world.node("n", 8);
    let taint = json!({"spec": {"taints": [
        {"key": "team", "value": "a", "effect": "NoSchedule"}]}});
    world.reserve("open", "3", "web", json!({}));
    world.reserve(
        "closed",
        "1",
        "web",
        json!({"spec": {"unschedulable": true}}),
    );
    world.reserve("tainted", "1", "web", taint);
    world.reserve("other", "1", "db", json!({}));
    world.run();
    world.pod("first", "1", "web", affinity(json!({"name": "open"})));
    world.run();
    assert_eq!(world.result_of("first"), "n (open)");
    let used = world
        .engine
        .inspector()
        .explain_pod("ns", "first", world.now)
        .unwrap();
    assert_eq!(used["plugins"][NAME]["uses"]["name"], "open");

    let taint = "untolerated taint {team: a}";
    let another = "the pod asks for another one by name";
    let unmatched = "the pod's reservation affinity does not match it";
    let closed = "it is unschedulable";
    let selects = json!({"reservationSelector": {"team": "b"}});
    for (case, change, expected) in [
        (
            "plain",
            json!({}),
            [
                format!("closed on n: false, {closed}, cpu 1"),
                "open on n: true, -, cpu 2".to_owned(),
                "tainted on n: true, -, cpu 1".to_owned(),
            ],
        ),
        (
            "by name",
            affinity(json!({"name": "open"})),
            [
                format!("closed on n: false, {another}, cpu 1"),
                "open on n: true, -, cpu 2".to_owned(),
                format!("tainted on n: false, {another}, cpu 1"),
            ],
        ),
        (
            "by label",
            affinity(selects),
            [
                format!("closed on n: false, {closed}, cpu 1"),
                format!("open on n: false, {unmatched}, cpu 2"),
                format!("tainted on n: false, {taint}, cpu 1"),
            ],
        ),
    ] {
        world.pod("p", "20", "web", change);
        world.run();
        assert_eq!(explained(&mut world, "p"), expected, "{case}");
        world.pod_gone("p");
    }
    world.pod("stranger", "20", "none", json!({}));
    world.run();
    let stranger = world
        .engine
        .inspector()
        .explain_pod("ns", "stranger", world.now)
        .unwrap();
    assert_eq!(stranger["plugins"].get(NAME), None);

    let key = annotations::RESERVATION_AFFINITY;
    let broken = json!({"metadata": {"annotations": {key: "{nope"}}});
    world.pod("broken", "20", "web", broken);
    world.run();
    let broken = world
        .engine
        .inspector()
        .explain_pod("ns", "broken", world.now)
        .unwrap();
    let error = broken["plugins"][NAME]["error"]
        .as_str()
        .unwrap_or_default();
    assert!(error.contains(key) && error.contains("{nope"), "{broken}");
}
