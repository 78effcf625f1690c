//! A fake API server for this crate's own tests.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::Value;
use std::sync::{Arc, LazyLock};
use tower::BoxError;

/// A request with its whole body.
pub(crate) type BufferedRequest = Request<Bytes>;

/// Returns a service that responds to each request with the result of `respond`.
pub(crate) fn answer<F>(respond: F) -> FakeService
where
    F: Fn(&BufferedRequest) -> (StatusCode, Value) + Send + Sync + 'static,
{
    FakeService {
        respond: Arc::new(respond),
    }
}

type Respond = dyn Fn(&BufferedRequest) -> (StatusCode, Value) + Send + Sync;

#[derive(Clone)]
pub(crate) struct FakeService {
    respond: Arc<Respond>,
}

impl tower::Service<Request<Body>> for FakeService {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let respond = self.respond.clone();
        async move {
            let (head, body) = request.into_parts();
            let bytes = body.collect_bytes().await?;
            let (code, value) = respond(&Request::from_parts(head, bytes));
            let bytes = serde_json::to_vec(&value)?;
            Ok(Response::builder().status(code).body(Body::from(bytes))?)
        }
        .boxed()
    }
}

/// The log of this thread, in the format of production.
#[derive(Clone, Default)]
pub(crate) struct LogLines(Arc<parking_lot::Mutex<Vec<u8>>>);

impl LogLines {
    /// Captures log lines until the guard is dropped.
    pub(crate) fn capture() -> (Self, tracing::subscriber::DefaultGuard) {
        // As long as there is only one dispatcher, a log line that a thread without one reaches first is
        // disabled for all threads.
        static SECOND: LazyLock<tracing::Dispatch> =
            LazyLock::new(|| tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default()));
        LazyLock::force(&SECOND);
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(koord_app::logging::filter(2))
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the lines so far, oldest first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        text.lines().map(str::to_owned).collect()
    }
}

impl std::io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
