//! A prototype: the next pods of the queue decided ahead, by several threads, against one state.
//!
//! An epoch begins when the pods of the last one are placed. Several ready pods are taken; nothing is
//! booked while threads prepare them, bring the evaluations of their shapes up to date and pick
//! candidates: that borrows the state and copies nothing. Then they are placed one after the other, each
//! after the node that was picked for it has been judged again as it is by then. One whose candidates
//! were all changed since, or that is refused there, is decided as if nobody had looked.
//!
//! Members of gangs, holders, pods that were promised room, own reservations or prefer nodes stay with the owner.

use super::Engine;
use super::class::Evaluation;
use super::diagnosis::RowVerdict;
use super::few::{self, Few};
use super::grouped::Part;
use super::scope::{Prepared, Scope};
use super::select::Choice;
use super::stage;
use crate::framework::{Cycle, PreFilter, ShapeId, View};
use crate::queue::{PluginSet, QueuedPod};
use crate::state::{NodeIndex, PodInfo};
use jiff::Timestamp;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many candidates are picked for a pod.
const CANDIDATES: usize = 8;

/// What was found for one pod.
struct Proposal {
    prepared: Prepared,
    /// The best first.
    nodes: Vec<NodeIndex>,
    /// How many fit.
    fitting: usize,
    /// Whether what was prepared goes out of date with placements of others.
    moves: bool,
}

/// How proposals fared.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fate {
    /// Epochs, and pods that were looked at in them.
    pub epochs: usize,
    /// See `epochs`.
    pub pods: usize,
    /// Pods that stayed with the owner.
    pub kept: usize,
    /// Proposals that were taken.
    pub taken: usize,
    /// Those whose candidates had all changed.
    pub stale: usize,
    /// Those that were refused when they were judged again.
    pub refused: usize,
    /// Of those taken, where the owner would have chosen another node; counted if `compares`.
    pub other: usize,
    /// Nanoseconds in which threads looked.
    pub looking: u64,
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct Epoch {
    next: VecDeque<QueuedPod>,
    proposals: FxHashMap<Arc<str>, Proposal>,
    /// The newest version of a row when it began.
    began: u64,
    pub(super) fate: Fate,
}

/// One shape's pods, by position.
struct Job {
    key: (usize, ShapeId),
    class: Option<Evaluation>,
    pods: Vec<usize>,
    nodes: Vec<Vec<NodeIndex>>,
    fitting: usize,
}

impl Engine {
    /// How proposals fared.
    #[must_use]
    pub fn fate(&self) -> Fate {
        self.epoch.fate
    }

    /// The next pod of this epoch, or of the next one.
    pub(super) fn next_ahead(&mut self, now: Timestamp) -> Option<QueuedPod> {
        loop {
            while let Some(queued) = self.epoch.next.pop_front() {
                // It may have gone, or been told otherwise.
                if let Some(current) = self.queue.in_flight(&queued.info.uid) {
                    if !Arc::ptr_eq(&current.info, &queued.info) {
                        self.epoch.proposals.remove(&queued.info.uid);
                    }
                    return Some(current.clone());
                }
            }
            self.epoch.proposals.clear();
            for _ in 0..self.options.ahead {
                let Some(queued) = self.queue.pop(now) else {
                    break;
                };
                self.epoch.next.push_back(queued);
            }
            if self.epoch.next.is_empty() {
                return None;
            }
            if self.epoch.next.len() > 1 {
                let began = std::time::Instant::now();
                self.look_ahead(now);
                let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.epoch.fate.looking += took;
            }
        }
    }

    fn look_ahead(&mut self, now: Timestamp) {
        let pods = self.epoch.next.iter();
        let pods: Vec<(Arc<PodInfo>, usize)> = pods
            .filter_map(|queued| Some((queued.info.clone(), self.profile_of(&queued.info)?)))
            .collect();
        for (pod, profile) in &pods {
            self.prepare_books(pod, *profile, now);
        }
        self.epoch.began = self.nodes.position();
        let view = view!(self, now);
        let this = &*self;
        let looked = pods.par_iter().with_min_len(4);
        let mut looked: Vec<Option<(Proposal, Option<ShapeId>)>> = looked
            .map(|(pod, profile)| this.look_at(pod, *profile, view))
            .collect();
        let mut jobs: FxHashMap<(usize, ShapeId), Job> = FxHashMap::default();
        for (at, found) in looked.iter().enumerate() {
            let Some((_, Some(shape))) = found else {
                continue;
            };
            let key = (pods[at].1, *shape);
            let job = jobs.entry(key).or_insert_with(|| Job {
                key,
                class: self.classes.remove(&key),
                pods: Vec::new(),
                nodes: Vec::new(),
                fitting: 0,
            });
            job.pods.push(at);
        }
        let mut jobs: Vec<Job> = jobs.into_values().collect();
        let this = &*self;
        let view = view!(self, now);
        jobs.par_iter_mut().for_each(|job| {
            this.look_for_all(job, &pods, &looked, view);
        });
        for mut job in jobs {
            for (at, nodes) in job.pods.iter().zip(std::mem::take(&mut job.nodes)) {
                if let Some((proposal, _)) = &mut looked[*at] {
                    proposal.nodes = nodes;
                    proposal.fitting = job.fitting;
                }
            }
            self.uses += 1;
            if let Some(mut class) = job.class {
                class.used = self.uses;
                let bytes = class.bytes();
                let before = std::mem::replace(&mut class.counted, bytes);
                self.class_bytes = self.class_bytes + bytes - before;
                self.classes.insert(job.key, class);
            }
        }
        let fate = &mut self.epoch.fate;
        fate.epochs += 1;
        fate.pods += pods.len();
        for ((pod, _), found) in pods.iter().zip(looked) {
            match found {
                Some((proposal, _)) if !proposal.nodes.is_empty() => {
                    self.epoch.proposals.insert(pod.uid.clone(), proposal);
                }
                _ => fate.kept += 1,
            }
        }
    }

    fn scope_of<'a>(&'a self, cycle: Cycle<'a>, prepared: &'a Prepared) -> Scope<'a> {
        Scope {
            cycle,
            plugins: &self.plugins,
            prepared,
            nominator: &self.nominator,
            opinion: None,
            shared: false,
            bare: false,
            seed: self.options.seed,
            parallel_rows: self.options.parallel_rows,
        }
    }

    /// What a thread does for one pod.
    fn look_at(
        &self,
        pod: &Arc<PodInfo>,
        profile: usize,
        view: View<'_>,
    ) -> Option<(Proposal, Option<ShapeId>)> {
        if pod.is_holder() || self.nominated_node(&pod.uid).is_some() {
            return None;
        }
        let cycle = Cycle::new(pod, view);
        let prepared = self.prepare(&cycle, profile).ok()?;
        let scope = self.scope_of(cycle, &prepared);
        let prefers = |at: &usize| !self.plugins[*at].prefer(&scope.cycle).is_empty();
        if self.profiles[profile].pre_filter.iter().any(prefers) {
            return None;
        }
        let mut proposal = Proposal {
            nodes: Vec::new(),
            fitting: 1,
            moves: scope.has_more_to_say(),
            prepared: Prepared::default(),
        };
        let mut shape = None;
        if let Some(list) = few::list(&scope) {
            proposal
                .nodes
                .extend(Few::judge(&scope, &list).best(&scope));
        } else {
            let found = self.shape(&scope, profile)?;
            if found.own.is_some_and(|(_, rows)| !rows.is_empty()) {
                return None;
            }
            shape = Some(found.common);
        }
        proposal.prepared = prepared;
        Some((proposal, shape))
    }

    /// What a thread does for one shape.
    fn look_for_all(
        &self,
        job: &mut Job,
        pods: &[(Arc<PodInfo>, usize)],
        looked: &[Option<(Proposal, Option<ShapeId>)>],
        view: View<'_>,
    ) {
        let found = job
            .pods
            .first()
            .and_then(|at| Some((at, looked[*at].as_ref()?)));
        let Some((at, (proposal, _))) = found else {
            return;
        };
        let scope = self.scope_of(Cycle::new(&pods[*at].0, view), &proposal.prepared);
        let scope = Scope {
            shared: true,
            bare: scope.special_rows().is_some(),
            ..scope
        };
        let mut class = match job.class.take() {
            Some(mut class) => {
                class.refresh(&scope);
                class
            }
            None => Evaluation::fresh(&scope),
        };
        let scope = Scope {
            bare: false,
            ..scope
        };
        if stage::is_needed(&scope, &class.columns) {
            // All would have the same few nodes as candidates, the best of each zone: each looks at
            // a part of its own.
            let arranged = class.arrange_groups(&scope).is_some();
            let of = job.pods.len();
            let one = |(at, pod): (usize, &usize)| {
                let (proposal, _) = looked[*pod].as_ref()?;
                let cycle = Cycle::new(&pods[*pod].0, view);
                let scope = Scope {
                    shared: true,
                    ..self.scope_of(cycle, &proposal.prepared)
                };
                class.best_of_groups(&scope, Part { of, at })?
            };
            if arranged {
                let pods = job.pods.par_iter().enumerate().with_min_len(4);
                let found: Vec<Option<NodeIndex>> = pods.map(one).collect();
                let lists = found.into_iter().map(|node| node.into_iter().collect());
                job.nodes = lists.collect();
            } else {
                job.nodes.push(class.best(&scope).into_iter().collect());
            }
        } else {
            // Each its own first; what is left over is there for all.
            let top = class.tree.top(CANDIDATES + job.pods.len());
            let top = top.into_iter().filter_map(|row| u32::try_from(row).ok());
            let top: Vec<NodeIndex> = top.map(NodeIndex).collect();
            let rest = top.get(job.pods.len()..).unwrap_or_default();
            for at in 0..job.pods.len() {
                let own = top.get(at).into_iter();
                job.nodes.push(own.chain(rest).copied().collect());
            }
        }
        job.fitting = class.fitting(&scope);
        job.class = Some(class);
    }

    /// What was found ahead for `pod`, if it holds.
    pub(super) fn found_ahead(
        &mut self,
        pod: &Arc<PodInfo>,
        profile: usize,
        now: Timestamp,
    ) -> Option<Choice> {
        let mut proposal = self.epoch.proposals.remove(&pod.uid)?;
        let began = self.epoch.began;
        let untouched = |node: &&NodeIndex| self.nodes.version(**node) <= began;
        let Some(node) = proposal.nodes.iter().find(untouched).copied() else {
            self.epoch.fate.stale += 1;
            return None;
        };
        if proposal.moves || self.options.ahead_again {
            self.prepare_books(pod, profile, now);
            let cycle = Cycle::new(pod, view!(self, now));
            proposal.prepared = self.prepare(&cycle, profile).ok()?;
        } else if !self.still_let_in(pod, profile, now) {
            self.epoch.fate.refused += 1;
            return None;
        }
        let cycle = Cycle::new(pod, view!(self, now));
        let scope = self.scope_of(cycle, &proposal.prepared);
        let RowVerdict::Fits(numa) = scope.judge(node) else {
            self.epoch.fate.refused += 1;
            return None;
        };
        let choice = Choice::of(&scope, node, numa, (self.nodes.len(), proposal.fitting));
        self.epoch.fate.taken += 1;
        if self.options.ahead_compares
            && let Ok(own) = self.select(pod, profile, now, true)
        {
            self.epoch.fate.other += usize::from(own.node != node);
        }
        Some(choice)
    }

    /// Asks again who lets pods in by what others have.
    fn still_let_in(&mut self, pod: &Arc<PodInfo>, profile: usize, now: Timestamp) -> bool {
        let asked: PluginSet = self.admissions(profile);
        for books in super::books_of(asked, &mut self.plugins) {
            books.prepare(&Cycle::new(pod, view!(self, now)));
        }
        let cycle = Cycle::new(pod, view!(self, now));
        let plugins = self.profiles[profile].pre_filter.iter();
        let mut plugins = plugins.filter(|at| asked & (1 << **at) != 0);
        plugins.all(|at| !matches!(self.plugins[*at].pre_filter(&cycle), PreFilter::Reject(_)))
    }
}
