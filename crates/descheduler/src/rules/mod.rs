//! Rules that several plugins share: which pods may be moved, where a pod fits, eviction order, disruption
//! budgets, and pod selection by arguments.

mod budget;
mod evictable;
mod fit;
mod order;
mod reason;
mod select;

pub use budget::Budgets;
pub use evictable::{EVICT, Evictable, SYSTEM_CRITICAL, overrides};
pub use fit::{Fit, FitError, allows, same_requirements};
pub use order::{DELETION_COST, Urgency, sort, sort_by};
pub use reason::SkipReason;
pub use select::{Namespaces, PodSelection, PodSelector};

#[cfg(test)]
mod tests;
