//! Removal of invalid enumerated values: an unknown policy name, a network share that is not a number.
//!
//! They are removed from a document before it is parsed, so that the cluster's value or the default is in
//! effect and no NodeSLO contains them. A list element that has an invalid value is removed as a whole,
//! because a part of a host application would describe a different one.

use super::FieldError;
use crate::quantity::Quantity;
use serde_json::Value;

/// Requirement on the value at a path.
#[derive(Debug)]
pub(super) struct Rule {
    /// Path: names separated by dots; `*` is any name, `[]` after a name stands for all elements of a list.
    path: &'static str,
    expected: Expectation,
}

#[derive(Debug)]
enum Expectation {
    /// One of the listed texts.
    OneOf(&'static [&'static str]),
    /// A percentage (integer) or an amount per second (quantity text).
    PercentOrAmount,
}

const fn one_of(path: &'static str, allowed: &'static [&'static str]) -> Rule {
    let expected = Expectation::OneOf(allowed);
    Rule { path, expected }
}

const fn percent_or_amount(path: &'static str) -> Rule {
    let expected = Expectation::PercentOrAmount;
    Rule { path, expected }
}

/// Rules of `colocation-config`. CPU has no policy `request`, but upstream accepts the word and uses usage.
/// An empty memory policy is a bounds violation, not an unknown word.
pub(super) const COLOCATION: &[Rule] = &[
    one_of(
        "cpuCalculatePolicy",
        &["usage", "request", "maxUsageRequest"],
    ),
    one_of(
        "memoryCalculatePolicy",
        &["usage", "request", "maxUsageRequest"],
    ),
    one_of("midReclaimMode", &["static", ""]),
    one_of(
        "metricMemoryCollectPolicy",
        &[
            "usageWithoutPageCache",
            "usageWithHotPageCache",
            "usageWithPageCache",
            "",
        ],
    ),
];

/// Rules of `resource-threshold-config`.
pub(super) const THRESHOLD: &[Rule] = &[
    one_of("cpuSuppressPolicy", &["cpuset", "cfsQuota"]),
    one_of(
        "cpuEvictPolicy",
        &["evictByRealLimit", "evictByAllocatable"],
    ),
];

/// Rules of `resource-qos-config`.
pub(super) const QOS: &[Rule] = &[
    one_of("policies.cpuPolicy", &["groupIdentity", "coreSched"]),
    one_of("policies.netQOSPolicy", &["tc", "terway-qos"]),
    one_of(
        "*.blkioQOS.blocks[].type",
        &["device", "volumegroup", "podvolume"],
    ),
    percent_or_amount("*.networkQOS.ingressRequest"),
    percent_or_amount("*.networkQOS.ingressLimit"),
    percent_or_amount("*.networkQOS.egressRequest"),
    percent_or_amount("*.networkQOS.egressLimit"),
];

/// Rules of `cpu-burst-config`.
pub(super) const BURST: &[Rule] = &[one_of(
    "policy",
    &["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"],
)];

/// Rules of `host-application-config`. An empty class means none, an empty base the cgroup root.
pub(super) const HOST_APPLICATION: &[Rule] = &[
    one_of(
        "applications[].priority",
        &["koord-prod", "koord-mid", "koord-batch", "koord-free", ""],
    ),
    one_of(
        "applications[].qos",
        &["LSE", "LSR", "LS", "BE", "SYSTEM", ""],
    ),
    one_of(
        "applications[].cgroupPath.base",
        &[
            "CgroupRoot",
            "Kubepods",
            "KubepodsBurstable",
            "KubepodsBesteffort",
            "",
        ],
    ),
];

/// Removes the values that violate a rule from `document` and returns one error for each, with its path in
/// the original document.
pub(super) fn remove_invalid(document: &mut Value, rules: &[Rule]) -> Vec<FieldError> {
    let mut violations = Vec::new();
    let original = document.clone();
    for rule in rules {
        let steps: Vec<&str> = rule.path.split('.').collect();
        let walk = |document: &mut Value| {
            let mut walk = RuleWalk {
                expected: &rule.expected,
                found: Vec::new(),
                items: Vec::new(),
            };
            walk.visit(document, &steps, "");
            walk.found
        };
        violations.extend(walk(&mut original.clone()));
        walk(document);
    }
    violations
}

struct RuleWalk<'a> {
    expected: &'a Expectation,
    found: Vec<FieldError>,
    /// Paths of the list elements that contain the current value, innermost last.
    items: Vec<String>,
}

impl RuleWalk<'_> {
    /// Removes what violates the rule below `value`, which is at path `at`; `steps` is the rest of the rule's path.
    /// Returns true if the caller must remove `value` itself: it violates the rule, or it contains a
    /// violation and belongs to a list element, which is removed as a whole.
    fn visit(&mut self, value: &mut Value, steps: &[&str], at: &str) -> bool {
        let Some((step, steps)) = steps.split_first() else {
            // An empty text counts as unset: it is removed, but not reported.
            if self.items.is_empty() && self.expected.is_unset_text(value) {
                return true;
            }
            let Some(reason) = self.expected.violation(value) else {
                return false;
            };
            let reason = match self.items.last() {
                Some(item) => format!("{reason}, so {item} means nothing"),
                None => reason,
            };
            self.found.push(FieldError {
                field: at.to_owned(),
                value: value.to_string(),
                reason,
            });
            return true;
        };
        let (name, is_list) = match step.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (*step, false),
        };
        let Some(members) = value.as_object_mut() else {
            return false;
        };
        let in_list = !self.items.is_empty();
        let mut invalidates_item = false;
        let dot = if at.is_empty() { "" } else { "." };
        members.retain(|member, value| {
            if name != "*" && !member.eq_ignore_ascii_case(name) {
                return true;
            }
            let member_path = format!("{at}{dot}{member}");
            if is_list {
                if let Some(items) = value.as_array_mut() {
                    let mut index = 0;
                    items.retain_mut(|item| {
                        let item_path = format!("{member_path}[{index}]");
                        index += 1;
                        self.items.push(item_path.clone());
                        let is_invalid = self.visit(item, steps, &item_path);
                        self.items.pop();
                        !is_invalid
                    });
                }
                return true;
            }
            let violates = self.visit(value, steps, &member_path);
            invalidates_item |= violates && in_list;
            // Outside of lists only the value itself is removed, not the object that contains it.
            !(violates && steps.is_empty())
        });
        invalidates_item
    }
}

impl Expectation {
    /// Returns true for an empty text if the empty text is not an allowed value.
    fn is_unset_text(&self, value: &Value) -> bool {
        match self {
            Self::OneOf(allowed) => !allowed.contains(&"") && value.as_str() == Some(""),
            Self::PercentOrAmount => false,
        }
    }

    /// Returns why `value` is invalid; `None` if it is valid, or of a type that the parser of the section rejects.
    fn violation(&self, value: &Value) -> Option<String> {
        match (self, value) {
            (Self::OneOf(allowed), Value::String(text)) if !allowed.contains(&text.as_str()) => {
                let allowed: Vec<_> = allowed.iter().copied().filter(|w| !w.is_empty()).collect();
                Some(format!("it is none of {}", allowed.join(", ")))
            }
            (Self::PercentOrAmount, Value::Number(number))
                if number.is_i64() || number.is_u64() =>
            {
                let is_percentage = number.as_u64().is_some_and(|n| n <= 100);
                (!is_percentage).then(|| "must be from 0 to 100".to_owned())
            }
            (Self::PercentOrAmount, Value::String(text)) => match text.parse::<Quantity>() {
                Ok(amount) if amount.signum() >= 0 => None,
                Ok(_) => Some("must not be negative".to_owned()),
                Err(error) => Some(error.to_string()),
            },
            // A value of another type is rejected when the section is parsed.
            _ => None,
        }
    }
}
