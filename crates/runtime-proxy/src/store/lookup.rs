//! Looks up running pods and containers in the runtime.

use super::Container;
use crate::{grpc, merge};
use koord_rpc::cri;
use koord_rpc::cri::runtime_service_client::RuntimeServiceClient;
use koord_rpc::hooks as wire;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Timeout of a request to the runtime.
const DEADLINE: Duration = Duration::from_secs(5);

/// Client for the proxy's own requests to the runtime.
#[derive(Debug, Clone)]
pub(crate) struct Runtime(RuntimeServiceClient<Channel>);

impl Runtime {
    pub(crate) fn new(socket: &Path) -> Self {
        let client = RuntimeServiceClient::new(koord_rpc::grpc::connect(socket));
        Self(client.max_decoding_message_size(grpc::MESSAGE))
    }

    /// Returns name and version of the runtime, which must support the CRI v1.
    pub(crate) async fn version(&self) -> Result<(String, String), Status> {
        let mut client = self.0.clone();
        let request = cri::VersionRequest {
            version: "v1".to_owned(),
        };
        let answer = limit(client.version(request)).await?;
        Ok((answer.runtime_name, answer.runtime_version))
    }

    /// Returns a pod; `None` if the runtime does not have it.
    pub(crate) async fn pod(
        &self,
        id: &str,
    ) -> Result<Option<wire::PodSandboxHookRequest>, Status> {
        let mut client = self.0.clone();
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: true,
        };
        let answer = some_if_found(limit(client.pod_sandbox_status(request)).await)?;
        Ok(answer.and_then(|answer| Some(pod(answer.status?, &answer.info))))
    }

    /// Returns a container and the id of its pod; `None` if the runtime does not have it.
    pub(crate) async fn container(&self, id: &str) -> Result<Option<Container>, Status> {
        let mut client = self.0.clone();
        // A status does not contain the pod.
        let request = cri::ListContainersRequest {
            filter: Some(cri::ContainerFilter {
                id: id.to_owned(),
                ..Default::default()
            }),
        };
        let listed = limit(client.list_containers(request)).await?.containers;
        let Some(listed) = listed.into_iter().find(|listed| listed.id == id) else {
            return Ok(None);
        };
        let request = cri::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: true,
        };
        let Some(answer) = some_if_found(limit(client.container_status(request)).await)? else {
            return Ok(None);
        };
        let request = container(answer.status.unwrap_or_default(), &answer.info);
        Ok(Some(Container {
            sandbox: listed.pod_sandbox_id,
            request,
        }))
    }
}

async fn limit<T>(
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(DEADLINE, answer).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("no response from the runtime")),
    }
}

fn some_if_found<T>(answer: Result<T, Status>) -> Result<Option<T>, Status> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// Fields that containerd and CRI-O add to a verbose status. Missing or differently formed fields are ignored: they
/// are optional.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Info {
    config: Config,
    #[serde(rename = "runtimeSpec")]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    linux: ConfigLinux,
    envs: Vec<Env>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigLinux {
    cgroup_parent: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Env {
    key: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    process: Process,
    linux: SpecLinux,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Process {
    env: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecLinux {
    cgroups_path: String,
}

fn info(of: &BTreeMap<String, String>) -> Info {
    let text = of.get("info").map_or("{}", String::as_str);
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(%error, "ignoring verbose status info with an unexpected format");
        Info::default()
    })
}

fn pod(
    status: cri::PodSandboxStatus,
    verbose: &BTreeMap<String, String>,
) -> wire::PodSandboxHookRequest {
    let info = info(verbose);
    let configured = info.config.linux.cgroup_parent;
    wire::PodSandboxHookRequest {
        pod_meta: status.metadata.map(|meta| wire::PodSandboxMetadata {
            name: meta.name,
            uid: meta.uid,
            namespace: meta.namespace,
            attempt: meta.attempt,
        }),
        runtime_handler: status.runtime_handler,
        labels: status.labels,
        annotations: status.annotations,
        cgroup_parent: match configured.as_str() {
            "" => parent(&info.spec.linux.cgroups_path),
            _ => configured,
        },
        overhead: None,
        resources: None,
    }
}

fn container(
    status: cri::ContainerStatus,
    verbose: &BTreeMap<String, String>,
) -> wire::ContainerResourceHookRequest {
    let info = info(verbose);
    let requested: BTreeSet<&str> = info.config.envs.iter().map(|env| &*env.key).collect();
    // Variables of the image are not part of the kubelet's request.
    let envs = info.spec.process.env.iter();
    let envs = envs.filter_map(|env| env.split_once('='));
    let envs = envs.filter(|(key, _)| requested.contains(key));
    let linux = status.resources.and_then(|resources| resources.linux);
    wire::ContainerResourceHookRequest {
        container_meta: status.metadata.map(|meta| wire::ContainerMetadata {
            name: meta.name,
            attempt: meta.attempt,
            id: status.id,
        }),
        container_annotations: status.annotations,
        container_resources: linux.as_ref().map(merge::resources),
        container_envs: envs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        ..Default::default()
    }
}

/// Returns the pod's cgroup parent from the path of its sandbox: `PARENT/ID`, or for systemd
/// `SLICE:PREFIX:ID`, where the dashes of a slice's name are its path.
fn parent(cgroups_path: &str) -> String {
    let Some((slice, _)) = cgroups_path.split_once(':') else {
        let parent = cgroups_path.rsplit_once('/').map(|(parent, _)| parent);
        return parent.unwrap_or_default().to_owned();
    };
    let Some(name) = slice.strip_suffix(".slice") else {
        return slice.to_owned();
    };
    let dashes = name.match_indices('-').map(|(at, _)| at);
    let ways = dashes.chain([name.len()]);
    ways.filter_map(|end| name.get(..end))
        .map(|name| format!("/{name}.slice"))
        .collect()
}

#[cfg(test)]
mod tests;
