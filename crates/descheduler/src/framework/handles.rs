//! What a plugin is to a profile that it is built for.

use super::{Evictor, Filter, Strategy};

/// What a plugin does at each extension point; nothing where it does not belong.
#[derive(Debug, Default)]
pub struct PluginHandles {
    /// Runs first.
    pub deschedule: Option<Box<dyn Strategy>>,
    /// Runs then.
    pub balance: Option<Box<dyn Strategy>>,
    /// Carries out.
    pub evict: Option<Box<dyn Evictor>>,
    /// Has to agree.
    pub filter: Option<Box<dyn Filter>>,
}

impl PluginHandles {
    /// Only at `deschedule`.
    #[must_use]
    pub fn descheduling(strategy: impl Strategy + 'static) -> Self {
        Self {
            deschedule: Some(Box::new(strategy)),
            ..Self::default()
        }
    }

    /// Only at `balance`.
    #[must_use]
    pub fn balancing(strategy: impl Strategy + 'static) -> Self {
        Self {
            balance: Some(Box::new(strategy)),
            ..Self::default()
        }
    }
}
