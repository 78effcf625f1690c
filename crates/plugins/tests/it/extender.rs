//! Extenders as real servers, correct and faulty ones, against the embedded API server.

mod server;

use crate::api::{TestCluster, allocatable};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Event, Pod};
use koord_app::Clock;
use koord_kube::api::PostParams;
use koord_kube::certs::Artifacts;
use koord_scheduler::config::Configuration;
use parking_lot::Mutex;
use serde_json::{Value, json};
use server::{Extender, nodes_of, schedule};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

async fn three_nodes(cluster: &TestCluster) {
    for name in ["a", "b", "c"] {
        cluster.node(name, allocatable("4"), json!([])).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_extender_filters_scores_and_binds() {
    let cluster = TestCluster::start().await;
    three_nodes(&cluster).await;
    let client = cluster.client.clone();
    let answer = move |verb: String, args: Value| {
        let client = client.clone();
        async move {
            let answer = match verb.as_str() {
                "filter" => {
                    let items = args["Nodes"]["items"].as_array().unwrap();
                    let remaining = items.iter().filter(|node| node["metadata"]["name"] != "a");
                    json!({"Nodes": {"items": remaining.collect::<Vec<_>>()},
                        "FailedNodes": {"a": "not this one"}, "Error": ""})
                }
                "prioritize" => json!([{"Host": "b", "Score": 1}, {"Host": "c", "Score": 9}]),
                "bind" => {
                    let name = args["PodName"].as_str().unwrap();
                    let body = json!({"apiVersion": "v1", "kind": "Binding",
                        "metadata": {"name": name, "uid": args["PodUID"]},
                        "target": {"kind": "Node", "name": args["Node"]}});
                    let namespace = args["PodNamespace"].as_str().unwrap();
                    let api = koord_kube::Api::<Pod>::namespaced(client, namespace);
                    let params = PostParams::default();
                    let bound =
                        api.create_subresource::<Value, Value>("binding", name, &params, &body);
                    bound.await.unwrap();
                    json!({})
                }
                other => panic!("{other}"),
            };
            axum::Json(answer).into_response()
        }
        .boxed()
    };
    let tls = Artifacts::generate(&Artifacts::default(), "localhost", Clock::system().now());
    let extender = Extender::serve(Arc::new(answer), Some(tls.unwrap())).await;
    let entry = extender.entry(
        &json!({"filterVerb": "filter", "prioritizeVerb": "prioritize",
        "weight": 100, "bindVerb": "bind", "enableHTTPS": true,
        "tlsConfig": {"caData": extender.authority}}),
    );
    let scheduler = schedule(&cluster, &[entry]);
    cluster.pod("p", json!({"cpu": "1"})).await;
    assert_eq!(cluster.bound("p").await, "c");

    // The request has the field names of the Go types, and the whole pod and nodes.
    let filter = &extender.requests("filter")[0];
    let mut names: Vec<&String> = filter.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, ["NodeNames", "Nodes", "Pod"]);
    assert_eq!(filter["NodeNames"], Value::Null);
    assert_eq!(nodes_of(filter), ["a", "b", "c"]);
    assert_eq!(
        filter["Nodes"]["items"][0]["status"]["allocatable"]["cpu"],
        "4"
    );
    assert_eq!(
        filter["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "1"
    );
    assert_eq!(nodes_of(&extender.requests("prioritize")[0]), ["b", "c"]);
    let uid = filter["Pod"]["metadata"]["uid"].clone();
    let bind = json!({"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "c"});
    assert_eq!(extender.requests("bind"), [bind]);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_cache_capable_extender_gets_node_names() {
    let cluster = TestCluster::start().await;
    three_nodes(&cluster).await;
    let filter = |_: &str, args: &Value| {
        let names = nodes_of(args);
        json!({"nodenames": names.iter().filter(|name| *name == "none").collect::<Vec<_>>(),
            "failedNodes": {"a": "too far", "b": "too far"},
            "FailedAndUnresolvableNodes": {"b": "never"}})
    };
    let extender = Extender::start(filter).await;
    let entry = extender.entry(&json!({"filterVerb": "filter", "nodeCacheCapable": true}));
    let scheduler = schedule(&cluster, &[entry]);
    cluster.pod("p", json!({"cpu": "1"})).await;
    let (reason, message) = cluster.refused("p", |_| true).await;
    assert_eq!(reason, "Unschedulable");
    let silent = format!("1 node(s) refused by extender {:?}", extender.url);
    assert!(
        message.starts_with(&format!(
            "0/3 nodes are available: 1 never, {silent}, 1 too far."
        )) || message.starts_with(&format!(
            "0/3 nodes are available: {silent}, 1 never, 1 too far."
        )),
        "{message}"
    );
    let explained = scheduler.debug.explain("default", "p").unwrap();
    let diagnosis = explained.diagnosis.clone().unwrap();
    assert_eq!(diagnosis.plugins, ["Extender"]);
    let filter = &extender.requests("filter")[0];
    assert_eq!(filter["Nodes"], Value::Null);
    scheduler.stop().await;
}

/// While an extender does not answer, pods that it is not configured for are scheduled. Pods that need it
/// wait no longer than its timeout, and their condition names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_extender_delays_only_its_own_pods() {
    let cluster = TestCluster::start().await;
    let mut with = allocatable("4");
    with["example.com/gpu"] = json!("8");
    cluster.node("a", with, json!([])).await;
    let (called, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (arrived, released) = (called.clone(), go_on.clone());
    let answer = move |_: String, args: Value| {
        let (arrived, released) = (arrived.clone(), released.clone());
        async move {
            arrived.add_permits(1);
            released.acquire().await.unwrap().forget();
            axum::Json(json!({"NodeNames": nodes_of(&args)})).into_response()
        }
        .boxed()
    };
    let extender = Extender::serve(Arc::new(answer), None).await;
    let managed = json!([{"name": "example.com/gpu"}]);
    let entry = |timeout: &str| {
        extender.entry(&json!({"filterVerb": "filter", "nodeCacheCapable": true,
            "managedResources": managed, "httpTimeout": timeout}))
    };
    let scheduler = schedule(&cluster, &[entry("20s")]);
    let gpu = json!({"cpu": "1", "example.com/gpu": "1"});
    cluster.pod("waits", gpu.clone()).await;
    called.acquire().await.unwrap().forget();
    cluster.pod("passes", json!({"cpu": "1"})).await;
    assert_eq!(cluster.bound("passes").await, "a");
    go_on.add_permits(1);
    assert_eq!(cluster.bound("waits").await, "a");
    assert_eq!(extender.requests("filter").len(), 1);
    scheduler.stop().await;

    let scheduler = schedule(&cluster, &[entry("100ms")]);
    cluster.pod("given-up", gpu).await;
    let (reason, message) = cluster.refused("given-up", |_| true).await;
    assert_eq!(reason, "SchedulerError");
    let expected = format!(
        "extender {:?}: filter: no answer within 100ms",
        extender.url
    );
    assert_eq!(message, expected);
    go_on.add_permits(100);
    assert_eq!(cluster.bound("given-up").await, "a");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_extender_answer_is_reported() {
    let cluster = TestCluster::start().await;
    cluster.node("a", allocatable("8"), json!([])).await;
    let answer: Arc<Mutex<(u16, Vec<u8>)>> = Arc::default();
    let shared_answer = answer.clone();
    let handler = move |_: String, _: Value| {
        let (code, body) = shared_answer.lock().clone();
        let response = (StatusCode::from_u16(code).unwrap(), body).into_response();
        futures::future::ready(response).boxed()
    };
    let extender = Extender::serve(Arc::new(handler), None).await;
    let filter = json!({"filterVerb": "filter", "nodeCacheCapable": true,
        "managedResources": [{"name": "example.com/x", "ignoredByScheduler": true}]});
    let entry = extender.entry(&filter);
    let scheduler = schedule(&cluster, &[entry]);
    let text = |value: Value| value.to_string().into_bytes();
    let rows: [(&str, u16, Vec<u8>, &str); 8] = [
        (
            "stranger",
            200,
            text(json!({"NodeNames": ["a", "z"]})),
            "\"z\" which is not found",
        ),
        (
            "both",
            200,
            text(json!({"NodeNames": ["z"], "Nodes": {"items": [{"metadata": {"name": "a"}}]}})),
            "\"z\" which is not found",
        ),
        (
            "broken",
            200,
            b"{\"NodeNames\": [".to_vec(),
            "filter: its answer cannot be read",
        ),
        (
            "type",
            200,
            text(json!({"NodeNames": "a"})),
            "its answer cannot be read",
        ),
        ("list", 200, b"[]".to_vec(), "its answer cannot be read"),
        ("code", 503, Vec::new(), "filter: answered with code 503"),
        (
            "huge",
            200,
            vec![b' '; 8 << 20],
            "filter: the answer is longer than",
        ),
        ("error", 200, text(json!({"Error": "no idea"})), "no idea"),
    ];
    // Only the extender accounts for this resource.
    let wants = json!({"cpu": "100m", "example.com/x": "1"});
    for (name, code, body, expected) in rows {
        *answer.lock() = (code, body);
        cluster.pod(name, wants.clone()).await;
        let (reason, message) = cluster.refused(name, |_| true).await;
        assert_eq!(reason, "SchedulerError", "{name}: {message}");
        let extender = format!("extender {:?}: ", extender.url);
        assert!(message.starts_with(&extender), "{name}: {message}");
        assert!(message.contains(expected), "{name}: {message}");
        let other = format!("after-{name}");
        cluster.pod(&other, json!({"cpu": "100m"})).await;
        assert_eq!(cluster.bound(&other).await, "a");
    }
    // As soon as its answers are valid, all pods are placed.
    *answer.lock() = (200, text(json!({"NodeNames": ["a"]})));
    for name in ["stranger", "huge", "error"] {
        assert_eq!(cluster.bound(name).await, "a");
    }
    scheduler.stop().await;
}

/// An ignorable extender that is down blocks no pod; its scores are missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_extender_is_ignored_if_ignorable() {
    let cluster = TestCluster::start().await;
    three_nodes(&cluster).await;
    let down = Extender::start(|_, _| Value::Null).await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", dead.local_addr().unwrap());
    drop(dead);
    let scores = |_: &str, _: &Value| {
        json!([{"Host": "a", "Score": i64::MIN}, {"Host": "b", "Score": -1},
            {"Host": "c", "Score": -1_000_000}, {"Host": "z", "Score": i64::MAX}])
    };
    let alive = Extender::start(scores).await;
    let entries = [
        json!({"urlPrefix": url, "filterVerb": "filter", "bindVerb": "bind", "ignorable": true}),
        json!({"urlPrefix": url, "prioritizeVerb": "score", "weight": 1}),
        alive.entry(&json!({"prioritizeVerb": "score", "weight": 3, "nodeCacheCapable": true})),
    ];
    let scheduler = schedule(&cluster, &entries);
    // The best node of a pod with spread constraints is searched by groups of nodes if it needs no extender.
    let spread: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default", "labels": {"app": "x"}},
        "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "i"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "x"}}}]}
    }))
    .unwrap();
    cluster
        .pods()
        .create(&PostParams::default(), &spread)
        .await
        .unwrap();
    assert_eq!(cluster.bound("p").await, "b", "the least of evils");
    scheduler.stop().await;

    let must = json!({"urlPrefix": url, "filterVerb": "filter"});
    let scheduler = schedule(&cluster, &[must]);
    cluster.pod("q", json!({"cpu": "1"})).await;
    let (reason, message) = cluster.refused("q", |_| true).await;
    assert_eq!(reason, "SchedulerError");
    assert!(
        message.starts_with(&format!("extender {url:?}: filter: ")),
        "{message}"
    );
    scheduler.stop().await;
    drop(down);
}

/// The decision after the answer uses the current state: a node that was filled in the meantime is not used
/// again, and the extender is called for nodes that it has not seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_filled_during_extender_call_is_not_reused() {
    let cluster = TestCluster::start().await;
    let mut with = allocatable("2");
    with["example.com/gpu"] = json!("8");
    cluster.node("a", with.clone(), json!([])).await;
    let (called, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (arrived, released) = (called.clone(), go_on.clone());
    let answer = move |_: String, args: Value| {
        let (arrived, released) = (arrived.clone(), released.clone());
        async move {
            arrived.add_permits(1);
            released.acquire().await.unwrap().forget();
            axum::Json(json!({"NodeNames": nodes_of(&args)})).into_response()
        }
        .boxed()
    };
    let extender = Extender::serve(Arc::new(answer), None).await;
    let entry = extender.entry(&json!({"filterVerb": "filter", "nodeCacheCapable": true,
        "managedResources": [{"name": "example.com/gpu"}], "httpTimeout": "20s"}));
    let scheduler = schedule(&cluster, &[entry]);
    cluster
        .pod("slow", json!({"cpu": "2", "example.com/gpu": "1"}))
        .await;
    called.acquire().await.unwrap().forget();
    cluster.pod("quick", json!({"cpu": "2"})).await;
    assert_eq!(cluster.bound("quick").await, "a");
    // These exist by the time of the answer: one is full, the other has enough free.
    cluster.node("b", with.clone(), json!([])).await;
    cluster.pod("witness", json!({"cpu": "2"})).await;
    assert_eq!(cluster.bound("witness").await, "b");
    with["cpu"] = json!("4");
    cluster.node("c", with, json!([])).await;
    cluster.pod("other", json!({"cpu": "2"})).await;
    assert_eq!(cluster.bound("other").await, "c");
    go_on.add_permits(2);
    assert_eq!(cluster.bound("slow").await, "c");
    let lists: Vec<Vec<String>> = extender.requests("filter").iter().map(nodes_of).collect();
    assert_eq!(lists, [vec!["a"], vec!["c"]]);
    // In one attempt: it was never rejected.
    cluster.event("Scheduled", "slow").await;
    let events = koord_kube::Api::<Event>::all(cluster.client.clone());
    for event in events.list(&Default::default()).await.unwrap() {
        let about = event.involved_object.name.as_deref() == Some("slow");
        assert!(
            !about || event.reason.as_deref() != Some("FailedScheduling"),
            "{event:?}"
        );
    }
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extender_binding_that_did_not_happen_is_detected() {
    let cluster = TestCluster::start().await;
    cluster.node("a", allocatable("4"), json!([])).await;
    let extender = Extender::start(|_, _| json!({})).await;
    let entry = extender.entry(&json!({"bindVerb": "bind", "httpTimeout": "100ms"}));
    let scheduler = schedule(&cluster, &[entry]);
    cluster.pod("p", json!({"cpu": "1"})).await;
    let (reason, message) = cluster.refused("p", |_| true).await;
    assert_eq!(reason, "SchedulerError");
    assert_eq!(
        message,
        format!(
            "binding rejected: extender {:?} says that it bound the pod, and did not",
            extender.url
        )
    );
    scheduler.stop().await;
}

/// Members of a gang that needs an extender still start together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_members_call_extender_in_turn_and_start_together() {
    let cluster = TestCluster::start().await;
    three_nodes(&cluster).await;
    let extender = Extender::start(|_, args| json!({"NodeNames": nodes_of(args)})).await;
    let entry = extender.entry(&json!({"filterVerb": "filter", "nodeCacheCapable": true}));
    let mut config =
        serde_json::to_value(Configuration::koord(&["koord-scheduler".into()])).unwrap();
    config["extenders"] = json!([entry]);
    config["profiles"][0]["plugins"]["multiPoint"]["enabled"] = json!([{"name": "Coscheduling"}]);
    let config = Configuration::parse(&config.to_string()).unwrap();
    let scheduler = cluster.schedule(|options| options.config = Some(config));
    for name in ["g0", "g1", "g2"] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "annotations": {
                "gang.scheduling.koordinator.sh/name": "g",
                "gang.scheduling.koordinator.sh/min-available": "3"
            }},
            "spec": {"schedulerName": "koord-scheduler", "containers": [{"name": "c", "image": "i",
                "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}}]}
        }))
        .unwrap();
        cluster
            .pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
    }
    let mut nodes = Vec::new();
    for name in ["g0", "g1", "g2"] {
        nodes.push(cluster.bound(name).await);
    }
    nodes.sort();
    assert_eq!(nodes, ["a", "b", "c"]);
    scheduler.stop().await;
}

async fn important(
    cluster: &TestCluster,
    name: &str,
    priority: i32,
    cpu: &str,
    node: Option<&str>,
) {
    use k8s_openapi::api::scheduling::v1::PriorityClass;
    let class = format!("{name}-class");
    let object: PriorityClass =
        serde_json::from_value(json!({"metadata": {"name": class}, "value": priority})).unwrap();
    let classes = koord_kube::Api::<PriorityClass>::all(cluster.client.clone());
    let params = PostParams::default();
    classes.create(&params, &object).await.unwrap();
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": "koord-scheduler",
            "priorityClassName": class,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "args": ["kept"], "resources": {
                "requests": {"cpu": cpu}, "limits": {"cpu": cpu}
            }}]
        }
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    let pod: Pod = serde_json::from_value(pod).unwrap();
    cluster.pods().create(&params, &pod).await.unwrap();
}

/// Extenders receive the victims in either form, and the victims that they return are evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extenders_limit_the_victims() {
    let cluster = TestCluster::start().await;
    for name in ["a", "b"] {
        cluster.node(name, allocatable("2"), json!([])).await;
    }
    // Without extenders, the scheduler would evict the least important pod.
    important(&cluster, "least", 1, "2", Some("a")).await;
    important(&cluster, "less", 2, "2", Some("b")).await;
    important(&cluster, "chief", 2000, "0", Some("a")).await;
    let answer: Arc<Mutex<Value>> = Arc::default();
    let say = answer.clone();
    let second = Extender::start(move |_, _| say.lock().clone()).await;
    let first = Extender::start(|_, args| {
        let victims = args["NodeNameToVictims"].as_object().unwrap().iter();
        let meta = victims.map(|(node, victims)| {
            let uid = &victims["Pods"][0]["metadata"]["uid"];
            (
                node.clone(),
                json!({"Pods": [{"UID": uid}], "NumPDBViolations": 0}),
            )
        });
        json!({"NodeNameToMetaVictims": meta.collect::<serde_json::Map<_, _>>()})
    })
    .await;
    let entries = [
        first.entry(&json!({"preemptVerb": "preempt"})),
        second.entry(&json!({"preemptVerb": "preempt", "nodeCacheCapable": true})),
    ];
    let scheduler = schedule(&cluster, &entries);
    let uid = |name: &str| {
        let (pods, name) = (cluster.pods(), name.to_owned());
        async move { pods.get(&name).await.unwrap().metadata.uid.unwrap() }
    };
    let (least, less, chief) = (uid("least").await, uid("less").await, uid("chief").await);
    let meta =
        |node: &str, uid: &str| json!({"NodeNameToMetaVictims": {node: {"Pods": [{"UID": uid}]}}});
    *answer.lock() = json!({"NodeNameToMetaVictims": {}});
    important(&cluster, "p", 1000, "2", None).await;
    let waits = |text: &'static str| move |message: &str| message.contains(text);
    let (pods, tries) = (cluster.pods(), std::sync::atomic::AtomicUsize::new(0));
    let try_again = async || {
        // Changes the pod, so that it is retried.
        let number = tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let labels = json!({"metadata": {"labels": {"try": number.to_string()}}});
        let patch = koord_kube::api::Patch::Merge(&labels);
        let params = koord_kube::api::PatchParams::default();
        pods.patch("p", &params, &patch).await.unwrap();
    };
    let (reason, _) = cluster
        .refused("p", waits("no candidate node for preemption"))
        .await;
    assert_eq!(reason, "Unschedulable");
    let shown = &first.requests("preempt")[0];
    assert_eq!(shown["NodeNameToMetaVictims"], Value::Null);
    assert_eq!(shown["NodeNameToVictims"]["a"]["NumPDBViolations"], 0);
    let victim = &shown["NodeNameToVictims"]["a"]["Pods"][0];
    assert_eq!(victim["metadata"]["name"], "least");
    assert_eq!(victim["spec"]["containers"][0]["args"][0], "kept");
    let expected = json!({
        "a": {"Pods": [{"UID": least}], "NumPDBViolations": 0},
        "b": {"Pods": [{"UID": less}], "NumPDBViolations": 0},
    });
    assert_eq!(
        second.requests("preempt")[0]["NodeNameToMetaVictims"],
        expected
    );
    assert_eq!(
        second.requests("preempt")[0]["NodeNameToVictims"],
        Value::Null
    );

    // Each of these answers evicts no pod.
    for (lie, expected) in [
        (meta("z", &least), "which it was not asked about"),
        (meta("a", &less), "but the pod is not found on that node"),
        (meta("a", "absent"), "but the pod is not found on that node"),
        (meta("a", &chief), "which is not less important"),
        (
            json!({"NodeNameToMetaVictims": {"a": {"Pods": []}}}),
            "expected at least one victim pod",
        ),
        (
            json!({"NodeNameToMetaVictims": {"a": null}}),
            "expected at least one victim pod",
        ),
        (
            json!({"NodeNameToMetaVictims": [1]}),
            "its answer cannot be read",
        ),
    ] {
        *answer.lock() = lie.clone();
        try_again().await;
        let (reason, message) = cluster.refused("p", waits(expected)).await;
        assert_eq!(reason, "Unschedulable", "{lie}");
        assert!(
            message.contains(&format!("extender {:?}", second.url)),
            "{message}"
        );
    }
    for name in ["least", "less"] {
        assert!(
            cluster
                .pods()
                .get(name)
                .await
                .unwrap()
                .metadata
                .deletion_timestamp
                .is_none()
        );
    }
    *answer.lock() = meta("b", &less);
    try_again().await;
    assert_eq!(cluster.bound("p").await, "b");
    assert!(cluster.pods().get_opt("less").await.unwrap().is_none());
    assert_eq!(uid("least").await, least);
    scheduler.stop().await;
}

/// Like kube-scheduler, calls an extender for a pod only after earlier pods were placed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extender_is_called_for_one_pod_at_a_time() {
    let cluster = TestCluster::start().await;
    cluster.node("a", allocatable("8"), json!([])).await;
    let (called, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (arrived, released) = (called.clone(), go_on.clone());
    let answer = move |_: String, args: Value| {
        let (arrived, released) = (arrived.clone(), released.clone());
        async move {
            arrived.add_permits(1);
            released.acquire().await.unwrap().forget();
            axum::Json(json!({"NodeNames": nodes_of(&args)})).into_response()
        }
        .boxed()
    };
    let extender = Extender::serve(Arc::new(answer), None).await;
    let small = json!({"urlPrefix": "http://localhost:1", "filterVerb": "never",
        "managedResources": [{"name": "example.com/x"}]});
    let entry = extender.entry(&json!({"filterVerb": "filter", "nodeCacheCapable": true,
        "managedResources": [{"name": "example.com/y", "ignoredByScheduler": true}],
        "httpTimeout": "20s"}));
    let scheduler = schedule(&cluster, &[small, entry]);
    let wants = json!({"cpu": "1", "example.com/y": "1"});
    cluster.pod("first", wants.clone()).await;
    called.acquire().await.unwrap().forget();
    for (name, priority) in [("low", 1), ("high", 9)] {
        use k8s_openapi::api::scheduling::v1::PriorityClass;
        let object: PriorityClass =
            serde_json::from_value(json!({"metadata": {"name": name}, "value": priority})).unwrap();
        let classes = koord_kube::Api::<PriorityClass>::all(cluster.client.clone());
        classes
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulerName": "koord-scheduler", "priorityClassName": name,
                "containers": [{"name": "c", "image": "i",
                    "resources": {"requests": wants, "limits": wants}}]}
        }))
        .unwrap();
        cluster
            .pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
    }
    // Both were received when a later pod that needs no extender was placed.
    cluster.pod("plain", json!({"cpu": "1"})).await;
    cluster.bound("plain").await;
    assert_eq!(extender.requests("filter").len(), 1);
    go_on.add_permits(3);
    for name in ["first", "low", "high"] {
        cluster.bound(name).await;
    }
    let requests = extender.requests("filter");
    let names: Vec<&str> = requests
        .iter()
        .map(|args| args["Pod"]["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["first", "high", "low"]);
    scheduler.stop().await;
}
