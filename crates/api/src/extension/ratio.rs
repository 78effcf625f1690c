//! Ratios with two decimals: CPU normalization and resource amplification.

use crate::lenient::{self, ReadError};
use std::collections::BTreeMap;

/// Largest factor by which a resource may be amplified. Upstream has no bound; a larger factor is a mistake,
/// and its products overflow.
pub const MAX_AMPLIFICATION: f64 = 100.0;

/// Error for a text that is not a ratio.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("ratio {text:?} is not a number above 0")]
pub struct RatioError {
    /// Text that is not a number above 0.
    pub text: String,
}

/// Parses annotation `node.koordinator.sh/cpu-normalization-ratio`.
///
/// # Errors
/// The text is not a finite number above 0.
pub fn parse_normalization_ratio(text: &str) -> Result<f64, RatioError> {
    text.parse()
        .ok()
        .filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0)
        .ok_or_else(|| RatioError {
            text: text.to_owned(),
        })
}

/// Formats annotation `node.koordinator.sh/cpu-normalization-ratio`: two decimals.
#[must_use]
pub fn format_normalization_ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// Annotation `node.koordinator.sh/resource-amplification-ratio`: resource name to factor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AmplificationRatios(pub BTreeMap<String, f64>);

impl AmplificationRatios {
    /// Parses the annotation.
    ///
    /// # Errors
    /// The text is not a JSON object of numbers.
    pub fn parse(text: &str) -> Result<Self, ReadError> {
        lenient::from_json(text).map(Self)
    }

    /// Formats the annotation. Factors always have two decimals: `{"cpu":1.50}`.
    #[must_use]
    pub fn to_annotation(&self) -> String {
        let fields: Vec<String> = self
            .0
            .iter()
            .map(|(name, ratio)| format!("{}:{ratio:.2}", serde_json::Value::from(name.as_str())))
            .collect();
        format!("{{{}}}", fields.join(","))
    }

    /// Returns the factor of `resource` if it is above 1. A factor above [`MAX_AMPLIFICATION`] is ignored and
    /// gives `None`.
    #[must_use]
    pub fn factor(&self, resource: &str) -> Option<f64> {
        let ratio = self.0.get(resource).copied();
        ratio.filter(|ratio| *ratio > 1.0 && *ratio <= MAX_AMPLIFICATION)
    }

    /// Returns the factors above [`MAX_AMPLIFICATION`], which are ignored, with their resources.
    pub fn excessive(&self) -> impl Iterator<Item = (&str, f64)> {
        let all = self
            .0
            .iter()
            .filter(|(_, ratio)| **ratio > MAX_AMPLIFICATION);
        all.map(|(resource, ratio)| (resource.as_str(), *ratio))
    }
}
