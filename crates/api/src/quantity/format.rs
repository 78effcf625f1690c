//! Formatting of [`Quantity`] in canonical form.

use super::{Format, NANOS_PER_UNIT, Quantity};
use std::fmt;

const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Formats the canonical form: no precision is lost, no fractional digits, the largest suffix that allows
/// both. Binary values that are not whole or are smaller than 1024 are printed in decimal form.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.nanos();
        if nanos == 0 {
            return f.pad("0");
        }
        let whole = nanos % NANOS_PER_UNIT == 0;
        let units = nanos / NANOS_PER_UNIT;
        let text = match self.format() {
            Format::BinarySi if whole && units.unsigned_abs() >= 1024 => binary(units),
            Format::BinarySi | Format::DecimalSi => decimal_si(nanos),
            Format::DecimalExponent => decimal_exponent(nanos),
        };
        f.pad(&text)
    }
}

fn binary(mut units: i128) -> String {
    let mut step = 0;
    while units % 1024 == 0 && step + 1 < BINARY.len() {
        units /= 1024;
        step += 1;
    }
    format!("{units}{}", BINARY[step])
}

fn decimal_si(mut nanos: i128) -> String {
    let mut step = 0;
    while nanos % 1000 == 0 && step + 1 < DECIMAL.len() {
        nanos /= 1000;
        step += 1;
    }
    format!("{nanos}{}", DECIMAL[step])
}

fn decimal_exponent(mut nanos: i128) -> String {
    let mut exponent = -9;
    while nanos % 1000 == 0 {
        nanos /= 1000;
        exponent += 3;
    }
    if exponent == 0 {
        nanos.to_string()
    } else {
        format!("{nanos}e{exponent}")
    }
}
