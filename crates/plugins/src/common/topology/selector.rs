//! Label selectors and pod terms in parsed form.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::texts::Lookup;
use koord_scheduler::framework::Signature;
use koord_scheduler::state::PodInfo;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels of a namespace.
pub(crate) type Labels = Arc<BTreeMap<String, String>>;

/// Requirement of a selector on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    /// An operator that does not exist: matches nothing.
    Never,
}

/// Parsed label selector.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Selector {
    rules: Vec<(String, Requirement)>,
    nothing: bool,
}

impl Selector {
    /// Parses an API selector. `None` matches nothing; an empty selector matches everything.
    pub(crate) fn parse(selector: Option<&LabelSelector>) -> Self {
        let Some(selector) = selector else {
            return Self {
                rules: Vec::new(),
                nothing: true,
            };
        };
        let mut out = Self::equal_to(selector.match_labels.iter().flatten());
        for expression in selector.match_expressions.iter().flatten() {
            let mut values = expression.values.clone().unwrap_or_default();
            values.sort_unstable();
            values.dedup();
            let rule = match expression.operator.as_str() {
                "In" => Requirement::In(values),
                "NotIn" => Requirement::NotIn(values),
                "Exists" => Requirement::Exists,
                "DoesNotExist" => Requirement::Absent,
                _ => Requirement::Never,
            };
            out.rules.push((expression.key.clone(), rule));
        }
        out
    }

    /// Builds a selector that requires exactly these labels.
    pub(crate) fn equal_to<'a>(labels: impl Iterator<Item = (&'a String, &'a String)>) -> Self {
        let rule =
            |(key, value): (&String, &String)| (key.clone(), Requirement::In(vec![value.clone()]));
        Self {
            rules: labels.map(rule).collect(),
            nothing: false,
        }
    }

    /// Adds the requirement `key = value`, or `key != value`.
    pub(crate) fn and(&mut self, key: &str, value: &str, equal: bool) {
        let values = vec![value.to_owned()];
        let rule = if equal {
            Requirement::In(values)
        } else {
            Requirement::NotIn(values)
        };
        self.rules.push((key.to_owned(), rule));
    }

    /// Adds all requirements of `other`.
    pub(crate) fn and_all(&mut self, other: Self) {
        self.rules.extend(other.rules);
        self.nothing |= other.nothing;
    }

    /// Returns true if there is no requirement.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && !self.nothing
    }

    /// Writes the selector to `signature`.
    pub(crate) fn sign(&self, signature: &mut Signature) {
        signature.number(i64::from(self.nothing));
        for (key, rule) in &self.rules {
            signature.text(key);
            let (code, values) = match rule {
                Requirement::In(values) => (0, values.as_slice()),
                Requirement::NotIn(values) => (1, values.as_slice()),
                Requirement::Exists => (2, &[][..]),
                Requirement::Absent => (3, &[][..]),
                Requirement::Never => (4, &[][..]),
            };
            signature.number(code);
            for value in values {
                signature.text(value);
            }
            signature.number(-1);
        }
        signature.number(-2);
    }

    /// Returns true if the selector matches `labels`.
    pub(crate) fn matches(&self, labels: &impl Lookup) -> bool {
        !self.nothing
            && self.rules.iter().all(|(key, rule)| {
                let value = labels.text(key);
                let has = |values: &[String], value: &str| values.iter().any(|it| it == value);
                match (rule, value) {
                    (Requirement::In(values), Some(value)) => has(values, value),
                    (Requirement::NotIn(values), Some(value)) => !has(values, value),
                    (Requirement::Exists, value) => value.is_some(),
                    (Requirement::Absent | Requirement::NotIn(_), None) => true,
                    (Requirement::In(_) | Requirement::Never, _)
                    | (Requirement::Absent, Some(_)) => false,
                }
            })
    }

    /// Returns a label and values, one of which a match must have.
    pub(super) fn required_label(&self) -> Option<(&str, &[String])> {
        self.rules.iter().find_map(|(key, rule)| match rule {
            Requirement::In(values) => Some((key.as_str(), values.as_slice())),
            _ => None,
        })
    }
}

/// Writes an API selector to `signature`.
pub(crate) fn sign_selector(selector: Option<&LabelSelector>, signature: &mut Signature) {
    let Some(selector) = selector else {
        return signature.number(-1);
    };
    for (key, value) in selector.match_labels.iter().flatten() {
        signature.text(key);
        signature.text(value);
    }
    signature.number(-2);
    for expression in selector.match_expressions.iter().flatten() {
        signature.text(&expression.key);
        signature.text(&expression.operator);
        for value in expression.values.iter().flatten() {
            signature.text(value);
        }
        signature.number(-3);
    }
    signature.number(-4);
}

/// Namespaces of a term, by name or by label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Namespaces {
    /// Names of namespaces.
    pub(crate) named: Vec<String>,
    /// Selector over namespace labels.
    pub(crate) selected: Option<Selector>,
}

impl Namespaces {
    /// Returns true if the set depends on namespace labels.
    pub(super) fn is_open(&self) -> bool {
        self.selected.as_ref().is_some_and(|s| !s.is_empty())
    }

    /// Returns true if the set contains namespace `name`.
    fn contains(&self, name: &str, labels_of: &dyn Fn(&str) -> Option<Labels>) -> bool {
        self.named.iter().any(|named| named == name)
            || self.selected.as_ref().is_some_and(|selector| {
                selector.is_empty() || selector.matches(&labels_of(name).as_deref())
            })
    }
}

/// Condition on pods: their namespace and labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    /// Namespaces of matching pods.
    pub(crate) namespaces: Namespaces,
    /// Labels of matching pods.
    pub(crate) selector: Selector,
}

impl Term {
    /// Returns true if `pod` matches. `labels_of` returns the labels of a namespace.
    pub(crate) fn matches(
        &self,
        pod: &PodInfo,
        labels_of: &dyn Fn(&str) -> Option<Labels>,
    ) -> bool {
        self.selector.matches(pod.labels()) && self.namespaces.contains(&pod.namespace, labels_of)
    }
}
