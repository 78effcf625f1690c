//! Authentication and authorization of requests to a daemon's port, delegated to the API server like in
//! kube-scheduler.

mod args;

pub use args::AuthArgs;

use crate::Client;
use crate::delegated_auth::{AccessTarget, Authenticator, Authorizer, User};
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Members of this group may do everything, without an authorization request.
const MASTERS: &str = "system:masters";
const SNIFF: HeaderName = HeaderName::from_static("x-content-type-options");

/// The user in a connection's verified client certificate, if there is one.
#[derive(Debug, Clone)]
pub struct ClientIdentity(Option<User>);

impl ClientIdentity {
    /// Returns the peer with the certificate (DER), if the client sent one.
    #[must_use]
    pub fn from_certificate(certificate: Option<&[u8]>) -> Self {
        let named = certificate.and_then(koord_app::certificate::subject);
        Self(named.map(|(name, groups)| User::authenticated(name, groups)))
    }
}

/// Settings of a [`Guard`].
#[derive(Debug, Clone, Default)]
pub struct GuardOptions {
    /// Paths that need no permission; a `*` at the end matches any suffix.
    pub always_allow_paths: Vec<String>,
    /// Time for which the user of a token is cached.
    pub token_ttl: Duration,
    /// Time for which a permission is cached.
    pub authorized_ttl: Duration,
    /// Time for which a refusal is cached.
    pub unauthorized_ttl: Duration,
}

/// The error of an invalid path in [`GuardOptions::always_allow_paths`].
#[derive(Debug, thiserror::Error)]
#[error("--authorization-always-allow-paths: {0:?}: only the last character may be *")]
pub struct OpenPathError(String);

/// Authenticates and authorizes requests before a router handles them.
#[derive(Debug)]
pub struct Guard {
    authenticator: Option<Authenticator>,
    authorizer: Option<Authorizer>,
    open: Vec<PathPattern>,
    /// The node whose subresources stand for paths, as in a kubelet.
    node: Option<String>,
}

/// A path pattern that needs no permission, without its first slash.
#[derive(Debug)]
enum PathPattern {
    Path(String),
    Prefix(String),
}

impl PathPattern {
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

    fn matches(&self, path: &str) -> bool {
        let path = path.strip_prefix('/').unwrap_or(path);
        match self {
            Self::Path(open) => path == open,
            Self::Prefix(open) => path.starts_with(open.as_str()),
        }
    }
}

impl Guard {
    /// Creates a guard that uses these clients. Without the first, tokens are ignored; without the second,
    /// only paths that need no permission are served.
    ///
    /// # Errors
    /// Fails for a path with a `*` that is not its last character.
    pub fn new(
        options: &GuardOptions,
        authentication: Option<Client>,
        authorization: Option<Client>,
    ) -> Result<Self, OpenPathError> {
        if authentication.is_none() {
            tracing::warn!(
                "ignoring tokens: neither --authentication-kubeconfig nor a pod's account"
            );
        }
        if authorization.is_none() {
            tracing::warn!(
                "refusing TLS requests outside --authorization-always-allow-paths: neither \
                 --authorization-kubeconfig nor a pod's account"
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
                .map(|path| PathPattern::parse(path))
                .collect::<Result<_, _>>()?,
            node: None,
        })
    }

    /// Authorizes paths as the kubelet of node `name` does: by permissions on subresources of the node.
    #[must_use]
    pub fn for_node(mut self, name: String) -> Self {
        self.node = Some(name);
        self
    }

    /// Returns what a request for `path` needs a permission for, one of which is enough, and the verb.
    fn access_targets(&self, method: &str, path: &str) -> (Vec<AccessTarget>, String) {
        let verb = method.to_ascii_lowercase();
        let Some(name) = &self.node else {
            return (vec![AccessTarget::Path(path.to_owned())], verb);
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
        // For a long time these few had no permission of their own, so the general one includes them.
        let fine = matches!(special, Some("healthz" | "pods" | "configz"));
        let general = (special.is_none() || fine).then_some("proxy");
        let targets = special.into_iter().chain(general);
        let targets = targets.map(|subresource| AccessTarget::Node {
            name: name.clone(),
            subresource,
        });
        (targets.collect(), verb.to_owned())
    }

    /// Wraps `routes` so that only authorized requests reach them. Each request must have its connection's
    /// [`ClientIdentity`] in its extensions.
    pub fn protect(self, routes: Router) -> Router {
        // The fallback is protected too, so that unauthorized clients cannot find out which paths exist.
        let routes = routes.fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found") });
        routes.layer(from_fn_with_state(Arc::new(self), check))
    }

    /// Authenticates a request; `Err` if its credentials are not valid.
    async fn authenticate(&self, peer: ClientIdentity, headers: &HeaderMap) -> Result<User, ()> {
        if let Some(user) = peer.0 {
            return Ok(user);
        }
        let (Some(authenticator), Some(token)) = (&self.authenticator, bearer(headers)) else {
            return Ok(User::anonymous());
        };
        match authenticator.authenticate(token).await {
            Ok(user) => user.ok_or(()),
            Err(error) => {
                tracing::warn!(%error, "failed to authenticate a request");
                Err(())
            }
        }
    }

    /// Checks that `user` may send the request; returns the error response otherwise.
    async fn authorize(&self, user: &User, method: &str, path: &str) -> Result<(), Response> {
        let open = self.open.iter().any(|open| open.matches(path));
        if open || user.groups.iter().any(|group| group == MASTERS) {
            return Ok(());
        }
        let (targets, verb) = self.access_targets(method, path);
        let mut reason = String::new();
        if let Some(authorizer) = &self.authorizer {
            for target in &targets {
                match authorizer.authorize(user, &verb, target).await {
                    Ok(access) if access.allowed => return Ok(()),
                    Ok(access) => reason = access.reason,
                    Err(error) => {
                        tracing::warn!(%error, user = user.name, verb, path, "failed to authorize a request");
                        let text = format!("Internal Server Error: {path:?}: {error}");
                        return Err((StatusCode::INTERNAL_SERVER_ERROR, text).into_response());
                    }
                }
            }
        }
        let target = targets
            .last()
            .map(AccessTarget::to_string)
            .unwrap_or_default();
        let mut message = format!("forbidden: User {:?} cannot {verb} {target}", user.name);
        if !reason.is_empty() {
            message.push_str(": ");
            message.push_str(&reason);
        }
        tracing::debug!(user = user.name, verb, path, "denied a request");
        Err(status(StatusCode::FORBIDDEN, "Forbidden", &message))
    }
}

async fn check(
    State(guard): State<Arc<Guard>>,
    Extension(peer): Extension<ClientIdentity>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(user) = guard.authenticate(peer, request.headers()).await else {
        return status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized");
    };
    let Some(path) = decoded(request.uri().path()) else {
        return (StatusCode::BAD_REQUEST, "400 Bad Request: malformed path").into_response();
    };
    let method = request.method().clone();
    match guard.authorize(&user, method.as_str(), &path).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal,
    }
}

/// Decodes the percent-encoding of a path like the handlers do, so that they handle the path that was
/// authorized.
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

/// Returns the bearer token of a request; `None` if there is none or it is empty.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns a refusal in the format of Kubernetes.
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
