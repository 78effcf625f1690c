//! The solver alone, with random nodes and pods.

use super::super::load::UsageKind;
use super::super::solve::{Bin, Bins, Item, NEAR, Work};
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns a node with a capacity of 1,000 per resource and a limit of 700.
fn a_bin(resources: usize) -> impl Strategy<Value = Bin> {
    let has = vec(500_i64..2000, resources);
    (has, vec(0.0..0.9_f64, resources)).prop_map(|(has, shares)| {
        let amount = |share: f64| {
            has.iter()
                .map(|has| (*has as f64 * share) as i64)
                .collect::<Vec<_>>()
        };
        let used: Vec<_> = has
            .iter()
            .zip(&shares)
            .map(|(has, share)| (*has as f64 * share) as i64)
            .collect();
        Bin {
            prod: used.iter().map(|used| used / 2).collect(),
            used,
            high: amount(0.7),
            prod_high: amount(0.5),
            has,
        }
    })
}

fn an_item(resources: usize) -> impl Strategy<Value = Item> {
    (vec(0_i64..400, resources), any::<bool>()).prop_map(|(usage, prod)| Item { usage, prod })
}

fn sum(usage_kind: UsageKind, bins: &[&Bin], weights: &[f64], mean: &[f64]) -> f64 {
    let deviation = |bin: &&Bin| -> f64 {
        let used = match usage_kind {
            UsageKind::Node => &bin.used,
            UsageKind::Prod => &bin.prod,
        };
        let shares = used
            .iter()
            .zip(&bin.has)
            .map(|(used, has)| *used as f64 / *has as f64);
        shares
            .zip(weights)
            .zip(mean)
            .map(|((share, weight), mean)| weight * (share - mean).powi(2))
            .sum()
    };
    bins.iter().map(deviation).sum()
}

fn without(bin: &Bin, item: &Item) -> Bin {
    let mut out = bin.clone();
    for (used, less) in out.used.iter_mut().zip(&item.usage) {
        *used -= less;
    }
    if item.prod {
        for (used, less) in out.prod.iter_mut().zip(&item.usage) {
            *used -= less;
        }
    }
    out
}

fn with(bin: &Bin, item: &Item) -> Bin {
    let mut out = bin.clone();
    out.add(item);
    out
}

proptest! {
    #[test]
    fn objective_decreases_by_the_gain(
        source in a_bin(2), bins in vec(a_bin(2), 1..12), items in vec(an_item(2), 1..12), mean in vec(0.1..0.6_f64, 2),
        prod in any::<bool>(),
    ) {
        let usage_kind = if prod { UsageKind::Prod } else { UsageKind::Node };
        // With prod usage, only pods of priority class prod are tried.
        let items: Vec<_> = items.into_iter().map(|item| Item { prod: item.prod || prod, ..item }).collect();
        let weights = vec![1.0, 3.0];
        let all = Bins::new(usage_kind, bins.clone(), weights.clone(), mean.clone());
        let pair = all.best(&source, items.iter().enumerate(), |_, _| true, &mut Work(10_000));
        if let Some(pair) = pair {
            let (bin, item) = (&bins[pair.bin], &items[pair.item]);
            let before = sum(usage_kind, &[&source, bin], &weights, &mean);
            let after = sum(usage_kind, &[&without(&source, item), &with(bin, item)], &weights, &mean);
            prop_assert!((before - after - pair.gain).abs() < 1e-9, "{before} {after} {pair:?}");
            prop_assert!(pair.gain > 0.0);
        }
    }

    #[test]
    fn of_equal_nodes_and_one_resource_no_pair_gains_more(
        used in vec(0_i64..700, 1..40), items in vec(1_i64..400, 1..12), hot in 700_i64..1000,
    ) {
        let bin = |used: i64| Bin { used: vec![used], prod: vec![0], high: vec![700], prod_high: vec![700], has: vec![1000] };
        let bins: Vec<_> = used.iter().map(|used| bin(*used)).collect();
        let items: Vec<_> = items.iter().map(|usage| Item { usage: vec![*usage], prod: false }).collect();
        let all = Bins::new(UsageKind::Node, bins.clone(), vec![1.0], vec![0.4]);
        let source = bin(hot);
        let pair = all.best(&source, items.iter().enumerate(), |_, _| true, &mut Work(100_000));
        let pairs = items.iter().flat_map(|item| bins.iter().map(move |bin| (item, bin)));
        let gains = pairs.filter(|(item, bin)| bin.can_take(item)).map(|(item, bin)| all.gain(&source, bin, item));
        let most = gains.fold(0.0, f64::max);
        prop_assert!((pair.map_or(0.0, |pair| pair.gain) - most).abs() < 1e-12);
    }

    #[test]
    fn moves_exceed_no_threshold_of_the_target(
        source in a_bin(2), bins in vec(a_bin(2), 1..12), items in vec(an_item(2), 1..30),
    ) {
        let mut all = Bins::new(UsageKind::Node, bins.clone(), vec![1.0, 1.0], vec![0.3, 0.3]);
        let mut took = vec![Vec::new(); bins.len()];
        let mut remaining: Vec<_> = items.iter().enumerate().collect();
        while let Some(pair) = all.best(&source, remaining.iter().copied(), |_, _| true, &mut Work(10_000)) {
            all.put(pair.bin, &items[pair.item]);
            took[pair.bin].push(pair.item);
            remaining.retain(|(at, _)| *at != pair.item);
        }
        for (bin, took) in bins.iter().zip(&took) {
            for (at, high) in bin.high.iter().enumerate() {
                let added: i64 = took.iter().map(|item| items[*item].usage[at]).sum();
                prop_assert!(added == 0 || bin.used[at] + added <= *high);
                let prod = took.iter().filter(|item| items[**item].prod);
                let added: i64 = prod.map(|item| items[*item].usage[at]).sum();
                prop_assert!(added == 0 || bin.prod[at] + added <= bin.prod_high[at]);
            }
        }
    }

    #[test]
    fn work_is_bounded_and_refused_pairs_are_skipped(
        source in a_bin(1), bins in vec(a_bin(1), 1..30), items in vec(an_item(1), 1..12), work in 0_u64..60,
    ) {
        let all = Bins::new(UsageKind::Node, bins.clone(), vec![1.0], vec![0.1]);
        let mut work_left = Work(work);
        let mut calls = 0;
        let pair = all.best(&source, items.iter().enumerate(), |item, bin| { calls += 1; (item + bin) % 2 == 0 }, &mut work_left);
        prop_assert!(calls <= work && (work > 0 || pair.is_none()));
        if let Some(pair) = pair {
            prop_assert_eq!((pair.item + pair.bin) % 2, 0);
        }
        let looked = work - work_left.0;
        prop_assert!(looked <= u64::try_from(items.len() * bins.len()).unwrap());
    }
}

#[test]
fn only_the_nearest_nodes_are_tried() {
    let bin = Bin {
        used: vec![0],
        prod: vec![0],
        high: vec![1000],
        prod_high: vec![1000],
        has: vec![1000],
    };
    let source = Bin {
        used: vec![900],
        ..bin.clone()
    };
    let all = Bins::new(UsageKind::Node, vec![bin; 1000], vec![1.0], vec![0.1]);
    let items: Vec<_> = (1..=10)
        .map(|i| Item {
            usage: vec![i * 10],
            prod: false,
        })
        .collect();
    let mut work = Work(1_000_000);
    assert!(
        all.best(&source, items.iter().enumerate(), |_, _| true, &mut work)
            .is_some()
    );
    assert_eq!(1_000_000 - work.0, 10 * NEAR as u64);
}
