//! Fakes of everybody that the proxy talks to, byte by byte.

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use koord_app::Context;
use koord_runtime_proxy::{Mode, Options, RunError, SkipLabel};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

pub(crate) type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A call that a runtime received.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecordedCall {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The body, including the gRPC frame.
    pub(crate) body: Bytes,
}

/// The response that a client received.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClientResponse {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl ClientResponse {
    /// Returns status and message of the call, from trailers or headers.
    pub(crate) fn status(&self) -> (String, String) {
        let value_of = |name| {
            let value = self.trailers.get(name).or_else(|| self.headers.get(name));
            value.map_or(String::new(), |value| value.to_str().unwrap().to_owned())
        };
        (value_of("grpc-status"), value_of("grpc-message"))
    }
}

pub(crate) fn frame(message: &[u8]) -> Bytes {
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(u32::try_from(message.len()).unwrap());
    body.put_slice(message);
    body.freeze()
}

pub(crate) fn trailers(status: &'static str) -> HeaderMap {
    let mut map = HeaderMap::new();
    map.insert("grpc-status", HeaderValue::from_static(status));
    map
}

/// Returns a response with one message, in the form of gRPC servers.
pub(crate) fn reply(body: Bytes, status: &'static str) -> Response<Body> {
    let frames = [Ok(Frame::data(body)), Ok(Frame::trailers(trailers(status)))];
    let body = StreamBody::new(futures::stream::iter(frames));
    let mut response = Response::new(BodyExt::boxed_unsync(body));
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("x-runtime", HeaderValue::from_static("fake"));
    response
}

type Handler = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// Serves HTTP/2 on a socket until it is dropped, and then breaks every connection off.
#[derive(Debug)]
pub(crate) struct ServerTask(JoinHandle<()>);

impl Drop for ServerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) fn serve(socket: &Path, handler: Handler) -> ServerTask {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    ServerTask(tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let handler = handler.clone();
            let service = hyper::service::service_fn(move |request| {
                let answer = handler(request);
                async move { Ok::<_, std::convert::Infallible>(answer.await) }
            });
            connections.spawn(async move {
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .auto_date_header(false)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }))
}

pub(crate) async fn record_call(request: Request<Incoming>) -> RecordedCall {
    let (head, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map_or(Bytes::new(), |all| all.to_bytes());
    RecordedCall {
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body,
    }
}

/// A connection to a socket, as a kubelet has one.
#[derive(Debug)]
pub(crate) struct GrpcClient(SendRequest<Body>);

impl GrpcClient {
    pub(crate) async fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).await.unwrap();
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1 << 20)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub(crate) fn request(path: &str) -> http::request::Builder {
        Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "grpc-go/1.80.0")
            .header("grpc-timeout", "119999m")
    }

    pub(crate) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        self.0.clone().send_request(request).await
    }

    /// Sends a call with this body; fails if it is reset or the connection breaks.
    pub(crate) async fn try_call(
        &self,
        path: &str,
        body: Bytes,
    ) -> Result<ClientResponse, hyper::Error> {
        let body = Full::new(body).map_err(|never| match never {});
        let request = Self::request(path)
            .body(BodyExt::boxed_unsync(body))
            .unwrap();
        let (head, body) = self.send(request).await?.into_parts();
        let all = body.collect().await?;
        let trailers = all.trailers().cloned().unwrap_or_default();
        Ok(ClientResponse {
            headers: head.headers,
            body: all.to_bytes(),
            trailers,
        })
    }

    pub(crate) async fn call(&self, path: &str, body: Bytes) -> ClientResponse {
        self.try_call(path, body).await.unwrap()
    }

    /// Sends a CRI call.
    pub(crate) async fn cri<M: prost::Message>(&self, method: &str, message: &M) -> ClientResponse {
        let path = format!("/runtime.v1.RuntimeService/{method}");
        self.call(&path, frame(&message.encode_to_vec())).await
    }
}

/// A directory with sockets, and what serves there.
#[derive(Debug)]
pub(crate) struct TestEnv {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) options: Options,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let options = Options {
            listen: path("proxy/proxy.sock"),
            runtime: path("runtime.sock"),
            mode: Mode::Containerd,
            hooks: path("hookserver.d"),
            hook_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(60),
            skip: SkipLabel {
                key: "runtimeproxy.koordinator.sh/skip-hookserver".to_owned(),
                value: "true".to_owned(),
            },
            metrics_address: None,
        };
        std::fs::create_dir(&options.hooks).unwrap();
        Self { dir, options }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a registration, as hook servers do: aside, and moved there.
    pub(crate) fn register(&self, file: &str, endpoint: &Path, policy: &str, hooks: &[&str]) {
        let text = serde_json::json!({
            "remote-endpoint": endpoint,
            "failure-policy": policy,
            "runtime-hooks": hooks,
        });
        let aside = self.options.hooks.join("aside");
        std::fs::write(&aside, text.to_string()).unwrap();
        std::fs::rename(aside, self.options.hooks.join(file)).unwrap();
    }

    /// Starts a runtime that records calls, and responds to each with `answer` of path and message.
    pub(crate) fn runtime(
        &self,
        answer: impl Fn(&str, &Bytes) -> Response<Body> + Send + Sync + 'static,
    ) -> (ServerTask, Arc<Mutex<Vec<RecordedCall>>>) {
        let recorded: Arc<Mutex<Vec<RecordedCall>>> = Arc::default();
        let all = recorded.clone();
        let answer = Arc::new(answer);
        let handler: Handler = Arc::new(move |request| {
            let (all, answer) = (all.clone(), answer.clone());
            Box::pin(async move {
                let recorded = record_call(request).await;
                if recorded.path.ends_with("/Version") {
                    return reply(frame(&[]), "0");
                }
                let answer = answer(&recorded.path, &recorded.body);
                all.lock().push(recorded);
                answer
            })
        });
        (serve(&self.options.runtime, handler), recorded)
    }

    pub(crate) async fn proxy(&self) -> Proxy {
        self.proxy_with(self.options.clone()).await.unwrap()
    }

    pub(crate) async fn proxy_with(&self, options: Options) -> Result<Proxy, RunError> {
        let context = Context::new();
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let running = koord_runtime_proxy::run(options, context.clone(), move || {
            let _ = ready.send(());
        });
        let running = tokio::spawn(running);
        match is_ready.await {
            Ok(()) => Ok(Proxy { context, running }),
            Err(_) => Err(running.await.unwrap().unwrap_err()),
        }
    }
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) context: Context,
    pub(crate) running: JoinHandle<Result<(), RunError>>,
}

impl Proxy {
    /// Checks that `/metrics` would have these samples of the proxy, without the prefix of their names.
    pub(crate) fn assert_metrics(&self, samples: &[&str]) {
        let text = koord_app::metrics::encode(&self.context.metrics).unwrap();
        for sample in samples {
            let line = format!("\nkoord_runtime_proxy_{sample}\n");
            assert!(text.contains(&line), "{sample}: {text}");
        }
    }
}
