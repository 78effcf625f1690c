//! `CoschedulingArgs`.

use super::NAME;
use crate::common::args::invalid;
use koord_api::duration::GoDuration;
use koord_api::extension::GangMatchPolicy;
use koord_model::gang::Defaults;
use koord_scheduler::framework::{BuildContext, BuildError};
use serde::Deserialize;

/// CoschedulingArgs, with upstream's names and defaults.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct Args {
    default_timeout: GoDuration,
    controller_workers: i64,
    /// Accepted and ignored; upstream no longer reads it either.
    #[serde(rename = "skipCheckScheduleCycle")]
    _skip_check_schedule_cycle: bool,
    enable_preemption: bool,
    aware_network_topology: bool,
    default_match_policy: String,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            default_timeout: GoDuration::from_secs(600),
            controller_workers: 1,
            _skip_check_schedule_cycle: false,
            enable_preemption: false,
            aware_network_topology: false,
            default_match_policy: GangMatchPolicy::OnceSatisfied.as_str().to_owned(),
        }
    }
}

/// Settings of one profile.
#[derive(Debug, Clone)]
pub(super) struct GangSettings {
    /// Values for gangs that do not set them.
    pub(super) defaults: Defaults,
    /// True if gangs that request a network topology are placed by it.
    pub(super) aware: bool,
    /// True if gangs that do not fit may preempt pods of lower priority.
    pub(super) preempts: bool,
}

impl Args {
    /// Validates the arguments and returns the settings.
    pub(super) fn settings(&self) -> Result<GangSettings, BuildError> {
        let wait = self.default_timeout.to_std().ok_or_else(|| {
            let value = self.default_timeout;
            invalid(NAME, format!("args.defaultTimeout: {value} is negative"))
        })?;
        if self.controller_workers < 1 {
            let value = self.controller_workers;
            let message = format!("args.controllerWorkers: {value} is less than 1");
            return Err(invalid(NAME, message));
        }
        let policy = GangMatchPolicy::from(self.default_match_policy.as_str());
        if !policy.is_known() {
            let message = format!(
                "args.defaultMatchPolicy: {policy:?} is none of only-waiting, \
                 waiting-and-running, once-satisfied",
                policy = policy.as_str(),
            );
            return Err(invalid(NAME, message));
        }
        Ok(GangSettings {
            defaults: Defaults { wait, policy },
            aware: self.aware_network_topology,
            preempts: self.enable_preemption,
        })
    }

    /// Logs a setting that has no effect.
    pub(super) fn warn(&self, context: &BuildContext) {
        if self.aware_network_topology && !context.network_topology {
            tracing::warn!(
                plugin = NAME,
                setting = "awareNetworkTopology",
                "setting has no effect without --enable-network-topology-manager, gangs that request \
                 a network topology stay pending"
            );
        }
    }
}
