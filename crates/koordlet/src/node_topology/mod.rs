//! Report of this node's NodeResourceTopology: the CPU topology, the CPUs shared by pods, the CPUs that the
//! kubelet has assigned, and the resources of each NUMA node.
//!
//! | module | does |
//! |---|---|
//! | `facts` | content of the report |
//! | `cpus` | exclusive and reserved CPUs, and the shared pools |
//! | `zones` | NUMA nodes as zones |
//! | `merge` | patch of an existing object |
//! | `report` | periodic update of the object |
//! | `errors` | errors, and their logs and events |
//!
//! The scheduler reads the annotations and the zones, the manager adds batch resources to the zones. Names
//! and formats are those of Koordinator's koordlet.

mod cpus;
mod errors;
mod facts;
mod merge;
mod report;
#[cfg(test)]
mod tests;
mod zones;

pub(crate) use facts::{Inputs, Report};
pub(crate) use report::{ReporterDeps, TopologyReporter};

use std::str::FromStr;
use std::time::Duration;

/// Field manager of koordlet at the API server. An exporter in the same agent takes over zones written by it.
pub(crate) const FIELD_MANAGER: &str = "koordlet";

/// Settings of the NodeResourceTopology report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reporting {
    /// Time between two checks for changes; zero disables the report.
    pub interval: Duration,
    /// Owner of the zones.
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

/// Owner of the object's zones. The list of zones is written as a whole, so it has a single owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopologyMode {
    /// koordlet, unless the object has the fingerprint of an exporter such as nfd-topology-updater: then the
    /// exporter.
    #[default]
    Auto,
    /// koordlet.
    Koordinator,
    /// Another writer: koordlet writes only annotations and labels.
    AnnotationsOnly,
}

/// Error for an unknown mode name.
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
