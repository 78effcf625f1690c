//! Memory QoS: protection, throttling and reclaim of containers, pods and QoS class cgroups.
//!
//! Amounts are in bytes. For batch pods batch memory counts, for all others native memory. Source of the
//! formulas: Koordinator `pkg/koordlet/qosmanager/plugins/cgreconcile`.

use crate::field::FieldError;
use koord_api::extension::PodMemoryQOSConfig;
use koord_api::qos::{KubeQos, QosClass};
use koord_api::slo::{MemoryQOSCfg, defaults};

/// Value of `memory.high` for no limit; the kernel shows it as `max`.
pub const UNLIMITED: i64 = i64::MAX;

/// Values of one cgroup; unset files are not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Values {
    /// `memory.min`.
    pub min: Option<i64>,
    /// `memory.low`.
    pub low: Option<i64>,
    /// `memory.high`, [`UNLIMITED`] without a limit.
    pub high: Option<i64>,
    /// `memory.wmark_ratio`, percent.
    pub wmark_ratio: Option<i64>,
    /// `memory.wmark_scale_factor`, per mill.
    pub wmark_scale_factor: Option<i64>,
    /// `memory.wmark_min_adj`, percent.
    pub wmark_min_adj: Option<i64>,
    /// `memory.use_priority_oom`, 0 or 1.
    pub use_priority_oom: Option<i64>,
    /// `memory.priority`, 0–12.
    pub priority: Option<i64>,
    /// `memory.oom.group`, 0 or 1.
    pub oom_group: Option<i64>,
    /// `memory.pagecache_limit.enable`, 0 or 1.
    pub page_cache_enable: Option<i64>,
    /// `memory.pagecache_limit.size`.
    pub page_cache_size: Option<i64>,
    /// `memory.pagecache_limit.sync`, 0 or 1.
    pub page_cache_sync: Option<i64>,
}

/// Memory request and limit of a container or pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryAmounts {
    /// Request; a missing one counts as 0.
    pub request: i64,
    /// Limit; `None` means unlimited.
    pub limit: Option<i64>,
}

/// Returns the settings of a pod: those of its class, overridden by its annotation
/// `koordinator.sh/memoryQOS`.
///
/// Policy `none` turns everything off, `auto` starts from the defaults of `class` (with default), and no
/// policy or `default` from `node`; fields of the annotation then override single values. An unknown policy
/// counts as `default`, and an out-of-range value is ignored; both are reported.
#[must_use]
pub fn settings(
    node: Option<&MemoryQOSCfg>,
    class: QosClass,
    pod: Option<&PodMemoryQOSConfig>,
) -> (MemoryQOSCfg, Vec<FieldError>) {
    let mut errors = Vec::new();
    let mut settings = node.cloned().unwrap_or_default();
    check(&mut settings, &mut errors);
    let Some(pod) = pod else {
        return (settings, errors);
    };
    let enable = settings.enable;
    match pod.policy.as_str() {
        "none" => {
            let mut none = defaults::memory_qos(QosClass::None);
            none.enable = Some(false);
            return (none, errors);
        }
        "auto" => {
            settings = defaults::memory_qos(class);
            settings.enable = enable;
        }
        "" | "default" => {}
        other => errors.push(FieldError::new("policy", "none, auto or default", &other)),
    }
    let mut own = pod.values.clone();
    check(&mut own, &mut errors);
    (merge(settings, own), errors)
}

/// Removes values that are out of range and reports them.
fn check(settings: &mut MemoryQOSCfg, errors: &mut Vec<FieldError>) {
    const PERCENT: (i64, i64, &str) = (0, 100, "in 0..=100");
    const SWITCH: (i64, i64, &str) = (0, 1, "0 or 1");
    const AMOUNT: (i64, i64, &str) = (0, i64::MAX, "at least 0");
    let MemoryQOSCfg {
        enable: _,
        min_limit_percent,
        low_limit_percent,
        throttling_percent,
        wmark_ratio,
        wmark_scale_permill,
        wmark_min_adj,
        page_cache_enable: _,
        page_cache_limit_size,
        page_cache_limit_percent,
        page_cache_reclaim_sync: _,
        priority_enable,
        priority,
        oom_kill_group,
    } = settings;
    for (field, value, (low, high, want)) in [
        ("minLimitPercent", min_limit_percent, AMOUNT),
        ("lowLimitPercent", low_limit_percent, AMOUNT),
        ("throttlingPercent", throttling_percent, AMOUNT),
        ("wmarkRatio", wmark_ratio, PERCENT),
        (
            "wmarkScalePermill",
            wmark_scale_permill,
            (1, 1000, "in 1..=1000"),
        ),
        ("wmarkMinAdj", wmark_min_adj, (-25, 50, "in -25..=50")),
        ("priorityEnable", priority_enable, SWITCH),
        ("priority", priority, (0, 12, "in 0..=12")),
        ("oomKillGroup", oom_kill_group, SWITCH),
        ("pageCacheLimitPercent", page_cache_limit_percent, PERCENT),
        ("pageCacheLimitSize", page_cache_limit_size, AMOUNT),
    ] {
        if let Some(value) = value.take_if(|value| !(low..=high).contains(value)) {
            errors.push(FieldError::new(field, want, &value));
        }
    }
}

/// Returns `over` where its fields are set, otherwise `under`.
fn merge(under: MemoryQOSCfg, over: MemoryQOSCfg) -> MemoryQOSCfg {
    MemoryQOSCfg {
        enable: over.enable.or(under.enable),
        min_limit_percent: over.min_limit_percent.or(under.min_limit_percent),
        low_limit_percent: over.low_limit_percent.or(under.low_limit_percent),
        throttling_percent: over.throttling_percent.or(under.throttling_percent),
        wmark_ratio: over.wmark_ratio.or(under.wmark_ratio),
        wmark_scale_permill: over.wmark_scale_permill.or(under.wmark_scale_permill),
        wmark_min_adj: over.wmark_min_adj.or(under.wmark_min_adj),
        page_cache_enable: over.page_cache_enable.or(under.page_cache_enable),
        page_cache_limit_size: over.page_cache_limit_size.or(under.page_cache_limit_size),
        page_cache_limit_percent: over
            .page_cache_limit_percent
            .or(under.page_cache_limit_percent),
        page_cache_reclaim_sync: over
            .page_cache_reclaim_sync
            .or(under.page_cache_reclaim_sync),
        priority_enable: over.priority_enable.or(under.priority_enable),
        priority: over.priority.or(under.priority),
        oom_kill_group: over.oom_kill_group.or(under.oom_kill_group),
    }
}

fn share(amount: i64, percent: i64) -> i64 {
    let share = i128::from(amount.max(0)) * i128::from(percent) / 100;
    i64::try_from(share).unwrap_or(i64::MAX)
}

/// Returns the values shared by containers and pods: the plain values and the protection of the request.
fn common(settings: &MemoryQOSCfg, request: i64) -> Values {
    let min = settings
        .min_limit_percent
        .map(|percent| share(request, percent));
    let low = settings
        .low_limit_percent
        .map(|percent| share(request, percent));
    Values {
        min,
        // `memory.low` below `memory.min` would have no effect.
        low: low.map(|low| {
            if low > 0 {
                low.max(min.unwrap_or(0))
            } else {
                low
            }
        }),
        wmark_ratio: settings.wmark_ratio,
        wmark_scale_factor: settings.wmark_scale_permill,
        wmark_min_adj: settings.wmark_min_adj,
        use_priority_oom: settings.priority_enable,
        priority: settings.priority,
        oom_group: settings.oom_kill_group,
        ..Values::default()
    }
}

/// Returns the values of a container. `node_allocatable` replaces a missing limit; `memory.high` is rounded
/// down to `page_size`.
///
/// `memory.high` is `request + (limit − request) · throttling %`, at least `memory.min`; a throttling of 0
/// removes the limit.
#[must_use]
pub fn container(
    settings: &MemoryQOSCfg,
    ask: MemoryAmounts,
    node_allocatable: Option<i64>,
    page_size: i64,
) -> Values {
    let mut values = common(settings, ask.request);
    let limit = ask.limit.filter(|limit| *limit > 0).or(node_allocatable);
    values.high = match (settings.throttling_percent, limit) {
        (Some(percent), _) if percent <= 0 => Some(UNLIMITED),
        (Some(percent), Some(limit)) => {
            let request = ask.request.max(0);
            let high = request.saturating_add(share(limit.saturating_sub(request), percent));
            let page = page_size.max(1);
            Some((high / page * page).max(values.min.unwrap_or(0)))
        }
        (Some(_), None) | (None, _) => None,
    };
    values
}

/// Returns the memory cgroup values of a pod. Its page cache limit is set as a size in bytes or in percent of
/// the memory limit, and is at most the memory limit.
#[must_use]
pub fn pod(settings: &MemoryQOSCfg, ask: MemoryAmounts) -> Values {
    let mut values = common(settings, ask.request);
    let limit = ask.limit.filter(|limit| *limit > 0);
    let size = match (
        settings.page_cache_limit_size,
        settings.page_cache_limit_percent,
    ) {
        (Some(size), _) => Some(limit.map_or(size, |limit| size.min(limit))),
        (None, Some(percent)) => limit.map(|limit| share(limit, percent)),
        (None, None) => None,
    };
    if let Some(size) = size {
        values.page_cache_size = Some(size.max(0));
        values.page_cache_enable = Some(i64::from(size > 0));
        if size > 0 {
            let sync = settings.page_cache_reclaim_sync.unwrap_or(false);
            values.page_cache_sync = Some(i64::from(sync));
        }
    }
    if let Some(enable) = settings.page_cache_enable {
        values.page_cache_enable = Some(i64::from(enable));
    }
    values
}

/// Values of the three QoS class cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Directories {
    /// Parent cgroup of the other two and of the Guaranteed pods.
    pub kubepods: Values,
    /// Parent cgroup of Burstable pods.
    pub burstable: Values,
    /// Parent cgroup of BestEffort pods.
    pub besteffort: Values,
}

/// Settings of the classes that determine the QoS class cgroups.
#[derive(Debug, Clone, Copy, Default)]
pub struct Classes<'a> {
    /// Settings for kubepods.
    pub lsr: Option<&'a MemoryQOSCfg>,
    /// Settings for burstable.
    pub ls: Option<&'a MemoryQOSCfg>,
    /// Settings for besteffort.
    pub be: Option<&'a MemoryQOSCfg>,
}

/// Computes the QoS class cgroups: each protects the sum of its pods' protections, and kubepods that of all
/// pods. `pods` are the active ones with their settings and requests; a file that no pod's settings mention
/// is not written.
pub fn directories<'a>(
    classes: Classes<'_>,
    pods: impl IntoIterator<Item = (KubeQos, &'a MemoryQOSCfg, i64)>,
) -> Directories {
    let mut directories = Directories {
        kubepods: priorities(classes.lsr),
        burstable: priorities(classes.ls),
        besteffort: priorities(classes.be),
    };
    for (qos, settings, request) in pods {
        let protect = |values: &mut Values| {
            add(&mut values.min, settings.min_limit_percent, request);
            add(&mut values.low, settings.low_limit_percent, request);
        };
        protect(&mut directories.kubepods);
        match qos {
            KubeQos::Guaranteed => {}
            KubeQos::Burstable => protect(&mut directories.burstable),
            KubeQos::BestEffort => protect(&mut directories.besteffort),
        }
    }
    directories
}

fn priorities(class: Option<&MemoryQOSCfg>) -> Values {
    class.map_or_else(Values::default, |class| Values {
        use_priority_oom: class.priority_enable,
        priority: class.priority,
        oom_group: class.oom_kill_group,
        ..Values::default()
    })
}

fn add(sum: &mut Option<i64>, percent: Option<i64>, request: i64) {
    if let Some(percent) = percent {
        *sum = Some(sum.unwrap_or(0).saturating_add(share(request, percent)));
    }
}

#[cfg(test)]
mod tests;
