//! Roll-out of a node override to a percentage of the nodes that its selector matches.
//!
//! The field `rolloutPercent` is koord's own: a Go manager ignores it, and gives the override to all of these
//! nodes.

use super::FieldError;
use serde_json::Value;

/// JSON name of the field in a node override.
pub const FIELD: &str = "rolloutPercent";

/// Returns the bucket of a node, 0 to 99. An override with `rolloutPercent` applies to the nodes whose bucket is
/// smaller, so a higher percentage only adds nodes, and the same nodes come first in every section. The bucket
/// depends on the name only: FNV-1a with 64 bits, mixed as in MurmurHash3, modulo 100.
#[must_use]
pub fn bucket(node: &str) -> u8 {
    let mut hash = node.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // Names that differ in the last digit only would have buckets in a row.
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    u8::try_from(hash % 100).unwrap_or_default()
}

/// Parses the percentage of an override; all nodes if there is none.
///
/// # Errors
/// The value is not a whole number from 0 to 100.
pub fn parse(value: Option<&Value>) -> Result<u8, FieldError> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(100);
    };
    let percent = value
        .as_u64()
        .and_then(|percent| u8::try_from(percent).ok());
    percent
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| FieldError {
            field: FIELD.to_owned(),
            value: value.to_string(),
            reason: "must be a whole number from 0 to 100; the override applies to no node"
                .to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Buckets by an implementation in another language.
    #[test]
    fn buckets_are_stable() {
        for (node, expected) in [
            ("", 42),
            ("node-1", 9),
            ("node-2", 4),
            ("ip-10-0-0-17.ec2.internal", 97),
            ("gpu-a100-03", 46),
        ] {
            assert_eq!(bucket(node), expected, "{node:?}");
        }
    }

    #[test]
    fn nodes_spread_evenly_over_buckets() {
        let nodes: Vec<String> = (0..1000).map(|number| format!("node-{number}")).collect();
        for percent in [5_u8, 25, 50, 75] {
            let within = nodes.iter().filter(|node| bucket(node) < percent).count();
            let expected = usize::from(percent) * 10;
            assert!(within.abs_diff(expected) < 50, "{percent}: {within}");
        }
    }

    #[test]
    fn percentage_is_a_whole_number_up_to_100() {
        for (value, expected) in [
            (json!(null), Some(100)),
            (json!(0), Some(0)),
            (json!(25), Some(25)),
            (json!(100), Some(100)),
            (json!(101), None),
            (json!(-1), None),
            (json!(2.5), None),
            (json!("25"), None),
            (json!(300), None),
        ] {
            assert_eq!(parse(Some(&value)).ok(), expected, "{value}");
        }
        assert_eq!(parse(None), Ok(100));
    }
}
