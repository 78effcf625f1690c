//! Admission: the one way from a request to the store.
//!
//! Every write passes [`AdmissionChain::admit`] exactly once, whoever sends it and by whichever verb or
//! sub-resource: built-in steps that change the object, what nodes may write, mutating webhooks, what
//! `finish` does (the server's own fields and validation), the rights that the object gives, bounds,
//! validating webhooks, quotas. What a request entails by itself, such as the deletion that an
//! eviction asks for, was admitted with the request and does not pass again.

mod builtin;
mod call;
mod effects;
mod metrics;
mod nodes;
mod quota;
mod review;
mod rights;
mod runtime_class;
mod server_fields;
#[cfg(test)]
mod tests;
mod trust;
mod webhooks;

use super::User;
use super::core::Core;
use super::guard::Guard;
use super::options::DeleteOptions;
use super::options::WriteOptions;
use koord_kinds::Resource;
use koord_kinds::status::ApiError;
use serde_json::Value;
use std::sync::{Arc, LazyLock};

pub(crate) use quota::Charge;
use quota::Charges;
pub use review::{InProcessWebhook, WebhookKind, WebhookRequest, WebhookResource, WebhookResponse};
pub(crate) use server_fields::CRD_FINALIZER;
pub(super) use server_fields::{on_create, on_update};
use webhooks::Webhooks;

/// What a write does to its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object, or a POST to a sub-resource such as `pods/binding`.
    Create,
    /// A change by PUT, PATCH or a controller.
    Update,
    /// A deletion.
    Delete,
}

impl Operation {
    /// As webhook rules name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// The options of a write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Options<'a> {
    Write(&'a WriteOptions),
    Delete(&'a DeleteOptions),
}

/// What admission may know of a write, apart from the object itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'a> {
    pub(super) operation: Operation,
    pub(super) resource: &'a Arc<Resource>,
    /// `""` for the object itself.
    pub(super) subresource: &'a str,
    /// Of the object; a namespace is in itself, other cluster-scoped objects are in `""`.
    pub(super) namespace: &'a str,
    /// `""` while the name is still to be generated.
    pub(super) name: &'a str,
    pub(super) options: Options<'a>,
}

/// Who writes when nobody sent a request: the controllers of this process.
static CONTROL_PLANE: LazyLock<User> = LazyLock::new(|| User {
    name: "system:kube-controller-manager".to_owned(),
    groups: vec!["system:authenticated".to_owned()],
    ..User::default()
});

impl<'a> Attributes<'a> {
    /// The attributes of a write to an object, or to a part of it.
    pub(super) fn new(
        operation: Operation,
        resource: &'a Arc<Resource>,
        subresource: &'a str,
        (namespace, name): (&'a str, &'a str),
        options: Options<'a>,
    ) -> Self {
        let namespace = if resource.is("", "namespaces") {
            name
        } else {
            namespace
        };
        Self {
            operation,
            resource,
            subresource,
            namespace,
            name,
            options,
        }
    }

    /// Who sent the request; `None` when the control plane writes by itself.
    fn sender(&self) -> Option<&'a User> {
        let user = match self.options {
            Options::Write(o) => &o.user,
            Options::Delete(o) => &o.user,
        };
        user.as_deref()
    }

    /// Who writes.
    pub(super) fn user(&self) -> &'a User {
        self.sender().unwrap_or(&CONTROL_PLANE)
    }

    /// Nothing will be stored.
    pub(super) fn dry_run(&self) -> bool {
        match self.options {
            Options::Write(o) => o.dry_run,
            Options::Delete(o) => o.dry_run,
        }
    }

    /// The write is part of a request that was admitted under another name.
    fn admitted(&self) -> bool {
        match self.options {
            Options::Write(o) => o.admitted,
            Options::Delete(o) => o.admitted,
        }
    }
}

/// The admission chain: what writes pass on their way to the store.
pub(crate) struct AdmissionChain {
    core: Core,
    guard: Arc<Guard>,
    /// The webhooks that admission asks.
    webhooks: Webhooks,
    /// What quotas were charged with and is not stored yet.
    charges: Charges,
    /// What passed admission, for its tests.
    #[cfg(test)]
    admitted: parking_lot::Mutex<Vec<String>>,
}

impl AdmissionChain {
    /// Returns a chain without webhooks.
    pub(super) fn new(core: Core, guard: Arc<Guard>) -> Self {
        Self {
            core,
            guard,
            webhooks: Webhooks::default(),
            charges: Charges::default(),
            #[cfg(test)]
            admitted: parking_lot::Mutex::default(),
        }
    }

    /// The webhooks that stored configurations name.
    pub(crate) const fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// What quotas were charged with and is not stored yet.
    pub(crate) const fn charges(&self) -> &Charges {
        &self.charges
    }

    /// Takes a write through admission. `object` is what shall be stored or, for a POST to a
    /// sub-resource, the body; `Null` for a deletion. `old` is what is stored. `finish` makes the
    /// object what it will be in the store and validates it. Who stores the object holds on to what
    /// is returned until it is in the store.
    ///
    /// # Errors
    /// The refusal of a step, of `finish` or of what validates afterwards.
    pub(super) async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: &mut Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
        finish: impl FnOnce(&mut Value) -> Result<(), ApiError> + Send,
    ) -> Result<Option<Charge>, ApiError> {
        if attributes.admitted() {
            return finish(object).map(|()| None);
        }
        tracing::trace!(
            operation = attributes.operation.as_str(),
            resource = attributes.resource.qualified(),
            subresource = attributes.subresource,
            name = attributes.name,
            user = attributes.user().name,
            dry_run = attributes.dry_run(),
            "admission"
        );
        #[cfg(test)]
        self.admitted.lock().push(tests::line(attributes));
        builtin::admit(&self.core, attributes, object)?;
        nodes::restrict(&self.core, attributes, object, old)?;
        webhooks::advise(attributes, object, warnings);
        effects::advise(attributes, object, warnings);
        self.webhooks
            .mutate(&self.core, attributes, object, old, warnings)
            .await?;
        finish(object)?;
        rights::check(&self.guard, attributes, object, old)?;
        quota::bound(&self.core, attributes, object, old)?;
        self.webhooks
            .validate(&self.core, attributes, object, old, warnings)
            .await?;
        quota::charge(&self.core, &self.charges, attributes, object, old).await
    }
}
