//! Validation of string formats; unknown ones are accepted, as the specification requires.

/// Returns true if `text` has the format.
pub(super) fn matches(format: &str, text: &str) -> bool {
    match format {
        "date-time" | "datetime" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "duration" => is_duration(text),
        "byte" => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD
                .decode(text)
                .is_ok()
        }
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => text.split_once('/').is_some_and(|(ip, bits)| {
            let max = match ip.parse::<std::net::IpAddr>() {
                Ok(std::net::IpAddr::V4(_)) => 32,
                Ok(std::net::IpAddr::V6(_)) => 128,
                Err(_) => return false,
            };
            bits.parse::<u8>().is_ok_and(|b| b <= max)
        }),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid::Uuid::parse_str(text).is_ok(),
        "hostname" => crate::names::dns1123_subdomain(&text.to_ascii_lowercase()).is_none(),
        "email" => text
            .split_once('@')
            .is_some_and(|(a, b)| !a.is_empty() && !b.is_empty()),
        "uri" => text.split_once(':').is_some_and(|(scheme, rest)| {
            !scheme.is_empty() && !rest.is_empty() && !text.contains(char::is_whitespace)
        }),
        _ => true,
    }
}

/// Returns true for Go durations, and for the forms `P...` and `3 days` that the format also allows.
fn is_duration(text: &str) -> bool {
    if text.parse::<jiff::Span>().is_ok() {
        return true;
    }
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        if number == 0 || rest[..number].parse::<f64>().is_err() {
            return false;
        }
        rest = &rest[number..];
        let Some(unit) = ["ns", "us", "µs", "ms", "s", "m", "h"]
            .into_iter()
            .filter(|u| rest.starts_with(u))
            .max_by_key(|u| u.len())
        else {
            return false;
        };
        rest = &rest[unit.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn formats() {
        for (format, good, bad) in [
            ("date-time", "2026-01-02T03:04:05Z", "yesterday"),
            ("duration", "1h2m3.5s", "5 parsecs"),
            ("duration", "0", "1"),
            ("byte", "aGk=", "§"),
            ("ipv4", "10.0.0.1", "10.0.0"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("date", "2026-01-02", "2026-13-02"),
        ] {
            assert!(matches(format, good), "{format} {good}");
            assert!(!matches(format, bad), "{format} {bad}");
        }
        assert!(matches("quantity-of-cheese", "any"));
    }
}
