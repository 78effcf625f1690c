//! Samples that strategies need.

/// Expensive samples, which are taken only while a strategy reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Pressure of services: how long they wait for a CPU.
    pub pressure: bool,
    /// Pressure of services at the rate of the fast lane.
    pub fast_pressure: bool,
    /// CPU and memory usage of containers, in addition to pods.
    pub containers: bool,
    /// Throttling of containers with a CPU limit (how often and how long), and their CPU usage.
    pub throttling: bool,
    /// CPU request and limit of the BE class.
    pub batch_limit: bool,
}

impl Needs {
    /// Returns the union of both needs.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            pressure: self.pressure || other.pressure,
            fast_pressure: self.fast_pressure || other.fast_pressure,
            containers: self.containers || other.containers,
            throttling: self.throttling || other.throttling,
            batch_limit: self.batch_limit || other.batch_limit,
        }
    }
}
