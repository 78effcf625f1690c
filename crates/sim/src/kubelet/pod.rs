//! A pod in the form that providers need.

use k8s_openapi::api::core::v1::{self as core, Container as Object};
use koord_api::qos::{KubeQos, pod_kube_qos};
use koord_api::{quantity, requests};
use koord_model::alignment::Role;
use std::collections::BTreeMap;

/// A container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// Role of the container.
    pub role: Role,
    /// CPU, in thousandths of a core.
    pub cpu: u64,
    /// Memory and huge pages, in bytes, by kind.
    pub memory: BTreeMap<String, u64>,
    /// Devices, by resource.
    pub devices: BTreeMap<String, u64>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// UID of the pod.
    pub uid: String,
    /// True if its QoS class is Guaranteed.
    pub guaranteed: bool,
    /// Containers of the pod in the order in which they start: init containers first.
    pub containers: Vec<Container>,
}

impl Pod {
    /// Reads `pod`. A resource is one of a device plugin if `is_device` returns true for it. Invalid amounts
    /// count as absent.
    #[must_use]
    pub fn read(pod: &core::Pod, is_device: impl Fn(&str) -> bool) -> Self {
        let spec = pod.spec.as_ref();
        let init = spec.and_then(|spec| spec.init_containers.as_ref());
        let init = init.into_iter().flatten().map(|container| {
            let stays = requests::is_sidecar(container);
            (if stays { Role::Sidecar } else { Role::Init }, container)
        });
        let main = spec.into_iter().flat_map(|spec| &spec.containers);
        let all = init.chain(main.map(|container| (Role::Main, container)));
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            guaranteed: pod_kube_qos(pod) == KubeQos::Guaranteed,
            containers: all
                .map(|(role, container)| read(role, container, &is_device))
                .collect(),
        }
    }

    /// Returns the number of exclusive CPUs of the container.
    pub(super) fn whole_cpus(&self, container: &Container) -> usize {
        if self.guaranteed && container.cpu.is_multiple_of(1000) {
            usize::try_from(container.cpu / 1000).unwrap_or(usize::MAX)
        } else {
            0
        }
    }

    /// Returns the peak of the containers' joint requirements.
    pub(super) fn peak(
        &self,
        of: impl Fn(&Container) -> BTreeMap<String, u64>,
    ) -> BTreeMap<String, u64> {
        let (mut running, mut sidecars) = (BTreeMap::new(), BTreeMap::new());
        let mut starting: BTreeMap<String, u64> = BTreeMap::new();
        for container in &self.containers {
            for (name, amount) in of(container) {
                let stays: &mut u64 = sidecars.entry(name.clone()).or_default();
                match container.role {
                    Role::Init => {
                        let peak = starting.entry(name).or_default();
                        *peak = (*peak).max(stays.saturating_add(amount));
                    }
                    Role::Sidecar => *stays = stays.saturating_add(amount),
                    Role::Main => {
                        let sum: &mut u64 = running.entry(name).or_default();
                        *sum = sum.saturating_add(amount);
                    }
                }
            }
        }
        for (name, amount) in sidecars {
            let sum = running.entry(name).or_default();
            *sum = sum.saturating_add(amount);
        }
        for (name, amount) in starting {
            let sum = running.entry(name).or_default();
            *sum = (*sum).max(amount);
        }
        running
    }
}

/// Reads a container's requests. Invalid amounts count as absent.
fn read(role: Role, container: &Object, is_device: impl Fn(&str) -> bool) -> Container {
    let resources = container.resources.as_ref();
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let mut out = Container {
        name: container.name.clone(),
        role,
        cpu: 0,
        memory: BTreeMap::new(),
        devices: BTreeMap::new(),
    };
    for (name, written) in requests.into_iter().flatten() {
        let Ok(amount) = quantity::parse(written) else {
            continue;
        };
        let nanos = amount.nanos().max(0);
        let units = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        if name == "cpu" {
            // Fractions of a thousandth are rounded up.
            let up = nanos / 1_000_000 + i128::from(nanos % 1_000_000 > 0);
            out.cpu = u64::try_from(up).unwrap_or(u64::MAX);
        } else if name == "memory" || name.starts_with("hugepages-") {
            out.memory.insert(name.clone(), units);
        } else if is_device(name) {
            out.devices.insert(name.clone(), units);
        }
    }
    out
}
