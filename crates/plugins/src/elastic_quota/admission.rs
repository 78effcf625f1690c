//! Quota check of a pod, and the messages for rejections.

use super::ledger::Ledger;
use crate::common::UNPREPARED;
use koord_api::quantity::Quantity;
use koord_api::quota::ROOT_QUOTA;
use koord_model::quota::{QuotaForest, exceeded, masked};
use koord_model::resources::{Amounts, CPU, ResourceId, ResourceTable};
use koord_scheduler::framework::{Rejection, Verdict};
use koord_scheduler::state::PodInfo;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Limits that quotas enforce.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// True if a quota is limited by its runtime rather than by its max.
    pub runtime: bool,
    /// True if all ancestors must have enough free, too.
    pub ancestors: bool,
}

/// Request of a pod to its quota.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub quota: &'a str,
    pub amounts: &'a Amounts,
    pub non_preemptible: bool,
}

/// Hypothetical change of a quota's use.
#[derive(Debug, Default)]
pub(super) struct QuotaDelta {
    used: Amounts,
    non_preemptible: Amounts,
    /// Change of each ancestor quota by pods of other quotas, by quota name.
    above: BTreeMap<String, Amounts>,
}

impl QuotaDelta {
    /// Computes the change of `quota` when `removed` pods are removed and `added` pods are placed. Pods of
    /// other quotas are ignored.
    pub(super) fn for_pods(
        quota: &str,
        removed: &[Arc<PodInfo>],
        added: &[Arc<PodInfo>],
        ledger: &Ledger,
    ) -> Self {
        let mut delta = Self::default();
        for (pods, placed) in [(removed, true), (added, false)] {
            for pod in pods {
                let charge = ledger
                    .get(&pod.uid)
                    .filter(|charge| charge.placed == placed);
                let Some(charge) = charge.filter(|charge| charge.quota.as_deref() == Some(quota))
                else {
                    continue;
                };
                delta.add(&charge.amounts, charge.non_preemptible, placed);
            }
        }
        delta
    }

    /// Adds a pod to the change, or subtracts it if `removed`.
    pub(super) fn add(&mut self, amounts: &Amounts, non_preemptible: bool, removed: bool) {
        let change = |sum: &mut Amounts| {
            if removed {
                sum.sub_all(amounts);
            } else {
                sum.add_all(amounts);
            }
        };
        change(&mut self.used);
        if non_preemptible {
            change(&mut self.non_preemptible);
        }
    }
}

impl QuotaDelta {
    /// Adds a change in another quota, which also changes the ancestors it has in common with this quota.
    pub(super) fn add_other(
        &mut self,
        quota: &str,
        amounts: &Amounts,
        removed: bool,
        trees: &QuotaForest,
    ) {
        let Some(own) = trees.quota(quota) else {
            return;
        };
        let amounts = masked(amounts, &own.spec.max);
        let mut below = quota.to_owned();
        while trees.parent(&below).is_some()
            && let Some(parent) = parent_name(&below, trees)
        {
            let sum = self.above.entry(parent.clone()).or_default();
            if removed {
                sum.sub_all(&amounts);
            } else {
                sum.add_all(&amounts);
            }
            below = parent;
        }
    }
}

/// Returns the name of `name`'s parent, whether or not that exists; `None` if it is the root.
fn parent_name(name: &str, trees: &QuotaForest) -> Option<String> {
    let parent = &trees.quota(name)?.spec.parent;
    let top = parent.is_empty() || parent == ROOT_QUOTA || name == ROOT_QUOTA;
    (!top).then(|| parent.clone())
}

/// Returns `sum` changed by `delta`, without entries that are not positive.
fn with_delta(sum: &Amounts, delta: &Amounts, keys: &Amounts) -> Amounts {
    let mut out = sum.clone();
    out.add_all(&masked(delta, keys));
    out.iter().filter(|(_, amount)| *amount > 0).collect()
}

/// Builds a rejection. Formatting costs more than the check, so without `table` the message is generic.
fn reject(
    table: Option<&ResourceTable>,
    message: impl FnOnce(&ResourceTable) -> String,
) -> Verdict {
    Err(match table {
        Some(table) => Rejection::unschedulable(message(table)),
        None => Rejection::unschedulable("Insufficient quotas"),
    })
}

impl Rules {
    /// Divides the quotas that [`Self::admit`] reads for pods of `quota`.
    pub(super) fn refresh(self, quota: &str, trees: &mut QuotaForest) {
        if self.runtime {
            trees.refresh(quota);
        } else {
            trees.rebuild();
        }
    }

    /// Checks whether `request` fits; a detailed message needs `table`.
    pub(super) fn admit(
        self,
        request: &Request<'_>,
        delta: &QuotaDelta,
        trees: &QuotaForest,
        table: Option<&ResourceTable>,
    ) -> Verdict {
        let name = request.quota;
        if self.runtime && !trees.is_fresh(name) {
            return Err(Rejection::error(UNPREPARED));
        }
        let Some(quota) = trees.quota(name) else {
            return Err(Rejection::error(
                "Could not find the specified ElasticQuota",
            ));
        };
        let keys = &quota.spec.max;
        let requested = masked(request.amounts, keys);
        let used = with_delta(&quota.sums.used, &delta.used, keys);
        let limit = if self.runtime { &quota.runtime } else { keys };
        let over = exceeded(&sum(&used, &requested), limit);
        if !over.is_empty() {
            return reject(table, |table| {
                format!(
                    "Insufficient quotas, quotaName: {name}, runtime: {}, used: {}, pod's request: {}, exceedDimensions: {}",
                    text(limit, table),
                    text(&used, table),
                    text(&requested, table),
                    dimensions(&over, table)
                )
            });
        }
        if request.non_preemptible {
            let used = &quota.sums.non_preemptible_used;
            let used = with_delta(used, &delta.non_preemptible, keys);
            let over = exceeded(&sum(&used, &requested), &quota.spec.min);
            if !over.is_empty() {
                return reject(table, |table| {
                    format!(
                        "Insufficient non-preemptible quotas, quotaName: {name}, min: {}, nonPreemptibleUsed: {}, pod's request: {}, exceedDimensions: {}",
                        text(&quota.spec.min, table),
                        text(&used, table),
                        text(&requested, table),
                        dimensions(&over, table)
                    )
                });
            }
        }
        if self.ancestors {
            return self.admit_above(name, &requested, delta, trees, table);
        }
        Ok(())
    }

    /// Checks that every ancestor of `name` has enough free.
    fn admit_above(
        self,
        name: &str,
        requested: &Amounts,
        delta: &QuotaDelta,
        trees: &QuotaForest,
        table: Option<&ResourceTable>,
    ) -> Verdict {
        let mut path = vec![name.to_owned()];
        loop {
            let below = path[0].clone();
            let Some(ancestor) = parent_name(&below, trees) else {
                return Ok(());
            };
            // The runtime is up to date: it was divided along this path for the pod's own quota.
            let Some(parent) = trees.parent(&below) else {
                path.insert(0, ancestor.clone());
                return Err(Rejection::error(format!(
                    "Could not find the elasticQuota {ancestor}, quotaNameTopo: [{}]",
                    path.join(" ")
                )));
            };
            let mut change = delta.used.clone();
            if let Some(others) = delta.above.get(&ancestor) {
                change.add_all(others);
            }
            path.insert(0, ancestor);
            let limit = if self.runtime {
                &parent.runtime
            } else {
                &parent.spec.max
            };
            let used = with_delta(&parent.sums.used, &change, &parent.spec.max);
            let total = masked(&sum(&used, requested), requested);
            let over = exceeded(&total, limit);
            if !over.is_empty() {
                return reject(table, |table| {
                    format!(
                        "Insufficient quotas, quotaNameTopo: [{}], runtime: {}, used: {}, pod's request: {}, exceedDimensions: {}",
                        path.join(" "),
                        text(limit, table),
                        text(&used, table),
                        text(requested, table),
                        dimensions(&over, table)
                    )
                });
            }
        }
    }
}

fn sum(a: &Amounts, b: &Amounts) -> Amounts {
    let mut out = a.clone();
    out.add_all(b);
    out
}

/// Returns `amount` of a resource in its usual unit.
pub(super) fn quantity(id: ResourceId, name: &str, amount: i64) -> Quantity {
    if id == CPU {
        Quantity::from_milli(amount)
    } else if name.ends_with("memory")
        || name.ends_with("storage")
        || name.starts_with("hugepages-")
    {
        Quantity::from_bytes(amount)
    } else {
        Quantity::from_value(amount)
    }
}

/// Returns resource names and amounts as text.
pub(super) fn quantities(amounts: &Amounts, table: &ResourceTable) -> BTreeMap<String, String> {
    amounts
        .iter()
        .map(|(id, amount)| {
            let name = table.name(id);
            let text = quantity(id, &name, amount).to_string();
            (name.to_string(), text)
        })
        .collect()
}

/// Formats amounts as `name:amount`, separated by commas.
pub(super) fn text(amounts: &Amounts, table: &ResourceTable) -> String {
    if amounts.is_empty() {
        return "<empty>".to_owned();
    }
    let parts: Vec<String> = quantities(amounts, table)
        .into_iter()
        .map(|(name, amount)| format!("{name}:{amount}"))
        .collect();
    parts.join(",")
}

/// Formats resource names as a sorted list in brackets.
fn dimensions(ids: &[ResourceId], table: &ResourceTable) -> String {
    let mut names: Vec<Arc<str>> = ids.iter().map(|id| table.name(*id)).collect();
    names.sort_unstable();
    format!("[{}]", names.join(" "))
}
