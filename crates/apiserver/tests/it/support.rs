//! A control plane in memory and clients for it.

use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_app::flags::Selection;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt as _;

/// JSON merge patch.
pub(crate) const MERGE: &str = "application/merge-patch+json";
/// RFC 6902.
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
/// Strategic merge patch.
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
/// Server-side apply.
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

/// A server that a test owns.
pub(crate) struct Cluster {
    pub(crate) server: Arc<ApiServer>,
}

/// A response: code and body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
    pub(crate) headers: http::HeaderMap,
}

impl Answer {
    /// Returns the body of a response with this code.
    #[track_caller]
    pub(crate) fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        self.body
    }

    /// Returns the message of a Status with this code and reason.
    #[track_caller]
    pub(crate) fn fails(self, code: u16, reason: &str) -> String {
        assert_eq!(self.code, code, "{}", self.body);
        assert_eq!(self.body["kind"], "Status", "{}", self.body);
        assert_eq!(self.body["reason"], reason, "{}", self.body);
        assert_eq!(self.body["code"], code, "{}", self.body);
        self.body["message"].as_str().unwrap().to_owned()
    }
}

impl Cluster {
    /// Starts a server with controllers, on the clock of tokio.
    pub(crate) async fn start() -> Self {
        Self::running(Selection::all()).await
    }

    /// Starts a server without controllers: only the test changes objects.
    pub(crate) async fn bare() -> Self {
        Self::running(Selection::none()).await
    }

    /// Starts a server without controllers, with its objects in a directory.
    pub(crate) async fn in_dir(dir: &std::path::Path) -> Self {
        let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
        let mut config = Config::dir(dir, clock);
        config.controllers = Selection::none();
        Self {
            server: ApiServer::open(config).await.unwrap(),
        }
    }

    /// Starts a server with these controllers.
    pub(crate) async fn running(controllers: Selection) -> Self {
        let clock = Clock::following_tokio("2026-03-01T12:00:00Z".parse().unwrap());
        let mut config = Config::memory(clock);
        config.controllers = controllers;
        Self {
            server: ApiServer::open(config).await.unwrap(),
        }
    }

    /// Returns a kube client in process.
    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(self.server.service(), "default")
    }

    /// Sends a request with all its headers; the body of the response is not read.
    pub(crate) async fn raw(&self, request: Request<Body>) -> Response<Body> {
        match self.server.service().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Sends a request with a body of a content type.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Answer {
        self.send_as("tests", method, path, content_type, body)
            .await
    }

    /// Like [`Self::send`], from a client program with this name.
    pub(crate) async fn send_as(
        &self,
        program: &str,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("user-agent", program)
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = self.raw(request).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer {
            code: parts.status.as_u16(),
            body,
            headers: parts.headers,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, "application/json", &body.to_string())
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.send("PUT", path, "application/json", &body.to_string())
            .await
    }

    pub(crate) async fn patch(&self, path: &str, content_type: &str, body: Value) -> Answer {
        self.send("PATCH", path, content_type, &body.to_string())
            .await
    }

    pub(crate) async fn delete(&self, path: &str, options: Value) -> Answer {
        self.send("DELETE", path, "application/json", &options.to_string())
            .await
    }

    /// Waits, write by write, until `done` accepts the response to GET of `path`.
    pub(crate) async fn until(&self, path: &str, done: impl Fn(&Answer) -> bool) -> Answer {
        let waiting = async {
            loop {
                let revision = self.server.store().revision();
                let answer = self.get(path).await;
                if done(&answer) {
                    return answer;
                }
                self.server.store().wait_for(revision + 1).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(600), waiting).await {
            Ok(answer) => answer,
            Err(_) => panic!("{path} never got there: {:#}", self.get(path).await.body),
        }
    }

    /// Waits until `path` is 404.
    pub(crate) async fn until_gone(&self, path: &str) {
        self.until(path, |a| a.code == 404).await;
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str) -> Lines {
        self.watch_as(path, "application/json").await
    }

    /// Opens a watch with an Accept header.
    pub(crate) async fn watch_as(&self, path: &str, accept: &str) -> Lines {
        let request = Request::builder()
            .uri(path)
            .header("accept", accept)
            .body(Body::empty())
            .unwrap();
        let response = self.raw(request).await;
        assert_eq!(response.status(), 200);
        Lines {
            body: response.into_body(),
            rest: Vec::new(),
        }
    }
}

/// The lines of a watch.
pub(crate) struct Lines {
    body: Body,
    rest: Vec<u8>,
}

impl Lines {
    /// Returns the next event, `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=at).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(Duration::from_secs(3600), self.body.frame())
                .await
                .expect("an event within an hour")?;
            self.rest
                .extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
    }

    /// Returns the next event as type, name and resourceVersion.
    pub(crate) async fn event(&mut self) -> (String, String, u64) {
        let event = self.next().await.expect("the stream goes on");
        let meta = &event["object"]["metadata"];
        (
            event["type"].as_str().unwrap().to_owned(),
            meta["name"].as_str().unwrap_or("").to_owned(),
            meta["resourceVersion"]
                .as_str()
                .and_then(|v| v.parse().ok())
                .unwrap_or(0),
        )
    }
}

/// Returns the resourceVersion of an object or list.
pub(crate) fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// Builds a ConfigMap.
pub(crate) fn config_map(name: &str, labels: Value, data: Value) -> Value {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "labels": labels },
        "data": data,
    })
}

/// Builds a pod with one container.
pub(crate) fn pod(name: &str) -> Value {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "main", "image": "busybox:1" }] },
    })
}
