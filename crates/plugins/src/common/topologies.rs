//! A NodeResourceTopology as informers keep it. The annotations in which koordlet lists the CPUs of the
//! machine are most of the object; they are read where it is decoded, and not kept as text.

mod annotations;

pub(crate) use annotations::{Reader, Said, ratios};

use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_api::topology::{AttributeInfo, Zone, v1alpha1};
use koord_scheduler::framework::{ObjectChange, Problem};
use koord_scheduler::{Mirrored, Watch, event_names};
use std::borrow::Cow;
use std::sync::Arc;

/// The kind.
pub(crate) const TOPOLOGIES: &str = "noderesourcetopologies.v1alpha2.topology.node.k8s.io";

/// The annotation in which old exporters leave the fingerprint of the pods that they counted.
const LEGACY: &str = "topology.node.k8s.io/fingerprint";

/// The kind, for all that watch it; also where only its older version is served.
pub(crate) fn watch() -> Watch {
    type Older = v1alpha1::NodeResourceTopology;
    Watch::of_either::<NodeResourceTopology, Older, SeenTopology>(TOPOLOGIES).counted_as(
        event_names!("noderesourcetopologies.v1alpha2.topology.node.k8s.io"),
    )
}

/// See the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenTopology {
    /// The node's.
    pub(crate) name: Box<str>,
    pub(crate) uid: Option<Box<str>>,
    resource_version: Option<Box<str>>,
    pub(crate) policies: Box<[String]>,
    pub(crate) attributes: Box<[AttributeInfo]>,
    /// Without what is said of their capacity, which nobody reads, and without their attributes.
    pub(crate) zones: Box<[Zone]>,
    /// The fingerprint of old exporters.
    pub(crate) legacy: Option<Box<str>>,
    /// What the annotations say.
    pub(crate) said: Arc<Said>,
    /// What of the annotations was ignored.
    pub(crate) problems: Box<[Problem]>,
}

impl SeenTopology {
    /// What `change` is about, if that is one.
    pub(crate) fn of(change: &ObjectChange) -> Option<Cow<'_, Self>> {
        let whole = || change.new_as::<NodeResourceTopology>().cloned();
        let kept = change.new_as::<Self>().map(Cow::Borrowed);
        kept.or_else(|| whole().map(|whole| Cow::Owned(whole.into())))
    }

    /// Something of it that is ignored.
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

impl From<NodeResourceTopology> for SeenTopology {
    fn from(object: NodeResourceTopology) -> Self {
        let (said, problems) = Said::new(&object.metadata);
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
            said: Arc::new(said),
            problems: problems.into(),
        }
    }
}

impl Mirrored for SeenTopology {
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
