//! Validation of built-in kinds, and of metadata for all kinds.

mod kinds;
mod metadata;
mod pod;
mod quota;
mod ratchet;
mod rbac;
mod resources;
mod webhook;
mod workload;

use serde_json::Value;

use crate::meta::str_at;
use crate::resource::Resource;
use crate::status::FieldError;
use crate::{crd, names};

type Errors = Vec<FieldError>;

impl Resource {
    /// Validates a new object.
    #[must_use]
    pub fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        metadata::validate(self, object, &mut errors);
        specific(self, object, None, &mut errors);
        errors
    }

    /// Validates an update.
    #[must_use]
    pub fn validate_update(&self, sub: Option<&str>, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        metadata::validate(self, new, &mut errors);
        metadata::validate_update(self, new, old, &mut errors);
        match sub {
            _ if sub.is_none() || self.is_custom() => {
                specific(self, new, Some(old), &mut errors);
            }
            Some("status") if self.is("", "nodes") => {
                kinds::node(new, &mut errors);
            }
            Some("status") if self.is("", "pods") => {
                let node = str_at(new, &["status", "nominatedNodeName"]);
                if let Some(detail) = (!node.is_empty())
                    .then(|| names::dns1123_subdomain(node))
                    .flatten()
                {
                    errors.push(FieldError::invalid(
                        "status.nominatedNodeName",
                        node,
                        detail,
                    ));
                }
            }
            _ => {}
        }
        errors
    }
}

/// Validates the fields of a kind: by its schema for custom resources, else by its own rules.
fn specific(resource: &Resource, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    if resource.is_custom() {
        let mut wrong = Vec::new();
        resource.schema.validate(object, "", &mut wrong);
        if let Some(old) = old {
            ratchet::forgive(&resource.schema, object, old, &mut wrong);
        }
        errors.append(&mut wrong);
        return;
    }
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => {
            pod::spec(object, "spec", errors);
            if let Some(old) = old {
                pod::update(object, old, errors);
            }
        }
        ("", "nodes") => kinds::node(object, errors),
        ("", "configmaps") => kinds::config_map(object, old, errors),
        ("", "secrets") => kinds::secret(object, old, errors),
        ("", "services") => kinds::service(object, errors),
        ("" | "events.k8s.io", "events") => kinds::event(object, errors),
        ("", "resourcequotas") => quota::resource_quota(object, old, errors),
        ("", "limitranges") => errors.extend(crate::limits::validate(object)),
        (rbac::GROUP, "roles") => rbac::role(object, true, errors),
        (rbac::GROUP, "clusterroles") => rbac::role(object, false, errors),
        (rbac::GROUP, "rolebindings") => rbac::binding(object, old, true, errors),
        (rbac::GROUP, "clusterrolebindings") => rbac::binding(object, old, false, errors),
        ("scheduling.k8s.io", "priorityclasses") => kinds::priority_class(object, old, errors),
        ("coordination.k8s.io", "leases") => kinds::lease(object, errors),
        ("policy", "poddisruptionbudgets") => kinds::disruption_budget(object, errors),
        ("apiextensions.k8s.io", "customresourcedefinitions") => match old {
            Some(old) => errors.extend(crd::validate_definition_update(object, old)),
            None => errors.extend(crd::validate_definition(object)),
        },
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("", "replicationcontrollers") => workload::replicated(resource, object, old, errors),
        ("batch", "jobs") => workload::job(object, old, errors),
        ("batch", "cronjobs") => workload::cron_job(object, errors),
        (
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations" | "validatingwebhookconfigurations",
        ) => webhook::configuration(object, errors),
        _ => {}
    }
}
