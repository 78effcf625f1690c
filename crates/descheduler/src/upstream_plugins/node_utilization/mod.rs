//! `LowNodeUtilization` and `HighNodeUtilization`: move pods from full nodes to empty ones, or the other way
//! round.
//!
//! Utilization means the requests of pods, or with `metricsUtilization` the measured usage.

mod args;
mod evict;
mod usage;

pub(super) use args::{HighArgs, LowArgs, check_high, check_low};

use self::args::UtilizationThresholds;
use self::evict::{Eviction, Source};
use self::usage::{Percent, Usages};
use crate::framework::{Cycle, Strategy, StrategyError};
use crate::state::{NodeInfo, Snapshot};
use koord_model::resources::{Amounts, CPU, MEMORY, PODS, ResourceId};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) const LOW: &str = "LowNodeUtilization";
pub(super) const HIGH: &str = "HighNodeUtilization";

/// A node and its utilization.
struct NodeUtilization<'a> {
    node: &'a Arc<NodeInfo>,
    used: Amounts,
    /// Utilization in percent of the capacity.
    percent: Percent,
    /// Amounts above which the node is over-utilized.
    limit: Amounts,
}

#[derive(Debug)]
pub(super) struct LowNodeUtilization(pub(super) LowArgs);

#[derive(Debug)]
pub(super) struct HighNodeUtilization(pub(super) HighArgs);

/// Returns the resources to compare: those with thresholds, and CPU, memory and pods.
fn resources(snapshot: &Snapshot, thresholds: &UtilizationThresholds) -> Vec<ResourceId> {
    let named = thresholds.keys().map(|name| snapshot.table.intern(name));
    let all: BTreeSet<_> = named.chain([CPU, MEMORY, PODS]).collect();
    all.into_iter().collect()
}

impl Strategy for LowNodeUtilization {
    fn name(&self) -> &'static str {
        LOW
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let (args, snapshot) = (&self.0, cycle.snapshot());
        let resources = resources(snapshot, &args.thresholds);
        let usages = Usages::new(snapshot, args.measures(), resources.clone());
        let mut nodes = measured(cycle, &usages);
        let low = Percent::from_thresholds(snapshot, &args.thresholds);
        let high = Percent::from_thresholds(snapshot, &args.target_thresholds);
        let (low, high) = if args.use_deviation_thresholds {
            let average = Percent::average(nodes.iter().map(|node| &node.percent), &low);
            (average.shifted(&low, -1.0), average.shifted(&high, 1.0))
        } else {
            (low, high)
        };
        let (mut under, mut over) = (Vec::new(), Vec::new());
        for node in &mut nodes {
            node.limit = usage::limit(node.node, &resources, &high);
        }
        for node in nodes {
            let name = &node.node.name;
            let shown = node.percent.shown(snapshot);
            if !node.node.unschedulable && node.percent.is_below(&low) {
                cycle.note(Some(name), format!("under-utilized: {shown}"));
                under.push(node);
            } else if let Some(which) = node.percent.above(&high) {
                let which = node.percent.compared(snapshot, which, &high);
                cycle.hot(name, format!("over-utilized: {which}; {shown}"), false);
                over.push(node);
            } else if node.node.unschedulable && node.percent.is_below(&low) {
                cycle.note(
                    Some(name),
                    format!("under-utilized but unschedulable: {shown}"),
                );
            } else {
                cycle.note(Some(name), format!("appropriately utilized: {shown}"));
            }
        }
        let all = cycle.nodes().len();
        let nothing = if under.is_empty() {
            Some("no node is under-utilized".to_owned())
        } else if under.len() <= args.number_of_nodes() {
            Some(too_few(under.len(), args.number_of_nodes()))
        } else if under.len() == all {
            Some("all nodes are under-utilized".to_owned())
        } else if over.is_empty() {
            Some("no node is over-utilized".to_owned())
        } else {
            None
        };
        if let Some(reason) = nothing {
            cycle.note(None, reason);
            return Ok(());
        }
        // The fullest node first.
        over.sort_by_key(|node| std::cmp::Reverse(node.total()));
        let eviction = Eviction {
            source: Source::AboveLimit,
            usages: &usages,
            excluded: args.evictable_namespaces.as_ref(),
            per_node: args.node_limit(),
            only_with: &[],
        };
        eviction.run(cycle, over, &under);
        Ok(())
    }
}

impl Strategy for HighNodeUtilization {
    fn name(&self) -> &'static str {
        HIGH
    }

    fn run(&mut self, cycle: &mut Cycle<'_>) -> Result<(), StrategyError> {
        let (args, snapshot) = (&self.0, cycle.snapshot());
        let resources = resources(snapshot, &args.thresholds);
        let usages = Usages::new(snapshot, false, resources.clone());
        let low = Percent::from_thresholds(snapshot, &args.thresholds);
        let full = low.all(100.0);
        let (mut under, mut targets) = (Vec::new(), Vec::new());
        for mut node in measured(cycle, &usages) {
            node.limit = usage::limit(node.node, &resources, &full);
            let shown = node.percent.shown(snapshot);
            let name = &node.node.name;
            if node.percent.is_below(&low) {
                cycle.note(Some(name), format!("under-utilized: {shown}"));
                under.push(node);
            } else if node.node.unschedulable {
                cycle.note(
                    Some(name),
                    format!("unschedulable, so nothing is moved there: {shown}"),
                );
            } else {
                cycle.note(Some(name), format!("takes pods: {shown}"));
                targets.push(node);
            }
        }
        let nothing = if under.is_empty() {
            Some("no node is under-utilized".to_owned())
        } else if under.len() <= args.number_of_nodes() {
            Some(too_few(under.len(), args.number_of_nodes()))
        } else if under.len() == cycle.nodes().len() {
            Some("all nodes are under-utilized".to_owned())
        } else if targets.is_empty() {
            Some("no node takes pods".to_owned())
        } else {
            None
        };
        if let Some(reason) = nothing {
            cycle.note(None, reason);
            return Ok(());
        }
        // The emptiest node first.
        under.sort_by_key(NodeUtilization::total);
        let thresholded: Vec<_> = low.resources().collect();
        let eviction = Eviction {
            source: Source::All,
            usages: &usages,
            excluded: args.evictable_namespaces.as_ref(),
            per_node: None,
            only_with: if args.only_thresholding_resources() {
                &thresholded
            } else {
                &[]
            },
        };
        eviction.run(cycle, under, &targets);
        Ok(())
    }
}

/// Returns the nodes whose utilization is known.
fn measured<'a>(cycle: &mut Cycle<'a>, usages: &Usages<'_>) -> Vec<NodeUtilization<'a>> {
    let mut nodes = Vec::new();
    for node in cycle.nodes() {
        match usages.node_amounts(cycle, node) {
            Ok(used) => nodes.push(NodeUtilization {
                percent: Percent::used(node, &used),
                node,
                used,
                limit: Amounts::new(),
            }),
            Err(reason) => cycle.skip_node(&node.name, &reason),
        }
    }
    nodes
}

fn too_few(under: usize, limit: usize) -> String {
    format!("{under} nodes are under-utilized, which is not more than numberOfNodes {limit}")
}

impl NodeUtilization<'_> {
    /// Returns the sum of all used amounts regardless of their units, like upstream.
    fn total(&self) -> i64 {
        let amounts = self.used.iter().map(|(_, amount)| amount);
        amounts.fold(0, i64::saturating_add)
    }
}
