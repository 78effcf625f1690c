//! Who asks a daemon's port, and whether he may: as kube-scheduler answers, by asking the API
//! server.

mod args;

pub use args::AuthArgs;

use crate::Client;
use crate::delegate::{Authenticator, Authorizer, Subject, User};
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Members may do everything, and nobody is asked about that.
const MASTERS: &str = "system:masters";
const SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");

/// The user that a connection's verified certificate stands for.
#[derive(Debug, Clone)]
pub struct Peer(Option<User>);

impl Peer {
    /// Of a certificate (DER), if the client showed one.
    #[must_use]
    pub fn of(certificate: Option<&[u8]>) -> Self {
        let named = certificate.and_then(koord_app::certificate::subject);
        Self(named.map(|(name, groups)| User::known(name, groups)))
    }
}

/// Whom to ask, and what needs no asking.
#[derive(Debug, Clone, Default)]
pub struct GuardOptions {
    /// Paths that need no permission; a `*` at the end stands for every continuation.
    pub always_allow_paths: Vec<String>,
    /// How long it is remembered whose a token is.
    pub token_ttl: Duration,
    /// How long a permission is remembered.
    pub authorized_ttl: Duration,
    /// How long a refusal is remembered.
    pub unauthorized_ttl: Duration,
}

/// A path of [`GuardOptions::always_allow_paths`] that is none.
#[derive(Debug, thiserror::Error)]
#[error("--authorization-always-allow-paths: {0:?}: only the last character may be *")]
pub struct OpenPathError(String);

/// See the module documentation.
#[derive(Debug)]
pub struct Guard {
    authenticator: Option<Authenticator>,
    authorizer: Option<Authorizer>,
    open: Vec<Open>,
    /// The node whose subresources stand for paths, as a kubelet judges them.
    node: Option<String>,
}

/// Paths that need no permission, without their first slash.
#[derive(Debug)]
enum Open {
    Path(String),
    Prefix(String),
}

impl Open {
    fn parse(text: &str) -> Result<Self, OpenPathError> {
        let path = text.strip_prefix('/').unwrap_or(text);
        let (head, prefix) = match path.strip_suffix('*') {
            Some(head) => (head, true),
            None => (path, false),
        };
        if head.contains('*') {
            return Err(OpenPathError(text.to_owned()));
        }
        let head = head.to_owned();
        Ok(if prefix {
            Self::Prefix(head)
        } else {
            Self::Path(head)
        })
    }

    fn covers(&self, path: &str) -> bool {
        let path = path.strip_prefix('/').unwrap_or(path);
        match self {
            Self::Path(open) => path == open,
            Self::Prefix(open) => path.starts_with(open.as_str()),
        }
    }
}

impl Guard {
    /// A guard that asks through these clients. Without the first, tokens count for nothing;
    /// without the second, only what needs no permission is shown.
    ///
    /// # Errors
    /// A path with a `*` that is not its last character.
    pub fn new(
        options: &GuardOptions,
        authentication: Option<Client>,
        authorization: Option<Client>,
    ) -> Result<Self, OpenPathError> {
        if authentication.is_none() {
            tracing::warn!(
                "neither --authentication-kubeconfig nor a pod's account: tokens count for nothing"
            );
        }
        if authorization.is_none() {
            tracing::warn!(
                "neither --authorization-kubeconfig nor a pod's account: the TLS server shows \
                 --authorization-always-allow-paths only"
            );
        }
        let open = options.always_allow_paths.iter();
        let open = open.filter(|path| !path.is_empty());
        Ok(Self {
            authenticator: authentication
                .map(|client| Authenticator::new(client, options.token_ttl)),
            authorizer: authorization.map(|client| {
                Authorizer::new(client, options.authorized_ttl, options.unauthorized_ttl)
            }),
            open: open
                .map(|path| Open::parse(path))
                .collect::<Result<_, _>>()?,
            node: None,
        })
    }

    /// Judges paths as the kubelet of node `name` does: by permissions on the node's subresources.
    #[must_use]
    pub fn of_node(mut self, name: String) -> Self {
        self.node = Some(name);
        self
    }

    /// What a caller of `path` may use, one of which is enough, and the verb for it.
    fn subjects(&self, method: &str, path: &str) -> (Vec<Subject>, String) {
        let verb = method.to_ascii_lowercase();
        let Some(name) = &self.node else {
            return (vec![Subject::Path(path.to_owned())], verb);
        };
        let verb = match verb.as_str() {
            "head" => "get",
            "post" => "create",
            "put" => "update",
            verb => verb,
        };
        let first = path.trim_start_matches('/').split('/').next();
        let special = match first.unwrap_or_default() {
            "stats" => Some("stats"),
            "metrics" => Some("metrics"),
            "logs" => Some("log"),
            "checkpoint" => Some("checkpoint"),
            "healthz" => Some("healthz"),
            "pods" | "runningpods" => Some("pods"),
            "configz" => Some("configz"),
            _ => None,
        };
        // These few had no permission of their own for long, so the general one includes them.
        let fine = matches!(special, Some("healthz" | "pods" | "configz"));
        let general = (special.is_none() || fine).then_some("proxy");
        let subjects = special.into_iter().chain(general);
        let subjects = subjects.map(|subresource| Subject::Node {
            name: name.clone(),
            subresource,
        });
        (subjects.collect(), verb.to_owned())
    }

    /// `routes`, for those who may. Each request must carry its connection's [`Peer`] in its
    /// extensions.
    pub fn protect(self, routes: Router) -> Router {
        // As a fallback too, so that strangers do not learn which paths exist.
        let routes = routes.fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found") });
        routes.layer(from_fn_with_state(Arc::new(self), check))
    }

    /// `Err`: the credentials are worth nothing.
    async fn who(&self, peer: Peer, headers: &HeaderMap) -> Result<User, ()> {
        if let Some(user) = peer.0 {
            return Ok(user);
        }
        let (Some(authenticator), Some(token)) = (&self.authenticator, bearer(headers)) else {
            return Ok(User::anonymous());
        };
        match authenticator.of_token(token).await {
            Ok(user) => user.ok_or(()),
            Err(error) => {
                tracing::warn!(%error, "a caller could not be told");
                Err(())
            }
        }
    }

    async fn admit(&self, user: &User, method: &str, path: &str) -> Result<(), Response> {
        let open = self.open.iter().any(|open| open.covers(path));
        if open || user.groups.iter().any(|group| group == MASTERS) {
            return Ok(());
        }
        let (subjects, verb) = self.subjects(method, path);
        let mut reason = String::new();
        if let Some(authorizer) = &self.authorizer {
            for subject in &subjects {
                match authorizer.may(user, &verb, subject).await {
                    Ok(access) if access.allowed => return Ok(()),
                    Ok(access) => reason = access.reason,
                    Err(error) => {
                        tracing::warn!(%error, user = user.name, verb, path, "not decided");
                        let text = format!("Internal Server Error: {path:?}: {error}");
                        return Err((StatusCode::INTERNAL_SERVER_ERROR, text).into_response());
                    }
                }
            }
        }
        let subject = subjects.last().map(Subject::to_string).unwrap_or_default();
        let mut message = format!("forbidden: User {:?} cannot {verb} {subject}", user.name);
        if !reason.is_empty() {
            message.push_str(": ");
            message.push_str(&reason);
        }
        tracing::debug!(user = user.name, verb, path, "forbidden");
        Err(status(StatusCode::FORBIDDEN, "Forbidden", &message))
    }
}

async fn check(
    State(guard): State<Arc<Guard>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(user) = guard.who(peer, request.headers()).await else {
        return status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized");
    };
    let Some(path) = decoded(request.uri().path()) else {
        return (StatusCode::BAD_REQUEST, "400 Bad Request: malformed path").into_response();
    };
    let method = request.method().clone();
    match guard.admit(&user, method.as_str(), &path).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal,
    }
}

/// A path without percent-encoding: as handlers read it, so that what is judged is what is shown.
fn decoded(path: &str) -> Option<String> {
    let mut bytes = path.bytes();
    let mut plain = Vec::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let value = digit()? * 16 + digit()?;
        plain.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(plain).ok()
}

/// The bearer token of a request. An empty one is none.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// A refusal as Kubernetes words it.
fn status(code: StatusCode, reason: &str, message: &str) -> Response {
    let mut body: Value = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code.as_u16(),
    });
    if code == StatusCode::FORBIDDEN {
        body["details"] = json!({});
    }
    let headers = [(CONTENT_TYPE, "application/json"), (SNIFF, "nosniff")];
    (code, headers, body.to_string()).into_response()
}
