//! Schemas of the built-in types, derived from the crate `k8s-openapi`.

use super::builtin::COMPONENTS;
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

/// Adds a type and everything it refers to; returns the component name.
type Add = fn(&mut SchemaGenerator) -> Schema;

fn add_type<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

macro_rules! types {
    ($($name:literal => $ty:ty,)*) => {
        &[$(($name, add_type::<$ty> as Add),)*]
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

/// Environment variable with which the test writes the file.
const UPDATE: &str = "UPDATE_EXPECT";

#[test]
fn committed_components_equal_derived_ones() {
    let mut generator = SchemaGenerator::new(SchemaSettings::openapi3());
    for (_, add) in TYPES {
        add(&mut generator);
    }
    add_type::<machinery::ObjectMeta>(&mut generator);
    add_type::<machinery::DeleteOptions>(&mut generator);
    add_type::<machinery::Status>(&mut generator);
    let lines = generator.take_definitions(true).into_iter();
    let lines = lines.map(|(name, schema)| format!("{name}\t{schema}\n"));
    let text: String = lines.collect();
    if std::env::var_os(UPDATE).is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openapi/components.txt");
        std::fs::write(file, &text).unwrap();
    }
    // Not assert_eq, because the texts have more than a megabyte.
    assert!(
        COMPONENTS == text,
        "not what the types give; `{UPDATE}=1 cargo test -p koord-kinds components_equal` writes the file"
    );
}
