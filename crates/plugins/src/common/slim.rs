//! Trimming of API objects that informers store: managed fields, copies by tools and fields that no rule
//! reads are dropped. Kinds with many objects of which little is read have a type of their own instead, such
//! as `SeenClaim`.

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::scheduling::{ClusterNetworkTopology, ElasticQuota, PodGroup, Reservation};
use koord_scheduler::Trim;

/// Annotation in which `kubectl apply` stores a copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Drops fields that no plugin reads.
#[derive(Debug)]
pub(crate) struct Slim;

/// Keeps names, times, labels and annotations, except for kubectl's copy of the object.
fn meta(meta: &mut ObjectMeta) {
    let all = std::mem::take(meta);
    let mut annotations = all.annotations;
    if let Some(annotations) = &mut annotations {
        annotations.remove(LAST_APPLIED);
    }
    *meta = ObjectMeta {
        name: all.name,
        namespace: all.namespace,
        uid: all.uid,
        resource_version: all.resource_version,
        creation_timestamp: all.creation_timestamp,
        deletion_timestamp: all.deletion_timestamp,
        labels: all.labels,
        annotations: annotations.filter(|annotations| !annotations.is_empty()),
        ..ObjectMeta::default()
    };
}

/// Keeps only names and times.
fn bare(of: &mut ObjectMeta) {
    meta(of);
    of.labels = None;
    of.annotations = None;
}

impl Trim<StorageClass> for Slim {
    fn trim(class: &mut StorageClass) {
        bare(&mut class.metadata);
        class.mount_options = None;
        class.parameters = None;
    }
}

impl Trim<CSINode> for Slim {
    fn trim(node: &mut CSINode) {
        // An annotation lists the in-tree plugins that migrated to CSI drivers.
        meta(&mut node.metadata);
        node.metadata.labels = None;
        for driver in &mut node.spec.drivers {
            driver.node_id = String::new();
            driver.topology_keys = None;
        }
    }
}

impl Trim<CSIDriver> for Slim {
    fn trim(driver: &mut CSIDriver) {
        bare(&mut driver.metadata);
        driver.spec.token_requests = None;
        driver.spec.volume_lifecycle_modes = None;
    }
}

impl Trim<CSIStorageCapacity> for Slim {
    fn trim(capacity: &mut CSIStorageCapacity) {
        bare(&mut capacity.metadata);
    }
}

impl Trim<Namespace> for Slim {
    fn trim(namespace: &mut Namespace) {
        meta(&mut namespace.metadata);
        namespace.metadata.annotations = None;
        namespace.spec = None;
        namespace.status = None;
    }
}

impl Trim<PodDisruptionBudget> for Slim {
    fn trim(budget: &mut PodDisruptionBudget) {
        bare(&mut budget.metadata);
        budget.spec = budget.spec.take().map(|spec| PodDisruptionBudgetSpec {
            selector: spec.selector,
            ..PodDisruptionBudgetSpec::default()
        });
        budget.status = budget
            .status
            .take()
            .map(|status| PodDisruptionBudgetStatus {
                disrupted_pods: status.disrupted_pods,
                disruptions_allowed: status.disruptions_allowed,
                ..PodDisruptionBudgetStatus::default()
            });
    }
}

impl Trim<Reservation> for Slim {
    fn trim(reservation: &mut Reservation) {
        meta(&mut reservation.metadata);
        let template = &mut reservation.spec.template;
        if let Some(of) = &mut template.metadata {
            // The owner references of the template identify the controller of such pods.
            let owners = of.owner_references.take();
            meta(of);
            of.owner_references = owners;
        }
        if let Some(spec) = &mut template.spec {
            koord_scheduler::trim_pod_spec(spec);
        }
    }
}

impl Trim<ElasticQuota> for Slim {
    fn trim(quota: &mut ElasticQuota) {
        meta(&mut quota.metadata);
    }
}

impl Trim<PodGroup> for Slim {
    fn trim(group: &mut PodGroup) {
        meta(&mut group.metadata);
    }
}

impl Trim<ClusterNetworkTopology> for Slim {
    fn trim(topology: &mut ClusterNetworkTopology) {
        meta(&mut topology.metadata);
    }
}
