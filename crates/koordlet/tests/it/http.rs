//! What the agent serves.

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
    let log = Log::memory(Config::default());
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
    let log = Log::memory(Config::default());
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
