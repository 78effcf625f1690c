//! Clients that accept only protobuf.

use crate::support::{Cluster, config_map, version};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use koord_kinds::proto;
use serde_json::{Value, json};

const PROTO: &str = "application/vnd.kubernetes.protobuf";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// Returns code, content type and bytes of the response to a client that accepts only this.
async fn ask(
    cluster: &Cluster,
    method: &str,
    path: &str,
    accept: &str,
    body: (&str, Vec<u8>),
) -> (u16, String, Vec<u8>) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("accept", accept)
        .header("content-type", body.0)
        .body(Body::from(body.1))
        .unwrap();
    let response = cluster.raw(request).await;
    let media = response.headers()["content-type"].to_str().unwrap();
    let (code, media) = (response.status().as_u16(), media.to_owned());
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, media, bytes.to_vec())
}

async fn get(cluster: &Cluster, path: &str) -> (u16, Value) {
    let (code, media, bytes) = ask(cluster, "GET", path, PROTO, ("", Vec::new())).await;
    assert_eq!(media, PROTO, "{path}");
    (code, proto::decode(&bytes).unwrap())
}

fn widgets() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object",
                    "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

#[tokio::test(start_paused = true)]
async fn objects_are_written_and_read_back() {
    let cluster = Cluster::bare().await;
    let map = config_map("a", json!({"l": "1"}), json!({"k": "v"}));
    let body = ("application/json", map.to_string().into_bytes());
    let (code, media, bytes) = ask(&cluster, "POST", MAPS, PROTO, body).await;
    assert_eq!((code, media.as_str()), (201, PROTO));
    let created = proto::decode(&bytes).unwrap();
    assert_eq!(created["data"], json!({"k": "v"}));
    let stored = cluster.get(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(created, stored, "all of it, managedFields too");

    // The same bytes are an update that changes nothing.
    let path = format!("{MAPS}/a");
    let (code, _, bytes) = ask(&cluster, "PUT", &path, PROTO, (PROTO, bytes)).await;
    assert_eq!(code, 200);
    assert_eq!(version(&proto::decode(&bytes).unwrap()), version(&stored));
    assert_eq!(get(&cluster, &path).await, (200, stored));

    let (code, media, bytes) = ask(&cluster, "DELETE", &path, PROTO, ("", Vec::new())).await;
    assert_eq!((code, media.as_str()), (200, PROTO));
    assert_eq!(proto::decode(&bytes).unwrap()["status"], "Success");
    let (code, status) = get(&cluster, &path).await;
    assert_eq!((code, &status["reason"]), (404, &json!("NotFound")));
    assert_eq!(status["details"]["name"], "a");
}

#[tokio::test(start_paused = true)]
async fn every_kind_that_is_listed_is_listed_in_protobuf() {
    let cluster = Cluster::bare().await;
    let mut observed = 0;
    let groups = cluster.get("/apis").await.expect(200);
    let versions = groups["groups"].as_array().unwrap().iter();
    let versions = versions.flat_map(|g| g["versions"].as_array().unwrap().clone());
    let mut documents = vec!["/api/v1".to_owned()];
    documents.extend(versions.map(|v| format!("/apis/{}", v["groupVersion"].as_str().unwrap())));
    for document in documents {
        let resources = cluster.get(&document).await.expect(200);
        for resource in resources["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            if !resource["verbs"]
                .as_array()
                .unwrap()
                .contains(&json!("list"))
            {
                continue;
            }
            let path = format!("{document}/{name}");
            let (code, _, bytes) = ask(&cluster, "GET", &path, PROTO, ("", Vec::new())).await;
            assert_eq!(code, 200, "{path}");
            assert!(bytes.starts_with(b"k8s\0"), "{path}");
            let json = cluster.get(&path).await.expect(200);
            assert_eq!(proto::encode(&json).unwrap(), bytes, "{path}");
            observed += 1;
        }
    }
    assert!(observed > 50, "{observed}");
    let path = "/api/v1/namespaces/default/pods";
    let table = format!("{PROTO};as=Table;v=v1;g=meta.k8s.io");
    let (code, _, bytes) = ask(&cluster, "GET", path, &table, ("", Vec::new())).await;
    assert_eq!(code, 406);
    assert_eq!(proto::decode(&bytes).unwrap()["reason"], "NotAcceptable");
}

#[tokio::test(start_paused = true)]
async fn protobuf_watch_is_framed() {
    let cluster = Cluster::bare().await;
    let map = config_map("a", json!({}), json!({"k": "v"}));
    let created = cluster.post(MAPS, map).await.expect(201);
    let path = format!(
        "{MAPS}?watch=true&timeoutSeconds=5&allowWatchBookmarks=true&sendInitialEvents=true&\
         resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name=a"
    );
    let (code, media, bytes) = ask(&cluster, "GET", &path, PROTO, ("", Vec::new())).await;
    assert_eq!(
        (code, media.as_str()),
        (200, "application/vnd.kubernetes.protobuf;stream=watch")
    );
    let expected = proto::encode_event("ADDED", &created).unwrap();
    assert!(bytes.starts_with(&expected));
    let mut remainder = &bytes[..];
    let mut frames = Vec::new();
    while let Some((length, tail)) = remainder.split_first_chunk::<4>() {
        let (frame, tail) = tail.split_at(u32::from_be_bytes(*length) as usize);
        frames.push(String::from_utf8_lossy(frame).into_owned());
        remainder = tail;
    }
    assert!(remainder.is_empty());
    assert!(frames[1].contains("BOOKMARK") && frames[1].contains("k8s.io/initial-events-end"));
}

#[tokio::test(start_paused = true)]
async fn custom_resources_have_no_such_form() {
    let cluster = Cluster::start().await;
    cluster.post(CRDS, widgets()).await.expect(201);
    cluster.until(WIDGETS, |a| a.code == 200).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "w", "labels": {"a": "b"}}});
    let body = ("application/json", widget.to_string().into_bytes());
    let (code, media, bytes) = ask(&cluster, "POST", WIDGETS, PROTO, body).await;
    assert_eq!((code, media.as_str()), (406, PROTO));
    let status = proto::decode(&bytes).unwrap();
    let accepted = "only the following media types are accepted: application/json, \
                    application/yaml, application/vnd.kubernetes.protobuf";
    assert_eq!(status["message"], accepted);
    let item = format!("{WIDGETS}/w");
    assert_eq!(cluster.get(&item).await.code, 404, "nothing was written");

    cluster.post(WIDGETS, widget).await.expect(201);
    for path in [WIDGETS, &item, &format!("{WIDGETS}?watch=true")] {
        assert_eq!(get(&cluster, path).await.0, 406, "{path}");
    }
    let metadata = format!("{PROTO};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let (code, media, bytes) = ask(&cluster, "GET", WIDGETS, &metadata, ("", Vec::new())).await;
    assert_eq!((code, media.as_str()), (200, PROTO));
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("PartialObjectMetadataList") && text.contains("\u{1}a\u{12}\u{1}b"));
    let (code, _, _) = ask(&cluster, "DELETE", &item, PROTO, ("", Vec::new())).await;
    assert_eq!(code, 200);
}

#[tokio::test(start_paused = true)]
async fn clients_accepting_text_get_text() {
    let cluster = Cluster::bare().await;
    for accept in [
        "application/vnd.kubernetes.protobuf,application/json",
        "application/vnd.kubernetes.protobuf, */*",
    ] {
        let (code, media, _) = ask(&cluster, "GET", MAPS, accept, ("", Vec::new())).await;
        assert_eq!((code, media.as_str()), (200, "application/json"));
    }
}

#[tokio::test(start_paused = true)]
async fn openapi_document_has_both_forms() {
    let cluster = Cluster::bare().await;
    let path = "/openapi/v2";
    let binary = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let older = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let json = "application/json";
    for (accept, answered) in [
        (older, binary),
        (binary, binary),
        (json, json),
        ("*/*", json),
        (&format!("{older}, {json}"), binary),
    ] {
        let (code, media, bytes) = ask(&cluster, "GET", path, accept, ("", Vec::new())).await;
        assert_eq!((code, media.as_str()), (200, answered), "{accept}");
        let starts = if answered == json {
            &b"{"[..]
        } else {
            b"\x0a\x032.0"
        };
        assert!(bytes.starts_with(starts), "{accept}");
    }
    let (code, _, _) = ask(&cluster, "GET", path, "text/html", ("", Vec::new())).await;
    assert_eq!(code, 406);
}
