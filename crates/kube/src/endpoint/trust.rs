//! Verification of the certificate of an endpoint.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::path::PathBuf;
use std::sync::Arc;

/// The rule by which the certificate of an endpoint is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Any certificate is accepted.
    Any,
    /// The certificate is in one of these PEM files, or it is valid for the address and signed by a
    /// certificate in one of them. The files are read at each handshake, so that renewed ones are used at
    /// once; missing files are ignored.
    Files(Vec<PathBuf>),
}

impl Trust {
    /// Returns the verifier of the certificates; `None` for [`Trust::Any`].
    pub(super) fn verifier(&self) -> Option<Arc<dyn ServerCertVerifier>> {
        match self {
            Self::Any => None,
            Self::Files(files) => Some(Arc::new(FileVerifier {
                files: files.clone(),
                provider: Arc::new(rustls::crypto::ring::default_provider()),
            })),
        }
    }
}

/// Verifies server certificates with the certificates in some files.
#[derive(Debug)]
struct FileVerifier {
    files: Vec<PathBuf>,
    provider: Arc<CryptoProvider>,
}

impl FileVerifier {
    /// Maximum size of a file, in bytes; longer files are ignored.
    const LONGEST: u64 = 1 << 20;

    fn certificates(&self) -> Vec<CertificateDer<'static>> {
        let is_short = |file: &&PathBuf| {
            std::fs::metadata(file).is_ok_and(|it| it.is_file() && it.len() <= Self::LONGEST)
        };
        let texts = self.files.iter().filter(is_short).map(std::fs::read);
        let mut certificates = Vec::new();
        for text in texts.flatten() {
            // The file of a kubelet holds its key, too; everything other than certificates is ignored.
            certificates.extend(CertificateDer::pem_slice_iter(&text).flatten());
        }
        certificates
    }

    /// Returns the error for a certificate that none of the trusted files vouches for.
    fn untrusted(&self, name: &ServerName<'_>, problem: &str) -> Error {
        let files: Vec<_> = self
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        let files = files.join(", ");
        Error::General(format!(
            "certificate of {} is neither in {files} nor signed by one there: {problem}",
            name.to_str()
        ))
    }
}

impl ServerCertVerifier for FileVerifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificates = self.certificates();
        // The certificate of the server is in a file: neither its name nor its validity period matters. A
        // kubelet's self-signed certificate is for its host name, is used with an address, and stays in use
        // after its expiry.
        if certificates.iter().any(|it| it == server) {
            return Ok(ServerCertVerified::assertion());
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        if roots.is_empty() {
            return Err(self.untrusted(name, "there is no certificate"));
        }
        let roots = Arc::new(roots);
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&self.provider)).build();
        let verifier = verifier.map_err(|error| self.untrusted(name, &error.to_string()))?;
        verifier
            .verify_server_cert(server, intermediates, name, ocsp, now)
            .map_err(|error| self.untrusted(name, &error.to_string()))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        server: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, server, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        server: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, server, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
