//! TLS: the server's certificate, optional client certificates of our own authority, h2 by ALPN.

use super::ServeError;
use super::pki::{Authority, Identity};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;

/// The configuration of the TLS side of the server.
pub(super) fn config(
    authority: &Authority,
    server: Identity,
) -> Result<Arc<ServerConfig>, ServeError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots
        .add(authority.certificate().clone())
        .map_err(|e| ServeError::certificate("authority certificate", e))?;
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|e| ServeError::certificate("authority certificate", e))?;
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

/// The configuration of a client that is `client` and trusts servers of `authority`.
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
