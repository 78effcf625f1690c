//! Serves `AdmissionReview` over HTTP, like controller-runtime.

use super::{Kind, Operation, Page, Request, Resource, User, Verdict, Webhook};
use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Maximum size of a request body, in bytes.
const MAX_BODY_BYTES: usize = 7 << 20;
/// Maximum size of all request bodies that are read at the same time, in KiB.
const MAX_TOTAL_KIB: usize = 256 << 10;
/// Timeout for a request body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a handler if the caller does not set one: the default of API servers.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum timeout of a handler: that of API servers.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

const V1: &str = "admission.k8s.io/v1";
const V1BETA1: &str = "admission.k8s.io/v1beta1";

struct ServedWebhook {
    webhook: Webhook,
    body_budget: Arc<Semaphore>,
}

/// Returns the routes of the webhooks and pages, and `/healthz`.
pub fn routes(webhooks: Vec<Webhook>, pages: &[Page]) -> Router {
    let body_budget = Arc::new(Semaphore::new(MAX_TOTAL_KIB));
    let mut routes = Router::new().route("/healthz", get(|| async { "ok" }));
    for page in pages {
        let content = page.content.clone();
        let show = move || async move { ([(CONTENT_TYPE, "application/json")], content()) };
        routes = routes.route(page.path, get(show));
    }
    for webhook in webhooks {
        let path = webhook.path;
        let served = Arc::new(ServedWebhook {
            webhook,
            body_budget: body_budget.clone(),
        });
        routes = routes.route(path, post(handle_review).with_state(served));
    }
    routes
}

/// A request that is not a valid review; the response denies it.
struct BadReview {
    code: u16,
    message: String,
    version: &'static str,
    uid: String,
}

impl BadReview {
    fn new(code: u16, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            version: V1,
            uid: String::new(),
        }
    }
}

/// Handles an AdmissionReview request.
async fn handle_review(
    State(served): State<Arc<ServedWebhook>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let webhook = &served.webhook;
    let review = match read(&served.body_budget, &headers, body).await {
        Ok(bytes) => parse(&bytes),
        Err(bad) => Err(bad),
    };
    let (version, uid, request) = match review {
        Ok(review) => review,
        Err(bad) => {
            tracing::warn!(
                path = webhook.path,
                code = bad.code,
                bad.message,
                "received an invalid AdmissionReview"
            );
            let verdict = Verdict {
                code: bad.code,
                message: bad.message,
                ..Verdict::default()
            };
            return respond(bad.version, &bad.uid, verdict);
        }
    };
    match webhook.review(request, limit(query.as_deref())).await {
        Ok(verdict) => respond(version, &uid, verdict),
        // Not a refusal: the failure policy applies.
        Err(failure) => {
            tracing::error!(%failure, "webhook failed");
            (StatusCode::INTERNAL_SERVER_ERROR, failure.to_string()).into_response()
        }
    }
}

/// Returns the timeout in the query, which API servers set.
fn limit(query: Option<&str>) -> Duration {
    let pairs = query.unwrap_or_default().split('&');
    let timeout = pairs
        .filter_map(|pair| pair.strip_prefix("timeout="))
        .next();
    let seconds = timeout.and_then(|text| text.strip_suffix('s')?.parse().ok());
    let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    limit.unwrap_or(DEFAULT_TIMEOUT).min(MAX_TIMEOUT)
}

/// Reads the body of a review within the size limit and the memory budget.
async fn read(
    body_budget: &Semaphore,
    headers: &HeaderMap,
    body: Body,
) -> Result<bytes::Bytes, BadReview> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let kind = text(CONTENT_TYPE).unwrap_or_default();
    let media = kind.split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case("application/json") {
        let message = format!("contentType={kind}, expected application/json");
        return Err(BadReview::new(400, message));
    }
    let declared = text(CONTENT_LENGTH).and_then(|length| length.parse().ok());
    let declared: usize = declared.unwrap_or(MAX_BODY_BYTES);
    let too_large = || {
        BadReview::new(
            413,
            format!("request body: more than {MAX_BODY_BYTES} bytes"),
        )
    };
    if declared > MAX_BODY_BYTES {
        return Err(too_large());
    }
    let reading = async {
        let kib = u32::try_from(declared.div_ceil(1024)).unwrap_or(u32::MAX);
        let _room = body_budget.acquire_many(kib).await;
        axum::body::to_bytes(body, MAX_BODY_BYTES).await
    };
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(Ok(bytes)) if bytes.is_empty() => Err(BadReview::new(400, "request body is empty")),
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(BadReview::new(
            408,
            format!("request body: not received within {BODY_TIMEOUT:?}"),
        )),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireRequest {
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    resource: Resource,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    operation: Operation,
    #[serde(default)]
    user_info: UserInfo,
    #[serde(default)]
    object: Option<Value>,
    #[serde(default)]
    old_object: Option<Value>,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: String,
    uid: String,
    groups: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

/// Parses a review; returns version, uid and request.
fn parse(bytes: &[u8]) -> Result<(&'static str, String, Request), BadReview> {
    let bad = |message: String| BadReview::new(400, message);
    let mut review: Value = serde_json::from_slice(bytes)
        .map_err(|error| bad(format!("AdmissionReview: not JSON: {error}")))?;
    let text = |key: &str| review.get(key).and_then(Value::as_str).unwrap_or_default();
    let version = match text("apiVersion") {
        V1 | "" => V1,
        V1BETA1 => V1BETA1,
        other => {
            let message = format!("apiVersion: {other:?}: expected {V1} or {V1BETA1}");
            return Err(bad(message));
        }
    };
    if !matches!(text("kind"), "AdmissionReview" | "") {
        let message = format!("kind: {:?}: expected AdmissionReview", text("kind"));
        return Err(bad(message));
    }
    let request = review.get_mut("request").map(Value::take);
    let request = request.filter(Value::is_object).unwrap_or_default();
    let uid = request.get("uid").and_then(Value::as_str);
    let uid = uid.unwrap_or_default().to_owned();
    let wrong = |message: String| BadReview {
        version,
        uid: uid.clone(),
        ..bad(message)
    };
    if uid.is_empty() {
        return Err(wrong("request.uid: missing".to_owned()));
    }
    let wire =
        WireRequest::deserialize(request).map_err(|error| wrong(format!("request: {error}")))?;
    for (name, object) in [("object", &wire.object), ("oldObject", &wire.old_object)] {
        if let Some(other) = object.as_ref().filter(|object| !object.is_object()) {
            return Err(wrong(format!(
                "request.{name}: {other}: expected an object"
            )));
        }
    }
    let UserInfo {
        username,
        uid: user_uid,
        groups,
        extra,
    } = wire.user_info;
    let request = Request {
        uid: uid.clone(),
        kind: wire.kind,
        resource: wire.resource,
        sub_resource: wire.sub_resource,
        name: wire.name,
        namespace: wire.namespace,
        operation: wire.operation,
        user: User {
            name: username,
            uid: user_uid,
            groups: groups.unwrap_or_default(),
            extra: extra.unwrap_or_default(),
        },
        object: wire.object,
        old_object: wire.old_object,
        dry_run: wire.dry_run.unwrap_or_default(),
    };
    Ok((version, uid, request))
}

/// Returns the HTTP response with an AdmissionReview of API version `version` that holds `verdict`.
fn respond(version: &str, uid: &str, verdict: Verdict) -> Response {
    let mut response = json!({ "uid": uid, "allowed": verdict.allowed });
    if !verdict.allowed {
        response["status"] = json!({ "code": verdict.code, "message": verdict.message });
        if !verdict.reason.is_empty() {
            response["status"]["reason"] = verdict.reason.into();
        }
    }
    if !verdict.patch.is_empty() {
        let patch = Value::Array(verdict.patch).to_string();
        response["patch"] = STANDARD.encode(patch).into();
        response["patchType"] = "JSONPatch".into();
    }
    if !verdict.warnings.is_empty() {
        response["warnings"] = verdict.warnings.into();
    }
    let review = json!({
        "apiVersion": version, "kind": "AdmissionReview", "response": response,
    });
    ([(CONTENT_TYPE, "application/json")], review.to_string()).into_response()
}
