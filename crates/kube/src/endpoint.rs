//! A client for an HTTP endpoint other than the API server that serves Kubernetes JSON, such as a kubelet.

mod trust;

pub use trust::Trust;

use crate::client::transport;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tower::{BoxError, ServiceBuilder};

/// Reasons why the client of an endpoint could not be created.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is not a URL.
    #[error("endpoint url {url:?}: {source}")]
    Url {
        /// The text.
        url: String,
        /// The error of parsing it.
        source: http::uri::InvalidUri,
    },
    /// Creating a client for the URL failed.
    #[error("endpoint {url}: {source}")]
    Client {
        /// The URL.
        url: String,
        /// The error, for example about an invalid certificate.
        source: Box<kube::Error>,
    },
}

/// Creates a client for `url` that verifies the server's certificate by `trust` and sends the token in
/// `token_file`. `timeout` limits connecting, and the time until the head of a response arrives.
///
/// # Errors
/// Fails if `url` is not a URL or its scheme is not supported.
pub fn connect(
    url: &str,
    trust: &Trust,
    token_file: Option<&Path>,
    timeout: Duration,
) -> Result<kube::Client, EndpointError> {
    let uri = url.parse().map_err(|source| EndpointError::Url {
        url: url.to_owned(),
        source,
    })?;
    let mut config = kube::Config::new(uri);
    if let Some(file) = token_file {
        config.auth_info.token_file = Some(file.to_string_lossy().into_owned());
    }
    client(config, trust, timeout).map_err(|source| EndpointError::Client {
        url: url.to_owned(),
        source: Box::new(source),
    })
}

fn client(
    mut config: kube::Config,
    trust: &Trust,
    timeout: Duration,
) -> Result<kube::Client, kube::Error> {
    // Certificates are verified by `trust` alone, without the root certificates of the system.
    config.accept_invalid_certs = true;
    transport::prepare(&mut config);
    let mut tls = config.rustls_client_config()?;
    if let Some(verifier) = trust.verifier() {
        tls.dangerous().set_certificate_verifier(verifier);
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(timeout));
    let connector = hyper_rustls::HttpsConnector::from((connector, Arc::new(tls)));
    let client = Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .timeout(timeout)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(kube::Client::new(service, "default"))
}

#[cfg(test)]
mod tests;
