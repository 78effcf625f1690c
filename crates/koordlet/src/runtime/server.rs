//! The hook server, which koord-runtime-proxy calls.

use super::request::{ContainerRequest, PodRequest, RequestError};
use super::responder::{HookError, HookPoint, HookResponder};
use super::{Server, registration};
use crate::hooks::{Adjustment, HookValue};
use koord_api::hookserver::HookServer;
use koord_rpc::grpc;
use koord_rpc::hooks::runtime_hook_service_server::{RuntimeHookService, RuntimeHookServiceServer};
use koord_rpc::hooks::{
    ContainerResourceHookRequest, ContainerResourceHookResponse, LinuxContainerResources,
    PodSandboxHookRequest, PodSandboxHookResponse, PodSandboxMetadata,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Delay before another attempt to listen.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Serves and registers until `shutdown`. The registration remains: without a response, the proxy follows its
/// failure policy.
pub(super) async fn run(
    config: Server,
    responder: Arc<HookResponder>,
    shutdown: CancellationToken,
) {
    if !responder.ready(&shutdown).await {
        return;
    }
    let listener = loop {
        match grpc::listen(&config.socket) {
            Ok(listener) => break listener,
            Err(error) => tracing::error!(%error, "hook server failed to listen, retrying"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RETRY_DELAY) => {}
        }
    };
    let registered = HookServer {
        remote_endpoint: config.endpoint.clone(),
        failure_policy: config.policy.name().to_owned(),
        runtime_hooks: responder.stages.names(),
    };
    let directory = config.directory.display();
    match registration::write(&config.directory, &registered) {
        Ok(()) => tracing::info!(
            socket = %config.socket.display(),
            %directory,
            hooks = registered.runtime_hooks.join(","),
            "hook server registered"
        ),
        Err(error) => tracing::error!(%directory, %error, "failed to register hook server"),
    }
    let service = RuntimeHookServiceServer::new(Service(responder))
        .max_decoding_message_size(grpc::MESSAGE_LIMIT)
        .max_encoding_message_size(grpc::MESSAGE_LIMIT);
    let served = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming_shutdown(grpc::incoming(listener), shutdown.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "hook server failed");
    }
}

/// The gRPC service.
#[derive(Debug)]
pub(super) struct Service(pub(super) Arc<HookResponder>);

fn failed(error: HookError) -> Status {
    Status::internal(error.to_string())
}

fn number(to: &mut i64, hook_value: Option<&HookValue<i64>>) {
    if let Some(hook_value) = hook_value {
        *to = hook_value.value;
    }
}

/// Returns the requested resources with the values of hooks; `None` remains `None` if hooks set no value.
fn resources(
    requested: Option<LinuxContainerResources>,
    adjustment: &Adjustment,
    cpus: bool,
) -> Option<LinuxContainerResources> {
    let mut resources = requested.clone().unwrap_or_default();
    number(&mut resources.cpu_shares, adjustment.cpu_shares.as_ref());
    number(&mut resources.cpu_quota, adjustment.cfs_quota.as_ref());
    number(
        &mut resources.memory_limit_in_bytes,
        adjustment.memory_limit.as_ref(),
    );
    if let Some(cpus) = adjustment.cpus.as_ref().filter(|_| cpus) {
        resources.cpuset_cpus.clone_from(&cpus.value);
    }
    (requested.is_some() || resources != LinuxContainerResources::default()).then_some(resources)
}

fn pod_request(
    meta: Option<&PodSandboxMetadata>,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    cgroup_parent: &str,
) -> Result<PodRequest, HookError> {
    let meta = meta.ok_or(RequestError::NoPod)?;
    Ok(PodRequest {
        uid: meta.uid.clone(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        labels: labels.clone(),
        annotations: annotations.clone(),
        cgroup_parent: cgroup_parent.to_owned(),
    })
}

fn container_request(
    request: &ContainerResourceHookRequest,
) -> Result<(PodRequest, ContainerRequest), HookError> {
    let pod = pod_request(
        request.pod_meta.as_ref(),
        &request.pod_labels,
        &request.pod_annotations,
        &request.pod_cgroup_parent,
    )?;
    let meta = request.container_meta.as_ref();
    let meta = meta.ok_or(RequestError::NoContainer)?;
    let resources = request.container_resources.as_ref();
    let container = ContainerRequest {
        name: meta.name.clone(),
        quota: resources.map_or(0, |resources| resources.cpu_quota),
        period: resources.map_or(0, |resources| resources.cpu_period),
    };
    Ok((pod, container))
}

/// Returns a response with the values of the request.
fn echo_pod(request: PodSandboxHookRequest) -> PodSandboxHookResponse {
    PodSandboxHookResponse {
        labels: request.labels,
        annotations: request.annotations,
        cgroup_parent: request.cgroup_parent,
        resources: request.resources,
    }
}

/// Returns a response with the values of the request.
fn echo(request: ContainerResourceHookRequest) -> ContainerResourceHookResponse {
    ContainerResourceHookResponse {
        container_annotations: request.container_annotations,
        container_resources: request.container_resources,
        pod_cgroup_parent: request.pod_cgroup_parent,
        container_envs: request.container_envs,
    }
}

impl Service {
    /// Returns the response for the container of the request.
    async fn container(
        &self,
        at: HookPoint,
        event: &'static str,
        request: ContainerResourceHookRequest,
    ) -> Result<Response<ContainerResourceHookResponse>, Status> {
        if !self.0.stages.has(at) {
            return Ok(Response::new(echo(request)));
        }
        let creates = at == HookPoint::CreateContainer;
        let adjustment = self.0.respond(event, async {
            let (pod, container) = container_request(&request)?;
            if !creates {
                return self.0.updated(&pod, &container);
            }
            let adjustment = self.0.new_container(&pod, &container)?;
            if adjustment.devices.is_empty() && adjustment.fresh_directory.is_none() {
                self.0.report_lost_files(&pod, &adjustment)?;
                return Ok(adjustment);
            }
            let files = move |responder: &HookResponder| {
                responder.prepare_files(&pod, &adjustment)?;
                responder.report_lost_files(&pod, &adjustment)?;
                Ok(adjustment)
            };
            self.0.run_blocking(files).await
        });
        let adjustment = adjustment.await.map_err(failed)?;
        let mut response = echo(request);
        let resources = resources(response.container_resources.take(), &adjustment, true);
        response.container_resources = resources;
        if creates {
            if let Some(score) = &adjustment.oom_score_adj {
                let resources = response.container_resources.get_or_insert_default();
                resources.oom_score_adj = score.value;
            }
            let env = adjustment.env.into_iter().map(|it| it.value);
            response.container_envs.extend(env);
        }
        Ok(Response::new(response))
    }
}

#[tonic::async_trait]
impl RuntimeHookService for Service {
    async fn pre_run_pod_sandbox_hook(
        &self,
        request: Request<PodSandboxHookRequest>,
    ) -> Result<Response<PodSandboxHookResponse>, Status> {
        let request = request.into_inner();
        let question = request.clone();
        let mut response = echo_pod(request);
        if self.0.stages.has(HookPoint::RunPodSandbox) {
            let work = move |responder: &HookResponder| {
                responder.run_pod(&pod_request(
                    question.pod_meta.as_ref(),
                    &question.labels,
                    &question.annotations,
                    &question.cgroup_parent,
                )?)
            };
            let adjustment = self
                .0
                .respond("PreRunPodSandbox", self.0.run_blocking(work));
            let adjustment = adjustment.await.map_err(failed)?;
            response.resources = resources(response.resources.take(), &adjustment, false);
        }
        Ok(Response::new(response))
    }

    async fn post_stop_pod_sandbox_hook(
        &self,
        request: Request<PodSandboxHookRequest>,
    ) -> Result<Response<PodSandboxHookResponse>, Status> {
        Ok(Response::new(echo_pod(request.into_inner())))
    }

    async fn pre_create_container_hook(
        &self,
        request: Request<ContainerResourceHookRequest>,
    ) -> Result<Response<ContainerResourceHookResponse>, Status> {
        self.container(
            HookPoint::CreateContainer,
            "PreCreateContainer",
            request.into_inner(),
        )
        .await
    }

    async fn pre_start_container_hook(
        &self,
        request: Request<ContainerResourceHookRequest>,
    ) -> Result<Response<ContainerResourceHookResponse>, Status> {
        Ok(Response::new(echo(request.into_inner())))
    }

    async fn post_start_container_hook(
        &self,
        request: Request<ContainerResourceHookRequest>,
    ) -> Result<Response<ContainerResourceHookResponse>, Status> {
        Ok(Response::new(echo(request.into_inner())))
    }

    async fn post_stop_container_hook(
        &self,
        request: Request<ContainerResourceHookRequest>,
    ) -> Result<Response<ContainerResourceHookResponse>, Status> {
        Ok(Response::new(echo(request.into_inner())))
    }

    async fn pre_update_container_resources_hook(
        &self,
        request: Request<ContainerResourceHookRequest>,
    ) -> Result<Response<ContainerResourceHookResponse>, Status> {
        let event = "PreUpdateContainerResources";
        self.container(HookPoint::UpdateContainer, event, request.into_inner())
            .await
    }
}
