//! The kubelet's end of PodResources, for components that act as a kubelet.

use crate::grpc::{self, MESSAGE_LIMIT};
use crate::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use crate::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, GetPodResourcesRequest,
    GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Returns the socket at which the kubelet with directory `dir` serves PodResources.
#[must_use]
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("pod-resources/kubelet.sock")
}

/// Source of the resources that a kubelet lists.
pub trait PodResourcesSource: Send + Sync + 'static {
    /// Returns the pods, and the resources that are assigned to their containers exclusively.
    ///
    /// # Errors
    /// Returns an error if there is no kubelet.
    fn pods(&self) -> Result<Vec<PodResources>, Status>;

    /// Returns the resources that can be assigned to containers exclusively.
    ///
    /// # Errors
    /// Returns an error if there is no kubelet.
    fn allocatable(&self) -> Result<AllocatableResourcesResponse, Status>;
}

/// Listens at `socket`, whose directory is created if necessary. The returned future serves until `stop`.
///
/// # Errors
/// Returns an error if the socket cannot be created.
pub fn serve(
    source: impl PodResourcesSource,
    socket: &Path,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static> {
    let listener = grpc::listen(socket)?;
    let service =
        PodResourcesListerServer::new(Lister(source)).max_encoding_message_size(MESSAGE_LIMIT);
    let server = Server::builder().add_service(service);
    Ok(server.serve_with_incoming_shutdown(grpc::incoming(listener), stop))
}

struct Lister<L>(L);

#[tonic::async_trait]
impl<L: PodResourcesSource> PodResourcesLister for Lister<L> {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.pods()?;
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Ok(Response::new(self.0.allocatable()?))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        let GetPodResourcesRequest {
            pod_name,
            pod_namespace,
        } = request.into_inner();
        let mut pods = self.0.pods()?.into_iter();
        let matching = pods.find(|pod| pod.name == pod_name && pod.namespace == pod_namespace);
        // The kubelet's error has no code, too.
        let pod = matching.ok_or_else(|| {
            Status::unknown(format!(
                "pod {pod_name} in namespace {pod_namespace} not found"
            ))
        })?;
        Ok(Response::new(GetPodResourcesResponse {
            pod_resources: Some(pod),
        }))
    }
}
