//! What a profile's plugin and its migration jobs have in common.

use super::args::MigrationControllerArgs;
use super::limits::{Group, ObjectLimits, bucket_time};
use crate::rules::Why;
use crate::state::{PodInfo, Workload};
use jiff::Timestamp;
use koord_app::TokenBucket;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// What a profile's plugin and whoever works on its jobs share.
#[derive(Debug)]
pub struct Migrations {
    /// The profile's name.
    pub profile: String,
    /// This process, as jobs name it.
    pub process: String,
    /// How jobs are worked on.
    pub args: Arc<MigrationControllerArgs>,
    limits: Mutex<ObjectLimits>,
    evictions: Mutex<TokenBucket>,
}

impl Migrations {
    /// Nothing has moved yet.
    #[must_use]
    pub fn new(profile: &str, process: &str, args: MigrationControllerArgs) -> Self {
        let interval = Duration::try_from_secs_f64(1.0 / args.evict_qps.value());
        let burst = u32::try_from(args.evict_burst).unwrap_or_default();
        let evictions = TokenBucket::new(interval.unwrap_or(Duration::MAX), burst);
        Self {
            profile: profile.to_owned(),
            process: process.to_owned(),
            args: Arc::new(args),
            limits: Mutex::default(),
            evictions: Mutex::new(evictions),
        }
    }

    /// Whether the evictions of its workload and namespace leave room for that of `pod`.
    ///
    /// # Errors
    /// They do not.
    pub fn allows(&self, pod: &PodInfo, now: Timestamp) -> Result<(), Why> {
        self.limits.lock().allows(&self.args, pod, now)
    }

    /// `pod` is about to be evicted: it counts, if the limits allow it, or if it is `free` of them. Of two that ask at a
    /// time, and of which one may go, one does.
    ///
    /// # Errors
    /// They do not.
    pub fn claim(
        &self,
        workload: Option<&Workload>,
        pod: &PodInfo,
        free: bool,
        now: Timestamp,
    ) -> Result<(), Why> {
        let mut limits = self.limits.lock();
        if !free {
            limits.allows(&self.args, pod, now)?;
        }
        limits.count(&self.args, &Group::from_pod(pod), workload, now);
        limits.tidy(now);
        Ok(())
    }

    /// `pod`, which was claimed, has not been evicted.
    pub fn give_back(&self, pod: &PodInfo) {
        let mut limits = self.limits.lock();
        limits.give_back(&self.args, &Group::from_pod(pod));
    }

    /// An earlier leader has evicted a pod of `group` at `then`.
    pub fn record_eviction(&self, group: &Group, workload: Option<&Workload>, then: Timestamp) {
        let mut limits = self.limits.lock();
        limits.count(&self.args, group, workload, then);
    }

    /// Takes one of `evictQPS`.
    pub fn take(&self, now: Timestamp) -> bool {
        self.evictions.lock().take(bucket_time(now))
    }
}
