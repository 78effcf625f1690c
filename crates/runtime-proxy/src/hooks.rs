//! Calls hook servers over gRPC and applies the failure policy.

use crate::metrics::ProxyMetrics;
use crate::registration::{Registration, Registrations};
use koord_api::hookserver::Policy;
use koord_rpc::hooks::runtime_hook_service_client::RuntimeHookServiceClient;
use koord_rpc::hooks::{
    ContainerResourceHookRequest, ContainerResourceHookResponse, PodSandboxHookRequest,
    PodSandboxHookResponse,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Hook points, with the names used in registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    PreRunPodSandbox,
    PostStopPodSandbox,
    PreCreateContainer,
    PreStartContainer,
    PostStartContainer,
    PreUpdateContainerResources,
    PostStopContainer,
}

impl Hook {
    fn name(self) -> &'static str {
        match self {
            Self::PreRunPodSandbox => "PreRunPodSandbox",
            Self::PostStopPodSandbox => "PostStopPodSandbox",
            Self::PreCreateContainer => "PreCreateContainer",
            Self::PreStartContainer => "PreStartContainer",
            Self::PostStartContainer => "PostStartContainer",
            Self::PreUpdateContainerResources => "PreUpdateContainerResources",
            Self::PostStopContainer => "PostStopContainer",
        }
    }
}

/// The error that the kubelet gets for a failed hook with policy Fail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hook server err: {0}")]
pub(crate) struct Refusal(pub(crate) String);

/// Registered hook servers.
#[derive(Debug)]
pub(crate) struct Hooks {
    registrations: Registrations,
    timeout: Duration,
    metrics: ProxyMetrics,
    channels: Mutex<HashMap<PathBuf, Channel>>,
}

impl Hooks {
    pub(crate) fn new(
        registrations: Registrations,
        timeout: Duration,
        metrics: ProxyMetrics,
    ) -> Self {
        Self {
            registrations,
            timeout,
            metrics,
            channels: Mutex::default(),
        }
    }

    /// Returns the server for a hook: the first one registered for it.
    pub(crate) fn server(&self, hook: Hook) -> Option<Arc<Registration>> {
        let registrations = self.registrations.load();
        let has_hook = |registration: &&Arc<Registration>| {
            registration.hooks.iter().any(|name| name == hook.name())
        };
        registrations.iter().find(has_hook).cloned()
    }

    fn client(&self, server: &Registration) -> RuntimeHookServiceClient<Channel> {
        let mut channels = self.channels.lock();
        if !channels.contains_key(&server.endpoint) {
            let registrations = self.registrations.load();
            channels.retain(|path, _| {
                registrations
                    .iter()
                    .any(|registration| registration.endpoint == *path)
            });
        }
        let channel = channels
            .entry(server.endpoint.clone())
            .or_insert_with(|| koord_rpc::grpc::connect(&server.endpoint));
        RuntimeHookServiceClient::new(channel.clone())
    }

    /// Calls a pod hook. Returns `None` if no server is registered, or a failure is ignored.
    pub(crate) async fn pod(
        &self,
        hook: Hook,
        request: &PodSandboxHookRequest,
    ) -> Result<Option<PodSandboxHookResponse>, Refusal> {
        let Some(server) = self.server(hook) else {
            return Ok(None);
        };
        let mut client = self.client(&server);
        let request = request.clone();
        let pod = request.pod_meta.clone().unwrap_or_default();
        let answer = async move {
            match hook {
                Hook::PostStopPodSandbox => client.post_stop_pod_sandbox_hook(request).await,
                _ => client.pre_run_pod_sandbox_hook(request).await,
            }
        };
        self.check_response(hook, &server, &pod, self.limit(hook, answer).await)
    }

    /// Calls a container hook, like [`Self::pod`].
    pub(crate) async fn container(
        &self,
        hook: Hook,
        request: &ContainerResourceHookRequest,
    ) -> Result<Option<ContainerResourceHookResponse>, Refusal> {
        let Some(server) = self.server(hook) else {
            return Ok(None);
        };
        let mut client = self.client(&server);
        let request = request.clone();
        let pod = request.pod_meta.clone().unwrap_or_default();
        let answer = async move {
            match hook {
                Hook::PreStartContainer => client.pre_start_container_hook(request).await,
                Hook::PostStartContainer => client.post_start_container_hook(request).await,
                Hook::PostStopContainer => client.post_stop_container_hook(request).await,
                Hook::PreUpdateContainerResources => {
                    client.pre_update_container_resources_hook(request).await
                }
                _ => client.pre_create_container_hook(request).await,
            }
        };
        self.check_response(hook, &server, &pod, self.limit(hook, answer).await)
    }

    /// Limits the time of a hook call, and measures it.
    async fn limit<T>(
        &self,
        hook: Hook,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        let begun = tokio::time::Instant::now();
        let answer = match tokio::time::timeout(self.timeout, answer).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no answer within {:?}",
                self.timeout
            ))),
        };
        self.metrics
            .record_hook(hook.name(), begun.elapsed(), answer.is_ok());
        answer
    }

    fn check_response<T>(
        &self,
        hook: Hook,
        server: &Registration,
        pod: &koord_rpc::hooks::PodSandboxMetadata,
        answer: Result<T, Status>,
    ) -> Result<Option<T>, Refusal> {
        let error = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(status) => format!(
                "rpc error: code = {:?} desc = {}",
                status.code(),
                status.message()
            ),
        };
        tracing::warn!(
            hook = hook.name(),
            server = %server.endpoint.display(),
            policy = ?server.policy,
            pod = %format_args!("{}/{}", pod.namespace, pod.name),
            error,
            "hook failed, applying its failure policy"
        );
        self.metrics.record_failure(hook.name(), server.policy);
        apply_policy(server.policy, error)
    }

    /// Applies the failure policy to a hook that cannot be called because of `problem`.
    pub(crate) fn skip_or_refuse<T>(
        &self,
        hook: Hook,
        problem: String,
    ) -> Result<Option<T>, Refusal> {
        let Some(server) = self.server(hook) else {
            return Ok(None);
        };
        tracing::warn!(hook = hook.name(), policy = ?server.policy, problem, "failed to call hook, applying its failure policy");
        self.metrics.record_failure(hook.name(), server.policy);
        apply_policy(server.policy, problem)
    }
}

fn apply_policy<T>(policy: Policy, problem: String) -> Result<Option<T>, Refusal> {
    match policy {
        Policy::Ignore => Ok(None),
        Policy::Fail => Err(Refusal(problem)),
    }
}
