//! A client for one other HTTP endpoint that speaks Kubernetes JSON, such as a kubelet.

use std::path::Path;
use std::time::Duration;

/// Why an endpoint cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is no URL.
    #[error("endpoint url {url:?}: {source}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        source: http::uri::InvalidUri,
    },
    /// No client could be made for it.
    #[error("endpoint {url}: {source}")]
    Client {
        /// Which endpoint.
        url: String,
        /// Why not.
        source: Box<kube::Error>,
    },
}

/// A client for `url`. Its certificate is **not** verified, because a kubelet's is signed by
/// itself; so only a bearer token with narrow rights should be sent along.
///
/// # Errors
/// When `url` is no URL or its scheme cannot be used.
pub fn connect(
    url: &str,
    token_file: Option<&Path>,
    timeout: Duration,
) -> Result<kube::Client, EndpointError> {
    let uri = url.parse().map_err(|source| EndpointError::Url {
        url: url.to_owned(),
        source,
    })?;
    let mut config = kube::Config::new(uri);
    config.accept_invalid_certs = true;
    config.connect_timeout = Some(timeout);
    config.read_timeout = Some(timeout);
    config.default_retry = false;
    if let Some(file) = token_file {
        config.auth_info.token_file = Some(file.to_string_lossy().into_owned());
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    kube::Client::try_from(config).map_err(|source| EndpointError::Client {
        url: url.to_owned(),
        source: Box::new(source),
    })
}
