//! Repeated creation of the same container, in each of the ways.

use super::node::batch_pod;
use super::times::Percentiles;
use anyhow::{Context as _, Result};
use koord_rpc::cri::runtime_service_client::RuntimeServiceClient;
use koord_rpc::{cri, grpc};
use koord_testkit::testing::{Containerd, Groups, IMAGE};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// The container's name.
const NAME: &str = "batch";

/// Shell command of a process that prints its limits and ends: shares, quota and memory limit with
/// controllers of version 1, quota with period and memory limit elsewhere.
const SAYS: &str = "cd /sys/fs/cgroup; if [ -e cpu/cpu.shares ]; then \
    echo said $(cat cpu/cpu.shares cpu/cpu.cfs_quota_us memory/memory.limit_in_bytes); else \
    echo said $(cat cpu.max memory.max); fi";

/// Output with the half core and 64 MiB of the pod (shares are 1,024 a core).
const ADJUSTED: [&str; 2] = ["said 512 50000 67108864", "said 50000 100000 67108864"];

/// Time limit for a process to print its limits.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) type RuntimeClient = RuntimeServiceClient<Channel>;

/// Returns a client of the runtime at a socket, or of a proxy there.
pub(super) fn client(socket: &Path) -> RuntimeClient {
    RuntimeServiceClient::new(grpc::connect(socket))
        .max_decoding_message_size(grpc::MESSAGE_LIMIT)
        .max_encoding_message_size(grpc::MESSAGE_LIMIT)
}

/// A pod's sandbox.
#[derive(Debug, Clone)]
pub(super) struct Pod {
    pub(super) id: String,
    pub(super) config: cri::PodSandboxConfig,
}

impl Pod {
    /// Returns the call that creates the container for the `attempt`th time.
    pub(super) fn create(&self, attempt: u32, image: &str) -> cri::CreateContainerRequest {
        let config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: NAME.to_owned(),
                attempt,
            }),
            image: Some(cri::ImageSpec {
                image: image.to_owned(),
                ..cri::ImageSpec::default()
            }),
            command: ["sh", "-c", SAYS].map(str::to_owned).to_vec(),
            log_path: format!("{attempt}.log"),
            linux: Some(cri::LinuxContainerConfig {
                resources: Some(cri::LinuxContainerResources {
                    // A best-effort container's.
                    cpu_shares: 2,
                    cpu_period: 100_000,
                    ..cri::LinuxContainerResources::default()
                }),
                ..cri::LinuxContainerConfig::default()
            }),
            ..cri::ContainerConfig::default()
        };
        cri::CreateContainerRequest {
            pod_sandbox_id: self.id.clone(),
            config: Some(config),
            sandbox_config: Some(self.config.clone()),
        }
    }
}

/// A way to create containers: a pod, and the client for it.
pub(super) struct Lane {
    client: RuntimeClient,
    pod: Pod,
    logs: PathBuf,
    /// True if koordlet is to adjust its containers.
    adjusts: bool,
    /// Containers that were created.
    made: u32,
    create: Vec<Duration>,
    start: Vec<Duration>,
    unadjusted: usize,
}

impl Lane {
    /// Creates a batch pod of this UID in the runtime, called at `socket`.
    ///
    /// # Errors
    /// When the pod cannot be created.
    pub(super) async fn open(
        runtime: &Containerd,
        uid: &str,
        socket: &Path,
        groups: &Groups,
        adjusts: bool,
    ) -> Result<Self> {
        let group = batch_pod(groups, uid)?;
        let logs = runtime.path("logs").join(uid);
        std::fs::create_dir_all(&logs)?;
        let list = json!({"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"});
        let containers = json!({"containers": {NAME: {"limits": list, "requests": list}}});
        let host = cri::NamespaceOption {
            network: cri::NamespaceMode::Node as i32,
            ..cri::NamespaceOption::default()
        };
        let config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: uid.to_owned(),
                uid: uid.to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: logs.display().to_string(),
            labels: [("koordinator.sh/qosClass".to_owned(), "BE".to_owned())].into(),
            annotations: [(
                "node.koordinator.sh/extended-resource-spec".to_owned(),
                containers.to_string(),
            )]
            .into(),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}", group.as_str()),
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    namespace_options: Some(host),
                    ..cri::LinuxSandboxSecurityContext::default()
                }),
                ..cri::LinuxPodSandboxConfig::default()
            }),
            ..cri::PodSandboxConfig::default()
        };
        let mut client = client(socket);
        let request = cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: String::new(),
        };
        let response = client
            .run_pod_sandbox(request)
            .await
            .context("failed to run the pod sandbox")?;
        Ok(Self {
            client,
            pod: Pod {
                id: response.into_inner().pod_sandbox_id,
                config,
            },
            logs,
            adjusts,
            made: 0,
            create: Vec::new(),
            start: Vec::new(),
            unadjusted: 0,
        })
    }

    /// Creates, starts and removes a container; its times are kept unless it is for `practice`.
    ///
    /// # Errors
    /// When the runtime refuses a call, or a container without hooks was adjusted.
    pub(super) async fn container(&mut self, practice: bool) -> Result<()> {
        let attempt = self.made;
        self.made += 1;
        let request = self.pod.create(attempt, IMAGE);
        let begun = Instant::now();
        let created = self.client.create_container(request).await;
        let create = begun.elapsed();
        let container_id = created
            .context("failed to create the container")?
            .into_inner()
            .container_id;
        let request = cri::StartContainerRequest {
            container_id: container_id.clone(),
        };
        let begun = Instant::now();
        self.client
            .start_container(request)
            .await
            .context("failed to start the container")?;
        let start = create + begun.elapsed();
        let output = read_output(&self.logs.join(format!("{attempt}.log"))).await;
        self.remove(container_id)
            .await
            .context("failed to remove the container")?;
        if practice {
            return Ok(());
        }
        self.create.push(create);
        self.start.push(start);
        let adjusted = ADJUSTED.iter().any(|adjusted| *adjusted == output);
        if self.adjusts && !adjusted {
            tracing::warn!(
                attempt,
                output,
                "failed to adjust the container's limits by hooks"
            );
            self.unadjusted += 1;
        }
        // Otherwise adjusted containers would prove nothing.
        anyhow::ensure!(
            self.adjusts || !adjusted,
            "a container without hooks was adjusted"
        );
        Ok(())
    }

    /// Removes the container like a kubelet: retries while the runtime has not seen the end of the process.
    async fn remove(&mut self, container_id: String) -> Result<(), tonic::Status> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let request = cri::RemoveContainerRequest {
                container_id: container_id.clone(),
            };
            match self.client.remove_container(request).await {
                Err(_) if Instant::now() < end => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                answer => return answer.map(drop),
            }
        }
    }

    pub(super) fn pod(&self) -> &Pod {
        &self.pod
    }

    pub(super) fn outcome(&self) -> (usize, usize) {
        (self.create.len(), self.unadjusted)
    }

    /// Returns the times of CreateContainer.
    pub(super) fn create_times(&self) -> Percentiles {
        Percentiles::from_times(&self.create)
    }

    /// Returns the times of CreateContainer and StartContainer together.
    pub(super) fn start_times(&self) -> Percentiles {
        Percentiles::from_times(&self.start)
    }

    /// Returns the runtime's name and version.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) async fn version(&mut self) -> Result<String> {
        let answer = self.client.version(cri::VersionRequest::default()).await?;
        let answer = answer.into_inner();
        Ok(format!(
            "{} {}",
            answer.runtime_name, answer.runtime_version
        ))
    }
}

/// Reads the line that a container's process has written; empty if there is none in time.
async fn read_output(log: &Path) -> String {
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        // A line is in the log as a whole: after its time, its stream and `F`.
        if let Some((_, line)) = text
            .strip_suffix('\n')
            .and_then(|text| text.split_once(" stdout F "))
        {
            return line.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    String::new()
}
