//! Writes a pod's status to the API, the latest first, and retries until it succeeds.

use crate::context::Shared;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use koord_kube::api::{DeleteParams, Preconditions};
use koord_kube::patch::{is_not_found, strategic_status};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(10);

/// Desired state of the pod in the API.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Desired {
    pub(crate) status: PodStatus,
    /// The pod is over and can be removed.
    pub(crate) delete: bool,
}

/// Handle of the task that writes a pod's status to the API; of several pending statuses only the newest is
/// written.
#[derive(Debug)]
pub(crate) struct Publisher {
    sender: watch::Sender<Option<Desired>>,
    task: JoinHandle<()>,
}

impl Publisher {
    pub(crate) fn start(shared: &Arc<Shared>, pod: &Pod) -> Self {
        let (sender, receiver) = watch::channel(None);
        let meta = &pod.metadata;
        let task = Task {
            api: koord_kube::Api::namespaced(
                shared.client.clone(),
                meta.namespace.as_deref().unwrap_or("default"),
            ),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            sent: None,
        };
        let shutdown = shared.shutdown.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = task.run(receiver) => {}
                () = shutdown.cancelled() => {}
            }
        });
        Self { sender, task }
    }

    /// Sets the desired state; repeats are ignored.
    pub(crate) fn publish(&self, desired: Desired) {
        self.sender.send_if_modified(|current| {
            let new = current.as_ref() != Some(&desired);
            if new {
                *current = Some(desired);
            }
            new
        });
    }

    /// Closes the channel and waits for the task to end.
    pub(crate) async fn finish(self) {
        drop(self.sender);
        // Only a panic makes this an error, and the runtime reported it.
        let _ = self.task.await;
    }
}

struct Task {
    api: koord_kube::Api<Pod>,
    name: String,
    uid: String,
    sent: Option<Value>,
}

impl Task {
    async fn run(mut self, mut receiver: watch::Receiver<Option<Desired>>) {
        let mut pause = FIRST_PAUSE;
        while receiver.changed().await.is_ok() {
            loop {
                let Some(desired) = receiver.borrow_and_update().clone() else {
                    break;
                };
                match self.send(&desired).await {
                    Ok(()) => {
                        pause = FIRST_PAUSE;
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(pod = %self.name, %error, "failed to write a pod status, retrying");
                        tokio::select! {
                            () = tokio::time::sleep(pause) => {}
                            changed = receiver.changed() => if changed.is_err() { return },
                        }
                        pause = (pause * 2).min(LAST_PAUSE);
                    }
                }
            }
        }
    }

    /// Writes the status if it differs from the last one written, and deletes the pod if it is over.
    async fn send(&mut self, desired: &Desired) -> Result<(), koord_kube::Error> {
        // The uid makes the server reject the write if another pod has taken the name. Then, as after any
        // conflict, it is retried until the agent reports that this pod is gone.
        let patch = json!({"metadata": {"uid": self.uid}, "status": desired.status});
        if self.sent.as_ref() != Some(&patch) {
            match strategic_status::<Pod>(&self.api, &self.name, &patch).await {
                Ok(_) => self.sent = Some(patch),
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if desired.delete {
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(self.uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match self.api.delete(&self.name, &params).await {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
