//! The containers of a pod.

use super::super::malformed::Malformed;
use super::super::reader::Reader;
use super::{Batch, ContainerInfo, Layout, PodInfo, Role};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use koord_api::extension::{ExtendedResourceContainerSpec, ExtendedResourceSpec};
use koord_api::requests::{ContainerPosition, is_sidecar};
use koord_api::{Quantity, annotations, quantity, resources};
use koord_host::CgroupPath;
use std::collections::BTreeMap;

/// Parses the main containers, and the init containers with sidecars.
pub(super) fn read(
    reader: &mut Reader<'_>,
    pod: &Pod,
    layout: &Layout,
    cgroup: &CgroupPath,
    last: Option<&PodInfo>,
) -> (Vec<ContainerInfo>, Vec<ContainerInfo>) {
    let key = annotations::POD_EXTENDED_RESOURCE_SPEC;
    let extended = reader.json::<ExtendedResourceSpec>(key, None);
    // Malformed: the earlier requests of the containers are used.
    let lost = extended.is_none() && reader.text(key).is_some();
    let extended = extended.unwrap_or_default();
    let Some(spec) = &pod.spec else {
        return (Vec::new(), Vec::new());
    };
    let status = pod.status.as_ref();
    let mut read_container =
        |place: ContainerPosition,
         container: &Container,
         statuses: Option<&Vec<ContainerStatus>>| {
            let status = statuses
                .into_iter()
                .flatten()
                .find(|status| status.name == container.name);
            let id = status.and_then(|status| status.container_id.as_deref());
            let mut amounts = AmountReader {
                reader: &mut *reader,
                place,
                container,
                extended: extended.containers.get(&container.name),
            };
            let native = amounts.tier(resources::CPU, resources::MEMORY, |q| q.milli_value());
            let batch = amounts.tier(resources::BATCH_CPU, resources::BATCH_MEMORY, integer);
            let mid = amounts.tier(resources::MID_CPU, resources::MID_MEMORY, integer);
            let before = last.filter(|_| lost).and_then(|last| {
                last.all_containers()
                    .find(|before| before.name == container.name)
            });
            ContainerInfo {
                name: container.name.clone(),
                role: match place {
                    ContainerPosition::Main(_) => Role::Main,
                    ContainerPosition::Init(_) if is_sidecar(container) => Role::Sidecar,
                    ContainerPosition::Init(_) => Role::Init,
                },
                id: id.map(Into::into),
                running: status
                    .and_then(|status| status.state.as_ref())
                    .is_some_and(|state| state.running.is_some()),
                cgroup: id.and_then(|id| layout.container(cgroup, id).ok()),
                native: native.unwrap_or_default(),
                batch: batch.or_else(|| before?.batch),
                mid: mid
                    .map(Box::new)
                    .or_else(|| before.and_then(|before| before.mid.clone())),
            }
        };
    let main = spec.containers.iter().enumerate().map(|(at, container)| {
        let statuses = status.and_then(|s| s.container_statuses.as_ref());
        read_container(ContainerPosition::Main(at), container, statuses)
    });
    let main = main.collect();
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(at, container)| {
        let statuses = status.and_then(|s| s.init_container_statuses.as_ref());
        read_container(ContainerPosition::Init(at), container, statuses)
    });
    (main, init.collect())
}

fn integer(quantity: Quantity) -> i64 {
    quantity.value()
}

/// Reads the amounts of a container.
struct AmountReader<'a, 'b> {
    reader: &'a mut Reader<'b>,
    place: ContainerPosition,
    container: &'a Container,
    /// Amounts for resources that the spec does not have.
    extended: Option<&'a ExtendedResourceContainerSpec>,
}

impl AmountReader<'_, '_> {
    /// Returns CPU, in the unit of `cpu_unit`, and memory of one tier; `None` if none is set.
    fn tier(
        &mut self,
        cpu: &str,
        memory: &str,
        cpu_unit: impl Fn(Quantity) -> i64,
    ) -> Option<Batch> {
        let tier = Batch {
            cpu_request: self.get(false, cpu).map(&cpu_unit),
            cpu_limit: self.get(true, cpu).map(&cpu_unit),
            memory_request: self.get(false, memory).map(integer),
            memory_limit: self.get(true, memory).map(integer),
        };
        (tier != Batch::default()).then_some(tier)
    }

    fn get(&mut self, limits: bool, name: &str) -> Option<Quantity> {
        let own = self.container.resources.as_ref();
        let (list, part): (Option<&BTreeMap<String, ApiQuantity>>, _) = if limits {
            (own.and_then(|own| own.limits.as_ref()), "limits")
        } else {
            (own.and_then(|own| own.requests.as_ref()), "requests")
        };
        if let Some(text) = list.and_then(|list| list.get(name)) {
            match quantity::parse(text) {
                Ok(amount) => return Some(amount),
                Err(error) => {
                    let field = format!("{}.resources.{part}[{name}]", self.place);
                    let report = Malformed::new(field, text.0.clone(), &error);
                    self.reader.malformed.push(report);
                }
            }
        }
        let extended = self.extended?;
        let list = if limits {
            &extended.limits
        } else {
            &extended.requests
        };
        list.get(name).copied()
    }
}
