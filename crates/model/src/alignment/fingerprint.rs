//! Fingerprint of the pods that an exporter included in a report, as computed by exporter and scheduler.
//!
//! Format: `k8stopologyawareschedwg/podfingerprint`, version 1. Each pod is XXH64 of its name, seeded
//! with XXH64 of its namespace (seed 0); these, in ascending order as eight bytes each, little-endian,
//! are hashed again (seed 0); the result is `pfp0v001` and sixteen hexadecimal digits.

use twox_hash::XxHash64;

const PREFIX: &str = "pfp0v001";

/// Returns the hash of one pod.
#[must_use]
pub fn pod(namespace: &str, name: &str) -> u64 {
    let seed = XxHash64::oneshot(0, namespace.as_bytes());
    XxHash64::oneshot(seed, name.as_bytes())
}

/// Returns the fingerprint of `pods`, hashed by [`pod`], in any order.
#[must_use]
pub fn from_hashes(pods: impl IntoIterator<Item = u64>) -> String {
    let mut pods: Vec<u64> = pods.into_iter().collect();
    pods.sort_unstable();
    let bytes: Vec<u8> = pods.iter().flat_map(|pod| pod.to_le_bytes()).collect();
    format!("{PREFIX}{:016x}", XxHash64::oneshot(0, &bytes))
}

/// Checks that `text` has the form of a fingerprint.
///
/// # Errors
/// The reason why the text is not a fingerprint.
pub fn check(text: &str) -> Result<(), String> {
    let digits = text
        .strip_prefix("pfp0")
        .ok_or_else(|| format!("{text:?} does not begin with \"pfp0\""))?;
    let digits = digits
        .strip_prefix("v001")
        .ok_or_else(|| format!("{text:?} is of a version other than v001"))?;
    let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if digits.len() == 16 && hexadecimal {
        Ok(())
    } else {
        Err(format!("{text:?} does not end in 16 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint_of_names(names: &[(&str, &str)]) -> String {
        from_hashes(names.iter().map(|(namespace, name)| pod(namespace, name)))
    }

    /// The first vector is from upstream's tests; all were computed by an independent implementation.
    #[test]
    fn fingerprints_equal_upstream() {
        let five = [
            ("ns3", "n2"),
            ("ns1", "n1"),
            ("ns2", "n1"),
            ("ns1", "n2"),
            ("ns3", "n1"),
        ];
        assert_eq!(fingerprint_of_names(&five), "pfp0v001b92008c14168b3a6");
        assert_eq!(fingerprint_of_names(&[]), "pfp0v001ef46db3751d8e999");
        assert_eq!(
            fingerprint_of_names(&[("default", "pod1")]),
            "pfp0v001a5e1c50c557adb9d"
        );
        let two = [("kube-system", "coredns-0"), ("default", "pod1")];
        assert_eq!(fingerprint_of_names(&two), "pfp0v001caad1ad3af993a6d");
    }

    /// Tests two lists of pods from upstream's tests.
    #[test]
    fn lists_of_pods_have_upstreams_fingerprints() {
        let tiny = ["jaeger-dpgjk", "nginx-rt684", "envoy-g9m22"].map(|name| ("production", name));
        assert_eq!(fingerprint_of_names(&tiny), "pfp0v001607b76a0e9d3aeb4");
        let mut small = [
            ("analytics", "controller-69dkj"),
            ("kube-public", "subscriber-tq6v7"),
            ("kube-public", "transformer-hfbng"),
            ("kube-public", "validator-c6pn5"),
            ("kube-system", "proxy-wszrd"),
            ("middleware", "processor-jkrl4"),
            ("network", "gateway-vsll5"),
            ("network", "importer-kzdfr"),
            ("network", "importer-q5vt9"),
            ("staging", "prometheus-bwgbn"),
        ];
        for _ in 0..small.len() {
            small.rotate_left(1);
            assert_eq!(fingerprint_of_names(&small), "pfp0v001567144e4a561bb5a");
        }
    }

    #[test]
    fn invalid_fingerprint_gives_the_reason() {
        assert_eq!(check("pfp0v001ef46db3751d8e999"), Ok(()));
        for (text, why) in [
            ("", "does not begin"),
            ("pfp1v001ef46db3751d8e999", "does not begin"),
            ("pfp0v002ef46db3751d8e999", "of a version"),
            ("pfp0v001ef46db3751d8e99", "16 hexadecimal"),
            ("pfp0v001ef46db3751d8e99x", "16 hexadecimal"),
            // Upstream's own.
            ("x", "does not begin"),
            ("wrngv001e477a4e3b2fc0ec6", "does not begin"),
            ("pfp0vX", "of a version"),
            ("pfp0v000e477a4e3b2fc0ec6", "of a version"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(why) && error.contains(text), "{error}");
        }
    }
}
