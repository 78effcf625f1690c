//! TLS configuration: the server's certificate, optional client certificates of its authority, HTTP/2 by
//! ALPN.

use super::ServeError;
use super::pki::{Authority, Identity};
use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;
use std::time::Duration;

/// Returns the TLS configuration of the server.
pub(super) fn config(
    authority: &Authority,
    server: Identity,
) -> Result<Arc<ServerConfig>, ServeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = verifier(authority)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| ServeError::certificate("TLS versions", e))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![server.certificate, authority.certificate().clone()],
            server.key,
        )
        .map_err(|e| ServeError::certificate("server certificate", e))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Returns the verifier of client certificates that `authority` signed.
fn verifier(authority: &Authority) -> Result<Arc<dyn ClientCertVerifier>, ServeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let unusable = |reason: String| ServeError::certificate("authority certificate", reason);
    roots
        .add(authority.certificate().clone())
        .map_err(|e| unusable(e.to_string()))?;
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
        .map_err(|e| unusable(e.to_string()))
}

/// Returns true if the server will accept `certificate` as a client certificate at `at_time`.
pub(super) fn will_accept(
    authority: &Authority,
    certificate: &CertificateDer<'_>,
    at_time: Timestamp,
) -> Result<bool, ServeError> {
    let seconds = u64::try_from(at_time.as_second()).unwrap_or_default();
    let at_time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let verified = verifier(authority)?.verify_client_cert(certificate, &[], at_time);
    Ok(verified.is_ok())
}

/// Returns the TLS configuration of a client with the credentials `client` that trusts servers of
/// `authority`.
pub(super) fn client_config(
    authority: &Authority,
    client: Identity,
) -> Result<Arc<ClientConfig>, ServeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots
        .add(authority.certificate().clone())
        .map_err(|e| ServeError::certificate("authority certificate", e))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| ServeError::certificate("TLS versions", e))?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![client.certificate], client.key)
        .map_err(|e| ServeError::certificate("client certificate", e))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
