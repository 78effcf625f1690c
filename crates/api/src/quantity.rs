//! Kubernetes resource quantities: exact values, the wire grammar and the canonical text.
//!
//! Grammar and canonical form follow `k8s.io/apimachinery/pkg/api/resource`: a signed decimal number and a
//! suffix that is decimal (`n u m "" k M G T P E`), binary (`Ki Mi Gi Ti Pi Ei`) or a decimal exponent (`e3`,
//! `E-3`). A [`Quantity`] stores the suffix family it was written in, because that decides how a result of
//! arithmetic is printed.
//!
//! # Range
//!
//! Values are stored exactly, in billionths, in 128 bits: about ±1.7·10²⁹ units. Input finer than one
//! billionth is rounded up (away from zero). A binary quantity above 2⁶³−1 is capped there, as in
//! apimachinery; a decimal one outside of the range is rejected. Arithmetic saturates.

mod format;
mod parse;

pub use parse::ParseQuantityError;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// Resource name to amount, as in `requests`, `allocatable` and every usage report.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Billionths per unit: the finest step a quantity can express.
pub const NANOS_PER_UNIT: i128 = 1_000_000_000;
const NANOS_PER_MILLI: i128 = 1_000_000;

/// The suffix family a quantity is printed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// Powers of ten with SI letters: `100m`, `5k`, `12`.
    #[default]
    DecimalSi,
    /// Powers of 1024: `4Ki`, `12Gi`. Whole numbers only; anything else prints as [`Format::DecimalSi`].
    BinarySi,
    /// Powers of ten with an exponent: `12e6`.
    DecimalExponent,
}

/// An exact amount of a resource.
///
/// Equality, order and hash look at the amount only: `1`, `1000m` and `1e0` are equal.
#[derive(Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    /// The amount zero, in decimal form.
    pub const ZERO: Self = Self {
        nanos: 0,
        format: Format::DecimalSi,
    };

    /// Creates a quantity of `value` whole units in decimal form (CPUs, a count, milli-cores of `batch-cpu`).
    #[must_use]
    pub const fn from_value(value: i64) -> Self {
        Self {
            nanos: value as i128 * NANOS_PER_UNIT,
            format: Format::DecimalSi,
        }
    }

    /// Creates a quantity of `milli` thousandths of a unit in decimal form; `from_milli(1500)` is one and a
    /// half CPUs.
    #[must_use]
    pub const fn from_milli(milli: i64) -> Self {
        Self {
            nanos: milli as i128 * NANOS_PER_MILLI,
            format: Format::DecimalSi,
        }
    }

    /// Creates a quantity of `bytes` whole units in binary form, the usual notation for memory.
    #[must_use]
    pub const fn from_bytes(bytes: i64) -> Self {
        Self {
            nanos: bytes as i128 * NANOS_PER_UNIT,
            format: Format::BinarySi,
        }
    }

    /// Creates a quantity of `nanos` billionths of a unit.
    #[must_use]
    pub const fn from_nanos(nanos: i128, format: Format) -> Self {
        Self { nanos, format }
    }

    /// Returns the amount in another suffix family.
    #[must_use]
    pub const fn with_format(self, format: Format) -> Self {
        Self {
            nanos: self.nanos,
            format,
        }
    }

    /// Returns the suffix family this quantity is printed in.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Returns the exact amount in billionths of a unit.
    #[must_use]
    pub const fn nanos(&self) -> i128 {
        self.nanos
    }

    /// Returns the amount in whole units, rounded away from zero; saturates at the ends of `i64`.
    #[must_use]
    pub const fn value(&self) -> i64 {
        round_away(self.nanos, NANOS_PER_UNIT)
    }

    /// Returns the amount in thousandths of a unit, rounded away from zero; saturates at the ends of `i64`.
    #[must_use]
    pub const fn milli_value(&self) -> i64 {
        round_away(self.nanos, NANOS_PER_MILLI)
    }

    /// Returns the nearest floating-point number of units. For ratios and display, not for accounting.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "documented as approximate")]
    pub fn to_f64(&self) -> f64 {
        self.nanos as f64 / NANOS_PER_UNIT as f64
    }

    /// Returns true if the amount is zero.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// Returns the sign of the amount: −1, 0 or 1.
    #[must_use]
    pub const fn signum(&self) -> i32 {
        self.nanos.signum() as i32
    }

    /// Converts to the Kubernetes wire type, in canonical form.
    #[must_use]
    pub fn to_k8s(&self) -> k8s_openapi::apimachinery::pkg::api::resource::Quantity {
        k8s_openapi::apimachinery::pkg::api::resource::Quantity(self.to_string())
    }

    fn combine(self, other: Self, nanos: i128) -> Self {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        Self { nanos, format }
    }
}

/// Returns `nanos / unit`, rounded away from zero and limited to the range of `i64`.
const fn round_away(nanos: i128, unit: i128) -> i64 {
    let mut whole = nanos / unit;
    let remainder = nanos % unit;
    if remainder != 0 {
        whole += remainder.signum();
    }
    if whole > i64::MAX as i128 {
        i64::MAX
    } else if whole < i64::MIN as i128 {
        i64::MIN
    } else {
        whole as i64
    }
}

/// Parses the Kubernetes wire type.
///
/// # Errors
/// The text is not a quantity, or is out of range.
pub fn parse(
    quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity,
) -> Result<Quantity, ParseQuantityError> {
    quantity.0.parse()
}

/// Parses a Kubernetes resource list (`requests`, `limits`, `allocatable`).
///
/// # Errors
/// The name of the first resource whose amount is not a quantity, with the reason.
pub fn parse_list(
    list: &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
) -> Result<ResourceList, (String, ParseQuantityError)> {
    list.iter()
        .map(|(name, amount)| match parse(amount) {
            Ok(amount) => Ok((name.clone(), amount)),
            Err(error) => Err((name.clone(), error)),
        })
        .collect()
}

impl TryFrom<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> for Quantity {
    type Error = ParseQuantityError;

    fn try_from(
        quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity,
    ) -> Result<Self, Self::Error> {
        parse(quantity)
    }
}

impl From<Quantity> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(quantity: Quantity) -> Self {
        quantity.to_k8s()
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl Hash for Quantity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

/// Saturating. The result keeps the left side's suffix family unless the left side is zero.
impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combine(other, self.nanos.saturating_add(other.nanos))
    }
}

/// Saturating. The result keeps the left side's suffix family unless the left side is zero.
impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.combine(other, self.nanos.saturating_sub(other.nanos))
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Neg for Quantity {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            nanos: self.nanos.saturating_neg(),
            format: self.format,
        }
    }
}

impl Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(quantities: I) -> Self {
        quantities.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quantity({self})")
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as \"500m\", \"2Gi\" or 4")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_value(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Quantity, E> {
                Ok(Quantity::from_nanos(
                    i128::from(value) * NANOS_PER_UNIT,
                    Format::DecimalSi,
                ))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Quantity, E> {
                // The shortest decimal text of a float is the text in the JSON document.
                value.to_string().parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": crate::schema::QUANTITY_PATTERN,
        })
    }
}

#[cfg(test)]
mod tests;
