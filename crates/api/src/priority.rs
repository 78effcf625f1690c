//! Priority classes: the band that a pod's `spec.priority` is in, which determines the resources the pod
//! uses.
//!
//! Source: Koordinator `apis/extension/priority.go`.

use crate::labels;
use crate::qos::{self, QosClass};
use crate::resources::{BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, MID_CPU, MID_MEMORY};
use k8s_openapi::api::core::v1::Pod;
use std::fmt;
use std::ops::RangeInclusive;

/// Priority band. The wire text is `koord-…`; `None` is the empty text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum PriorityClass {
    /// 9000..=9999: production; uses native resources.
    Prod,
    /// 7000..=7999: uses mid resources.
    Mid,
    /// 5000..=5999: uses batch resources.
    Batch,
    /// 3000..=3999: free; lowest band, has no resources of its own.
    Free,
    /// Any other priority.
    #[default]
    None,
}

impl PriorityClass {
    /// The four classes, highest first.
    pub const ALL: [Self; 4] = [Self::Prod, Self::Mid, Self::Batch, Self::Free];

    /// Returns the wire text: `koord-prod`, `koord-mid`, `koord-batch`, `koord-free`, or empty.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prod => "koord-prod",
            Self::Mid => "koord-mid",
            Self::Batch => "koord-batch",
            Self::Free => "koord-free",
            Self::None => "",
        }
    }

    /// Parses the wire text. An unknown text is [`PriorityClass::None`].
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|class| class.as_str() == name)
            .unwrap_or_default()
    }

    /// Returns the class whose band contains `priority`. The gaps between the bands are
    /// [`PriorityClass::None`].
    #[must_use]
    pub fn from_value(priority: i32) -> Self {
        Self::ALL
            .into_iter()
            .find(|class| class.band().is_some_and(|band| band.contains(&priority)))
            .unwrap_or_default()
    }

    /// Returns the range of priorities of the class. [`PriorityClass::None`] has none.
    #[must_use]
    pub const fn band(self) -> Option<RangeInclusive<i32>> {
        match self {
            Self::Prod => Some(9000..=9999),
            Self::Mid => Some(7000..=7999),
            Self::Batch => Some(5000..=5999),
            Self::Free => Some(3000..=3999),
            Self::None => None,
        }
    }

    /// Returns the priority assumed for a class without a value: the middle of its band; 0 for
    /// [`PriorityClass::None`].
    #[must_use]
    pub const fn default_value(self) -> i32 {
        match self {
            Self::Prod => 9500,
            Self::Mid => 7500,
            Self::Batch => 5500,
            Self::Free => 3500,
            Self::None => 0,
        }
    }

    /// Returns true if no class is set. Serialization omits the field then.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        *self == Self::None
    }
}

crate::serde_util::serde_by_name!(PriorityClass);

impl fmt::Display for PriorityClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the class of a pod without applying a default: from the label `koordinator.sh/priority-class` (an
/// unknown name gives none, without falling back), otherwise from `spec.priority`.
#[must_use]
pub fn pod_priority_class(pod: &Pod) -> PriorityClass {
    if let Some(name) = label(pod, labels::POD_PRIORITY_CLASS) {
        return PriorityClass::from_name(name);
    }
    pod.spec
        .as_ref()
        .and_then(|spec| spec.priority)
        .map_or(PriorityClass::None, PriorityClass::from_value)
}

/// Returns the class of a pod. A pod without one gets that of its QoS class: batch for BE, prod for every
/// other.
#[must_use]
pub fn pod_priority_class_or_default(pod: &Pod) -> PriorityClass {
    match pod_priority_class(pod) {
        PriorityClass::None => default_for_qos(qos::pod_qos_class_or_default(pod)),
        class => class,
    }
}

/// Returns the class of a pod without one, from its QoS class.
#[must_use]
pub const fn default_for_qos(class: QosClass) -> PriorityClass {
    match class {
        QosClass::System | QosClass::Lse | QosClass::Lsr | QosClass::Ls => PriorityClass::Prod,
        QosClass::Be => PriorityClass::Batch,
        QosClass::None => PriorityClass::None,
    }
}

/// Returns `spec.priority` if it is set and not zero, otherwise the default value of the pod's class with
/// default.
#[must_use]
pub fn pod_priority_value(pod: &Pod) -> i32 {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.priority)
        .filter(|priority| *priority != 0)
        .unwrap_or_else(|| pod_priority_class_or_default(pod).default_value())
}

/// Error for a label `koordinator.sh/priority` that is not a 32-bit integer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("label {key} has value {value:?}: want a 32-bit integer", key = labels::POD_PRIORITY)]
pub struct SubPriorityError {
    /// The label's value.
    pub value: String,
}

/// Returns the sub-priority of a pod: the label `koordinator.sh/priority`, 0 without it. The prefixes `0x`,
/// `0o`, `0b` and a leading zero (octal) are accepted.
///
/// # Errors
/// The label is set to something that is not a 32-bit integer.
pub fn pod_sub_priority(pod: &Pod) -> Result<i32, SubPriorityError> {
    match label(pod, labels::POD_PRIORITY) {
        None | Some("") => Ok(0),
        Some(value) => parse_go_int(value).ok_or_else(|| SubPriorityError {
            value: value.to_owned(),
        }),
    }
}

/// Parses a 32-bit integer as Go's `strconv.ParseInt` with base detection does, except for underscores.
fn parse_go_int(text: &str) -> Option<i32> {
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(hex) = lower.strip_prefix("0x") {
        (16, hex)
    } else if let Some(octal) = lower.strip_prefix("0o") {
        (8, octal)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (2, binary)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if digits.starts_with(['-', '+']) {
        return None;
    }
    let magnitude = i64::from_str_radix(digits, radix).ok()?;
    i32::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// Returns the resource name that a pod of `class` uses for a native `resource` (`cpu` or `memory`).
///
/// Prod and unclassified pods use the native name. `None` means that there is no translation: the resource is
/// not cpu or memory, or the class (free) has no resources of its own.
#[must_use]
pub fn translate(class: PriorityClass, resource: &str) -> Option<&str> {
    match (class, resource) {
        (PriorityClass::Prod | PriorityClass::None, _) => Some(resource),
        (PriorityClass::Batch, CPU) => Some(BATCH_CPU),
        (PriorityClass::Batch, MEMORY) => Some(BATCH_MEMORY),
        (PriorityClass::Mid, CPU) => Some(MID_CPU),
        (PriorityClass::Mid, MEMORY) => Some(MID_MEMORY),
        _ => None,
    }
}

/// Returns the class that a batch or mid resource belongs to; [`PriorityClass::None`] for every other
/// resource.
#[must_use]
pub fn resource_priority_class(resource: &str) -> PriorityClass {
    match resource {
        BATCH_CPU | BATCH_MEMORY => PriorityClass::Batch,
        MID_CPU | MID_MEMORY => PriorityClass::Mid,
        _ => PriorityClass::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(labels: &serde_json::Value, priority: Option<i32>) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "labels": labels },
            "spec": { "containers": [], "priority": priority },
        }))
        .unwrap()
    }

    #[test]
    fn bands_have_gaps() {
        for (value, class) in [
            (9999, PriorityClass::Prod),
            (9000, PriorityClass::Prod),
            (8999, PriorityClass::None),
            (7000, PriorityClass::Mid),
            (6500, PriorityClass::None),
            (5999, PriorityClass::Batch),
            (3000, PriorityClass::Free),
            (2999, PriorityClass::None),
            (2_000_000_000, PriorityClass::None),
            (0, PriorityClass::None),
        ] {
            assert_eq!(PriorityClass::from_value(value), class, "{value}");
        }
    }

    #[test]
    fn unknown_label_does_not_fall_back() {
        let pod = pod(
            &json!({"koordinator.sh/priority-class": "koord-best"}),
            Some(9500),
        );
        assert_eq!(pod_priority_class(&pod), PriorityClass::None);
        // A pod without resources is BestEffort, hence BE, hence batch.
        assert_eq!(pod_priority_class_or_default(&pod), PriorityClass::Batch);
        assert_eq!(pod_priority_value(&pod), 9500);
    }

    #[test]
    fn value_comes_from_the_spec_then_the_class() {
        let qos = json!({"koordinator.sh/qosClass": "LS"});
        assert_eq!(pod_priority_value(&pod(&qos, None)), 9500);
        assert_eq!(pod_priority_value(&pod(&qos, Some(0))), 9500);
        assert_eq!(pod_priority_value(&pod(&qos, Some(42))), 42);
        assert_eq!(
            pod_priority_class_or_default(&pod(&qos, Some(5500))),
            PriorityClass::Batch
        );
    }

    #[test]
    fn sub_priority_detects_the_base() {
        let of = |text: &str| pod_sub_priority(&pod(&json!({ labels::POD_PRIORITY: text }), None));
        assert_eq!(of(""), Ok(0));
        assert_eq!(of("0"), Ok(0));
        assert_eq!(of("-12"), Ok(-12));
        assert_eq!(of("0x10"), Ok(16));
        assert_eq!(of("010"), Ok(8));
        assert_eq!(of("2147483647"), Ok(i32::MAX));
        for bad in ["2147483648", "1.5", "abc", "0x", "--1"] {
            assert!(of(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
    }

    #[test]
    fn translation_is_by_class_and_native_resource() {
        assert_eq!(translate(PriorityClass::Prod, CPU), Some(CPU));
        assert_eq!(translate(PriorityClass::None, MEMORY), Some(MEMORY));
        assert_eq!(translate(PriorityClass::Batch, CPU), Some(BATCH_CPU));
        assert_eq!(translate(PriorityClass::Mid, MEMORY), Some(MID_MEMORY));
        assert_eq!(translate(PriorityClass::Batch, crate::resources::GPU), None);
        assert_eq!(translate(PriorityClass::Free, CPU), None);
        assert_eq!(resource_priority_class(BATCH_MEMORY), PriorityClass::Batch);
        assert_eq!(resource_priority_class(MID_CPU), PriorityClass::Mid);
        assert_eq!(resource_priority_class(CPU), PriorityClass::None);
    }
}
