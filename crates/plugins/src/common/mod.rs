//! Code that several plugins share: argument decoding, label and node selectors, signatures, object trimming,
//! pod patches.

pub(crate) mod allocate_policy;
pub(crate) mod args;
pub(crate) mod budgets;
pub(crate) mod hostname_index;
pub(crate) mod node_selector;
pub(crate) mod patches;
pub(crate) mod resources;
pub(crate) mod shape;
pub(crate) mod tolerations;
pub(crate) mod topologies;
pub(crate) mod topology;
pub(crate) mod trim;

/// Error text for a pod whose plugin state was not prepared before its scheduling cycle.
pub(crate) const UNPREPARED: &str = "the books were not prepared for the pod";
