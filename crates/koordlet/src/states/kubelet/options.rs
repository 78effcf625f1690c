//! How the kubelet is reached.

use koord_kube::endpoint::Trust;
use std::path::Path;
use std::time::Duration;

/// How to reach the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubelet {
    /// The whole URL, such as `https://127.0.0.1:10250`; else it is made from the Node object.
    pub url: Option<String>,
    /// The address type to take from the Node object.
    pub address_type: String,
    /// Plain HTTP on the read-only port.
    pub insecure: bool,
    /// That port.
    pub read_only_port: u16,
    /// How its certificate is verified.
    pub trust: Trust,
    /// Time between two polls; zero never polls.
    pub interval: Duration,
    /// How long one may take.
    pub timeout: Duration,
    /// True if the kubelet is asked for its configuration.
    pub query_config: bool,
}

impl Default for Kubelet {
    fn default() -> Self {
        Self {
            url: None,
            address_type: "InternalIP".to_owned(),
            insecure: false,
            read_only_port: 10255,
            trust: kubelet_trust(Some(Path::new("/var/lib/kubelet"))),
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(3),
            query_config: true,
        }
    }
}

/// Where a pod finds the cluster's authority.
const CLUSTER_AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Returns how the certificate of this machine's kubelet is verified by default: it is signed by the
/// cluster's authority, or in a file in `pki` below the kubelet's directory `dir`.
#[must_use]
pub fn kubelet_trust(dir: Option<&Path>) -> Trust {
    let own = ["pki/kubelet.crt", "pki/kubelet-server-current.pem"];
    let own = dir
        .into_iter()
        .flat_map(|dir| own.map(|name| dir.join(name)));
    Trust::Files(
        std::iter::once(CLUSTER_AUTHORITY.into())
            .chain(own)
            .collect(),
    )
}
