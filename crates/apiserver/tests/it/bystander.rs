//! A hostile body costs time of its sender only: with two workers and two attackers, other clients are
//! answered within 100 ms, whatever bodies at the size limit the attackers send.

use crate::support::{APPLY, Cluster, JSON_PATCH, MERGE, STRATEGIC};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Largest accepted body in bytes.
const LIMIT: usize = 3 * 1024 * 1024;
/// Latest acceptable response.
const LATEST: Duration = Duration::from_millis(100);
const SPACE: &str = "/api/v1/namespaces/default";
const JSON: &str = "application/json";

/// Measures how long this machine keeps a runnable thread from running, which no server can compensate.
struct Stalls {
    longest: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Stalls {
    #[allow(
        clippy::disallowed_methods,
        reason = "it measures how late a sleeping thread runs again"
    )]
    fn watch() -> Self {
        let (longest, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (seen, stopped) = (Arc::clone(&longest), Arc::clone(&stop));
        std::thread::spawn(move || {
            let pause = Duration::from_millis(2);
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(pause);
                let overdue = start.elapsed().saturating_sub(pause).as_micros();
                seen.fetch_max(
                    u64::try_from(overdue).unwrap_or(u64::MAX),
                    Ordering::Relaxed,
                );
            }
        });
        Self { longest, stop }
    }

    fn take_longest(&self) -> Duration {
        Duration::from_micros(self.longest.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One request of an attacker, and the expected response codes.
struct Attack {
    name: &'static str,
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: String,
    codes: &'static [u16],
}

fn attack(name: &'static str, line: &str, content_type: &'static str, body: String) -> Attack {
    let (method, path) = line.split_once(' ').unwrap();
    let method = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        .into_iter()
        .find(|existing| *existing == method)
        .unwrap();
    assert!(body.len() <= LIMIT, "{name}: {} bytes", body.len());
    Attack {
        name,
        method,
        path: path.to_owned(),
        content_type,
        body,
        codes: &[200, 201, 400, 404, 409, 413, 415, 422, 500],
    }
}

/// Fills a body up to the limit with elements, between `head` and `tail`.
fn fill(head: &str, tail: &str, element: impl Fn(usize) -> String) -> String {
    let mut out = head.to_owned();
    for i in 0.. {
        let element = element(i);
        if out.len() + element.len() + 1 + tail.len() > LIMIT {
            break;
        }
        if i > 0 {
            out.push(',');
        }
        out.push_str(&element);
    }
    out + tail
}

fn list(n: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..n).map(item).collect()
}

fn containers(n: usize, image: &str) -> Value {
    list(
        n,
        |i| json!({"name": format!("c{}", n - 1 - i), "image": image}),
    )
}

/// Number of containers of the stored pod.
const CONTAINERS: usize = 9_000;

/// Worst-case bodies of every decoder, patch, selector and validation.
fn attacks() -> Vec<Attack> {
    let pods = format!("POST {SPACE}/pods");
    let pod = format!("PATCH {SPACE}/pods/big");
    let order = list(CONTAINERS, |i| json!({"name": format!("c{i}")}));
    let strategic = json!({"spec": {
        "containers": containers(CONTAINERS, "y"), "$setElementOrder/containers": order}});
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big"},
        "spec": {"containers": containers(CONTAINERS, "z")}});
    let shift =
        |i: usize| json!({"op": "add", "path": "/subsets/0/addresses/0", "value": {"ip": i}});
    let unknown = |i: usize| format!(r#""{i:x}":1"#);
    let managers = list(8_000, |i| {
        json!({"manager": format!("m{i}"), "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {format!("f:k{i}"): {}}}})
    });
    let data: Map<String, Value> = (0..8_000).map(|i| (format!("k{i}"), json!("1"))).collect();
    let managed = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "managed", "managedFields": managers}, "data": data});
    let mounts = list(
        30_000,
        |i| json!({"name": format!("v{i}"), "mountPath": format!("/{i}")}),
    );
    let volumes = list(30_000, |i| json!({"name": format!("v{i}")}));
    let mounted = json!({"metadata": {"name": "m"}, "spec": {"volumes": volumes,
        "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}]}});
    let long_key = "k".repeat(LIMIT / 2);
    let block = |n: usize| {
        let lines: String = (0..n).map(|i| format!("    k{i}: 'a'\n")).collect();
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: y\n  annotations:\n{lines}")
    };
    let values: Vec<String> = (0..9_000).map(|i| format!("v{i}")).collect();
    let selector = format!("a+in+({})", values.join(","));
    let absent: Vec<String> = (0..9_000).map(|i| format!("!l{i}")).collect();
    vec![
        attack("strategic merge by key", &pod, STRATEGIC, strategic.to_string()),
        attack("strategic merge of a set", &pod, STRATEGIC,
            fill(r#"{"metadata":{"finalizers":["#, "]}}", |i| format!(r#""a.b/{i}""#))),
        attack("strategic merge of empty elements", &pod, STRATEGIC,
            fill(r#"{"spec":{"containers":["#, "]}}", |_| "{}".to_owned())),
        attack("merge patch", &pod, MERGE,
            fill(r#"{"metadata":{"labels":{"#, "}}}", |i| format!(r#""k{i}":"1""#))),
        attack("JSON patch that shifts a list", &format!("PATCH {SPACE}/endpoints/big"), JSON_PATCH,
            list(10_000, shift).to_string()),
        attack("JSON patch of many tests", &pod, JSON_PATCH,
            list(10_000, |i| json!({"op": "test", "path": format!("/spec/containers/{}/image", i % CONTAINERS), "value": "x"})).to_string()),
        attack("apply with conflicts", &format!("{pod}?fieldManager=b"), APPLY, applied.to_string()),
        attack("apply by force", &format!("{pod}?fieldManager=b&force=true"), APPLY, applied.to_string()),
        attack("unknown fields and a duplicate, warned of", &format!("POST {SPACE}/configmaps?dryRun=All"), JSON,
            fill(r#"{"metadata":{"name":"u"},"x":1,"x":1,"#, "}", unknown)),
        attack("unknown fields and a duplicate, refused", &format!("POST {SPACE}/configmaps?fieldValidation=Strict"), JSON,
            fill(r#"{"metadata":{"name":"u"},"x":1,"x":1,"#, "}", unknown)),
        attack("duplicates below a long key", &format!("POST {SPACE}/configmaps"), JSON,
            fill(&format!(r#"{{"{long_key}":{{"#), "}}", |_| r#""a":1"#.to_owned())),
        attack("unknown fields below a long key", "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", JSON,
            fill(&format!(r#"{{"spec":{{"versions":[{{"schema":{{"openAPIV3Schema":{{"properties":{{"{long_key}":{{"#), "}}}}]}}", unknown)),
        attack("containers of one name", &pods, JSON,
            fill(r#"{"metadata":{"name":"d"},"spec":{"containers":["#, "]}}", |_| r#"{"name":"a","image":"b"}"#.to_owned())),
        attack("volumes and mounts", &pods, JSON, mounted.to_string()),
        attack("tolerations", &pods, JSON,
            fill(r#"{"metadata":{"name":"t"},"spec":{"containers":[{"name":"a","image":"b"}],"tolerations":["#, "]}}",
                |i| format!(r#"{{"key":"k{i}","operator":"Exists"}}"#))),
        attack("managers of fields", &format!("PUT {SPACE}/configmaps/managed"), JSON, managed.to_string()),
        attack("taints", "POST /api/v1/nodes", JSON,
            fill(r#"{"metadata":{"name":"n"},"spec":{"taints":["#, "]}}", |i| format!(r#"{{"key":"k{i}","effect":"NoSchedule"}}"#))),
        attack("versions of webhooks", "POST /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", JSON,
            fill(r#"{"metadata":{"name":"h"},"webhooks":[{"name":"a.b.c","admissionReviewVersions":["#, "]}]}", |i| format!(r#""v{i}""#))),
        attack("rules of a role", "POST /apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", JSON,
            json!({"metadata": {"name": "r"}, "rules": [{"verbs": values, "apiGroups": values, "resources": values, "resourceNames": values}]}).to_string()),
        attack("an access review", "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews", JSON,
            fill(r#"{"spec":{"resourceAttributes":{"verb":"get"},"extra":{"a":["#, "]}}}", |i| format!(r#""{i}""#))),
        attack("options of a deletion", &format!("DELETE {SPACE}/configmaps/none"), JSON,
            fill(r#"{"x":["#, "]}", |_| "1".to_owned())),
        attack("YAML in block style", &format!("POST {SPACE}/configmaps"), "application/yaml", block(160_000)),
        attack("YAML in flow style", &format!("POST {SPACE}/configmaps"), "application/yaml",
            fill("a: [", "]", |_| "{b: 1}".to_owned())),
        attack("nested brackets", &format!("POST {SPACE}/configmaps"), JSON, "[".repeat(LIMIT)),
        attack("protobuf of nothing", &format!("POST {SPACE}/configmaps"), "application/vnd.kubernetes.protobuf", "k8s\0".to_owned() + &"\u{a}\0".repeat(LIMIT / 2 - 2)),
        attack("a selector of many values", &format!("GET {SPACE}/pods?labelSelector={selector}"), "", String::new()),
        attack("a selector of many keys", &format!("GET {SPACE}/pods?labelSelector={}", absent.join(",")), "", String::new()),
    ]
}

/// Sends a request as a user, reads the whole response and returns its code.
async fn send(cluster: &Cluster, user: &str, attack: &Attack) -> u16 {
    let request = Request::builder()
        .method(attack.method)
        .uri(&attack.path)
        .header("content-type", attack.content_type)
        .header("impersonate-user", user)
        .body(Body::from(attack.body.clone()))
        .unwrap();
    let response = cluster.raw(request).await;
    let code = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    code
}

/// Returns the slowest response to `path` until `stop`.
async fn probe(cluster: Arc<Cluster>, path: &'static str, stop: Arc<AtomicBool>) -> Duration {
    let mut slowest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let cluster = Arc::clone(&cluster);
        let start = Instant::now();
        // A task of its own: it has to wait for a worker, as a new request does.
        let code = tokio::spawn(async move {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            cluster.raw(request).await.status().as_u16()
        });
        assert_eq!(code.await.unwrap(), 200, "{path}");
        slowest = slowest.max(start.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    slowest
}

async fn prepare() -> Arc<Cluster> {
    let cluster = Arc::new(Cluster::bare().await);
    for user in ["mallory", "trudy"] {
        let binding = json!({"metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
        cluster.post(path, binding).await.expect(201);
    }
    let big = json!({"metadata": {"name": "big", "labels": {"a": "v1"}},
        "spec": {"containers": containers(CONTAINERS, "x")}});
    cluster
        .post(&format!("{SPACE}/pods"), big)
        .await
        .expect(201);
    let addresses = list(60_000, |_| json!({"ip": "1.1.1.1"}));
    let big = json!({"metadata": {"name": "big"}, "subsets": [{"addresses": addresses}]});
    cluster
        .post(&format!("{SPACE}/endpoints"), big)
        .await
        .expect(201);
    for name in ["small", "managed"] {
        let map = json!({"metadata": {"name": name}});
        cluster
            .post(&format!("{SPACE}/configmaps"), map)
            .await
            .expect(201);
    }
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bystander_is_served_during_the_worst_bodies() {
    let cluster = prepare().await;
    let stalls = Stalls::watch();
    let mut overdue = Vec::new();
    for attack in attacks().into_iter().map(Arc::new) {
        stalls.take_longest();
        let start = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        let probes = ["/healthz", "/api/v1/namespaces/default/configmaps/small"]
            .map(|path| tokio::spawn(probe(Arc::clone(&cluster), path, Arc::clone(&stop))));
        let senders = ["mallory", "trudy"].map(|user| {
            let (cluster, attack) = (Arc::clone(&cluster), Arc::clone(&attack));
            tokio::spawn(async move { send(&cluster, user, &attack).await })
        });
        for sender in senders {
            let code = sender.await.unwrap();
            assert!(attack.codes.contains(&code), "{}: {code}", attack.name);
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        let mut slowest = Duration::ZERO;
        for probe in probes {
            slowest = slowest.max(probe.await.unwrap());
        }
        let stalled = stalls.take_longest();
        println!(
            "{:45} {took:>10.1?}, bystander {slowest:>8.1?}, machine {stalled:>8.1?}",
            attack.name
        );
        if slowest > LATEST + stalled * 2 {
            overdue.push((attack.name, slowest, stalled));
        }
    }
    assert!(overdue.is_empty(), "a bystander waited: {overdue:?}");
}
