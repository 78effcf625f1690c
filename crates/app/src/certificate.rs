//! User and groups that a client certificate stands for.

use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::certificate::Raw;
use x509_cert::der::asn1::{Any, AnyRef};
use x509_cert::der::oid::db::rfc4519::{COMMON_NAME, ORGANIZATION_NAME};
use x509_cert::der::{Decode as _, SliceReader, Tag, Tagged as _};
use x509_cert::name::RdnSequence;
use x509_cert::time::{Time, Validity};

/// The fields of a certificate that are read. TLS accepts certificates with other fields that this decoder
/// rejects, such as an extension whose identifier has a large number.
struct CertificateFields<'a> {
    validity: AnyRef<'a>,
    subject: AnyRef<'a>,
}

/// Decodes the fields of a DER certificate; `None` if it is invalid.
fn decode(certificate: &[u8]) -> Option<CertificateFields<'_>> {
    let certificate = AnyRef::from_der(certificate).ok()?;
    let signed = AnyRef::decode(&mut SliceReader::new(certificate.value()).ok()?).ok()?;
    let mut fields = SliceReader::new(signed.value()).ok()?;
    let mut next = || AnyRef::decode(&mut fields).ok();
    // The version may be missing; serial number, algorithm and issuer follow.
    if next()?.tag().is_context_specific() {
        next()?;
    }
    next()?;
    next()?;
    Some(CertificateFields {
        validity: next()?,
        subject: next()?,
    })
}

/// Returns the subject of a verified certificate (DER): its common name, and its organizations, which are the
/// client's groups. `None` when it cannot be parsed or has no name.
#[must_use]
pub fn subject(certificate: &[u8]) -> Option<(String, Vec<String>)> {
    let subject: RdnSequence = decode(certificate)?.subject.decode_as().ok()?;
    let attributes = || subject.iter().flat_map(|names| names.iter());
    let of = |oid| move |a: &&AttributeTypeAndValue| a.oid == oid;
    let name = attributes().filter(of(COMMON_NAME)).last()?;
    let groups = attributes().filter(of(ORGANIZATION_NAME));
    let groups: Option<_> = groups.map(|group| text(&group.value)).collect();
    Some((text(&name.value)?, groups?))
}

/// Returns the text of a string in any encoding that is also UTF-8.
fn text(value: &Any) -> Option<String> {
    let is_text = matches!(
        value.tag(),
        Tag::Utf8String
            | Tag::PrintableString
            | Tag::Ia5String
            | Tag::NumericString
            | Tag::VisibleString
    );
    let text = std::str::from_utf8(value.value()).ok().filter(|_| is_text);
    text.map(str::to_owned)
}

/// Returns whether a certificate (DER) is valid at `now`, in Unix seconds. `None` when it cannot be parsed.
#[must_use]
pub fn holds_at(certificate: &[u8], now: i64) -> Option<bool> {
    let validity = validity(certificate)?;
    Some((seconds(&validity.not_before)..=seconds(&validity.not_after)).contains(&now))
}

/// Returns the last second at which a certificate (DER) is valid, in Unix seconds. `None` when it cannot be
/// parsed.
#[must_use]
pub fn expires_at(certificate: &[u8]) -> Option<i64> {
    Some(seconds(&validity(certificate)?.not_after))
}

/// Reads the validity of a certificate (DER).
fn validity(certificate: &[u8]) -> Option<Validity<Raw>> {
    decode(certificate)?.validity.decode_as().ok()
}

/// Returns a time in Unix seconds.
fn seconds(time: &Time) -> i64 {
    i64::try_from(time.to_unix_duration().as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn certificate(parts: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn names_and_groups() {
        let parts = [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "system:masters"),
            (DnType::CommonName, "änn"),
        ];
        let (name, groups) = subject(&certificate(&parts)).unwrap();
        assert_eq!(
            (name.as_str(), groups),
            ("änn", vec!["system:masters".to_owned()])
        );
        let (_, groups) = subject(&certificate(&parts[2..])).unwrap();
        assert!(groups.is_empty());
    }

    #[test]
    fn extension_with_a_large_identifier_is_passed_over() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ann");
        let uuid = [2, 25, u64::MAX, 7];
        let extension = rcgen::CustomExtension::from_oid_content(&uuid, vec![5, 0]);
        params.custom_extensions.push(extension);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().to_vec();
        let (name, _) = subject(&certificate).unwrap();
        assert_eq!(name, "ann");
        assert_eq!(holds_at(&certificate, 1_767_225_600), Some(true));
    }

    #[test]
    fn invalid_client_certificate_has_no_subject() {
        assert_eq!(
            subject(&certificate(&[(DnType::OrganizationName, "x")])),
            None
        );
        let whole = certificate(&[(DnType::CommonName, "ann")]);
        for cut in 0..whole.len() {
            assert_eq!(subject(&whole[..cut]), None, "{cut}");
        }
        assert_eq!(subject(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn a_certificate_holds_for_its_time() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 2);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().to_vec();
        // 2026-01-01T00:00:00Z and a day later.
        let (from, to) = (1_767_225_600, 1_767_312_000);
        for (now, holds) in [(from - 1, false), (from, true), (to, true), (to + 1, false)] {
            assert_eq!(holds_at(&certificate, now), Some(holds), "{now}");
        }
        assert_eq!(holds_at(b"no certificate", from), None);
        assert_eq!(expires_at(&certificate), Some(to));
        assert_eq!(expires_at(b"no certificate"), None);
    }
}
