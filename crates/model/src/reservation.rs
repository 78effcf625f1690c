//! Arithmetic of reservations: the remaining amounts, shortages of a pod, and scores.
//!
//! A reservation reserves `allocatable` on its node. Pods that use it (owners) are accounted on the node like
//! all pods, so the reservation itself still takes the amounts that its owners have not allocated:
//! [`remaining`]. A part of it may be permanently withheld from owners (`reserved`).

use crate::resources::{Amounts, PODS, ResourceId};

/// Best score of a reservation.
pub const MAX_SCORE: i64 = 100;

/// Returns the amounts that a reservation of `allocatable` still takes from its node when its owners
/// allocated `taken`, at least zero. The number of pods is left out: the reservation counts as one pod.
#[must_use]
pub fn remaining(allocatable: &Amounts, taken: &Amounts) -> Amounts {
    allocatable
        .iter()
        .filter(|(id, _)| *id != PODS)
        .map(|(id, amount)| (id, amount.saturating_sub(taken.get(id)).max(0)))
        .collect()
}

/// Resource that is insufficient in a restricted reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// The resource.
    pub resource: ResourceId,
    /// Amount that the pod requests.
    pub requested: i64,
    /// Amounts allocated to owners.
    pub used: i64,
    /// Total amount available to owners.
    pub capacity: i64,
}

/// Restricted reservation, as seen by its owners.
#[derive(Debug, Clone, Copy)]
pub struct Restricted<'a> {
    /// Reserved amounts; includes `pods` only if their number is limited.
    pub allocatable: &'a Amounts,
    /// Amounts withheld from owners.
    pub reserved: &'a Amounts,
    /// Amounts allocated to owners.
    pub allocated: &'a Amounts,
    /// Resources that may only come from the reservation.
    pub resources: &'a [ResourceId],
    /// Number of owners.
    pub pods: i64,
}

impl Restricted<'_> {
    /// Returns the shortages of a pod with these requests; the limit of pods comes first.
    #[must_use]
    pub fn shortages(&self, requests: &Amounts) -> Vec<Shortage> {
        let mut out = Vec::new();
        if self.allocatable.contains(PODS) {
            let capacity = self.allocatable.get(PODS);
            let used = self.pods.max(0);
            if used >= capacity {
                out.push(Shortage {
                    resource: PODS,
                    requested: 1,
                    used,
                    capacity,
                });
            }
        }
        for id in self.resources {
            let requested = requests.get(*id);
            if requested == 0 || *id == PODS {
                continue;
            }
            let used = self.allocated.get(*id).max(0);
            let capacity = self
                .allocatable
                .get(*id)
                .saturating_sub(self.reserved.get(*id));
            if requested > capacity.saturating_sub(used) {
                out.push(Shortage {
                    resource: *id,
                    requested,
                    used,
                    capacity,
                });
            }
        }
        out
    }
}

/// Returns the score of the reservation with the pod in it: the mean over its resources of the allocated
/// share in percent. An insufficient resource counts as 0.
#[must_use]
pub fn score(allocatable: &Amounts, allocated: &Amounts, requests: &Amounts) -> i64 {
    let (mut sum, mut count) = (0_i64, 0_i64);
    for (id, capacity) in allocatable.iter().filter(|(_, capacity)| *capacity > 0) {
        count += 1;
        let used = requests.get(id).saturating_add(allocated.get(id));
        if (0..=capacity).contains(&used) {
            let share = i128::from(used) * i128::from(MAX_SCORE) / i128::from(capacity);
            sum += i64::try_from(share).unwrap_or(MAX_SCORE);
        }
    }
    if count == 0 { 0 } else { sum / count }
}

/// Extracts the part about reservations from a pod's scheduling failure: `0/8 reservations are available: 2
/// Reservation(s) Insufficient cpu.` Returns `None` if there is none.
///
/// The failure message lists nodes and reservations together; a part `N Reservation(s) matched owner total`
/// ends the list.
#[must_use]
pub fn failure_of_reservations(failure: &str) -> Option<String> {
    let (count, parts) = failure
        .trim()
        .strip_prefix("0/")?
        .split_once(" nodes are available: ")?;
    count.parse::<u64>().ok()?;
    let parts = parts.replace(". ", ", ");
    let mut total = None;
    let (mut named, mut own, mut of_nodes) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts.split(',') {
        let part = part.trim_matches(['.', ' ']);
        let Some((count, text)) = part.split_once(" Reservation(s) ") else {
            continue;
        };
        let Ok(count) = count.parse::<u64>() else {
            continue;
        };
        match text {
            "matched owner total" => total = Some(count),
            "exactly matches the requested reservation name" => named.push(part),
            text if text.starts_with("for node reason that ") => of_nodes.push(part),
            _ => own.push(part),
        }
    }
    let parts = [named, own, of_nodes].concat().join(", ");
    Some(format!("0/{} reservations are available: {parts}.", total?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{CPU, MEMORY};

    fn amounts(cpu: i64, memory: i64) -> Amounts {
        Amounts::from_iter([(CPU, cpu), (MEMORY, memory)])
    }

    #[test]
    fn remaining_is_never_negative() {
        let mut allocatable = amounts(4000, 10);
        allocatable.set(PODS, 2);
        assert_eq!(
            remaining(&allocatable, &amounts(1000, 30)),
            amounts(3000, 0)
        );
    }

    #[test]
    fn shortages_contain_request_used_and_capacity() {
        // (name, allocatable cpu, max pods, reserved cpu, allocated cpu, pods, request) -> lacking
        let none: &[(ResourceId, i64, i64, i64)] = &[];
        let cases = [
            ("fits exactly", 4000, None, 0, 1000, 1, 3000, none),
            (
                "one milli too much",
                4000,
                None,
                0,
                1000,
                1,
                3001,
                &[(CPU, 3001, 1000, 4000)],
            ),
            (
                "set aside",
                4000,
                None,
                1000,
                1000,
                1,
                3000,
                &[(CPU, 3000, 1000, 3000)],
            ),
            (
                "negative use is none",
                4000,
                None,
                0,
                -500,
                0,
                4001,
                &[(CPU, 4001, 0, 4000)],
            ),
            (
                "pods limited",
                4000,
                Some(1),
                0,
                1000,
                1,
                1000,
                &[(PODS, 1, 1, 1)],
            ),
            ("asks for nothing", 4000, None, 0, 4000, 1, 0, none),
        ];
        for (name, cpu, max_pods, reserved, allocated, pods, request, expected) in cases {
            let mut allocatable = amounts(cpu, 100);
            if let Some(max) = max_pods {
                allocatable.set(PODS, max);
            }
            let restricted = Restricted {
                allocatable: &allocatable,
                reserved: &Amounts::from_iter([(CPU, reserved)]),
                allocated: &Amounts::from_iter([(CPU, allocated)]),
                resources: &[CPU, PODS],
                pods,
            };
            let shortages: Vec<_> = restricted
                .shortages(&amounts(request, 1000))
                .iter()
                .map(|s| (s.resource, s.requested, s.used, s.capacity))
                .collect();
            assert_eq!(shortages, expected, "{name}");
        }
    }

    #[test]
    fn fuller_reservations_score_higher() {
        for (allocated, request, expected) in [
            ((0, 0), (2000, 50), 50),
            ((1000, 50), (1000, 50), 75),
            ((0, 0), (4000, 100), 100),
            ((4000, 0), (1, 100), 50),
            ((0, 0), (0, 0), 0),
        ] {
            let allocated = amounts(allocated.0, allocated.1);
            let actual = score(
                &amounts(4000, 100),
                &allocated,
                &amounts(request.0, request.1),
            );
            assert_eq!(actual, expected);
        }
        let (large, none) = (Amounts::from_iter([(MEMORY, i64::MAX)]), Amounts::new());
        assert_eq!(score(&large, &none, &large), 100);
        assert_eq!(score(&none, &none, &large), 0);
    }

    #[test]
    fn reservation_parts_of_a_failure_are_extracted() {
        let spread = "didn't match pod topology spread constraints";
        for (failure, expected) in [
            (
                "0/3 nodes are available: 1 Reservation(s) Insufficient cpu. 1 Reservation(s) matched owner total.".to_owned(),
                Some("0/1 reservations are available: 1 Reservation(s) Insufficient cpu.".to_owned()),
            ),
            (
                "0/21 nodes are available: 1 Insufficient x.com/gpu by node, 4 Reservation(s) Insufficient x.com/gpu. 1 Reservation(s) is unschedulable, 5 Reservation(s) matched owner total".to_owned(),
                Some("0/5 reservations are available: 4 Reservation(s) Insufficient x.com/gpu, 1 Reservation(s) is unschedulable.".to_owned()),
            ),
            (
                "0/2 nodes are available: 2 Reservation(s) Too many pods. 2 Reservation(s) matched owner total, Gang \"d/g\" gets rejected due to pod is unschedulable.".to_owned(),
                Some("0/2 reservations are available: 2 Reservation(s) Too many pods.".to_owned()),
            ),
            (
                format!("0/5 nodes are available: 3 node(s) {spread},1 Insufficient cpu, 3 Reservation(s) for node reason that {spread},2 Reservation(s) had untolerated taint {{a/pool: test}}. 8 Reservation(s) matched owner total."),
                Some(format!("0/8 reservations are available: 2 Reservation(s) had untolerated taint {{a/pool: test}}, 3 Reservation(s) for node reason that {spread}.")),
            ),
            (
                "0/10 nodes are available: 1 Reservation(s) Insufficient cpu, requested: 4000, used: 30000, capacity: 32000, 4 Insufficient cpu, 1 Reservation(s) exactly matches the requested reservation name, 3 Reservation(s) didn't match the requested reservation name, 4 Reservation(s) matched owner total.".to_owned(),
                Some("0/4 reservations are available: 1 Reservation(s) exactly matches the requested reservation name, 1 Reservation(s) Insufficient cpu, 3 Reservation(s) didn't match the requested reservation name.".to_owned()),
            ),
            ("0/5 nodes are available: 3 Insufficient cpu, 2 Insufficient memory.".to_owned(), None),
            ("Gang \"d/g\" gets rejected: \"0/3 nodes are available: 3 Insufficient cpu.\"".to_owned(), None),
        ] {
            assert_eq!(failure_of_reservations(&failure), expected, "{failure}");
        }
    }
}
