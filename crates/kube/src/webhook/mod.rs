//! Admission webhooks: what a handler is asked and answers, whoever carries the question.
//!
//! An API server asks over HTTPS, with an `AdmissionReview`; the embedded one may ask in the same
//! process. Both ways end in [`Webhook::review`], so that a handler cannot tell them apart.

pub mod configuration;
mod diff;
pub mod run;
pub mod serve;

pub use crate::delegate::User;
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
    /// API group, `""` for core.
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
    /// API group, `""` for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural, for example `pods`.
    pub resource: String,
}

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// There is no old object.
    Create,
    /// There are both.
    Update,
    /// There is no new object.
    Delete,
    /// For example to `pods/exec`.
    Connect,
}

impl Operation {
    /// The name in reviews and configurations.
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

/// A write that is to be admitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Of this question.
    pub uid: String,
    /// Of the object.
    pub kind: Kind,
    /// What is written to.
    pub resource: Resource,
    /// For example `status` or `binding`; `""` for the object itself.
    pub sub_resource: String,
    /// `""` while the name is still to be generated.
    pub name: String,
    /// `""` for what is in no namespace.
    pub namespace: String,
    /// What the write does.
    pub operation: Operation,
    /// Who writes.
    pub user: User,
    /// What shall be stored. Its namespace is never empty where [`Self::namespace`] is not.
    pub object: Option<Value>,
    /// What is stored.
    pub old_object: Option<Value>,
    /// Nothing will be stored: the handler must have no side effects.
    pub dry_run: bool,
}

/// What a handler says of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It may go on as it is.
    Allow {
        /// For whoever writes.
        warnings: Vec<String>,
    },
    /// It may not.
    Deny {
        /// HTTP status, 400 and above.
        code: u16,
        /// As in a `Status`, for example `Invalid`; may be empty.
        reason: String,
        /// Names field and value.
        message: String,
        /// For whoever writes.
        warnings: Vec<String>,
    },
    /// It may go on with this object.
    Mutate {
        /// The request's object, changed. The difference is what the API server is told.
        object: Value,
        /// For whoever writes.
        warnings: Vec<String>,
    },
}

impl Answer {
    /// The write may go on as it is.
    #[must_use]
    pub fn allow() -> Self {
        Self::Allow {
            warnings: Vec::new(),
        }
    }

    /// The write may go on with `object`.
    #[must_use]
    pub fn mutate(object: Value) -> Self {
        Self::Mutate {
            object,
            warnings: Vec::new(),
        }
    }

    /// The write may not go on, with an HTTP status of 400 or above.
    pub fn deny(code: u16, message: impl Into<String>) -> Self {
        Self::Deny {
            code,
            reason: String::new(),
            message: message.into(),
            warnings: Vec::new(),
        }
    }
}

/// JSON that is shown beside the webhooks, to whoever can connect: nobody is asked who he is.
#[derive(Clone)]
pub struct Page {
    /// Where.
    pub path: &'static str,
    /// Makes it.
    pub content: Arc<dyn Fn() -> String + Send + Sync>,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Page").field(&self.path).finish()
    }
}

/// Decides about writes.
pub trait Handler: Send + Sync {
    /// Decides about one. A panic is answered as an error of the webhook.
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer>;
}

/// A handler where it is reached.
#[derive(Clone)]
pub struct Webhook {
    /// Where it is served, for example `/mutate-pod`.
    pub path: &'static str,
    /// Whether it may change objects.
    pub mutating: bool,
    /// Who decides.
    pub handler: Arc<dyn Handler>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What the API server is told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// The write may go on.
    pub allowed: bool,
    /// HTTP status of a refusal.
    pub code: u16,
    /// Of a refusal, as in a `Status`; may be empty.
    pub reason: String,
    /// Of a refusal.
    pub message: String,
    /// For whoever writes.
    pub warnings: Vec<String>,
    /// RFC 6902 operations on the object of the request.
    pub patch: Vec<Value>,
}

/// A webhook that did not decide: the failure policy of its configuration does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The handler panicked.
    #[error("{0}: the handler panicked; its log says where")]
    Panicked(&'static str),
    /// There was no answer in time.
    #[error("{0}: no answer within {1:?}")]
    Late(&'static str, Duration),
    /// A validating webhook wanted to change the object.
    #[error("{0}: a validating webhook must not change the object")]
    Changed(&'static str),
}

impl Webhook {
    /// Lets the handler decide, within a time limit.
    ///
    /// # Errors
    /// When it did not decide.
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

/// Handlers look for the namespace in the object. Returns what stood there, if it was changed.
fn fill_namespace(request: &mut Request) -> Option<Option<Value>> {
    // A Namespace is in no namespace, but its requests carry its name as one.
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

/// What happens to a write when the webhook cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It is refused.
    Fail,
    /// It goes on.
    Ignore,
}

/// A label selector of one requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selector {
    /// The label has one of these values.
    In(&'static str, &'static [&'static str]),
    /// The label is absent.
    DoesNotExist(&'static str),
}

/// One entry of a webhook configuration: which writes are sent to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Of the entry, unique in its configuration.
    pub name: &'static str,
    /// Which writes.
    pub operations: &'static [Operation],
    /// API group of the resource, `""` for core.
    pub group: &'static str,
    /// API version of the resource.
    pub version: &'static str,
    /// Plural, with `/` and the sub-resource if that is what is written to.
    pub resource: &'static str,
    /// What happens while the webhook cannot be asked.
    pub failure_policy: FailurePolicy,
    /// Only in namespaces with such labels.
    pub namespace_selector: Option<Selector>,
    /// Only objects with such labels.
    pub object_selector: Option<Selector>,
}

#[cfg(test)]
mod tests;
