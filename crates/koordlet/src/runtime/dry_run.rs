//! What a dry run would have set through the container runtime, in the audit log.

use super::request::PodRequest;
use crate::audit;
use crate::hooks::{Adjustment, HookValue};
use koord_app::Clock;
use std::fmt::{Display, Write as _};

/// Records adjustments that are not made.
#[derive(Debug, Clone)]
pub(crate) struct AdjustmentAudit {
    pub(crate) log: audit::Log,
    pub(crate) clock: Clock,
}

impl AdjustmentAudit {
    /// Records what would have been set for a container at `event`; nothing if no hook sets a value.
    pub(super) fn record(
        &self,
        event: &'static str,
        pod: &PodRequest,
        container: &str,
        adjustment: &Adjustment,
    ) {
        let values = describe(adjustment);
        if values.is_empty() {
            return;
        }
        let message = format!("adjust the container: {values}");
        let mut entry = audit::Entry::new(audit::Subject::Pod, 1, event, message);
        entry.namespace.clone_from(&pod.namespace);
        entry.name.clone_from(&pod.name);
        container.clone_into(&mut entry.container);
        self.log.record(self.clock.now(), entry);
    }
}

/// Returns the values that an adjustment sets, with the hooks that set them, as one line.
fn describe(adjustment: &Adjustment) -> String {
    fn push<T>(text: &mut String, name: &str, value: Option<&HookValue<T>>, shown: impl Display) {
        if let Some(HookValue { by, .. }) = value {
            let separator = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{separator}{name}={shown} ({by})");
        }
    }
    fn push_value<T: Display>(text: &mut String, name: &str, value: Option<&HookValue<T>>) {
        if let Some(HookValue { value: shown, .. }) = value {
            push(text, name, value, shown);
        }
    }
    let mut text = String::new();
    push_value(&mut text, "cpu.shares", adjustment.cpu_shares.as_ref());
    push_value(&mut text, "cpu.cfs_quota_us", adjustment.cfs_quota.as_ref());
    push_value(&mut text, "cpuset.cpus", adjustment.cpus.as_ref());
    let memory = adjustment.memory_limit.as_ref();
    push_value(&mut text, "memory.limit_in_bytes", memory);
    push_value(&mut text, "cpu.bvt_warp_ns", adjustment.bvt.as_ref());
    push_value(&mut text, "cpu.idle", adjustment.cpu_idle.as_ref());
    let score = adjustment.oom_score_adj.as_ref();
    push_value(&mut text, "oom_score_adj", score);
    if let Some(resctrl) = &adjustment.resctrl {
        push(&mut text, "resctrl", Some(resctrl), &resctrl.value.group);
    }
    for env in &adjustment.env {
        // A value may be a secret of the pod.
        push(&mut text, "env", Some(env), &env.value.0);
    }
    if let Some(mount) = adjustment.mounts.first() {
        push(&mut text, "mounts", Some(mount), adjustment.mounts.len());
    }
    if let Some(device) = adjustment.devices.first() {
        let count = adjustment.devices.len();
        push(&mut text, "device files", Some(device), count);
    }
    text
}
