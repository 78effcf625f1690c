//! A plugin's implementations for the extension points of a profile.

use super::{Evictor, Filter, Strategy};

/// A plugin's implementation at each extension point; `None` where it has none.
#[derive(Debug, Default)]
pub struct PluginHandles {
    /// Strategy that runs first.
    pub deschedule: Option<Box<dyn Strategy>>,
    /// Strategy that runs after all `deschedule` strategies.
    pub balance: Option<Box<dyn Strategy>>,
    /// Carries out evictions.
    pub evict: Option<Box<dyn Evictor>>,
    /// Filter that must agree to each eviction.
    pub filter: Option<Box<dyn Filter>>,
}

impl PluginHandles {
    /// Returns the handles of a plugin that only runs at `deschedule`.
    #[must_use]
    pub fn descheduling(strategy: impl Strategy + 'static) -> Self {
        Self {
            deschedule: Some(Box::new(strategy)),
            ..Self::default()
        }
    }

    /// Returns the handles of a plugin that only runs at `balance`.
    #[must_use]
    pub fn balancing(strategy: impl Strategy + 'static) -> Self {
        Self {
            balance: Some(Box::new(strategy)),
            ..Self::default()
        }
    }
}
