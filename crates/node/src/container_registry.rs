//! Registry of the running containers, and commands in them.

use crate::logs::LogKey;
use crate::session::{ExecOptions, Session};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// A running container.
pub(crate) trait RunningContainer: std::fmt::Debug + Send + Sync {
    /// Returns its id.
    fn id(&self) -> &str;

    /// Terminates it with SIGTERM. If it has not ended after `grace`, the caller kills it with
    /// [`RunningContainer::kill`].
    fn terminate(&self, grace: Duration);

    /// Kills all its processes at once.
    fn kill(&self);

    /// Removes what an ended container leaves behind, such as its cgroup.
    fn clean(&self) -> BoxFuture<'_, ()>;

    /// Runs a command in it. The error is a sentence.
    fn exec(&self, options: ExecOptions) -> BoxFuture<'_, Result<Session, String>>;
}

/// The running containers, by namespace, pod and container. The tasks of their pods own them.
#[derive(Debug, Default)]
pub(crate) struct ContainerRegistry(Mutex<FxHashMap<[String; 3], Weak<dyn RunningContainer>>>);

impl ContainerRegistry {
    pub(crate) fn put(&self, key: [String; 3], live: &Arc<dyn RunningContainer>) {
        self.0.lock().insert(key, Arc::downgrade(live));
    }

    /// Removes a container, unless another start took its place.
    pub(crate) fn remove(&self, id: &str) {
        let other = |live: Arc<dyn RunningContainer>| live.id() != id;
        self.0
            .lock()
            .retain(|_, live| live.upgrade().is_some_and(other));
    }

    fn get(&self, key: [&str; 3]) -> Option<Arc<dyn RunningContainer>> {
        self.0.lock().get(&key.map(str::to_owned))?.upgrade()
    }
}

/// Runs commands in the containers of a node. Created before the node and passed to it; works while the node
/// runs.
#[derive(Debug, Clone, Default)]
pub struct Execs(Arc<OnceLock<Weak<ContainerRegistry>>>);

impl Execs {
    pub(crate) fn attach(&self, registry: &Arc<ContainerRegistry>) {
        // A second node with this handle does not replace the first.
        let _ = self.0.set(Arc::downgrade(registry));
    }

    fn find(&self, key: [&str; 3]) -> Result<Arc<dyn RunningContainer>, String> {
        let registry = self.0.get().and_then(Weak::upgrade);
        let registry = registry.ok_or("the node does not run")?;
        let [_, pod, container] = key;
        let live = registry.get(key);
        live.ok_or_else(|| format!("container {container} of pod {pod} does not run here now"))
    }

    /// Checks that a container runs.
    ///
    /// # Errors
    /// A sentence for the user if it does not run.
    pub fn check(&self, namespace: &str, pod: &str, container: &str) -> Result<(), String> {
        self.find([namespace, pod, container]).map(drop)
    }

    /// Starts a command in a container.
    ///
    /// # Errors
    /// A sentence: the container does not run, or the command cannot be started.
    pub async fn start(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        options: ExecOptions,
    ) -> Result<Session, String> {
        let live = self.find([namespace, pod, container])?;
        live.exec(options).await
    }
}

/// Returns the key by which a container is found.
pub(crate) fn registry_key(key: &LogKey) -> [String; 3] {
    [
        key.namespace.clone(),
        key.pod.clone(),
        key.container.clone(),
    ]
}
