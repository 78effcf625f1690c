//! The calls that hook servers have a say in, as functions of a request's bytes.
//!
//! [`Decider::decide`] turns the message that the kubelet sent into the one that the runtime gets, and says
//! what is to be done when the runtime has done it ([`Then`]). A message that nobody changes stays the
//! bytes that came; a changed one is changed in place (see `wire`).

mod apply;

use crate::Skip;
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

/// Calls that are looked into.
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
    /// The call with this path, if it is one of them.
    pub(crate) fn of(path: &str) -> Option<Self> {
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

    /// What is asked before it.
    pub(crate) fn before(self) -> Option<Hook> {
        Some(match self {
            Self::RunPodSandbox => Hook::PreRunPodSandbox,
            Self::CreateContainer => Hook::PreCreateContainer,
            Self::StartContainer => Hook::PreStartContainer,
            Self::UpdateContainerResources => Hook::PreUpdateContainerResources,
            _ => return None,
        })
    }
}

/// What is to be done when the runtime has done what it was asked.
#[derive(Debug)]
pub(crate) enum Then {
    Nothing,
    /// The answer has the id of this pod.
    Ran(PodSandboxHookRequest),
    /// The answer has the id of this container.
    Created(Container),
    Updated(String, Container),
    Started(Arc<Container>),
    StoppedPod(String, Option<Arc<PodSandboxHookRequest>>),
    StoppedContainer(String, Option<Arc<Container>>),
    RemovedPod(String),
    RemovedContainer(String),
}

/// What the runtime gets, and what comes after.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) message: Bytes,
    pub(crate) then: Then,
}

/// Why a request cannot be looked into.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("the request is no message of its kind: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("the request is no message: {0}")]
    Wire(#[from] crate::wire::WireError),
}

/// Everything that decides about calls.
#[derive(Debug)]
pub(crate) struct Decider {
    pub(crate) hooks: Hooks,
    pub(crate) store: Store,
    pub(crate) runtime: Runtime,
    pub(crate) skip: Skip,
}

impl Decider {
    /// Asks whom there is to ask.
    ///
    /// # Errors
    ///
    /// When a hook failed whose failure is the call's.
    pub(crate) async fn decide(&self, call: Call, message: Bytes) -> Result<Decision, Refusal> {
        let unreadable = |error: &Unreadable| {
            if let Some(hook) = call.before() {
                self.hooks.unaskable::<()>(hook, error.to_string())?;
            }
            Ok(Then::Nothing)
        };
        let decided = match call {
            Call::RunPodSandbox => self.run_pod(&message).await,
            Call::CreateContainer => self.create_container(&message).await,
            Call::UpdateContainerResources => self.update_container(&message).await,
            _ => self.by_id(call, &message).await.map(|done| {
                let unchanged = message.clone();
                done.map(|then| (unchanged, then))
            }),
        };
        match decided {
            Ok(Ok((message, then))) => Ok(Decision { message, then }),
            Ok(Err(refusal)) => Err(refusal),
            Err(error) => {
                let then = unreadable(&error)?;
                Ok(Decision { message, then })
            }
        }
    }

    fn exempt(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get(&self.skip.key) == Some(&self.skip.value)
    }

    async fn run_pod(&self, message: &Bytes) -> Outcome<(Bytes, Then)> {
        let request = cri::RunPodSandboxRequest::decode(message.clone())?;
        let mut pod = pod(request.config.unwrap_or_default(), request.runtime_handler);
        if self.exempt(&pod.labels) {
            return Ok(Ok((message.clone(), Then::Ran(pod))));
        }
        let answer = match self.hooks.pod(Hook::PreRunPodSandbox, &pod).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Ok((message.clone(), Then::Ran(pod)))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let message = apply::run_pod(message, &answer)?;
        merge::entries(&mut pod.labels, &answer.labels);
        merge::entries(&mut pod.annotations, &answer.annotations);
        if !answer.cgroup_parent.is_empty() {
            pod.cgroup_parent = answer.cgroup_parent;
        }
        Ok(Ok((message, Then::Ran(pod))))
    }

    async fn create_container(&self, message: &Bytes) -> Outcome<(Bytes, Then)> {
        let request = cri::CreateContainerRequest::decode(message.clone())?;
        let config = request.config.unwrap_or_default();
        // The request has all of it, too, but for what a hook said about the pod.
        let asked_for = pod(request.sandbox_config.unwrap_or_default(), String::new());
        let known = self.store.pod(&request.pod_sandbox_id);
        let pod = known.as_deref().unwrap_or(&asked_for);
        let resources = config.linux.and_then(|linux| linux.resources);
        // Values that are no text cannot be sent to a hook server; the runtime gets them as they are.
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
                ..of_pod(pod)
            },
        };
        let asked = &mut container.request;
        if !asked_for.cgroup_parent.is_empty() {
            asked.pod_cgroup_parent = asked_for.cgroup_parent.clone();
        }
        if self.exempt(&asked.pod_labels) {
            return Ok(Ok((message.clone(), Then::Created(container))));
        }
        let answer = match self.hooks.container(Hook::PreCreateContainer, asked).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Ok((message.clone(), Then::Created(container)))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        merge::entries(
            &mut asked.container_annotations,
            &answer.container_annotations,
        );
        merge::entries(&mut asked.container_envs, &answer.container_envs);
        if let Some(answered) = &answer.container_resources {
            merge::answer(asked.container_resources.get_or_insert_default(), answered);
        }
        if !answer.pod_cgroup_parent.is_empty() {
            asked
                .pod_cgroup_parent
                .clone_from(&answer.pod_cgroup_parent);
        }
        let wanted = answer
            .container_resources
            .is_some()
            .then_some(asked.container_resources.as_ref())
            .flatten();
        let message = apply::create_container(message, &answer, wanted)?;
        Ok(Ok((message, Then::Created(container))))
    }

    async fn update_container(&self, message: &Bytes) -> Outcome<(Bytes, Then)> {
        let request = cri::UpdateContainerResourcesRequest::decode(message.clone())?;
        let id = request.container_id;
        let hook = Hook::PreUpdateContainerResources;
        let known = match self.container_for(hook, &id).await {
            Ok(Some(known)) => known,
            Ok(None) => return Ok(Ok((message.clone(), Then::Nothing))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut container = (*known).clone();
        let asked = &mut container.request;
        if let Some(linux) = &request.linux {
            let resources = asked.container_resources.get_or_insert_default();
            merge::update(resources, &merge::resources(linux));
        }
        if self.exempt(&asked.pod_labels) {
            return Ok(Ok((message.clone(), Then::Updated(id, container))));
        }
        let answer = match self.hooks.container(hook, asked).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Ok((message.clone(), Then::Updated(id, container)))),
            Err(refusal) => return Ok(Err(refusal)),
        };
        // What the container has already is nothing that the hook asks for.
        let said = answer.container_annotations.iter();
        let said = said.filter(|(key, value)| asked.container_annotations.get(*key) != Some(value));
        let annotations: BTreeMap<_, _> = said.map(|(k, v)| (k.clone(), v.clone())).collect();
        merge::entries(&mut asked.container_annotations, &annotations);
        let mut wanted = None;
        if let Some(answered) = &answer.container_resources {
            let resources = asked.container_resources.get_or_insert_default();
            merge::answer(resources, answered);
            wanted = Some(&*resources);
        }
        let message = apply::update_container(message, &annotations, wanted)?;
        Ok(Ok((message, Then::Updated(id, container))))
    }

    /// Calls that name only an id, and are never changed.
    async fn by_id(&self, call: Call, message: &Bytes) -> Outcome<Then> {
        Ok(match call {
            Call::StartContainer => {
                let id = cri::StartContainerRequest::decode(message.clone())?.container_id;
                self.start(&id).await
            }
            Call::StopContainer => {
                let id = cri::StopContainerRequest::decode(message.clone())?.container_id;
                let container = match self.hooks.server(Hook::PostStopContainer) {
                    Some(_) => self.known_container(&id).await.unwrap_or_default(),
                    None => None,
                };
                Ok(Then::StoppedContainer(id, container))
            }
            Call::StopPodSandbox => {
                let id = cri::StopPodSandboxRequest::decode(message.clone())?.pod_sandbox_id;
                let pod = match self.hooks.server(Hook::PostStopPodSandbox) {
                    Some(_) => self.known_pod(&id).await.unwrap_or_default(),
                    None => None,
                };
                Ok(Then::StoppedPod(id, pod))
            }
            Call::RemovePodSandbox => {
                let request = cri::RemovePodSandboxRequest::decode(message.clone())?;
                Ok(Then::RemovedPod(request.pod_sandbox_id))
            }
            Call::RemoveContainer => {
                let request = cri::RemoveContainerRequest::decode(message.clone())?;
                Ok(Then::RemovedContainer(request.container_id))
            }
            Call::RunPodSandbox | Call::CreateContainer | Call::UpdateContainerResources => {
                Ok(Then::Nothing)
            }
        })
    }

    async fn start(&self, id: &str) -> Result<Then, Refusal> {
        let before = self.container_for(Hook::PreStartContainer, id).await?;
        let container = match before {
            Some(container) => container,
            None if self.hooks.server(Hook::PostStartContainer).is_none() => {
                return Ok(Then::Nothing);
            }
            None => match self.known_container(id).await {
                Ok(Some(container)) => container,
                _ => return Ok(Then::Nothing),
            },
        };
        if self.exempt(&container.request.pod_labels) {
            return Ok(Then::Nothing);
        }
        // A start has nothing that an answer could change.
        self.hooks
            .container(Hook::PreStartContainer, &container.request)
            .await?;
        Ok(Then::Started(container))
    }

    /// The container that `hook` is to be asked about: looked up only if somebody wants to be asked. A
    /// runtime that does not say is a hook that failed.
    async fn container_for(&self, hook: Hook, id: &str) -> Result<Option<Arc<Container>>, Refusal> {
        if self.hooks.server(hook).is_none() {
            return Ok(self.store.container(id));
        }
        match self.known_container(id).await {
            Ok(known) => Ok(known),
            Err(status) => {
                let problem = format!("container {id} cannot be looked up: {}", status.message());
                self.hooks.unaskable(hook, problem)
            }
        }
    }

    async fn known_pod(&self, id: &str) -> Result<Option<Arc<PodSandboxHookRequest>>, Status> {
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

    async fn known_container(&self, id: &str) -> Result<Option<Arc<Container>>, Status> {
        if let Some(container) = self.store.container(id) {
            return Ok(Some(container));
        }
        let Some(mut container) = self.runtime.container(id).await? else {
            return Ok(None);
        };
        if let Some(pod) = self.known_pod(&container.sandbox).await? {
            let of_container = std::mem::take(&mut container.request);
            let pod = of_pod(&pod);
            container.request = ContainerResourceHookRequest {
                pod_meta: pod.pod_meta,
                pod_annotations: pod.pod_annotations,
                pod_labels: pod.pod_labels,
                pod_resources: pod.pod_resources,
                pod_cgroup_parent: pod.pod_cgroup_parent,
                ..of_container
            };
        }
        let container = Arc::new(container);
        self.store.put_container(id.to_owned(), container.clone());
        Ok(Some(container))
    }

    /// Does what comes after a call that went well. `answer` is the runtime's, if it was small enough.
    pub(crate) async fn after(&self, then: Then, answer: Option<Bytes>) {
        match then {
            Then::Nothing => {}
            Then::Ran(pod) => match answer.map(cri::RunPodSandboxResponse::decode) {
                Some(Ok(answer)) => self.store.put_pod(answer.pod_sandbox_id, Arc::new(pod)),
                answer => tracing::warn!(?answer, "the runtime ran a pod, but does not say its id"),
            },
            Then::Created(mut container) => {
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
                            "the runtime made a container, but does not say its id"
                        );
                    }
                }
            }
            Then::Updated(id, container) => self.store.put_container(id, Arc::new(container)),
            Then::Started(container) => {
                self.tell(Hook::PostStartContainer, &container.request)
                    .await;
            }
            Then::StoppedContainer(id, container) => {
                if let Some(container) = container {
                    self.tell(Hook::PostStopContainer, &container.request).await;
                }
                self.store.remove_container(&id);
            }
            Then::StoppedPod(id, pod) => {
                if let Some(pod) = pod.filter(|pod| !self.exempt(&pod.labels)) {
                    // What comes back, and a failure, is for nobody: it is done.
                    let _ = self.hooks.pod(Hook::PostStopPodSandbox, &pod).await;
                }
                self.store.remove_pod(&id);
            }
            Then::RemovedPod(id) => self.store.remove_pod(&id),
            Then::RemovedContainer(id) => self.store.remove_container(&id),
        }
    }

    async fn tell(&self, hook: Hook, request: &ContainerResourceHookRequest) {
        if !self.exempt(&request.pod_labels) {
            // What comes back, and a failure, is for nobody: it is done.
            let _ = self.hooks.container(hook, request).await;
        }
    }
}

/// Whether the request could be read, and whether the call goes on.
type Outcome<T> = Result<Result<T, Refusal>, Unreadable>;

/// What a hook server is told of a pod.
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

/// What a hook server is told of the pod of a container.
fn of_pod(pod: &PodSandboxHookRequest) -> ContainerResourceHookRequest {
    ContainerResourceHookRequest {
        pod_meta: pod.pod_meta.clone(),
        pod_annotations: pod.annotations.clone(),
        pod_labels: pod.labels.clone(),
        pod_resources: pod.resources.clone(),
        pod_cgroup_parent: pod.cgroup_parent.clone(),
        ..Default::default()
    }
}

/// What the fuzz targets call: `None` where a request cannot be read.
#[cfg(fuzzing)]
pub mod fuzzed {
    use super::apply;
    use bytes::Bytes;
    use koord_rpc::hooks::{ContainerResourceHookResponse, PodSandboxHookResponse};

    /// RunPodSandbox.
    pub fn run_pod(request: &Bytes, answer: &PodSandboxHookResponse) -> Option<Bytes> {
        apply::run_pod(request, answer).ok()
    }

    /// CreateContainer.
    pub fn create_container(
        request: &Bytes,
        answer: &ContainerResourceHookResponse,
    ) -> Option<Bytes> {
        apply::create_container(request, answer, answer.container_resources.as_ref()).ok()
    }

    /// UpdateContainerResources.
    pub fn update_container(
        request: &Bytes,
        answer: &ContainerResourceHookResponse,
    ) -> Option<Bytes> {
        let resources = answer.container_resources.as_ref();
        apply::update_container(request, &answer.container_annotations, resources).ok()
    }
}
