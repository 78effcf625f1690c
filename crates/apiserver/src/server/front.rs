//! What every request passes before it reaches the API: health, authentication, metrics; and what
//! ends the streams of its answer when the server stops.

use super::auth::{Peer, bearer, impersonated};
use super::health::{Health, with_type};
use super::metrics::{HttpMetrics, InFlight};
use crate::kinds::status::ApiError;
use crate::rest::{Tokens, User};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, Method, StatusCode};
use http_body::Body as _;
use http_body::Frame;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::ServiceExt as _;

/// How requests get here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// By a call in this process: the caller is the administrator, unless the request says that it
    /// is somebody else.
    InProcess,
    /// Over the network: who it is must be proven.
    Network,
}

/// The front of the server.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) api: Router,
    pub(super) health: Arc<Health>,
    pub(super) metrics: HttpMetrics,
    pub(super) tokens: Arc<dyn Tokens>,
    /// Ends all streams.
    pub(super) stop: CancellationToken,
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").finish_non_exhaustive()
    }
}

impl Front {
    /// The whole server as a service for requests that come by `access`.
    pub(super) fn router(&self, access: Access) -> Router {
        let front = Arc::new(self.clone());
        Router::new().fallback(move |request: Request| {
            let front = Arc::clone(&front);
            async move { front.answer(access, request).await }
        })
    }

    async fn answer(&self, access: Access, mut request: Request) -> Response {
        let path = request.uri().path();
        if let Some(answer) = self.health.answer(path, request.uri().query()) {
            return answer;
        }
        if access == Access::Network {
            let Some(user) = self.authenticate(&mut request) else {
                return unauthorized();
            };
            request.extensions_mut().insert(user);
        }
        match impersonated(request.headers()) {
            Ok(None) => {}
            Ok(Some(user)) => {
                request.extensions_mut().insert(user);
            }
            Err(why) => return refused(StatusCode::BAD_REQUEST, &ApiError::bad_request(why)),
        }
        if request.uri().path() == "/metrics" && request.method() == Method::GET {
            return self.metrics.render();
        }
        let labels = self.metrics.labels(request.method(), request.uri());
        let in_flight = self.metrics.begin(&labels);
        let began = Instant::now();
        let response = match self.api.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        self.metrics
            .end(&labels, response.status(), began.elapsed());
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let stop = self.stop.clone().cancelled_owned();
        response.map(|body| {
            Body::new(Stream {
                body,
                stop: Box::pin(stop),
                _in_flight: in_flight,
            })
        })
    }

    /// Who sends `request`; a wrong token is not outweighed by a good certificate.
    fn authenticate(&self, request: &mut Request) -> Option<User> {
        let peer = request.extensions_mut().remove::<Peer>();
        match bearer(request.headers()) {
            Some(token) => self.tokens.review(token),
            None => peer.map(|Peer(user)| user),
        }
    }
}

fn refused(status: StatusCode, error: &ApiError) -> Response {
    with_type(status, "application/json", error.to_value().to_string())
}

fn unauthorized() -> Response {
    let mut response = refused(StatusCode::UNAUTHORIZED, &ApiError::unauthorized());
    response
        .headers_mut()
        .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// The body of a watch or a followed log: ends when the server stops.
struct Stream {
    body: Body,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    _in_flight: InFlight,
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // What is ready goes out first.
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending => self.stop.as_mut().poll(context).map(|()| None),
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
