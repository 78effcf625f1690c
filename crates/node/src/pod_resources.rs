//! The kubelet's PodResources service of this node. The CPU, memory and device managers are off, as in
//! `/configz`: no container has exclusive resources, and none can have any.

use crate::table::Table;
use k8s_openapi::api::core::v1::{Container, Pod};
use koord_rpc::lister::PodResourcesSource;
use koord_rpc::podresources::{AllocatableResourcesResponse, ContainerResources, PodResources};
use tonic::Status;

/// The pods of the table that have not ended, as kubelets from 1.34 list them.
pub(crate) struct PodTableSource(pub(crate) Table);

impl PodResourcesSource for PodTableSource {
    fn pods(&self) -> Result<Vec<PodResources>, Status> {
        let pods = self.0.list();
        Ok(pods
            .iter()
            .filter(|pod| !is_over(pod))
            .map(to_pod_resources)
            .collect())
    }

    fn allocatable(&self) -> Result<AllocatableResourcesResponse, Status> {
        Ok(AllocatableResourcesResponse::default())
    }
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns the entry of a pod, with its long-running containers: sidecars first, then the main containers.
fn to_pod_resources(pod: &Pod) -> PodResources {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref());
    let init = init.into_iter().flatten();
    let sidecars = init.filter(|it| it.restart_policy.as_deref() == Some("Always"));
    let main = spec.into_iter().flat_map(|spec| &spec.containers);
    let container = |container: &Container| ContainerResources {
        name: container.name.clone(),
        ..ContainerResources::default()
    };
    PodResources {
        name: pod.metadata.name.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        containers: sidecars.chain(main).map(container).collect(),
        ..PodResources::default()
    }
}
