//! Verification of webhook servers by a `caBundle`.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use std::sync::Arc;

/// Verifier that accepts certificates signed by a bundle, and certificates contained in it. Go accepts the
/// latter, too: self-signed ones are in wide use, but webpki does not accept a chain of one certificate.
#[derive(Debug)]
pub(super) struct Bundle {
    certificates: Vec<CertificateDer<'static>>,
    authorities: Arc<WebPkiServerVerifier>,
}

impl Bundle {
    /// Returns a verifier over `roots`, which were made of `certificates`.
    ///
    /// # Errors
    /// If there are none.
    pub(super) fn new(
        roots: RootCertStore,
        certificates: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let roots = Arc::new(roots);
        let authorities =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        Ok(Self {
            certificates,
            authorities: authorities.map_err(|e| format!("caBundle: {e}"))?,
        })
    }
}

impl ServerCertVerifier for Bundle {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.certificates.iter().any(|existing| existing == server) {
            return self
                .authorities
                .verify_server_cert(server, intermediates, name, ocsp, now);
        }
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        match koord_app::certificate::holds_at(server, seconds) {
            None => return Err(CertificateError::BadEncoding.into()),
            Some(false) => return Err(CertificateError::Expired.into()),
            Some(true) => {}
        }
        rustls::client::verify_server_name(&ParsedCertificate::try_from(server)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        server: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities
            .verify_tls12_signature(message, server, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        server: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities
            .verify_tls13_signature(message, server, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::time::Duration;

    fn certificate(name: &str) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn bundled_certificate_is_checked_for_name_and_time() {
        let own = certificate("hook.example.com");
        let mut roots = RootCertStore::empty();
        roots.add(own.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let bundle = Bundle::new(roots, vec![own.clone()], &provider).unwrap();
        let verify = |server: &CertificateDer<'_>, name: &str, seconds: u64| {
            let name = ServerName::try_from(name.to_owned()).unwrap();
            let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            bundle
                .verify_server_cert(server, &[], &name, &[], now)
                .map(drop)
                .map_err(|e| e.to_string())
        };
        // 2026-06-01 and 2028-06-01.
        let (now, later) = (1_780_272_000, 1_843_430_400);
        verify(&own, "hook.example.com", now).unwrap();
        let wrong = verify(&own, "other.example.com", now).unwrap_err();
        assert!(wrong.contains("not valid for name"), "{wrong}");
        let expired = verify(&own, "hook.example.com", later).unwrap_err();
        assert!(expired.contains("Expired"), "{expired}");
        let other = certificate("hook.example.com");
        // Not accepted, although it has the same name.
        let forged = verify(&other, "hook.example.com", now).unwrap_err();
        assert!(forged.contains("BadSignature"), "{forged}");
    }
}
