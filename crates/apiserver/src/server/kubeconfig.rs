//! The administrator's kubeconfig.

use super::pki::Identity;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A kubeconfig that reaches the server at `address` as the owner of `identity`.
pub(super) fn render(address: SocketAddr, authority_pem: &str, identity: &Identity) -> String {
    let address = SocketAddr::new(reachable(address.ip()), address.port());
    let encode = |pem: &str| STANDARD.encode(pem);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: koord
  cluster:
    server: https://{address}
    certificate-authority-data: {authority}
users:
- name: koord-admin
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: koord
  context:
    cluster: koord
    user: koord-admin
current-context: koord
",
        authority = encode(authority_pem),
        certificate = encode(&identity.certificate_pem),
        key = encode(&identity.key_pem),
    )
}

/// An address a client on this machine can connect to.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}
