//! `ElasticQuotaArgs`.

use super::NAME;
use crate::common::args::invalid;
use koord_api::duration::GoDuration;
use koord_api::quantity::{Quantity, ResourceList};
use koord_scheduler::framework::{BuildContext, BuildError};
use serde::Deserialize;
use std::time::Duration;

/// ElasticQuotaArgs, with upstream's defaults.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Args {
    pub delay_evict_time: GoDuration,
    pub revoke_pod_interval: GoDuration,
    pub default_quota_group_max: ResourceList,
    pub system_quota_group_max: ResourceList,
    pub quota_group_namespace: String,
    pub monitor_all_quotas: bool,
    pub enable_check_parent_quota: bool,
    pub enable_runtime_quota: bool,
    pub enable_min_quota_scale: bool,
    pub disable_default_quota_preemption: bool,
    /// Accepted and ignored: rejected pods are always retried only when their quota has enough free.
    #[allow(dead_code, reason = "accepted for compatibility")]
    pub enable_queue_hint: bool,
    /// Accepted and ignored: there are no snapshots.
    #[allow(dead_code, reason = "accepted for compatibility")]
    pub quota_snapshot_update_interval: GoDuration,
    pub hook_plugins: Vec<HookPlugin>,
}

/// Hook plugin that upstream would load.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct HookPlugin {
    pub key: String,
    #[allow(dead_code, reason = "accepted for compatibility")]
    pub factory_key: String,
    #[allow(dead_code, reason = "accepted for compatibility")]
    pub factory_args: String,
}

fn seconds(seconds: u64) -> GoDuration {
    GoDuration::from(Duration::from_secs(seconds))
}

impl Default for Args {
    fn default() -> Self {
        Self {
            delay_evict_time: seconds(120),
            revoke_pod_interval: seconds(1),
            default_quota_group_max: ResourceList::new(),
            system_quota_group_max: ResourceList::new(),
            quota_group_namespace: String::new(),
            monitor_all_quotas: false,
            enable_check_parent_quota: false,
            enable_runtime_quota: true,
            enable_min_quota_scale: true,
            disable_default_quota_preemption: true,
            enable_queue_hint: false,
            quota_snapshot_update_interval: seconds(120),
            hook_plugins: Vec::new(),
        }
    }
}

impl Args {
    /// Decodes, completes and validates the arguments, and logs those without effect.
    pub(super) fn read(value: Option<&serde_json::Value>) -> Result<Self, BuildError> {
        let args: Self = crate::common::args::decode(NAME, value)?;
        let args = args.complete();
        args.validate()?;
        args.warn();
        Ok(args)
    }

    /// Logs the arguments of a further profile that differ from those of the first: there is one quota tree
    /// for all pods, so the first profile's arguments apply.
    pub(super) fn warn_differences(&self, first: &Self, profile: &str) {
        let tree = [
            (
                self.default_quota_group_max != first.default_quota_group_max,
                "defaultQuotaGroupMax",
            ),
            (
                self.system_quota_group_max != first.system_quota_group_max,
                "systemQuotaGroupMax",
            ),
            (
                self.quota_group_namespace != first.quota_group_namespace,
                "quotaGroupNamespace",
            ),
            (
                self.enable_min_quota_scale != first.enable_min_quota_scale,
                "enableMinQuotaScale",
            ),
            (
                self.monitor_all_quotas != first.monitor_all_quotas,
                "monitorAllQuotas",
            ),
            (
                self.delay_evict_time != first.delay_evict_time,
                "delayEvictTime",
            ),
            (
                self.revoke_pod_interval != first.revoke_pod_interval,
                "revokePodInterval",
            ),
        ];
        for (_, setting) in tree.into_iter().filter(|(differs, _)| *differs) {
            crate::common::args::warn_set_by_first_profile(NAME, profile, setting);
        }
    }

    /// Fills in missing values.
    pub(super) fn complete(mut self) -> Self {
        let unlimited = Quantity::from_value(i64::MAX / 5);
        for max in [
            &mut self.default_quota_group_max,
            &mut self.system_quota_group_max,
        ] {
            if max.is_empty() {
                *max = ["cpu", "memory"]
                    .map(|name| (name.to_owned(), unlimited))
                    .into();
            }
        }
        if self.quota_group_namespace.is_empty() {
            "koordinator-system".clone_into(&mut self.quota_group_namespace);
        }
        self
    }

    /// Validates completed arguments.
    pub(super) fn validate(&self) -> Result<(), BuildError> {
        for (field, max) in [
            ("defaultQuotaGroupMax", &self.default_quota_group_max),
            ("systemQuotaGroupMax", &self.system_quota_group_max),
        ] {
            for (name, amount) in max {
                if amount.signum() < 0 {
                    let message = format!("args.{field}[{name}]: {amount} must not be negative");
                    return Err(invalid(NAME, message));
                }
            }
        }
        for (field, duration) in [
            ("delayEvictTime", self.delay_evict_time),
            ("revokePodInterval", self.revoke_pod_interval),
        ] {
            if duration.to_std().is_none() {
                let message = format!("args.{field}: {duration} must not be negative");
                return Err(invalid(NAME, message));
            }
        }
        Ok(())
    }

    /// Logs arguments that have no effect.
    pub(super) fn warn(&self) {
        if self.monitor_all_quotas && !self.enable_runtime_quota {
            tracing::warn!(
                plugin = NAME,
                setting = "monitorAllQuotas",
                "setting has no effect while enableRuntimeQuota is off: there is no runtime to exceed"
            );
        }
        for hook in &self.hook_plugins {
            let key = &hook.key;
            tracing::warn!(plugin = NAME, hook = %key, "ignoring unknown hook in hookPlugins");
        }
    }
}

/// Feature gates of elastic quotas.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct Gates {
    pub no_default_quota: bool,
    pub guarantee_used: bool,
    pub ignore_overhead: bool,
    /// Pods whose termination grace period is over do not count.
    pub ignore_terminating: bool,
    /// Terminating pods do not count.
    pub ignore_deleted: bool,
    pub multi_tree: bool,
}

impl Gates {
    /// Reads the feature gates.
    pub(super) fn from_context(context: &BuildContext) -> Self {
        let on = |name: &str| context.gates.get(name) == Some(&true);
        Self {
            no_default_quota: on("DisableDefaultQuota"),
            guarantee_used: on("ElasticQuotaGuaranteeUsage"),
            ignore_overhead: on("ElasticQuotaIgnorePodOverhead"),
            ignore_terminating: on("ElasticQuotaIgnoreTerminatingPod"),
            ignore_deleted: on("ElasticQuotaImmediateIgnoreTerminatingPod"),
            multi_tree: on("MultiQuotaTree"),
        }
    }
}
