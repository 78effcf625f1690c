//! Applies responses of hook servers to encoded requests.

use crate::wire::{Message, WireError};
use bytes::Bytes;
use koord_rpc::hooks::{
    ContainerResourceHookResponse, LinuxContainerResources, PodSandboxHookResponse,
};
use std::collections::BTreeMap;

/// Field numbers of the CRI's messages.
mod field {
    /// Fields of RunPodSandboxRequest.
    pub(super) const RUN_CONFIG: u32 = 1;
    /// Fields of CreateContainerRequest.
    pub(super) const CREATE_CONFIG: u32 = 2;
    pub(super) const CREATE_SANDBOX_CONFIG: u32 = 3;
    /// Fields of PodSandboxConfig.
    pub(super) const POD_LABELS: u32 = 6;
    pub(super) const POD_ANNOTATIONS: u32 = 7;
    pub(super) const POD_LINUX: u32 = 8;
    /// Fields of LinuxPodSandboxConfig.
    pub(super) const CGROUP_PARENT: u32 = 1;
    /// Fields of ContainerConfig.
    pub(super) const ENVS: u32 = 6;
    pub(super) const ANNOTATIONS: u32 = 10;
    pub(super) const LINUX: u32 = 15;
    /// Fields of LinuxContainerConfig.
    pub(super) const RESOURCES: u32 = 1;
    /// Fields of UpdateContainerResourcesRequest.
    pub(super) const UPDATE_LINUX: u32 = 2;
    pub(super) const UPDATE_ANNOTATIONS: u32 = 4;
}

type Entries = BTreeMap<String, String>;

/// Applies a response to an encoded RunPodSandboxRequest and returns it.
pub(super) fn run_pod(
    request: &Bytes,
    answer: &PodSandboxHookResponse,
) -> Result<Bytes, WireError> {
    let mut request = Message::parse(request)?;
    request.edit(field::RUN_CONFIG, |config| {
        entries(config, field::POD_LABELS, &answer.labels)?;
        entries(config, field::POD_ANNOTATIONS, &answer.annotations)?;
        cgroup_parent(config, &answer.cgroup_parent)
    })?;
    Ok(request.encode())
}

/// Applies a response to a creation. `wanted` are the container's resources, if the response has any.
pub(super) fn create_container(
    request: &Bytes,
    answer: &ContainerResourceHookResponse,
    wanted: Option<&LinuxContainerResources>,
) -> Result<Bytes, WireError> {
    let mut request = Message::parse(request)?;
    request.edit(field::CREATE_CONFIG, |config| {
        entries(config, field::ANNOTATIONS, &answer.container_annotations)?;
        // Variables keep their order: a later one may refer to an earlier one.
        entries(config, field::ENVS, &answer.container_envs)?;
        let Some(wanted) = wanted else { return Ok(()) };
        config.edit(field::LINUX, |linux| {
            linux.edit(field::RESOURCES, |now| resources(now, wanted))
        })
    })?;
    request.edit(field::CREATE_SANDBOX_CONFIG, |config| {
        cgroup_parent(config, &answer.pod_cgroup_parent)
    })?;
    Ok(request.encode())
}

pub(super) fn update_container(
    request: &Bytes,
    annotations: &Entries,
    wanted: Option<&LinuxContainerResources>,
) -> Result<Bytes, WireError> {
    let mut request = Message::parse(request)?;
    entries(&mut request, field::UPDATE_ANNOTATIONS, annotations)?;
    if let Some(wanted) = wanted {
        request.edit(field::UPDATE_LINUX, |now| resources(now, wanted))?;
    }
    Ok(request.encode())
}

fn entries(message: &mut Message, number: u32, entries: &Entries) -> Result<(), WireError> {
    for (key, value) in entries {
        message.set_entry(number, key, value.as_bytes())?;
    }
    Ok(())
}

fn cgroup_parent(config: &mut Message, parent: &str) -> Result<(), WireError> {
    if parent.is_empty() {
        return Ok(());
    }
    config.edit(field::POD_LINUX, |linux| {
        linux.set_text(field::CGROUP_PARENT, parent.as_bytes());
        Ok(())
    })
}

/// Sets LinuxContainerResources except huge pages, which no response changes.
fn resources(message: &mut Message, wanted: &LinuxContainerResources) -> Result<(), WireError> {
    message.set_int(1, wanted.cpu_period);
    message.set_int(2, wanted.cpu_quota);
    message.set_int(3, wanted.cpu_shares);
    message.set_int(4, wanted.memory_limit_in_bytes);
    message.set_int(5, wanted.oom_score_adj);
    message.set_text(6, wanted.cpuset_cpus.as_bytes());
    message.set_text(7, wanted.cpuset_mems.as_bytes());
    entries(message, 9, &wanted.unified)?;
    message.set_int(10, wanted.memory_swap_limit_in_bytes);
    Ok(())
}

#[cfg(test)]
mod tests;
