//! The scheduler's second server: what the plain one shows, over TLS.

use anyhow::{Context as _, Result};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// How long a client may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Clients at a time; more wait for their turn.
const CLIENTS: usize = 64;

/// Serves `routes` on `address` until `shutdown`, with the certificate and key in `files` or with a
/// certificate made now, which clients cannot verify. Returns the address really used.
///
/// # Errors
/// The files cannot be used, or the address is not free.
pub(crate) async fn serve(
    routes: Router,
    address: SocketAddr,
    files: Option<(&Path, &Path)>,
    shutdown: CancellationToken,
) -> Result<SocketAddr> {
    let (certificates, key) = match files {
        Some((certificate, key)) => load(certificate, key)?,
        None => self_signed()?,
    };
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .context("--tls-cert-file and --tls-private-key-file")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--secure-port: cannot listen on {address}"))?;
    let local = listener.local_addr()?;
    tokio::spawn(async move {
        let permits = Arc::new(Semaphore::new(CLIENTS));
        while let Some(Ok(permit)) = shutdown
            .run_until_cancelled(permits.clone().acquire_owned())
            .await
        {
            let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await else {
                return;
            };
            let Ok((stream, _)) = accepted else {
                continue;
            };
            let (acceptor, routes) = (acceptor.clone(), routes.clone());
            let stop = shutdown.clone();
            tokio::spawn(async move {
                stop.run_until_cancelled(talk(stream, acceptor, routes))
                    .await;
                drop(permit);
            });
        }
    });
    Ok(local)
}

async fn talk(stream: TcpStream, acceptor: TlsAcceptor, routes: Router) {
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        return;
    };
    let service = TowerToHyperService::new(routes);
    let served = Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "TLS client");
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn load(certificate: &Path, key: &Path) -> Result<Identity> {
    let named = |flag: &str, path: &Path| format!("--{flag}: {}", path.display());
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
        .with_context(|| named("tls-cert-file", certificate))?
        .collect();
    let certificates = certificates.with_context(|| named("tls-cert-file", certificate))?;
    let key =
        PrivateKeyDer::from_pem_file(key).with_context(|| named("tls-private-key-file", key))?;
    Ok((certificates, key))
}

fn self_signed() -> Result<Identity> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| anyhow::anyhow!("the key of the made certificate: {error}"))?;
    Ok((vec![made.cert.der().clone()], key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn the_same_is_served_over_tls() {
        crate::cluster::install_crypto_provider();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let routes = Router::new().route("/healthz", get(|| async { "ok" }));
        let stop = CancellationToken::new();
        let any = "127.0.0.1:0".parse().unwrap();
        let files = Some((certificate.as_path(), key.as_path()));
        let address = serve(routes.clone(), any, files, stop.clone())
            .await
            .unwrap();

        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, stream).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        // A peer that closes without saying so is no failure here.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"),
            "{answer}"
        );

        assert!(serve(routes.clone(), any, None, stop.clone()).await.is_ok());
        let missing = dir.path().join("none");
        let error = serve(routes, any, Some((&missing, &key)), stop.clone())
            .await
            .unwrap_err();
        assert!(
            format!("{error:#}").contains("--tls-cert-file"),
            "{error:#}"
        );
        stop.cancel();
    }
}
