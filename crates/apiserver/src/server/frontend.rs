//! Steps of every request before the API: health, authentication, limits, metrics; and the end of response
//! streams when the server stops.

use super::auth::{Peer, bearer};
use super::connections::OpenConnection;
use super::health::{Health, with_type};
use super::impersonate::ImpersonationHeaders;
use super::limits::Gate;
use super::metrics::{HttpMetrics, InFlight};
use super::sending::{Admission, Clients};
use crate::authz::{ANONYMOUS, User};
use crate::rest::{Api, Authorization, guard, protobuf};
use crate::store::SendQueue;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::Body as _;
use http_body::Frame;
use koord_kinds::status::ApiError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Transport by which a request reaches the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// A call in this process: the user is the administrator, unless the request has a token or another
    /// user in its extensions.
    InProcess,
    /// A network connection: the user must be authenticated.
    Network,
}

/// HTTP frontend of the server.
#[derive(Clone)]
pub(super) struct HttpFrontend {
    pub(super) api: Api,
    pub(super) health: Arc<Health>,
    pub(super) metrics: HttpMetrics,
    /// Limits the requests in progress.
    pub(super) gate: Gate,
    /// Limits open requests and unread data per user.
    pub(super) clients: Clients,
    /// Ends all streams when it is cancelled.
    pub(super) stop: CancellationToken,
}

impl std::fmt::Debug for HttpFrontend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpFrontend").finish_non_exhaustive()
    }
}

impl HttpFrontend {
    /// Returns the whole server as a service for requests that arrive by `access`.
    pub(super) fn router(&self, access: Access) -> Router {
        let frontend = Arc::new(self.clone());
        Router::new().fallback(move |request: Request| {
            let frontend = Arc::clone(&frontend);
            async move {
                let rewrite = protobuf::is_only_accepted(request.headers());
                let mut admission = None;
                let mut response = frontend.handle(access, request, &mut admission).await;
                if rewrite {
                    response = protobuf::rewrite(response).await;
                }
                match admission {
                    Some(admission) => response.map(|body| admission.meter(body)),
                    None => response,
                }
            }
        })
    }

    /// Serves a request. `admission` is set to what the response's body is charged to.
    async fn handle(
        &self,
        access: Access,
        mut request: Request,
        admission: &mut Option<Admission>,
    ) -> Response {
        let connection = request.extensions_mut().remove::<OpenConnection>();
        let queue = request.extensions_mut().remove::<Arc<SendQueue>>();
        let path = request.uri().path();
        if let Some(answer) = self.health.response(path, request.uri().query()) {
            return answer;
        }
        let Some(user) = self.authenticate(access, &mut request) else {
            return unauthorized();
        };
        if let Some(connection) = connection
            && user.name != ANONYMOUS
        {
            connection.record_user(&user);
        }
        let user = match self.effective_user(user, request.headers()) {
            Ok(user) => user,
            Err(error) => return refused(&error),
        };
        if request.uri().path() == "/metrics" && request.method() == Method::GET {
            return match guard::check_path(self.api.guard(), &user, request.method(), "/metrics") {
                Ok(()) => self.metrics.render(),
                Err(error) => refused(&error),
            };
        }
        let labels = self.metrics.labels(request.method(), request.uri());
        let place = match self.gate.enter(&labels, &user) {
            Ok(place) => place,
            Err(response) => {
                self.metrics.end(&labels, response.status(), Duration::ZERO);
                return *response;
            }
        };
        let long = labels.long_running();
        match self.clients.admit(&user, queue.as_ref(), long) {
            Ok(admitted) => *admission = admitted,
            Err(error) => {
                let response = refused(&error);
                self.metrics.end(&labels, response.status(), Duration::ZERO);
                return response;
            }
        }
        if let Some(admission) = admission {
            let queues = admission.queues().clone();
            request.extensions_mut().insert(queues);
        }
        request.extensions_mut().insert(user);
        let in_flight = self.metrics.begin(&labels);
        let began = Instant::now();
        let response = self.api.serve(request).await;
        self.metrics
            .end(&labels, response.status(), began.elapsed());
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let stop = self.stop.clone().cancelled_owned();
        response.map(|body| {
            Body::new(StoppableBody {
                body,
                stop: Box::pin(stop),
                _in_flight: in_flight,
                _place: place,
            })
        })
    }

    /// Returns the effective user: the impersonated one if `user` may impersonate it.
    fn effective_user(&self, user: User, headers: &HeaderMap) -> Result<User, ApiError> {
        let Some(wanted) = ImpersonationHeaders::read(headers)? else {
            return Ok(user);
        };
        wanted.check(&self.api, &user)?;
        Ok(wanted.into_user())
    }

    /// Authenticates the sender of `request`. A wrong token fails even with a valid certificate. `None` if
    /// the sender cannot be authenticated and anonymous requests are not allowed.
    fn authenticate(&self, access: Access, request: &mut Request) -> Option<User> {
        let peer = request.extensions_mut().remove::<Peer>();
        let named = request.extensions_mut().remove::<User>();
        if let Some(token) = bearer(request.headers()) {
            let reviewed = self.api.tokens().review(token, &[]);
            return match reviewed {
                Ok((user, _)) => Some(user),
                Err(why) => {
                    tracing::debug!(why, "rejected bearer token");
                    None
                }
            };
        }
        if access == Access::InProcess {
            return Some(named.unwrap_or_default());
        }
        let anonymous = || {
            // In the mode that allows everything to every user, anonymous requests are refused.
            (self.api.guard().authorization() == Authorization::Rbac).then(User::anonymous)
        };
        peer.map(|Peer(user)| user).or_else(anonymous)
    }
}

fn refused(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_type(status, "application/json", error.to_value().to_string());
    if let Some(seconds) = error.retry_after_seconds() {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn unauthorized() -> Response {
    let mut response = refused(&ApiError::unauthorized());
    response
        .headers_mut()
        .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Body of a watch or followed log, which ends when the server stops.
struct StoppableBody {
    body: Body,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    _in_flight: InFlight,
    _place: Option<OwnedSemaphorePermit>,
}

impl http_body::Body for StoppableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // Data that is ready is sent first.
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending => self.stop.as_mut().poll(context).map(|()| None),
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
