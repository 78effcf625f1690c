//! Additional victims that make plugins admit the members, for plugins that limit pods by what others use, such
//! as quotas.

use super::{Member, Plan, Planner, Site};
use crate::engine::preempt::{importance, spare_order};
use crate::framework::{Admission, Volatile};
use crate::queue::PluginSet;
use crate::state::{NodeIndex, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

impl Planner<'_> {
    /// Adds victims where plugins admit the members only then, or drops the last members. Returns `None` if
    /// the group would not start, or if there is no victim.
    pub(super) fn finish(&mut self, mut placed: Vec<usize>, admissions: PluginSet) -> Option<Plan> {
        if admissions != 0 {
            self.admit_members(&mut placed, admissions)?;
        }
        let evicting_sites = self.sites.iter().filter(|site| !site.victims.is_empty());
        let victims: Vec<_> = evicting_sites
            .map(|site| (site.node, site.victims.clone()))
            .collect();
        if victims.is_empty() {
            return None;
        }
        if self.depend_on_each_other() {
            return None;
        }
        let pods_on = |site: &Site| -> Vec<_> {
            let members = site.placed.iter();
            let members = members.map(|index| (self.members[*index].pod.clone(), site.node));
            members.collect()
        };
        let places = self.sites.iter().flat_map(pods_on).collect();
        Some(Plan { places, victims })
    }

    /// Returns true if the placement of a member can change the filter result of a mate on another node. That
    /// was not checked, since each node was evaluated by itself.
    fn depend_on_each_other(&self) -> bool {
        let placed = |site: &Site| -> Vec<(NodeIndex, usize)> {
            site.placed
                .iter()
                .map(|index| (site.node, *index))
                .collect()
        };
        let all: Vec<(NodeIndex, usize)> = self.sites.iter().flat_map(placed).collect();
        all.iter().any(|(node, at)| {
            let Member { pod, chain, .. } = &self.members[*at];
            let moving = chain
                .iter()
                .flat_map(|chain| &chain.prepared.volatile_filters);
            let mut moving =
                moving.filter_map(|(plugin, _)| self.search.table.plugins[*plugin].volatile());
            let mut depends = |rules: &dyn Volatile| {
                let mut afar = all.iter().filter(|(other, _)| other != node);
                afar.any(|(_, mate)| rules.depends_on_other_nodes(pod, &self.members[*mate].pod))
            };
            moving.any(&mut depends)
        })
    }

    /// Adds victims so that plugins admit the members. Removes members that are not admitted with any victims
    /// from `placed`, from the last on.
    fn admit_members(&mut self, placed: &mut Vec<usize>, admissions: PluginSet) -> Option<()> {
        let search = self.search;
        let view = self.view;
        let plugins = search.table.plugins.iter().enumerate();
        let plugins = plugins.filter(|(at, _)| admissions & (1 << at) != 0);
        let plugins = plugins.filter_map(|(_, plugin)| plugin.post_filter()?.admission());
        let plugins: Vec<&dyn Admission> = plugins.collect();
        let admits = |pods: &[Arc<PodInfo>], victims: &[Arc<PodInfo>]| {
            let mut plugins = plugins.iter();
            plugins.all(|plugin| plugin.admits(pods, victims, view))
        };
        let mut pods = self.pods(placed);
        let mut base: Vec<Arc<PodInfo>> = self.victims();
        if admits(&pods, &base) {
            return Some(());
        }
        let rows: FxHashMap<NodeIndex, usize> = self
            .sites
            .iter()
            .enumerate()
            .map(|(row, site)| (site.node, row))
            .collect();
        let mut extra: FxHashMap<Arc<str>, (usize, Arc<PodInfo>)> = FxHashMap::default();
        for plugin in &plugins {
            plugin.blocking_pods(&pods, view, &mut |uid| {
                let Some((uid, record)) = search.cluster.pods.get_key_value(uid) else {
                    return;
                };
                let row = rows.get(&record.node).copied();
                let (rules, info) = (&self.group.rules, &record.info);
                if let Some(row) = row
                    && search.is_evictable(&self.weakest, record.node, info, rules)
                {
                    extra.insert(uid.clone(), (row, info.clone()));
                }
            });
        }
        let every: Vec<Arc<PodInfo>> = extra.values().map(|(_, pod)| pod.clone()).collect();
        let without = |base: &[Arc<PodInfo>], mut extra: Vec<Arc<PodInfo>>| {
            let uids: FxHashSet<&str> = base.iter().map(|pod| &*pod.uid).collect();
            extra.retain(|pod| !uids.contains(&*pod.uid));
            extra
        };
        let with = |base: &[Arc<PodInfo>], extra: &[Arc<PodInfo>]| [base, extra].concat();
        let least = with(&base, &without(&base, every.clone()));
        // A pod that is admitted together with others is also admitted together with fewer of them.
        let (mut low, mut high) = (0, pods.len());
        while low < high {
            let middle = high - (high - low) / 2;
            match admits(&pods[..middle], &least) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        pods.truncate(low);
        if pods.len() < placed.len() {
            if pods.is_empty() || !(self.group.enough)(&pods) {
                return None;
            }
            for index in placed.split_off(pods.len()) {
                let row = self
                    .sites
                    .iter()
                    .position(|site| site.placed.contains(&index))?;
                self.sites[row].placed.retain(|other| *other != index);
                let remaining = std::mem::take(&mut self.sites[row].placed);
                let (victims, ..) = self.spare(&self.sites[row], &remaining);
                self.put(row, &remaining, victims);
            }
            base = self.victims();
        }
        let (order, ..) = spare_order(&sorted(every), &self.group.rules, &self.spent);
        let mut order = without(&base, order);
        // Least harmful victims first, as few as are enough.
        order.reverse();
        let (mut low, mut high) = (0, order.len());
        while low < high {
            let middle = low.midpoint(high);
            match admits(&pods, &with(&base, &order[..middle])) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        order.truncate(high);
        for index in (0..order.len()).rev() {
            let pod = order.remove(index);
            if !admits(&pods, &with(&base, &order)) {
                order.insert(index, pod);
            }
        }
        for pod in order {
            let (row, pod) = extra.remove(&pod.uid)?;
            self.sites[row].victims.push(pod);
        }
        // Victims that became unnecessary through the additional ones are spared.
        for pod in spare_order(&sorted(base), &self.group.rules, &self.spent).0 {
            let is_there = |site: &Site| site.victims.iter().any(|victim| victim.uid == pod.uid);
            let row = self.sites.iter().position(is_there)?;
            let site = &self.sites[row];
            let mut remaining = site.victims.clone();
            remaining.retain(|victim| victim.uid != pod.uid);
            let mut all = self.victims();
            all.retain(|victim| victim.uid != pod.uid);
            if admits(&pods, &all) && self.all_fit(site.node, &site.placed, &remaining) {
                self.sites[row].victims = remaining;
            }
        }
        Some(())
    }

    fn victims(&self) -> Vec<Arc<PodInfo>> {
        let victims = self.sites.iter().flat_map(|site| &site.victims);
        victims.cloned().collect()
    }
}

fn sorted(mut pods: Vec<Arc<PodInfo>>) -> Vec<Arc<PodInfo>> {
    pods.sort_by(|a, b| importance(a).cmp(&importance(b)));
    pods
}
