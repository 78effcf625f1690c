//! Conflicts of exclusive CPUs between pods.
//!
//! The CPUs of a pod come from an annotation, which may name any CPU. So a pod gets the
//! named CPUs only if no exclusive (LSE or LSR) pod has them.

use super::PodInfo;
use koord_api::qos::QosClass;
use koord_host::CpuSet;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Returns true if no other pod may run on the CPUs of `pod`.
fn is_exclusive(pod: &PodInfo) -> bool {
    matches!(pod.qos, QosClass::Lse | QosClass::Lsr)
}

/// Removes CPUs that another pod has exclusively from `pods`, and restores those that are free again. Returns
/// the pods that lost some, by namespace and name, with the reason.
///
/// A pod keeps the CPUs that it has in `old`. Otherwise pods that name no more CPUs than they request come
/// first, then exclusive pods, then older ones.
pub(crate) fn resolve_cpu_conflicts(
    pods: &mut [PodInfo],
    old: &[PodInfo],
) -> BTreeMap<String, String> {
    let before: BTreeMap<&str, &CpuSet> = old
        .iter()
        .filter_map(|pod| Some((pod.uid.as_str(), pod.cpus.as_ref()?)))
        .collect();
    let mut claims: Vec<&mut PodInfo> = pods.iter_mut().filter(|pod| has_claim(pod)).collect();
    for pod in &mut claims {
        if let Some(refused) = pod.refused_cpus.take() {
            pod.cpus = Some(*refused);
        }
    }
    claims.sort_by_cached_key(|pod| {
        let unchanged = pod.cpus.as_ref() == before.get(pod.uid.as_str()).copied();
        (
            Reverse((unchanged, pod.is_bound_by_its_cpus(), is_exclusive(pod))),
            pod.created,
            pod.uid.clone(),
        )
    });
    let mut conflicts = BTreeMap::new();
    // For each CPU, the first exclusive pod and the first pod of any class.
    let (mut exclusive, mut held) = (CpuHolders::default(), CpuHolders::default());
    for pod in claims {
        let Some(cpus) = pod.cpus.clone() else {
            continue;
        };
        let holders = if is_exclusive(pod) { &held } else { &exclusive };
        let name = format!("{}/{}", pod.namespace, pod.name);
        if let Some((shared, holder)) = holders.overlap(&cpus) {
            let message = format!("CPUs {shared} of {cpus} are held by pod {holder}: not used");
            conflicts.insert(name, message);
            // Batch work runs on the remaining CPUs.
            let remaining = cpus.difference(&shared);
            pod.cpus = Some(remaining)
                .filter(|remaining| pod.qos == QosClass::Be && !remaining.is_empty());
            pod.refused_cpus = Some(Box::new(cpus));
            continue;
        }
        if is_exclusive(pod) {
            exclusive.add(&cpus, &name);
        }
        held.add(&cpus, &name);
    }
    conflicts
}

/// Removes the CPUs of `pod`, which is not listed yet, if one of `listed` has them exclusively, or if `pod`
/// is exclusive and one has them at all. Returns the reason.
pub(crate) fn check_new_pod(pod: &mut PodInfo, listed: &[PodInfo]) -> Option<String> {
    let cpus = pod.cpus.clone()?;
    let alone = is_exclusive(pod);
    let mut holders = CpuHolders::default();
    let other_pods = listed
        .iter()
        .filter(|it| it.uid != pod.uid && it.is_active());
    for other in other_pods.filter(|other| alone || is_exclusive(other)) {
        if let Some(cpus) = &other.cpus {
            holders.add(cpus, &format!("{}/{}", other.namespace, other.name));
        }
    }
    let (shared, holder) = holders.overlap(&cpus)?;
    pod.cpus = None;
    Some(format!(
        "CPUs {shared} of {cpus} are held by pod {holder}: not used"
    ))
}

/// Returns true if the pod is active and names CPUs, whether it gets them or not.
fn has_claim(pod: &PodInfo) -> bool {
    pod.is_active() && (pod.cpus.is_some() || pod.refused_cpus.is_some())
}

/// Pods by the CPUs that they hold.
#[derive(Debug, Default)]
struct CpuHolders(BTreeMap<u32, String>);

impl CpuHolders {
    fn add(&mut self, cpus: &CpuSet, pod: &str) {
        for cpu in cpus.iter() {
            self.0.entry(cpu).or_insert_with(|| pod.to_owned());
        }
    }

    /// Returns those of `cpus` that are held, and the holder of the first of them.
    fn overlap(&self, cpus: &CpuSet) -> Option<(CpuSet, &str)> {
        let shared: CpuSet = cpus.iter().filter(|cpu| self.0.contains_key(cpu)).collect();
        let first = shared.iter().next()?;
        Some((shared, self.0.get(&first)?.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::Phase;

    fn pod(name: &str, qos: QosClass, cpus: &str, request: i64) -> PodInfo {
        PodInfo {
            uid: name.to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            qos,
            phase: Phase::Running,
            cpu_request: request,
            cpus: Some(cpus.parse().unwrap()),
            ..PodInfo::default()
        }
    }

    fn held_cpus(pods: &[PodInfo]) -> Vec<String> {
        let cpus = |pod: &PodInfo| pod.cpus.as_ref().map(ToString::to_string);
        pods.iter()
            .map(|pod| cpus(pod).unwrap_or_default())
            .collect()
    }

    #[test]
    fn cpus_of_an_exclusive_pod_are_refused_to_others() {
        use QosClass::{Ls, Lse, Lsr, None};
        for holder in [Lse, Lsr] {
            for thief in [Lse, Lsr, Ls, None] {
                let existing = [pod("b", holder, "2-3", 2000)];
                // The name comes first, and so much is requested.
                let both_pods = || [pod("a", thief, "3-4", 2000), existing[0].clone()];
                let mut pods = both_pods();
                let conflicts = resolve_cpu_conflicts(&mut pods, &existing);
                assert_eq!(held_cpus(&pods), ["", "2-3"], "{holder:?} {thief:?}");
                let expected = "CPUs 3 of 3-4 are held by pod default/b: not used";
                assert_eq!(conflicts["default/a"], expected);
                // The next list has the same result.
                let last = pods.clone();
                resolve_cpu_conflicts(&mut pods, &last);
                assert_eq!(held_cpus(&pods), ["", "2-3"], "{holder:?} {thief:?}");
                // Its CPUs come back when the other one has ended.
                pods[1].phase = Phase::Succeeded;
                let last = pods.clone();
                assert!(resolve_cpu_conflicts(&mut pods, &last).is_empty());
                assert_eq!(held_cpus(&pods), ["3-4", "2-3"], "{holder:?} {thief:?}");
            }
        }
    }

    #[test]
    fn pod_that_names_more_than_it_requests_comes_last() {
        // After a start of the agent, when nothing is held yet.
        let mut pods = [
            pod("a", QosClass::Lse, "0-3", 100),
            pod("b", QosClass::Lsr, "2-3", 2000),
        ];
        let conflicts = resolve_cpu_conflicts(&mut pods, &[]);
        assert_eq!(held_cpus(&pods), ["", "2-3"]);
        assert_eq!(conflicts.len(), 1);
        // Pods without a claim to be alone share.
        let mut pods = ["a", "b"].map(|name| pod(name, QosClass::Ls, "0-1", 2000));
        assert!(resolve_cpu_conflicts(&mut pods, &[]).is_empty());
        assert_eq!(held_cpus(&pods), ["0-1", "0-1"]);
    }

    #[test]
    fn batch_pod_keeps_cpus_that_are_not_exclusive() {
        let mut pods = [
            pod("a", QosClass::Be, "3,7", 0),
            pod("b", QosClass::Lse, "7", 1000),
        ];
        for _ in 0..2 {
            let last = pods.clone();
            assert_eq!(resolve_cpu_conflicts(&mut pods, &last).len(), 1);
            assert_eq!(held_cpus(&pods), ["3", "7"]);
        }
    }

    #[test]
    fn new_pod_is_refused_cpus_that_are_held() {
        let listed = [
            pod("a", QosClass::Lsr, "0-1", 2000),
            pod("b", QosClass::Ls, "2-3", 2000),
        ];
        for (qos, cpus, expected) in [
            (QosClass::Ls, "1-2", ""),
            (QosClass::Ls, "2-3", "2-3"),
            (QosClass::Lsr, "2-3", ""),
            (QosClass::Lsr, "4-5", "4-5"),
        ] {
            let mut new = pod("n", qos, cpus, 2000);
            let refused = check_new_pod(&mut new, &listed);
            assert_eq!(held_cpus(&[new]), [expected], "{qos:?} {cpus}");
            assert_eq!(refused.is_some(), expected.is_empty());
        }
    }
}
