//! Interface between pods and what runs their containers. [`container`](crate::container) starts processes of
//! this machine, [`cri`](crate::cri) uses a container runtime.

use crate::container_registry::RunningContainer;
use crate::context::Shared;
use crate::lifecycle::Ended;
use crate::logs::LogKey;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use koord_host::CgroupPath;
use std::sync::Arc;

/// Starts containers, and removes other resources that pods held.
pub(crate) trait Runner: std::fmt::Debug + Send + Sync {
    /// Returns the scheme of container ids: the part before `://`.
    fn scheme(&self) -> &str;

    /// Ensures that the image of a container is present and returns the name to start it by. The future may
    /// be dropped at any time.
    fn image<'a>(
        &'a self,
        shared: &'a Shared,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<String, Failure>> {
        let (_, _) = (shared, pod);
        let image = container.image.clone().unwrap_or_default();
        async move { Ok(image) }.boxed()
    }

    /// Starts a container.
    fn start<'a>(
        &'a self,
        shared: &'a Arc<Shared>,
        spec: ContainerSpec<'a>,
    ) -> BoxFuture<'a, Result<Started, Failure>>;

    /// Removes the remaining resources of a pod without containers.
    fn end_pod<'a>(&'a self, shared: &'a Shared, pod: &'a Pod) -> BoxFuture<'a, ()> {
        let (_, _) = (shared, pod);
        async {}.boxed()
    }
}

/// A container to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContainerSpec<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    /// The pod's group, if there is one.
    pub(crate) group: Option<&'a CgroupPath>,
    /// Number of earlier starts.
    pub(crate) attempt: u32,
    /// Result of [`Runner::image`].
    pub(crate) image: &'a str,
}

impl ContainerSpec<'_> {
    /// Returns the key of its log.
    pub(crate) fn log_key(&self) -> LogKey {
        let meta = &self.pod.metadata;
        LogKey {
            namespace: meta.namespace.clone().unwrap_or_default(),
            pod: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            container: self.container.name.clone(),
        }
    }
}

/// A started container, and the future of its end.
pub(crate) struct Started {
    pub(crate) live: Arc<dyn RunningContainer>,
    /// Resolves when the container has ended and all its output is in the log.
    pub(crate) exit: BoxFuture<'static, Exited>,
    /// The pod's address, when it is not the node's.
    pub(crate) ip: Option<String>,
}

/// A container that could not be started.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The container can never start: reason and message of its state.
    Never(String, String),
    /// A dependency, such as the image, is not available now: reason and message of its state.
    Later(String, String),
    /// The start failed.
    Start {
        /// The container's id.
        id: String,
        /// Message for the user.
        message: String,
    },
}

/// A container whose main process has ended.
#[derive(Debug)]
pub(crate) struct Exited {
    pub(crate) id: String,
    /// Exit code; 128 + signal when it was killed.
    pub(crate) code: i32,
    /// The signal that killed it, if known.
    pub(crate) signal: Option<i32>,
    /// See [`Ended`].
    pub(crate) reason: String,
    /// See [`Ended`].
    pub(crate) message: String,
}

impl Exited {
    /// Converts the result into the record of the container's end.
    pub(crate) fn into_ended(self, started_at: Timestamp, finished_at: Timestamp) -> Ended {
        Ended {
            exit_code: self.code,
            signal: self.signal,
            reason: self.reason,
            message: self.message,
            started_at,
            finished_at,
            id: self.id,
        }
    }
}
