//! Flags of the colocationprofile controller, with upstream's names and defaults.

use clap::{ArgAction, Args};
use koord_app::flags;
use std::time::Duration;

/// The flags of the colocationprofile controller.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct ProfileFlags {
    /// Also apply profiles without the label config.koordinator.sh/controller-managed to pending pods
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set, value_parser = flags::boolean)]
    pub colocation_profile_reconcile_by_default: bool,
    /// Interval between two applications of a profile to pending pods
    #[arg(long, default_value = "30s", value_parser = flags::duration)]
    pub colocation_profile_reconcile_interval: Duration,
    /// Time after an update of a pod during which a profile does not update it again
    #[arg(long, default_value = "5m", value_parser = flags::duration)]
    pub colocation_profile_force_update_pod_duration: Duration,
    /// Accepted for compatibility; a pod's entry expires when the pod may be updated again
    #[arg(long, default_value = "10m", value_parser = flags::duration)]
    pub colocation_profile_expire_pod_cache_duration: Duration,
    /// Maximum pod updates per second
    #[arg(long, default_value_t = 10.0, value_parser = flags::number)]
    pub colocation_profile_update_pod_qps: f64,
    /// Maximum burst of pod updates
    #[arg(long, default_value_t = 100)]
    pub colocation_profile_update_pod_qps_burst: u32,
}

/// The settings of the colocationprofile controller.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileOptions {
    /// True if profiles without the label are applied, too.
    pub by_default: bool,
    /// Interval between two applications of a profile.
    pub interval: Duration,
    /// Time after an update in which a profile does not update the same pod again.
    pub force_update: Duration,
    /// Pod updates per second.
    pub qps: f64,
    /// Burst of pod updates.
    pub burst: u32,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self {
            by_default: false,
            interval: Duration::from_secs(30),
            force_update: Duration::from_secs(300),
            qps: 10.0,
            burst: 100,
        }
    }
}

impl ProfileFlags {
    /// Default of `--colocation-profile-expire-pod-cache-duration`, which has no effect.
    pub(crate) const EXPIRE_POD_CACHE: Duration = Duration::from_secs(600);

    /// Converts the flags to options.
    #[must_use]
    pub fn options(&self) -> ProfileOptions {
        ProfileOptions {
            by_default: self.colocation_profile_reconcile_by_default,
            interval: self.colocation_profile_reconcile_interval,
            force_update: self.colocation_profile_force_update_pod_duration,
            qps: self.colocation_profile_update_pod_qps,
            burst: self.colocation_profile_update_pod_qps_burst,
        }
    }
}
