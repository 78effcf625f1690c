//! Sandboxes and containers: starts, watches, stops and removes them.

use super::request::{self, OWNER, POD_UID, RequestContext};
use crate::command;
use crate::container_registry::RunningContainer;
use crate::context::Shared;
use crate::logs::Tail;
use crate::pod::Amounts;
use crate::runner::{ContainerSpec, Exited, Failure, Runner, Started};
use crate::runtime::{CALL_TIMEOUT, Runtime, call_with_timeout, is_gone, status_text};
use crate::session::{ExecOptions, Session};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Container, Pod};
use koord_rpc::cri;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tonic::Status;

/// Interval at which the runtime's containers are listed.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Delay between two attempts of a cleanup.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Maximum number of attempts, so that a runtime that is gone for good does not block the node forever.
const ATTEMPTS: u32 = 20;

/// Runs pods through a container runtime.
#[derive(Debug)]
pub(crate) struct CriRunner {
    handle: RuntimeHandle,
    /// Bytes of the machine's memory.
    memory: i64,
    /// Sandboxes by the pod's uid.
    sandboxes: Mutex<FxHashMap<String, Sandbox>>,
    /// Ids of the running containers at the last check.
    running: watch::Receiver<FxHashSet<String>>,
    poll_task: AbortHandle,
}

impl Drop for CriRunner {
    fn drop(&mut self) {
        self.poll_task.abort();
    }
}

/// A runtime, and the owner label of the sandboxes that this node creates in it.
#[derive(Debug, Clone)]
struct RuntimeHandle {
    runtime: Runtime,
    owner: String,
}

#[derive(Debug, Clone)]
struct Sandbox {
    id: String,
    config: cri::PodSandboxConfig,
    /// The pod's own address.
    ip: Option<String>,
}

impl RuntimeHandle {
    /// Returns the ids of this node's sandboxes, or only of the pod with `uid` if it is set.
    async fn sandboxes(&self, uid: Option<&str>) -> Result<Vec<String>, Status> {
        let mut label_selector = BTreeMap::from([(OWNER.to_owned(), self.owner.clone())]);
        label_selector.extend(uid.map(|uid| (POD_UID.to_owned(), uid.to_owned())));
        let request = cri::ListPodSandboxRequest {
            filter: Some(cri::PodSandboxFilter {
                label_selector,
                ..cri::PodSandboxFilter::default()
            }),
        };
        let listed = call_with_timeout(
            CALL_TIMEOUT,
            self.runtime.runtime().list_pod_sandbox(request),
        )
        .await?;
        Ok(listed.items.into_iter().map(|item| item.id).collect())
    }

    /// Stops and removes the sandboxes of this node or of one pod, with all their containers.
    async fn remove(&self, uid: Option<&str>) -> Result<usize, Status> {
        let mut client = self.runtime.runtime();
        let ids = self.sandboxes(uid).await?;
        for id in &ids {
            let stop = cri::StopPodSandboxRequest {
                pod_sandbox_id: id.clone(),
            };
            let remove = cri::RemovePodSandboxRequest {
                pod_sandbox_id: id.clone(),
            };
            ignore_not_found(
                call_with_timeout(CALL_TIMEOUT, client.stop_pod_sandbox(stop))
                    .await
                    .map(drop),
            )?;
            ignore_not_found(
                call_with_timeout(CALL_TIMEOUT, client.remove_pod_sandbox(remove))
                    .await
                    .map(drop),
            )?;
        }
        Ok(ids.len())
    }

    /// Removes sandboxes like [`RuntimeHandle::remove`], retrying up to [`ATTEMPTS`] times after errors.
    async fn remove_with_retry(&self, uid: Option<&str>) -> Result<usize, Status> {
        let mut attempts = 1;
        loop {
            match self.remove(uid).await {
                Err(status) if attempts < ATTEMPTS => {
                    attempts += 1;
                    tracing::warn!(
                        error = status_text(&status),
                        "failed to remove sandboxes, retrying"
                    );
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                settled => return settled,
            }
        }
    }

    async fn status(&self, id: &str) -> Result<cri::ContainerStatus, Status> {
        let request = cri::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        let answer = call_with_timeout(
            CALL_TIMEOUT,
            self.runtime.runtime().container_status(request),
        )
        .await?;
        let none = || Status::internal("the runtime returned no status of a container");
        answer.status.ok_or_else(none)
    }

    /// Stops a container; the runtime kills it if it has not ended after `seconds`.
    async fn stop(&self, id: &str, seconds: u64) {
        for _ in 0..ATTEMPTS {
            let request = cri::StopContainerRequest {
                container_id: id.to_owned(),
                timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
            };
            let limit = CALL_TIMEOUT.saturating_add(Duration::from_secs(seconds));
            let stopped =
                call_with_timeout(limit, self.runtime.runtime().stop_container(request)).await;
            match ignore_not_found(stopped.map(drop)) {
                Ok(()) => return,
                Err(status) => {
                    tracing::warn!(
                        container = id,
                        error = status_text(&status),
                        "failed to stop a container, retrying"
                    );
                }
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn remove_container(&self, id: &str) {
        let request = cri::RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let removed = call_with_timeout(
            CALL_TIMEOUT,
            self.runtime.runtime().remove_container(request),
        )
        .await;
        // It is removed with its sandbox at the latest.
        if let Err(status) = ignore_not_found(removed.map(drop)) {
            tracing::warn!(
                container = id,
                error = status_text(&status),
                "failed to remove a container"
            );
        }
    }
}

fn ignore_not_found(result: Result<(), Status>) -> Result<(), Status> {
    match result {
        Err(status) if is_gone(&status) => Ok(()),
        other => other,
    }
}

/// Stops and removes all sandboxes of the node with this data directory in a runtime. Returns their number.
pub(crate) async fn clear(runtime: &Runtime, owner: &str) -> Result<usize, String> {
    let handle = RuntimeHandle {
        runtime: runtime.clone(),
        owner: owner.to_owned(),
    };
    let removed = handle.remove_with_retry(None).await;
    removed.map_err(|status| status_text(&status))
}

impl CriRunner {
    /// Creates a runner on `runtime`, for the node with the data directory `owner` on a machine with `memory`
    /// bytes of memory.
    pub(crate) fn new(runtime: Runtime, owner: String, memory: i64) -> Self {
        let (sender, running) = watch::channel(FxHashSet::default());
        let handle = RuntimeHandle { runtime, owner };
        let poll_task = tokio::spawn(poll_running(handle.clone(), sender)).abort_handle();
        Self {
            handle,
            memory,
            sandboxes: Mutex::default(),
            running,
            poll_task,
        }
    }

    /// Returns the pod's ready sandbox, creating one if there is none.
    async fn sandbox(
        &self,
        pod: &Pod,
        uid: &str,
        ctx: &RequestContext<'_>,
    ) -> Result<Sandbox, Status> {
        let cached = self.sandboxes.lock().get(uid).cloned();
        let mut attempt = 0;
        if let Some(cached) = cached {
            let status = self.sandbox_status(&cached.id).await;
            let state = match status {
                Ok(status) => Some(status.state()),
                Err(status) if is_gone(&status) => None,
                Err(status) => return Err(status),
            };
            if state == Some(cri::PodSandboxState::SandboxReady) {
                return Ok(cached);
            }
            let meta = cached.config.metadata;
            attempt = meta.map_or(0, |meta| meta.attempt).saturating_add(1);
        }
        self.handle.remove(Some(uid)).await?;
        let config = request::sandbox(pod, attempt, ctx);
        let request = cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: String::new(),
        };
        let mut client = self.handle.runtime.runtime();
        let id = call_with_timeout(CALL_TIMEOUT, client.run_pod_sandbox(request))
            .await?
            .pod_sandbox_id;
        let network = self.sandbox_status(&id).await?.network;
        let ip = network
            .map(|network| network.ip)
            .filter(|ip| !ip.is_empty());
        let sandbox = Sandbox { id, config, ip };
        self.sandboxes
            .lock()
            .insert(uid.to_owned(), sandbox.clone());
        Ok(sandbox)
    }

    async fn sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        };
        let mut client = self.handle.runtime.runtime();
        let status = call_with_timeout(CALL_TIMEOUT, client.pod_sandbox_status(request))
            .await?
            .status;
        status.ok_or_else(|| Status::internal("the runtime told no status of a sandbox"))
    }

    /// Creates and starts a container in the pod's sandbox.
    async fn start_container(
        &self,
        shared: &Arc<Shared>,
        spec: ContainerSpec<'_>,
    ) -> Result<Started, Failure> {
        let never = |text: String| Failure::Never("CreateContainerConfigError".to_owned(), text);
        let later = |reason: &str, text| Failure::Later(reason.to_owned(), text);
        let ContainerSpec { pod, container, .. } = spec;
        let process = command::process_spec(pod, container, &shared.host, Vec::new());
        let process = process.map_err(|error| never(error.to_string()))?;
        let amounts =
            Amounts::from_container(container).map_err(|error| never(error.to_string()))?;
        if process.not_root && process.uid.is_none() {
            let image_status = self.handle.runtime.image_status(spec.image).await;
            let image_status =
                image_status.map_err(|status| later("ImageInspectError", status_text(&status)))?;
            // A user name instead of a number may have uid 0, too; this is unlikely and not checked.
            let root = image_status.is_none_or(|image| match image.uid {
                Some(uid) => uid.value == 0,
                None => image.username.is_empty(),
            });
            let user_check = process.check_user(&container.name, root);
            user_check.map_err(|error| never(error.to_string()))?;
        }
        let key = spec.log_key();
        let file = |error: std::io::Error| later("CreateContainerError", format!("log: {error}"));
        let tail = shared.logs.adopt(&key, spec.attempt).map_err(file)?;
        shared.logs.prune(&key, spec.attempt, 2);
        let logs = tail
            .path()
            .ancestors()
            .nth(2)
            .map(|dir| dir.display().to_string());
        let group = spec.group.map(|group| format!("/{}", group.as_str()));
        let ctx = RequestContext {
            owner: &self.handle.owner,
            group: group.as_deref().unwrap_or_default(),
            network: self.handle.runtime.has_network(),
            logs: logs.as_deref().unwrap_or_default(),
            memory: self.memory,
        };
        let sandbox = self.sandbox(pod, &key.uid, &ctx).await.map_err(|status| {
            let text = format!("Failed to create pod sandbox: {}", status_text(&status));
            later("CreatePodSandboxError", text)
        })?;
        let config = request::container(
            pod,
            container,
            process,
            &amounts,
            spec.image,
            spec.attempt,
            &ctx,
        );
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.id,
            config: Some(config),
            sandbox_config: Some(sandbox.config),
        };
        let mut client = self.handle.runtime.runtime();
        let created = call_with_timeout(CALL_TIMEOUT, client.create_container(request)).await;
        let id = created
            .map_err(|status| {
                let text = format!("container {}: {}", container.name, status_text(&status));
                later("CreateContainerError", text)
            })?
            .container_id;
        let request = cri::StartContainerRequest {
            container_id: id.clone(),
        };
        if let Err(status) = call_with_timeout(CALL_TIMEOUT, client.start_container(request)).await
        {
            self.handle.remove_container(&id).await;
            let message = status_text(&status);
            return Err(Failure::Start { id, message });
        }
        let exit = wait_for_exit(
            self.handle.clone(),
            id.clone(),
            tail,
            self.running.clone(),
            (shared.options.log_max_size, shared.options.log_max_files),
        );
        let handle = self.handle.clone();
        Ok(Started {
            live: Arc::new(CriContainer { handle, id }),
            exit: exit.boxed(),
            ip: sandbox.ip,
        })
    }
}

impl Runner for CriRunner {
    fn scheme(&self) -> &str {
        self.handle.runtime.name()
    }

    fn image<'a>(
        &'a self,
        shared: &'a Shared,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<String, Failure>> {
        self.handle
            .runtime
            .ensure_image(shared, pod, container)
            .boxed()
    }

    fn start<'a>(
        &'a self,
        shared: &'a Arc<Shared>,
        spec: ContainerSpec<'a>,
    ) -> BoxFuture<'a, Result<Started, Failure>> {
        self.start_container(shared, spec).boxed()
    }

    fn end_pod<'a>(&'a self, _shared: &'a Shared, pod: &'a Pod) -> BoxFuture<'a, ()> {
        async {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            if let Err(status) = self.handle.remove_with_retry(Some(uid)).await {
                let error = status_text(&status);
                tracing::error!(pod = ?pod.metadata.name, error, "failed to remove the sandbox of a pod");
            }
            self.sandboxes.lock().remove(uid);
        }
        .boxed()
    }
}

/// Publishes the set of running containers periodically.
async fn poll_running(handle: RuntimeHandle, sender: watch::Sender<FxHashSet<String>>) {
    let mut failing = false;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        // A task that waits for a container's end holds a receiver in addition to the runner's own.
        if sender.receiver_count() < 2 {
            continue;
        }
        let request = cri::ListContainersRequest {
            filter: Some(cri::ContainerFilter {
                state: Some(cri::ContainerStateValue {
                    state: cri::ContainerState::ContainerRunning as i32,
                }),
                label_selector: BTreeMap::from([(OWNER.to_owned(), handle.owner.clone())]),
                ..cri::ContainerFilter::default()
            }),
        };
        match call_with_timeout(
            CALL_TIMEOUT,
            handle.runtime.runtime().list_containers(request),
        )
        .await
        {
            Ok(listed) => {
                failing = false;
                let ids = listed.containers.into_iter().map(|container| container.id);
                sender.send_replace(ids.collect());
            }
            Err(status) => {
                if !failing {
                    let endpoint = handle.runtime.endpoint();
                    tracing::warn!(
                        endpoint,
                        error = status_text(&status),
                        "failed to list containers, retrying"
                    );
                }
                failing = true;
            }
        }
    }
}

/// Waits for the end of a container, and rotates its log meanwhile.
async fn wait_for_exit(
    handle: RuntimeHandle,
    id: String,
    tail: Tail,
    mut running: watch::Receiver<FxHashSet<String>>,
    (most, files): (u64, u32),
) -> Exited {
    loop {
        if running.changed().await.is_err() {
            // The node is stopping, and this task with it.
            std::future::pending::<()>().await;
        }
        let size = tail.publish_size();
        if running.borrow_and_update().contains(&id) {
            if size > most {
                rotate(&handle, &id, &tail, files).await;
            }
            continue;
        }
        match handle.status(&id).await {
            Ok(status) if status.state() == cri::ContainerState::ContainerExited => {
                tail.publish_size();
                let reason = match (status.exit_code, status.reason) {
                    (0, reason) if reason.is_empty() => "Completed".to_owned(),
                    (_, reason) if reason.is_empty() => "Error".to_owned(),
                    (_, reason) => reason,
                };
                return Exited {
                    id,
                    code: status.exit_code,
                    signal: None,
                    reason,
                    message: status.message,
                };
            }
            // Running: it was started while the runtime made its list. Or the state is unknown.
            Ok(_) => {}
            Err(status) if is_gone(&status) => {
                return Exited {
                    id,
                    code: 137,
                    signal: None,
                    reason: "ContainerStatusUnknown".to_owned(),
                    message: "the runtime does not know the container any more".to_owned(),
                };
            }
            Err(status) => {
                tracing::debug!(
                    container = id,
                    error = status_text(&status),
                    "failed to get the status of a container, retrying"
                )
            }
        }
    }
}

async fn rotate(handle: &RuntimeHandle, id: &str, tail: &Tail, files: u32) {
    let request = cri::ReopenContainerLogRequest {
        container_id: id.to_owned(),
    };
    let mut client = handle.runtime.runtime();
    let reopened = call_with_timeout(CALL_TIMEOUT, client.reopen_container_log(request));
    let rotated = tail.rotate(files, async { reopened.await.map(drop) }).await;
    let error = match rotated {
        Ok(Ok(())) => return,
        Ok(Err(status)) => status_text(&status),
        Err(error) => error.to_string(),
    };
    tracing::warn!(container = id, error, "failed to rotate a container log");
}

/// A container in the runtime.
#[derive(Debug)]
struct CriContainer {
    handle: RuntimeHandle,
    id: String,
}

impl CriContainer {
    fn stop(&self, seconds: u64) {
        let (handle, id) = (self.handle.clone(), self.id.clone());
        tokio::spawn(async move { handle.stop(&id, seconds).await });
    }
}

impl RunningContainer for CriContainer {
    fn id(&self) -> &str {
        &self.id
    }

    fn terminate(&self, grace: Duration) {
        self.stop(grace.as_secs_f64().ceil() as u64);
    }

    fn kill(&self) {
        self.stop(0);
    }

    fn clean(&self) -> BoxFuture<'_, ()> {
        self.handle.remove_container(&self.id).boxed()
    }

    fn exec(&self, options: ExecOptions) -> BoxFuture<'_, Result<Session, String>> {
        async move {
            if options.stdin || options.tty {
                let text = "commands with standard input or a terminal (-i, -t) are not served \
                            for containers of a runtime; without them they are";
                return Err(text.to_owned());
            }
            let mut client = self.handle.runtime.runtime();
            let request = cri::ExecSyncRequest {
                container_id: self.id.clone(),
                cmd: options.command,
                timeout: 0,
            };
            let run = async move {
                let response = client.exec_sync(request).await;
                let response = response
                    .map_err(|status| status_text(&status))?
                    .into_inner();
                Ok((response.exit_code, response.stdout, response.stderr))
            };
            Ok(Session::collected(run))
        }
        .boxed()
    }
}
