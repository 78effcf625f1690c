//! Malformed input: logged once, counted, and listed while it is present.

use parking_lot::Mutex;
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Maximum length of a value in a metric label, in bytes; logs have the whole value.
const LABEL_BYTES: usize = 64;

/// Maximum number of inputs in metrics; all are logged.
const MOST_SHOWN: usize = 200;

/// A value that is not valid for its field. The last valid value, or the default, is used instead.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Malformed {
    /// The field: an annotation's or label's key, or the path in a NodeSLO.
    pub field: String,
    /// The value as given.
    pub value: String,
    /// Reason why the value is invalid.
    pub error: String,
}

impl Malformed {
    /// Creates the report that `value` of `field` is rejected because of `error`.
    pub fn new(
        field: impl Into<String>,
        value: impl Into<String>,
        error: &(impl fmt::Display + ?Sized),
    ) -> Self {
        Self {
            field: field.into(),
            value: value.into(),
            error: error.to_string(),
        }
    }
}

impl From<koord_api::extension::AnnotationError> for Malformed {
    fn from(error: koord_api::extension::AnnotationError) -> Self {
        Self {
            error: error.problem.to_string(),
            field: error.key,
            value: error.value,
        }
    }
}

/// Counter of malformed values, by kind of object and field. Nothing is counted before the node's name is
/// set.
#[derive(Debug, Clone)]
pub struct BadInput {
    node: Arc<OnceLock<String>>,
    values: IntCounterVec,
}

impl BadInput {
    pub(crate) fn new(node: Arc<OnceLock<String>>, values: IntCounterVec) -> Self {
        Self { node, values }
    }

    /// Counts a malformed value: the kind of its object (`NodeSLO`, `annotation`, `kubelet`, `cgroup`,
    /// `checkpoint` …) and its field. Neither may contain the value itself.
    pub fn count(&self, kind: &str, field: &str) {
        if let Some(node) = self.node.get()
            && let Ok(counter) =
                self.values
                    .get_metric_with_label_values(&[node.as_str(), kind, field])
        {
            counter.inc();
        }
    }
}

/// Malformed inputs that are present. Clones share the same list.
#[derive(Debug, Clone, Default)]
pub struct MalformedInputs(Arc<Mutex<MalformedState>>);

#[derive(Debug, Default)]
struct MalformedState {
    current: BTreeMap<String, Vec<Malformed>>,
    /// Number of inputs logged since the start.
    logged: u64,
    gauge: Option<(GaugeVec, String)>,
    counter: Option<BadInput>,
}

impl MalformedInputs {
    /// Registers gauge `koordlet_malformed_input`, 1 for each present object, field and value, and counts
    /// logged inputs in `counter`.
    pub fn register(&self, registry: &Registry, node: &str, counter: BadInput) {
        let opts = Opts::new(
            "koordlet_malformed_input",
            "Input that was not understood; the last good value or the default is used",
        );
        let Ok(gauge) = GaugeVec::new(opts, &["node", "object", "field", "value"]) else {
            return;
        };
        if registry.register(Box::new(gauge.clone())).is_err() {
            tracing::debug!(
                "skipping registration of koordlet_malformed_input, already registered"
            );
        }
        let mut inner = self.0.lock();
        inner.gauge = Some((gauge, node.to_owned()));
        inner.counter = Some(counter);
    }

    /// Replaces the malformed inputs of `object` (such as `Pod default/a`). New ones are logged once.
    pub fn replace(&self, object: &str, mut now: Vec<Malformed>) {
        now.sort();
        now.dedup();
        let mut inner = self.0.lock();
        let before = inner.current.get(object);
        if before.map_or(&[][..], Vec::as_slice) == now {
            return;
        }
        for input in &now {
            if !before.is_some_and(|before| before.contains(input)) {
                let Malformed {
                    field,
                    value,
                    error,
                } = input;
                tracing::warn!(object, field, value, error, "ignoring malformed input");
                if let Some(counter) = &inner.counter {
                    let kind = object.split(' ').next().unwrap_or(object);
                    counter.count(kind, field);
                }
            }
        }
        let fresh = now
            .iter()
            .filter(|input| !before.is_some_and(|before| before.contains(input)))
            .count();
        inner.logged = inner
            .logged
            .saturating_add(u64::try_from(fresh).unwrap_or(u64::MAX));
        let before = if now.is_empty() {
            inner.current.remove(object)
        } else {
            inner.current.insert(object.to_owned(), now)
        };
        inner.show(object, before.unwrap_or_default());
    }

    /// Removes the objects with this prefix (such as `Pod `) for which `keep` returns false.
    pub fn retain(&self, prefix: &str, keep: impl Fn(&str) -> bool) {
        let removed: Vec<String> = {
            let inner = self.0.lock();
            let names = inner.current.keys();
            names
                .filter(|name| name.starts_with(prefix) && !keep(name))
                .cloned()
                .collect()
        };
        for object in removed {
            self.replace(&object, Vec::new());
        }
    }

    /// Returns the present malformed inputs, by object.
    #[must_use]
    pub fn current(&self) -> BTreeMap<String, Vec<Malformed>> {
        self.0.lock().current.clone()
    }

    /// Returns the number of malformed inputs logged since the start.
    #[must_use]
    pub fn logged(&self) -> u64 {
        self.0.lock().logged
    }
}

impl MalformedState {
    fn show(&self, object: &str, before: Vec<Malformed>) {
        let Some((gauge, node)) = &self.gauge else {
            return;
        };
        for input in &before {
            let _ = gauge.remove_label_values(&[node, object, &input.field, label(&input.value)]);
        }
        let shown: usize = self.current.values().map(Vec::len).sum();
        if shown > MOST_SHOWN {
            return;
        }
        for input in self.current.get(object).into_iter().flatten() {
            let labels = [node.as_str(), object, &input.field, label(&input.value)];
            gauge.with_label_values(&labels).set(1.0);
        }
    }
}

fn label(value: &str) -> &str {
    let mut end = value.len().min(LABEL_BYTES);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn input(value: &str) -> Malformed {
        Malformed::new("koordinator.sh/cpuBurst", value, "not JSON")
    }

    fn shown(registry: &Registry) -> Vec<String> {
        let families = registry.gather();
        let family = families
            .iter()
            .filter(|family| family.name() == "koordlet_malformed_input");
        let metrics = family.flat_map(|family| family.get_metric());
        let mut values: Vec<String> = metrics
            .flat_map(|metric| metric.get_label())
            .filter(|pair| pair.name() == "value")
            .map(|pair| pair.value().to_owned())
            .collect();
        values.sort();
        values
    }

    #[test]
    fn malformed_input_is_logged_once_and_listed() {
        let registry = Registry::new();
        let complaints = MalformedInputs::default();
        let metrics = Metrics::new(&registry).unwrap();
        complaints.register(&registry, "n", metrics.bad_input().clone());
        for _ in 0..3 {
            complaints.replace("Pod a/b", vec![input("{"), input("{")]);
        }
        assert_eq!(complaints.logged(), 1);
        complaints.replace("Pod a/b", vec![input("{"), input("[")]);
        assert_eq!(complaints.logged(), 2);
        assert_eq!(shown(&registry), ["[", "{"]);
        complaints.replace("Pod a/c", vec![input("é".repeat(40).as_str())]);
        assert_eq!(shown(&registry).len(), 3);
        complaints.retain("Pod ", |name| name == "Pod a/b");
        complaints.replace("Pod a/b", vec![input("[")]);
        assert_eq!(shown(&registry), ["["]);
        complaints.replace("Pod a/b", Vec::new());
        assert!(shown(&registry).is_empty() && complaints.current().is_empty());
        // After it was removed it is logged again.
        complaints.replace("Pod a/b", vec![input("{")]);
        assert_eq!(complaints.logged(), 4);
    }
}
