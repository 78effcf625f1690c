//! The node's NodeResourceTopology: where its CPUs are, which of them pods share, what the kubelet
//! gave away, and what each NUMA node has.
//!
//! | module | does |
//! |---|---|
//! | `facts` | what there is to say, from what is known |
//! | `cpus` | CPUs that are kept back or given away, and the pools that are left |
//! | `zones` | NUMA nodes as zones |
//! | `merge` | what of an object that is there must change |
//! | `report` | says it every few seconds |
//! | `trouble` | why it is not said, and who is told |
//!
//! The scheduler reads the annotations and the zones, the manager adds batch resources to the zones.
//! Names and formats are those of Koordinator's koordlet.

mod cpus;
mod facts;
mod merge;
mod report;
#[cfg(test)]
mod tests;
mod trouble;
mod zones;

pub(crate) use facts::{Inputs, Report};
pub(crate) use report::{ReporterDeps, TopologyReporter};

use std::str::FromStr;
use std::time::Duration;

/// Who writes, as the API server remembers it: with the exporter in the same agent, this one's zones
/// are taken over.
pub(crate) const FIELD_MANAGER: &str = "koordlet";

/// Whether and how the NodeResourceTopology is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reporting {
    /// Between two looks at what has changed; zero never looks.
    pub interval: Duration,
    /// Whose the zones are.
    pub mode: TopologyMode,
}

impl Default for Reporting {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(3),
            mode: TopologyMode::default(),
        }
    }
}

/// Whose the zones of the object are. A list of zones has one owner: whoever writes it writes all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopologyMode {
    /// Ours, unless the object has the fingerprint that an exporter such as nfd-topology-updater
    /// leaves: then they are the exporter's.
    #[default]
    Auto,
    /// Ours.
    Koordinator,
    /// Somebody else's: only annotations and labels are written.
    AnnotationsOnly,
}

/// No mode has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node-topology-mode must be auto, koordinator or annotations-only, got {0:?}")]
pub struct UnknownTopologyMode(String);

impl FromStr for TopologyMode {
    type Err = UnknownTopologyMode;

    fn from_str(name: &str) -> Result<Self, UnknownTopologyMode> {
        match name {
            "auto" => Ok(Self::Auto),
            "koordinator" => Ok(Self::Koordinator),
            "annotations-only" => Ok(Self::AnnotationsOnly),
            other => Err(UnknownTopologyMode(other.to_owned())),
        }
    }
}
