//! Settings of the connection to the kubelet.

use koord_kube::endpoint::Trust;
use std::path::Path;
use std::time::Duration;

/// Settings of the connection to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubelet {
    /// Full URL, such as `https://127.0.0.1:10250`; `None` derives it from the Node object.
    pub url: Option<String>,
    /// The address type to take from the Node object.
    pub address_type: String,
    /// True for plain HTTP on the read-only port.
    pub insecure: bool,
    /// Read-only port.
    pub read_only_port: u16,
    /// Trust settings for the kubelet's certificate.
    pub trust: Trust,
    /// Time between two polls; zero disables polling.
    pub interval: Duration,
    /// Timeout of a request.
    pub timeout: Duration,
    /// True if the kubelet's configuration is requested, too.
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

/// Path of the cluster's CA certificate in a pod.
const CLUSTER_AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Returns the default trust settings for this machine's kubelet: its certificate is signed by the cluster's
/// CA, or is in a file in `pki` below the kubelet's directory `dir`.
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
