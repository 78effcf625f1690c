//! Go durations (`metav1.Duration`, `time.ParseDuration`): `5m0s` on the wire, nanoseconds inside.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000 * MICROSECOND;
const SECOND: i64 = 1_000 * MILLISECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// A signed length of time in nanoseconds, about ±292 years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration(i64);

impl GoDuration {
    /// The zero duration.
    pub const ZERO: Self = Self(0);

    /// Creates a duration of `nanos` nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Creates a duration of `seconds` seconds; saturates.
    #[must_use]
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(SECOND))
    }

    /// Creates a duration of `minutes` minutes; saturates.
    #[must_use]
    pub const fn from_mins(minutes: i64) -> Self {
        Self(minutes.saturating_mul(MINUTE))
    }

    /// Returns the length in nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Returns the length in whole seconds, truncated toward zero.
    #[must_use]
    pub const fn as_secs(self) -> i64 {
        self.0 / SECOND
    }

    /// Converts to a [`Duration`]. Returns `None` if negative.
    #[must_use]
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

/// Saturates at about 292 years.
impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// Error for a text that is not a Go duration. Its message shows the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// The text does not match `[-+](number unit)+`, or a unit is missing.
    #[error("duration {0:?} is malformed: want numbers with units, such as 300ms, 5m or 1h30m")]
    Malformed(String),
    /// A number is followed by an unknown unit.
    #[error("duration {text:?} has unknown unit {unit:?}: want one of ns us ms s m h")]
    Unit {
        /// The whole input.
        text: String,
        /// The unknown unit.
        unit: String,
    },
    /// The duration is longer than about 292 years.
    #[error("duration {0:?} is out of range")]
    Range(String),
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        let malformed = || ParseDurationError::Malformed(text.to_owned());
        let range = || ParseDurationError::Range(text.to_owned());
        let (negative, mut rest) = match text.strip_prefix(['-', '+']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(malformed());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let end = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .ok_or_else(malformed)?;
            let (number, tail) = rest.split_at(end);
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
                return Err(malformed());
            }
            let end = tail
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(end);
            let unit = unit_nanos(unit).ok_or_else(|| ParseDurationError::Unit {
                text: text.to_owned(),
                unit: unit.to_owned(),
            })?;
            let whole: i128 = match whole {
                "" => 0,
                digits => digits.parse().map_err(|_| range())?,
            };
            let amount = whole.checked_mul(unit).ok_or_else(range)?;
            total = total
                .checked_add(amount + fraction_nanos(fraction, unit))
                .filter(|total| *total <= i128::from(i64::MAX) + 1)
                .ok_or_else(range)?;
            rest = tail;
        }
        i64::try_from(if negative { -total } else { total })
            .map(Self)
            .map_err(|_| range())
    }
}

fn unit_nanos(unit: &str) -> Option<i128> {
    Some(i128::from(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    }))
}

fn fraction_nanos(digits: &str, unit: i128) -> i128 {
    // Nested division from the last digit on is exact to the fraction of a nanosecond.
    digits.bytes().rev().fold(0, |part, digit| {
        (i128::from(digit - b'0') * unit + part) / 10
    })
}

/// The form `time.Duration.String` prints: `1h0m0s`, `5m0s`, `1.5s`, `300ms`, `0s`.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let nanos = self.0.unsigned_abs();
        let (second, minute, hour) = (
            SECOND.unsigned_abs(),
            MINUTE.unsigned_abs(),
            HOUR.unsigned_abs(),
        );
        let text = if nanos == 0 {
            "0s".to_owned()
        } else if nanos < MICROSECOND.unsigned_abs() {
            format!("{sign}{nanos}ns")
        } else if nanos < MILLISECOND.unsigned_abs() {
            format!(
                "{sign}{}\u{b5}s",
                with_fraction(nanos, MICROSECOND.unsigned_abs())
            )
        } else if nanos < second {
            format!(
                "{sign}{}ms",
                with_fraction(nanos, MILLISECOND.unsigned_abs())
            )
        } else {
            let seconds = with_fraction(nanos % minute, second);
            let (hours, minutes) = (nanos / hour, nanos % hour / minute);
            if hours > 0 {
                format!("{sign}{hours}h{minutes}m{seconds}s")
            } else if minutes > 0 {
                format!("{sign}{minutes}m{seconds}s")
            } else {
                format!("{sign}{seconds}s")
            }
        };
        f.pad(&text)
    }
}

/// Formats `nanos / unit` as a decimal number without trailing zeros; `unit` is a power of ten.
fn with_fraction(nanos: u64, unit: u64) -> String {
    let remainder = nanos % unit;
    if remainder == 0 {
        return (nanos / unit).to_string();
    }
    let places = unit.ilog10() as usize;
    let fraction = format!("{remainder:0places$}");
    format!("{}.{}", nanos / unit, fraction.trim_end_matches('0'))
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::GoDuration;

    fn check(input: &str, printed: &str) {
        let parsed: GoDuration = input.parse().unwrap();
        assert_eq!(parsed.to_string(), printed, "{input}");
        assert_eq!(printed.parse::<GoDuration>().unwrap(), parsed, "{printed}");
    }

    #[test]
    fn display_matches_go() {
        check("0", "0s");
        check("5m", "5m0s");
        check("600s", "10m0s");
        check("1h30m", "1h30m0s");
        check("24h", "24h0m0s");
        check("1.5s", "1.5s");
        check("300ms", "300ms");
        check("1.5ms", "1.5ms");
        check("1us", "1\u{b5}s");
        check("-5m", "-5m0s");
        check("100ns", "100ns");
        check("1m30.25s", "1m30.25s");
        check(".5h", "30m0s");
        check("2562047h47m16.854775807s", "2562047h47m16.854775807s");
        check("-2562047h47m16.854775808s", "-2562047h47m16.854775808s");
    }

    #[test]
    fn parse_rejects_texts_that_go_rejects() {
        for (input, part) in [
            ("", "malformed"),
            ("5", "malformed"),
            ("m", "malformed"),
            (".s", "malformed"),
            ("1..2s", "malformed"),
            ("-", "malformed"),
            ("5d", "unknown unit \"d\""),
            ("9999999h", "out of range"),
            ("2562047h47m16.854775808s", "out of range"),
        ] {
            let error = input.parse::<GoDuration>().unwrap_err().to_string();
            assert!(error.contains(part), "{input}: {error}");
            assert!(error.contains(&format!("{input:?}")), "{input}: {error}");
        }
    }
}
