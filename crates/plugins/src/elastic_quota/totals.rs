//! Total resources of quota trees: the sum over all nodes, updated as nodes change, and the totals that root
//! quotas set for their trees.

use koord_model::resources::{Amounts, ResourceId};
use koord_scheduler::state::NodeIndex;
use std::collections::BTreeMap;

/// Sum of amounts in 128 bits, with the number of addends per resource.
#[derive(Debug, Default)]
struct ResourceSum(BTreeMap<ResourceId, (i128, usize)>);

impl ResourceSum {
    fn add(&mut self, amounts: &Amounts) {
        for (id, amount) in amounts.iter() {
            let (sum, count) = self.0.entry(id).or_default();
            *sum += i128::from(amount);
            *count += 1;
        }
    }

    fn sub(&mut self, amounts: &Amounts) {
        for (id, amount) in amounts.iter() {
            if let Some((sum, count)) = self.0.get_mut(&id) {
                *sum -= i128::from(amount);
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&id);
                }
            }
        }
    }

    fn get(&self, id: ResourceId) -> i128 {
        self.0.get(&id).map_or(0, |(sum, _)| *sum)
    }

    fn iter(&self) -> impl Iterator<Item = (ResourceId, i128)> + '_ {
        self.0.iter().map(|(id, (sum, _))| (*id, *sum))
    }
}

/// Converts a sum to an amount, saturating.
fn amount(sum: i128) -> i64 {
    i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX })
}

/// Settings of a root quota for its tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TreeRoot {
    /// Id of the tree, not empty.
    pub tree: String,
    /// Total resources of the tree.
    pub total: Amounts,
    /// True if the total is not subtracted from the tree without an id.
    pub independent: bool,
}

/// Totals of nodes and of trees.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Allocatable of each node, by row.
    nodes: Vec<Option<Amounts>>,
    /// Sum over `nodes`.
    sum: ResourceSum,
    /// Root settings by quota name.
    roots: BTreeMap<String, TreeRoot>,
    /// Total by tree; several roots of one tree add up.
    trees: BTreeMap<String, ResourceSum>,
    /// Part of the nodes' sum that belongs to trees with an id.
    assigned: ResourceSum,
}

impl Totals {
    /// Sets the amounts of a node; `None` removes it. Returns true if they changed.
    pub(super) fn set_node(&mut self, node: NodeIndex, amounts: Option<&Amounts>) -> bool {
        if self.nodes.len() <= node.row() {
            self.nodes.resize(node.row() + 1, None);
        }
        let current = &mut self.nodes[node.row()];
        if current.as_ref() == amounts {
            return false;
        }
        if let Some(old) = std::mem::replace(current, amounts.cloned()) {
            self.sum.sub(&old);
        }
        if let Some(new) = amounts {
            self.sum.add(new);
        }
        true
    }

    /// Sets the tree settings of quota `name`; `None` if it is no root. Returns true if they changed.
    pub(super) fn set_root(&mut self, name: &str, root: Option<TreeRoot>) -> bool {
        if self.roots.get(name) == root.as_ref() {
            return false;
        }
        if let Some(old) = self.roots.remove(name) {
            if let Some(sum) = self.trees.get_mut(&old.tree) {
                sum.sub(&old.total);
                if sum.0.is_empty() {
                    self.trees.remove(&old.tree);
                }
            }
            if !old.independent {
                self.assigned.sub(&old.total);
            }
        }
        if let Some(new) = root {
            let sum = self.trees.entry(new.tree.clone()).or_default();
            sum.add(&new.total);
            if !new.independent {
                self.assigned.add(&new.total);
            }
            self.roots.insert(name.to_owned(), new);
        }
        true
    }

    /// Returns the total of the tree `id`. The tree without an id has what the nodes have minus what belongs
    /// to other trees. Resources that no node lists are missing.
    pub(super) fn tree_total(&self, id: &str) -> Amounts {
        if !id.is_empty() {
            let sum = self.trees.get(id);
            let sum = sum.into_iter().flat_map(ResourceSum::iter);
            return sum.map(|(id, sum)| (id, amount(sum))).collect();
        }
        let nodes = self.sum.iter();
        let nodes = nodes.map(|(id, sum)| (id, amount(sum - self.assigned.get(id))));
        let missing = self.assigned.iter();
        let missing = missing.filter(|(id, sum)| *sum != 0 && !self.sum.0.contains_key(id));
        let missing = missing.map(|(id, sum)| (id, amount(-sum)));
        nodes.chain(missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::resources::{CPU, MEMORY, PODS};

    fn amounts(list: &[(ResourceId, i64)]) -> Amounts {
        list.iter().copied().collect()
    }

    #[test]
    fn total_is_the_sum_of_existing_nodes() {
        let full = amounts(&[(CPU, i64::MAX), (MEMORY, 7)]);
        let small = amounts(&[(CPU, 3), (PODS, 0)]);
        let mut totals = Totals::default();
        let mut nodes: Vec<Option<Amounts>> = vec![None; 3];
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
            let changed = nodes[row.row()].as_ref() != now;
            assert_eq!(totals.set_node(row, now), changed, "{node}");
            nodes[row.row()] = now.cloned();
            let mut expected = Amounts::new();
            for amounts in nodes.iter().flatten() {
                expected.add_all(amounts);
            }
            assert_eq!(totals.tree_total(""), expected, "after {node}");
        }
    }

    #[test]
    fn tree_total_is_subtracted_unless_independent() {
        let root = |tree: &str, cpu, independent| {
            Some(TreeRoot {
                tree: tree.to_owned(),
                total: amounts(&[(CPU, cpu)]),
                independent,
            })
        };
        let mut totals = Totals::default();
        let nodes = amounts(&[(CPU, 300), (MEMORY, 1)]);
        totals.set_node(NodeIndex(0), Some(&nodes));
        // Quota, its tree settings, and the resulting totals without an id, of `s` and of `t`.
        for (quota, root, expected) in [
            ("a", root("t", 200, false), [100, 0, 200]),
            ("a", root("t", 250, false), [50, 0, 250]),
            ("b", root("t", 10, false), [40, 0, 260]),
            ("c", root("s", 7, true), [40, 7, 260]),
            ("c", root("s", 7, false), [33, 7, 260]),
            ("a", root("s", 250, false), [33, 257, 10]),
            ("c", None, [40, 250, 10]),
            ("a", None, [290, 0, 10]),
            ("b", root("t", 400, false), [-100, 0, 400]),
            ("b", None, [300, 0, 0]),
        ] {
            assert!(totals.set_root(quota, root.clone()), "{quota} {root:?}");
            assert!(!totals.set_root(quota, root.clone()), "{quota} again");
            let is = ["", "s", "t"].map(|tree| totals.tree_total(tree).get(CPU));
            assert_eq!(is, expected, "{quota} {root:?}");
            assert_eq!(totals.tree_total("").get(MEMORY), 1);
        }
        assert_eq!(totals.tree_total(""), nodes);
        assert_eq!(totals.tree_total("t"), Amounts::new());
        // No node lists the resource: the tree without an id gets a negative amount.
        let odd = TreeRoot {
            tree: "t".to_owned(),
            total: amounts(&[(PODS, 5), (MEMORY, 0)]),
            independent: false,
        };
        totals.set_root("a", Some(odd));
        assert_eq!(totals.tree_total("").get(PODS), -5);
    }
}
