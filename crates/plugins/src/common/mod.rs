//! What several plugins read, sign or write alike.

pub(crate) mod node_selector;
pub(crate) mod patches;
pub(crate) mod resources;
pub(crate) mod tolerations;
