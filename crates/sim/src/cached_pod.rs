//! Cached pods, stored as text. The object takes several kilobytes even when most of it is empty, and is
//! decoded only when something happens to its pod.

use k8s_openapi::api::core::v1::{Container, Pod};
use koord_kube::{Cacheable, Text};

/// A cached pod.
#[derive(Debug)]
pub(crate) struct CachedPod {
    /// True if it is being deleted.
    pub(crate) deleting: bool,
    text: Text<Pod>,
}

impl CachedPod {
    pub(crate) fn new(mut pod: Pod) -> Self {
        trim(&mut pod);
        Self {
            deleting: pod.metadata.deletion_timestamp.is_some(),
            text: Text::encode(pod),
        }
    }

    /// Decodes the object, without the fields that this crate does not read.
    pub(crate) fn pod(&self) -> Pod {
        self.text.read()
    }
}

impl Cacheable for CachedPod {
    fn names(&self) -> (&str, &str) {
        self.text.names()
    }
    fn is_same(&self, other: &Self) -> bool {
        self.text.is_same(&other.text)
    }
    fn resource_version(&self) -> Option<&str> {
        self.text.resource_version()
    }
}

/// Drops the fields that this crate does not read: most of a pod's size is in its containers.
fn trim(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    spec.volumes = None;
    spec.affinity = None;
    spec.tolerations = None;
    // Only pods that are not restarted end by their commands.
    let ends = spec.restart_policy.as_deref() != Some("Always");
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        *container = Container {
            name: std::mem::take(&mut container.name),
            image: container.image.take(),
            command: container.command.take().filter(|_| ends),
            args: container.args.take().filter(|_| ends),
            ports: container.ports.take().and_then(|mut ports| {
                ports.retain(|port| port.host_port.is_some());
                (!ports.is_empty()).then_some(ports)
            }),
            resources: container.resources.take(),
            restart_policy: container.restart_policy.take(),
            ..Container::default()
        };
    }
}
