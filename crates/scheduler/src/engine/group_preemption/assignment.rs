//! Assignment of members to nodes, and the victims needed there.

use super::{Planner, Site};
use crate::engine::preempt::{
    NOT_HELPFUL, PlanCost, cost, enough_candidates, importance, never_fits, no_candidates_message,
    spare_order,
};
use crate::engine::scope::Scope;
use crate::framework::{Code, Cycle, Offer, Planning, Reason, Rejection, RowVerdict};
use crate::state::{NodeIndex, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NO_VICTIMS: &str = "no potential victims";

/// The cost of placing the next member on a node.
struct VictimCost {
    cost: PlanCost,
    victims: Vec<Arc<PodInfo>>,
    has_budgets: bool,
}

/// A cached cost or refusal, valid for the given number of placed members and budget changes.
struct CachedCost {
    placed: usize,
    spent: usize,
    price: Result<VictimCost, Rejection>,
}

impl<'a> Planner<'a> {
    fn scope<'b>(&'b self, at: usize) -> Option<Scope<'b>> {
        let member = &self.members[at];
        Some(Scope::new(
            Cycle::new(&member.pod, self.view),
            self.search.table,
            member.chain.as_ref()?,
            &self.search.preemptor.nominator,
            self.search.options,
        ))
    }

    /// Returns true if a pod is terminating on a node that a member is nominated to, or on another node for a
    /// member: the quota that it uses is promised as well.
    pub(super) fn is_awaiting(&self) -> bool {
        let rules = &self.group.rules;
        let mut nominated_nodes = FxHashSet::default();
        let mut holds = false;
        let awaits = (0..self.members.len()).any(|index| {
            let pod = &self.members[index].pod;
            let node = self.search.preemptor.nominator.node_of(&pod.uid);
            let node = node.and_then(|node| self.search.cluster.nodes.find(node));
            let Some((node, scope)) = node.zip(self.scope(index)) else {
                return false;
            };
            nominated_nodes.insert(node);
            let fits_ever = !never_fits(&scope.judge(node));
            holds |= fits_ever;
            let awaited = |other: &Arc<PodInfo>| self.search.is_awaited(pod, node, other, rules);
            fits_ever && self.search.cluster.nodes.pods(node).any(awaited)
        });
        let elsewhere = |(victim, preemptor): (&Arc<str>, &Arc<str>)| {
            let record = self.search.cluster.pods.get(victim);
            let is_ours = self.mates.contains(preemptor) || self.group.held.contains(preemptor);
            is_ours && record.is_some_and(|record| !nominated_nodes.contains(&record.node))
        };
        awaits || holds && self.search.preemptor.evicting.iter().any(elsewhere)
    }

    pub(super) fn pods(&self, members: &[usize]) -> Vec<Arc<PodInfo>> {
        let pods = members.iter().map(|index| self.members[*index].pod.clone());
        pods.collect()
    }

    /// Returns the possible victims on the node.
    fn pool(&self, site: &Site) -> Vec<Arc<PodInfo>> {
        let (search, rules) = (self.search, &self.group.rules);
        let pods = search.cluster.nodes.pods(site.node);
        let mut pool: Vec<Arc<PodInfo>> = pods
            .filter(|other| search.is_evictable(&self.weakest, site.node, other, rules))
            .cloned()
            .collect();
        pool.sort_by(|a, b| importance(a).cmp(&importance(b)));
        pool
    }

    /// Checks whether member `at` fits together with the members `placed` on `node`, without `victims`.
    fn fits(
        &self,
        node: NodeIndex,
        at: usize,
        placed: &[Arc<PodInfo>],
        victims: &[Arc<PodInfo>],
    ) -> Result<(), Rejection> {
        let Some(scope) = self.scope(at) else {
            return Err(Rejection::unresolvable(NOT_HELPFUL));
        };
        match scope.judge_with_added(node, victims, placed, &self.mates) {
            RowVerdict::Fits(_) => Ok(()),
            RowVerdict::Refused(_, rejection) if rejection.code == Code::Unschedulable => {
                Err(rejection)
            }
            RowVerdict::Refused(..) | RowVerdict::Absent => {
                Err(Rejection::unresolvable(NOT_HELPFUL))
            }
        }
    }

    /// Returns true if all of `members` fit on `node` without `victims`.
    pub(super) fn all_fit(
        &self,
        node: NodeIndex,
        members: &[usize],
        victims: &[Arc<PodInfo>],
    ) -> bool {
        let pods = self.pods(members);
        let mut members = members.iter().enumerate();
        members.all(|(nth, at)| self.fits(node, *at, &pods[..nth], victims).is_ok())
    }

    /// Returns the victims on the node for `members`, if they are all that are placed there; how many of
    /// them, in addition to existing victims, have no budget left; and whether any pod there has one.
    pub(super) fn spare(&self, site: &Site, members: &[usize]) -> (Vec<Arc<PodInfo>>, usize, bool) {
        let rules = &self.group.rules;
        let mut spent = self.spent.clone();
        for (budget, _) in site.victims.iter().flat_map(|pod| (rules.budgets)(pod)) {
            *spent.entry(budget).or_default() -= 1;
        }
        let mut going = site.pool.clone().unwrap_or_default();
        let (order, unprotected, has_budgets) = spare_order(&going, rules, &spent);
        let is_known = |pod: &PodInfo| site.victims.iter().any(|victim| victim.uid == pod.uid);
        let mut violations = 0;
        for (nth, other) in order.into_iter().enumerate() {
            let Some(at) = going.iter().position(|pod| pod.uid == other.uid) else {
                continue;
            };
            going.remove(at);
            if !self.all_fit(site.node, members, &going) {
                violations += usize::from(nth < unprotected && !is_known(&other));
                going.insert(at, other);
            }
        }
        (going, violations, has_budgets)
    }

    /// Returns the cost of placing member `at` on the node, too.
    fn price(&self, site: &Site, at: usize) -> Result<VictimCost, Rejection> {
        let placed = self.pods(&site.placed);
        let pool = site.pool.as_deref().unwrap_or_default();
        if let Err(rejection) = self.fits(site.node, at, &placed, pool) {
            let helpless = pool.is_empty() && rejection.code == Code::Unschedulable;
            return Err(match helpless {
                true => Rejection::unresolvable(NO_VICTIMS),
                false => rejection,
            });
        }
        let members: Vec<usize> = site.placed.iter().copied().chain([at]).collect();
        let (victims, violations, has_budgets) = self.spare(site, &members);
        let mut added = victims.clone();
        added.retain(|pod| site.victims.iter().all(|victim| victim.uid != pod.uid));
        Ok(VictimCost {
            cost: cost(&added, violations),
            victims,
            has_budgets,
        })
    }

    /// Places members on a node, with `victims` evicted there.
    pub(super) fn put(&mut self, row: usize, members: &[usize], victims: Vec<Arc<PodInfo>>) {
        let before = std::mem::take(&mut self.sites[row].victims);
        let rules = &self.group.rules;
        for (pods, more) in [(&before, -1), (&victims, 1)] {
            for (budget, _) in pods.iter().flat_map(|pod| (rules.budgets)(pod)) {
                *self.spent.entry(budget).or_default() += more;
                self.spendings += 1;
            }
        }
        let site = &mut self.sites[row];
        site.placed.extend_from_slice(members);
        site.victims = victims;
    }

    fn fill_pool(&mut self, row: usize) {
        if self.sites[row].pool.is_none() {
            self.sites[row].pool = Some(self.pool(&self.sites[row]));
        }
    }

    /// Places members one after the other. Returns those that have a place, or why the group may not start.
    pub(super) fn place_each(&mut self) -> Result<Vec<usize>, String> {
        let enough_plans = enough_candidates(self.sites.len(), &self.group.rules);
        let mut all: FxHashMap<usize, Vec<Option<CachedCost>>> = FxHashMap::default();
        let (mut placed, mut first_refusals) = (Vec::new(), None);
        // Cached costs of a member that no later one is like are of no further use, and may be large.
        let kinds = self.members.iter().enumerate();
        let last: FxHashMap<usize, usize> = kinds.map(|(at, member)| (member.kind, at)).collect();
        let mut stale = None;
        for index in 0..self.members.len() {
            if let Some(kind) = stale.take() {
                all.remove(&kind);
            }
            let kind = self.members[index].kind;
            stale = (last.get(&kind) == Some(&index)).then_some(kind);
            let rows = all.entry(kind).or_default();
            rows.resize_with(self.sites.len(), || None);
            let (mut best, mut plans): (Option<(PlanCost, usize)>, usize) = (None, 0);
            let mut refusals = FxHashMap::<Reason, usize>::default();
            for (row, cached) in rows.iter_mut().enumerate() {
                self.fill_pool(row);
                let current = cached.take().filter(|cached| self.is_current(cached, row));
                let current = current.unwrap_or_else(|| CachedCost {
                    placed: self.sites[row].placed.len(),
                    spent: self.spendings,
                    price: self.price(&self.sites[row], index),
                });
                match &cached.insert(current).price {
                    Ok(price) => {
                        plans += 1;
                        if best.as_ref().is_none_or(|(cost, _)| price.cost < *cost) {
                            best = Some((price.cost, row));
                        }
                        // Stop once one of them violates no budget.
                        if plans >= enough_plans
                            && best.as_ref().is_some_and(|(cost, _)| cost.0 == 0)
                        {
                            break;
                        }
                    }
                    Err(rejection) => {
                        for reason in rejection.reasons.as_slice() {
                            *refusals.entry(reason.clone()).or_default() += 1;
                        }
                    }
                }
            }
            let best = best.and_then(|(_, row)| Some((row, rows[row].take()?.price.ok()?.victims)));
            if let Some((row, victims)) = best {
                self.put(row, &[index], victims);
                placed.push(index);
                continue;
            }
            first_refusals.get_or_insert(refusals);
            if self.group.strict {
                break;
            }
        }
        if (self.group.enough)(&self.pods(&placed)) {
            return Ok(placed);
        }
        Err(first_refusals.map_or_else(|| self.unhelpful(), |refusals| self.refusal_text(refusals)))
    }

    /// Returns true if the cached cost of a node still holds.
    fn is_current(&self, cached: &CachedCost, row: usize) -> bool {
        let budgets = cached.price.as_ref().is_ok_and(|price| price.has_budgets);
        let same_members = cached.placed == self.sites[row].placed.len();
        same_members && (!budgets || cached.spent == self.spendings)
    }

    /// Places all members by a plan, as if all possible victims were removed. Returns the members, or why the
    /// group may not start.
    pub(super) fn place_planned(&mut self, planning: &dyn Planning) -> Result<Vec<usize>, String> {
        let every: Vec<usize> = (0..self.members.len()).collect();
        let pods = self.pods(&every);
        let (mut slots, mut refusals) = (Vec::new(), FxHashMap::<Reason, usize>::default());
        for row in 0..self.sites.len() {
            self.fill_pool(row);
            let site = &self.sites[row];
            let pool = site.pool.as_deref().unwrap_or_default();
            let refused = every.iter().find_map(|index| {
                let refused = self.fits(site.node, *index, &pods[..*index], pool).err()?;
                Some((*index, refused))
            });
            if let Some((_, rejection)) = &refused {
                for reason in rejection.reasons.as_slice() {
                    *refusals.entry(reason.clone()).or_default() += 1;
                }
            }
            slots.push(refused.map_or(pods.len(), |(index, _)| index));
        }
        let pools = self.sites.iter().map(|site| site.pool.as_deref());
        let pools: Vec<&[Arc<PodInfo>]> = pools.map(Option::unwrap_or_default).collect();
        let ranks: BTreeSet<i32> = pools
            .iter()
            .copied()
            .flatten()
            .map(|pod| pod.priority)
            .collect();
        let rank = |pod: &Arc<PodInfo>| {
            let less = ranks.iter().take_while(|other| **other <= pod.priority);
            i64::try_from(less.count()).unwrap_or(i64::MAX)
        };
        let offers = self.sites.iter().zip(&slots).zip(&pools);
        let offers: Vec<Offer> = offers
            .map(|((site, slots), pool)| Offer {
                node: site.node,
                slots: *slots,
                score: pool.iter().map(rank).fold(0, i64::saturating_sub),
            })
            .collect();
        let fit = self.refusal_text(refusals);
        let nodes = planning.plan(&pods, &offers, &fit, self.view)?;
        let mut by_row: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, name) in nodes.iter().enumerate() {
            let node = self.search.cluster.nodes.find(name);
            let row = self.sites.iter().position(|site| Some(site.node) == node);
            by_row
                .entry(row.ok_or_else(|| self.unhelpful())?)
                .or_default()
                .push(index);
        }
        for (row, members) in by_row {
            let site = &self.sites[row];
            let pool = site.pool.as_deref().unwrap_or_default();
            if !self.all_fit(site.node, &members, pool) {
                return Err(self.unhelpful());
            }
            let (victims, ..) = self.spare(site, &members);
            self.put(row, &members, victims);
        }
        Ok(every)
    }

    pub(super) fn unhelpful(&self) -> String {
        let all = FxHashMap::from_iter([(Reason::Static(NOT_HELPFUL), self.sites.len())]);
        self.refusal_text(all)
    }

    fn refusal_text(&self, refusals: FxHashMap<Reason, usize>) -> String {
        no_candidates_message("", self.search.cluster.nodes.len(), refusals)
    }
}
