//! Amounts in half of the size of `Amount`, because hundreds of thousands of them are cached.

use koord_api::quantity::{Format, NANOS_PER_UNIT, Quantity};
use koord_model::reclaim::Amount;

/// A CPU and a memory amount.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PackedAmount {
    cpu: CompactQuantity,
    memory: CompactQuantity,
}

impl PackedAmount {
    pub(crate) fn amount(self) -> Amount {
        Amount::new(self.cpu.into(), self.memory.into())
    }
}

impl From<Amount> for PackedAmount {
    fn from(amount: Amount) -> Self {
        Self {
            cpu: amount.cpu.into(),
            memory: amount.memory.into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct CompactQuantity {
    count: i64,
    unit: Unit,
    format: Format,
}

/// The unit of `count`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    Whole,
    Milli,
    Nano,
}

impl Unit {
    const fn nanos(self) -> i128 {
        match self {
            Self::Whole => NANOS_PER_UNIT,
            Self::Milli => NANOS_PER_UNIT / 1000,
            Self::Nano => 1,
        }
    }
}

impl From<Quantity> for CompactQuantity {
    /// Converts a quantity: exactly up to nine billion cores, and up to eight pebibytes in milli units; larger
    /// fractional values are rounded up, as for every reader of a quantity as a whole number.
    fn from(quantity: Quantity) -> Self {
        let (nanos, format) = (quantity.nanos(), quantity.format());
        let exact = |unit: Unit| {
            let count = i64::try_from(nanos / unit.nanos()).ok()?;
            (nanos % unit.nanos() == 0).then_some(Self {
                count,
                unit,
                format,
            })
        };
        let exact_value = [Unit::Whole, Unit::Milli, Unit::Nano]
            .into_iter()
            .find_map(exact);
        exact_value.unwrap_or(Self {
            count: quantity.value(),
            unit: Unit::Whole,
            format,
        })
    }
}

impl From<CompactQuantity> for Quantity {
    fn from(small: CompactQuantity) -> Self {
        Self::from_nanos(i128::from(small.count) * small.unit.nanos(), small.format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_round_trip() {
        for text in [
            "0",
            "1",
            "250m",
            "1n",
            "1500000001n",
            "-3",
            "33.3Gi",
            "128Gi",
            "2E",
            "8500M",
            "1e3",
            "0.5",
            "9223372036854775807",
        ] {
            let quantity: Quantity = text.parse().unwrap();
            let packed = PackedAmount::from(Amount::new(quantity, Quantity::ZERO)).amount();
            assert_eq!(packed.cpu.nanos(), quantity.nanos(), "{text}");
            assert_eq!(packed.cpu.to_string(), quantity.to_string());
        }
        let large: Quantity = "9000000000000000000500m".parse().unwrap();
        let packed = PackedAmount::from(Amount::new(large, large)).amount();
        assert_eq!(packed.memory.value(), large.value());
        assert_eq!(std::mem::size_of::<Option<PackedAmount>>(), 32);
    }
}
