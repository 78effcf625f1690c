//! Proxy for kubelets that use dockerd: passes its HTTP API through, and calls hook servers for the
//! containers that a kubelet creates.
//!
//! dockershim and cri-dockerd have no pods in that API: a pod is represented by its pause container, and
//! names and labels show which containers belong to it (`names`). Containers with other names do not belong
//! to Kubernetes and are passed through.

mod engine;
mod fields;
mod names;

use crate::hooks::{Hook, Hooks, Refusal};
use crate::metrics::{self, CallResult, ProxyMetrics};
use crate::store::{Container, Store};
use crate::{SkipLabel, grpc, merge};
use bytes::Bytes;
use engine::{ContainerInspect, Engine, EngineError};
use fields::{HOST_CONFIG, LABELS};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::Incoming;
use koord_rpc::hooks::{ContainerMetadata, ContainerResourceHookRequest, PodSandboxMetadata};
use names::{Name, Route};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tokio_util::task::TaskTracker;

/// A body: streamed from the other side, or created here.
pub(crate) type Body = Either<Incoming, Full<Bytes>>;

/// Reason why a request is not sent to the engine, or failed.
#[derive(Debug, thiserror::Error)]
enum DockerError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("failed to read a body of at most {limit} bytes: {0}", limit = grpc::MESSAGE)]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl DockerError {
    /// Returns the error response in dockerd's format.
    fn answer(&self) -> Response<Body> {
        let status = match self {
            Self::Refused(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Engine(_) => StatusCode::BAD_GATEWAY,
            Self::Body(_) => StatusCode::BAD_REQUEST,
        };
        let text = serde_json::json!({ "message": self.to_string() }).to_string();
        let mut response = Response::new(full_body(text.into()));
        *response.status_mut() = status;
        let json = header::HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}

fn full_body(bytes: Bytes) -> Body {
    Either::Right(Full::new(bytes))
}

/// The role of a Docker container in Kubernetes, with the request for its hooks.
#[derive(Debug, Clone)]
enum ContainerRole {
    Pod(Arc<koord_rpc::hooks::PodSandboxHookRequest>),
    Container(Arc<Container>),
}

/// The proxy of a Docker engine.
#[derive(Debug)]
pub(crate) struct Docker {
    hooks: Hooks,
    store: Store,
    skip: SkipLabel,
    engine: Engine,
    /// Connections that were upgraded from HTTP: attach and exec.
    tunnels: TaskTracker,
}

impl Docker {
    pub(crate) fn new(socket: &Path, hooks: Hooks, skip: SkipLabel) -> Self {
        Self {
            hooks,
            store: Store::default(),
            skip,
            engine: Engine::new(socket),
            tunnels: TaskTracker::new(),
        }
    }

    /// Returns the engine's version.
    pub(crate) async fn version(&self) -> Result<String, String> {
        self.engine
            .version()
            .await
            .map_err(|error| error.to_string())
    }

    /// Waits until all tunnels have ended.
    pub(crate) async fn finish(&self) {
        self.tunnels.close();
        self.tunnels.wait().await;
    }

    /// Handles a request, counts its result and returns the response.
    pub(crate) async fn call(
        &self,
        request: Request<Incoming>,
        metrics: &ProxyMetrics,
    ) -> Response<Body> {
        let route = Route::from_request(request.method(), request.uri());
        let mut meter = metrics.begin_call(route.as_ref().map_or(metrics::OTHER, Route::name));
        let answer = match route {
            None => self.forward(request).await.map_err(DockerError::from),
            Some(Route::Create(name)) => self.create(&name, request).await,
            Some(Route::Start(id)) => self.start(&id, request).await,
            Some(Route::Stop(id)) => self.stop(&id, request).await,
            Some(Route::Update(id)) => self.update(&id, request).await,
            Some(Route::Remove(id)) => self.remove(&id, request).await,
        };
        meter.result = match &answer {
            Ok(response) if response.status().as_u16() < 400 => CallResult::Success,
            Ok(_) => CallResult::Error,
            Err(DockerError::Refused(_)) => CallResult::Refused,
            Err(DockerError::Engine(_)) => CallResult::Unavailable,
            Err(DockerError::Body(_)) => CallResult::Aborted,
        };
        answer.unwrap_or_else(|failure| {
            tracing::warn!(%failure, "failed to process Docker API request");
            failure.answer()
        })
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Body>, EngineError> {
        let upgrade = request.headers().contains_key(header::UPGRADE);
        let client = upgrade.then(|| hyper::upgrade::on(&mut request));
        let mut response = self.engine.send(request.map(Either::Left)).await?;
        if let Some(client) = client
            && response.status() == StatusCode::SWITCHING_PROTOCOLS
        {
            let engine = hyper::upgrade::on(&mut response);
            self.tunnels.spawn(engine::tunnel(client, engine));
        }
        Ok(response.map(Either::Left))
    }

    fn is_exempt(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.get(&self.skip.key) == Some(&self.skip.value)
    }

    /// Looks up a container by its id or name, in the store or the engine; returns its id and role.
    async fn lookup(&self, id: &str) -> Result<Option<(String, ContainerRole)>, EngineError> {
        if let Some(pod) = self.store.pod(id) {
            return Ok(Some((id.to_owned(), ContainerRole::Pod(pod))));
        }
        if let Some(container) = self.store.container(id) {
            return Ok(Some((id.to_owned(), ContainerRole::Container(container))));
        }
        let Some(ContainerInspect { id, config, name }) = self.engine.inspect(id).await? else {
            return Ok(None);
        };
        let Some(name) = Name::parse(&name) else {
            return Ok(None);
        };
        let role = match fields::sandbox_of(&config) {
            None => {
                let pod = Arc::new(pod(&name, &config));
                self.store.put_pod(id.clone(), pod.clone());
                ContainerRole::Pod(pod)
            }
            Some(sandbox) => {
                let sandbox_pod = self.sandbox(&sandbox).await?;
                let container =
                    Arc::new(container(&name, &config, sandbox, sandbox_pod.as_deref()));
                self.store.put_container(id.clone(), container.clone());
                ContainerRole::Container(container)
            }
        };
        Ok(Some((id, role)))
    }

    /// Looks up the pod of a pause container.
    async fn sandbox(
        &self,
        id: &str,
    ) -> Result<Option<Arc<koord_rpc::hooks::PodSandboxHookRequest>>, EngineError> {
        if let Some(pod) = self.store.pod(id) {
            return Ok(Some(pod));
        }
        let Some(ContainerInspect { id, config, name }) = self.engine.inspect(id).await? else {
            return Ok(None);
        };
        let role = Name::parse(&name).map(|name| Arc::new(pod(&name, &config)));
        if let Some(pod) = &role {
            self.store.put_pod(id, pod.clone());
        }
        Ok(role)
    }

    /// Looks up the container for `hook`. A failed lookup counts as a failed hook.
    async fn lookup_for_hook(
        &self,
        hook: Hook,
        id: &str,
    ) -> Result<Option<(String, ContainerRole)>, Refusal> {
        if self.hooks.server(hook).is_none() {
            return Ok(None);
        }
        match self.lookup(id).await {
            Ok(role) => Ok(role),
            Err(error) => self
                .hooks
                .skip_or_refuse(hook, format!("failed to look up container {id}: {error}")),
        }
    }

    /// Handles the creation of a container: calls its hook, forwards the request, and stores the container.
    async fn create(
        &self,
        name: &Name,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, DockerError> {
        let (head, body) = request.into_parts();
        let body = read_body(body).await?;
        let decided = match serde_json::from_slice::<Map<String, Value>>(&body) {
            Ok(config) => self.run_create_hook(name, config).await?,
            Err(error) => {
                let problem = format!("failed to decode the body of a create request: {error}");
                self.hooks
                    .skip_or_refuse::<()>(Hook::PreCreateContainer, problem)?;
                None
            }
        };
        let (body, role) = match decided {
            Some((changed, role)) => (changed.unwrap_or(body), Some(role)),
            None => (body, None),
        };
        let response = self.send_with_body(head, body).await?;
        let Some(role) = role.filter(|_| response.status().is_success()) else {
            return Ok(response.map(Either::Left));
        };
        let (head, answer) = response.into_parts();
        let answer = read_body(answer).await?;
        match fields::id(&answer) {
            Some(id) => match role {
                ContainerRole::Pod(pod) => self.store.put_pod(id, pod),
                ContainerRole::Container(mut container) => {
                    let with_id = Arc::make_mut(&mut container);
                    let meta = with_id.request.container_meta.get_or_insert_default();
                    meta.id.clone_from(&id);
                    self.store.put_container(id, container);
                }
            },
            None => {
                tracing::warn!("failed to find the container id in the engine's response to create")
            }
        }
        Ok(Response::from_parts(head, full_body(answer)))
    }

    /// Calls the hook for a creation. Returns the changed body, if it changed, and what to store.
    async fn run_create_hook(
        &self,
        name: &Name,
        mut config: Map<String, Value>,
    ) -> Result<Option<(Option<Bytes>, ContainerRole)>, Refusal> {
        let before = config.clone();
        let Some(sandbox) = fields::sandbox_of(&config) else {
            let mut pod = pod(name, &config);
            if !self.is_exempt(&pod.labels)
                && let Some(answer) = self.hooks.pod(Hook::PreRunPodSandbox, &pod).await?
            {
                merge::entries(&mut pod.labels, &answer.labels);
                merge::entries(&mut pod.annotations, &answer.annotations);
                fields::edit(&mut config, HOST_CONFIG, |host| {
                    if let Some(answered) = &answer.resources {
                        let resources = pod.resources.get_or_insert_default();
                        merge::apply_answer(resources, answered);
                        fields::put_resources(host, resources);
                    }
                    fields::put_parent(host, &answer.cgroup_parent);
                });
                if !answer.cgroup_parent.is_empty() {
                    pod.cgroup_parent = answer.cgroup_parent;
                }
            }
            return Ok(Some((
                encode_if_changed(&before, &config),
                ContainerRole::Pod(Arc::new(pod)),
            )));
        };
        let hook = Hook::PreCreateContainer;
        let sandbox_pod = match self.sandbox(&sandbox).await {
            Ok(sandbox_pod) => sandbox_pod,
            Err(error) => {
                let problem = format!("failed to look up pod sandbox {sandbox}: {error}");
                self.hooks.skip_or_refuse(hook, problem)?
            }
        };
        let mut container = container(name, &config, sandbox, sandbox_pod.as_deref());
        let hook_request = &mut container.request;
        if !self.is_exempt(&hook_request.pod_labels)
            && let Some(answer) = self.hooks.container(hook, hook_request).await?
        {
            let annotations = &mut hook_request.container_annotations;
            merge::entries(annotations, &answer.container_annotations);
            merge::entries(&mut hook_request.container_envs, &answer.container_envs);
            fields::put_env(&mut config, &answer.container_envs);
            fields::edit(&mut config, HOST_CONFIG, |host| {
                if let Some(answered) = &answer.container_resources {
                    let resources = hook_request.container_resources.get_or_insert_default();
                    merge::apply_answer(resources, answered);
                    fields::put_resources(host, resources);
                }
                fields::put_parent(host, &answer.pod_cgroup_parent);
            });
            if !answer.pod_cgroup_parent.is_empty() {
                hook_request.pod_cgroup_parent = answer.pod_cgroup_parent;
            }
        }
        let role = ContainerRole::Container(Arc::new(container));
        Ok(Some((encode_if_changed(&before, &config), role)))
    }

    /// Handles the start of a container, with a hook before and one after it.
    async fn start(
        &self,
        id: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, DockerError> {
        let mut role = self.lookup_for_hook(Hook::PreStartContainer, id).await?;
        if role.is_none() {
            // A failed lookup for a hook that runs afterwards does not fail the call.
            role = self
                .lookup_for_hook(Hook::PostStartContainer, id)
                .await
                .unwrap_or_default();
        }
        let container = match role {
            Some((_, ContainerRole::Container(container)))
                if !self.is_exempt(&container.request.pod_labels) =>
            {
                Some(container)
            }
            _ => None,
        };
        if let Some(container) = &container {
            self.hooks
                .container(Hook::PreStartContainer, &container.request)
                .await?;
        }
        let response = self.forward(request).await?;
        if let Some(container) = container.filter(|_| response.status().is_success()) {
            // The call is done: response and failure of the hook have no effect.
            let _ = self
                .hooks
                .container(Hook::PostStartContainer, &container.request)
                .await;
        }
        Ok(response)
    }

    /// Handles the stop of a container: forwards it, calls the hook, and removes the container from the store.
    async fn stop(
        &self,
        id: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, DockerError> {
        let mut role = None;
        for hook in [Hook::PostStopContainer, Hook::PostStopPodSandbox] {
            if role.is_none() {
                role = self.lookup_for_hook(hook, id).await.unwrap_or_default();
            }
        }
        let response = self.forward(request).await?;
        // The status of a container that was already stopped is 304.
        if !response.status().is_success() && response.status() != StatusCode::NOT_MODIFIED {
            return Ok(response);
        }
        // The call is done: response and failure of the hook have no effect.
        match role {
            Some((id, ContainerRole::Container(container))) => {
                if !self.is_exempt(&container.request.pod_labels) {
                    let _ = self
                        .hooks
                        .container(Hook::PostStopContainer, &container.request)
                        .await;
                }
                self.store.remove_container(&id);
            }
            Some((id, ContainerRole::Pod(pod))) => {
                if !self.is_exempt(&pod.labels) {
                    let _ = self.hooks.pod(Hook::PostStopPodSandbox, &pod).await;
                }
                self.store.remove_pod(&id);
            }
            None => self.remove_from_store(id),
        }
        Ok(response)
    }

    /// Handles an update of resources: calls its hook and forwards the changed request.
    async fn update(
        &self,
        id: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, DockerError> {
        let hook = Hook::PreUpdateContainerResources;
        let Some((id, ContainerRole::Container(role))) = self.lookup_for_hook(hook, id).await?
        else {
            return Ok(self.forward(request).await?);
        };
        let (head, body) = request.into_parts();
        let body = read_body(body).await?;
        let mut container = (*role).clone();
        let (body, store_container) = match serde_json::from_slice::<Map<String, Value>>(&body) {
            Ok(mut update) => {
                let before = update.clone();
                let hook_request = &mut container.request;
                let resources = hook_request.container_resources.get_or_insert_default();
                merge::update(resources, &fields::resources(&update));
                if !self.is_exempt(&hook_request.pod_labels)
                    && let Some(answer) = self.hooks.container(hook, hook_request).await?
                    && let Some(answered) = &answer.container_resources
                {
                    let resources = hook_request.container_resources.get_or_insert_default();
                    merge::apply_answer(resources, answered);
                    fields::put_update(&mut update, resources);
                }
                (encode_if_changed(&before, &update).unwrap_or(body), true)
            }
            Err(error) => {
                let problem = format!("failed to decode the body of an update request: {error}");
                self.hooks.skip_or_refuse::<()>(hook, problem)?;
                (body, false)
            }
        };
        let response = self.send_with_body(head, body).await?;
        if store_container && response.status().is_success() {
            self.store.put_container(id, Arc::new(container));
        }
        Ok(response.map(Either::Left))
    }

    async fn remove(
        &self,
        id: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, DockerError> {
        let response = self.forward(request).await?;
        if response.status().is_success() {
            self.remove_from_store(id);
        }
        Ok(response)
    }

    fn remove_from_store(&self, id: &str) {
        self.store.remove_container(id);
        self.store.remove_pod(id);
    }

    async fn send_with_body(
        &self,
        mut head: http::request::Parts,
        body: Bytes,
    ) -> Result<Response<Incoming>, EngineError> {
        // Set again for the changed body.
        head.headers.remove(header::CONTENT_LENGTH);
        self.engine
            .send(Request::from_parts(head, full_body(body)))
            .await
    }
}

/// Returns the object as JSON text if it changed.
fn encode_if_changed(before: &Map<String, Value>, after: &Map<String, Value>) -> Option<Bytes> {
    (before != after)
        .then(|| serde_json::to_vec(after).ok())
        .flatten()
        .map(Bytes::from)
}

async fn read_body(body: Incoming) -> Result<Bytes, DockerError> {
    let body = Limited::new(body, grpc::MESSAGE).collect().await;
    Ok(body.map_err(DockerError::Body)?.to_bytes())
}

/// Returns the hook request for a pod, from the configuration of its pause container.
fn pod(name: &Name, config: &Map<String, Value>) -> koord_rpc::hooks::PodSandboxHookRequest {
    let (labels, annotations) = fields::split(config.get(LABELS));
    let host = config.get(HOST_CONFIG).and_then(Value::as_object);
    koord_rpc::hooks::PodSandboxHookRequest {
        pod_meta: Some(PodSandboxMetadata {
            name: name.pod.clone(),
            uid: name.uid.clone(),
            namespace: name.namespace.clone(),
            attempt: name.attempt,
        }),
        runtime_handler: "docker".to_owned(),
        labels,
        annotations,
        cgroup_parent: host.map(fields::parent).unwrap_or_default(),
        overhead: None,
        resources: host.map(fields::resources),
    }
}

/// Returns the hook request for a container.
fn container(
    name: &Name,
    config: &Map<String, Value>,
    sandbox: String,
    sandbox_pod: Option<&koord_rpc::hooks::PodSandboxHookRequest>,
) -> Container {
    let host = config.get(HOST_CONFIG).and_then(Value::as_object);
    let (labels, annotations) = fields::split(config.get(LABELS));
    // If the pod no longer exists, names and labels of its containers identify it.
    let unknown;
    let pod = match sandbox_pod {
        Some(pod) => pod,
        None => {
            unknown = koord_rpc::hooks::PodSandboxHookRequest {
                labels,
                ..pod(name, &Map::new())
            };
            &unknown
        }
    };
    let own_parent = host.map(fields::parent).unwrap_or_default();
    Container {
        sandbox,
        request: ContainerResourceHookRequest {
            container_meta: Some(ContainerMetadata {
                name: name.container.clone(),
                attempt: name.attempt,
                id: String::new(),
            }),
            container_annotations: annotations,
            container_resources: host.map(fields::resources),
            container_envs: fields::env(config),
            pod_meta: pod.pod_meta.clone(),
            pod_annotations: pod.annotations.clone(),
            pod_labels: pod.labels.clone(),
            pod_resources: pod.resources.clone(),
            pod_cgroup_parent: if own_parent.is_empty() || own_parent.starts_with("container:") {
                pod.cgroup_parent.clone()
            } else {
                own_parent
            },
        },
    }
}
