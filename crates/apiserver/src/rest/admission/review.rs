//! `AdmissionReview` of `admission.k8s.io`: requests to webhooks and their responses.

use super::Operation;
use crate::rest::{User, meta};
use futures::future::BoxFuture;
use koord_kinds::status::{ApiError, Cause, Details};
use koord_kinds::webhook::ReviewVersion;
use koord_kinds::{GroupVersionKind, Resource};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// A webhook in this process. It is registered under the address of a stored webhook
/// ([`crate::rest::Api::register_webhook`]) and then called instead of that address: with the same rules and
/// policies, but without a socket.
///
/// Any function of the right type is one.
pub trait InProcessWebhook: Send + Sync {
    /// Answers a review.
    ///
    /// # Errors
    /// The reason why the webhook could not decide. The failure policy applies, as if it could not be reached.
    fn review<'a>(
        &'a self,
        request: &'a WebhookRequest<'a>,
    ) -> BoxFuture<'a, Result<WebhookResponse, String>>;
}

impl<F> InProcessWebhook for F
where
    F: Fn(&WebhookRequest<'_>) -> Result<WebhookResponse, String> + Send + Sync,
{
    fn review<'a>(
        &'a self,
        request: &'a WebhookRequest<'a>,
    ) -> BoxFuture<'a, Result<WebhookResponse, String>> {
        Box::pin(async move { self(request) })
    }
}

/// Group, version and kind in a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WebhookKind {
    /// API group, `""` for core.
    pub group: std::sync::Arc<str>,
    /// API version.
    pub version: std::sync::Arc<str>,
    /// Kind.
    pub kind: std::sync::Arc<str>,
}

/// Group, version and plural in a review.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WebhookResource {
    /// API group, `""` for core.
    pub group: std::sync::Arc<str>,
    /// API version.
    pub version: std::sync::Arc<str>,
    /// Plural.
    pub resource: std::sync::Arc<str>,
}

impl From<GroupVersionKind> for WebhookKind {
    fn from(gvk: GroupVersionKind) -> Self {
        let GroupVersionKind {
            group,
            version,
            kind,
        } = gvk;
        Self {
            group,
            version,
            kind,
        }
    }
}

impl From<&Resource> for WebhookResource {
    fn from(resource: &Resource) -> Self {
        Self {
            group: resource.group.clone(),
            version: resource.version.clone(),
            resource: resource.plural.clone(),
        }
    }
}

/// The `request` of a review.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookRequest<'a> {
    /// Id of this call; a response over the network must repeat it.
    pub uid: String,
    /// Kind of the object in the version sent to the webhook.
    pub kind: WebhookKind,
    /// Resource in the version sent to the webhook.
    pub resource: WebhookResource,
    /// Subresource; `""` for the object itself.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub sub_resource: &'a str,
    /// Kind of the object in the original request.
    pub request_kind: WebhookKind,
    /// Resource of the original request.
    pub request_resource: WebhookResource,
    /// Subresource of the original request.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub request_sub_resource: &'a str,
    /// Name; `""` while it is not generated yet.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'a str,
    /// Namespace; `""` for cluster-scoped objects.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub namespace: &'a str,
    /// Operation of the write.
    #[serde(serialize_with = "operation")]
    pub operation: Operation,
    /// User of the write.
    #[serde(serialize_with = "user_info")]
    pub user_info: &'a User,
    /// The new object or the posted body; `None` for a deletion.
    pub object: Option<&'a Value>,
    /// The stored object; `None` for a creation.
    pub old_object: Option<&'a Value>,
    /// True if nothing is stored.
    pub dry_run: bool,
    /// Options of the write, such as `CreateOptions`.
    pub options: &'a Value,
}

fn operation<S: Serializer>(operation: &Operation, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(operation.as_str())
}

fn user_info<S: Serializer>(user: &User, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct UserInfo<'a> {
        username: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        uid: &'a str,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        groups: &'a [String],
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        extra: BTreeMap<&'a str, &'a [String]>,
    }
    let extra = user.extra.iter();
    let info = UserInfo {
        username: &user.name,
        uid: &user.uid,
        groups: &user.groups,
        extra: extra.map(|(k, v)| (k.as_str(), v.as_slice())).collect(),
    };
    info.serialize(serializer)
}

/// The `response` of a review.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WebhookResponse {
    /// True if the write may continue.
    pub allowed: bool,
    /// A `v1 Status` with the reason of a refusal; `Null` for no explanation.
    pub status: Value,
    /// An RFC 6902 patch of the object; `Null` for none.
    pub patch: Value,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// Annotations for the audit log.
    pub audit_annotations: BTreeMap<String, String>,
}

impl WebhookResponse {
    /// Returns a response that allows the write.
    #[must_use]
    pub fn allow() -> Self {
        Self {
            allowed: true,
            ..Self::default()
        }
    }

    /// Returns a response that allows the write and changes the object by an RFC 6902 patch.
    #[must_use]
    pub fn patch(operations: Value) -> Self {
        Self {
            patch: operations,
            ..Self::allow()
        }
    }

    /// Returns a response that refuses the write with an HTTP status code.
    #[must_use]
    pub fn deny(code: u16, message: &str) -> Self {
        Self {
            status: serde_json::json!({ "code": code, "message": message }),
            ..Self::default()
        }
    }

    /// Returns true if the response has changes of the object.
    pub(super) fn patches(&self) -> bool {
        match &self.patch {
            Value::Null => false,
            Value::Array(operations) => !operations.is_empty(),
            _ => true,
        }
    }

    /// Returns the API error for a refusal by webhook `name`.
    pub(super) fn refusal(&self, name: &str) -> ApiError {
        let status = &self.status;
        let number = |at: &Value, key: &str| at.get(key).and_then(Value::as_u64);
        let code = number(status, "code")
            .and_then(|c| u16::try_from(c).ok())
            .filter(|c| (400..600).contains(c))
            .unwrap_or(400);
        let denied = format!("admission webhook {name:?} denied the request");
        let reason = meta::text(status, &["reason"]);
        let message = match (meta::text(status, &["message"]), reason) {
            ("", "") => format!("{denied} without explanation"),
            ("", why) | (why, _) => format!("{denied}: {why}"),
        };
        let details = status.get("details").filter(|d| d.is_object()).map(|d| {
            let text = |key: &str| meta::text(d, &[key]).to_owned();
            let causes = d.get("causes").and_then(Value::as_array);
            let cause = |c: &Value| Cause {
                reason: meta::text(c, &["reason"]).to_owned(),
                message: meta::text(c, &["message"]).to_owned(),
                field: meta::text(c, &["field"]).to_owned(),
            };
            Box::new(Details {
                name: text("name"),
                group: text("group"),
                kind: text("kind"),
                uid: text("uid"),
                causes: causes.into_iter().flatten().map(cause).collect(),
                retry_after_seconds: number(d, "retryAfterSeconds")
                    .and_then(|s| u32::try_from(s).ok())
                    .unwrap_or(0),
            })
        });
        ApiError {
            code,
            reason: reason.to_owned().into(),
            message,
            details,
        }
    }
}

/// Encodes the body of a call.
pub(super) fn body(version: ReviewVersion, request: &WebhookRequest<'_>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Review<'a> {
        kind: &'static str,
        #[serde(rename = "apiVersion")]
        api_version: &'static str,
        request: &'a WebhookRequest<'a>,
    }
    let review = Review {
        kind: "AdmissionReview",
        api_version: version.api_version(),
        request,
    };
    serde_json::to_vec(&review).unwrap_or_default()
}

/// Parses the response to the call `uid`.
///
/// # Errors
/// Why the response is invalid; the failure policy then applies.
pub(super) fn parse(
    version: ReviewVersion,
    uid: &str,
    mutating: bool,
    bytes: &[u8],
) -> Result<WebhookResponse, String> {
    let review: Value = serde_json::from_slice(bytes)
        .map_err(|e| format!("failed to call webhook: the response is not JSON: {e}"))?;
    let invalid = |reason: String| format!("received invalid webhook response: {reason}");
    let response = review
        .get("response")
        .filter(|r| r.is_object())
        .ok_or_else(|| invalid("webhook response was absent".to_owned()))?;
    let text = |key: &str| meta::text(response, &[key]);
    let strict = version == ReviewVersion::V1;
    if strict && text("uid") != uid {
        let got = text("uid");
        return Err(invalid(format!(
            "expected response.uid={uid:?}, got {got:?}"
        )));
    }
    let (api, kind) = (
        meta::text(&review, &["apiVersion"]),
        meta::text(&review, &["kind"]),
    );
    if strict && (api, kind) != (version.api_version(), "AdmissionReview") {
        return Err(invalid(format!(
            "expected webhook response of {}, Kind=AdmissionReview, got {api}, Kind={kind}",
            version.api_version()
        )));
    }
    let allowed = match response.get("allowed") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(allowed)) => *allowed,
        Some(other) => return Err(invalid(format!("response.allowed is {other}"))),
    };
    let patch = patch(response, strict, mutating)?;
    let warnings = response.get("warnings").and_then(Value::as_array);
    let annotations = response.get("auditAnnotations").and_then(Value::as_object);
    Ok(WebhookResponse {
        allowed,
        status: response.get("status").cloned().unwrap_or_default(),
        patch,
        warnings: warnings
            .into_iter()
            .flatten()
            .filter_map(|w| w.as_str().map(str::to_owned))
            .collect(),
        audit_annotations: annotations
            .into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
            .collect(),
    })
}

/// Decodes the patch in a webhook response.
fn patch(response: &Value, strict: bool, mutating: bool) -> Result<Value, String> {
    use base64::Engine as _;
    let invalid = |reason: &str| Err(format!("received invalid webhook response: {reason}"));
    let encoded = meta::text(response, &["patch"]);
    let kind = response.get("patchType").and_then(Value::as_str);
    match (mutating, encoded.is_empty(), kind) {
        (false, _, _) if !strict => return Ok(Value::Null),
        (false, false, _) => return invalid("validating webhook may not return response.patch"),
        (false, _, Some(_)) => {
            return invalid("validating webhook may not return response.patchType");
        }
        (_, true, None) => return Ok(Value::Null),
        (_, true, Some(_)) if !strict => return Ok(Value::Null),
        (_, true, Some(_)) => {
            return invalid("webhook returned response.patchType but not response.patch");
        }
        (_, false, None) if strict => {
            return invalid("webhook returned response.patch but not response.patchType");
        }
        (_, false, Some(kind)) if strict && kind != "JSONPatch" => {
            return Err(format!("unsupported patch type {kind:?}"));
        }
        _ => {}
    }
    let undecodable =
        |reason: String| format!("received undecodable patch in webhook response: {reason}");
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .map_err(|e| undecodable(e.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|e| undecodable(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use serde_json::json;

    fn answer(response: Value) -> Vec<u8> {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": response})
        .to_string()
        .into_bytes()
    }

    fn encoded(patch: &str) -> String {
        base64::engine::general_purpose::STANDARD.encode(patch)
    }

    #[test]
    fn invalid_reviews_are_refused() {
        use ReviewVersion::{V1, V1Beta1};
        let good = json!({"uid": "u", "allowed": true});
        assert!(parse(V1, "u", true, &answer(good)).unwrap().allowed);
        let patch = encoded("[]");
        #[rustfmt::skip]
        let rows: Vec<(bool, Vec<u8>, &str)> = vec![
            (true, b"<html>".to_vec(), "is not JSON"),
            (true, b"[1]".to_vec(), "webhook response was absent"),
            (true, answer(Value::Null), "webhook response was absent"),
            (true, answer(json!({"uid": "v", "allowed": true})), "expected response.uid=\"u\", got \"v\""),
            (true, answer(json!({"allowed": true})), "expected response.uid=\"u\", got \"\""),
            (true, json!({"kind": "AdmissionReview", "response": {"uid": "u"}}).to_string().into_bytes(),
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview"),
            (true, answer(json!({"uid": "u", "allowed": "yes"})), "response.allowed is \"yes\""),
            (true, answer(json!({"uid": "u", "allowed": true, "patch": patch})), "but not response.patchType"),
            (true, answer(json!({"uid": "u", "allowed": true, "patchType": "JSONPatch"})), "but not response.patch"),
            (true, answer(json!({"uid": "u", "allowed": true, "patch": patch, "patchType": "Merge"})),
                "unsupported patch type \"Merge\""),
            (true, answer(json!({"uid": "u", "allowed": true, "patch": "%", "patchType": "JSONPatch"})),
                "undecodable patch"),
            (true, answer(json!({"uid": "u", "allowed": true, "patch": encoded("{"), "patchType": "JSONPatch"})),
                "undecodable patch"),
            (false, answer(json!({"uid": "u", "allowed": true, "patch": patch})), "may not return response.patch"),
            (false, answer(json!({"uid": "u", "allowed": true, "patchType": "JSONPatch"})),
                "may not return response.patchType"),
        ];
        for (mutating, bytes, reason) in rows {
            let e = parse(V1, "u", mutating, &bytes).unwrap_err();
            assert!(e.contains(reason), "{e}");
        }
        // Kubernetes does not check uid, kind and patch type of v1beta1.
        let old = json!({"response": {"allowed": true, "patch": encoded(r#"[{"op":"test"}]"#)}});
        let old = old.to_string().into_bytes();
        assert!(parse(V1Beta1, "u", true, &old).unwrap().patches());
        assert!(!parse(V1Beta1, "u", false, &old).unwrap().patches());
    }

    #[test]
    fn refusal_contains_webhook_message() {
        let prefix = "admission webhook \"a.b.c\" denied the request";
        for (status, code, reason, message) in [
            (Value::Null, 400, "", " without explanation"),
            (
                json!({"code": 200, "status": "Success"}),
                400,
                "",
                " without explanation",
            ),
            (json!({"code": 70_000}), 400, "", " without explanation"),
            (
                json!({"code": 403, "reason": "Forbidden"}),
                403,
                "Forbidden",
                ": Forbidden",
            ),
            (
                json!({"message": "no", "reason": "Invalid"}),
                400,
                "Invalid",
                ": no",
            ),
        ] {
            let response = WebhookResponse {
                status,
                ..WebhookResponse::default()
            };
            let e = response.refusal("a.b.c");
            assert_eq!((e.code, &*e.reason), (code, reason));
            assert_eq!(e.message, format!("{prefix}{message}"));
        }
        let response = WebhookResponse {
            status: json!({"code": 422, "details": {"name": "p", "causes": [{"field": "spec"}],
                "retryAfterSeconds": 3}}),
            ..WebhookResponse::default()
        };
        let e = response.refusal("a.b.c");
        assert_eq!(e.retry_after_seconds(), Some(3));
        assert_eq!(e.details.unwrap().causes[0].field, "spec");
    }
}
