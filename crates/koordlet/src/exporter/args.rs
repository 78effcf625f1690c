//! Command line of `koord topology-exporter`, with the names and defaults of nfd-topology-updater.

use super::{ConfigSource, ExporterSettings, SOCKET, TakeOver};
use crate::states::kubelet::{Kubelet, kubelet_trust};
use clap::ArgAction::Set;
use clap::Parser;
use koord_app::flags;
use koord_host::root::Dirs;
use koord_host::{HostError, Root};
use koord_kube::endpoint::Trust;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of the exporter.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "koord-topology-exporter",
    version,
    about = "Reports the free resources of each NUMA node of this machine in a NodeResourceTopology"
)]
pub struct Args {
    /// Name of this node
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub node_name: String,
    /// Path of a kubeconfig; default: the service account or $KUBECONFIG
    #[arg(long, default_value = "")]
    pub kubeconfig: String,
    /// Port for health and metrics; 0 disables it
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Time between two periodic scans, as a Go duration; 0 disables them
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub sleep_interval: Duration,
    /// Socket of the kubelet's PodResources service
    #[arg(long, default_value = SOCKET)]
    pub podresources_socket: PathBuf,
    /// The kubelet's directory, whose changes trigger a scan; empty disables the watch
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet_state_dir: String,
    /// URL of the kubelet's configuration: file:///path or https://host:port/configz; if empty, the kubelet is
    /// queried at the address in its Node
    #[arg(long, default_value = "")]
    pub kubelet_config_uri: String,
    /// File with a token that the kubelet accepts; default: the service account's token
    #[arg(long, default_value = "")]
    pub api_auth_token_file: String,
    /// PEM file with the certificate authority or the certificate of the kubelet; default: the cluster's
    /// authority and the files in pki below --kubelet-state-dir
    #[arg(long, default_value = "")]
    pub kubelet_certificate_authority: String,
    /// Verify the kubelet's certificate
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub kubelet_verify_certificate: bool,
    /// Publish a fingerprint of the pods that the report counts
    #[arg(long, default_value_t = true, action = Set, num_args = 0..=1, default_missing_value = "true")]
    pub pods_fingerprint: bool,
    /// Namespaces of the pods to count; only "*" (all) is accepted, because CPUs of other pods would be reported
    /// as free
    #[arg(long, default_value = "*")]
    pub watch_namespace: String,
    /// Configuration file; its excludeList has the resources to leave out of the report, by node name or *
    #[arg(long, default_value = "")]
    pub config: String,
    /// Log the report instead of writing it to the API server
    #[arg(long)]
    pub no_publish: bool,
    /// Write one report, then exit
    #[arg(long)]
    pub oneshot: bool,
    /// Overwrite an object that another exporter has written
    #[arg(long)]
    pub take_over: bool,
    /// Root of sysfs
    #[arg(long, default_value = "/sys/")]
    pub sys_root_dir: PathBuf,
}

fn duration(text: &str) -> Result<Duration, String> {
    flags::duration(text).map_err(|error| error.to_string())
}

/// Errors of the exporter's command line.
#[derive(Debug, thiserror::Error)]
pub enum ExporterArgsError {
    /// A flag has an invalid value.
    #[error("--{flag}: {why}")]
    Flag {
        /// Name of the flag.
        flag: &'static str,
        /// Reason why the value is invalid.
        why: String,
    },
    /// A directory of the kernel is invalid.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Content of the file of `--config`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExcludeList {
    #[serde(default)]
    exclude_list: BTreeMap<String, Vec<String>>,
}

impl Args {
    /// Validates the flags, reads the file of `--config`, and returns the exporter's settings.
    ///
    /// # Errors
    /// Names the invalid flag and its value.
    pub fn settings(&self) -> Result<(ExporterSettings, Root), ExporterArgsError> {
        let flag_error = |flag, why: String| ExporterArgsError::Flag { flag, why };
        if self.node_name.is_empty() {
            let why = "is empty, and so is $NODE_NAME".to_owned();
            return Err(flag_error("node-name", why));
        }
        if self.watch_namespace != "*" {
            let why = format!("{:?} is not \"*\": all pods count", self.watch_namespace);
            return Err(flag_error("watch-namespace", why));
        }
        let non_empty = |path: &str| Some(PathBuf::from(path)).filter(|_| !path.is_empty());
        if self.sleep_interval.is_zero() && non_empty(&self.kubelet_state_dir).is_none() {
            let why = "is 0, and without --kubelet-state-dir nothing would trigger a scan";
            return Err(flag_error("sleep-interval", why.to_owned()));
        }
        let token = non_empty(&self.api_auth_token_file);
        let trust = match non_empty(&self.kubelet_certificate_authority) {
            _ if !self.kubelet_verify_certificate => Trust::Any,
            None => kubelet_trust(non_empty(&self.kubelet_state_dir).as_deref()),
            Some(file) => Trust::Files(vec![file]),
        };
        let kubelet = match self.kubelet_config_uri.as_str() {
            "" => ConfigSource::Node(Kubelet {
                trust,
                ..Kubelet::default()
            }),
            uri => ConfigSource::parse(uri, token, trust)
                .map_err(|why| flag_error("kubelet-config-uri", why))?,
        };
        let exclude = match non_empty(&self.config) {
            None => BTreeSet::new(),
            Some(path) => {
                let failed =
                    |why: String| flag_error("config", format!("{}: {why}", path.display()));
                let text = std::fs::read_to_string(&path).map_err(|e| failed(e.to_string()))?;
                excluded(&text, &self.node_name).map_err(failed)?
            }
        };
        let root = Root::with_dirs(Dirs {
            sys: self.sys_root_dir.clone(),
            ..Dirs::below(Path::new("/"))
        })?;
        let settings = ExporterSettings {
            node: self.node_name.clone(),
            socket: self.podresources_socket.clone(),
            interval: self.sleep_interval,
            state_dir: non_empty(&self.kubelet_state_dir),
            kubelet,
            fingerprint: self.pods_fingerprint,
            exclude,
            publish: !self.no_publish,
            take_over: match self.take_over {
                true => TakeOver::Always,
                false => TakeOver::Never,
            },
        };
        Ok((settings, root))
    }
}

/// Returns the resources that the exclude lists name for `node`.
fn excluded(text: &str, node: &str) -> Result<BTreeSet<String>, String> {
    let exclusions: ExcludeList =
        serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let lists = exclusions.exclude_list.into_iter();
    let lists = lists.filter(|(name, _)| name == "*" || name == node);
    Ok(lists.flat_map(|(_, resources)| resources).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &[&str]) -> Result<ExporterSettings, String> {
        let node =
            (!line.iter().any(|flag| flag.starts_with("--node-name"))).then_some("--node-name=n");
        let argv = ["koord-topology-exporter"].into_iter().chain(node);
        let argv = argv.chain(line.iter().copied()).map(Into::into);
        let parsed = flags::parse::<Args>(argv).map_err(|error| error.to_string())?;
        let settings = parsed.args.settings().map_err(|error| error.to_string())?;
        Ok(settings.0)
    }

    #[test]
    fn defaults_are_upstreams() {
        let parsed = settings(&[]).unwrap();
        assert_eq!(parsed.interval, Duration::from_secs(60));
        assert!(parsed.fingerprint && parsed.publish && parsed.take_over == TakeOver::Never);
        assert_eq!(
            parsed.socket,
            Path::new("/var/lib/kubelet/pod-resources/kubelet.sock")
        );
        assert_eq!(
            parsed.state_dir.as_deref(),
            Some(Path::new("/var/lib/kubelet"))
        );
        assert_eq!(parsed.kubelet, ConfigSource::Node(Kubelet::default()));
    }

    #[test]
    fn upstreams_flags_with_one_dash_are_understood() {
        let parsed = settings(&[
            "-sleep-interval=3s",
            "-kubelet-state-dir=",
            "-no-publish",
            "-pods-fingerprint=false",
            "-kubelet-config-uri=file:///k.yaml",
            "-watch-namespace=*",
        ])
        .unwrap();
        assert_eq!(parsed.interval, Duration::from_secs(3));
        assert!(!parsed.fingerprint && !parsed.publish && parsed.state_dir.is_none());
        assert_eq!(parsed.kubelet, ConfigSource::File("/k.yaml".into()));
    }

    #[test]
    fn settings_invalid_flag_names_it_in_the_error() {
        for (line, part) in [
            (&["--node-name="][..], "--node-name: is empty"),
            (&["--watch-namespace=a"], "--watch-namespace: \"a\""),
            (
                &["--sleep-interval=0", "--kubelet-state-dir="],
                "--sleep-interval: is 0",
            ),
            (&["--sleep-interval=soon"], "soon"),
            (&["--kubelet-config-uri=x"], "--kubelet-config-uri: \"x\""),
            (&["--config=/nonexistent"], "--config: /nonexistent"),
        ] {
            let error = settings(line).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn resources_are_left_out_by_node() {
        let text = "excludeList:\n  '*': [memory]\n  n: [ex.com/a]\n  m: [cpu]\n";
        let excluded_names: Vec<String> = excluded(text, "n").unwrap().into_iter().collect();
        assert_eq!(excluded_names, ["ex.com/a", "memory"]);
        // Upstream's TestNewExcludeResourceList.
        let two = "node1: [cpu, vendor/nic1]\n  node2: [memory, hugepages-2Mi]\n";
        let any = "'*': [memory, vendor/nic1]\n  node1: [cpu, hugepages-2Mi]\n";
        for (list, node, want) in [
            (two, "node1", &["cpu", "vendor/nic1"][..]),
            (any, "node2", &["memory", "vendor/nic1"]),
            ("{}\n", "node1", &[]),
        ] {
            let excluded_names = excluded(&format!("excludeList:\n  {list}"), node).unwrap();
            let excluded_names: Vec<&str> = excluded_names.iter().map(String::as_str).collect();
            assert_eq!(excluded_names, want, "{list}");
        }
        assert!(excluded("{}", "n").unwrap().is_empty());
        for (text, part) in [("excludeLst: {}", "excludeLst"), ("excludeList: 3", "3")] {
            let error = excluded(text, "n").unwrap_err();
            assert!(error.contains(part) || error.contains("line"), "{error}");
        }
    }
}
