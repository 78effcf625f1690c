//! Cached part of a NodeResourceTopology: the entries of other components.

use koord_api::topology::Zone;
use koord_api::topology::v1alpha2::NodeResourceTopology;
use koord_kube::Cacheable;
use koord_model::export;

/// Entries of a node's NodeResourceTopology that components other than the simulator wrote.
#[derive(Debug)]
pub(crate) struct ForeignZones {
    pub(crate) name: Box<str>,
    uid: Option<Box<str>>,
    version: Option<Box<str>>,
    /// Zones with the entries of other components, see [`export::foreign`].
    pub(crate) foreign: Vec<Zone>,
}

impl ForeignZones {
    pub(crate) fn new(object: NodeResourceTopology) -> Self {
        let meta = object.metadata;
        Self {
            name: meta.name.unwrap_or_default().into(),
            uid: meta.uid.map(Box::from),
            version: meta.resource_version.map(Box::from),
            foreign: export::foreign(&object.spec.zones),
        }
    }
}

impl Cacheable for ForeignZones {
    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }
    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
    fn resource_version(&self) -> Option<&str> {
        self.version.as_deref()
    }
}
