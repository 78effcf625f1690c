//! Admission webhooks: the requests and responses of handlers, independent of the transport.
//!
//! An API server sends an `AdmissionReview` over HTTPS; the embedded one may call the webhook in the same
//! process. Both call [`Webhook::review`], so a handler cannot distinguish them.

pub mod configuration;
mod diff;
pub mod run;
pub mod serve;

pub use crate::delegated_auth::User;
pub use diff::diff;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// Group, version and kind of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kind {
    /// API group; empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

/// Group, version and plural of a resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resource {
    /// API group; empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural, for example `pods`.
    pub resource: String,
}

/// The operation of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// Creation: there is no old object.
    Create,
    /// Update: there are an old and a new object.
    Update,
    /// Deletion: there is no new object.
    Delete,
    /// A connection, for example to `pods/exec`.
    Connect,
}

impl Operation {
    /// Returns the name in reviews and configurations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// An admission request: a write to be reviewed.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Unique ID of the request.
    pub uid: String,
    /// Kind of the object.
    pub kind: Kind,
    /// Resource that is written.
    pub resource: Resource,
    /// Subresource, for example `status` or `binding`; empty for the object itself.
    pub sub_resource: String,
    /// Name of the object; empty if the API server will generate it.
    pub name: String,
    /// Namespace of the object; empty for cluster-scoped objects.
    pub namespace: String,
    /// Operation of the write.
    pub operation: Operation,
    /// The user of the write.
    pub user: User,
    /// The new object. Its namespace is set if [`Self::namespace`] is not empty.
    pub object: Option<Value>,
    /// The stored object.
    pub old_object: Option<Value>,
    /// Whether the request is a dry run: nothing is stored, and the handler must have no side effects.
    pub dry_run: bool,
}

/// A handler's decision about a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The write is allowed without changes.
    Allow {
        /// Warnings for the client.
        warnings: Vec<String>,
    },
    /// The write is denied.
    Deny {
        /// HTTP status code, 400 or above.
        code: u16,
        /// Reason in the `Status`, for example `Invalid`; may be empty.
        reason: String,
        /// Message with field and value.
        message: String,
        /// Warnings for the client.
        warnings: Vec<String>,
    },
    /// The write is allowed with a changed object.
    Mutate {
        /// The changed object of the request. The API server gets the difference.
        object: Value,
        /// Warnings for the client.
        warnings: Vec<String>,
    },
}

impl Answer {
    /// Returns a decision that allows the write without changes.
    #[must_use]
    pub fn allow() -> Self {
        Self::Allow {
            warnings: Vec::new(),
        }
    }

    /// Returns a decision that allows the write with `object`.
    #[must_use]
    pub fn mutate(object: Value) -> Self {
        Self::Mutate {
            object,
            warnings: Vec::new(),
        }
    }

    /// Returns a decision that denies the write, with an HTTP status code of 400 or above.
    pub fn deny(code: u16, message: impl Into<String>) -> Self {
        Self::Deny {
            code,
            reason: String::new(),
            message: message.into(),
            warnings: Vec::new(),
        }
    }
}

/// A JSON page of the webhook server. Every client may read it, without authentication.
#[derive(Clone)]
pub struct Page {
    /// URL path of the page.
    pub path: &'static str,
    /// Returns the content of the page.
    pub content: Arc<dyn Fn() -> String + Send + Sync>,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Page").field(&self.path).finish()
    }
}

/// Reviews writes.
pub trait Handler: Send + Sync {
    /// Reviews one write. A panic is reported as an error of the webhook.
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer>;
}

/// A handler and the path under which it is served.
#[derive(Clone)]
pub struct Webhook {
    /// URL path, for example `/mutate-pod`.
    pub path: &'static str,
    /// Whether the handler may change objects.
    pub mutating: bool,
    /// Handler of the requests.
    pub handler: Arc<dyn Handler>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// The response to the API server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Whether the write is allowed.
    pub allowed: bool,
    /// HTTP status code of a refusal.
    pub code: u16,
    /// Reason of a refusal, as in a `Status`; may be empty.
    pub reason: String,
    /// Message of a refusal.
    pub message: String,
    /// Warnings for the client.
    pub warnings: Vec<String>,
    /// RFC 6902 operations on the object of the request.
    pub patch: Vec<Value>,
}

/// The error of a webhook that made no decision; the failure policy of its configuration applies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The handler panicked.
    #[error("{0}: the handler panicked; the log has the location")]
    Panicked(&'static str),
    /// The handler did not respond within the timeout.
    #[error("{0}: no answer within {1:?}")]
    Late(&'static str, Duration),
    /// A validating webhook returned a changed object.
    #[error("{0}: a validating webhook must not change the object")]
    Changed(&'static str),
}

impl Webhook {
    /// Calls the handler with the timeout `within`.
    ///
    /// # Errors
    /// Fails if the handler makes no decision; see [`Failure`].
    pub async fn review(&self, mut request: Request, within: Duration) -> Result<Verdict, Failure> {
        let original = self.mutating.then(|| request.object.clone()).flatten();
        let filled = fill_namespace(&mut request);
        let answer = AssertUnwindSafe(async { self.handler.handle(request).await }).catch_unwind();
        let answer = tokio::time::timeout(within, answer)
            .await
            .map_err(|_| Failure::Late(self.path, within))?
            .map_err(|_| Failure::Panicked(self.path))?;
        Ok(match answer {
            Answer::Allow { warnings } => Verdict {
                allowed: true,
                warnings,
                ..Verdict::default()
            },
            Answer::Deny {
                code,
                reason,
                message,
                warnings,
            } => Verdict {
                allowed: false,
                code,
                reason,
                message,
                warnings,
                patch: Vec::new(),
            },
            Answer::Mutate {
                mut object,
                warnings,
            } => {
                if !self.mutating {
                    return Err(Failure::Changed(self.path));
                }
                if let Some(before) = filled {
                    restore_namespace(&mut object, before);
                }
                Verdict {
                    allowed: true,
                    warnings,
                    patch: diff(&original.unwrap_or_default(), &object),
                    ..Verdict::default()
                }
            }
        })
    }
}

fn metadata(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.get_mut("metadata")?.as_object_mut()
}

/// Writes the namespace of the request into the object, where handlers expect it. Returns the previous value
/// if it was changed.
fn fill_namespace(request: &mut Request) -> Option<Option<Value>> {
    // A Namespace is cluster-scoped, but its requests have its own name as their namespace.
    if request.namespace.is_empty() || request.kind.kind == "Namespace" {
        return None;
    }
    let metadata = metadata(request.object.as_mut()?)?;
    let present = metadata.get("namespace").and_then(Value::as_str);
    if present.is_some_and(|namespace| !namespace.is_empty()) {
        return None;
    }
    Some(metadata.insert("namespace".to_owned(), request.namespace.clone().into()))
}

fn restore_namespace(object: &mut Value, before: Option<Value>) {
    let Some(metadata) = metadata(object) else {
        return;
    };
    match before {
        Some(before) => metadata.insert("namespace".to_owned(), before),
        None => metadata.remove("namespace"),
    };
}

/// Effect on a write when the webhook does not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The write is denied.
    Fail,
    /// The write is allowed.
    Ignore,
}

/// A label selector with one requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selector {
    /// The label has one of these values.
    In(&'static str, &'static [&'static str]),
    /// The label is absent.
    DoesNotExist(&'static str),
}

/// One entry of a webhook configuration: selects the writes that are sent to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Name of the entry, unique in its configuration.
    pub name: &'static str,
    /// Operations to review.
    pub operations: &'static [Operation],
    /// API group of the resource; empty for core.
    pub group: &'static str,
    /// API version of the resource.
    pub version: &'static str,
    /// Plural of the resource, with `/` and the subresource if that is written.
    pub resource: &'static str,
    /// Effect on a write when the webhook does not respond.
    pub failure_policy: FailurePolicy,
    /// Selector of the namespaces; `None` for all.
    pub namespace_selector: Option<Selector>,
    /// Selector of the objects; `None` for all.
    pub object_selector: Option<Selector>,
}

#[cfg(test)]
mod tests;
