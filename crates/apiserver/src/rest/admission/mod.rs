//! Admission of writes.
//!
//! Every write passes [`AdmissionChain::admit`] exactly once, from every client and by every verb or
//! subresource: built-in plugins that change the object, restrictions of nodes, mutating webhooks, `finish`
//! (the server's own fields and validation), escalation checks, LimitRanges, validating webhooks, quotas.
//! Effects of a request, such as the deletion by an eviction, were admitted with the request and do not pass
//! again.

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

use quota::Charges;
pub(crate) use quota::QuotaCharge;
pub use review::{InProcessWebhook, WebhookKind, WebhookRequest, WebhookResource, WebhookResponse};
pub(crate) use server_fields::CRD_FINALIZER;
pub(super) use server_fields::{on_create, on_update};
use webhooks::Webhooks;

/// Operation of a write.
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
    /// Returns the name in webhook rules.
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

/// Attributes of a write for admission, without the object itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdmissionAttributes<'a> {
    pub(super) operation: Operation,
    pub(super) resource: &'a Arc<Resource>,
    /// Subresource; `""` for the object itself.
    pub(super) subresource: &'a str,
    /// Namespace of the object; that of a namespace is its own name, that of other cluster-scoped objects is
    /// `""`.
    pub(super) namespace: &'a str,
    /// Name of the object; `""` while it is not generated yet.
    pub(super) name: &'a str,
    pub(super) options: Options<'a>,
}

/// User of writes without a request: the controllers of this process.
static CONTROL_PLANE: LazyLock<User> = LazyLock::new(|| User {
    name: "system:kube-controller-manager".to_owned(),
    groups: vec!["system:authenticated".to_owned()],
    ..User::default()
});

impl<'a> AdmissionAttributes<'a> {
    /// Returns the attributes of a write to an object or its subresource.
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

    /// Returns the user of the request; `None` for writes by the control plane itself.
    fn sender(&self) -> Option<&'a User> {
        let user = match self.options {
            Options::Write(o) => &o.user,
            Options::Delete(o) => &o.user,
        };
        user.as_deref()
    }

    /// Returns the user of the write.
    pub(super) fn user(&self) -> &'a User {
        self.sender().unwrap_or(&CONTROL_PLANE)
    }

    /// Returns true if nothing is stored.
    pub(super) fn dry_run(&self) -> bool {
        match self.options {
            Options::Write(o) => o.dry_run,
            Options::Delete(o) => o.dry_run,
        }
    }

    /// Returns true if this is the second write of a request, such as an eviction, whose admission was done with
    /// the first.
    fn admitted(&self) -> bool {
        match self.options {
            Options::Write(o) => o.admitted,
            Options::Delete(o) => o.admitted,
        }
    }
}

/// Admission chain of all writes.
pub(crate) struct AdmissionChain {
    core: Core,
    guard: Arc<Guard>,
    /// Mutating and validating webhooks.
    webhooks: Webhooks,
    /// Quota charges of writes that are not stored yet.
    charges: Charges,
    /// Log of admitted writes for the tests.
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

    /// Returns the webhooks of the stored configurations.
    pub(crate) const fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// Returns the quota charges of writes that are not stored yet.
    pub(crate) const fn charges(&self) -> &Charges {
        &self.charges
    }

    /// Runs admission on a write. `object` is the object to store or, for a POST to a subresource, the body;
    /// `Null` for a deletion. `old` is the stored object. `finish` completes the object with the server's own
    /// fields and validates it. The caller must hold the returned charge until the object is stored.
    ///
    /// # Errors
    /// A refusal by an admission step or by `finish`.
    pub(super) async fn admit(
        &self,
        attributes: &AdmissionAttributes<'_>,
        object: &mut Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
        finish: impl FnOnce(&mut Value) -> Result<(), ApiError> + Send,
    ) -> Result<Option<QuotaCharge>, ApiError> {
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
