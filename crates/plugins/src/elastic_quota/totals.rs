//! What all nodes have together, kept as nodes come, change and go.

use koord_model::resources::{Amounts, ResourceId};
use koord_scheduler::state::NodeIndex;
use std::collections::BTreeMap;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// By node index.
    nodes: Vec<Option<Amounts>>,
    /// The sum, which may be more than an amount can say, and how many nodes list the resource.
    sums: BTreeMap<ResourceId, (i128, usize)>,
}

impl Totals {
    /// Node `node` has `amounts` now; `None`: it is gone. Whether that is new.
    pub(super) fn set(&mut self, node: NodeIndex, amounts: Option<&Amounts>) -> bool {
        if self.nodes.len() <= node.row() {
            self.nodes.resize(node.row() + 1, None);
        }
        let known = &mut self.nodes[node.row()];
        if known.as_ref() == amounts {
            return false;
        }
        let old = std::mem::replace(known, amounts.cloned());
        for (id, amount) in old.iter().flat_map(Amounts::iter) {
            if let Some((sum, nodes)) = self.sums.get_mut(&id) {
                *sum -= i128::from(amount);
                *nodes -= 1;
                if *nodes == 0 {
                    self.sums.remove(&id);
                }
            }
        }
        for (id, amount) in amounts.into_iter().flat_map(Amounts::iter) {
            let (sum, nodes) = self.sums.entry(id).or_default();
            *sum += i128::from(amount);
            *nodes += 1;
        }
        true
    }

    /// The sum: of resources that no node lists, nothing is listed.
    pub(super) fn sum(&self) -> Amounts {
        let most =
            |sum: i128| i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX });
        let sums = self.sums.iter();
        sums.map(|(id, (sum, _))| (*id, most(*sum))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::resources::{CPU, MEMORY, PODS};

    #[test]
    fn the_sum_is_that_of_the_nodes_that_are_there() {
        let amounts = |list: &[(ResourceId, i64)]| -> Amounts { list.iter().copied().collect() };
        let full = amounts(&[(CPU, i64::MAX), (MEMORY, 7)]);
        let small = amounts(&[(CPU, 3), (PODS, 0)]);
        let mut totals = Totals::default();
        let mut known: Vec<Option<Amounts>> = vec![None; 3];
        for (node, now) in [
            (0_u32, Some(&full)),
            (2, Some(&full)),
            (1, Some(&small)),
            (0, Some(&small)),
            (0, Some(&small)),
            (2, None),
            (1, Some(&full)),
            (0, None),
            (1, None),
        ] {
            let row = NodeIndex(node);
            let changed = known[row.row()].as_ref() != now;
            assert_eq!(totals.set(row, now), changed, "{node}");
            known[row.row()] = now.cloned();
            let mut expected = Amounts::new();
            for amounts in known.iter().flatten() {
                expected.add_all(amounts);
            }
            assert_eq!(totals.sum(), expected, "after {node}");
        }
    }
}
