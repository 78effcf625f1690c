//! Pods and containers as the runtime got them, for later hook requests.
//!
//! Nothing is stored on disk. What this process missed, because it started later or lost a response, is
//! looked up in the runtime on demand ([`lookup`]), so a restart of any component needs no repair.

pub(crate) mod lookup;

use koord_rpc::hooks::{ContainerResourceHookRequest, PodSandboxHookRequest};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A container and the id of its pod sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Container {
    pub(crate) sandbox: String,
    pub(crate) request: ContainerResourceHookRequest,
}

#[derive(Debug, Default)]
struct ProxyState {
    pods: HashMap<String, Arc<PodSandboxHookRequest>>,
    containers: HashMap<String, Arc<Container>>,
}

/// Pods and containers by the ids that the runtime assigned.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<ProxyState>);

impl Store {
    pub(crate) fn pod(&self, id: &str) -> Option<Arc<PodSandboxHookRequest>> {
        self.0.lock().pods.get(id).cloned()
    }

    pub(crate) fn container(&self, id: &str) -> Option<Arc<Container>> {
        self.0.lock().containers.get(id).cloned()
    }

    pub(crate) fn put_pod(&self, id: String, pod: Arc<PodSandboxHookRequest>) {
        self.0.lock().pods.insert(id, pod);
    }

    pub(crate) fn put_container(&self, id: String, container: Arc<Container>) {
        self.0.lock().containers.insert(id, container);
    }

    /// Removes a pod with its containers.
    pub(crate) fn remove_pod(&self, id: &str) {
        let mut state = self.0.lock();
        state.pods.remove(id);
        state
            .containers
            .retain(|_, container| container.sandbox != id);
    }

    pub(crate) fn remove_container(&self, id: &str) {
        self.0.lock().containers.remove(id);
    }
}
