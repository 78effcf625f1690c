//! Errors in the form of a Kubernetes API server: [`FieldError`] for one invalid field, [`ApiError`] for a
//! whole response (`kind: Status`). Clients compare reasons and codes, and tests and users also the messages,
//! so the wording is part of the contract.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde_json::{Map, Value, json};

mod field;

pub use field::{FieldError, FieldErrorKind, quoted};

/// An entry of `details.causes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable reason.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// Field path, empty if none.
    pub field: String,
}

/// `details` of a Status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Object name.
    pub name: String,
    /// API group.
    pub group: String,
    /// Resource plural, or the Kind for validation failures.
    pub kind: String,
    /// Object uid.
    pub uid: String,
    /// The individual failures.
    pub causes: Vec<Cause>,
    /// Seconds after which a client may retry; 0 means not set.
    pub retry_after_seconds: u32,
}

impl Details {
    /// Returns the details as JSON without empty fields.
    fn to_value(&self) -> Value {
        let mut map = Map::new();
        for (key, text) in [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
            ("uid", &self.uid),
        ] {
            if !text.is_empty() {
                map.insert(key.to_owned(), text.as_str().into());
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(|c| {
                let mut m = Map::new();
                for (key, text) in [
                    ("reason", &c.reason),
                    ("message", &c.message),
                    ("field", &c.field),
                ] {
                    if !text.is_empty() {
                        m.insert(key.to_owned(), text.as_str().into());
                    }
                }
                Value::Object(m)
            });
            map.insert("causes".to_owned(), causes.collect());
        }
        if self.retry_after_seconds > 0 {
            map.insert(
                "retryAfterSeconds".to_owned(),
                self.retry_after_seconds.into(),
            );
        }
        Value::Object(map)
    }
}

/// A failed request, in the form of a `kind: Status` response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// `reason` of the Status.
    pub reason: Cow<'static, str>,
    /// Human-readable message.
    pub message: String,
    /// Structured details.
    pub details: Option<Box<Details>>,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// Returns `pods` or `deployments.apps`.
#[must_use]
pub fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}

impl ApiError {
    /// Creates an error with any code and reason.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: Cow::Borrowed(reason),
            message: message.into(),
            details: None,
        }
    }

    fn with_object(mut self, group: &str, kind: &str, name: &str) -> Self {
        let details = self.details_mut();
        details.group = group.to_owned();
        details.kind = kind.to_owned();
        details.name = name.to_owned();
        self
    }

    fn details_mut(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// Adds one cause.
    #[must_use]
    pub fn cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        let cause = Cause {
            reason: reason.to_owned(),
            message: message.into(),
            field: field.to_owned(),
        };
        self.details_mut().causes.push(cause);
        self
    }

    /// Sets `details.retryAfterSeconds` (and with it the `Retry-After` header).
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details_mut().retry_after_seconds = seconds;
        self
    }

    /// Returns the seconds for a `Retry-After` header, if one should be sent.
    #[must_use]
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.details
            .as_ref()
            .map(|d| d.retry_after_seconds)
            .filter(|s| *s > 0)
    }

    /// Creates a 404 for an object.
    #[must_use]
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {} not found", qualified(resource, group), quoted(name));
        Self::new(404, "NotFound", message).with_object(group, resource, name)
    }

    /// Creates a 404 for a path that no resource serves.
    #[must_use]
    pub fn unknown_path() -> Self {
        let mut e = Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
        e.details = Some(Box::default());
        e
    }

    /// Creates a 409 for a name that is taken.
    #[must_use]
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!(
            "{} {} already exists",
            qualified(resource, group),
            quoted(name)
        );
        Self::new(409, "AlreadyExists", message).with_object(group, resource, name)
    }

    /// Creates a 409 for a name that is taken by an object under deletion.
    #[must_use]
    pub fn already_exists_terminating(group: &str, resource: &str, name: &str) -> Self {
        let mut e = Self::already_exists(group, resource, name);
        e.message = format!("object is being deleted: {}", e.message);
        e
    }

    /// Creates a 409 with the caller's reason.
    #[must_use]
    pub fn conflict(group: &str, resource: &str, name: &str, reason: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: {reason}",
            qualified(resource, group),
            quoted(name)
        );
        Self::new(409, "Conflict", message).with_object(group, resource, name)
    }

    /// Creates a 409 for a stale `resourceVersion`.
    #[must_use]
    pub fn stale(group: &str, resource: &str, name: &str) -> Self {
        Self::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// Creates a 409 for a failed uid or resourceVersion precondition; `what` is `UID` or `ResourceVersion`.
    #[must_use]
    pub fn precondition(
        group: &str,
        resource: &str,
        name: &str,
        what: &str,
        wanted: &str,
        found: &str,
    ) -> Self {
        let message = format!(
            "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
        );
        Self::conflict(group, resource, name, &message)
    }

    /// Creates a 422 with one cause per field error.
    #[must_use]
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let mut message = format!("{} {} is invalid", qualified(kind, group), quoted(name));
        let mut unique = HashSet::new();
        let texts: Vec<String> = errors
            .iter()
            .map(ToString::to_string)
            .filter(|text| unique.insert(text.clone()))
            .collect();
        match texts.as_slice() {
            [] => {}
            [one] => {
                message.push_str(": ");
                message.push_str(one);
            }
            many => {
                message.push_str(": [");
                message.push_str(&many.join(", "));
                message.push(']');
            }
        }
        let mut e = Self::new(422, "Invalid", message).with_object(group, kind, name);
        e.details_mut().causes = errors
            .iter()
            .map(|f| Cause {
                reason: f.kind.reason().to_owned(),
                message: f.body(),
                field: f.field.clone(),
            })
            .collect();
        e
    }

    /// Creates a 400 (Bad Request) with this message.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// Creates a 400 for a body with unknown or duplicate fields under `fieldValidation=Strict`.
    #[must_use]
    pub fn strict_decoding(problems: &[String]) -> Self {
        Self::bad_request(format!("strict decoding error: {}", problems.join(", ")))
    }

    /// Creates a 401 (Unauthorized).
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// Creates a 403 for an object; `name` is empty for collections.
    #[must_use]
    pub fn forbidden(group: &str, resource: &str, name: &str, reason: &str) -> Self {
        let qualified_resource = qualified(resource, group);
        let message = if resource.is_empty() {
            format!("forbidden: {reason}")
        } else if name.is_empty() {
            format!("{qualified_resource} is forbidden: {reason}")
        } else {
            format!(
                "{qualified_resource} {} is forbidden: {reason}",
                quoted(name)
            )
        };
        Self::new(403, "Forbidden", message).with_object(group, resource, name)
    }

    /// Creates a 403 for a creation in a namespace under deletion.
    #[must_use]
    pub fn namespace_terminating(group: &str, resource: &str, name: &str, namespace: &str) -> Self {
        let message = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let cause = format!("namespace {namespace} is being terminated");
        Self::forbidden(group, resource, name, &message).cause(
            "NamespaceTerminating",
            cause,
            "metadata.namespace",
        )
    }

    /// Creates a 405 (Method Not Allowed) for an action that a resource does not support.
    #[must_use]
    pub fn method_not_allowed(group: &str, resource: &str, action: &str) -> Self {
        let qualified_resource = qualified(resource, group);
        let message = format!(
            "{action} is not supported on resources of kind {}",
            quoted(&qualified_resource)
        );
        Self::new(405, "MethodNotAllowed", message).with_object(group, resource, "")
    }

    /// Creates a 406 that lists the supported media types.
    #[must_use]
    pub fn not_acceptable(supported: &[&str]) -> Self {
        let message = format!(
            "only the following media types are accepted: {}",
            supported.join(", ")
        );
        Self::new(406, "NotAcceptable", message)
    }

    /// Creates a 415 that lists the accepted media types.
    #[must_use]
    pub fn unsupported_media_type(supported: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            supported.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// Creates a 410 (Gone, reason `Expired`) with this message.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Creates a 410 for a watch or exact list older than the history.
    #[must_use]
    pub fn too_old(requested: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {requested} ({oldest})"))
    }

    /// Creates a 504 for a resource version that does not exist yet.
    #[must_use]
    pub fn too_large_resource_version(requested: u64, current: u64) -> Self {
        Self::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {requested}, current: {current}"),
        )
        .cause("ResourceVersionTooLarge", "Too large resource version", "")
        .retry_after(1)
    }

    /// Creates a 413 (Request Entity Too Large); `limit` is in bytes.
    #[must_use]
    pub fn too_large(limit: usize) -> Self {
        Self::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    /// Creates a 429 with `retry_after` in seconds; 0 for no hint.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(429, "TooManyRequests", message).retry_after(retry_after)
    }

    /// Creates a 429 because a disruption budget does not allow the eviction now.
    #[must_use]
    pub fn disruption_budget(budget: &str, reason: impl Into<String>) -> Self {
        let cause = format!("The disruption budget {budget} {}", reason.into());
        Self::too_many_requests(
            "Cannot evict pod as it would violate the pod's disruption budget.",
            0,
        )
        .cause("DisruptionBudget", cause, "")
    }

    /// Creates a 500 (Internal Server Error) with this message.
    pub fn internal(message: impl Into<String>) -> Self {
        let text = message.into();
        Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {text}"),
        )
        .cause("", text, "")
    }

    /// Creates a 503 (Service Unavailable) with this message.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// Creates a 504 (Gateway Timeout) with this message.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(504, "Timeout", message)
    }

    /// Returns the `v1 Status` object.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        });
        if let Value::Object(map) = &mut status {
            if !self.reason.is_empty() {
                map.insert("reason".to_owned(), self.reason.as_ref().into());
            }
            if let Some(details) = &self.details {
                map.insert("details".to_owned(), details.to_value());
            }
            map.insert("code".to_owned(), self.code.into());
        }
        status
    }
}

/// Returns the `v1 Status` of a success, e.g. of a deletion that removed the object.
#[must_use]
pub fn success(group: &str, resource: &str, name: &str, uid: &str) -> Value {
    let details = Details {
        name: name.to_owned(),
        group: group.to_owned(),
        kind: resource.to_owned(),
        uid: uid.to_owned(),
        ..Details::default()
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details.to_value(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_match_upstream() {
        let e = ApiError::not_found("apps", "deployments", "web");
        assert_eq!(e.message, "deployments.apps \"web\" not found");
        let e = ApiError::invalid(
            "",
            "Pod",
            "p",
            &[
                FieldError::required("spec.containers", ""),
                FieldError::duplicate("a", "b"),
            ],
        );
        assert_eq!(
            e.message,
            "Pod \"p\" is invalid: [spec.containers: Required value, a: Duplicate value: \"b\"]"
        );
        let v = e.to_value();
        assert_eq!(v["code"], 422);
        assert_eq!(v["details"]["causes"][1]["reason"], "FieldValueDuplicate");
        assert_eq!(
            v["details"]["causes"][1]["message"],
            "Duplicate value: \"b\""
        );
        assert_eq!(
            FieldError::not_supported("x", "y", &["a", "b"]).to_string(),
            "x: Unsupported value: \"y\": supported values: \"a\", \"b\""
        );
        assert_eq!(ApiError::unknown_path().to_value()["details"], json!({}));
    }
}
