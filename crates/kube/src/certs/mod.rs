//! Certificates of a webhook server: generated here, stored in a Secret that replicas share, renewed before
//! they expire.
//!
//! The keys of the Secret and the rules by which its contents are accepted are upstream's, so that replicas of both
//! implementations can share one. New keys are ECDSA P-256, which Go reads like its own RSA keys; an RSA authority
//! that Go created continues to sign.

mod storage;
#[cfg(test)]
mod tests;

pub use storage::{CertManager, CertsError};

use jiff::{Span, Timestamp, ToSpan as _, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    SanType,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use std::net::IpAddr;
use std::sync::Arc;

/// Common name of every certificate authority that is generated.
const AUTHORITY: &str = "webhook-cert-ca";
/// Validity of certificate authorities and certificates, in years.
const YEARS: i64 = 10;
/// Months before its expiry when a server certificate is replaced.
const RENEW_BEFORE_MONTHS: i64 = 6;
/// Months before its expiry when a certificate authority stops signing.
const AUTHORITY_BEFORE_MONTHS: i64 = 12;

/// A certificate authority and a server certificate, as PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Artifacts {
    /// Private key of the certificate authority.
    pub ca_key: Vec<u8>,
    /// Certificate of the authority: the `caBundle` of webhook configurations.
    pub ca_cert: Vec<u8>,
    /// Private key of the server.
    pub key: Vec<u8>,
    /// Certificate of the server.
    pub cert: Vec<u8>,
}

impl std::fmt::Debug for Artifacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Artifacts").finish_non_exhaustive()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn after(now: Timestamp, span: Span) -> Option<Timestamp> {
    let end = now.to_zoned(TimeZone::UTC).checked_add(span);
    end.ok().map(|end| end.timestamp())
}

/// Parses a list of at least one PEM certificate. Errors start with `what`.
fn parse_certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match parsed {
        Ok(parsed) if parsed.is_empty() => Err(format!("{what}: no certificate in it")),
        Ok(parsed) => Ok(parsed),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// Parses a key and its certificates, and checks that they belong together.
fn pair(names: [&str; 2], cert: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain = parse_certificates(names[0], cert)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("{}: {e}", names[1]))?;
    CertifiedKey::from_der(chain, key, &provider())
        .map_err(|e| format!("{} and {}: {e}", names[0], names[1]))
}

impl Artifacts {
    /// Returns when the server's certificate expires, in Unix seconds; `None` if it cannot be parsed.
    pub(crate) fn expires_at(&self) -> Option<i64> {
        let chain = parse_certificates(storage::CERT, &self.cert).ok()?;
        koord_app::certificate::expires_at(chain.first()?)
    }

    /// Checks that a server that clients reach as `host` can use the certificates at `now` and for six more
    /// months.
    ///
    /// # Errors
    /// The reason, with the key in the Secret.
    pub fn check(&self, host: &str, now: Timestamp) -> Result<(), String> {
        let pair = pair([storage::CERT, storage::KEY], &self.cert, &self.key)?;
        let Some((own, chain)) = pair.cert.split_first() else {
            return Err(format!("{}: no certificate in it", storage::CERT));
        };
        let name = ServerName::try_from(host).map_err(|_| format!("{host:?} is no host name"))?;
        let mut roots = RootCertStore::empty();
        let authorities = parse_certificates(storage::CA_CERT, &self.ca_cert)?;
        for authority in &authorities {
            let added = roots.add(authority.clone());
            added.map_err(|e| format!("{}: {e}", storage::CA_CERT))?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier.build();
        let verifier = verifier.map_err(|e| format!("{}: {e}", storage::CA_CERT))?;
        for at in [Some(now), after(now, RENEW_BEFORE_MONTHS.months())] {
            let seconds = at.unwrap_or(now).as_second();
            let time = std::time::Duration::from_secs(seconds.unsigned_abs());
            let time = UnixTime::since_unix_epoch(time);
            let verified = verifier.verify_server_cert(own, chain, &name, &[], time);
            verified.map_err(|e| format!("{}: {e} (looked at {time:?})", storage::CERT))?;
            // webpki does not check the validity period of a trusted authority.
            let hold = |der: &CertificateDer<'_>| koord_app::certificate::holds_at(der, seconds);
            if !authorities.iter().any(|der| hold(der) == Some(true)) {
                return Err(format!("{}: expired or expires soon", storage::CA_CERT));
            }
        }
        Ok(())
    }

    /// Returns the rustls configuration of a server with this certificate.
    ///
    /// # Errors
    /// Fails if key and certificate do not belong together or cannot be parsed.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, String> {
        let pair = pair([storage::CERT, storage::KEY], &self.cert, &self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|e| e.to_string())?;
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let mut config = builder
            .with_no_client_auth()
            .with_single_cert(pair.cert, key)
            .map_err(|e| e.to_string())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Generates a new certificate for a server that clients reach as `host` and as `localhost`. The
    /// authority of `old` signs it if it is valid for another year, else a new authority does.
    ///
    /// # Errors
    /// The error of generating a key or certificate.
    pub fn generate(old: &Self, host: &str, now: Timestamp) -> Result<Self, String> {
        if let Some(issuer) = old.issuer(now)
            && let Ok(made) = leaf(&issuer, old.ca_cert.clone(), old.ca_key.clone(), host, now)
            // Clients would reject what an authority of another name signs.
            && made.check(host, now).is_ok()
        {
            return Ok(made);
        }
        let failed = |e: rcgen::Error| format!("authority of webhook certificates: {e}");
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let params = authority(now)?;
        let cert = params.self_signed(&key).map_err(failed)?.pem().into_bytes();
        let ca_key = key.serialize_pem().into_bytes();
        leaf(&Issuer::new(params, key), cert, ca_key, host, now)
    }

    /// Returns the authority as an issuer; `None` if it is not valid for another year or its key cannot be
    /// used.
    fn issuer(&self, now: Timestamp) -> Option<Issuer<'static, KeyPair>> {
        let pair = pair(
            [storage::CA_CERT, storage::CA_KEY],
            &self.ca_cert,
            &self.ca_key,
        )
        .ok()?;
        let [certificate] = pair.cert.as_slice() else {
            return None;
        };
        let later = after(now, AUTHORITY_BEFORE_MONTHS.months())?;
        for at in [now, later] {
            if koord_app::certificate::holds_at(certificate, at.as_second()) != Some(true) {
                return None;
            }
        }
        let key = match PrivateKeyDer::from_pem_slice(&self.ca_key).ok()? {
            PrivateKeyDer::Pkcs1(key) => pkcs8(key.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der().to_vec(),
            _ => return None,
        };
        let key = KeyPair::try_from(key).ok()?;
        Some(Issuer::new(authority(now).ok()?, key))
    }
}

/// Wraps a PKCS #1 RSA key, which Go writes and rcgen cannot read, as PKCS #8 (RFC 5208).
fn pkcs8(pkcs1: &[u8]) -> Vec<u8> {
    /// INTEGER 0 and SEQUENCE { OBJECT IDENTIFIER rsaEncryption, NULL }.
    const HEAD: [u8; 18] = [
        0x02, 0x01, 0x00, 0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01,
        0x01, 0x05, 0x00,
    ];
    let tagged = |tag: u8, parts: &[&[u8]]| {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut der = vec![tag];
        if length < 0x80 {
            der.extend(u8::try_from(length));
        } else {
            let bytes = length.to_be_bytes();
            let bytes: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
            der.extend(u8::try_from(bytes.len()).map(|count| 0x80 | count));
            der.extend(bytes);
        }
        der.extend(parts.concat());
        der
    };
    let key = tagged(0x04, &[pkcs1]);
    tagged(0x30, &[&HEAD, &key])
}

/// Parameters of an authority, with a name as Go encodes it: names are compared byte by byte.
fn authority(now: Timestamp) -> Result<CertificateParams, String> {
    let mut params = params(now)?;
    let name = AUTHORITY
        .try_into()
        .map_err(|e: rcgen::Error| e.to_string())?;
    params
        .distinguished_name
        .push(DnType::CommonName, DnValue::PrintableString(name));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    Ok(params)
}

fn leaf(
    issuer: &Issuer<'static, KeyPair>,
    ca_cert: Vec<u8>,
    ca_key: Vec<u8>,
    host: &str,
    now: Timestamp,
) -> Result<Artifacts, String> {
    let failed = |e: rcgen::Error| format!("webhook certificate for {host:?}: {e}");
    let mut params = params(now)?;
    params.distinguished_name.push(DnType::CommonName, host);
    let dns = |name: &str| name.try_into().map(SanType::DnsName).map_err(failed);
    params.subject_alt_names = vec![
        dns("localhost")?,
        match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => dns(host)?,
        },
    ];
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let cert = params.signed_by(&key, issuer).map_err(failed)?;
    Ok(Artifacts {
        ca_key,
        ca_cert,
        key: key.serialize_pem().into_bytes(),
        cert: cert.pem().into_bytes(),
    })
}

/// Returns parameters without a name, valid from yesterday because clocks differ.
fn params(now: Timestamp) -> Result<CertificateParams, String> {
    let today = now.to_zoned(TimeZone::UTC).date();
    let invalid = |e: jiff::Error| format!("validity of a webhook certificate: {e}");
    let day = |date: jiff::civil::Date| {
        rcgen::date_time_ymd(
            i32::from(date.year()),
            date.month().unsigned_abs(),
            // February has no 29th day in most years.
            date.day().unsigned_abs().min(28),
        )
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = day(today.checked_sub(1.day()).map_err(invalid)?);
    params.not_after = day(today.checked_add(YEARS.years()).map_err(invalid)?);
    Ok(params)
}
