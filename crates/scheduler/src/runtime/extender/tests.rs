use super::*;
use axum::extract::{Path, State};
use axum::routing::post;
use koord_model::resources::ResourceTable;
use serde_json::{Value, json};

/// A server with a fixed response for each verb, and extenders that use it.
async fn extenders(answers: Value, entries: Value) -> Extenders {
    let say = |State(answers): State<Value>, Path(verb): Path<String>| async move {
        axum::Json(answers[verb].clone())
    };
    let routes = axum::Router::new().route("/{verb}", post(say));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, routes.with_state(answers)).into_future());
    let mut entries: Vec<Extender> = serde_json::from_value(entries).unwrap();
    for entry in &mut entries {
        entry.url_prefix.clone_from(&url);
    }
    Extenders::new(&entries).await.unwrap()
}

fn pod() -> Arc<PodInfo> {
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": []}});
    let pod = serde_json::from_value(pod).unwrap();
    Arc::new(PodInfo::new(Arc::new(pod), &ResourceTable::new()).unwrap())
}

fn nodes(names: &[&str]) -> Vec<Arc<NodeInfo>> {
    let node = |name: &&str| {
        let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Arc::new(NodeInfo::new(Arc::new(node), None, &ResourceTable::new()).0)
    };
    names.iter().map(node).collect()
}

async fn ask(extenders: &Extenders, names: &[&str]) -> Result<ExtenderNodeResult, String> {
    let call = ExtenderCall {
        ticket: 1,
        pod: pod(),
        extenders: (0..extenders.0.len()).collect(),
        request: ExtenderRequest::Nodes(nodes(names)),
    };
    match extenders.answer(call).await {
        ExtenderResult::Nodes(advised) => advised,
        other => panic!("{other:?}"),
    }
}

/// The rows of kube-scheduler's `TestFindNodesThatPassExtenders`.
#[tokio::test]
async fn nodes_pass_extenders_as_in_kube_scheduler() {
    let failed = json!({"NodeNames": ["a"], "FailedNodes": {"b": "b failed"},
        "FailedAndUnresolvableNodes": {"c": "c never"}});
    let answers = json!({
        "error": {"Error": "broken"},
        "all": {"NodeNames": ["a"]},
        "mixed": failed,
        "less": {"NodeNames": ["a"], "FailedNodes": {"b": "too late", "c": "too late"}},
    });
    let b = ("b", "b failed", false);
    let c = ("c", "c never", true);
    type FailedAttempt<'a> = &'a [(&'a str, &'a str, bool)];
    type Row<'a> = (
        &'a str,
        &'a [&'a str],
        &'a [&'a str],
        Option<FailedAttempt<'a>>,
    );
    let rows: [Row<'_>; 6] = [
        ("error", &["error"], &["a"], None),
        ("success", &["all"], &["a"], Some(&[])),
        ("unschedulable", &["mixed"], &["a", "b"], Some(&[b])),
        (
            "and unresolvable",
            &["mixed"],
            &["a", "b", "c"],
            Some(&[b, c]),
        ),
        // A plugin's refusal of a node stands: the extender is not called about it.
        ("does not overwrite", &["mixed"], &["a", "b"], Some(&[b])),
        (
            "multiple",
            &["mixed", "less"],
            &["a", "b", "c"],
            Some(&[b, c]),
        ),
    ];
    for (name, verbs, names, expected) in rows {
        let entry = |verb: &&str| json!({"filterVerb": verb, "nodeCacheCapable": true});
        let entries = verbs.iter().map(entry).collect();
        let advised = ask(&extenders(answers.clone(), entries).await, names).await;
        let refused = advised.as_ref().map(|advised| {
            let each = advised.refused.iter();
            each.map(|(node, (text, never))| (&**node, &**text, *never))
                .collect::<Vec<_>>()
        });
        assert_eq!(refused.ok().as_deref(), expected, "{name}: {advised:?}");
    }
}

/// The rows of kube-scheduler's `TestSchedulerWithExtenders` in which extenders alone decide: the nodes that
/// pass, the best of them by the extenders' scores, or none if the pod is not scheduled.
#[tokio::test]
async fn extenders_filter_and_score_nodes() {
    let keeps = |names: &[&str]| {
        let all = ["node1", "node2"].into_iter();
        let lost: BTreeMap<&str, &str> = all
            .filter(|name| !names.contains(name))
            .map(|name| (name, "no"))
            .collect();
        json!({"NodeNames": names, "FailedNodes": lost})
    };
    let answers = json!({
        "true": keeps(&["node1", "node2"]), "false": keeps(&[]),
        "node1": keeps(&["node1"]), "node2": keeps(&["node2"]),
        "one": {"NodeNames": ["node1"]},
        "but2": {"NodeNames": [], "FailedNodes": {"node2": "no"}},
        "error": {"Error": "broken"}, "worse": "no list",
        "likes1": [{"Host": "node1", "Score": 10}, {"Host": "node2", "Score": 1}],
        "likes2": [{"Host": "node1", "Score": 1}, {"Host": "node2", "Score": 10}],
    });
    let filter = |verb: &str| json!({"filterVerb": verb, "nodeCacheCapable": true});
    let filter_and_scores = |filter: &str, scores: &str, weight: i64| {
        json!({"filterVerb": filter, "prioritizeVerb": scores, "weight": weight,
            "nodeCacheCapable": true})
    };
    let ignorable =
        |verb: &str| json!({"filterVerb": verb, "nodeCacheCapable": true, "ignorable": true});
    let (one, two): (&[&str], &[&str]) = (&["node1"], &["node1", "node2"]);
    type Row<'a> = (
        &'a str,
        Vec<Value>,
        &'a [&'a str],
        Option<&'a [&'a str]>,
        &'a str,
    );
    #[rustfmt::skip]
    let rows: [Row<'_>; 8] = [
        ("1: the second fails", vec![filter("true"), filter("error")], two, None, ""),
        ("2: the second wants none", vec![filter("true"), filter("false")], two, Some(&[]), ""),
        ("3: the second wants one", vec![filter("true"), filter("node1")], two, Some(one), "node1"),
        ("4: they agree on none", vec![filter("node2"), filter("but2")], two, Some(&[]), ""),
        ("5: scores fail", vec![filter_and_scores("one", "worse", 1)], one, Some(one), "node1"),
        ("6: scores by weight", vec![filter_and_scores("true", "likes1", 1), filter_and_scores("true", "likes2", 5)], two, Some(two), "node2"),
        ("9: one may fail", vec![ignorable("error"), filter("node1")], two, Some(one), "node1"),
        ("10: without scores", vec![filter("true"), filter("node1")], two, Some(one), "node1"),
    ];
    for (name, entries, names, left, best) in rows {
        let advised = ask(&extenders(answers.clone(), json!(entries)).await, names).await;
        let Some(left) = left else {
            assert!(advised.is_err(), "{name}: {advised:?}");
            continue;
        };
        let advised = advised.unwrap();
        let fit = |node: &&&str| !advised.refused.contains_key(**node);
        let fits: Vec<&str> = names.iter().filter(fit).copied().collect();
        assert_eq!(fits, left, "{name}");
        let score = |node: &str| advised.scores.get(node).copied().unwrap_or(0);
        // Of equal nodes, the first.
        let best_node = fits.iter().rev().max_by_key(|node| score(node));
        assert_eq!(
            best_node.copied().unwrap_or(""),
            best,
            "{name}: {advised:?}"
        );
    }
}

/// Scores are weighted, multiplied by 10 and summed over all extenders. Hosts that were not in the request
/// are ignored, and a single node is not scored.
#[tokio::test]
async fn scores_are_scaled_and_added() {
    let answers = json!({
        "one": [{"Host": "a", "Score": 3}, {"Host": "b", "Score": 10}, {"Host": "z", "Score": 9}],
        "two": [{"host": "a", "score": -2}],
        "bad": [{"Host": "a", "Score": "many"}],
        "none": null,
    });
    let entries = json!([
        {"prioritizeVerb": "bad", "weight": 5},
        {"prioritizeVerb": "one", "weight": 2},
        {"prioritizeVerb": "two", "weight": 1},
        {"prioritizeVerb": "none", "weight": 1},
    ]);
    let extenders = extenders(answers, entries).await;
    let advised = ask(&extenders, &["a", "b", "c"]).await.unwrap();
    let scores: Vec<(&str, i64)> = advised.scores.iter().map(|(n, s)| (&**n, *s)).collect();
    assert_eq!(scores, [("a", 3 * 2 * 10 - 2 * 10), ("b", 10 * 2 * 10)]);
    assert_eq!(
        ask(&extenders, &["a"]).await.unwrap(),
        ExtenderNodeResult::default()
    );
}

/// Proxy settings in the environment have no effect.
#[test]
fn proxy_environment_variables_are_ignored() {
    let own = std::env::current_exe().unwrap();
    let test = "runtime::extender::tests::scores_are_scaled_and_added";
    let mut run = std::process::Command::new(own);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        run.env(name, "http://127.0.0.1:1");
    }
    let out = run.args(["--exact", test]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.contains("1 passed"), "{text}");
}

/// Responses are decoded as Go's decoder does it.
#[test]
fn field_names_ignore_case_and_null_is_absent() {
    let read = |value: Value| wire::read::<wire::FilterResult>(value.to_string().as_bytes());
    let result = read(
        json!({"nodenames": ["a"], "NODES": null, "failedNodes": null,
        "error": null, "other": {"x": [1]}}),
    )
    .unwrap();
    assert_eq!(result.names.as_deref(), Some(&["a".to_owned()][..]));
    assert!(result.nodes.is_none() && result.failed.is_empty() && result.error.is_empty());
    let list = read(json!({"Nodes": {"kind": "NodeList", "items": [{"metadata": {"name": "n"}}]}}));
    assert_eq!(list.unwrap().nodes.unwrap().items[0].metadata.name, "n");
    for bad in [
        json!([]),
        json!({"Nodes": []}),
        json!({"FailedNodes": {"a": 1}}),
        json!("x"),
    ] {
        assert!(read(bad.clone()).is_err(), "{bad}");
    }
    let deep = "[".repeat(100_000);
    assert!(wire::read::<wire::FilterResult>(deep.as_bytes()).is_err());
    let deep = format!("{{\"other\": {deep}");
    assert!(wire::read::<wire::FilterResult>(deep.as_bytes()).is_err());
}
