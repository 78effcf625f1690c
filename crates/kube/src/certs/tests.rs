use super::*;

const HOST: &str = "koordinator-webhook-service.koordinator-system.svc";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-11-22T12:00:00Z")
}

fn generate() -> Artifacts {
    Artifacts::generate(&Artifacts::default(), HOST, now()).unwrap()
}

#[test]
fn certificate_is_valid_for_years_and_for_both_names() {
    let artifacts = generate();
    for host in [HOST, "localhost"] {
        artifacts.check(host, now()).unwrap();
        artifacts.check(host, at("2036-05-01T00:00:00Z")).unwrap();
    }
    assert!(artifacts.server_config().is_ok());
    for (host, time, names) in [
        ("other.default.svc", "2026-11-22T12:00:00Z", "cert.pem"),
        // Six months before it expires.
        (HOST, "2036-06-01T00:00:00Z", "cert.pem"),
        // Before it was generated.
        (HOST, "2026-11-20T00:00:00Z", "cert.pem"),
    ] {
        let error = artifacts.check(host, at(time)).unwrap_err();
        assert!(error.contains(names), "{error}");
    }
    let by_address = Artifacts::generate(&Artifacts::default(), "10.0.0.1", now()).unwrap();
    by_address.check("10.0.0.1", now()).unwrap();
    assert!(by_address.check(HOST, now()).is_err());
}

#[test]
fn inconsistent_artifacts_are_rejected() {
    let (made, other) = (generate(), generate());
    let cut = |pem: &[u8]| pem[..pem.len() / 2].to_vec();
    for (artifacts, names) in [
        (Artifacts::default(), "cert.pem"),
        (
            Artifacts {
                key: other.key.clone(),
                ..made.clone()
            },
            "cert.pem and key.pem",
        ),
        (
            Artifacts {
                key: cut(&made.key),
                ..made.clone()
            },
            "key.pem",
        ),
        (
            Artifacts {
                cert: cut(&made.cert),
                ..made.clone()
            },
            "cert.pem",
        ),
        (
            Artifacts {
                cert: b"<html>".to_vec(),
                ..made.clone()
            },
            "cert.pem",
        ),
        (
            Artifacts {
                ca_cert: other.ca_cert.clone(),
                ..made.clone()
            },
            "cert.pem",
        ),
        (
            Artifacts {
                ca_cert: Vec::new(),
                ..made.clone()
            },
            "ca-cert.pem",
        ),
    ] {
        let error = artifacts.check(HOST, now()).unwrap_err();
        assert!(error.contains(names), "{names}: {error}");
    }
}

/// Clients that trust the old bundle accept the new certificate.
#[test]
fn ca_is_reused_while_valid_for_a_year() {
    let artifacts = generate();
    let renew = |old: &Artifacts, time| Artifacts::generate(old, HOST, at(time)).unwrap();
    let renewed = renew(&artifacts, "2030-01-01T00:00:00Z");
    assert_eq!(renewed.ca_cert, artifacts.ca_cert);
    assert_ne!(renewed.cert, artifacts.cert);
    renewed.check(HOST, at("2030-01-01T00:00:00Z")).unwrap();
    // Less than a year before it expires.
    let renewed = renew(&artifacts, "2036-01-01T00:00:00Z");
    assert_ne!(renewed.ca_cert, artifacts.ca_cert);
    // The key belongs to another authority.
    let stolen = Artifacts {
        ca_key: self::generate().ca_key,
        ..artifacts.clone()
    };
    let renewed = renew(&stolen, "2030-01-01T00:00:00Z");
    assert_ne!(renewed.ca_cert, artifacts.ca_cert);
    renewed.check(HOST, at("2030-01-01T00:00:00Z")).unwrap();
}

/// Returns an authority that was generated at `time` with this name, and a certificate that it signs now.
fn with_authority(time: &str, name: &str) -> Artifacts {
    let mut params = authority(at(time)).unwrap();
    params.distinguished_name.push(
        DnType::CommonName,
        DnValue::PrintableString(name.try_into().unwrap()),
    );
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let cert = params.self_signed(&key).unwrap().pem().into_bytes();
    let ca_key = key.serialize_pem().into_bytes();
    leaf(&Issuer::new(params, key), cert, ca_key, HOST, now()).unwrap()
}

/// webpki does not check the validity period of a trusted authority, and the issuer name in a certificate
/// must be that of the authority that signed it.
#[test]
fn ca_that_expires_or_has_another_name_is_replaced() {
    // Four months before it expires.
    let old = with_authority("2017-04-01T00:00:00Z", AUTHORITY);
    let error = old.check(HOST, now()).unwrap_err();
    assert_eq!(error, "ca-cert.pem: expired or expires soon");
    let other = with_authority("2026-11-22T12:00:00Z", "other-ca");
    other.check(HOST, now()).unwrap();
    for artifacts in [old, other] {
        let renewed = Artifacts::generate(&artifacts, HOST, now()).unwrap();
        renewed.check(HOST, now()).unwrap();
        assert_ne!(renewed.ca_cert, artifacts.ca_cert);
    }
    let same = with_authority("2026-11-22T12:00:00Z", AUTHORITY);
    let renewed = Artifacts::generate(&same, HOST, now()).unwrap();
    assert_eq!(renewed.ca_cert, same.ca_cert);
}

/// Reads an authority and a certificate of a Go replica: RSA, PKCS #1, a name as PrintableString.
#[test]
fn secret_written_by_go_is_valid_and_its_ca_is_reused() {
    let go = Artifacts {
        ca_key: include_bytes!("testdata/ca-key.pem").to_vec(),
        ca_cert: include_bytes!("testdata/ca-cert.pem").to_vec(),
        key: include_bytes!("testdata/key.pem").to_vec(),
        cert: include_bytes!("testdata/cert.pem").to_vec(),
    };
    go.check(HOST, now()).unwrap();
    go.server_config().unwrap();
    let renewed = Artifacts::generate(&go, HOST, at("2027-01-01T00:00:00Z")).unwrap();
    assert_eq!(renewed.ca_cert, go.ca_cert);
    assert_eq!(renewed.ca_key, go.ca_key);
}

#[tokio::test]
async fn files_are_created_once_with_mode_600() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = std::env::temp_dir().join(format!("koord-certs-{}", std::process::id()));
    let keeper = CertManager::in_directory(directory.clone(), HOST);
    let first = keeper.ensure(now()).await.unwrap();
    let second = keeper.ensure(now()).await.unwrap();
    assert_eq!(first, second);
    let mode = std::fs::metadata(directory.join("tls.key")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    std::fs::write(directory.join("key.pem"), "x").unwrap();
    let third = keeper.ensure(now()).await.unwrap();
    assert_eq!(third.ca_cert, first.ca_cert);
    assert_ne!(third.key, first.key);
    std::fs::remove_dir_all(directory).unwrap();
}
