//! Delegated authentication and authorization: queries the API server for the user of a token and for the
//! user's permissions. Servers without users of their own use it, like `kube-scheduler`.
//!
//! Results are cached for a limited time, refusals too; failed requests are not.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

/// Timeout of one review, retries included.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before the first retry; each later delay is 1.5 times the one before it.
const BACKOFF: Duration = Duration::from_millis(500);
const ATTEMPTS: u32 = 5;
/// Maximum number of cached results.
const MAX_ENTRIES: usize = 4096;
/// Reviews longer than this are not cached, in bytes: their size is under the caller's control.
const MAX_CACHED_LENGTH: usize = 10_000;

/// Name of unauthenticated users.
pub const ANONYMOUS: &str = "system:anonymous";
/// Group of unauthenticated users.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";

/// The user of a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct User {
    /// Name, for example `system:serviceaccount:monitoring:prometheus`.
    pub name: String,
    /// Unique ID; may be empty.
    pub uid: String,
    /// Names of the user's groups.
    pub groups: Vec<String>,
    /// Further attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns the user of a request without credentials.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            uid: String::new(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// Returns the authenticated user `name` in `groups`.
    #[must_use]
    pub fn authenticated(name: String, mut groups: Vec<String>) -> Self {
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self {
            name,
            uid: String::new(),
            groups,
            extra: BTreeMap::new(),
        }
    }

    fn from_info(info: UserInfo) -> Self {
        Self {
            uid: info.uid.unwrap_or_default(),
            extra: info.extra.unwrap_or_default(),
            ..Self::authenticated(
                info.username.unwrap_or_default(),
                info.groups.unwrap_or_default(),
            )
        }
    }
}

/// Reasons why a review failed.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The API server rejected the request, or could not be reached.
    #[error("{kind}: {source}")]
    Failed {
        /// Kind of the review.
        kind: &'static str,
        /// The error of the last request.
        source: Box<kube::Error>,
    },
    /// The timeout expired; the value is the kind of the review.
    #[error("{0}: no answer within {REVIEW_TIMEOUT:?}")]
    Slow(&'static str),
}

/// A bounded cache; each entry has an expiry time.
struct TtlCache<Q, A>(Mutex<HashMap<Q, (A, Instant)>>);

/// Prints no contents: keys may be secrets.
impl<Q, A> Debug for TtlCache<Q, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TtlCache")
    }
}

impl<Q: Hash + Eq, A: Clone> TtlCache<Q, A> {
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn get(&self, key: &Q) -> Option<A> {
        let entries = self.0.lock();
        let (answer, until) = entries.get(key)?;
        (*until > Instant::now()).then(|| answer.clone())
    }

    fn put(&self, key: Q, answer: A, life: Duration) {
        let now = Instant::now();
        let mut entries = self.0.lock();
        if entries.len() >= MAX_ENTRIES {
            entries.retain(|_, (_, until)| *until > now);
            if entries.len() >= MAX_ENTRIES {
                entries.clear();
            }
        }
        entries.insert(key, (answer, now + life));
    }
}

/// Authenticates callers by their bearer tokens.
#[derive(Debug)]
pub struct Authenticator {
    client: ReviewClient,
    life: Duration,
    cache: TtlCache<String, Option<User>>,
}

/// Decides whether users may access a resource.
#[derive(Debug)]
pub struct Authorizer {
    client: ReviewClient,
    allowed: Duration,
    refused: Duration,
    cache: TtlCache<(User, String, AccessTarget), Access>,
}

/// Path or resource that an authorization request is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AccessTarget {
    /// A URL path of the server.
    Path(String),
    /// A subresource of a node, such as `proxy`, which stands for paths of a kubelet.
    Node {
        /// Name of the node.
        name: String,
        /// Name of the subresource.
        subresource: &'static str,
    },
}

impl std::fmt::Display for AccessTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => write!(f, "path {path:?}"),
            Self::Node { name, subresource } => write!(f, "nodes/{subresource} of node {name:?}"),
        }
    }
}

/// The result of an authorization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Whether access is allowed.
    pub allowed: bool,
    /// Explanation by the authorizer; often empty.
    pub reason: String,
}

/// A client with a short debug output.
struct ReviewClient(kube::Client);

impl Debug for ReviewClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReviewClient")
    }
}

impl Authenticator {
    /// Creates an authenticator that uses `client` and caches results for `life`.
    #[must_use]
    pub fn new(client: kube::Client, life: Duration) -> Self {
        Self {
            client: ReviewClient(client),
            life,
            cache: TtlCache::new(),
        }
    }

    /// Returns the user of `token`; `None` if the token is not valid.
    ///
    /// # Errors
    /// Fails if the review fails.
    pub async fn authenticate(&self, token: &str) -> Result<Option<User>, ReviewError> {
        let key = token.to_owned();
        if let Some(cached) = self.cache.get(&key) {
            return Ok(cached);
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(key.clone()),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let answer = create_review(&self.client.0, "TokenReview", &review).await?;
        let user = answer
            .status
            .filter(|status| status.authenticated == Some(true))
            .map(|status| User::from_info(status.user.unwrap_or_default()));
        if key.len() < MAX_CACHED_LENGTH {
            self.cache.put(key, user.clone(), self.life);
        }
        Ok(user)
    }
}

impl Authorizer {
    /// Creates an authorizer that uses `client`. It caches permissions for `allowed`, and refusals for
    /// `refused`.
    #[must_use]
    pub fn new(client: kube::Client, allowed: Duration, refused: Duration) -> Self {
        Self {
            client: ReviewClient(client),
            allowed,
            refused,
            cache: TtlCache::new(),
        }
    }

    /// Decides whether `user` may do `verb` (`get`, `put` …) with `target`.
    ///
    /// # Errors
    /// Fails if the review fails.
    pub async fn authorize(
        &self,
        user: &User,
        verb: &str,
        target: &AccessTarget,
    ) -> Result<Access, ReviewError> {
        let key = (user.clone(), verb.to_owned(), target.clone());
        if let Some(cached) = self.cache.get(&key) {
            return Ok(cached);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                ..target.review(verb)
            },
            ..SubjectAccessReview::default()
        };
        let answer = create_review(&self.client.0, "SubjectAccessReview", &review).await?;
        let status = answer.status.unwrap_or_default();
        let access = Access {
            allowed: status.allowed && status.denied != Some(true),
            reason: status.reason.unwrap_or_default(),
        };
        if verb.len() + target.len() < MAX_CACHED_LENGTH {
            let life = if access.allowed {
                self.allowed
            } else {
                self.refused
            };
            self.cache.put(key, access.clone(), life);
        }
        Ok(access)
    }
}

impl AccessTarget {
    fn review(&self, verb: &str) -> SubjectAccessReviewSpec {
        let verb = Some(verb.to_owned());
        match self {
            Self::Path(path) => SubjectAccessReviewSpec {
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.clone()),
                    verb,
                }),
                ..SubjectAccessReviewSpec::default()
            },
            Self::Node { name, subresource } => SubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb,
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some((*subresource).to_owned()),
                    name: Some(name.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Path(path) => path.len(),
            Self::Node { name, .. } => name.len(),
        }
    }
}

async fn create_review<K>(
    client: &kube::Client,
    kind: &'static str,
    review: &K,
) -> Result<K, ReviewError>
where
    K: kube::Resource<DynamicType = ()> + Serialize + crate::Decode,
{
    let api: crate::Api<K> = crate::Api::all(client.clone());
    let attempts = async {
        let mut wait = BACKOFF;
        let mut attempts_left = ATTEMPTS;
        loop {
            attempts_left -= 1;
            match api.create(&PostParams::default(), review).await {
                Err(error) if attempts_left > 0 && is_retryable(&error) => {
                    tokio::time::sleep(wait).await;
                    wait = wait * 3 / 2;
                }
                answer => return answer,
            }
        }
    };
    match tokio::time::timeout(REVIEW_TIMEOUT, attempts).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(ReviewError::Failed {
            kind,
            source: Box::new(source),
        }),
        Err(_) => Err(ReviewError::Slow(kind)),
    }
}

/// Returns whether a retry may succeed.
fn is_retryable(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::in_process;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tower::{BoxError, service_fn};

    /// Returns an API server that accepts the token `good` and rejects all others; `GET /fine` is allowed to
    /// every user. If `is_overloaded`, it responds to every third request only.
    fn server(is_overloaded: bool) -> (kube::Client, Arc<AtomicU32>) {
        let calls = Arc::new(AtomicU32::new(0));
        let counter = calls.clone();
        let client = in_process(service_fn(move |request: Request<Body>| {
            let call = counter.fetch_add(1, Ordering::SeqCst);
            async move {
                if is_overloaded && call % 3 < 2 {
                    let status = json!({"kind": "Status", "code": 503, "message": "busy"});
                    let response = Response::builder().status(503);
                    return Ok::<_, BoxError>(
                        response.body(Body::from(status.to_string().into_bytes()))?,
                    );
                }
                let bytes = request.into_body().collect_bytes().await?;
                let mut review: Value = serde_json::from_slice(&bytes)?;
                let spec = &review["spec"];
                let status = match spec["token"].as_str() {
                    Some("good") => json!({"authenticated": true, "user": {
                        "username": "ann", "uid": "1", "groups": ["dev"],
                        "extra": {"team": ["a", "b"]}}}),
                    Some(_) => json!({"authenticated": false, "error": "unknown"}),
                    None => {
                        let attributes = &spec["nonResourceAttributes"];
                        let fine = attributes == &json!({"verb": "get", "path": "/fine"});
                        json!({"allowed": fine, "reason": if fine { "" } else { "no rule" }})
                    }
                };
                review["status"] = status;
                let response = Response::builder().status(201);
                Ok(response.body(Body::from(review.to_string().into_bytes()))?)
            }
        }));
        (client, calls)
    }

    #[tokio::test(start_paused = true)]
    async fn results_are_cached_for_their_ttl() {
        let (client, calls) = server(false);
        let life = Duration::from_secs(10);
        let authenticator = Authenticator::new(client.clone(), life);
        let ann = authenticator.authenticate("good").await.unwrap().unwrap();
        assert_eq!((ann.name.as_str(), ann.uid.as_str()), ("ann", "1"));
        assert_eq!(ann.groups, ["dev", AUTHENTICATED]);
        assert_eq!(ann.extra["team"], ["a", "b"]);
        assert_eq!(authenticator.authenticate("odd").await.unwrap(), None);
        let shown = format!("{authenticator:?}");
        assert!(!shown.contains("good") && !shown.contains("odd"), "{shown}");
        let authorizer = Authorizer::new(client, life, Duration::from_secs(1));
        let path = AccessTarget::Path("/fine".to_owned());
        let fine = authorizer.authorize(&ann, "get", &path).await.unwrap();
        assert!(fine.allowed);
        let refused = authorizer.authorize(&ann, "put", &path).await.unwrap();
        assert_eq!(
            (refused.allowed, refused.reason.as_str()),
            (false, "no rule")
        );
        assert_eq!(calls.load(Ordering::SeqCst), 4);
        for (after, expected) in [(500, 4), (1000, 5), (10_000, 9)] {
            tokio::time::sleep(Duration::from_millis(after)).await;
            authenticator.authenticate("good").await.unwrap();
            authenticator.authenticate("odd").await.unwrap();
            authorizer.authorize(&ann, "get", &path).await.unwrap();
            authorizer.authorize(&ann, "put", &path).await.unwrap();
            assert_eq!(calls.load(Ordering::SeqCst), expected, "{after} ms later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn review_is_retried_and_failure_is_not_cached() {
        let (client, calls) = server(true);
        let authenticator = Authenticator::new(client, Duration::from_secs(10));
        let user = authenticator.authenticate("good").await.unwrap();
        assert!(user.is_some());
        assert_eq!(calls.load(Ordering::SeqCst), 3);

        let dead = in_process(service_fn(|_: Request<Body>| async {
            Err::<Response<Body>, BoxError>("down".into())
        }));
        let authenticator = Authenticator::new(dead, Duration::from_secs(10));
        let error = authenticator.authenticate("good").await.unwrap_err();
        assert!(error.to_string().starts_with("TokenReview: "), "{error}");
        assert_eq!(authenticator.cache.get(&"good".to_owned()), None);
    }

    #[test]
    fn cache_is_bounded() {
        let memory: TtlCache<usize, ()> = TtlCache::new();
        for key in 0..3 * MAX_ENTRIES {
            memory.put(key, (), Duration::from_secs(60));
        }
        assert!(memory.0.lock().len() <= MAX_ENTRIES);
    }
}
