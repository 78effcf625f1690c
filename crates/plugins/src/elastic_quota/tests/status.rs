//! Status annotations and summaries of quotas.

use super::*;

fn shows(object: &Value, annotation: &str) -> Value {
    let text = object["metadata"]["annotations"][annotation].as_str();
    text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

#[test]
fn quota_status_is_written_at_most_once_a_second() {
    let mut engine = engine(&json!({}), 100, 100);
    let mut a = quota("a", "", (40, 40), (10, 10));
    apply(&mut engine, &a, 0);
    add(&mut engine, &firm(bound(pod("x", "a", 4, 4))), 0);
    add(&mut engine, &pod("y", "a", 200, 2), 0);
    let first = writes(&mut engine, 0);
    let writes_of = |writes: &[Write], name: &str| -> Vec<Write> {
        let is_patch = |write: &&Write| write.name == name && matches!(write.verb, Verb::Patch(_));
        writes.iter().filter(is_patch).cloned().collect()
    };
    let to_a = writes_of(&first, "a");
    assert_eq!((to_a.len(), to_a[0].namespace.as_str()), (1, "quotas"));
    assert_eq!(
        (to_a[0].group, to_a[0].version, to_a[0].plural),
        ("scheduling.sigs.k8s.io", "v1alpha1", "elasticquotas")
    );
    // A write is not repeated while the answer is pending, but if it does not arrive.
    assert_eq!(writes_of(&writes(&mut engine, 2), "a"), []);
    assert_eq!(writes_of(&writes(&mut engine, 11), "a"), to_a);
    written(&mut engine, &mut a, &to_a[0], 12);
    assert_eq!(shows(&a, annotations::QUOTA_RUNTIME), list(40, 6));
    assert_eq!(shows(&a, annotations::QUOTA_REQUEST), list(204, 6));
    assert_eq!(shows(&a, annotations::QUOTA_CHILD_REQUEST), list(204, 6));
    assert_eq!(
        shows(&a, annotations::QUOTA_NON_PREEMPTIBLE_USED),
        list(4, 4)
    );
    assert_eq!(
        shows(&a, annotations::QUOTA_NON_PREEMPTIBLE_REQUEST),
        list(4, 4)
    );
    assert_eq!(
        shows(&a, annotations::QUOTA_GUARANTEED),
        Value::Null,
        "its gate is off"
    );
    assert_eq!(a["status"]["used"], list(4, 4));
    assert_eq!(
        writes_of(&writes(&mut engine, 60), "a"),
        [],
        "nothing changed"
    );

    delete(&mut engine, &pod("x", "a", 4, 4), 70);
    delete(&mut engine, &pod("y", "a", 200, 2), 70);
    let last = writes_of(&writes(&mut engine, 80), "a");
    written(&mut engine, &mut a, &last[0], 80);
    let zero = json!({"cpu": "0", "memory": "0"});
    assert_eq!(a["status"]["used"], zero);
    assert_eq!(shows(&a, annotations::QUOTA_RUNTIME), zero);
    // Zero and missing amounts are equal.
    a["status"] = json!({});
    a["metadata"]["annotations"] = json!({});
    apply(&mut engine, &a, 90);
    assert_eq!(writes_of(&writes(&mut engine, 95), "a"), []);
}

#[test]
fn unused_resources_are_removed_from_status() {
    let mut engine = engine(&json!({}), 100, 100);
    let mut a = quota("a", "", (40, 40), (0, 0));
    a["status"] = json!({"used": {"cpu": "1", "example.com/gpu": "3"}});
    a["metadata"]["annotations"][annotations::QUOTA_REQUEST] = json!("broken");
    apply(&mut engine, &a, 0);
    add(&mut engine, &bound(pod("x", "a", 4, 4)), 0);
    let all = writes(&mut engine, 0);
    let patch = all.iter().find(|write| write.name == "a").unwrap();
    written(&mut engine, &mut a, patch, 1);
    assert_eq!(a["status"]["used"], list(4, 4));
    assert_eq!(shows(&a, annotations::QUOTA_REQUEST), list(4, 4));
}

#[test]
fn guaranteed_use_is_reported_with_its_gate() {
    let mut engine = engine_with(&json!({}), &["ElasticQuotaGuaranteeUsage"]);
    engine.node_applied(node("n", 100, 100), at(0));
    let mut a = quota("a", "", (40, 40), (10, 1));
    apply(&mut engine, &a, 0);
    add(&mut engine, &bound(pod("x", "a", 4, 4)), 0);
    let all = writes(&mut engine, 0);
    let patch = all.iter().find(|write| write.name == "a").unwrap();
    written(&mut engine, &mut a, patch, 1);
    assert_eq!(shows(&a, annotations::QUOTA_ALLOCATED), list(4, 4));
    assert_eq!(shows(&a, annotations::QUOTA_GUARANTEED), list(10, 4));
    assert_eq!(summary(&mut engine, "a")["allowLentResource"], false);
}

#[test]
fn missing_built_in_quotas_are_created() {
    let args = json!({"quotaGroupNamespace": "q", "defaultQuotaGroupMax": {"cpu": "7"}});
    let mut engine = engine(&args, 10, 10);
    let mut system = quota(SYSTEM_QUOTA, "", (5, 5), (0, 0));
    system["metadata"]["namespace"] = json!("q");
    apply(&mut engine, &system, 0);
    let created = |writes: Vec<Write>| -> Vec<Value> {
        let body = |write: Write| match write.verb {
            Verb::Create(body) => Some(body),
            _ => None,
        };
        writes.into_iter().filter_map(body).collect()
    };
    let first = created(writes(&mut engine, 0));
    assert_eq!(
        first[0],
        json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ElasticQuota",
            "metadata": {"name": ROOT_QUOTA, "namespace": "q", "labels": {
                labels::QUOTA_IS_PARENT: "true",
                labels::QUOTA_ALLOW_LENT_RESOURCE: "false",
                labels::QUOTA_PARENT: ""
            }},
            "spec": {}
        })
    );
    assert_eq!(first[1]["metadata"]["name"], DEFAULT_QUOTA);
    assert_eq!(first[1]["spec"], json!({"max": {"cpu": "7"}}));
    assert_eq!(first.len(), 2, "the third exists");
    assert_eq!(created(writes(&mut engine, 30)).len(), 0);
    assert_eq!(
        created(writes(&mut engine, 61)).len(),
        2,
        "it did not work: once more"
    );
    for mut body in first {
        body["metadata"]["uid"] = json!("u");
        apply(&mut engine, &body, 62);
    }
    assert_eq!(created(writes(&mut engine, 200)).len(), 0);
}

#[test]
fn invalid_annotation_is_reported_last_value_stays() {
    let mut engine = engine(&json!({}), 100, 100);
    let mut a = quota("a", "", (40, 40), (0, 0));
    let notes = &mut a["metadata"]["annotations"];
    notes[annotations::QUOTA_SHARED_WEIGHT] = json!("{\"cpu\":\"3\"}");
    notes[annotations::QUOTA_NAMESPACES] = json!("[\"team\"]");
    apply(&mut engine, &a, 0);
    engine.take_outputs();
    let notes = &mut a["metadata"]["annotations"];
    notes[annotations::QUOTA_SHARED_WEIGHT] = json!("{\"cpu\":\"3x\"}");
    notes[annotations::QUOTA_NAMESPACES] = json!("team");
    apply(&mut engine, &a, 1);
    let problems: Vec<String> = engine
        .take_outputs()
        .into_iter()
        .filter_map(|output| match output {
            Output::Problem(problem) => Some(format!("{} {}", problem.name, problem.message)),
            _ => None,
        })
        .collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    for (problem, parts) in problems.iter().zip([
        ["a ", annotations::QUOTA_SHARED_WEIGHT, "3x"],
        ["a ", annotations::QUOTA_NAMESPACES, "\"team\""],
    ]) {
        for part in parts {
            assert!(problem.contains(part), "{problem}: no {part}");
        }
    }
    assert_eq!(
        summary(&mut engine, "a")["sharedWeight"],
        json!({"cpu": "3"})
    );
    add(&mut engine, &pod("p", "", 1, 1), 2);
    assert!(
        summary(&mut engine, "a")["podCache"]
            .get("team/p")
            .is_some()
    );
}

#[test]
fn oldest_object_of_a_name_is_in_force() {
    let mut engine = engine(&json!({}), 100, 100);
    let dated = |namespace: &str, cpu: i64, second: i64| {
        let mut object = quota("a", "", (cpu, 1), (0, 0));
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["creationTimestamp"] = json!(at(second).to_string());
        object
    };
    apply(&mut engine, &dated("late", 7, 9), 0);
    apply(&mut engine, &dated("early", 5, 3), 0);
    assert_eq!(summary(&mut engine, "a")["max"]["cpu"], "5");
    apply(&mut engine, &dated("third", 6, 20), 0);
    let reported = engine.take_outputs().into_iter().any(|output| {
        matches!(output, Output::Problem(problem)
            if problem.namespace == "third" && problem.message.contains("\"early\""))
    });
    assert!(reported);
    engine.object_changed(&change(&dated("third", 6, 20), Action::DELETE), at(1));
    assert_eq!(
        summary(&mut engine, "a")["max"]["cpu"],
        "5",
        "others' quota is not touched"
    );
    engine.object_changed(&change(&dated("early", 5, 3), Action::DELETE), at(1));
    assert_eq!(summary(&mut engine, "a")["max"]["cpu"], "7");
}

#[test]
fn service_lists_quotas_and_their_pods() {
    let mut engine = engine(&json!({}), 100, 100);
    apply(&mut engine, &quota("p", "", (40, 40), (20, 20)), 0);
    apply(&mut engine, &quota("p-a", "p", (30, 30), (10, 10)), 0);
    add(&mut engine, &bound(firm(pod("x", "p-a", 4, 4))), 0);
    add(&mut engine, &pod("y", "p-a", 1, 1), 0);
    let mut is = summary(&mut engine, "p-a");
    is.as_object_mut()
        .unwrap()
        .remove("runtimeVersion")
        .unwrap();
    let none = json!({});
    assert_eq!(
        is,
        json!({
            "name": "p-a", "parentName": "p", "isParent": false, "allowLentResource": true,
            "tree": "", "max": list(30, 30), "min": list(10, 10), "autoScaleMin": list(5, 5),
            "used": list(4, 4), "nonPreemptibleUsed": list(4, 4), "request": list(5, 5),
            "nonPreemptibleRequest": list(4, 4), "sharedWeight": list(30, 30),
            "runtime": list(5, 5), "childRequest": list(5, 5), "allocated": none,
            "guaranteed": none, "selfUsed": list(4, 4), "selfNonPreemptibleUsed": list(4, 4),
            "selfRequest": list(5, 5), "selfNonPreemptibleRequest": list(4, 4),
            "podCache": {
                "team/x": {"isAssigned": true, "resource": list(4, 4)},
                "team/y": {"isAssigned": false, "resource": list(1, 1)}
            }
        })
    );
    let mut names = |pairs: &[(&str, &str)]| -> Vec<String> {
        let all = engine
            .inspector()
            .inspect(NAME, &["quotas"], &query(pairs), at(0))
            .unwrap();
        all.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(names(&[]), [DEFAULT_QUOTA, SYSTEM_QUOTA, "p", "p-a"]);
    assert!(names(&[("tree", "t")]).is_empty());
    let other = engine
        .inspector()
        .inspect(NAME, &["other"], &query(&[]), at(0));
    assert_eq!(other, Err(NotShown::NoSuchPath));
}

#[test]
fn explain_shows_quota_use_and_refusal() {
    let mut engine = engine(&json!({}), 100, 100);
    apply(&mut engine, &quota("a", "", (8, 40), (4, 10)), 0);
    assert_eq!(place(&mut engine, &pod("x", "a", 7, 4), 0), "n");
    let message = place(&mut engine, &pod("y", "a", 2, 2), 1);
    assert!(message.contains("Insufficient quotas"), "{message}");
    let explain = |engine: &mut Engine, name: &str| {
        let explanation = engine.inspector().explain_pod("team", name, at(2)).unwrap();
        explanation["plugins"][NAME].clone()
    };
    let y = explain(&mut engine, "y");
    assert_eq!(y["quota"]["name"], "a");
    assert_eq!(y["quota"]["max"], list(8, 40));
    assert_eq!(y["quota"]["used"], list(7, 4));
    assert_eq!(y["quota"]["request"], list(9, 6));
    assert_eq!(y["placed"], false);
    let refusal = y["refusal"].as_str().unwrap();
    for piece in [
        "Insufficient quotas, quotaName: a",
        "runtime: cpu:8",
        "used: cpu:7",
        "pod's request: cpu:2",
        "exceedDimensions: [cpu]",
    ] {
        assert!(refusal.contains(piece), "{piece}: {refusal}");
    }
    let x = explain(&mut engine, "x");
    assert_eq!(
        (&x["placed"], &x["quota"]["name"]),
        (&json!(true), &json!("a"))
    );

    // With a larger max, nothing rejects it any more.
    apply(&mut engine, &quota("a", "", (9, 40), (4, 10)), 3);
    assert_eq!(explain(&mut engine, "y")["refusal"], Value::Null);
}

/// Upstream's rows of the controller: quotas named like their namespaces, pods, and the requests of these.
#[test]
fn requests_appear_in_namespace_quota_status() {
    let own = |name: &str| {
        let mut own = quota(name, "", (5, 15), (3, 5));
        own["metadata"]["namespace"] = json!(name);
        own
    };
    let containers = |list: &[(i64, i64)]| -> Value {
        let list = list.iter().enumerate();
        list.map(|(at, (cpu, memory))| {
            json!({"name": format!("c{at}"), "resources": {"requests": super::list(*cpu, *memory)}})
        })
        .collect()
    };
    let pod = |name: &str, namespace: &str, init: &[(i64, i64)], main: &[(i64, i64)]| {
        let mut pod = pod(name, "", 0, 0);
        pod["metadata"]["namespace"] = json!(namespace);
        pod["spec"]["initContainers"] = containers(init);
        pod["spec"]["containers"] = containers(main);
        bound(pod)
    };
    let init = [(2, 1), (2, 3)];
    type Row<'a> = (&'static str, Vec<Value>, &'a [(&'static str, Value)]);
    let rows: [Row<'_>; 4] = [
        (
            "without init containers",
            vec![
                pod("p1", "x", &[], &[(1, 2)]),
                pod("p2", "x", &[], &[(1, 2)]),
            ],
            &[("x", list(2, 4)), ("y", json!({}))],
        ),
        (
            "with init containers",
            vec![
                pod("p1", "x", &[], &[(1, 2), (1, 2)]),
                pod("p2", "x", &init, &[(2, 1), (1, 1)]),
            ],
            &[("x", list(5, 7)), ("y", json!({}))],
        ),
        (
            "of two quotas",
            vec![
                pod("p1", "x", &init, &[(2, 1), (1, 1)]),
                pod("p2", "y", &init, &[(3, 1), (1, 1)]),
            ],
            &[("x", list(3, 3)), ("y", list(4, 3))],
        ),
        (
            "of a third namespace",
            vec![pod("p1", "z", &[], &[(1, 2), (1, 2)])],
            &[
                ("x", json!({})),
                ("y", json!({})),
                (DEFAULT_QUOTA, list(2, 4)),
            ],
        ),
    ];
    for (name, pods, expected) in rows {
        let mut engine = engine(&json!({}), 100, 100);
        for quota in ["x", "y"] {
            apply(&mut engine, &own(quota), 0);
        }
        for pod in &pods {
            add(&mut engine, pod, 0);
        }
        for (quota, amounts) in expected {
            let is = summary(&mut engine, quota);
            assert_eq!(is["used"], *amounts, "{name}: use of {quota}");
            assert_eq!(is["request"], *amounts, "{name}: request of {quota}");
        }
    }
}
