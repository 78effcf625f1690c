//! State shared by a profile's plugin and its migration jobs.

use super::args::MigrationControllerArgs;
use super::limits::{Group, ObjectLimits, bucket_time};
use crate::rules::SkipReason;
use crate::state::{PodInfo, Workload};
use jiff::Timestamp;
use koord_app::TokenBucket;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// State shared by a profile's plugin and the controller of its jobs.
#[derive(Debug)]
pub struct Migrations {
    /// Name of the profile.
    pub profile: String,
    /// Id of this process, which its jobs record.
    pub process: String,
    /// Arguments of the plugin.
    pub args: Arc<MigrationControllerArgs>,
    limits: Mutex<ObjectLimits>,
    evictions: Mutex<TokenBucket>,
}

impl Migrations {
    /// Creates the state without evictions.
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

    /// Checks whether the rate limits of its workload and namespace allow to evict `pod`.
    ///
    /// # Errors
    /// Returns the limit that is reached.
    pub fn allows(&self, pod: &PodInfo, now: Timestamp) -> Result<(), SkipReason> {
        self.limits.lock().allows(&self.args, pod, now)
    }

    /// Counts `pod`, which is about to be evicted, if the limits allow it or if it is `free` of them. Check
    /// and count are one step, so that concurrent callers cannot exceed a limit.
    ///
    /// # Errors
    /// Returns the limit that is reached.
    pub fn claim(
        &self,
        workload: Option<&Workload>,
        pod: &PodInfo,
        free: bool,
        now: Timestamp,
    ) -> Result<(), SkipReason> {
        let mut limits = self.limits.lock();
        if !free {
            limits.allows(&self.args, pod, now)?;
        }
        limits.count(&self.args, &Group::from_pod(pod), workload, now);
        limits.tidy(now);
        Ok(())
    }

    /// Puts the rate-limit tokens that were taken for `pod` back, because it was not evicted.
    pub fn return_tokens(&self, pod: &PodInfo) {
        let mut limits = self.limits.lock();
        limits.return_tokens(&self.args, &Group::from_pod(pod));
    }

    /// Counts the eviction of a pod of `group` by an earlier leader at `then`.
    pub fn record_eviction(&self, group: &Group, workload: Option<&Workload>, then: Timestamp) {
        let mut limits = self.limits.lock();
        limits.count(&self.args, group, workload, then);
    }

    /// Takes one token of `evictQPS`. Returns false if there is none.
    pub fn take(&self, now: Timestamp) -> bool {
        self.evictions.lock().take(bucket_time(now))
    }
}
