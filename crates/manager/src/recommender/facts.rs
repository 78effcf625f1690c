//! What is kept of a Recommendation.

use super::Target;
use crate::facts::Text;
use koord_api::analysis::{DISTRIBUTION, PERCENTILES, Recommendation, RecommendationSpec};
use koord_kube::{Mirrored, ObjectKey};

/// A Recommendation: its target, which everybody looks at, and the rest as text.
#[derive(Debug, Clone, PartialEq)]
pub struct RecommendationFacts {
    /// What it is about, or why that cannot be used.
    pub(crate) target: Result<Target, String>,
    rest: Text<Recommendation>,
}

impl RecommendationFacts {
    pub(crate) fn of(mut object: Recommendation) -> Self {
        let target = Target::of(&object.spec.target);
        object.spec = RecommendationSpec::default();
        let meta = &mut object.metadata;
        (meta.labels, meta.owner_references, meta.finalizers) = (None, None, None);
        if let Some(annotations) = &mut meta.annotations {
            annotations.retain(|key, _| [PERCENTILES, DISTRIBUTION].contains(&key.as_str()));
        }
        Self {
            target,
            rest: Text::of(object),
        }
    }

    /// The object, without its spec.
    pub(crate) fn read(&self) -> Recommendation {
        self.rest.read()
    }
}

impl Mirrored for RecommendationFacts {
    fn key(&self) -> ObjectKey {
        self.rest.key()
    }
    fn uid(&self) -> Option<&str> {
        self.rest.uid()
    }
    fn resource_version(&self) -> Option<&str> {
        self.rest.resource_version()
    }
}
