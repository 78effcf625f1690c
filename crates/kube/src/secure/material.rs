//! Certificates: the server's own, and those of the authorities that vouch for clients.

use crate::{Api, Client};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a cluster keeps what its extension servers trust.
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";
const KEY: &str = "client-ca-file";

/// Who vouches for clients.
pub(super) enum Authorities {
    /// Nobody: certificates are not asked for.
    None,
    /// Those in a PEM file.
    File(PathBuf),
    /// Those that the cluster names.
    Cluster {
        client: Client,
        /// Whether it is all right not to find them at first.
        tolerant: bool,
    },
}

/// PEM texts.
#[derive(Clone, PartialEq, Default)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authorities: Vec<u8>,
}

/// Where certificates come from, and what they were when last looked at.
pub(super) struct Source {
    files: Option<(PathBuf, PathBuf)>,
    authorities: Authorities,
    known: Contents,
}

impl Source {
    /// Reads certificate and key from `files`; without, makes ones that clients cannot verify.
    pub(super) fn new(files: Option<(PathBuf, PathBuf)>, authorities: Authorities) -> Result<Self> {
        let mut known = Contents::default();
        if files.is_none() {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
            known.certificate = made.cert.pem().into_bytes();
            known.key = made.signing_key.serialize_pem().into_bytes();
        }
        Ok(Self {
            files,
            authorities,
            known,
        })
    }

    /// The configuration to start with.
    pub(super) async fn first(&mut self) -> Result<Arc<ServerConfig>> {
        let authorities = self.read_authorities().await;
        let authorities = match (&self.authorities, authorities) {
            (Authorities::Cluster { tolerant: true, .. }, Err(error)) => {
                tracing::warn!(
                    error = %format!("{error:#}"),
                    "client certificates count for nothing until their authority is found"
                );
                Vec::new()
            }
            (_, read) => read?,
        };
        self.known = self.read(authorities)?;
        configuration(&self.known)
    }

    /// The configuration after a change, if there was one.
    pub(super) async fn renewed(&mut self) -> Result<Option<Arc<ServerConfig>>> {
        let authorities = self.read_authorities().await;
        let authorities = authorities.unwrap_or_else(|error| {
            let error = format!("{error:#}");
            if self.known.authorities.is_empty() {
                tracing::debug!(error, "authorities of clients");
            } else {
                tracing::warn!(error, "those who vouch for clients stay as they were");
            }
            self.known.authorities.clone()
        });
        let now = self.read(authorities)?;
        if now == self.known {
            return Ok(None);
        }
        let config = configuration(&now)?;
        self.known = now;
        Ok(Some(config))
    }

    fn read(&self, authorities: Vec<u8>) -> Result<Contents> {
        let mut contents = Contents {
            authorities,
            ..self.known.clone()
        };
        if let Some((certificate, key)) = &self.files {
            contents.certificate = file("tls-cert-file", certificate)?;
            contents.key = file("tls-private-key-file", key)?;
        }
        Ok(contents)
    }

    /// Nothing only where nobody is to vouch for clients: a file that was emptied is an error.
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

/// The certificates of a PEM text, of which there is at least one.
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
