//! Component schemas: of built-in types from the `k8s-openapi` crate, of custom resources from
//! their definitions, both with the extensions kubectl looks for.

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, authentication::v1 as authn,
    authorization::v1 as authz, autoscaling::v1 as scale, autoscaling::v2 as autoscaling,
    batch::v1 as batch, certificates::v1 as certs, coordination::v1 as coordination,
    core::v1 as core, discovery::v1 as discovery, events::v1 as events,
    flowcontrol::v1 as flowcontrol, networking::v1 as networking, node::v1 as node,
    policy::v1 as policy, rbac::v1 as rbac, resource::v1 as dra, scheduling::v1 as scheduling,
    storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as machinery;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as aggregator;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::resource::GroupVersionKind;
use crate::schema::{ListType, Merge, types};

const PREFIX: &str = "#/components/schemas/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Adds `T` and everything it refers to; returns the component name.
type Add = fn(&mut SchemaGenerator) -> Schema;

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

macro_rules! types {
    ($($name:literal => $ty:ty,)*) => {
        &[$(($name, of::<$ty> as Add),)*]
    };
}

#[rustfmt::skip]
const TYPES: &[(&str, Add)] = types! {
    "core/v1.Binding" => core::Binding,
    "core/v1.ConfigMap" => core::ConfigMap,
    "core/v1.Endpoints" => core::Endpoints,
    "core/v1.Event" => core::Event,
    "core/v1.LimitRange" => core::LimitRange,
    "core/v1.Namespace" => core::Namespace,
    "core/v1.Node" => core::Node,
    "core/v1.PersistentVolumeClaim" => core::PersistentVolumeClaim,
    "core/v1.PersistentVolume" => core::PersistentVolume,
    "core/v1.Pod" => core::Pod,
    "core/v1.PodTemplate" => core::PodTemplate,
    "core/v1.ReplicationController" => core::ReplicationController,
    "core/v1.ResourceQuota" => core::ResourceQuota,
    "core/v1.Secret" => core::Secret,
    "core/v1.ServiceAccount" => core::ServiceAccount,
    "core/v1.Service" => core::Service,
    "authentication/v1.SelfSubjectReview" => authn::SelfSubjectReview,
    "authentication/v1.TokenReview" => authn::TokenReview,
    "authentication/v1.TokenRequest" => authn::TokenRequest,
    "authorization/v1.LocalSubjectAccessReview" => authz::LocalSubjectAccessReview,
    "authorization/v1.SelfSubjectAccessReview" => authz::SelfSubjectAccessReview,
    "authorization/v1.SelfSubjectRulesReview" => authz::SelfSubjectRulesReview,
    "authorization/v1.SubjectAccessReview" => authz::SubjectAccessReview,
    "autoscaling/v2.HorizontalPodAutoscaler" => autoscaling::HorizontalPodAutoscaler,
    "autoscaling/v1.HorizontalPodAutoscaler" => scale::HorizontalPodAutoscaler,
    "autoscaling/v1.Scale" => scale::Scale,
    "apps/v1.ControllerRevision" => apps::ControllerRevision,
    "apps/v1.DaemonSet" => apps::DaemonSet,
    "apps/v1.Deployment" => apps::Deployment,
    "apps/v1.ReplicaSet" => apps::ReplicaSet,
    "apps/v1.StatefulSet" => apps::StatefulSet,
    "batch/v1.CronJob" => batch::CronJob,
    "batch/v1.Job" => batch::Job,
    "certificates/v1.CertificateSigningRequest" => certs::CertificateSigningRequest,
    "networking/v1.IngressClass" => networking::IngressClass,
    "networking/v1.Ingress" => networking::Ingress,
    "networking/v1.NetworkPolicy" => networking::NetworkPolicy,
    "policy/v1.PodDisruptionBudget" => policy::PodDisruptionBudget,
    "policy/v1.Eviction" => policy::Eviction,
    "rbac/v1.ClusterRoleBinding" => rbac::ClusterRoleBinding,
    "rbac/v1.ClusterRole" => rbac::ClusterRole,
    "rbac/v1.RoleBinding" => rbac::RoleBinding,
    "rbac/v1.Role" => rbac::Role,
    "storage/v1.CSIDriver" => storage::CSIDriver,
    "storage/v1.CSINode" => storage::CSINode,
    "storage/v1.CSIStorageCapacity" => storage::CSIStorageCapacity,
    "storage/v1.StorageClass" => storage::StorageClass,
    "storage/v1.VolumeAttachment" => storage::VolumeAttachment,
    "storage/v1.VolumeAttributesClass" => storage::VolumeAttributesClass,
    "admissionregistration/v1.MutatingWebhookConfiguration" => admission::MutatingWebhookConfiguration,
    "admissionregistration/v1.ValidatingAdmissionPolicy" => admission::ValidatingAdmissionPolicy,
    "admissionregistration/v1.ValidatingAdmissionPolicyBinding" => admission::ValidatingAdmissionPolicyBinding,
    "admissionregistration/v1.ValidatingWebhookConfiguration" => admission::ValidatingWebhookConfiguration,
    "apiextensions/v1.CustomResourceDefinition" => extensions::CustomResourceDefinition,
    "apiregistration/v1.APIService" => aggregator::APIService,
    "scheduling/v1.PriorityClass" => scheduling::PriorityClass,
    "coordination/v1.Lease" => coordination::Lease,
    "node/v1.RuntimeClass" => node::RuntimeClass,
    "discovery/v1.EndpointSlice" => discovery::EndpointSlice,
    "events/v1.Event" => events::Event,
    "flowcontrol/v1.FlowSchema" => flowcontrol::FlowSchema,
    "flowcontrol/v1.PriorityLevelConfiguration" => flowcontrol::PriorityLevelConfiguration,
    "resource/v1.DeviceClass" => dra::DeviceClass,
    "resource/v1.ResourceClaim" => dra::ResourceClaim,
    "resource/v1.ResourceClaimTemplate" => dra::ResourceClaimTemplate,
    "resource/v1.ResourceSlice" => dra::ResourceSlice,
};

/// Collects the components of one document.
pub(super) struct Schemas {
    generator: SchemaGenerator,
    kinds: Vec<(String, GroupVersionKind)>,
    custom: Map<String, Value>,
}

impl Default for Schemas {
    fn default() -> Self {
        let generator = SchemaGenerator::new(SchemaSettings::openapi3());
        Self {
            generator,
            kinds: Vec::new(),
            custom: Map::new(),
        }
    }
}

impl Schemas {
    /// Adds a built-in type; returns its component name.
    pub(super) fn add_builtin(
        &mut self,
        type_name: &str,
        gvk: &GroupVersionKind,
    ) -> Option<String> {
        let (_, add) = TYPES.iter().find(|(name, _)| *name == type_name)?;
        let schema = add(&mut self.generator);
        let reference = schema.get("$ref")?.as_str()?;
        let name = reference.strip_prefix(PREFIX)?.to_owned();
        self.kinds.push((name.clone(), gvk.clone()));
        Some(name)
    }

    /// Adds the schema of a custom resource; returns its component name.
    pub(super) fn add_custom(&mut self, gvk: &GroupVersionKind, raw: &Value) -> Option<String> {
        let mut parts: Vec<&str> = gvk.group.split('.').collect();
        parts.reverse();
        let name = format!("{}.{}.{}", parts.join("."), gvk.version, gvk.kind);
        of::<machinery::ObjectMeta>(&mut self.generator);
        let mut schema = raw.clone();
        let map = schema.as_object_mut()?;
        let properties = map.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(p) = properties {
            let text = |d: &str| json!({"type": "string", "description": d});
            p.insert(
                "apiVersion".to_owned(),
                text("APIVersion defines the group and version of the object."),
            );
            p.insert("kind".to_owned(), text("Kind of the object."));
            p.insert(
                "metadata".to_owned(),
                json!({
                    "description": "Standard object's metadata.",
                    "allOf": [{"$ref": format!("{PREFIX}{META}.ObjectMeta")}],
                }),
            );
        }
        self.custom.insert(name.clone(), schema);
        self.kinds.push((name.clone(), gvk.clone()));
        Some(name)
    }

    /// The body of deletions.
    pub(super) fn add_delete_options(&mut self) {
        of::<machinery::DeleteOptions>(&mut self.generator);
        of::<machinery::Status>(&mut self.generator);
    }

    /// All components by name.
    pub(super) fn finish(mut self) -> Map<String, Value> {
        let mut out = self.generator.take_definitions(true);
        out.extend(std::mem::take(&mut self.custom));
        for (name, schema) in &mut out {
            if let Some(type_name) = fact_name(name) {
                merge_hints(schema, &type_name);
            }
            wrap_references(schema);
        }
        for (name, gvk) in &self.kinds {
            if let Some(Value::Object(schema)) = out.get_mut(name) {
                let list = schema
                    .entry("x-kubernetes-group-version-kind")
                    .or_insert_with(|| Value::Array(Vec::new()));
                let entry = json!({
                    "group": &*gvk.group, "version": &*gvk.version, "kind": &*gvk.kind,
                });
                if let Value::Array(list) = list
                    && !list.contains(&entry)
                {
                    list.push(entry);
                }
            }
        }
        out
    }
}

/// `io.k8s.api.core.v1.Pod` -> `core/v1.Pod`.
fn fact_name(component: &str) -> Option<String> {
    let rest = component
        .strip_prefix("io.k8s.api.")
        .or_else(|| component.strip_prefix("io.k8s.apimachinery.pkg.apis."))
        .or_else(|| component.strip_prefix("io.k8s.apiextensions-apiserver.pkg.apis."))?;
    rest.split_once('.')
        .map(|(group, tail)| format!("{group}/{tail}"))
}

/// How patches treat the lists of a type.
fn merge_hints(schema: &mut Value, type_name: &str) {
    let Some(named) = types::find(type_name) else {
        return;
    };
    if named.schema.atomic
        && let Some(map) = schema.as_object_mut()
    {
        map.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, property) in properties {
        let (Some(field), Some(map)) = (named.field(name), property.as_object_mut()) else {
            continue;
        };
        if field.merge != Merge::Default {
            let strategy = if field.retain_keys {
                "merge,retainKeys"
            } else {
                "merge"
            };
            map.insert("x-kubernetes-patch-strategy".to_owned(), strategy.into());
        }
        if let Merge::Key(key) = field.merge {
            map.insert("x-kubernetes-patch-merge-key".to_owned(), key.into());
        }
        if field.items.is_none() {
            if field.atomic {
                map.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
            }
            continue;
        }
        let kind = match &field.list_type {
            ListType::Atomic => "atomic",
            ListType::Set => "set",
            ListType::Map(keys) => {
                map.insert("x-kubernetes-list-map-keys".to_owned(), json!(keys));
                "map"
            }
        };
        map.insert("x-kubernetes-list-type".to_owned(), kind.into());
    }
}

/// Every component of the built-in kinds, under the name it has in the table of facts.
#[cfg(test)]
pub(crate) fn components() -> Vec<(String, Value)> {
    let mut schemas = Schemas::default();
    let gvk = GroupVersionKind::new("", "", "");
    for (name, _) in TYPES {
        schemas.add_builtin(name, &gvk);
    }
    schemas.add_delete_options();
    let all = schemas.finish();
    all.into_iter()
        .filter_map(|(name, schema)| Some((fact_name(&name)?, schema)))
        .collect()
}

/// OpenAPI 3.0 ignores what stands beside a `$ref`, so such references move into an `allOf`.
fn wrap_references(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(wrap_references);
            if map.len() > 1
                && let Some(reference) = map.get("$ref").filter(|r| r.is_string()).cloned()
            {
                map.remove("$ref");
                map.insert("allOf".to_owned(), json!([{"$ref": reference}]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        _ => {}
    }
}
