//! Parsers of flag values in Go's formats.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// A value that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?}: {problem}")]
pub struct FlagValueError {
    what: &'static str,
    value: String,
    problem: &'static str,
}

fn invalid<T>(what: &'static str, value: &str, problem: &'static str) -> Result<T, FlagValueError> {
    Err(FlagValueError {
        what,
        value: value.to_owned(),
        problem,
    })
}

/// Parses a boolean like Go's `strconv.ParseBool`.
///
/// # Errors
///
/// On anything else.
pub fn boolean(value: &str) -> Result<bool, FlagValueError> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => invalid("boolean", value, "must be true or false"),
    }
}

/// Parses a finite number: Go's and Rust's texts for infinity and NaN are rejected.
///
/// # Errors
///
/// On anything else.
pub fn number(value: &str) -> Result<f64, FlagValueError> {
    match value.parse() {
        Ok(number) if f64::is_finite(number) => Ok(number),
        _ => invalid("number", value, "must be a number"),
    }
}

/// Parses a non-negative Go duration: `1m30s`, `1.5h`, `100ms`, `0`.
///
/// # Errors
///
/// On syntax Go refuses, on negative and on overlong durations.
pub fn duration(value: &str) -> Result<Duration, FlagValueError> {
    const WHAT: &str = "duration";
    let digits = value.strip_prefix('+').unwrap_or(value);
    if digits.starts_with('-') {
        return invalid(WHAT, value, "must not be negative");
    }
    if digits == "0" {
        return Ok(Duration::ZERO);
    }
    if digits.is_empty() {
        return invalid(WHAT, value, "is empty");
    }
    let mut rest = digits;
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (whole, after) = split(rest, |byte| byte.is_ascii_digit());
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => split(after, |byte| byte.is_ascii_digit()),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return invalid(WHAT, value, "is not a number with a unit");
        }
        let (unit, after) = split(after, |byte| byte != b'.' && !byte.is_ascii_digit());
        let unit_nanos: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return invalid(WHAT, value, "missing unit"),
            _ => return invalid(WHAT, value, "unknown unit"),
        };
        let Some(part) = to_nanos(whole, fraction, unit_nanos) else {
            return invalid(WHAT, value, "is too long");
        };
        total += part;
        rest = after;
    }
    match u64::try_from(total) {
        // Go's durations end at 2^63-1 ns.
        Ok(nanos) if i64::try_from(nanos).is_ok() => Ok(Duration::from_nanos(nanos)),
        _ => invalid(WHAT, value, "is too long"),
    }
}

/// Returns the nanoseconds of `whole.fraction` units; `unit_nanos` is the length of a unit. Returns `None` if the
/// number is too large.
fn to_nanos(whole: &str, fraction: &str, unit_nanos: u128) -> Option<u128> {
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        whole.parse::<u64>().ok()?.into()
    };
    let mut total = whole.checked_mul(unit_nanos)?;
    let mut scale = unit_nanos;
    for digit in fraction.bytes() {
        scale /= 10;
        total += scale * u128::from(digit - b'0');
    }
    Some(total)
}

fn split(text: &str, keep: impl Fn(u8) -> bool) -> (&str, &str) {
    let end = text
        .bytes()
        .position(|byte| !keep(byte))
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Splits a comma-separated list; empty elements are dropped.
#[must_use]
pub fn list(value: &str) -> Vec<String> {
    value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Parses a comma-separated list of `key=value`.
///
/// # Errors
///
/// When an element has no `=` or an empty key.
pub fn map(value: &str) -> Result<BTreeMap<String, String>, FlagValueError> {
    list(value)
        .into_iter()
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => invalid("pair", &pair, "must be key=value"),
        })
        .collect()
}

/// Parses a listen address in Go's format: `:8080`, `127.0.0.1:8080`, `[::1]:8080`. `None` for `0` and the
/// empty text: do not listen.
///
/// # Errors
///
/// On anything else; host names are not resolved.
pub fn bind_address(value: &str) -> Result<Option<SocketAddr>, FlagValueError> {
    const WHAT: &str = "address";
    if value.is_empty() || value == "0" {
        return Ok(None);
    }
    if let Some(port) = value.strip_prefix(':') {
        return match port.parse() {
            Ok(port) => Ok(Some(SocketAddr::new(
                IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                port,
            ))),
            Err(_) => invalid(WHAT, value, "the port must be a number up to 65535"),
        };
    }
    match value.replace("localhost:", "127.0.0.1:").parse() {
        Ok(address) => Ok(Some(address)),
        Err(_) => invalid(WHAT, value, "must be [ip]:port"),
    }
}

/// Selection of named parts: `*` selects all, `name` selects one and `-name` excludes one. If a name occurs
/// several times, the first occurrence counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(Vec<String>);

impl Selection {
    /// Returns a selection of every part.
    #[must_use]
    pub fn all() -> Self {
        Self(vec!["*".to_owned()])
    }

    /// Returns a selection of no part.
    #[must_use]
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Returns whether `name` is on.
    #[must_use]
    pub fn enabled(&self, name: &str) -> bool {
        let explicit = self
            .0
            .iter()
            .find_map(|entry| match entry.strip_prefix('-') {
                Some(off) => (off == name).then_some(false),
                None => (entry == name).then_some(true),
            });
        explicit.unwrap_or_else(|| self.0.iter().any(|entry| entry == "*"))
    }

    /// Rejects names that do not exist.
    ///
    /// # Errors
    ///
    /// On the first name that is not in `known`.
    pub fn check(&self, known: &[&str]) -> Result<(), FlagValueError> {
        let unknown = self.0.iter().find(|entry| {
            let name = entry.strip_prefix('-').unwrap_or(entry);
            name != "*" && !known.contains(&name)
        });
        match unknown {
            Some(entry) => invalid("name", entry, "is not known"),
            None => Ok(()),
        }
    }
}

impl Default for Selection {
    fn default() -> Self {
        Self::all()
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// Parses a [`Selection`] from a comma-separated list; an empty one selects everything.
///
/// # Errors
///
/// Never; clap requires the signature.
pub fn selection(value: &str) -> Result<Selection, FlagValueError> {
    let entries = list(value);
    Ok(if entries.is_empty() {
        Selection::all()
    } else {
        Selection(entries)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("100ms", 100_000_000),
            ("3µs", 3_000),
            ("2562047h47m16.854775807s", u64::try_from(i64::MAX).unwrap()),
        ] {
            assert_eq!(
                duration(text).unwrap(),
                Duration::from_nanos(nanos),
                "{text}"
            );
        }
        for text in [
            "",
            "5",
            "s",
            ".s",
            "-1s",
            "1d",
            "1s2",
            "2562047h47m16.854775808s",
            "1 s",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(bind_address("").unwrap(), None);
        assert_eq!(bind_address("0").unwrap(), None);
        assert_eq!(
            bind_address(":8080").unwrap(),
            Some("0.0.0.0:8080".parse().unwrap())
        );
        assert_eq!(
            bind_address("localhost:1").unwrap(),
            Some("127.0.0.1:1".parse().unwrap())
        );
        assert_eq!(
            bind_address("[::1]:1").unwrap(),
            Some("[::1]:1".parse().unwrap())
        );
        for text in [":http", ":70000", "8080", "example.com:1"] {
            assert!(bind_address(text).unwrap_err().to_string().contains(text));
        }
    }

    #[test]
    fn selections() {
        let pick = |text: &str, name: &str| selection(text).unwrap().enabled(name);
        assert!(pick("", "a") && pick("*", "a") && pick("a", "a"));
        assert!(!pick("b", "a") && !pick("*,-a", "a") && pick("-b,*", "a"));
        assert!(pick("a,-a", "a") && !pick("-a,a", "a"));
        assert!(selection("*,-a").unwrap().check(&["a"]).is_ok());
        let error = selection("*,-x").unwrap().check(&["a"]).unwrap_err();
        assert!(error.to_string().contains("-x"));
    }

    #[test]
    fn maps() {
        let expected = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        assert_eq!(map("a=1,").unwrap(), expected);
        assert!(map("a").unwrap_err().to_string().contains('a'));
    }
}
