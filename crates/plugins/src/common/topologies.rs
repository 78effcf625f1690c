//! Trimmed form of a NodeResourceTopology for informers. The annotations in which koordlet lists the
//! machine's CPUs are most of the object; they are parsed at decoding and not kept as text.

mod annotations;

pub(crate) use annotations::{AnnotationReader, TopologyAnnotations, ratios};

use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_api::topology::{AttributeInfo, Zone, v1alpha1};
use koord_scheduler::framework::{ObjectChange, Problem};
use koord_scheduler::{Cacheable, Watch, event_names};
use std::borrow::Cow;
use std::sync::Arc;

/// Kind of NodeResourceTopology.
pub(crate) const TOPOLOGIES: &str = "noderesourcetopologies.v1alpha2.topology.node.k8s.io";

/// Annotation in which old exporters store the fingerprint of the pods they counted.
const LEGACY: &str = "topology.node.k8s.io/fingerprint";

/// Returns the watch of NodeResourceTopologies, shared by all plugins that need it. Falls back to v1alpha1
/// where only that is served.
pub(crate) fn watch() -> Watch {
    type Older = v1alpha1::NodeResourceTopology;
    Watch::with_fallback::<NodeResourceTopology, Older, TrimmedTopology>(TOPOLOGIES).counted_as(
        event_names!("noderesourcetopologies.v1alpha2.topology.node.k8s.io"),
    )
}

/// NodeResourceTopology without the fields that no plugin reads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TrimmedTopology {
    /// Name of the object, which is the node's.
    pub(crate) name: Box<str>,
    pub(crate) uid: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    pub(crate) policies: Box<[String]>,
    pub(crate) attributes: Box<[AttributeInfo]>,
    /// Zones without their attributes and the capacity of their resources, which no plugin reads.
    pub(crate) zones: Box<[Zone]>,
    /// Pod fingerprint in the annotation of old exporters.
    pub(crate) legacy: Option<Box<str>>,
    /// Parsed annotations.
    pub(crate) annotations: Arc<TopologyAnnotations>,
    /// Problems of annotations that were ignored.
    pub(crate) problems: Box<[Problem]>,
}

impl TrimmedTopology {
    /// Returns the object of `change` if it is a NodeResourceTopology, trimmed or whole.
    pub(crate) fn from_change(change: &ObjectChange) -> Option<Cow<'_, Self>> {
        let whole = || change.new_as::<NodeResourceTopology>().cloned();
        let trimmed = change.new_as::<Self>().map(Cow::Borrowed);
        trimmed.or_else(|| whole().map(|whole| Cow::Owned(whole.into())))
    }

    /// Builds a problem about a part of the object that is ignored.
    pub(crate) fn problem(&self, message: String) -> Problem {
        Problem {
            kind: "NodeResourceTopology",
            namespace: String::new(),
            name: self.name.to_string(),
            uid: self.uid.as_deref().unwrap_or_default().to_owned(),
            message,
        }
    }
}

impl From<NodeResourceTopology> for TrimmedTopology {
    fn from(object: NodeResourceTopology) -> Self {
        let (annotations, problems) = TopologyAnnotations::new(&object.metadata);
        let (meta, fields) = (object.metadata, object.spec);
        let legacy = meta.annotations.and_then(|mut all| all.remove(LEGACY));
        let zones = fields.zones.into_iter().map(|mut zone| {
            zone.attributes = Vec::new();
            for resource in &mut zone.resources {
                resource.capacity = koord_api::quantity::Quantity::default();
            }
            zone
        });
        Self {
            name: meta.name.unwrap_or_default().into(),
            uid: meta.uid.map(Box::from),
            resource_version: meta.resource_version.map(Box::from),
            policies: fields.topology_policies.into(),
            attributes: fields.attributes.into(),
            zones: zones.collect(),
            legacy: legacy.map(Box::from),
            annotations: Arc::new(annotations),
            problems: problems.into(),
        }
    }
}

impl Cacheable for TrimmedTopology {
    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}
