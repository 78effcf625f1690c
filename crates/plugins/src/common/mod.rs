//! What several plugins read, sign or write alike.

pub(crate) mod args;
pub(crate) mod budgets;
pub(crate) mod hosts;
pub(crate) mod node_selector;
pub(crate) mod patches;
pub(crate) mod resources;
pub(crate) mod restricted;
pub(crate) mod shape;
pub(crate) mod slim;
pub(crate) mod tolerations;
pub(crate) mod topologies;
pub(crate) mod topology;

/// Why a rule refuses a pod for which its books were not prepared.
pub(crate) const UNPREPARED: &str = "the books were not prepared for the pod";
