//! A canned API server for this crate's own tests.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::Value;
use std::sync::Arc;
use tower::BoxError;

/// A whole request, body included.
pub(crate) type Seen = Request<Bytes>;

/// A service that answers each request with what `respond` says.
pub(crate) fn answer<F>(respond: F) -> Canned
where
    F: Fn(&Seen) -> (StatusCode, Value) + Send + Sync + 'static,
{
    Canned {
        respond: Arc::new(respond),
    }
}

type Respond = dyn Fn(&Seen) -> (StatusCode, Value) + Send + Sync;

#[derive(Clone)]
pub(crate) struct Canned {
    respond: Arc<Respond>,
}

impl tower::Service<Request<Body>> for Canned {
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
