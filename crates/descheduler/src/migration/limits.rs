//! Limits of the number and rate of evictions per workload.

use super::args::{LimitedObject, MigrationControllerArgs};
use super::{CONTROLLER, annotation};
use crate::rules::SkipReason;
use crate::state::{PodInfo, Workload};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use koord_api::scheduling::PodMigrationJob;
use koord_app::TokenBucket;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// Returns `share` of `replicas`, rounded down; `None` if it is neither a number nor a percentage.
#[must_use]
pub fn scaled(share: &IntOrString, replicas: i64) -> Option<i64> {
    match share {
        IntOrString::Int(number) => Some(i64::from(*number)),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            Some(percent.saturating_mul(replicas).div_euclid(100))
        }
    }
}

/// Returns how many of `replicas` pods may be unavailable, or may migrate, at a time: `share` of them, at least
/// one. Without a share: 10 % of more than ten, two of four to ten, one of fewer. Never more than `replicas`.
///
/// # Errors
/// Returns an error if `share` is neither a number nor a percentage.
pub fn max_affected_pods(replicas: i64, share: Option<&IntOrString>) -> Result<i64, SkipReason> {
    let limit = match share {
        None if replicas > 10 => replicas / 10,
        None if replicas >= 4 => 2,
        None => 1,
        Some(share) => match scaled(share, replicas) {
            Some(0) => 1,
            Some(number) => number,
            None => {
                let detail = format!("{share:?} is neither a number nor a percentage");
                return Err(SkipReason::new("MalformedLimit", detail));
            }
        },
    };
    Ok(limit.min(replicas))
}

/// Eviction rate limits: a token bucket for each workload and namespace with recent evictions.
#[derive(Debug, Clone, Default)]
pub struct ObjectLimits {
    limits: FxHashMap<(LimitedObject, Arc<str>), ObjectLimit>,
}

/// The token bucket of a workload or a namespace.
#[derive(Debug, Clone)]
struct ObjectLimit {
    bucket: TokenBucket,
    /// Latest time passed to the bucket. Evictions of another leader are counted late, and their earlier time
    /// must not be taken for a clock that was set back.
    latest: Duration,
    expires: Timestamp,
}

/// Converts `now` to the time of token buckets.
pub(super) fn bucket_time(now: Timestamp) -> Duration {
    now.as_duration().try_into().unwrap_or_default()
}

/// Workload and namespace that an eviction counts against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// UID of the pod's controller.
    pub controller: Option<Arc<str>>,
}

impl Group {
    /// Returns the group of `pod`.
    #[must_use]
    pub fn from_pod(pod: &PodInfo) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            controller: pod.controller().map(|owner| owner.uid.clone()),
        }
    }

    /// Returns the group of the pod of `job`, which may no longer exist.
    #[must_use]
    pub fn from_job(job: &PodMigrationJob) -> Self {
        Self {
            namespace: job
                .spec
                .pod_ref
                .namespace
                .as_deref()
                .unwrap_or_default()
                .into(),
            controller: annotation(job, CONTROLLER).map(Arc::from),
        }
    }

    fn key(&self, kind: LimitedObject) -> Option<Arc<str>> {
        match kind {
            LimitedObject::Workload => self.controller.clone(),
            LimitedObject::Namespace => Some(self.namespace.clone()),
        }
    }
}

/// Returns the longest time for which an eviction can affect a limit.
#[must_use]
pub fn max_limiter_duration(args: &MigrationControllerArgs) -> Duration {
    let all = args.object_limiters.values();
    let all = all.filter_map(|limiter| limiter.duration.to_std());
    all.max().unwrap_or_default()
}

impl ObjectLimits {
    /// Checks whether `pod` may be evicted at `now`.
    ///
    /// # Errors
    /// Returns an error if another pod of its workload or namespace was evicted too recently.
    pub fn allows(
        &self,
        args: &MigrationControllerArgs,
        pod: &PodInfo,
        now: Timestamp,
    ) -> Result<(), SkipReason> {
        let group = Group::from_pod(pod);
        let on = args.object_limiters.iter();
        for (kind, limiter) in on.filter(|(_, limiter)| limiter.duration.as_nanos() > 0) {
            let limit = group
                .key(*kind)
                .and_then(|key| self.limits.get(&(*kind, key)));
            if limit.is_some_and(|limit| !limit.bucket.wait(bucket_time(now)).is_zero()) {
                let (rule, whose) = match kind {
                    LimitedObject::Workload => ("WorkloadLimiter", "its workload"),
                    LimitedObject::Namespace => ("NamespaceLimiter", "its namespace"),
                };
                let detail = format!("pods of {whose} went within {} already", limiter.duration);
                return Err(SkipReason::new(rule, detail));
            }
        }
        Ok(())
    }

    /// Counts an eviction of a pod of `group` at `now`; `workload` is its controller.
    pub fn count(
        &mut self,
        args: &MigrationControllerArgs,
        group: &Group,
        workload: Option<&Workload>,
        now: Timestamp,
    ) {
        for (kind, limiter) in &args.object_limiters {
            let (Some(key), Some(duration)) = (group.key(*kind), limiter.duration.to_std()) else {
                continue;
            };
            if duration.is_zero() {
                continue;
            }
            let max = match (kind, &limiter.max_migrating) {
                // A percentage is undefined for a namespace: upstream reads it as 0, which disables the
                // limit.
                (LimitedObject::Namespace, Some(IntOrString::Int(max))) => i64::from(*max),
                (LimitedObject::Namespace, _) => 0,
                (LimitedObject::Workload, share) => {
                    let replicas = match workload {
                        Some(Workload::Known {
                            replicas,
                            deleting: false,
                            ..
                        }) => *replicas,
                        _ => 0,
                    };
                    let by_default = args.max_migrating_per_workload.as_ref();
                    max_affected_pods(replicas, share.as_ref().or(by_default)).unwrap_or(0)
                }
            };
            // A disabled limit does not disable the others.
            if max <= 0 {
                continue;
            }
            let interval = duration / u32::try_from(max).unwrap_or(u32::MAX);
            let burst = u32::try_from(limiter.burst.max(1)).unwrap_or(u32::MAX);
            let idle = SignedDuration::try_from(duration.mul_f64(1.5)).unwrap_or_default();
            let full = || ObjectLimit {
                bucket: TokenBucket::new(interval, burst),
                latest: Duration::ZERO,
                expires: now,
            };
            let limit = self.limits.entry((*kind, key)).or_insert_with(full);
            limit.latest = limit.latest.max(bucket_time(now));
            limit.expires = now.saturating_add(idle).unwrap_or(Timestamp::MAX);
            limit.bucket.set_interval(interval, limit.latest);
            limit.bucket.take(limit.latest);
        }
    }

    /// Returns the token of a counted eviction that did not happen.
    pub fn return_tokens(&mut self, args: &MigrationControllerArgs, group: &Group) {
        for kind in args.object_limiters.keys() {
            let key = group.key(*kind);
            if let Some(limit) = key.and_then(|key| self.limits.get_mut(&(*kind, key))) {
                limit.bucket.give_back();
            }
        }
    }

    /// Removes the buckets without evictions for one and a half periods.
    pub fn tidy(&mut self, now: Timestamp) {
        self.limits.retain(|_, limit| limit.expires > now);
    }

    /// Returns the number of workloads and namespaces with a token bucket.
    #[must_use]
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Returns true if there is no bucket.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }
}
