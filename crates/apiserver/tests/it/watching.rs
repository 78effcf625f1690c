//! Lists and watches: no losses, no duplicates, one order.

use crate::support::{Cluster, MERGE, config_map, pod, version};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn make(cluster: &Cluster, name: &str, labels: Value) -> Value {
    cluster
        .post(MAPS, config_map(name, labels, json!({})))
        .await
        .expect(201)
}

#[tokio::test(start_paused = true)]
async fn pages_of_one_list_are_one_snapshot() {
    let cluster = Cluster::bare().await;
    for i in 0..7 {
        make(&cluster, &format!("m{i}"), json!({})).await;
    }
    let first = cluster.get(&format!("{MAPS}?limit=3")).await.expect(200);
    assert_eq!(first["metadata"]["remainingItemCount"], 4);
    // Writes between the pages must not show.
    cluster
        .delete(&format!("{MAPS}/m4"), json!({}))
        .await
        .expect(200);
    make(&cluster, "m35", json!({})).await;
    let mut names: Vec<String> = Vec::new();
    let mut page = first.clone();
    loop {
        // The state at the list's revision, on every page but the last.
        let remaining = (7 - names.len()).saturating_sub(3);
        let messages = page["metadata"]["remainingItemCount"].as_u64();
        assert_eq!(messages.unwrap_or(0), remaining as u64);
        assert_eq!(
            page["metadata"]["resourceVersion"],
            first["metadata"]["resourceVersion"]
        );
        for item in page["items"].as_array().unwrap() {
            names.push(item["metadata"]["name"].as_str().unwrap().to_owned());
        }
        let Some(token) = page["metadata"]["continue"].as_str() else {
            break;
        };
        page = cluster
            .get(&format!("{MAPS}?limit=3&continue={token}"))
            .await
            .expect(200);
    }
    assert_eq!(names, ["m0", "m1", "m2", "m3", "m4", "m5", "m6"]);
    assert!(
        cluster
            .get(&format!("{MAPS}?limit=3&continue=bogus"))
            .await
            .code
            == 400
    );
    let selected = cluster
        .get(&format!("{MAPS}?limit=1&labelSelector=x"))
        .await
        .expect(200);
    assert_eq!(selected["items"], json!([]));
    assert!(selected["metadata"].get("remainingItemCount").is_none());
}

#[tokio::test(start_paused = true)]
async fn expired_continue_token_returns_inconsistent_one() {
    let cluster = Cluster::bare().await;
    for i in 0..4 {
        make(&cluster, &format!("m{i}"), json!({})).await;
    }
    let first = cluster.get(&format!("{MAPS}?limit=2")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    make(&cluster, "z", json!({})).await;
    let store = cluster.server.store();
    store.compact(&"/configmaps".into(), store.revision());
    let answer = cluster
        .get(&format!("{MAPS}?limit=2&continue={token}"))
        .await;
    let fresh = answer.body["metadata"]["continue"]
        .as_str()
        .unwrap()
        .to_owned();
    answer.fails(410, "Expired");
    let tail = cluster
        .get(&format!("{MAPS}?continue={fresh}"))
        .await
        .expect(200);
    assert_eq!(tail["items"].as_array().unwrap().len(), 3);
    let exact = format!(
        "{MAPS}?resourceVersion={}&resourceVersionMatch=Exact",
        version(&first)
    );
    cluster.get(&exact).await.fails(410, "Expired");
}

#[tokio::test(start_paused = true)]
async fn a_list_may_be_read_for_five_minutes() {
    let cluster = Cluster::bare().await;
    for i in 0..6 {
        make(&cluster, &format!("m{i}"), json!({})).await;
    }
    let token = |body: &Value| body["metadata"]["continue"].as_str().unwrap().to_owned();
    let page = async |token: &str| {
        let path = format!("{MAPS}?limit=1&continue={token}");
        cluster.get(&path).await
    };
    let wait = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
    let first = cluster.get(&format!("{MAPS}?limit=1")).await.expect(200);
    wait(299).await;
    let second = page(&token(&first)).await.expect(200);
    assert_eq!(version(&second), version(&first));
    wait(2).await;
    // The age of the first page counts.
    let overdue = page(&token(&second)).await;
    let fresh = token(&overdue.body);
    overdue.fails(410, "Expired");
    // From here on it is another list, which is consistent in itself.
    make(&cluster, "z", json!({})).await;
    let third = page(&fresh).await.expect(200);
    assert_eq!(third["items"][0]["metadata"]["name"], "m2");
    assert_eq!(third["metadata"]["remainingItemCount"], 4);
    assert!(version(&third) > version(&first));
    make(&cluster, "zz", json!({})).await;
    let fourth = page(&token(&third)).await.expect(200);
    assert_eq!(fourth["metadata"]["remainingItemCount"], 3);
    assert_eq!(version(&fourth), version(&third));
}

#[tokio::test(start_paused = true)]
async fn list_then_watch_misses_nothing() {
    let cluster = Cluster::bare().await;
    make(&cluster, "a", json!({})).await;
    let list = cluster.get(MAPS).await.expect(200);
    make(&cluster, "b", json!({})).await;
    let mut watch = cluster
        .watch(&format!(
            "{MAPS}?watch=true&resourceVersion={}",
            version(&list)
        ))
        .await;
    cluster
        .patch(&format!("{MAPS}/a"), MERGE, json!({"data": {"x": "1"}}))
        .await
        .expect(200);
    let removed = cluster.get(&format!("{MAPS}/b")).await.expect(200);
    cluster
        .delete(&format!("{MAPS}/b"), json!({}))
        .await
        .expect(200);
    let (kind, name, v1) = watch.event().await;
    assert_eq!((kind.as_str(), name.as_str()), ("ADDED", "b"));
    let (kind, name, v2) = watch.event().await;
    assert_eq!((kind.as_str(), name.as_str()), ("MODIFIED", "a"));
    let (kind, name, v3) = watch.event().await;
    assert_eq!((kind.as_str(), name.as_str()), ("DELETED", "b"));
    assert!(
        v1 < v2 && v2 < v3 && v3 > version(&removed),
        "the removal has its own version"
    );
}

#[tokio::test(start_paused = true)]
async fn selector_changes_become_added_and_deleted() {
    let cluster = Cluster::bare().await;
    make(&cluster, "a", json!({"app": "web"})).await;
    make(&cluster, "other", json!({"app": "db"})).await;
    let mut watch = cluster
        .watch(&format!("{MAPS}?watch=1&labelSelector=app%3Dweb"))
        .await;
    assert_eq!(watch.event().await.1, "a");
    let label = |v: &str| json!({"metadata": {"labels": {"app": v}}});
    let remaining = cluster
        .patch(&format!("{MAPS}/a"), MERGE, label("db"))
        .await
        .expect(200);
    cluster
        .patch(&format!("{MAPS}/other"), MERGE, json!({"data": {"x": "y"}}))
        .await
        .expect(200);
    cluster
        .patch(&format!("{MAPS}/other"), MERGE, label("web"))
        .await
        .expect(200);
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(
        event["object"]["metadata"]["labels"]["app"], "web",
        "the last selected state"
    );
    assert_eq!(
        version(&event["object"]),
        version(&remaining),
        "with the version of the change"
    );
    let (kind, name, _) = watch.event().await;
    assert_eq!((kind.as_str(), name.as_str()), ("ADDED", "other"));
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_are_watched_by_field() {
    let cluster = Cluster::bare().await;
    let pods = "/api/v1/namespaces/default/pods";
    let path = "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1&resourceVersion=0";
    let mut watch = cluster.watch(path).await;
    for name in ["p1", "p2"] {
        cluster.post(pods, pod(name)).await.expect(201);
    }
    let bind = |name: &str, node: &str| {
        (
            format!("{pods}/{name}/binding"),
            json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}),
        )
    };
    let (path, body) = bind("p2", "n2");
    cluster.post(&path, body).await.expect(201);
    let (path, body) = bind("p1", "n1");
    cluster.post(&path, body).await.expect(201);
    let (kind, name, _) = watch.event().await;
    assert_eq!((kind.as_str(), name.as_str()), ("ADDED", "p1"));
}

#[tokio::test(start_paused = true)]
async fn expired_version_is_reported_in_the_stream() {
    let cluster = Cluster::bare().await;
    let a = make(&cluster, "a", json!({})).await;
    make(&cluster, "b", json!({})).await;
    let store = cluster.server.store();
    store.compact(&"/configmaps".into(), store.revision());
    let mut watch = cluster
        .watch(&format!(
            "{MAPS}?watch=1&resourceVersion={}",
            version(&a) - 1
        ))
        .await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!(
        (&event["object"]["code"], &event["object"]["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert_eq!(watch.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_and_timeouts() {
    let cluster = Cluster::bare().await;
    let list = cluster.get(MAPS).await.expect(200);
    let path = format!(
        "{MAPS}?watch=1&resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds=100",
        version(&list)
    );
    let mut watch = cluster.watch(&path).await;
    cluster
        .post(
            "/api/v1/namespaces",
            json!({"metadata": {"name": "elsewhere"}}),
        )
        .await
        .expect(201);
    let newest = cluster.server.store().revision();
    let began = tokio::time::Instant::now();
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        (
            &bookmark["object"]["kind"],
            &bookmark["object"]["apiVersion"]
        ),
        (&json!("ConfigMap"), &json!("v1"))
    );
    assert_eq!(
        version(&bookmark["object"]),
        newest,
        "other kinds move the version on"
    );
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!(watch.next().await.unwrap()["type"], "BOOKMARK");
    assert_eq!(began.elapsed().as_secs(), 98);
    assert_eq!(watch.next().await, None);
    assert_eq!(began.elapsed().as_secs(), 100);
}

#[tokio::test(start_paused = true)]
async fn watch_list_ends_its_initial_events_with_a_bookmark() {
    let cluster = Cluster::bare().await;
    make(&cluster, "a", json!({})).await;
    make(&cluster, "b", json!({})).await;
    let path = format!(
        "{MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut watch = cluster.watch(&path).await;
    assert_eq!(watch.event().await.0, "ADDED");
    assert_eq!(watch.event().await.0, "ADDED");
    let end = watch.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(
        end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert!(version(&end["object"]) >= 1000);
    make(&cluster, "c", json!({})).await;
    assert_eq!(watch.event().await.1, "c");
    cluster
        .get(&format!("{MAPS}?watch=true&sendInitialEvents=true"))
        .await
        .fails(422, "Invalid");
}

/// Both modes of kube's watcher see the same objects.
async fn kube_watcher_follows(config: watcher::Config) {
    let cluster = Cluster::bare().await;
    make(&cluster, "a", json!({})).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let stream = watcher::watcher(maps, config);
    futures::pin_mut!(stream);
    let mut initial = Vec::new();
    loop {
        match stream.next().await.unwrap().unwrap() {
            Event::Init => {}
            Event::InitApply(m) => initial.push(m.metadata.name.unwrap()),
            Event::InitDone => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(initial, ["a"]);
    make(&cluster, "b", json!({})).await;
    let Event::Apply(m) = stream.next().await.unwrap().unwrap() else {
        panic!()
    };
    assert_eq!(m.metadata.name.as_deref(), Some("b"));
    cluster
        .delete(&format!("{MAPS}/a"), json!({}))
        .await
        .expect(200);
    let Event::Delete(m) = stream.next().await.unwrap().unwrap() else {
        panic!()
    };
    assert_eq!(m.metadata.name.as_deref(), Some("a"));
    // The watch ends after its 290 s and continues at the same position.
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    make(&cluster, "c", json!({})).await;
    let Event::Apply(m) = stream.next().await.unwrap().unwrap() else {
        panic!()
    };
    assert_eq!(m.metadata.name.as_deref(), Some("c"));
}

#[tokio::test(start_paused = true)]
async fn kube_watcher_with_list_and_watch() {
    kube_watcher_follows(watcher::Config::default()).await;
    kube_watcher_follows(watcher::Config::default().any_semantic().page_size(1)).await;
}

#[tokio::test(start_paused = true)]
async fn kube_watcher_with_streaming_lists() {
    kube_watcher_follows(watcher::Config::default().streaming_lists()).await;
}

#[tokio::test(start_paused = true)]
async fn kube_watcher_lists_again_after_expiry() {
    let cluster = Cluster::bare().await;
    make(&cluster, "a", json!({})).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client());
    let stream = watcher::watcher(maps, watcher::Config::default().timeout(10));
    futures::pin_mut!(stream);
    while !matches!(stream.next().await.unwrap().unwrap(), Event::InitDone) {}
    for i in 0..5 {
        make(&cluster, &format!("x{i}"), json!({})).await;
    }
    let store = cluster.server.store();
    store.compact(&"/configmaps".into(), store.revision());
    let mut observed = std::collections::BTreeSet::new();
    while observed.len() < 6 {
        // In between it reports the expiry as an error, as expected.
        if let Ok(Event::Apply(m) | Event::InitApply(m)) = stream.next().await.unwrap() {
            observed.insert(m.metadata.name.unwrap());
        }
        observed.insert("a".to_owned());
    }
}

#[tokio::test(start_paused = true)]
async fn tables_and_metadata_on_every_read() {
    let cluster = Cluster::bare().await;
    make(&cluster, "a", json!({"app": "web"})).await;
    let read = async |path: &str, accept: &str| -> Value {
        let request = http::Request::get(path)
            .header("accept", accept)
            .body(axum::body::Body::empty())
            .unwrap();
        let response = cluster.raw(request).await;
        assert_eq!(response.status(), 200);
        let bytes = http_body_util::BodyExt::collect(response.into_body())
            .await
            .unwrap()
            .to_bytes();
        serde_json::from_slice(&bytes).unwrap()
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let partial = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json";
    let partials =
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
    for path in [MAPS.to_owned(), format!("{MAPS}/a")] {
        let t = read(&path, table).await;
        assert_eq!(t["kind"], "Table", "{t}");
        assert_eq!(t["rows"][0]["cells"][0], "a");
        assert_eq!(t["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(t["rows"][0]["object"]["metadata"]["labels"]["app"], "web");
        assert!(t["metadata"]["resourceVersion"].is_string());
    }
    let list = read(MAPS, partials).await;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert!(list["items"][0].get("data").is_none());
    assert_eq!(
        read(&format!("{MAPS}/a"), partial).await["metadata"]["name"],
        "a"
    );

    let mut watch = cluster.watch_as(&format!("{MAPS}?watch=1"), table).await;
    let first = watch.next().await.unwrap();
    assert_eq!(first["object"]["kind"], "Table");
    assert!(
        !first["object"]["columnDefinitions"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    make(&cluster, "b", json!({})).await;
    let second = watch.next().await.unwrap();
    assert_eq!(second["object"]["columnDefinitions"], Value::Null);
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b");
    let mut watch = cluster.watch_as(&format!("{MAPS}?watch=1"), partial).await;
    assert_eq!(
        watch.next().await.unwrap()["object"]["kind"],
        "PartialObjectMetadata"
    );
}

/// Returns the first part of a watch's response that is longer than 16 KiB.
async fn long_part(cluster: &Cluster, path: &str, accept: &str) -> bytes::Bytes {
    let request = http::Request::get(path)
        .header("accept", accept)
        .body(axum::body::Body::empty())
        .unwrap();
    let mut body = cluster.raw(request).await.into_body();
    loop {
        let frame = http_body_util::BodyExt::frame(&mut body).await.unwrap();
        let part = frame.unwrap().into_data().unwrap();
        if part.len() > 16 * 1024 {
            return part;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn watches_of_one_form_share_the_bytes_of_an_event() {
    let cluster = Cluster::bare().await;
    let mut map = config_map("a", json!({}), json!({}));
    map["metadata"]["annotations"] = json!({ "long": "x".repeat(100_000) });
    cluster.post(MAPS, map).await.expect(201);
    let watch = format!("{MAPS}?watch=1");
    let mut observed = Vec::new();
    for accept in [
        "application/json",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    ] {
        let first = long_part(&cluster, &watch, accept).await;
        let second = long_part(&cluster, &watch, accept).await;
        assert_eq!(first.as_ptr(), second.as_ptr(), "{accept}");
        observed.push(first);
    }
    let total = format!("{watch}&includeObject=Object");
    observed.push(
        long_part(
            &cluster,
            &total,
            "application/json;as=Table;v=v1;g=meta.k8s.io",
        )
        .await,
    );
    for (i, part) in observed.iter().enumerate() {
        assert!(observed[..i].iter().all(|other| other != part), "form {i}");
    }
}

#[tokio::test(start_paused = true)]
async fn long_list_is_complete() {
    let cluster = Cluster::bare().await;
    let filler = "x".repeat(4000);
    for i in 0..200 {
        let map = config_map(&format!("m{i:03}"), json!({}), json!({"f": filler}));
        cluster.post(MAPS, map).await.expect(201);
    }
    let list = cluster.get(MAPS).await.expect(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 200);
    assert_eq!(list["items"][199]["metadata"]["name"], "m199");
    assert_eq!(list["kind"], "ConfigMapList");
}
