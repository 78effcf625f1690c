//! Checks of quotas in files, which may be a part of those of a cluster.

use super::check::{self, QuotaPods, QuotaRules};
use super::fill;
use super::info::QuotaInfo;
use super::topology::QuotaTopology;
use crate::quotacheck::{circular, name, tree_problem};
use koord_api::quota::ROOT_QUOTA;
use koord_api::scheduling::ElasticQuota;
use std::collections::{HashMap, HashSet};

/// The pods of quotas in files: none.
struct NoPods;

impl QuotaPods for NoPods {
    fn pods_of_quota(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn has_pods_in(&self, _: &str) -> bool {
        false
    }
}

/// Returns the problems of quotas against each other, with the index of the quota. A quota whose parent is not among
/// them is not checked against it.
pub(in crate::webhook) fn tree_problems(quotas: &[&ElasticQuota]) -> Vec<(usize, String)> {
    let mut by_name = HashMap::new();
    for quota in quotas {
        by_name.entry(name(quota)).or_insert(*quota);
    }
    let circular = circular(&by_name);
    let mut topology = QuotaTopology::default();
    let mut problems = Vec::new();
    for at in parents_first(quotas, &circular) {
        let mut quota = quotas[at].clone();
        // As the mutating webhook does, if the parent is there.
        if let Ok(defaults) = fill::defaults(&topology, &quota) {
            let labels = quota.metadata.labels.get_or_insert_default();
            let added = defaults.labels.into_iter();
            labels.extend(added.map(|(key, value)| (key.to_owned(), value)));
        }
        let parent = by_name.get(quota.parent());
        let is_misplaced =
            circular.contains(name(&quota)) || parent.is_some_and(|parent| !parent.is_parent());
        let problem = if is_misplaced {
            tree_problem(&quota, &by_name, &circular)
        } else if parent.is_some() || quota.parent() == ROOT_QUOTA {
            let created = check::create(&topology, &quota, QuotaRules::default(), &NoPods);
            // Its values are reported by themselves.
            let is_valid = check::check_values(&quota).is_ok();
            created.err().map(|it| it.0).filter(|_| is_valid)
        } else {
            None
        };
        problems.extend(problem.map(|problem| (at, problem)));
        topology.observe(QuotaInfo::from_quota(&quota));
    }
    problems
}

/// Returns the indices of quotas, those with fewer ancestors first.
fn parents_first(quotas: &[&ElasticQuota], circular: &HashSet<&str>) -> Vec<usize> {
    let mut by_name = HashMap::new();
    for (at, quota) in quotas.iter().enumerate() {
        by_name.entry(name(quota)).or_insert(at);
    }
    let parent = |at: usize| {
        let parent = quotas[at].parent();
        let is_above = !circular.contains(parent);
        by_name.get(parent).copied().filter(|_| is_above)
    };
    let mut depths: Vec<Option<usize>> = vec![None; quotas.len()];
    for start in 0..quotas.len() {
        let mut path = Vec::new();
        let mut next = Some(start);
        while let Some(at) = next.filter(|at| depths[*at].is_none()) {
            path.push(at);
            next = parent(at);
        }
        let above = next.and_then(|at| depths[at]).map_or(0, |depth| depth + 1);
        for (distance, at) in path.into_iter().rev().enumerate() {
            depths[at] = Some(above + distance);
        }
    }
    let mut order: Vec<usize> = (0..quotas.len()).collect();
    order.sort_by_key(|at| depths[*at]);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn quota(name: &str, parent: &str, is_parent: bool, min: u32) -> ElasticQuota {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "n", "labels": {
                "quota.scheduling.koordinator.sh/parent": parent,
                "quota.scheduling.koordinator.sh/is-parent": is_parent.to_string(),
            }},
            "spec": {"min": {"cpu": min}, "max": {"cpu": 100}},
        }))
        .unwrap()
    }

    fn problems(quotas: &[ElasticQuota]) -> Vec<(usize, String)> {
        tree_problems(&quotas.iter().collect::<Vec<_>>())
    }

    #[test]
    fn order_of_files_does_not_matter() {
        let mut quotas = vec![
            quota("c", "b", false, 5),
            quota("b", "a", true, 10),
            quota("a", ROOT_QUOTA, true, 20),
            quota("x", "elsewhere", false, 5),
        ];
        assert_eq!(problems(&quotas), []);
        quotas.push(quota("d", "b", false, 6));
        let found = problems(&quotas);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, 4, "{found:?}");
    }

    #[test]
    fn parent_without_label_and_circles_are_found() {
        let quotas = [
            quota("a", ROOT_QUOTA, false, 20),
            quota("b", "a", false, 5),
            quota("c", "d", true, 5),
            quota("d", "c", true, 5),
            quota("e", "d", true, 0),
            quota("a", ROOT_QUOTA, false, 20),
        ];
        let found: Vec<usize> = problems(&quotas).into_iter().map(|(at, _)| at).collect();
        assert_eq!(found, [2, 3, 5, 1]);
    }
}
