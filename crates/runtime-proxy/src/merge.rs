//! Merges a hook server's response into a call: upstream's rules, as pure functions.

use koord_rpc::cri;
use koord_rpc::hooks::LinuxContainerResources as Resources;
use std::collections::BTreeMap;

/// Converts resources from the CRI's type to that of the hooks, which has the same fields.
pub(crate) fn resources(of: &cri::LinuxContainerResources) -> Resources {
    let pages = of.hugepage_limits.iter();
    Resources {
        cpu_period: of.cpu_period,
        cpu_quota: of.cpu_quota,
        cpu_shares: of.cpu_shares,
        memory_limit_in_bytes: of.memory_limit_in_bytes,
        oom_score_adj: of.oom_score_adj,
        cpuset_cpus: of.cpuset_cpus.clone(),
        cpuset_mems: of.cpuset_mems.clone(),
        hugepage_limits: pages
            .map(|page| koord_rpc::hooks::HugepageLimit {
                page_size: page.page_size.clone(),
                limit: page.limit,
            })
            .collect(),
        unified: of
            .unified
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        memory_swap_limit_in_bytes: of.memory_swap_limit_in_bytes,
    }
}

/// Applies an update to a container's resources. Only fields that are set change; the OOM score and huge
/// pages are never updated.
pub(crate) fn update(current: &mut Resources, update: &Resources) {
    positive(current, update);
    for (into, from) in [
        (&mut current.cpuset_cpus, &update.cpuset_cpus),
        (&mut current.cpuset_mems, &update.cpuset_mems),
    ] {
        if !from.is_empty() {
            into.clone_from(from);
        }
    }
    entries(&mut current.unified, &update.unified);
}

/// Applies a hook server's response to the resources of a request. An empty CPU set and an OOM score of 0 are
/// applied, too, since koordlet returns all fields of the request; huge pages never change.
pub(crate) fn apply_answer(target: &mut Resources, answer: &Resources) {
    positive(target, answer);
    if (-1000..=1000).contains(&answer.oom_score_adj) {
        target.oom_score_adj = answer.oom_score_adj;
    }
    target.cpuset_cpus.clone_from(&answer.cpuset_cpus);
    target.cpuset_mems.clone_from(&answer.cpuset_mems);
    entries(&mut target.unified, &answer.unified);
}

/// Applies the fields for which values up to 0 mean "not set"; for the quota only 0 does.
fn positive(into: &mut Resources, from: &Resources) {
    for (into, from) in [
        (&mut into.cpu_period, from.cpu_period),
        (&mut into.cpu_shares, from.cpu_shares),
        (&mut into.memory_limit_in_bytes, from.memory_limit_in_bytes),
        (
            &mut into.memory_swap_limit_in_bytes,
            from.memory_swap_limit_in_bytes,
        ),
    ] {
        if from > 0 {
            *into = from;
        }
    }
    if from.cpu_quota != 0 {
        into.cpu_quota = from.cpu_quota;
    }
}

/// Inserts all entries of `from`, replacing existing ones.
pub(crate) fn entries(into: &mut BTreeMap<String, String>, from: &BTreeMap<String, String>) {
    for (key, value) in from {
        into.insert(key.clone(), value.clone());
    }
}

#[cfg(test)]
mod tests;
