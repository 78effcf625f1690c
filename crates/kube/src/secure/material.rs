//! The certificate of the server, and the CA certificates that verify clients.

use crate::{Api, Client};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The ConfigMap in which a cluster publishes the CA of client certificates for its extension servers.
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";
const KEY: &str = "client-ca-file";

/// Source of the CA certificates that verify clients.
pub(super) enum Authorities {
    /// There are none: client certificates are not requested.
    None,
    /// A PEM file.
    File(PathBuf),
    /// The ConfigMap of the cluster.
    Cluster {
        client: Client,
        /// True if the server may start without the CA certificates of the ConfigMap.
        tolerant: bool,
    },
}

/// The certificates and the key, as PEM.
#[derive(Clone, PartialEq, Default)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authorities: Vec<u8>,
}

/// The sources of the certificates, and the content at the last read.
pub(super) struct CertificateSource {
    files: Option<(PathBuf, PathBuf)>,
    authorities: Authorities,
    current: Contents,
}

impl CertificateSource {
    /// Creates a source with certificate and key in `files`; without files, it generates a self-signed
    /// certificate, which clients cannot verify.
    pub(super) fn new(files: Option<(PathBuf, PathBuf)>, authorities: Authorities) -> Result<Self> {
        let mut current = Contents::default();
        if files.is_none() {
            let generated = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
            current.certificate = generated.cert.pem().into_bytes();
            current.key = generated.signing_key.serialize_pem().into_bytes();
        }
        Ok(Self {
            files,
            authorities,
            current,
        })
    }

    /// Returns the configuration to start with.
    pub(super) async fn initial_config(&mut self) -> Result<Arc<ServerConfig>> {
        let authorities = self.read_authorities().await;
        let authorities = match (&self.authorities, authorities) {
            (Authorities::Cluster { tolerant: true, .. }, Err(error)) => {
                tracing::warn!(
                    error = %format!("{error:#}"),
                    "ignoring client certificates until their CA is found"
                );
                Vec::new()
            }
            (_, read) => read?,
        };
        self.current = self.read(authorities)?;
        configuration(&self.current)
    }

    /// Reads everything again; returns the new configuration, `None` if nothing changed.
    pub(super) async fn reload(&mut self) -> Result<Option<Arc<ServerConfig>>> {
        let authorities = self.read_authorities().await;
        let authorities = authorities.unwrap_or_else(|error| {
            let error = format!("{error:#}");
            if self.current.authorities.is_empty() {
                tracing::debug!(error, "failed to read the CA of client certificates");
            } else {
                tracing::warn!(
                    error,
                    "failed to read the CA of client certificates, keeping the previous one"
                );
            }
            self.current.authorities.clone()
        });
        let now = self.read(authorities)?;
        if now == self.current {
            return Ok(None);
        }
        let config = configuration(&now)?;
        self.current = now;
        Ok(Some(config))
    }

    fn read(&self, authorities: Vec<u8>) -> Result<Contents> {
        let mut contents = Contents {
            authorities,
            ..self.current.clone()
        };
        if let Some((certificate, key)) = &self.files {
            contents.certificate = file("tls-cert-file", certificate)?;
            contents.key = file("tls-private-key-file", key)?;
        }
        Ok(contents)
    }

    /// Reads the CA certificates. The result is empty only for [`Authorities::None`]: a file without
    /// certificates is an error.
    async fn read_authorities(&self) -> Result<Vec<u8>> {
        match &self.authorities {
            Authorities::None => Ok(Vec::new()),
            Authorities::File(path) => {
                let pem = file("client-ca-file", path)?;
                roots(&pem).with_context(|| format!("--client-ca-file: {}", path.display()))?;
                Ok(pem)
            }
            Authorities::Cluster { client, .. } => {
                let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
                let map = api.get(CONFIG_MAP).await;
                let map = map.with_context(|| format!("ConfigMap {NAMESPACE}/{CONFIG_MAP}"))?;
                let Some(pem) = map.data.and_then(|mut data| data.remove(KEY)) else {
                    bail!("ConfigMap {NAMESPACE}/{CONFIG_MAP} has no key {KEY}");
                };
                roots(pem.as_bytes())
                    .with_context(|| format!("ConfigMap {NAMESPACE}/{CONFIG_MAP}, key {KEY}"))?;
                Ok(pem.into_bytes())
            }
        }
    }
}

fn file(flag: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("--{flag}: {}", path.display()))
}

/// Parses the certificates in a PEM text. A text without one is an error.
fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        bail!("no certificate in it");
    }
    Ok(roots)
}

fn configuration(contents: &Contents) -> Result<Arc<ServerConfig>> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&contents.certificate).collect();
    let certificates = certificates.context("--tls-cert-file")?;
    let key = PrivateKeyDer::from_pem_slice(&contents.key).context("--tls-private-key-file")?;
    let builder = ServerConfig::builder();
    let builder = if contents.authorities.is_empty() {
        builder.with_no_client_auth()
    } else {
        let roots = roots(&contents.authorities).context("authorities of client certificates")?;
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
            .allow_unauthenticated()
            .build()
            .context("authorities of client certificates")?;
        builder.with_client_cert_verifier(verifier)
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .context("--tls-cert-file and --tls-private-key-file")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
