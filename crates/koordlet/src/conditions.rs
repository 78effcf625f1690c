//! Conditions of the agent on its node: lasting problems that an operator has to look at.
//!
//! Each object's condition is logged once when it begins and once when it ends, counted in
//! `koordlet_condition`, and listed in the status that `koord node status` prints.

use parking_lot::Mutex;
use prometheus::{GaugeVec, Opts, Registry};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of objects stored per condition.
const MAX_OBJECTS: usize = 1000;

/// A kind of condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// A file refuses the value that is written to it.
    WriteRefused,
    /// Another program replaces a value each time after it is written.
    ValueRewritten,
    /// A container runs, but its cgroup is not found.
    CgroupNotFound,
    /// A pod's CPUs belong exclusively to another pod.
    CpusConflict,
}

impl Condition {
    /// Every kind of condition.
    pub const ALL: [Self; 4] = [
        Self::WriteRefused,
        Self::ValueRewritten,
        Self::CgroupNotFound,
        Self::CpusConflict,
    ];

    /// Returns the name in logs, metrics and the status.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteRefused => "WriteRefused",
            Self::ValueRewritten => "ValueRewritten",
            Self::CgroupNotFound => "CgroupNotFound",
            Self::CpusConflict => "CpusConflict",
        }
    }
}

/// Active conditions. Clones share the same state.
#[derive(Debug, Clone, Default)]
pub struct Conditions(Arc<Mutex<ConditionState>>);

#[derive(Debug, Default)]
struct ConditionState {
    active: BTreeMap<Condition, BTreeMap<String, String>>,
    gauge: Option<(GaugeVec, String)>,
    logged: u64,
}

impl Conditions {
    /// Registers gauge `koordlet_condition`: the number of objects that have a condition.
    pub fn register(&self, registry: &Registry, node: &str) {
        let help =
            "Objects that have a lasting condition, by condition; koord node status lists them";
        let opts = Opts::new("koordlet_condition", help);
        let Ok(gauge) = GaugeVec::new(opts, &["node", "condition"]) else {
            return;
        };
        if registry.register(Box::new(gauge.clone())).is_err() {
            tracing::debug!("skipping registration of koordlet_condition, already registered");
        }
        let mut inner = self.0.lock();
        inner.gauge = Some((gauge, node.to_owned()));
        for condition in Condition::ALL {
            inner.update_gauge(condition);
        }
    }

    /// Records that `object` has `condition`, and logs it if that is new.
    pub fn set(&self, condition: Condition, object: &str, message: &str) {
        if self.set_quietly(condition, object, message) {
            let condition = condition.name();
            tracing::warn!(condition, object, message, "condition began");
        }
    }

    /// Adds a condition like [`Self::set`], but without a log line, for callers that log more themselves. Returns true if
    /// `object` did not have the condition before.
    pub fn set_quietly(&self, condition: Condition, object: &str, message: &str) -> bool {
        let mut inner = self.0.lock();
        let objects = inner.active.entry(condition).or_default();
        if let Some(before) = objects.get_mut(object) {
            message.clone_into(before);
            return false;
        }
        if objects.len() >= MAX_OBJECTS {
            return false;
        }
        objects.insert(object.to_owned(), message.to_owned());
        inner.logged = inner.logged.saturating_add(1);
        inner.update_gauge(condition);
        true
    }

    /// Records that `object` does not have `condition` any more.
    pub fn clear(&self, condition: Condition, object: &str) {
        let mut inner = self.0.lock();
        let objects = inner.active.get_mut(&condition);
        if objects.and_then(|objects| objects.remove(object)).is_none() {
            return;
        }
        inner.update_gauge(condition);
        drop(inner);
        tracing::info!(condition = condition.name(), object, "condition ended");
    }

    /// Records that exactly `objects` have `condition`, each with its message.
    pub fn replace(&self, condition: Condition, objects: &BTreeMap<String, String>) {
        let ended: BTreeSet<String> = {
            let inner = self.0.lock();
            let before = inner.active.get(&condition).into_iter().flatten();
            let ended = before.filter(|(object, _)| !objects.contains_key(*object));
            ended.map(|(object, _)| object.clone()).collect()
        };
        for object in ended {
            self.clear(condition, &object);
        }
        for (object, message) in objects {
            self.set(condition, object, message);
        }
    }

    /// Returns the active conditions: condition, object and message.
    #[must_use]
    pub fn active(&self) -> Vec<(Condition, String, String)> {
        let inner = self.0.lock();
        let each = inner.active.iter().flat_map(|(condition, objects)| {
            let objects = objects.iter();
            objects.map(|(object, message)| (*condition, object.clone(), message.clone()))
        });
        each.collect()
    }

    /// Returns the number of conditions that were logged since the start.
    #[must_use]
    pub fn logged(&self) -> u64 {
        self.0.lock().logged
    }
}

impl ConditionState {
    fn update_gauge(&self, condition: Condition) {
        let Some((gauge, node)) = &self.gauge else {
            return;
        };
        let count = self.active.get(&condition).map_or(0, BTreeMap::len);
        let labels = [node.as_str(), condition.name()];
        gauge.with_label_values(&labels).set(count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_is_logged_once_and_counted_until_it_ends() {
        let registry = Registry::new();
        let conditions = Conditions::default();
        conditions.register(&registry, "n1");
        let count = || {
            let text = koord_app::metrics::encode(&registry).unwrap();
            let name = r#"koordlet_condition{condition="CgroupNotFound",node="n1"} "#;
            text.lines()
                .find_map(|line| Some(line.strip_prefix(name)?.to_owned()))
        };
        assert_eq!(count().as_deref(), Some("0"));
        for message in ["a", "b"] {
            conditions.set(Condition::CgroupNotFound, "default/x/c", message);
        }
        assert_eq!((conditions.logged(), count().as_deref()), (1, Some("1")));
        assert_eq!(conditions.active()[0].2, "b");
        let now = BTreeMap::from([("default/y/c".to_owned(), "c".to_owned())]);
        conditions.replace(Condition::CgroupNotFound, &now);
        assert_eq!((conditions.logged(), count().as_deref()), (2, Some("1")));
        conditions.clear(Condition::CgroupNotFound, "default/y/c");
        assert_eq!(count().as_deref(), Some("0"));
        assert!(conditions.active().is_empty());
    }
}
