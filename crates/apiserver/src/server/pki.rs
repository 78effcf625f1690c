//! The server's own certificate authority.
//!
//! The authority is created once and kept in the data directory, so that a kubeconfig stays valid over
//! restarts. The certificates it signs for the server and the administrator are not stored by this module.

use super::{ServeError, secret_file};
use jiff::{Timestamp, ToSpan, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Validity of an authority in years.
const CA_YEARS: i64 = 20;
/// Validity of a certificate in years.
const LEAF_YEARS: i64 = 5;
/// DNS names of a Kubernetes API server, inside a cluster and on its own machine.
const SERVER_NAMES: &[&str] = &[
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
/// Address of the `kubernetes` service: the first one of the default service range.
const SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// A key and its certificate.
pub(super) struct Identity {
    pub(super) certificate_pem: String,
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key_pem: String,
    pub(super) key: PrivateKeyDer<'static>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// A certificate authority.
pub(super) struct Authority {
    certificate_pem: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    now: Timestamp,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority in `dir`, or creates it there if missing; without `dir`, creates one in memory.
    pub(super) fn open(dir: Option<&Path>, now: Timestamp) -> Result<Self, ServeError> {
        let Some(dir) = dir else {
            let key = generate("authority")?;
            return Self::sign_own(key, now);
        };
        let (key_path, certificate_path) = (dir.join("ca.key"), dir.join("ca.crt"));
        match (read(&key_path)?, read(&certificate_path)?) {
            (Some(key_pem), Some(certificate_pem)) => {
                let key = KeyPair::from_pem(&key_pem)
                    .map_err(|e| ServeError::certificate(key_path.display().to_string(), e))?;
                let unreadable =
                    |e| ServeError::certificate(certificate_path.display().to_string(), e);
                let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
                    .map_err(|e| unreadable(e.to_string()))?;
                let public_key = key.public_key_raw();
                if !certificate
                    .windows(public_key.len())
                    .any(|window| window == public_key)
                {
                    return Err(unreadable(
                        "does not belong to ca.key in the same directory".into(),
                    ));
                }
                Ok(Self {
                    certificate_pem,
                    certificate,
                    issuer: issuer(key, now)?,
                    now,
                })
            }
            // The key is written last, so a certificate without a key was never used.
            (None, _) => {
                let key = generate("authority")?;
                let key_pem = key.serialize_pem();
                let authority = Self::sign_own(key, now)?;
                secret_file::write(&certificate_path, authority.certificate_pem.as_bytes())?;
                secret_file::write(&key_path, key_pem.as_bytes())?;
                Ok(authority)
            }
            (Some(_), None) => Err(ServeError::certificate(
                certificate_path.display().to_string(),
                "file is missing; remove ca.key from the same directory to create a new authority",
            )),
        }
    }

    fn sign_own(key: KeyPair, now: Timestamp) -> Result<Self, ServeError> {
        let certificate = params(CA_YEARS, now)
            .map(authority_params)?
            .self_signed(&key)
            .map_err(|e| ServeError::certificate("authority certificate", e))?;
        Ok(Self {
            certificate_pem: certificate.pem(),
            certificate: certificate.der().clone(),
            issuer: issuer(key, now)?,
            now,
        })
    }

    /// Returns the authority's certificate as PEM.
    pub(super) fn pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Returns the authority's certificate.
    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Issues a server certificate for the usual names and the addresses `extra`.
    pub(super) fn server(&self, extra: &[IpAddr]) -> Result<Identity, ServeError> {
        let mut params = params(LEAF_YEARS, self.now)?;
        params
            .distinguished_name
            .push(DnType::CommonName, "koord-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let invalid = |e| ServeError::certificate("server certificate", e);
        for name in SERVER_NAMES {
            let name = (*name).try_into().map_err(invalid)?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let hostname = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        // A host name that is not a valid DNS name is left out.
        if let Ok(name) = hostname.try_into() {
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        let own: [IpAddr; 3] = [
            Ipv4Addr::LOCALHOST.into(),
            Ipv6Addr::LOCALHOST.into(),
            SERVICE_ADDRESS.into(),
        ];
        let extra = extra
            .iter()
            .filter(|ip| !ip.is_unspecified() && !own.contains(ip));
        params
            .subject_alt_names
            .extend(own.iter().chain(extra).copied().map(SanType::IpAddress));
        self.sign("server certificate", params)
    }

    /// Issues a certificate for the client `user` in the first of `groups`.
    pub(super) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity, ServeError> {
        let mut params = params(LEAF_YEARS, self.now)?;
        // The builder accepts one organization only, so further groups are ignored.
        if let Some(group) = groups.first() {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        params.distinguished_name.push(DnType::CommonName, user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign("client certificate", params)
    }

    fn sign(&self, what: &str, mut params: CertificateParams) -> Result<Identity, ServeError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = generate(what)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|e| ServeError::certificate(what, e))?;
        let der = PrivateKeyDer::try_from(key.serialize_der())
            .map_err(|e| ServeError::certificate(what, e))?;
        Ok(Identity {
            certificate_pem: certificate.pem(),
            certificate: certificate.der().clone(),
            key_pem: key.serialize_pem(),
            key: der,
        })
    }
}

/// Returns the token signing key; [`super::token_key`] describes it.
pub(super) fn token_key(dir: Option<&Path>) -> Result<Vec<u8>, ServeError> {
    let Some(dir) = dir else {
        return Ok(generate("token key")?.serialize_der());
    };
    let path = dir.join("sa.key");
    if let Some(pem) = read(&path)? {
        let key = KeyPair::from_pem(&pem)
            .map_err(|e| ServeError::certificate(path.display().to_string(), e))?;
        return Ok(key.serialize_der());
    }
    let key = generate("token key")?;
    secret_file::write(&path, key.serialize_pem().as_bytes())?;
    Ok(key.serialize_der())
}

fn generate(what: &str) -> Result<KeyPair, ServeError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|e| ServeError::certificate(what, e))
}

fn issuer(key: KeyPair, now: Timestamp) -> Result<Issuer<'static, KeyPair>, ServeError> {
    Ok(Issuer::new(
        params(CA_YEARS, now).map(authority_params)?,
        key,
    ))
}

/// Completes `params` for a certificate authority: the common name `koord-ca`, by which certificates refer to
/// their issuer, and the usages of its key.
fn authority_params(mut params: CertificateParams) -> CertificateParams {
    params
        .distinguished_name
        .push(DnType::CommonName, "koord-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

/// Returns parameters without a name, valid from yesterday (clocks differ) for `years`.
fn params(years: i64, now: Timestamp) -> Result<CertificateParams, ServeError> {
    let invalid = |e: jiff::Error| ServeError::certificate("validity of a certificate", e);
    let today = now.to_zoned(TimeZone::UTC).date();
    let (from, to) = (
        today.checked_sub(1.day()).map_err(invalid)?,
        today.checked_add(years.years()).map_err(invalid)?,
    );
    let day = |date: jiff::civil::Date| {
        rcgen::date_time_ymd(
            i32::from(date.year()),
            date.month().unsigned_abs(),
            // Most years have no 29 February.
            date.day().unsigned_abs().min(28),
        )
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = day(from);
    params.not_after = day(to);
    Ok(params)
}

fn read(path: &Path) -> Result<Option<String>, ServeError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ServeError::file("read", path, error)),
    }
}
