//! Parsing of [`Quantity`] from text.

use super::{Format, NANOS_PER_UNIT, Quantity};
use std::str::FromStr;

/// Error for a text that is not a quantity. Its message shows the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// The text is empty.
    #[error("quantity is empty: want a number with an optional suffix, such as 500m or 2Gi")]
    Empty,
    /// The text does not start with a valid number.
    #[error("quantity {0:?} does not start with a decimal number")]
    Number(String),
    /// The number is followed by an unknown suffix.
    #[error(
        "quantity {text:?} has unknown suffix {suffix:?}: want one of n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent"
    )]
    Suffix {
        /// The whole input.
        text: String,
        /// The part after the number.
        suffix: String,
    },
    /// The amount is out of range (more than about 1.7e29 units).
    #[error("quantity {0:?} is out of range")]
    Range(String),
}

enum Scale {
    Ten(i64),
    Two(u32),
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        if text.is_empty() {
            return Err(ParseQuantityError::Empty);
        }
        let (negative, unsigned) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(ParseQuantityError::Number(text.to_owned()));
        }
        let (scale, format) = suffix_scale(suffix).ok_or_else(|| ParseQuantityError::Suffix {
            text: text.to_owned(),
            suffix: suffix.to_owned(),
        })?;
        let magnitude = match scale {
            Scale::Ten(exponent) => decimal_nanos(whole, fraction, exponent)
                .ok_or_else(|| ParseQuantityError::Range(text.to_owned()))?,
            Scale::Two(shift) => binary_nanos(whole, fraction, shift),
        };
        // A binary quantity below one unit prints as a decimal fraction from then on.
        let format = match format {
            Format::BinarySi if magnitude > 0 && magnitude < NANOS_PER_UNIT => Format::DecimalSi,
            other => other,
        };
        Ok(Self::from_nanos(
            if negative { -magnitude } else { magnitude },
            format,
        ))
    }
}

fn suffix_scale(suffix: &str) -> Option<(Scale, Format)> {
    let decimal = |exponent| Some((Scale::Ten(exponent), Format::DecimalSi));
    let binary = |shift| Some((Scale::Two(shift), Format::BinarySi));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            Some((Scale::Ten(exponent.parse().ok()?), Format::DecimalExponent))
        }
    }
}

/// Returns `whole.fraction × 10^exponent` in billionths, rounded up; `None` if it does not fit.
fn decimal_nanos(whole: &str, fraction: &str, exponent: i64) -> Option<i128> {
    let digits = || {
        whole
            .bytes()
            .chain(fraction.bytes())
            .map(|b| i128::from(b - b'0'))
    };
    let count = i64::try_from(whole.len() + fraction.len()).ok()?;
    let places = i64::try_from(fraction.len()).ok()?;
    // The last digit stands for 10^power billionths.
    let power = exponent.checked_sub(places)?.checked_add(9)?;
    let kept_digits = if power < 0 {
        count.saturating_add(power).max(0)
    } else {
        count
    };
    let mut value: i128 = 0;
    let mut dropped = false;
    for (digit, position) in digits().zip(0i64..) {
        if position < kept_digits {
            value = value.checked_mul(10)?.checked_add(digit)?;
        } else {
            dropped |= digit != 0;
        }
    }
    if value != 0 && power > 0 {
        let factor = 10i128.checked_pow(u32::try_from(power).ok()?)?;
        value = value.checked_mul(factor)?;
    }
    value.checked_add(i128::from(dropped))
}

/// Returns `whole.fraction × 2^shift` in billionths, rounded up and capped at 2⁶³−1 units.
fn binary_nanos(whole: &str, fraction: &str, shift: u32) -> i128 {
    const CAP: i128 = i64::MAX as i128 * NANOS_PER_UNIT;
    let unit = NANOS_PER_UNIT << shift;
    let mut units: i128 = 0;
    for digit in whole.bytes() {
        // Saturating early keeps the product below far inside 128 bits.
        units = (units * 10 + i128::from(digit - b'0')).min(1 << 63);
    }
    // Adds the digits from the last one on, dividing by ten after each: this gives the exact sum rounded
    // down, and `dropped` records whether anything was rounded off.
    let mut part: i128 = 0;
    let mut dropped = false;
    for digit in fraction.bytes().rev() {
        let sum = i128::from(digit - b'0') * unit + part;
        part = sum / 10;
        dropped |= sum % 10 != 0;
    }
    units
        .saturating_mul(unit)
        .saturating_add(part + i128::from(dropped))
        .min(CAP)
}
