//! A TLS client for tests of `koord_kube::secure`, and the flags of the server. The unit tests include it
//! too.

use super::SecureServingArgs;
use axum::{Router, routing::get};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Accepts every server certificate, as these tests are about clients.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A CA that signs client certificates.
pub(crate) struct Signer {
    pub(crate) pem: String,
    #[allow(dead_code, reason = "the unit tests need no client certificate")]
    pub(crate) issuer: Issuer<'static, KeyPair>,
}

impl Signer {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "signer");
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }
}

/// Connects a client that offers `protocol` by ALPN; empty for none.
pub(crate) async fn connect(
    address: SocketAddr,
    identity: Option<&Identity>,
    protocol: &str,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)));
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some((chain, key)) => config
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .unwrap(),
    };
    if !protocol.is_empty() {
        config.alpn_protocols = vec![protocol.into()];
    }
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    connector.connect(name, stream).await.unwrap()
}

/// Sends a request; returns status code and body. The code is empty if TLS fails.
pub(crate) async fn send_request(
    address: SocketAddr,
    request: &str,
    token: &str,
    identity: Option<&Identity>,
) -> (String, String) {
    let mut stream = connect(address, identity, "").await;
    let bearer = if token.is_empty() {
        String::new()
    } else {
        format!("Authorization: Bearer {token}\r\n")
    };
    let text = format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n");
    let _ = stream.write_all(text.as_bytes()).await;
    let mut answer = Vec::new();
    // A peer that closes without a TLS close_notify is not a failure here.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return (String::new(), answer);
    };
    let code = head.split(' ').nth(1).unwrap().to_owned();
    (code, body.to_owned())
}

/// The command line of a daemon without further flags.
#[derive(Debug, clap::Parser)]
struct Args {
    #[command(flatten)]
    secure: SecureServingArgs,
}

pub(crate) fn args(flags: &[String]) -> SecureServingArgs {
    let argv = std::iter::once("koord-scheduler").chain(flags.iter().map(String::as_str));
    let parsed = koord_app::flags::parse::<Args>(argv.map(OsString::from));
    parsed.unwrap().args.secure
}

pub(crate) fn routes() -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(|| async { "numbers" }))
}

pub(crate) const ANY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
