//! What all transports of clients have in common.

use http::uri::Scheme;

/// Readies `config` for a transport. The system's roots are loaded only where certificates are verified
/// by them: an image without CA certificates has none, and loading them fails there.
pub(crate) fn prepare(config: &mut kube::Config) {
    // Its policy retries every 429, evictions included, for minutes.
    config.default_retry = false;
    // Only one provider is compiled in; installing it twice is harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let verifies =
        config.cluster_url.scheme() == Some(&Scheme::HTTPS) && !config.accept_invalid_certs;
    if config.root_cert.is_none() && !verifies {
        config.root_cert = Some(Vec::new());
    }
}
