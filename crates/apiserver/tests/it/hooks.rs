//! Webhooks for tests: one handler, called over HTTPS or in this process.

use crate::support::{Answer, Cluster};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use koord_apiserver::{WebhookRequest, WebhookResponse};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Reaction of a webhook to the `request` of a review.
pub(crate) enum Reply {
    /// Answers with this `response`; the uid is filled in.
    Response(Value),
    /// Answers with this HTTP code and body.
    Raw(u16, Vec<u8>),
    /// Never answers.
    Hang,
}

pub(crate) type Handler = Arc<dyn Fn(&Value) -> Reply + Send + Sync>;

/// Returns the response that allows a write.
pub(crate) fn allow() -> Reply {
    Reply::Response(json!({ "allowed": true }))
}

/// Returns the response that allows a write and changes the object.
pub(crate) fn patch(operations: &Value) -> Reply {
    use base64::Engine as _;
    let patch = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    Reply::Response(json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch }))
}

/// Transport of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Https,
    InProcess,
}

/// An HTTPS server with one handler.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    ca: String,
    /// Number of connections so far.
    connections: Arc<AtomicUsize>,
    /// Open connections.
    open: Arc<Mutex<JoinSet<()>>>,
}

/// Creates a TLS server certificate of a new authority, for `localhost`, its address and a Service.
fn identity() -> (String, rustls::ServerConfig) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let names = ["localhost", "127.0.0.1", "hook.default.svc"].map(str::to_owned);
    let certificate = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )
        .unwrap();
    (pem, config)
}

impl Server {
    pub(crate) async fn start(handler: Handler) -> Self {
        let (ca, tls) = identity();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let (connections, open) = (Arc::<AtomicUsize>::default(), Arc::default());
        let server = Self {
            address,
            ca,
            connections: Arc::clone(&connections),
            open: Arc::clone(&open),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                connections.fetch_add(1, Ordering::SeqCst);
                open.lock().spawn(async move {
                    // A client that does not trust the certificate disconnects here.
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = hyper::service::service_fn(move |request| {
                        let handler = handler.clone();
                        async move { Ok::<_, std::convert::Infallible>(serve(request, handler).await) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        server
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Closes all connections.
    pub(crate) async fn hang_up(&self) {
        let mut open = std::mem::take(&mut *self.open.lock());
        open.shutdown().await;
    }

    /// Returns the `caBundle`.
    pub(crate) fn ca_bundle(&self) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(&self.ca)
    }

    pub(crate) fn client_config(&self) -> Value {
        json!({ "url": format!("https://{}/hook", self.address), "caBundle": self.ca_bundle() })
    }
}

async fn serve(request: http::Request<Incoming>, handler: Handler) -> http::Response<Full<Bytes>> {
    let query = request.uri().query().unwrap_or("").to_owned();
    assert!(query.starts_with("timeout="), "{query}");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    let (code, body) = match handler(&review["request"]) {
        Reply::Response(mut response) => {
            if response.get("uid").is_none() {
                response["uid"] = review["request"]["uid"].clone();
            }
            review["response"] = response;
            (200, review.to_string().into_bytes())
        }
        Reply::Raw(code, body) => (code, body),
        Reply::Hang => std::future::pending().await,
    };
    http::Response::builder()
        .status(code)
        .body(Full::new(Bytes::from(body)))
        .unwrap()
}

/// Answers in this process with the handler.
struct Local(Handler);

impl koord_apiserver::InProcessWebhook for Local {
    fn review<'a>(
        &'a self,
        request: &'a WebhookRequest<'a>,
    ) -> futures::future::BoxFuture<'a, Result<WebhookResponse, String>> {
        use base64::Engine as _;
        Box::pin(async move {
            let response = match (self.0)(&serde_json::to_value(request).unwrap()) {
                Reply::Response(response) => response,
                Reply::Raw(code, _) => return Err(format!("code {code}")),
                Reply::Hang => std::future::pending().await,
            };
            let patch = response["patch"].as_str().map_or(Value::Null, |patch| {
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(patch)
                    .unwrap();
                serde_json::from_slice(&bytes).unwrap()
            });
            Ok(WebhookResponse {
                allowed: response["allowed"] == true,
                status: response["status"].clone(),
                patch,
                warnings: serde_json::from_value(response["warnings"].clone()).unwrap_or_default(),
                audit_annotations: BTreeMap::new(),
            })
        })
    }
}

/// Makes `handler` reachable and returns its `clientConfig`.
pub(crate) async fn reachable(cluster: &Cluster, way: Transport, handler: Handler) -> Value {
    match way {
        Transport::Https => Server::start(handler).await.client_config(),
        Transport::InProcess => {
            let path = format!("/p{}", fastrand::u64(..));
            let url = format!("https://hook.default.svc:443{path}");
            cluster
                .server
                .api()
                .register_webhook(&url, Arc::new(Local(handler)));
            json!({ "service": { "namespace": "default", "name": "hook", "path": path } })
        }
    }
}

pub(crate) fn rule(operations: &[&str], resources: &[&str]) -> Value {
    json!({ "operations": operations, "apiGroups": ["*"], "apiVersions": ["*"],
        "resources": resources })
}

/// Returns the path of the configurations of a kind.
pub(crate) fn configurations(kind: &str) -> String {
    format!(
        "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations",
        kind.to_ascii_lowercase()
    )
}

/// Builds a webhook with the fields of `change`.
pub(crate) fn hook(client: &Value, change: &Value) -> Value {
    let mut hook = json!({
        "name": "hook.example.com",
        "clientConfig": client,
        "rules": [rule(&["*"], &["*/*"])],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    });
    for (key, value) in change.as_object().unwrap() {
        hook[key] = value.clone();
    }
    hook
}

/// Stores a configuration with these webhooks. `kind` is `Mutating` or `Validating`.
pub(crate) async fn configure(cluster: &Cluster, kind: &str, name: &str, hooks: Value) -> Answer {
    let body = json!({ "metadata": { "name": name }, "webhooks": hooks });
    let answer = cluster.post(&configurations(kind), body).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
    answer
}
