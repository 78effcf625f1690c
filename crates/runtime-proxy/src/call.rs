//! The calls for which hook servers are called, as functions of a request's bytes.
//!
//! [`Decider::decide`] converts the kubelet's message to the one for the runtime, and returns what to do
//! after the runtime has processed it ([`PostCall`]). A message that no hook changes keeps its bytes;
//! otherwise it is changed in place (see `wire`).

mod apply;

use crate::SkipLabel;
use crate::hooks::{Hook, Hooks, Refusal};
use crate::merge;
use crate::store::lookup::Runtime;
use crate::store::{Container, Store};
use bytes::Bytes;
use koord_rpc::cri;
use koord_rpc::hooks::{
    ContainerMetadata, ContainerResourceHookRequest, PodSandboxHookRequest, PodSandboxMetadata,
};
use prost::Message as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use tonic::Status;

/// CRI calls that the proxy decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    CreateContainer,
    StartContainer,
    UpdateContainerResources,
    StopContainer,
    RemoveContainer,
}

impl Call {
    /// Returns the call with this gRPC path; `None` if the proxy does not decode it.
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        Some(match path.strip_prefix("/runtime.v1.RuntimeService/")? {
            "RunPodSandbox" => Self::RunPodSandbox,
            "StopPodSandbox" => Self::StopPodSandbox,
            "RemovePodSandbox" => Self::RemovePodSandbox,
            "CreateContainer" => Self::CreateContainer,
            "StartContainer" => Self::StartContainer,
            "UpdateContainerResources" => Self::UpdateContainerResources,
            "StopContainer" => Self::StopContainer,
            "RemoveContainer" => Self::RemoveContainer,
            _ => return None,
        })
    }

    /// Returns the hook that runs before the call.
    pub(crate) fn pre_hook(self) -> Option<Hook> {
        Some(match self {
            Self::RunPodSandbox => Hook::PreRunPodSandbox,
            Self::CreateContainer => Hook::PreCreateContainer,
            Self::StartContainer => Hook::PreStartContainer,
            Self::UpdateContainerResources => Hook::PreUpdateContainerResources,
            _ => return None,
        })
    }
}

/// Action after the runtime has processed the call.
#[derive(Debug)]
pub(crate) enum PostCall {
    Nothing,
    /// Store this pod; the response contains its id.
    Ran(PodSandboxHookRequest),
    /// Store this container; the response contains its id.
    Created(Container),
    Updated(String, Container),
    Started(Arc<Container>),
    StoppedPod(String, Option<Arc<PodSandboxHookRequest>>),
    StoppedContainer(String, Option<Arc<Container>>),
    RemovedPod(String),
    RemovedContainer(String),
}

/// Decision about a request: the message for the runtime, and what to do after the call.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) message: Bytes,
    pub(crate) post_call: PostCall,
}

/// Reason why a request cannot be decoded.
#[derive(Debug, thiserror::Error)]
enum UnreadableRequest {
    #[error("failed to decode the request: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("failed to parse the request: {0}")]
    Wire(#[from] crate::wire::WireError),
}

/// Calls hook servers and applies their responses.
#[derive(Debug)]
pub(crate) struct Decider {
    pub(crate) hooks: Hooks,
    pub(crate) store: Store,
    pub(crate) runtime: Runtime,
    pub(crate) skip: SkipLabel,
}

impl Decider {
    /// Calls the hook server that is registered for the call, and applies its response.
    ///
    /// # Errors
    ///
    /// A hook failed whose failure policy is Fail.
    pub(crate) async fn decide(&self, call: Call, message: Bytes) -> Result<Decision, Refusal> {
        let unreadable = |error: &UnreadableRequest| {
            if let Some(hook) = call.pre_hook() {
                self.hooks.skip_or_refuse::<()>(hook, error.to_string())?;
            }
            Ok(PostCall::Nothing)
        };
        let decided = match call {
            Call::RunPodSandbox => self.run_pod(&message).await,
            Call::CreateContainer => self.create_container(&message).await,
            Call::UpdateContainerResources => self.update_container(&message).await,
            _ => self.decide_by_id(call, &message).await.map(|result| {
                let unchanged = message.clone();
                result.map(|post_call| (unchanged, post_call))
            }),
        };
        match decided {
            Ok(Ok((message, post_call))) => Ok(Decision { message, post_call }),
            Ok(Err(refusal)) => Err(refusal),
            Err(error) => {
                let post_call = unreadable(&error)?;
                Ok(Decision { message, post_call })
            }
        }
    }

    fn is_exempt(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get(&self.skip.key) == Some(&self.skip.value)
    }

    /// Calls the hook for a RunPodSandbox request. Returns the message for the runtime, and the pod to store after
    /// the call.
    async fn run_pod(&self, message: &Bytes) -> HookResult<(Bytes, PostCall)> {
        let request = cri::RunPodSandboxRequest::decode(message.clone())?;
        let mut pod = pod(request.config.unwrap_or_default(), request.runtime_handler);
        if self.is_exempt(&pod.labels) {
            return Ok(Ok((message.clone(), PostCall::Ran(pod))));
        }
        let answer = match self.hooks.pod(Hook::PreRunPodSandbox, &pod).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Ok((message.clone(), PostCall::Ran(pod)))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let message = apply::run_pod(message, &answer)?;
        merge::entries(&mut pod.labels, &answer.labels);
        merge::entries(&mut pod.annotations, &answer.annotations);
        if !answer.cgroup_parent.is_empty() {
            pod.cgroup_parent = answer.cgroup_parent;
        }
        Ok(Ok((message, PostCall::Ran(pod))))
    }

    /// Calls the hook for a creation and applies its response to the message.
    async fn create_container(&self, message: &Bytes) -> HookResult<(Bytes, PostCall)> {
        let request = cri::CreateContainerRequest::decode(message.clone())?;
        let config = request.config.unwrap_or_default();
        // The request contains the same, except for what a hook changed in the pod.
        let requested_pod = pod(request.sandbox_config.unwrap_or_default(), String::new());
        let stored_pod = self.store.pod(&request.pod_sandbox_id);
        let pod = stored_pod.as_deref().unwrap_or(&requested_pod);
        let resources = config.linux.and_then(|linux| linux.resources);
        // Values that are not UTF-8 cannot be sent to a hook server; the runtime gets them unchanged.
        let envs = config.envs.into_iter();
        let envs = envs.filter_map(|env| Some((env.key, String::from_utf8(env.value).ok()?)));
        let mut container = Container {
            sandbox: request.pod_sandbox_id.clone(),
            request: ContainerResourceHookRequest {
                container_meta: config.metadata.map(|meta| ContainerMetadata {
                    name: meta.name,
                    attempt: meta.attempt,
                    id: String::new(),
                }),
                container_annotations: config.annotations,
                container_resources: resources.as_ref().map(merge::resources),
                container_envs: envs.collect(),
                ..container_request(pod)
            },
        };
        let hook_request = &mut container.request;
        if !requested_pod.cgroup_parent.is_empty() {
            hook_request.pod_cgroup_parent = requested_pod.cgroup_parent.clone();
        }
        if self.is_exempt(&hook_request.pod_labels) {
            return Ok(Ok((message.clone(), PostCall::Created(container))));
        }
        let answer = match self
            .hooks
            .container(Hook::PreCreateContainer, hook_request)
            .await
        {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Ok((message.clone(), PostCall::Created(container)))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        merge::entries(
            &mut hook_request.container_annotations,
            &answer.container_annotations,
        );
        merge::entries(&mut hook_request.container_envs, &answer.container_envs);
        if let Some(answered) = &answer.container_resources {
            merge::apply_answer(
                hook_request.container_resources.get_or_insert_default(),
                answered,
            );
        }
        if !answer.pod_cgroup_parent.is_empty() {
            hook_request
                .pod_cgroup_parent
                .clone_from(&answer.pod_cgroup_parent);
        }
        let changed_resources = answer
            .container_resources
            .is_some()
            .then_some(hook_request.container_resources.as_ref())
            .flatten();
        let message = apply::create_container(message, &answer, changed_resources)?;
        Ok(Ok((message, PostCall::Created(container))))
    }

    /// Calls the hook for an update of resources and applies its response to the message.
    async fn update_container(&self, message: &Bytes) -> HookResult<(Bytes, PostCall)> {
        let request = cri::UpdateContainerResourcesRequest::decode(message.clone())?;
        let id = request.container_id;
        let hook = Hook::PreUpdateContainerResources;
        let stored = match self.container_for(hook, &id).await {
            Ok(Some(container)) => container,
            Ok(None) => return Ok(Ok((message.clone(), PostCall::Nothing))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut container = (*stored).clone();
        let hook_request = &mut container.request;
        if let Some(linux) = &request.linux {
            let resources = hook_request.container_resources.get_or_insert_default();
            merge::update(resources, &merge::resources(linux));
        }
        if self.is_exempt(&hook_request.pod_labels) {
            return Ok(Ok((message.clone(), PostCall::Updated(id, container))));
        }
        let answer = match self.hooks.container(hook, hook_request).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Ok((message.clone(), PostCall::Updated(id, container)))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        // Annotations that the container already has are not changes by the hook.
        let new_annotations = answer.container_annotations.iter();
        let new_annotations = new_annotations
            .filter(|(key, value)| hook_request.container_annotations.get(*key) != Some(value));
        let annotations: BTreeMap<_, _> = new_annotations
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        merge::entries(&mut hook_request.container_annotations, &annotations);
        let mut changed_resources = None;
        if let Some(answered) = &answer.container_resources {
            let resources = hook_request.container_resources.get_or_insert_default();
            merge::apply_answer(resources, answered);
            changed_resources = Some(&*resources);
        }
        let message = apply::update_container(message, &annotations, changed_resources)?;
        Ok(Ok((message, PostCall::Updated(id, container))))
    }

    /// Decides about calls that contain only an id, and are never changed.
    async fn decide_by_id(&self, call: Call, message: &Bytes) -> HookResult<PostCall> {
        Ok(match call {
            Call::StartContainer => {
                let id = cri::StartContainerRequest::decode(message.clone())?.container_id;
                self.start(&id).await
            }
            Call::StopContainer => {
                let id = cri::StopContainerRequest::decode(message.clone())?.container_id;
                let container = match self.hooks.server(Hook::PostStopContainer) {
                    Some(_) => self.lookup_container(&id).await.unwrap_or_default(),
                    None => None,
                };
                Ok(PostCall::StoppedContainer(id, container))
            }
            Call::StopPodSandbox => {
                let id = cri::StopPodSandboxRequest::decode(message.clone())?.pod_sandbox_id;
                let pod = match self.hooks.server(Hook::PostStopPodSandbox) {
                    Some(_) => self.lookup_pod(&id).await.unwrap_or_default(),
                    None => None,
                };
                Ok(PostCall::StoppedPod(id, pod))
            }
            Call::RemovePodSandbox => {
                let request = cri::RemovePodSandboxRequest::decode(message.clone())?;
                Ok(PostCall::RemovedPod(request.pod_sandbox_id))
            }
            Call::RemoveContainer => {
                let request = cri::RemoveContainerRequest::decode(message.clone())?;
                Ok(PostCall::RemovedContainer(request.container_id))
            }
            Call::RunPodSandbox | Call::CreateContainer | Call::UpdateContainerResources => {
                Ok(PostCall::Nothing)
            }
        })
    }

    async fn start(&self, id: &str) -> Result<PostCall, Refusal> {
        let before = self.container_for(Hook::PreStartContainer, id).await?;
        let container = match before {
            Some(container) => container,
            None if self.hooks.server(Hook::PostStartContainer).is_none() => {
                return Ok(PostCall::Nothing);
            }
            None => match self.lookup_container(id).await {
                Ok(Some(container)) => container,
                _ => return Ok(PostCall::Nothing),
            },
        };
        if self.is_exempt(&container.request.pod_labels) {
            return Ok(PostCall::Nothing);
        }
        // A start request has no field that a response could change.
        self.hooks
            .container(Hook::PreStartContainer, &container.request)
            .await?;
        Ok(PostCall::Started(container))
    }

    /// Returns the container for `hook`, looked up in the runtime only if a server is registered for the
    /// hook. A failed lookup counts as a failed hook.
    async fn container_for(&self, hook: Hook, id: &str) -> Result<Option<Arc<Container>>, Refusal> {
        if self.hooks.server(hook).is_none() {
            return Ok(self.store.container(id));
        }
        match self.lookup_container(id).await {
            Ok(container) => Ok(container),
            Err(status) => {
                let problem = format!("failed to look up container {id}: {}", status.message());
                self.hooks.skip_or_refuse(hook, problem)
            }
        }
    }

    async fn lookup_pod(&self, id: &str) -> Result<Option<Arc<PodSandboxHookRequest>>, Status> {
        if let Some(pod) = self.store.pod(id) {
            return Ok(Some(pod));
        }
        let Some(pod) = self.runtime.pod(id).await? else {
            return Ok(None);
        };
        let pod = Arc::new(pod);
        self.store.put_pod(id.to_owned(), pod.clone());
        Ok(Some(pod))
    }

    async fn lookup_container(&self, id: &str) -> Result<Option<Arc<Container>>, Status> {
        if let Some(container) = self.store.container(id) {
            return Ok(Some(container));
        }
        let Some(mut container) = self.runtime.container(id).await? else {
            return Ok(None);
        };
        if let Some(pod) = self.lookup_pod(&container.sandbox).await? {
            let own_request = std::mem::take(&mut container.request);
            let pod = container_request(&pod);
            container.request = ContainerResourceHookRequest {
                pod_meta: pod.pod_meta,
                pod_annotations: pod.pod_annotations,
                pod_labels: pod.pod_labels,
                pod_resources: pod.pod_resources,
                pod_cgroup_parent: pod.pod_cgroup_parent,
                ..own_request
            };
        }
        let container = Arc::new(container);
        self.store.put_container(id.to_owned(), container.clone());
        Ok(Some(container))
    }

    /// Runs what follows a successful call. `answer` is the runtime's response, if it was small enough.
    pub(crate) async fn after(&self, post_call: PostCall, answer: Option<Bytes>) {
        match post_call {
            PostCall::Nothing => {}
            PostCall::Ran(pod) => match answer.map(cri::RunPodSandboxResponse::decode) {
                Some(Ok(answer)) => self.store.put_pod(answer.pod_sandbox_id, Arc::new(pod)),
                answer => tracing::warn!(
                    ?answer,
                    "failed to find the pod id in the runtime's response to RunPodSandbox"
                ),
            },
            PostCall::Created(mut container) => {
                match answer.map(cri::CreateContainerResponse::decode) {
                    Some(Ok(answer)) => {
                        let meta = container.request.container_meta.get_or_insert_default();
                        meta.id.clone_from(&answer.container_id);
                        self.store
                            .put_container(answer.container_id, Arc::new(container));
                    }
                    answer => {
                        tracing::warn!(
                            ?answer,
                            "failed to find the container id in the runtime's response to CreateContainer"
                        );
                    }
                }
            }
            PostCall::Updated(id, container) => self.store.put_container(id, Arc::new(container)),
            PostCall::Started(container) => {
                self.notify(Hook::PostStartContainer, &container.request)
                    .await;
            }
            PostCall::StoppedContainer(id, container) => {
                if let Some(container) = container {
                    self.notify(Hook::PostStopContainer, &container.request)
                        .await;
                }
                self.store.remove_container(&id);
            }
            PostCall::StoppedPod(id, pod) => {
                if let Some(pod) = pod.filter(|pod| !self.is_exempt(&pod.labels)) {
                    // The call is done: response and failure of the hook have no effect.
                    let _ = self.hooks.pod(Hook::PostStopPodSandbox, &pod).await;
                }
                self.store.remove_pod(&id);
            }
            PostCall::RemovedPod(id) => self.store.remove_pod(&id),
            PostCall::RemovedContainer(id) => self.store.remove_container(&id),
        }
    }

    async fn notify(&self, hook: Hook, request: &ContainerResourceHookRequest) {
        if !self.is_exempt(&request.pod_labels) {
            // The call is done: response and failure of the hook have no effect.
            let _ = self.hooks.container(hook, request).await;
        }
    }
}

/// The outer result is whether the request could be decoded, the inner one whether the call may proceed.
type HookResult<T> = Result<Result<T, Refusal>, UnreadableRequest>;

/// Returns the hook request for a pod.
fn pod(config: cri::PodSandboxConfig, runtime_handler: String) -> PodSandboxHookRequest {
    let linux = config.linux.unwrap_or_default();
    PodSandboxHookRequest {
        pod_meta: config.metadata.map(|meta| PodSandboxMetadata {
            name: meta.name,
            uid: meta.uid,
            namespace: meta.namespace,
            attempt: meta.attempt,
        }),
        runtime_handler,
        labels: config.labels,
        annotations: config.annotations,
        cgroup_parent: linux.cgroup_parent,
        overhead: linux.overhead.as_ref().map(merge::resources),
        resources: linux.resources.as_ref().map(merge::resources),
    }
}

/// Returns a hook request for a container with the fields of its pod.
fn container_request(pod: &PodSandboxHookRequest) -> ContainerResourceHookRequest {
    ContainerResourceHookRequest {
        pod_meta: pod.pod_meta.clone(),
        pod_annotations: pod.annotations.clone(),
        pod_labels: pod.labels.clone(),
        pod_resources: pod.resources.clone(),
        pod_cgroup_parent: pod.cgroup_parent.clone(),
        ..Default::default()
    }
}

/// Entry points of the fuzz targets; they return `None` for requests that cannot be decoded.
#[cfg(fuzzing)]
pub mod fuzzed {
    use super::apply;
    use bytes::Bytes;
    use koord_rpc::hooks::{ContainerResourceHookResponse, PodSandboxHookResponse};

    /// Applies a response to a RunPodSandbox request.
    pub fn run_pod(request: &Bytes, answer: &PodSandboxHookResponse) -> Option<Bytes> {
        apply::run_pod(request, answer).ok()
    }

    /// Applies a response to a CreateContainer request.
    pub fn create_container(
        request: &Bytes,
        answer: &ContainerResourceHookResponse,
    ) -> Option<Bytes> {
        apply::create_container(request, answer, answer.container_resources.as_ref()).ok()
    }

    /// Applies a response to an UpdateContainerResources request.
    pub fn update_container(
        request: &Bytes,
        answer: &ContainerResourceHookResponse,
    ) -> Option<Bytes> {
        let resources = answer.container_resources.as_ref();
        apply::update_container(request, &answer.container_annotations, resources).ok()
    }
}
