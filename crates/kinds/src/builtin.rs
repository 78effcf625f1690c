//! Table of the built-in kinds in discovery order. A new kind is one more line.

use std::borrow::Cow;
use std::sync::Arc;

use super::resource::{GroupVersionKind, Resource, ScalePaths, Subresource};
use super::schema::{Schema, types};
use crate::TableId;

/// Verbs of a stored resource.
pub(super) const ALL_VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
/// Verbs in discovery of a custom resource whose definition is being deleted.
pub(super) const TERMINATING_VERBS: &[&str] =
    &["delete", "deletecollection", "get", "list", "watch"];
/// Verbs of the subresources `status` and `scale`.
pub(super) const OBJECT_SUB: &[&str] = &["get", "patch", "update"];
const CREATE: &[&str] = &["create"];
const GET: &[&str] = &["get"];
const CONNECT: &[&str] = &["create", "get"];
const UPDATE: &[&str] = &["update"];
const READ: &[&str] = &["get", "list"];
const NO_COLLECTION_DELETE: &[&str] = &[
    "create", "delete", "get", "list", "patch", "update", "watch",
];

struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    all: bool,
    namespaced: bool,
    status: bool,
    scale: bool,
    generation: bool,
    stored: bool,
    type_name: &'static str,
}

/// Returns the row of a cluster-scoped kind of version v1 without subresources, short names and categories.
const fn row(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    type_name: &'static str,
) -> Row {
    Row {
        group,
        version: "v1",
        kind,
        plural,
        short: &[],
        all: false,
        namespaced: false,
        status: false,
        scale: false,
        generation: false,
        stored: true,
        type_name,
    }
}

impl Row {
    const fn ns(mut self) -> Self {
        self.namespaced = true;
        self
    }
    const fn status(mut self) -> Self {
        self.status = true;
        self
    }
    const fn scale(mut self) -> Self {
        self.scale = true;
        self
    }
    /// Makes the server count spec changes in `metadata.generation`.
    const fn generation(mut self) -> Self {
        self.generation = true;
        self
    }
    const fn all(mut self) -> Self {
        self.all = true;
        self
    }
    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short = names;
        self
    }
    const fn virt(mut self) -> Self {
        self.stored = false;
        self
    }
    const fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }
}

const AUTHN: &str = "authentication.k8s.io";
const AUTHZ: &str = "authorization.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const DRA: &str = "resource.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
/// The group of custom resource definitions.
pub(super) const APIEXTENSIONS: &str = "apiextensions.k8s.io";
const EVENTS: &str = "events.k8s.io";
const CERTS: &str = "certificates.k8s.io";
/// Group of the usage of nodes and pods.
pub(super) const METRICS: &str = "metrics.k8s.io";

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("", "Binding", "bindings", "core/v1.Binding").ns().virt(),
    row("", "ConfigMap", "configmaps", "core/v1.ConfigMap").ns().short(&["cm"]),
    row("", "Endpoints", "endpoints", "core/v1.Endpoints").ns().short(&["ep"]),
    row("", "Event", "events", "core/v1.Event").ns().short(&["ev"]),
    row("", "LimitRange", "limitranges", "core/v1.LimitRange").ns().short(&["limits"]),
    row("", "Namespace", "namespaces", "core/v1.Namespace").status().short(&["ns"]),
    row("", "Node", "nodes", "core/v1.Node").status().short(&["no"]),
    row("", "PersistentVolumeClaim", "persistentvolumeclaims", "core/v1.PersistentVolumeClaim").ns().status().short(&["pvc"]),
    row("", "PersistentVolume", "persistentvolumes", "core/v1.PersistentVolume").status().short(&["pv"]),
    row("", "Pod", "pods", "core/v1.Pod").ns().status().generation().all().short(&["po"]),
    row("", "PodTemplate", "podtemplates", "core/v1.PodTemplate").ns().generation(),
    row("", "ReplicationController", "replicationcontrollers", "core/v1.ReplicationController").ns().status().scale().generation().all().short(&["rc"]),
    row("", "ResourceQuota", "resourcequotas", "core/v1.ResourceQuota").ns().status().short(&["quota"]),
    row("", "Secret", "secrets", "core/v1.Secret").ns(),
    row("", "ServiceAccount", "serviceaccounts", "core/v1.ServiceAccount").ns().short(&["sa"]),
    row("", "Service", "services", "core/v1.Service").ns().status().all().short(&["svc"]),
    row("apiregistration.k8s.io", "APIService", "apiservices", "apiregistration/v1.APIService").status(),
    row(AUTHN, "SelfSubjectReview", "selfsubjectreviews", "authentication/v1.SelfSubjectReview").virt(),
    row(AUTHN, "TokenReview", "tokenreviews", "authentication/v1.TokenReview").virt(),
    row(AUTHZ, "LocalSubjectAccessReview", "localsubjectaccessreviews", "authorization/v1.LocalSubjectAccessReview").ns().virt(),
    row(AUTHZ, "SelfSubjectAccessReview", "selfsubjectaccessreviews", "authorization/v1.SelfSubjectAccessReview").virt(),
    row(AUTHZ, "SelfSubjectRulesReview", "selfsubjectrulesreviews", "authorization/v1.SelfSubjectRulesReview").virt(),
    row(AUTHZ, "SubjectAccessReview", "subjectaccessreviews", "authorization/v1.SubjectAccessReview").virt(),
    row("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "autoscaling/v2.HorizontalPodAutoscaler").version("v2").ns().status().all().short(&["hpa"]),
    row("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "autoscaling/v1.HorizontalPodAutoscaler").ns().status().all().short(&["hpa"]),
    row("apps", "ControllerRevision", "controllerrevisions", "apps/v1.ControllerRevision").ns(),
    row("apps", "DaemonSet", "daemonsets", "apps/v1.DaemonSet").ns().status().generation().all().short(&["ds"]),
    row("apps", "Deployment", "deployments", "apps/v1.Deployment").ns().status().scale().generation().all().short(&["deploy"]),
    row("apps", "ReplicaSet", "replicasets", "apps/v1.ReplicaSet").ns().status().scale().generation().all().short(&["rs"]),
    row("apps", "StatefulSet", "statefulsets", "apps/v1.StatefulSet").ns().status().scale().generation().all().short(&["sts"]),
    row("batch", "CronJob", "cronjobs", "batch/v1.CronJob").ns().status().generation().all().short(&["cj"]),
    row("batch", "Job", "jobs", "batch/v1.Job").ns().status().generation().all(),
    row(CERTS, "CertificateSigningRequest", "certificatesigningrequests", "certificates/v1.CertificateSigningRequest").status().short(&["csr"]),
    row(NETWORKING, "IngressClass", "ingressclasses", "networking/v1.IngressClass").generation(),
    row(NETWORKING, "Ingress", "ingresses", "networking/v1.Ingress").ns().status().generation().short(&["ing"]),
    row(NETWORKING, "NetworkPolicy", "networkpolicies", "networking/v1.NetworkPolicy").ns().generation().short(&["netpol"]),
    row("policy", "PodDisruptionBudget", "poddisruptionbudgets", "policy/v1.PodDisruptionBudget").ns().status().generation().short(&["pdb"]),
    row(RBAC, "ClusterRoleBinding", "clusterrolebindings", "rbac/v1.ClusterRoleBinding"),
    row(RBAC, "ClusterRole", "clusterroles", "rbac/v1.ClusterRole"),
    row(RBAC, "RoleBinding", "rolebindings", "rbac/v1.RoleBinding").ns(),
    row(RBAC, "Role", "roles", "rbac/v1.Role").ns(),
    row(STORAGE, "CSIDriver", "csidrivers", "storage/v1.CSIDriver"),
    row(STORAGE, "CSINode", "csinodes", "storage/v1.CSINode"),
    row(STORAGE, "CSIStorageCapacity", "csistoragecapacities", "storage/v1.CSIStorageCapacity").ns(),
    row(STORAGE, "StorageClass", "storageclasses", "storage/v1.StorageClass").short(&["sc"]),
    row(STORAGE, "VolumeAttachment", "volumeattachments", "storage/v1.VolumeAttachment").status(),
    row(STORAGE, "VolumeAttributesClass", "volumeattributesclasses", "storage/v1.VolumeAttributesClass").short(&["vac"]),
    row(ADMISSION, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "admissionregistration/v1.MutatingWebhookConfiguration").generation(),
    row(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "admissionregistration/v1.ValidatingAdmissionPolicy").status().generation(),
    row(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", "admissionregistration/v1.ValidatingAdmissionPolicyBinding"),
    row(ADMISSION, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "admissionregistration/v1.ValidatingWebhookConfiguration").generation(),
    row(APIEXTENSIONS, "CustomResourceDefinition", "customresourcedefinitions", "apiextensions/v1.CustomResourceDefinition").status().generation().short(&["crd", "crds"]),
    row("scheduling.k8s.io", "PriorityClass", "priorityclasses", "scheduling/v1.PriorityClass").generation().short(&["pc"]),
    row("coordination.k8s.io", "Lease", "leases", "coordination/v1.Lease").ns(),
    row("node.k8s.io", "RuntimeClass", "runtimeclasses", "node/v1.RuntimeClass"),
    row("discovery.k8s.io", "EndpointSlice", "endpointslices", "discovery/v1.EndpointSlice").ns().generation(),
    row(EVENTS, "Event", "events", "events/v1.Event").ns().short(&["ev"]),
    row(FLOW, "FlowSchema", "flowschemas", "flowcontrol/v1.FlowSchema").status().generation(),
    row(FLOW, "PriorityLevelConfiguration", "prioritylevelconfigurations", "flowcontrol/v1.PriorityLevelConfiguration").status().generation(),
    row(DRA, "DeviceClass", "deviceclasses", "resource/v1.DeviceClass").generation(),
    row(DRA, "ResourceClaim", "resourceclaims", "resource/v1.ResourceClaim").ns().status(),
    row(DRA, "ResourceClaimTemplate", "resourceclaimtemplates", "resource/v1.ResourceClaimTemplate").ns(),
    row(DRA, "ResourceSlice", "resourceslices", "resource/v1.ResourceSlice").generation(),
    row(METRICS, "NodeMetrics", "nodes", "metrics/v1beta1.NodeMetrics").version("v1beta1").virt(),
    row(METRICS, "PodMetrics", "pods", "metrics/v1beta1.PodMetrics").version("v1beta1").ns().virt(),
];

/// Returns all built-in resources.
pub(super) fn resources() -> Vec<Arc<Resource>> {
    ROWS.iter().map(|row| Arc::new(build(row))).collect()
}

/// Returns the name of a kind's type in the fact table of built-in types ([`types`](super::schema::types)), such as
/// `core/v1.Pod`.
pub(super) fn type_name(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    ROWS.iter()
        .find(|r| r.group == group && r.version == version && r.kind == kind)
        .map(|r| r.type_name)
}

fn sub(
    name: &'static str,
    response: (&str, &str, &str),
    verbs: &'static [&'static str],
) -> Subresource {
    let (group, version, kind) = response;
    Subresource {
        name: Cow::Borrowed(name),
        response: GroupVersionKind::new(group, version, kind),
        verbs,
    }
}

/// Returns the resource of a table row, with its subresources.
fn build(row: &Row) -> Resource {
    let own = (row.group, row.version, row.kind);
    let mut subresources = Vec::new();
    if row.status {
        subresources.push(sub("status", own, OBJECT_SUB));
    }
    if row.scale {
        subresources.push(sub("scale", ("autoscaling", "v1", "Scale"), OBJECT_SUB));
    }
    match (row.group, row.plural) {
        ("", "pods") => subresources.extend([
            sub("attach", ("", "v1", "PodAttachOptions"), CONNECT),
            sub("binding", ("", "v1", "Binding"), CREATE),
            sub("ephemeralcontainers", own, OBJECT_SUB),
            sub("eviction", ("policy", "v1", "Eviction"), CREATE),
            sub("exec", ("", "v1", "PodExecOptions"), CONNECT),
            sub("log", own, GET),
            sub("portforward", ("", "v1", "PodPortForwardOptions"), CONNECT),
            sub("resize", own, OBJECT_SUB),
        ]),
        ("", "serviceaccounts") => {
            subresources.push(sub("token", (AUTHN, "v1", "TokenRequest"), CREATE));
        }
        ("", "namespaces") => subresources.push(sub("finalize", own, UPDATE)),
        (CERTS, _) => subresources.push(sub("approval", own, OBJECT_SUB)),
        _ => {}
    }
    subresources.sort_by(|a, b| a.name.cmp(&b.name));
    let verbs = match (row.stored, row.plural) {
        (false, "nodes" | "pods") => READ,
        (false, _) => CREATE,
        (true, "namespaces") => NO_COLLECTION_DELETE,
        (true, _) => ALL_VERBS,
    };
    let categories: Vec<Arc<str>> = match row.group {
        _ if row.all => vec!["all".into()],
        ADMISSION | APIEXTENSIONS => vec!["api-extensions".into()],
        _ => Vec::new(),
    };
    // Both event APIs show the same objects, stored in the core form; autoscalers have two versions.
    let storage = match (row.group, row.version) {
        (EVENTS, _) => GroupVersionKind::new("", "v1", "Event"),
        ("autoscaling", _) => GroupVersionKind::new(row.group, "v2", row.kind),
        (group, version) => GroupVersionKind::new(group, version, row.kind),
    };
    Resource {
        group: row.group.into(),
        version: row.version.into(),
        kind: row.kind.into(),
        plural: row.plural.into(),
        singular: row.kind.to_lowercase().into(),
        list_kind: format!("{}List", row.kind).into(),
        short_names: row.short.iter().map(|s| Arc::from(*s)).collect(),
        categories,
        namespaced: row.namespaced,
        verbs,
        subresources,
        storage_version: *storage.group == *row.group && *storage.version == *row.version,
        table: TableId::new(&storage.group, row.plural),
        storage,
        stored: row.stored,
        schema: Arc::new(
            types::find(row.type_name).map_or_else(Schema::default, |t| t.schema.clone()),
        ),
        generation: row.generation,
        scale: row.scale.then(|| ScalePaths {
            spec: ["spec", "replicas"].map(str::to_owned).to_vec(),
            status: ["status", "replicas"].map(str::to_owned).to_vec(),
            selector: None,
        }),
        custom: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_type_and_a_unique_place() {
        let all = resources();
        let mut observed = std::collections::BTreeSet::new();
        for r in &all {
            assert!(r.schema.named().is_some(), "{} has no type", r.kind);
            assert!(observed.insert((r.group.clone(), r.version.clone(), r.plural.clone())));
        }
        assert!(types::find("core/v1.Nope").is_none());
        let events: Vec<_> = all.iter().filter(|r| &*r.plural == "events").collect();
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].table, events[1].table);
        assert!(events[0].storage_version != events[1].storage_version);
    }
}
