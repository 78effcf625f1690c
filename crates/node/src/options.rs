//! Options of the node.

use crate::container_registry::Execs;
use crate::logs::Logs;
use crate::runtime::Runtime;
use k8s_openapi::api::core::v1::Taint;
use koord_host::{CgroupPath, Root};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Settings of the node. The defaults are the kubelet's where it has the setting.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of the Node object; [`host_name`] by default.
    pub node_name: String,
    /// Directory of the state file, the container logs and the PodResources socket.
    pub data_dir: PathBuf,
    /// Group above `kubepods`; the root of the hierarchies by default.
    pub cgroup_parent: CgroupPath,
    /// Address that serves `/pods` and the logs; nothing is served when `None`. The bound port is in the
    /// Node's `status.daemonEndpoints`.
    pub listen: Option<SocketAddr>,
    /// Maximum number of pods.
    pub max_pods: u32,
    /// Labels of the Node in addition to the well-known ones.
    pub labels: Vec<(String, String)>,
    /// Taints that the Node is created with, like a kubelet's `--register-with-taints`; an existing Node
    /// keeps its own.
    pub taints: Vec<Taint>,
    /// CPU reserved from allocatable, in milli-CPUs.
    pub reserved_cpu_milli: i64,
    /// Memory reserved from allocatable, in bytes.
    pub reserved_memory: i64,
    /// Size at which a log file is rotated, in bytes.
    pub log_max_size: u64,
    /// Log files kept per container start, the current one included.
    pub log_max_files: u32,
    /// Interval of Node status reports when nothing changes.
    pub status_interval: Duration,
    /// First restart delay of a container that keeps failing; it doubles with each failure.
    pub backoff_base: Duration,
    /// Maximum restart delay.
    pub backoff_max: Duration,
    /// The log store to write to, so that the caller can read from it; created from `data_dir` when `None`.
    pub logs: Option<Logs>,
    /// Runs commands in this node's containers for the caller.
    pub execs: Option<Execs>,
    /// The pseudo-filesystems of the kernel; those of the running one when `None`.
    pub root: Option<Root>,
    /// Directories that are hidden from containers, in addition to `data_dir`.
    pub hidden: Vec<PathBuf>,
    /// Gives containers all rights of the node unless they drop them.
    pub trusted_pods: bool,
    /// Runs containers without control groups even where these are usable.
    pub unconfined: bool,
    /// Container runtime that runs the containers; when `None` this node runs them as processes.
    pub runtime: Option<Runtime>,
    /// Kills containers that are being stopped at once when cancelled.
    pub hurry: CancellationToken,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            node_name: host_name(),
            data_dir: PathBuf::from("/var/lib/koord/node"),
            cgroup_parent: CgroupPath::root(),
            listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            max_pods: 110,
            labels: Vec::new(),
            taints: Vec::new(),
            reserved_cpu_milli: 0,
            reserved_memory: 0,
            log_max_size: 10 << 20,
            log_max_files: 5,
            status_interval: Duration::from_secs(300),
            backoff_base: Duration::from_secs(10),
            backoff_max: Duration::from_secs(300),
            logs: None,
            execs: None,
            root: None,
            hidden: Vec::new(),
            trusted_pods: false,
            unconfined: false,
            runtime: None,
            hurry: CancellationToken::new(),
        }
    }
}

/// Command line of the node when it runs on its own.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the Node object [default: the host name]
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// Directory for the state file and the container logs
    #[arg(long, default_value = "/var/lib/koord/node")]
    pub data_dir: PathBuf,
    /// Parent cgroup of kubepods; empty is the root cgroup
    #[arg(long, default_value = "")]
    pub cgroup_parent: CgroupPath,
    /// Listen address of the server for /pods and container logs
    #[arg(long, default_value = "127.0.0.1:10255")]
    pub listen: SocketAddr,
    /// Maximum number of running pods
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// Run containers without cgroups
    #[arg(long)]
    pub unconfined: bool,
    /// Run containers with all permissions of this process unless their security context drops them
    #[arg(long)]
    pub trusted_pods: bool,
}

impl From<Args> for Options {
    fn from(args: Args) -> Self {
        Self {
            node_name: args.node_name.unwrap_or_else(host_name),
            data_dir: args.data_dir,
            cgroup_parent: args.cgroup_parent,
            listen: Some(args.listen),
            max_pods: args.max_pods,
            unconfined: args.unconfined,
            trusted_pods: args.trusted_pods,
            ..Self::default()
        }
    }
}

/// Returns the machine's host name as a valid object name, like the kubelet: in lower case, with `-` for
/// characters that a DNS name cannot hold.
#[must_use]
pub fn host_name() -> String {
    let name = Root::system()
        .and_then(|root| root.read(&root.proc("sys/kernel/hostname")))
        .ok()
        .flatten()
        .unwrap_or_default();
    object_name(&name)
}

fn object_name(name: &str) -> String {
    let name: String = name
        .trim()
        .to_lowercase()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        })
        .collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name.chars().take(253).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_become_object_names() {
        for (name, expected) in [
            ("Host_1.lan\n", "host-1.lan"),
            ("", "localhost"),
            ("-x-", "x"),
            ("(none)", "none"),
        ] {
            assert_eq!(object_name(name), expected);
        }
    }
}
