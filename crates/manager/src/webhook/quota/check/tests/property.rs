//! Random trees and requests: whatever is admitted keeps the trees whole.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A request about one of a few quotas, mostly sensible.
#[derive(Debug, Clone)]
struct QuotaOperation {
    delete: bool,
    name: usize,
    parent: usize,
    is_parent: bool,
    tree: usize,
    min: i64,
    keys: usize,
}

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
const TREES: [&str; 2] = ["", "t"];
const KEYS: [&[&str]; 2] = [&["cpu", "memory"], &["cpu"]];

fn operations() -> impl Strategy<Value = Vec<QuotaOperation>> {
    let operation = (
        prop::bool::weighted(0.1),
        0..NAMES.len(),
        prop::sample::select(vec![0, 1, 2, 3, 4, 5, 6, 7, 7, 7]),
        prop::bool::weighted(0.7),
        prop::sample::select(vec![0, 0, 0, 0, 0, 1]),
        0..6_i64,
        prop::sample::select(vec![0, 0, 0, 0, 0, 0, 0, 1]),
    );
    let operation =
        operation.prop_map(
            |(delete, name, parent, is_parent, tree, min, keys)| QuotaOperation {
                delete,
                name,
                parent,
                is_parent,
                tree,
                min,
                keys,
            },
        );
    prop::collection::vec(operation, 1..80)
}

fn object(operation: &QuotaOperation) -> ElasticQuota {
    let amounts = |amount: i64| {
        let keys = KEYS[operation.keys].iter();
        keys.map(|key| ((*key).to_owned(), json!(amount)))
            .collect::<serde_json::Map<_, _>>()
    };
    let parent = NAMES.get(operation.parent).copied().unwrap_or(ROOT_QUOTA);
    quota(
        NAMES[operation.name],
        json!({
            "parent": parent, "isParent": operation.is_parent, "tree": TREES[operation.tree],
            "min": amounts(operation.min), "max": amounts(20),
        }),
    )
}

/// Checks the invariants of all admitted quotas, from the objects alone.
fn check_invariants(all: &BTreeMap<String, ElasticQuota>) -> Result<(), String> {
    for (name, quota) in all {
        let parent = quota.parent();
        let mut above = BTreeSet::from([name.as_str()]);
        let mut next = parent;
        while next != ROOT_QUOTA {
            if !above.insert(next) {
                return Err(format!("{name} is its own ancestor"));
            }
            next = all
                .get(next)
                .ok_or(format!("{name} is an orphan"))?
                .parent();
        }
        let Some(parent) = all.get(parent) else {
            continue;
        };
        if !parent.is_parent() {
            return Err(format!("{name} has a parent that is none"));
        }
        if parent.label(labels::QUOTA_TREE_ID) != quota.label(labels::QUOTA_TREE_ID) {
            return Err(format!("{name} is of another tree than its parent"));
        }
        if !parent.spec.max.keys().eq(quota.spec.max.keys()) {
            return Err(format!("{name} limits other resources than its parent"));
        }
    }
    for (name, parent) in all {
        let children = all.values().filter(|child| child.parent() == name);
        let children: Vec<_> = children.collect();
        for (key, own) in &parent.spec.min {
            let sum: i64 = children
                .iter()
                .filter_map(|child| child.spec.min.get(key))
                .map(|q| q.value())
                .sum();
            if sum > own.value() {
                return Err(format!("{sum} {key} below {name}, which has {own}"));
            }
        }
    }
    Ok(())
}

#[test]
fn whatever_is_admitted_keeps_the_trees_whole() {
    use std::cell::Cell;
    let (admitted, refused, deep) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let count = |cell: &Cell<usize>| cell.set(cell.get() + 1);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 256,
        ..ProptestConfig::default()
    });
    let result = runner.run(&operations(), |operations| {
        let mut admitter = admitter();
        let mut all: BTreeMap<String, ElasticQuota> = BTreeMap::new();
        for operation in operations {
            let new = object(&operation);
            let name = NAMES[operation.name].to_owned();
            let refusal = match all.get(&name).cloned() {
                Some(old) if operation.delete => admitter.delete(&old),
                Some(old) => admitter.update(&old, &new),
                None => admitter.create(&new),
            };
            if !refusal.is_empty() {
                count(&refused);
                continue;
            }
            count(&admitted);
            if operation.delete && all.contains_key(&name) {
                all.remove(&name);
            } else {
                if new.parent() != ROOT_QUOTA {
                    count(&deep);
                }
                all.insert(name, new);
            }
            prop_assert_eq!(check_invariants(&all), Ok(()));
        }
        Ok(())
    });
    result.unwrap();
    // The rules and their breaches must both have been met, or the test proves nothing.
    let (admitted, refused, deep) = (admitted.get(), refused.get(), deep.get());
    assert!(
        admitted > 1000 && refused > 1000 && deep > 250,
        "{admitted} admitted, {deep} below others, {refused} refused"
    );
}
