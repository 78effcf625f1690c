//! More requests than the server handles at once.

use crate::hooks::{Handler, Reply, Transport, configure, hook, reachable, rule};
use crate::support::{Cluster, config_map};
use axum::body::Body;
use bytes::Bytes;
use http::Request;
use koord_apiserver::authz::User;
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Builds a request of an unprivileged user.
fn plain(method: &str, path: &str) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::from("{}"))
        .unwrap();
    request.extensions_mut().insert(User {
        name: "jane".to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        ..User::default()
    });
    request
}

/// Starts a write whose body never arrives, so that it stays in progress.
fn stuck() -> Request<Body> {
    let body = Body::from_stream(futures::stream::pending::<Result<Bytes, Infallible>>());
    Request::builder()
        .method("POST")
        .uri(MAPS)
        .body(body)
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn excess_writes_get_retry_after() {
    let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
    let mut config = Config::memory(clock);
    config.controllers = koord_app::flags::Selection::none();
    config.limits.max_mutating_requests_inflight = 2;
    let cluster = Arc::new(Cluster {
        server: ApiServer::open(config).await.unwrap(),
    });
    let writes: Vec<_> = (0..2)
        .map(|_| {
            let cluster = Arc::clone(&cluster);
            tokio::spawn(async move { cluster.raw(stuck()).await.status().as_u16() })
        })
        .collect();
    while cluster.raw(plain("POST", MAPS)).await.status() != 429 {
        tokio::task::yield_now().await;
    }
    let answer = cluster.raw(plain("POST", MAPS)).await;
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.headers()["retry-after"], "1");
    // Reads are counted apart, and watches not at all; both are only forbidden to jane.
    assert_eq!(cluster.raw(plain("GET", MAPS)).await.status(), 403);
    let watch = format!("{MAPS}?watch=true");
    assert_eq!(cluster.raw(plain("GET", &watch)).await.status(), 403);
    // An administrator is admitted to an overloaded server.
    cluster
        .post(MAPS, config_map("m", json!({}), json!({})))
        .await
        .expect(201);
    // Requests whose bodies do not arrive time out and free their places.
    for write in writes {
        assert_eq!(write.await.unwrap(), 504);
    }
    assert_eq!(cluster.raw(plain("POST", MAPS)).await.status(), 403);
}

#[tokio::test(start_paused = true)]
async fn requests_end_at_their_deadline() {
    let cluster = Cluster::bare().await;
    let handler: Handler = Arc::new(|_| Reply::Hang);
    let client = reachable(&cluster, Transport::InProcess, handler).await;
    // Sequentially, these two would take a minute.
    let hooks = ["a.example.com", "b.example.com"].map(|name| {
        let rules = json!([rule(&["CREATE"], &["configmaps"])]);
        hook(
            &client,
            &json!({"name": name, "rules": rules, "timeoutSeconds": 30, "failurePolicy": "Ignore"}),
        )
    });
    configure(&cluster, "Mutating", "hooks", json!(hooks)).await;
    for (name, query, seconds) in [
        ("a", "", 34),
        ("b", "?timeout=5s", 5),
        ("c", "?timeout=2m", 34),
        ("d", "?timeout=0s", 34),
    ] {
        let start = tokio::time::Instant::now();
        let path = format!("{MAPS}{query}");
        let answer = cluster
            .post(&path, config_map(name, json!({}), json!({})))
            .await;
        let message = answer.fails(504, "Timeout");
        assert_eq!(
            message,
            "Timeout: request did not complete within requested timeout - context deadline exceeded"
        );
        assert_eq!(start.elapsed().as_secs(), seconds, "{query}");
    }
    // A started request is completed.
    cluster
        .until(&format!("{MAPS}/a"), |answer| answer.code == 200)
        .await;
}
