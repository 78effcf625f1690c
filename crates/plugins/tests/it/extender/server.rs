//! Fake extender whose answers a test defines.

use crate::api::{Scheduler, TestCluster};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use koord_kube::certs::Artifacts;
use koord_scheduler::config::Configuration;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(super) type Answer = Arc<dyn Fn(String, Value) -> BoxFuture<'static, Response> + Send + Sync>;

/// HTTP server that returns defined answers and records the requests.
pub(super) struct Extender {
    pub(super) url: String,
    recorded: Arc<Mutex<Vec<(String, Value)>>>,
    stop: CancellationToken,
    /// CA certificate in base64.
    pub(super) authority: String,
}

impl Drop for Extender {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Extender {
    pub(super) async fn start(
        answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static,
    ) -> Self {
        let answer = move |verb: String, body: Value| {
            let response = axum::Json(answer(&verb, &body)).into_response();
            futures::future::ready(response).boxed()
        };
        Self::serve(Arc::new(answer), None).await
    }

    pub(super) async fn serve(answer: Answer, tls: Option<Artifacts>) -> Self {
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let handle = |State((recorded, answer)): State<(Arc<Mutex<Vec<_>>>, Answer)>,
                      Path(verb): Path<String>,
                      body: Bytes| async move {
            let body: Value = serde_json::from_slice(&body).unwrap();
            recorded.lock().push((verb.clone(), body.clone()));
            answer(verb, body).await
        };
        let routes = axum::Router::new()
            .route("/extender/{verb}", post(handle))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state((recorded.clone(), answer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut authority = String::new();
        match tls {
            Some(artifacts) => {
                authority = base64::prelude::BASE64_STANDARD.encode(&artifacts.ca_cert);
                let config = artifacts.server_config().unwrap();
                let (_, configs) = tokio::sync::watch::channel(config);
                let limits = koord_kube::tls::LIMITS;
                let serving =
                    koord_kube::tls::serve(listener, routes, configs, stop.clone(), limits);
                tokio::spawn(serving);
            }
            None => {
                let until = stop.clone().cancelled_owned();
                let serving = axum::serve(listener, routes).with_graceful_shutdown(until);
                tokio::spawn(serving.into_future());
            }
        }
        Self {
            url: format!("{scheme}://localhost:{port}/extender"),
            recorded,
            stop,
            authority,
        }
    }

    /// Returns the configuration entry of this extender, with `more` merged in.
    pub(super) fn entry(&self, more: &Value) -> Value {
        let mut entry = json!({"urlPrefix": self.url});
        let fields = more.as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(fields);
        entry
    }

    pub(super) fn requests(&self, verb: &str) -> Vec<Value> {
        let all = self.recorded.lock();
        let matching = all.iter().filter(|(recorded, _)| recorded == verb);
        matching.map(|(_, body)| body.clone()).collect()
    }
}

/// Starts a scheduler with the built-in configuration and these extenders.
pub(super) fn schedule(cluster: &TestCluster, extenders: &[Value]) -> Scheduler {
    let mut config = serde_json::to_value(Configuration::default()).unwrap();
    config["extenders"] = json!(extenders);
    config["podInitialBackoffSeconds"] = json!(1);
    config["podMaxBackoffSeconds"] = json!(1);
    config["profiles"] = json!([{"schedulerName": "koord-scheduler"}]);
    let config = Configuration::parse(&config.to_string()).unwrap();
    cluster.schedule(|options| options.config = Some(config))
}

/// Returns the node names in a request, from either form of the list.
pub(super) fn nodes_of(args: &Value) -> Vec<String> {
    if let Some(names) = args["NodeNames"].as_array() {
        return names
            .iter()
            .map(|it| it.as_str().unwrap().to_owned())
            .collect();
    }
    let items = args["Nodes"]["items"].as_array().unwrap();
    let name = |node: &Value| node["metadata"]["name"].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}
