//! Recommendations in compact form.

use super::{Interner, Target};
use k8s_openapi::api::core::v1::ObjectReference;
use koord_api::Uid;
use koord_api::analysis::{
    ContainerDistribution, DISTRIBUTION, PERCENTILES, Recommendation, RecommendationStatus,
};
use koord_kube::{Cacheable, ObjectKey, events};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A Recommendation: its target, its status as text, and the days of history from the annotation with the
/// details. There are thousands of Recommendations; the rest of that annotation, most of an object's size, is
/// only needed when it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct RecommendationFacts {
    pub(crate) key: ObjectKey,
    /// UID; empty if absent.
    pub(crate) uid: Uid,
    resource_version: Option<Box<str>>,
    /// The pods that it covers, or why its target is invalid.
    pub(crate) target: Result<Target, String>,
    pub(crate) generation: Option<i64>,
    /// The annotation [`PERCENTILES`], unparsed.
    pub(crate) percentiles: Option<Box<str>>,
    /// Days of history, by container.
    days: Box<[(Box<str>, f64)]>,
    /// Status without conditions as JSON; empty without a status.
    status: Box<str>,
    /// Conditions as JSON; empty if there are none. Most Recommendations share one value.
    conditions: Arc<str>,
}

impl RecommendationFacts {
    /// Creates the facts of a single object.
    #[cfg(test)]
    pub(crate) fn from_object(object: Recommendation) -> Self {
        Self::with_interner(object, &Interner::default())
    }

    /// Creates the facts of one of many objects, whose conditions are interned in `conditions`.
    pub(crate) fn with_interner(mut object: Recommendation, conditions: &Interner<str>) -> Self {
        let key = ObjectKey::from_object(&object);
        let meta = &mut object.metadata;
        let mut annotations = meta.annotations.take().unwrap_or_default();
        let details = distributions(annotations.get(DISTRIBUTION).map(String::as_str));
        let days = details
            .into_iter()
            .map(|(name, one)| (name.into(), one.confidence_days));
        // Values decoded from JSON can be encoded as JSON.
        let mut text = String::new();
        if let Some(status) = &mut object.status {
            let old_conditions = std::mem::take(&mut status.conditions);
            if !old_conditions.is_empty() {
                text = serde_json::to_string(&old_conditions).unwrap_or_default();
            }
        }
        let status = object.status.as_ref();
        let status = status.and_then(|status| serde_json::to_string(status).ok());
        Self {
            key,
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            resource_version: meta.resource_version.take().map(Box::from),
            target: Target::from_spec(&object.spec.target),
            generation: meta.generation,
            percentiles: annotations.remove(PERCENTILES).map(Box::from),
            days: days.collect(),
            status: status.unwrap_or_default().into(),
            conditions: conditions.share(text),
        }
    }

    /// Returns the days of history in the annotation for a container; `None` if it has no such container.
    pub(crate) fn days(&self, container: &str) -> Option<f64> {
        let entry = self.days.iter().find(|(name, _)| **name == *container)?;
        Some(entry.1)
    }

    /// Returns the decoded status; `None` if there is none.
    pub(crate) fn status(&self) -> Option<RecommendationStatus> {
        // Both texts were encoded in `shared`.
        let mut status: RecommendationStatus = serde_json::from_str(&self.status).ok()?;
        status.conditions = serde_json::from_str(&self.conditions).unwrap_or_default();
        Some(status)
    }

    /// Returns the object reference for events.
    pub(crate) fn reference(&self) -> ObjectReference {
        let mut object = Recommendation::default();
        object.metadata.namespace = Some(self.key.namespace.clone());
        object.metadata.name = Some(self.key.name.clone());
        object.metadata.uid = Some(self.uid.to_string());
        object.metadata.resource_version = self.resource_version.as_deref().map(str::to_owned);
        events::reference(&object)
    }
}

/// Parses the annotation [`DISTRIBUTION`]. The manager writes it itself: an invalid one counts as empty and
/// is overwritten.
pub(crate) fn distributions(text: Option<&str>) -> BTreeMap<String, ContainerDistribution> {
    let read = text.and_then(|text| serde_json::from_str(text).ok());
    read.unwrap_or_default()
}

impl Cacheable for RecommendationFacts {
    fn names(&self) -> (&str, &str) {
        (&self.key.namespace, &self.key.name)
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
    fn facts_keep_the_fields_that_are_read() {
        let details = json!({"c": {"confidenceDays": 2.5}, "d": {"confidenceDays": 0.25}});
        let object = json!({
            "apiVersion": "analysis.koordinator.sh/v1alpha1", "kind": "Recommendation",
            "metadata": {"name": "r", "namespace": "shop", "generation": 3, "uid": "u",
                "resourceVersion": "7", "labels": {"a": "b"},
                "annotations": {DISTRIBUTION: details.to_string(), PERCENTILES: "{}", "x": "y"}},
            "spec": {"target": {"type": "other"}},
            "status": {"updateTime": "2026-01-01T00:00:00Z",
                "podStatus": {"containerStatuses": [
                    {"containerName": "c", "resources": {"cpu": "250m", "memory": "1.5Gi"}}]},
                "conditions": [{"type": "LowConfidence", "status": "True", "reason": "R",
                    "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        let object: Recommendation = serde_json::from_value(object).unwrap();
        let reference = events::reference(&object);
        let status = object.status.clone();
        let facts = RecommendationFacts::from_object(object);
        assert_eq!(facts.status(), status);
        assert_eq!(facts.reference(), reference);
        assert_eq!(facts.key(), ObjectKey::new("shop", "r"));
        assert_eq!(
            (facts.resource_version(), facts.generation),
            (Some("7"), Some(3))
        );
        assert_eq!(facts.percentiles.as_deref(), Some("{}"));
        assert_eq!(
            ["c", "d", "e"].map(|name| facts.days(name)),
            [Some(2.5), Some(0.25), None]
        );
        let none = RecommendationFacts::from_object(Recommendation::default());
        assert_eq!((none.status(), none.days("c")), (None, None));
    }
}
