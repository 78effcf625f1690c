//! What a hook server's answer does to a call: upstream's rules, as functions of values.

use koord_rpc::cri;
use koord_rpc::hooks::LinuxContainerResources as Resources;
use std::collections::BTreeMap;

/// The hooks' resources of the CRI's: the same fields.
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

/// What a container has after an update asked for `update`: only what it says. The score is never
/// changed by an update, nor are huge pages.
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

/// What a container shall get when it was to get `target` and a hook server answered `answer`. A CPU set
/// counts also when it is empty and a score when it is 0, since koordlet answers with all it was asked;
/// huge pages are never taken.
pub(crate) fn answer(target: &mut Resources, answer: &Resources) {
    positive(target, answer);
    if (-1000..=1000).contains(&answer.oom_score_adj) {
        target.oom_score_adj = answer.oom_score_adj;
    }
    target.cpuset_cpus.clone_from(&answer.cpuset_cpus);
    target.cpuset_mems.clone_from(&answer.cpuset_mems);
    entries(&mut target.unified, &answer.unified);
}

/// The fields of which 0 means "not said", and less than that too, but for the quota.
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

/// Key by key; `from` wins.
pub(crate) fn entries(into: &mut BTreeMap<String, String>, from: &BTreeMap<String, String>) {
    for (key, value) in from {
        into.insert(key.clone(), value.clone());
    }
}

#[cfg(test)]
mod tests;
