//! The administrator's kubeconfig.

use super::pki::Identity;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::KeyPair;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns a kubeconfig for the server at `address` with the credentials of `identity`.
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

/// Returns the client certificate in the kubeconfig `text`, if `text` is exactly what [`render`] would
/// produce for it: same address and authority, and not edited.
pub(super) fn certificate_in(
    text: &str,
    address: SocketAddr,
    authority_pem: &str,
) -> Option<CertificateDer<'static>> {
    let value = |field: &str| {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(field));
        String::from_utf8(STANDARD.decode(line?.trim()).ok()?).ok()
    };
    let certificate_pem = value("client-certificate-data:")?;
    let key_pem = value("client-key-data:")?;
    // A kubeconfig with an invalid key must be replaced.
    let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).ok()?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).ok()?;
    let pair = KeyPair::from_pem(&key_pem).ok()?;
    let point = pair.public_key_raw();
    let matches = certificate.windows(point.len()).any(|part| part == point);
    let identity = Identity {
        certificate_pem,
        certificate,
        key_pem,
        key,
    };
    (matches && render(address, authority_pem, &identity) == text).then_some(identity.certificate)
}

/// Returns an address that a client on this machine can connect to.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}
