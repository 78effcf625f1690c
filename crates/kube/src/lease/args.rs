//! The flags of leader election.

use crate::component_config::LeaderElection;
use clap::ArgAction;
use koord_api::GoDuration;
use koord_app::flags;

/// The flags for leader election in Kubernetes' component-base. They override a configuration file if they
/// are given.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ElectionArgs {
    /// Elect a leader among the replicas; only the leader works. Overrides the file if set.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = ArgAction::Set, value_parser = flags::boolean)]
    pub leader_elect: Option<bool>,
    /// Time for which a lease is valid without renewal. Overrides the file if set.
    #[arg(long)]
    pub leader_elect_lease_duration: Option<GoDuration>,
    /// Time for which the leader retries a renewal before it steps down. Overrides the file if set.
    #[arg(long)]
    pub leader_elect_renew_deadline: Option<GoDuration>,
    /// Interval of attempts to acquire or renew the lease. Overrides the file if set.
    #[arg(long)]
    pub leader_elect_retry_period: Option<GoDuration>,
    /// Type of the lock; only leases are supported. Overrides the file if set.
    #[arg(long)]
    pub leader_elect_resource_lock: Option<String>,
    /// Name of the lease. Overrides the file if set.
    #[arg(long)]
    pub leader_elect_resource_name: Option<String>,
    /// Namespace of the lease. Overrides the file if set.
    #[arg(long)]
    pub leader_elect_resource_namespace: Option<String>,
}

impl ElectionArgs {
    /// Replaces the values in `section` for which flags are given.
    pub fn apply<C>(&self, section: &mut LeaderElection<C>) {
        fn set<T: Clone>(field: &mut T, flag: Option<&T>) {
            if let Some(value) = flag {
                field.clone_from(value);
            }
        }
        let Self {
            leader_elect,
            leader_elect_lease_duration: lease_duration,
            leader_elect_renew_deadline: renew_deadline,
            leader_elect_retry_period: retry_period,
            leader_elect_resource_lock: lock,
            leader_elect_resource_name: name,
            leader_elect_resource_namespace: namespace,
        } = self;
        set(&mut section.leader_elect, leader_elect.as_ref());
        set(&mut section.lease_duration, lease_duration.as_ref());
        set(&mut section.renew_deadline, renew_deadline.as_ref());
        set(&mut section.retry_period, retry_period.as_ref());
        set(&mut section.resource_lock, lock.as_ref());
        set(&mut section.resource_name, name.as_ref());
        set(&mut section.resource_namespace, namespace.as_ref());
    }
}
