//! Clients of an API server: from a kubeconfig, from inside a pod, or over a tower service in the same
//! process.

mod connect;
mod forbidden;
mod outage;
mod read_only;
mod resource_path;
mod rest_metrics;
pub(crate) mod transport;
mod withhold;

pub use connect::Connection;
pub use forbidden::MissingRule;
pub use outage::Unreachable;
pub use read_only::{NotSent, read_only};
pub use resource_path::ResourcePath;
pub use rest_metrics::RestMetrics;
pub use withhold::{WithheldWrite, withhold_writes};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use koord_app::TokenBucket;
pub use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use outage::OutageReporter;
use rest_metrics::RequestMetrics;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tower::timeout::TimeoutLayer;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt as _};
use transport::{HttpResponse, Sender, through};

/// Timeout until the head of a response arrives. An API server aborts a request after 60 s, and it sends the
/// head of a watch at once. If a server vanishes with a connection open, the kernel would otherwise
/// retransmit the request for about 15 minutes.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(65);

/// Settings of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Sustained requests per second; 0 means no limit. A watch counts as one request.
    pub qps: f64,
    /// Number of requests that may be sent at once before `qps` applies.
    pub burst: u32,
    /// The `User-Agent` header, for example `koordinator-manager`.
    pub user_agent: String,
    /// The kubeconfig context to use instead of the current one.
    pub context: Option<String>,
    /// URL of the API server, which replaces that of the kubeconfig.
    pub server: Option<String>,
    /// Metrics of the requests; `None` if they are not measured.
    pub metrics: Option<RestMetrics>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            qps: 0.0,
            burst: 0,
            user_agent: "koord".to_owned(),
            context: None,
            server: None,
            metrics: None,
        }
    }
}

/// Reasons why a client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig is missing, malformed, or points to something missing.
    #[error("kubeconfig {}: {}", path.display(), problem(source))]
    Kubeconfig {
        /// The file that was read.
        path: PathBuf,
        /// The error of reading it.
        source: KubeconfigError,
    },
    /// The service account of the pod cannot be used.
    #[error("in-cluster configuration: {0}")]
    InCluster(#[source] kube::config::InClusterError),
    /// The client configuration is missing in all usual places.
    #[error(
        "no cluster to talk to: no --kubeconfig, KUBECONFIG is not set, this is not a pod \
         (KUBERNETES_SERVICE_HOST is not set), and {} does not exist",
        default_path.display()
    )]
    Nowhere {
        /// The last path that was tried.
        default_path: PathBuf,
    },
    /// An option has an invalid value.
    #[error("client option {field}: {value:?} {problem}")]
    Option {
        /// Name of the option.
        field: &'static str,
        /// Value of the option.
        value: String,
        /// The rule that the value violates.
        problem: &'static str,
    },
    /// The configuration was read, but no transport can be created from it.
    #[error("client for {server}: {source}")]
    Transport {
        /// URL of the API server.
        server: String,
        /// The error, for example about an invalid certificate.
        source: Box<kube::Error>,
    },
}

/// Returns the text of an error about a kubeconfig, without the path, which [`ClientError`] names.
fn problem(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => format!("failed to read the file: {error}"),
        error => error.to_string(),
    }
}

/// Creates a client for the cluster of the kubeconfig `path`, else `KUBECONFIG`, else of the pod this process
/// runs in, else `~/.kube/config`: the order that controller-runtime uses.
///
/// # Errors
///
/// Fails if no configuration is found or it cannot be used; the text contains file and field.
pub fn from_kubeconfig<'a>(
    path: Option<&'a Path>,
    options: &'a ClientOptions,
) -> BoxFuture<'a, Result<kube::Client, ClientError>> {
    // Boxed here, so that callers in other crates do not compile the transport again.
    Box::pin(async move {
        let Some(server) = &options.server else {
            return build(load(path, options).await?, options);
        };
        let url: http::Uri = server.parse().map_err(|_| ClientError::Option {
            field: "server",
            value: server.clone(),
            problem: "is not a URL",
        })?;
        let config = match load(path, options).await {
            Ok(mut config) => {
                config.cluster_url = url;
                config
            }
            Err(ClientError::Nowhere { .. }) => kube::Config::new(url),
            Err(error) => return Err(error),
        };
        build(config, options)
    })
}

/// The address of a server in a cluster that is not its API server, such as the secure port of a component.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// URL of the server, which starts with `https://`.
    pub url: String,
    /// A file with the bearer token to send.
    pub token_file: Option<PathBuf>,
    /// A PEM file with the CA certificates that verify the server's certificate; `None` for the system's.
    pub authority: Option<PathBuf>,
    /// Whether any server certificate is accepted.
    pub insecure: bool,
}

/// Creates a client for `peer`.
///
/// # Errors
///
/// Fails if the address is not a URL or a file cannot be used.
pub async fn to_peer(peer: &Peer) -> Result<kube::Client, ClientError> {
    let wrong = |source| ClientError::Kubeconfig {
        path: PathBuf::from(&peer.url),
        source,
    };
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "peer",
        "clusters": [{"name": "peer", "cluster": {
            "server": peer.url, "certificate-authority": peer.authority,
            "insecure-skip-tls-verify": peer.insecure,
        }}],
        "users": [{"name": "peer", "user": {"tokenFile": peer.token_file}}],
        "contexts": [{"name": "peer", "context": {"cluster": "peer", "user": "peer"}}],
    });
    let file = Kubeconfig::from_yaml(&text.to_string()).map_err(wrong)?;
    let selection = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &selection).await;
    build(config.map_err(wrong)?, &ClientOptions::default())
}

/// Creates a client with the service account of the pod that this process runs in; `None` outside of pods.
///
/// # Errors
///
/// Fails in a pod whose service account cannot be used.
pub fn from_pod(options: &ClientOptions) -> Result<Option<kube::Client>, ClientError> {
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_none() {
        return Ok(None);
    }
    let config = kube::Config::incluster().map_err(ClientError::InCluster)?;
    build(config, options).map(Some)
}

/// Loads the configuration from `path`, `KUBECONFIG`, the pod's service account or the home directory.
async fn load(path: Option<&Path>, options: &ClientOptions) -> Result<kube::Config, ClientError> {
    if let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) {
        return config_from_file(path, options).await;
    }
    if let Some(list) = std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        let selection = KubeConfigOptions {
            context: options.context.clone(),
            ..Default::default()
        };
        return kube::Config::from_kubeconfig(&selection)
            .await
            .map_err(|source| ClientError::Kubeconfig {
                path: PathBuf::from(list),
                source,
            });
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return kube::Config::incluster().map_err(ClientError::InCluster);
    }
    let default_path = std::env::home_dir()
        .unwrap_or_else(|| PathBuf::from("/"))
        .join(".kube/config");
    if default_path.exists() {
        return config_from_file(&default_path, options).await;
    }
    Err(ClientError::Nowhere { default_path })
}

/// Reads a kubeconfig file, and returns the configuration of the chosen or the current context.
async fn config_from_file(
    path: &Path,
    options: &ClientOptions,
) -> Result<kube::Config, ClientError> {
    let wrong = |source| ClientError::Kubeconfig {
        path: path.to_owned(),
        source,
    };
    let file = Kubeconfig::read_from(path).map_err(wrong)?;
    let selection = KubeConfigOptions {
        context: options.context.clone(),
        ..Default::default()
    };
    kube::Config::from_custom_kubeconfig(file, &selection)
        .await
        .map_err(wrong)
}

/// Builds a client with rate limit, metrics, timeouts and retries.
fn build(mut config: kube::Config, options: &ClientOptions) -> Result<kube::Client, ClientError> {
    let agent = HeaderValue::from_str(&options.user_agent).map_err(|_| ClientError::Option {
        field: "user agent",
        value: options.user_agent.clone(),
        problem: "is not a valid header value",
    })?;
    let limit = RequestRateLimit::new(options.qps, options.burst)?;
    config.headers.push((header::USER_AGENT, agent));
    transport::prepare(&mut config);
    let server = config.cluster_url.to_string();
    let host = config.cluster_url.authority();
    let host = host.map_or_else(String::new, ToString::to_string);
    let metrics = options.metrics.clone();
    let measure = RequestMetrics(metrics.map(|metrics| Arc::new((metrics, host))));
    let namespace = config.default_namespace.clone();
    let reporter = OutageReporter::new(server.clone());
    let transport = transport::connect(&config).map_err(|source| ClientError::Transport {
        server,
        source: Box::new(source),
    })?;
    // Below the rate limit, so that waiting for the limit does not count as request time.
    let measured = ServiceBuilder::new()
        .layer(measure.clone())
        .layer(TimeoutLayer::new(ANSWER_WITHIN))
        .service(transport);
    let sender = match limit {
        Some(limit) => through(in_process(limit.layer(measured))),
        None => Sender::new(measured),
    };
    Ok(kube::Client::new(
        tower::service_fn(move |request| {
            let (sender, measure) = (sender.clone(), measure.clone());
            let send = move |request| retrying(sender, measure, request);
            reporter.clone().send(request, send)
        }),
        namespace,
    ))
}

/// Maximum number of times that one request is sent again.
const RETRIES: u32 = 10;

/// Sends `request`, and sends it again after the delay that the server requests (`Retry-After` on 429 or
/// 5xx), as client-go does. An eviction is never sent again: its 429 is a result, not an overload.
async fn retrying(
    sender: Sender,
    measure: RequestMetrics,
    request: Request<Body>,
) -> Result<HttpResponse, kube::Error> {
    let (mut head, body) = request.into_parts();
    let mut retries_left = if head.uri.path().ends_with("/eviction") {
        0
    } else {
        RETRIES
    };
    let mut body = body;
    loop {
        let spare = if retries_left > 0 {
            body.try_clone()
        } else {
            None
        };
        measure.mark_start(&mut head);
        let request = Request::from_parts(head.clone(), body);
        let response = sender.clone().oneshot(request).await.map_err(failure)?;
        let Some((again, delay)) = spare.zip(retry_after(&response)) else {
            return Ok(response);
        };
        tracing::debug!(uri = %head.uri, status = %response.status(), ?delay, "retrying as the server requested");
        measure.count_retry(&head, response.status());
        tokio::time::sleep(delay).await;
        body = again;
        retries_left -= 1;
    }
}

/// Converts a transport error to the error that [`kube::Client::send`] returns.
fn failure(error: BoxError) -> kube::Error {
    match error.downcast::<kube::Error>() {
        Ok(error) => *error,
        Err(error) => kube::Error::Service(error),
    }
}

/// Returns the delay of `Retry-After`; `None` if the response has none or does not permit a retry.
pub(crate) fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let code = response.status();
    let repeatable = code == http::StatusCode::TOO_MANY_REQUESTS || code.is_server_error();
    let value = response
        .headers()
        .get(header::RETRY_AFTER)
        .filter(|_| repeatable)?;
    value.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

/// Creates a client whose requests go straight into `service`, for example an axum router: no socket, no TLS,
/// no authentication, no rate limit. Must be called inside a tokio runtime.
pub fn in_process<S, B>(service: S) -> kube::Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    kube::Client::new(service, "default")
}

/// A token bucket in front of a service, like client-go's flow control: `burst` tokens, refilled at `qps` per
/// second, one per request.
#[derive(Debug, Clone, Copy)]
struct RequestRateLimit {
    interval: Duration,
    burst: u32,
}

impl RequestRateLimit {
    fn new(qps: f64, burst: u32) -> Result<Option<Self>, ClientError> {
        if qps == 0.0 {
            return Ok(None);
        }
        match Duration::try_from_secs_f64(1.0 / qps) {
            Ok(interval) if qps.is_sign_positive() && !interval.is_zero() => Ok(Some(Self {
                interval,
                burst: burst.max(1),
            })),
            _ => Err(ClientError::Option {
                field: "qps",
                value: qps.to_string(),
                problem: "is not a positive number of requests per second",
            }),
        }
    }
}

impl<S> Layer<S> for RequestRateLimit {
    type Service = RateLimited<S>;

    fn layer(&self, inner: S) -> RateLimited<S> {
        RateLimited {
            inner,
            bucket: TokenBucket::new(self.interval, self.burst),
            since: Instant::now(),
            sleep: None,
        }
    }
}

#[derive(Debug)]
struct RateLimited<S> {
    inner: S,
    bucket: TokenBucket,
    /// Time zero of `bucket`, whose times are durations since then.
    since: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<S, R> Service<R> for RateLimited<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // The wait here holds back every request behind this one too, which is intended.
        let wait = self.bucket.wait(self.since.elapsed());
        if !wait.is_zero() {
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
            ready!(sleep.as_mut().poll(cx));
        }
        self.sleep = None;
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.bucket.reserve(self.since.elapsed());
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use tower::{ServiceExt, service_fn};

    async fn error_for(content: &str) -> String {
        let dir = std::env::temp_dir().join(format!("koord-kube-{}", fastrand::u64(..)));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("config");
        std::fs::File::create(&path)
            .unwrap()
            .write_all(content.as_bytes())
            .unwrap();
        let error = from_kubeconfig(Some(&path), &ClientOptions::default())
            .await
            .err();
        std::fs::remove_dir_all(&dir).unwrap();
        let text = error.expect("a broken kubeconfig is refused").to_string();
        assert!(text.contains(path.to_str().unwrap()), "no path in: {text}");
        text
    }

    #[tokio::test]
    async fn errors_name_file_and_field() {
        assert!(error_for("clusters: 7").await.contains("clusters"));
        let nowhere = "current-context: a\ncontexts: [{name: b, context: {cluster: c}}]\n";
        assert!(error_for(nowhere).await.contains('a'));
        let no_cluster =
            "current-context: a\ncontexts: [{name: a, context: {cluster: lost, user: u}}]\n";
        assert!(error_for(no_cluster).await.contains("lost"));
        let missing = Path::new("/nonexistent/koord/config");
        let error = from_kubeconfig(Some(missing), &ClientOptions::default())
            .await
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "kubeconfig /nonexistent/koord/config: failed to read the file: No such file or \
             directory (os error 2)"
        );
    }

    #[tokio::test]
    async fn server_option_replaces_the_url_of_the_kubeconfig() {
        let dir = std::env::temp_dir().join(format!("koord-kube-{}", fastrand::u64(..)));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("config");
        let kubeconfig = "current-context: a\n\
            contexts: [{name: a, context: {cluster: c, user: u}}]\n\
            clusters: [{name: c, cluster: {server: 'http://wrong.example:1'}}]\n\
            users: [{name: u, user: {}}]\n";
        std::fs::write(&path, kubeconfig).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = |server: String| ClientOptions {
            server: Some(server),
            ..ClientOptions::default()
        };
        let real = options(format!("http://{}", listener.local_addr().unwrap()));
        let client = from_kubeconfig(Some(&path), &real).await.unwrap();
        let request = tokio::spawn(async move { client.apiserver_version().await });
        assert!(
            listener.accept().await.is_ok(),
            "the request goes to the given server"
        );
        request.abort();
        let error = from_kubeconfig(Some(&path), &options("no url".to_owned())).await;
        std::fs::remove_dir_all(&dir).unwrap();
        let text = error.err().unwrap().to_string();
        assert!(text.contains("server") && text.contains("no url"), "{text}");
    }

    #[tokio::test]
    async fn request_without_response_times_out() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = build(
            kube::Config::new(url.parse().unwrap()),
            &ClientOptions::default(),
        );
        let client = client.unwrap();
        let request_task = tokio::spawn(async move { client.apiserver_version().await });
        let (mut held, _) = listener.accept().await.unwrap();
        tokio::io::AsyncReadExt::read_u8(&mut held).await.unwrap();
        // The request was sent: only time passes now.
        tokio::time::pause();
        let answer = tokio::time::timeout(ANSWER_WITHIN * 2, request_task).await;
        let error = answer.expect("it ends").unwrap().unwrap_err().to_string();
        assert!(error.contains("timed out"), "{error}");
    }

    #[test]
    fn rate_limit_rejects_invalid_qps() {
        assert!(RequestRateLimit::new(0.0, 0).unwrap().is_none());
        assert!(RequestRateLimit::new(30.0, 50).unwrap().is_some());
        let error = RequestRateLimit::new(-1.0, 5).unwrap_err().to_string();
        assert!(error.contains("qps") && error.contains("-1"), "{error}");
        assert!(RequestRateLimit::new(f64::NAN, 5).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn request_is_repeated_after_retry_after_except_evictions() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};
        let calls = Arc::new(AtomicU32::new(0));
        let counter = calls.clone();
        let server = in_process(service_fn(move |request: Request<Body>| {
            let call = counter.fetch_add(1, Ordering::SeqCst);
            let patient = request.uri().query() == Some("say-when");
            async move {
                let mut response = Response::new(Body::empty());
                if call < 2 {
                    *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
                    if patient {
                        response
                            .headers_mut()
                            .insert(header::RETRY_AFTER, HeaderValue::from_static("3"));
                    }
                }
                Ok::<_, BoxError>(response)
            }
        }));
        for (uri, status, sent) in [
            ("/api/v1/nodes/a?say-when", 200, 3),
            ("/api/v1/nodes/a", 429, 1),
            ("/api/v1/namespaces/n/pods/p/eviction?say-when", 429, 1),
        ] {
            calls.store(0, Ordering::SeqCst);
            let request = Request::get(uri).body(Body::empty()).unwrap();
            let response = retrying(through(server.clone()), RequestMetrics(None), request)
                .await
                .unwrap();
            assert_eq!(
                (response.status().as_u16(), calls.load(Ordering::SeqCst)),
                (status, sent)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_burst_wait() {
        let limit = RequestRateLimit::new(10.0, 3).unwrap().unwrap();
        let mut service = limit.layer(service_fn(async |(): ()| Ok::<_, BoxError>(())));
        let start = Instant::now();
        let mut starts = Vec::new();
        for _ in 0..5 {
            service.ready().await.unwrap().call(()).await.unwrap();
            starts.push(start.elapsed().as_millis());
        }
        assert_eq!(starts[..3], [0, 0, 0]);
        assert!(
            (99..=102).contains(&starts[3]) && (198..=204).contains(&starts[4]),
            "{starts:?}"
        );
    }
}
