//! NodeSLOs in compact form: there are thousands, and most have equal specs.

use koord_api::slo::{NodeSLO, NodeSLOSpec};
use koord_kube::Cacheable;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The fields of a NodeSLO that the manager reads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SloFacts {
    pub(crate) node: Box<str>,
    uid: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    /// Shared between nodes with equal specs.
    pub(crate) spec: Arc<NodeSLOSpec>,
}

/// Number of recent specs that are cached.
const CACHED_SPECS: usize = 16;

/// Recently used specs, newest first.
#[derive(Debug, Default)]
pub(crate) struct Specs(Mutex<VecDeque<Arc<NodeSLOSpec>>>);

impl Specs {
    /// Returns a cached spec equal to `spec`, which is added if there is none.
    fn share(&self, spec: NodeSLOSpec) -> Arc<NodeSLOSpec> {
        let mut recent = self.0.lock();
        let index = recent.iter().position(|cached| **cached == spec);
        // The newest comes first: most nodes have the same spec.
        let shared = index.and_then(|index| recent.remove(index));
        let shared = shared.unwrap_or_else(|| Arc::new(spec));
        recent.truncate(CACHED_SPECS - 1);
        recent.push_front(shared.clone());
        shared
    }

    /// Creates the facts of a NodeSLO.
    pub(crate) fn facts(&self, slo: NodeSLO) -> SloFacts {
        let meta = slo.metadata;
        let boxed = |text: Option<String>| text.map(Box::from);
        SloFacts {
            node: meta.name.unwrap_or_default().into(),
            uid: boxed(meta.uid),
            resource_version: boxed(meta.resource_version),
            spec: self.share(slo.spec),
        }
    }
}

impl Cacheable for SloFacts {
    fn names(&self) -> (&str, &str) {
        ("", &self.node)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_specs_are_shared_and_old_ones_evicted() {
        let specs = Specs::default();
        let slo = |node: &str, percent: i64| -> NodeSLO {
            let threshold = json!({"enable": true, "cpuSuppressThresholdPercent": percent});
            let spec = json!({"resourceUsedThresholdWithBE": threshold});
            serde_json::from_value(json!({"metadata": {"name": node}, "spec": spec})).unwrap()
        };
        let (a, b, c) = (slo("a", 65), slo("b", 65), slo("c", 60));
        let [a, b, c] = [a, b, c].map(|slo| specs.facts(slo));
        assert!(Arc::ptr_eq(&a.spec, &b.spec) && !Arc::ptr_eq(&a.spec, &c.spec));
        assert_eq!(
            (a.key().name.as_str(), c.spec.clone()),
            ("a", slo("c", 60).spec.into())
        );
        for percent in 1..100 {
            specs.facts(slo("d", percent));
        }
        assert_eq!(specs.0.lock().len(), CACHED_SPECS);
    }
}
