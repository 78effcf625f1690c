//! Canonical text of quantities and timestamps.

use koord_api::quantity::Quantity;
use serde_json::Value;

/// The pattern in error messages.
pub const PATTERN: &str = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$";

/// Parses a quantity given as string or number; `None` if it is invalid.
#[must_use]
pub fn parse(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(s) => s.parse().ok(),
        Value::Number(n) => n.to_string().parse().ok(),
        _ => None,
    }
}

/// Returns the canonical text of a quantity; `None` if `value` is invalid.
#[must_use]
pub fn canonical(value: &Value) -> Option<String> {
    parse(value).map(|q| q.to_string())
}

/// Formats a time as RFC 3339 in UTC with `digits` fractional digits (0 or 6), as `metav1.Time` and
/// `MicroTime` are written.
#[must_use]
pub fn format_time(time: jiff::Timestamp, digits: u8) -> String {
    let utc = time.to_zoned(jiff::tz::TimeZone::UTC);
    if digits == 0 {
        utc.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    } else {
        utc.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn canonical_forms() {
        assert_eq!(canonical(&json!("1000m")).as_deref(), Some("1"));
        assert_eq!(canonical(&json!(2)).as_deref(), Some("2"));
        assert_eq!(canonical(&json!(0.5)).as_deref(), Some("500m"));
        assert_eq!(canonical(&json!("1024Mi")).as_deref(), Some("1Gi"));
        assert_eq!(canonical(&json!("abc")), None);
        assert_eq!(canonical(&json!([])), None);
        let t: jiff::Timestamp = "2026-01-02T03:04:05.1234567+02:00".parse().unwrap();
        assert_eq!(format_time(t, 0), "2026-01-02T01:04:05Z");
        assert_eq!(format_time(t, 6), "2026-01-02T01:04:05.123456Z");
    }
}
