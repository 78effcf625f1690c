//! Storage of webhook certificates in a Secret or in a directory.

use super::Artifacts;
use crate::Api;
use crate::patch::is_conflict;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

pub(super) const CA_KEY: &str = "ca-key.pem";
pub(super) const CA_CERT: &str = "ca-cert.pem";
pub(super) const KEY: &str = "key.pem";
pub(super) const CERT: &str = "cert.pem";
/// Keys under which Secrets of type `kubernetes.io/tls` hold the same key and certificate.
const TLS_KEY: &str = "tls.key";
const TLS_CERT: &str = "tls.crt";

/// Number of attempts to write the Secret when other replicas write it at the same time.
const ATTEMPTS: usize = 5;

/// Reasons why the certificates could not be read, created or stored.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// The API server rejected a request for the Secret.
    #[error("failed to access Secret {secret}: {source}")]
    Api {
        /// Namespace and name of the Secret, as `namespace/name`.
        secret: String,
        /// The error of the request.
        source: Box<kube::Error>,
    },
    /// A file or the directory cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file or directory.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// Generating a certificate for the host failed.
    #[error("{0}")]
    Generate(String),
    /// Every attempt to write the Secret conflicted with the write of another client.
    #[error("Secret {0}: changed by another client {ATTEMPTS} times while it was being written")]
    Contended(String),
}

/// Reads the certificates of a webhook server from their shared storage, and renews them there.
#[derive(Clone)]
pub struct CertManager {
    place: Storage,
    host: String,
}

#[derive(Clone)]
enum Storage {
    /// A Secret that replicas share.
    Secret(Box<SecretStore>),
    /// A directory that may be mounted by several processes.
    Directory(PathBuf),
}

/// A Secret and the client that reads and writes it.
#[derive(Clone)]
struct SecretStore {
    api: Api<Secret>,
    namespace: String,
    name: String,
}

impl std::fmt::Debug for CertManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match &self.place {
            Storage::Secret(shared) => shared.shown(),
            Storage::Directory(path) => path.display().to_string(),
        };
        f.debug_struct("CertManager")
            .field("place", &place)
            .field("host", &self.host)
            .finish()
    }
}

impl CertManager {
    /// Returns a store in a Secret, for a server that clients reach as `host`: a DNS name or an IP address.
    #[must_use]
    pub fn in_secret(client: kube::Client, namespace: &str, name: &str, host: &str) -> Self {
        Self {
            place: Storage::Secret(Box::new(SecretStore {
                api: Api::namespaced(client, namespace),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })),
            host: host.to_owned(),
        }
    }

    /// Returns a store in the directory `path`, with one file for each key of the Secret.
    #[must_use]
    pub fn in_directory(path: PathBuf, host: &str) -> Self {
        Self {
            place: Storage::Directory(path),
            host: host.to_owned(),
        }
    }

    /// Returns namespace and name of the Secret; `None` if the store is a directory.
    #[must_use]
    pub fn secret(&self) -> Option<(&str, &str)> {
        match &self.place {
            Storage::Secret(shared) => Some((&shared.namespace, &shared.name)),
            Storage::Directory(_) => None,
        }
    }

    /// Returns the stored certificates. Creates or renews them first if they are missing or not valid for
    /// long enough: of several replicas one writes, and all return what it wrote.
    ///
    /// # Errors
    /// See [`CertsError`].
    pub async fn ensure(&self, now: Timestamp) -> Result<Artifacts, CertsError> {
        match &self.place {
            Storage::Secret(shared) => self.ensure_secret(shared, now).await,
            Storage::Directory(path) => self.ensure_files(path, now),
        }
    }

    /// Returns the certificates of the Secret; generates and writes them first if they are missing or
    /// invalid.
    async fn ensure_secret(
        &self,
        shared: &SecretStore,
        now: Timestamp,
    ) -> Result<Artifacts, CertsError> {
        for _ in 0..ATTEMPTS {
            let stored = shared.api.get_opt(&shared.name).await;
            let written = match stored.map_err(|e| shared.error(e))? {
                None => {
                    let artifacts = self.generate(&Artifacts::default(), now)?;
                    let secret = shared.secret(&artifacts);
                    let created = shared.api.create(&PostParams::default(), &secret).await;
                    created.map(|_| artifacts)
                }
                Some(mut secret) => {
                    let current = artifacts_in(&secret);
                    let Err(why) = current.check(&self.host, now) else {
                        return Ok(current);
                    };
                    tracing::warn!(
                        secret = shared.shown(),
                        why,
                        "renewing webhook certificates"
                    );
                    let artifacts = self.generate(&current, now)?;
                    secret
                        .data
                        .get_or_insert_default()
                        .extend(secret_data(&artifacts));
                    let params = PostParams::default();
                    let replaced = shared.api.replace(&shared.name, &params, &secret).await;
                    replaced.map(|_| artifacts)
                }
            };
            match written {
                Ok(artifacts) => {
                    tracing::info!(secret = shared.shown(), "wrote webhook certificates");
                    return Ok(artifacts);
                }
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(shared.error(error)),
            }
        }
        Err(CertsError::Contended(shared.shown()))
    }

    /// Returns the certificates of `directory`; generates and writes them first if they are missing or
    /// invalid.
    fn ensure_files(&self, directory: &Path, now: Timestamp) -> Result<Artifacts, CertsError> {
        let failed = |path: &Path, source| CertsError::File {
            path: path.to_owned(),
            source,
        };
        let read = |name: &str| {
            let path = directory.join(name);
            match std::fs::read(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(failed(&path, error))
                }
                read => Ok(read.unwrap_or_default()),
            }
        };
        let current = Artifacts {
            ca_key: read(CA_KEY)?,
            ca_cert: read(CA_CERT)?,
            key: read(KEY)?,
            cert: read(CERT)?,
        };
        let Err(why) = current.check(&self.host, now) else {
            return Ok(current);
        };
        tracing::warn!(directory = %directory.display(), why, "renewing webhook certificates");
        let artifacts = self.generate(&current, now)?;
        std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
        for (name, pem) in secret_data(&artifacts) {
            let path = directory.join(name);
            // A reader gets the old file or the new one, and only this user may read either.
            let new = path.with_extension("new");
            let mut options = std::fs::OpenOptions::new();
            let opened = options.write(true).create(true).truncate(true).mode(0o600);
            let written = opened
                .open(&new)
                .and_then(|mut file| file.write_all(&pem.0))
                .and_then(|()| std::fs::rename(&new, &path));
            written.map_err(|error| failed(&path, error))?;
        }
        Ok(artifacts)
    }

    fn generate(&self, old: &Artifacts, now: Timestamp) -> Result<Artifacts, CertsError> {
        Artifacts::generate(old, &self.host, now).map_err(CertsError::Generate)
    }
}

impl SecretStore {
    fn secret(&self, artifacts: &Artifacts) -> Secret {
        Secret {
            metadata: ObjectMeta {
                namespace: Some(self.namespace.clone()),
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            data: Some(secret_data(artifacts).into_iter().collect()),
            ..Secret::default()
        }
    }

    fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn error(&self, source: kube::Error) -> CertsError {
        CertsError::Api {
            secret: self.shown(),
            source: Box::new(source),
        }
    }
}

/// Returns the entries of the Secret; certificate and key of the server are under two names each.
fn secret_data(artifacts: &Artifacts) -> [(String, ByteString); 6] {
    let Artifacts {
        ca_key,
        ca_cert,
        key,
        cert,
    } = artifacts;
    [
        (CA_KEY, ca_key),
        (CA_CERT, ca_cert),
        (KEY, key),
        (TLS_KEY, key),
        (CERT, cert),
        (TLS_CERT, cert),
    ]
    .map(|(name, pem)| (name.to_owned(), ByteString(pem.clone())))
}

fn artifacts_in(secret: &Secret) -> Artifacts {
    let none = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&none);
    let value = |name: &str| data.get(name).map(|pem| pem.0.clone()).unwrap_or_default();
    Artifacts {
        ca_key: value(CA_KEY),
        ca_cert: value(CA_CERT),
        key: value(KEY),
        cert: value(CERT),
    }
}
