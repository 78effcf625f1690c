//! What strategies need to be measured.

/// Samples that cost something and are taken only while somebody reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// How long services wait for a CPU.
    pub pressure: bool,
    /// The same at the rate of the fast lane.
    pub fast_pressure: bool,
    /// What containers use of CPU and memory, beside their pods.
    pub containers: bool,
    /// How often and how long containers with a CPU limit were throttled, and what they use of CPU.
    pub throttling: bool,
    /// What the BE class requests and can get.
    pub batch_limit: bool,
}

impl Needs {
    /// What either needs.
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
