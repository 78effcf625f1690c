//! The agent's HTTP endpoints.

use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use jiff::Timestamp;
use koordlet::audit::{Config, Entry, Log, Subject};
use tower::ServiceExt;

async fn get(log: &Log, path: &str, accept: &str) -> (StatusCode, Option<String>, String) {
    let request = Request::get(path)
        .header("accept", accept)
        .body(Body::empty())
        .unwrap();
    let response = koordlet::events(log.clone())
        .oneshot(request)
        .await
        .unwrap();
    let status = response.status();
    let next = response.headers().get("next-page-token");
    let next = next.map(|token| token.to_str().unwrap().to_owned());
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, next, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn events_are_paged_newest_first() {
    let log = Log::open(Config::default());
    for i in 0..5 {
        let entry = Entry::new(Subject::Node, 1, "r", format!("m{i}"));
        log.record(Timestamp::UNIX_EPOCH, entry);
    }
    let (status, next, text) = get(&log, "/events?size=2", "text/plain").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(text.lines().count(), 2);
    assert!(text.lines().next().unwrap().contains("\"m4\""));
    let next = next.unwrap();
    let path = format!("/events?size=9&pageToken={next}");
    let (_, end, body) = get(&log, &path, "application/json").await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["Events"].as_array().unwrap().len(), 3);
    assert_eq!((body.get("NextPageToken"), end), (None, None));
}

#[tokio::test]
async fn bad_questions_are_refused_by_name() {
    let log = Log::open(Config::default());
    let (status, _, text) = get(&log, "/events?size=99999", "*/*").await;
    assert_eq!(
        (status, text.contains("99999")),
        (StatusCode::BAD_REQUEST, true)
    );
    let (status, _, text) = get(&log, "/events?pageToken=zz", "*/*").await;
    assert_eq!((status, text.contains("zz")), (StatusCode::CONFLICT, true));
    let (status, ..) = get(&log, "/events?pageToken=7", "*/*").await;
    assert_eq!(status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn events_endpoint_returns_newer_events_only() {
    let log = Log::open(Config::default());
    let record = |n: u32| {
        let entry = Entry::new(Subject::Pod, 1, "r", format!("m{n}"));
        log.record(Timestamp::UNIX_EPOCH, entry);
    };
    (0..3).for_each(record);
    let newer = async |after: u64| {
        let (_, _, body) = get(&log, &format!("/events?after={after}"), "*/*").await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let events = body["Events"].as_array().unwrap().iter();
        let messages: Vec<_> = events.map(|e| e["message"].to_string()).collect();
        (messages.join(""), body["Newest"].as_u64().unwrap())
    };
    assert_eq!(newer(1).await, (r#""m1""m2""#.to_owned(), 3));
    assert_eq!(newer(3).await, (String::new(), 3));
    record(3);
    assert_eq!(newer(3).await, (r#""m3""#.to_owned(), 4));
    // A number of an earlier run of the agent.
    assert_eq!(newer(99).await.0.matches('m').count(), 4);
}

#[tokio::test]
async fn a_page_is_as_large_as_allowed() {
    let log = Log::open(Config {
        max_page: 10,
        ..Config::default()
    });
    for n in 0..20 {
        log.record(
            Timestamp::UNIX_EPOCH,
            Entry::new(Subject::Node, 1, "r", n.to_string()),
        );
    }
    let (status, _, text) = get(&log, "/events?size=11", "*/*").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("1..=10"), "{text}");
    let (_, next, text) = get(&log, "/events", "*/*").await;
    assert_eq!((text.lines().count(), next.is_some()), (10, true));
}
