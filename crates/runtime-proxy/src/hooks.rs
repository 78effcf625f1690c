//! Hook servers: which one is asked, and what it answers.

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

/// When a hook server can be asked, by the names that registrations use.
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

/// A failed hook under the policy Fail: what the kubelet hears.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hook server err: {0}")]
pub(crate) struct Refusal(pub(crate) String);

/// All registered hook servers.
#[derive(Debug)]
pub(crate) struct Hooks {
    registrations: Registrations,
    timeout: Duration,
    channels: Mutex<HashMap<PathBuf, Channel>>,
}

impl Hooks {
    pub(crate) fn new(registrations: Registrations, timeout: Duration) -> Self {
        Self {
            registrations,
            timeout,
            channels: Mutex::default(),
        }
    }

    /// The server that is asked: the first one that registered for it.
    pub(crate) fn server(&self, hook: Hook) -> Option<Arc<Registration>> {
        let registrations = self.registrations.load();
        let wants = |registration: &&Arc<Registration>| {
            registration.hooks.iter().any(|name| name == hook.name())
        };
        registrations.iter().find(wants).cloned()
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

    /// Asks about a pod. `None` when there is nobody to ask, or a failure that is to be ignored.
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
        self.judge(hook, &server, &pod, self.limit(answer).await)
    }

    /// Asks about a container, in the same way.
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
        self.judge(hook, &server, &pod, self.limit(answer).await)
    }

    async fn limit<T>(
        &self,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        match tokio::time::timeout(self.timeout, answer).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "no answer within {:?}",
                self.timeout
            ))),
        }
    }

    fn judge<T>(
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
            "hook failed"
        );
        refused(server.policy, error)
    }

    /// What becomes of a call that this proxy cannot ask about, for the reason `problem`.
    pub(crate) fn skip_or_refuse<T>(
        &self,
        hook: Hook,
        problem: String,
    ) -> Result<Option<T>, Refusal> {
        let Some(server) = self.server(hook) else {
            return Ok(None);
        };
        tracing::warn!(hook = hook.name(), policy = ?server.policy, problem, "hook not asked");
        refused(server.policy, problem)
    }
}

fn refused<T>(policy: Policy, problem: String) -> Result<Option<T>, Refusal> {
    match policy {
        Policy::Ignore => Ok(None),
        Policy::Fail => Err(Refusal(problem)),
    }
}
