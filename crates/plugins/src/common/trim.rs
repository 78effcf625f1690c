//! Trimming of API objects that informers store: managed fields, copies by tools and fields that no rule
//! reads are dropped. Kinds with many objects of which little is read have a type of their own instead, such
//! as `TrimmedClaim`.

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
pub(crate) struct Trimmer;

/// Keeps names, times, labels and annotations, except for kubectl's copy of the object.
fn trim_metadata(metadata: &mut ObjectMeta) {
    let all = std::mem::take(metadata);
    let mut annotations = all.annotations;
    if let Some(annotations) = &mut annotations {
        annotations.remove(LAST_APPLIED);
    }
    *metadata = ObjectMeta {
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
fn trim_to_names(metadata: &mut ObjectMeta) {
    trim_metadata(metadata);
    metadata.labels = None;
    metadata.annotations = None;
}

impl Trim<StorageClass> for Trimmer {
    fn trim(class: &mut StorageClass) {
        trim_to_names(&mut class.metadata);
        class.mount_options = None;
        class.parameters = None;
    }
}

impl Trim<CSINode> for Trimmer {
    fn trim(node: &mut CSINode) {
        // An annotation lists the in-tree plugins that migrated to CSI drivers.
        trim_metadata(&mut node.metadata);
        node.metadata.labels = None;
        for driver in &mut node.spec.drivers {
            driver.node_id = String::new();
            driver.topology_keys = None;
        }
    }
}

impl Trim<CSIDriver> for Trimmer {
    fn trim(driver: &mut CSIDriver) {
        trim_to_names(&mut driver.metadata);
        driver.spec.token_requests = None;
        driver.spec.volume_lifecycle_modes = None;
    }
}

impl Trim<CSIStorageCapacity> for Trimmer {
    fn trim(capacity: &mut CSIStorageCapacity) {
        trim_to_names(&mut capacity.metadata);
    }
}

impl Trim<Namespace> for Trimmer {
    fn trim(namespace: &mut Namespace) {
        trim_metadata(&mut namespace.metadata);
        namespace.metadata.annotations = None;
        namespace.spec = None;
        namespace.status = None;
    }
}

impl Trim<PodDisruptionBudget> for Trimmer {
    fn trim(budget: &mut PodDisruptionBudget) {
        trim_to_names(&mut budget.metadata);
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

impl Trim<Reservation> for Trimmer {
    fn trim(reservation: &mut Reservation) {
        trim_metadata(&mut reservation.metadata);
        let template = &mut reservation.spec.template;
        if let Some(metadata) = &mut template.metadata {
            // The owner references of the template identify the controller of such pods.
            let owners = metadata.owner_references.take();
            trim_metadata(metadata);
            metadata.owner_references = owners;
        }
        if let Some(spec) = &mut template.spec {
            koord_scheduler::trim_pod_spec(spec);
        }
    }
}

impl Trim<ElasticQuota> for Trimmer {
    fn trim(quota: &mut ElasticQuota) {
        trim_metadata(&mut quota.metadata);
    }
}

impl Trim<PodGroup> for Trimmer {
    fn trim(group: &mut PodGroup) {
        trim_metadata(&mut group.metadata);
    }
}

impl Trim<ClusterNetworkTopology> for Trimmer {
    fn trim(topology: &mut ClusterNetworkTopology) {
        trim_metadata(&mut topology.metadata);
    }
}
