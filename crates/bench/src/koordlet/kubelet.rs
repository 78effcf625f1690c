//! A kubelet with the two endpoints that an agent reads, pods and configuration, over TLS.

use anyhow::{Context as _, Result};
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The kubelet's directory, below the one of the run.
pub(super) const DIRECTORY: &str = "kubelet";

/// Serves `/pods` and `/configz` on a free port of this host until `stop`; returns the port. Its certificate
/// is in `directory`, at the kubelet's path for a self-signed one, where koordlet reads it.
///
/// # Errors
/// When there is no port, or the certificate can be neither made nor written.
pub(super) async fn serve(
    pods: &Value,
    configz: &Value,
    directory: &Path,
    stop: CancellationToken,
) -> Result<u16> {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let pki = directory.join("pki");
    std::fs::create_dir_all(&pki).with_context(|| format!("cannot create {}", pki.display()))?;
    let file = pki.join("kubelet.crt");
    std::fs::write(&file, certificate.cert.pem())
        .with_context(|| format!("cannot write {}", file.display()))?;
    let key = PrivateKeyDer::Pkcs8(certificate.signing_key.serialize_der().into());
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let routes = routes(pods, configz)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr().context("local address")?.port();
    tokio::spawn(async move {
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            let Ok((stream, _)) = accepted else { continue };
            let (acceptor, routes, stop) = (acceptor.clone(), routes.clone(), stop.clone());
            tokio::spawn(async move {
                let serving = serve_connection(stream, acceptor, routes);
                stop.run_until_cancelled(serving).await;
            });
        }
    });
    Ok(port)
}

/// Returns the routes with answers made once: the kubelet's own work is not measured.
fn routes(pods: &Value, configz: &Value) -> Result<Router> {
    let answer = |value: &Value| {
        let body = Bytes::from(serde_json::to_vec(value)?);
        let json = [(header::CONTENT_TYPE, "application/json")];
        let handler = move || std::future::ready((json, body.clone()).into_response());
        Ok::<_, serde_json::Error>(get(handler))
    };
    Ok(Router::new()
        .route("/pods", answer(pods)?)
        .route("/pods/", answer(pods)?)
        .route("/configz", answer(configz)?))
}

async fn serve_connection(stream: TcpStream, acceptor: TlsAcceptor, routes: Router) {
    // A client that goes away in between is none to complain about.
    if let Ok(stream) = acceptor.accept(stream).await {
        let service = TowerToHyperService::new(routes);
        let _ = Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }
}
