//! Measurements of the engine for `/metrics`.
//!
//! To read a clock around every call of a plugin would cost about as much as the calls. So one cycle in ten
//! is timed, as upstream does with its plugins, and at most 200 a second; of the filters and scores only one
//! pass over one node is timed, made for that purpose. Counters count every cycle.

use super::scope::{Prepared, Scope, filter_of, score_of};
use crate::framework::{
    Code, Instance, PermitResult, PreFilterResult, PreScoreResult, Profile, RowVerdict, Verdict,
};
use crate::state::NodeIndex;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Sampling rate: one cycle in this many is timed.
const EVERY: u32 = 10;
/// The minimum time between timed cycles, which bounds the cost when there are many cycles.
const REST: SignedDuration = SignedDuration::from_millis(5);
/// The maximum number of stored timings; no more are made until they are taken.
const KEEP: usize = 16 * 1024;

/// Extension points, as upstream's metrics spell them. Three have other names here: `BeforePreFilter` is
/// [`Preparation::prepare`](crate::framework::Preparation::prepare); `AfterPreFilter` is what restricts or orders
/// the nodes ([`PreFilter::only_nodes`](crate::framework::PreFilter::only_nodes), `prefer`, and
/// [`Release::special_rows`](crate::framework::Release::special_rows)), if it does; `BeforeFilter` is
/// [`Release::released`](crate::framework::Release::released), on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "upstream's names")]
pub enum Point {
    BeforePreFilter,
    PreFilter,
    AfterPreFilter,
    BeforeFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl Point {
    /// Returns the name in upstream's metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforePreFilter => "BeforePreFilter",
            Self::PreFilter => "PreFilter",
            Self::AfterPreFilter => "AfterPreFilter",
            Self::BeforeFilter => "BeforeFilter",
            Self::Filter => "Filter",
            Self::PostFilter => "PostFilter",
            Self::PreScore => "PreScore",
            Self::Score => "Score",
            Self::Reserve => "Reserve",
            Self::Permit => "Permit",
            Self::PreBind => "PreBind",
            Self::Bind => "Bind",
            Self::PostBind => "PostBind",
        }
    }
}

/// A duration or count measured by the engine. Statuses are named as upstream's.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the labels of the metric, and its value")]
pub enum Measurement {
    /// The time of a plugin at an extension point; for filters and scores, on one node.
    Plugin {
        plugin: &'static str,
        point: Point,
        status: &'static str,
        nanos: u64,
    },
    /// The time of all plugins at an extension point, on all evaluated nodes.
    Point {
        profile: usize,
        point: Point,
        status: &'static str,
        nanos: u64,
    },
    /// The time of one queueing hint.
    Hint {
        plugin: &'static str,
        event: &'static str,
        hint: &'static str,
        nanos: u64,
    },
    /// The end of a wait for permission.
    Permit { result: &'static str, seconds: f64 },
    /// The time to take the next member of a group out of the queue.
    NextPod { nanos: u64 },
}

/// All measurements since the last call of [`super::Telemetry::take_measures`].
#[derive(Debug, Default)]
pub struct Measures {
    /// The timings.
    pub timings: Vec<Measurement>,
    /// Numbers of plugin calls, by plugin, extension point and profile.
    pub evaluations: Vec<((&'static str, Point, usize), u64)>,
    /// The number of decisions by profile and use of a shared evaluation: `hint_used` if one was used,
    /// `no_hint` if there was none, `hint_not_used` if the pod's own check contradicted it.
    pub shared: Vec<((usize, &'static str), u64)>,
}

const COUNTED: [Point; 4] = [
    Point::PreFilter,
    Point::Filter,
    Point::PreScore,
    Point::Score,
];
const SHARED: [&str; 3] = ["no_hint", "hint_used", "hint_not_used"];

/// The outcome of looking up a shared evaluation.
#[derive(Debug, Clone, Copy)]
pub(super) enum CacheOutcome {
    Fresh,
    Known,
    Wrong,
}

/// Counts of verdicts on rows since they were last added to the metrics.
#[derive(Debug, Default)]
pub(super) struct FilterStats {
    fits: u64,
    /// Refused rows by plugin.
    refused: Vec<u64>,
    /// Rows that volatile plugins filtered, and those that passed. Updated while the evaluation is only
    /// borrowed.
    staged: [AtomicU64; 2],
    /// Rows that passed the volatile plugins for the last pod.
    left: AtomicUsize,
}

impl FilterStats {
    /// Counts the verdict on a row.
    pub(super) fn count_verdict(&mut self, verdict: &RowVerdict) {
        let plugin = match verdict {
            RowVerdict::Absent => return,
            RowVerdict::Fits(_) => {
                self.fits += 1;
                return;
            }
            RowVerdict::Refused(plugin, _) => *plugin,
        };
        self.refused_by(plugin, 1);
    }

    /// Counts `rows` rows that plugin `by` refused at once.
    pub(super) fn refused_by(&mut self, by: Instance, rows: usize) {
        if self.refused.len() <= by {
            self.refused.resize(by + 1, 0);
        }
        self.refused[by] += rows as u64;
    }

    /// Adds the counts of other rows.
    pub(super) fn append(&mut self, other: &Self) {
        self.fits += other.fits;
        for (by, rows) in other.refused.iter().enumerate() {
            if self.refused.len() <= by {
                self.refused.resize(by + 1, 0);
            }
            self.refused[by] += rows;
        }
    }

    /// Counts the rows that volatile plugins filtered for a pod, and those that passed.
    pub(super) fn stage(&self, judged: usize, left: usize) {
        for (sum, n) in self.staged.iter().zip([judged, left]) {
            sum.fetch_add(n as u64, Ordering::Relaxed);
        }
        self.left.store(left, Ordering::Relaxed);
    }

    /// Returns how many rows passed the volatile plugins for the last pod.
    pub(super) fn passed_rows(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    fn refused(&self, plugin: Instance) -> u64 {
        self.refused.get(plugin).copied().unwrap_or(0)
    }
}

/// Decides which of many operations are timed.
#[derive(Debug, Default)]
struct Sampler {
    since: u32,
    last: Option<Timestamp>,
}

impl Sampler {
    /// Returns true if the next operation is to be timed. The first one always is, so that an idle scheduler
    /// has timings, too.
    fn is_due(&self, now: Timestamp) -> bool {
        self.last
            .is_none_or(|last| self.since + 1 >= EVERY && now.duration_since(last) >= REST)
    }

    fn passed(&mut self, timed: bool, now: Timestamp) {
        if timed {
            (self.since, self.last) = (0, Some(now));
        } else {
            self.since = self.since.saturating_add(1).min(EVERY);
        }
    }
}

/// Counters and timings of the engine.
#[derive(Debug)]
pub(super) struct Meter {
    cycles: Sampler,
    bindings: Sampler,
    begun: Timestamp,
    /// The number of timed events. This and `taken` are updated while the engine is only borrowed; no
    /// decision depends on them.
    events: AtomicU32,
    on: bool,
    taken: Mutex<Vec<Measurement>>,
    /// Calls per profile and counted extension point, by plugin.
    evaluations: Vec<[Vec<u64>; 4]>,
    /// Uses of shared evaluations per profile.
    shared: Vec<[u64; 3]>,
    /// The number of nodes evaluated in the last successful cycle, and of those that fit.
    pub(super) compared: (usize, usize),
}

impl Meter {
    pub(super) fn new(profiles: usize, plugins: usize) -> Self {
        Self {
            cycles: Sampler::default(),
            bindings: Sampler::default(),
            begun: Timestamp::UNIX_EPOCH,
            events: AtomicU32::new(0),
            on: false,
            taken: Mutex::default(),
            evaluations: vec![std::array::from_fn(|_| vec![0; plugins]); profiles],
            shared: vec![[0; 3]; profiles],
            compared: (0, 0),
        }
    }

    /// Starts a cycle and decides whether it is timed.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.begun = now;
        self.on = self.cycles.is_due(now) && self.taken.get_mut().len() < KEEP;
    }

    /// Cancels a started cycle for which there is no pod.
    pub(super) fn cancel(&mut self) {
        self.on = false;
    }

    /// Ends a cycle.
    pub(super) fn end(&mut self) {
        self.cycles.passed(std::mem::take(&mut self.on), self.begun);
    }

    /// Starts the work after a binding and decides whether it is timed.
    pub(super) fn begin_after(&mut self, now: Timestamp) {
        self.begun = now;
        self.on = self.bindings.is_due(now) && self.taken.get_mut().len() < KEEP;
    }

    /// Ends the work after a binding, begun by [`Self::begin_after`], and its measurement if it is timed.
    pub(super) fn end_after(&mut self) {
        self.bindings
            .passed(std::mem::take(&mut self.on), self.begun);
    }

    /// Returns true if a queueing hint for the current event is to be timed.
    pub(super) fn times_event(&self) -> bool {
        let turn = self.events.fetch_add(1, Ordering::Relaxed);
        turn.is_multiple_of(EVERY) && self.taken.lock().len() < KEEP
    }

    pub(super) fn note(&self, measured: Measurement) {
        let mut measurements = self.taken.lock();
        if measurements.len() < 2 * KEEP {
            measurements.push(measured);
        }
    }

    /// Starts timing the plugins at `point`, if this cycle is timed.
    pub(super) fn start<'a>(
        &'a self,
        names: &'a [&'static str],
        profile: usize,
        point: Point,
    ) -> PluginTimer<'a> {
        PluginTimer(self.on.then(|| Stopwatch::new(self, names, profile, point)))
    }

    /// Starts timing the plugins at `point` in every cycle; for rare operations.
    pub(super) fn start_always<'a>(
        &'a self,
        names: &'a [&'static str],
        profile: usize,
        point: Point,
    ) -> PluginTimer<'a> {
        PluginTimer(Some(Stopwatch::new(self, names, profile, point)))
    }

    /// Measures one call of a plugin, if this cycle is timed and `counts` of its result.
    pub(super) fn time<T>(
        &self,
        plugin: &'static str,
        point: Point,
        counts: impl FnOnce(&T) -> bool,
        call: impl FnOnce() -> T,
    ) -> T {
        let Some(began) = self.now() else {
            return call();
        };
        let result = call();
        let nanos = nanos(began, Instant::now());
        if counts(&result) {
            self.note(Measurement::Plugin {
                plugin,
                point,
                status: "Success",
                nanos,
            });
        }
        result
    }

    /// Returns the current time if this cycle is timed.
    pub(super) fn now(&self) -> Option<Instant> {
        self.on.then(Instant::now)
    }

    /// Times every filter and, if it fits, every score on one node, if this cycle is timed: on `node` or, if
    /// there is none, on the first node.
    pub(super) fn sample(
        &self,
        scope: &Scope<'_>,
        names: &[&'static str],
        node: Option<NodeIndex>,
    ) {
        if !self.on {
            return;
        }
        let Some(node) = node.or_else(|| scope.cycle.view.nodes.indices().next()) else {
            return;
        };
        if let Some((plugin, ..)) = scope.sole_releasing() {
            self.time(
                names[plugin],
                Point::BeforeFilter,
                |_| true,
                || scope.released(node, &[]),
            );
        }
        let (removed, _) = scope.overlay_pods(node, &[]);
        let cycle = scope.with_removed(&removed, &[]);
        let mut last = Instant::now();
        let mut lap = |plugin: Instance, point, status| {
            let now = Instant::now();
            self.note(Measurement::Plugin {
                plugin: names[plugin],
                point,
                status,
                nanos: nanos(last, now),
            });
            last = Instant::now();
        };
        let prepared = scope.prepared;
        for (plugin, state) in prepared.filters.iter().chain(&prepared.volatile_filters) {
            let verdict = filter_of(scope.plugins, *plugin).filter(&cycle, state, node);
            let fits = verdict.is_ok();
            lap(*plugin, Point::Filter, verdict_status(&verdict));
            if !fits {
                return;
            }
        }
        for (plugin, _, state) in prepared.scores.iter().chain(&prepared.volatile_scores) {
            let _ = score_of(scope.plugins, *plugin).score(&cycle, state, node);
            lap(*plugin, Point::Score, "Success");
        }
    }

    /// Counts the pre-filter and pre-score calls for a pod.
    pub(super) fn prepared(&mut self, at: usize, profile: &Profile, prepared: &Prepared) {
        let Some([pre_filter, _, pre_score, _]) = self.evaluations.get_mut(at) else {
            return;
        };
        for (counts, plugins, skipped) in [
            (pre_filter, &profile.pre_filter, prepared.skipped),
            (pre_score, &profile.pre_score, prepared.unscored),
        ] {
            for plugin in plugins {
                counts[*plugin] += u64::from(skipped & (1 << plugin) == 0);
            }
        }
    }

    /// Counts the pre-filter calls for a pod that `by` refused.
    pub(super) fn rejected(&mut self, at: usize, profile: &Profile, by: Option<Instance>) {
        let Some([counts, ..]) = self.evaluations.get_mut(at) else {
            return;
        };
        for plugin in &profile.pre_filter {
            counts[*plugin] += 1;
            if Some(*plugin) == by {
                break;
            }
        }
    }

    /// Adds the calls that led to the counts in `filter_stats`, and resets them.
    pub(super) fn add_filter_stats(
        &mut self,
        at: usize,
        prepared: &Prepared,
        filter_stats: &mut FilterStats,
    ) {
        let outside = match (&prepared.only, prepared.only_by.first()) {
            (Some(_), Some(by)) => filter_stats.refused(*by),
            _ => 0,
        };
        let refused: u64 = filter_stats.refused.iter().sum();
        let mut calls = (filter_stats.fits + refused).saturating_sub(outside);
        let Some([_, filter, _, score]) = self.evaluations.get_mut(at) else {
            return;
        };
        if calls > 0 {
            for (plugin, _) in &prepared.filters {
                filter[*plugin] += calls;
                calls = calls.saturating_sub(filter_stats.refused(*plugin));
            }
            for (plugin, ..) in &prepared.scores {
                score[*plugin] += filter_stats.fits;
            }
        }
        let [judged, scored] = filter_stats
            .staged
            .each_mut()
            .map(|sum| std::mem::take(sum.get_mut()));
        for (plugin, _) in &prepared.volatile_filters {
            filter[*plugin] += judged;
        }
        for (plugin, ..) in &prepared.volatile_scores {
            score[*plugin] += scored;
        }
        filter_stats.fits = 0;
        filter_stats.refused.fill(0);
    }

    pub(super) fn served(&mut self, profile: usize, how: CacheOutcome) {
        if let Some(shared) = self.shared.get_mut(profile) {
            shared[how as usize] += 1;
        }
    }

    /// Returns true if enough is stored that it should be taken.
    pub(super) fn is_full(&mut self) -> bool {
        self.taken.get_mut().len() >= KEEP / 4
    }

    pub(super) fn take(&mut self, names: &[&'static str]) -> Measures {
        let mut out = Measures {
            timings: std::mem::take(self.taken.get_mut()),
            ..Measures::default()
        };
        for (profile, points) in self.evaluations.iter_mut().enumerate() {
            for (point, counts) in COUNTED.into_iter().zip(points) {
                for (name, count) in names.iter().zip(counts) {
                    let n = std::mem::take(count);
                    if n > 0 {
                        out.evaluations.push(((name, point, profile), n));
                    }
                }
            }
        }
        for (profile, counts) in self.shared.iter_mut().enumerate() {
            for (how, count) in SHARED.into_iter().zip(counts) {
                let n = std::mem::take(count);
                if n > 0 {
                    out.shared.push(((profile, how), n));
                }
            }
        }
        out
    }
}

struct Stopwatch<'a> {
    meter: &'a Meter,
    names: &'a [&'static str],
    profile: usize,
    point: Point,
    status: &'static str,
    began: Instant,
    last: Instant,
}

impl<'a> Stopwatch<'a> {
    fn new(meter: &'a Meter, names: &'a [&'static str], profile: usize, point: Point) -> Self {
        let began = Instant::now();
        Self {
            meter,
            names,
            profile,
            point,
            status: "Success",
            began,
            last: began,
        }
    }
}

/// Times plugins one after the other, and all of them together until it is dropped; does nothing in cycles
/// that are not timed.
pub(super) struct PluginTimer<'a>(Option<Stopwatch<'a>>);

impl PluginTimer<'_> {
    /// Records that plugin `plugin` has returned.
    pub(super) fn lap(&mut self, plugin: Instance, status: impl FnOnce() -> &'static str) {
        let Some(watch) = &mut self.0 else { return };
        let now = Instant::now();
        let status = status();
        if status != "Skip" {
            watch.status = status;
        }
        watch.meter.note(Measurement::Plugin {
            plugin: watch.names[plugin],
            point: watch.point,
            status,
            nanos: nanos(watch.last, now),
        });
        watch.last = Instant::now();
    }

    /// Sets the overall status, if it is not that of the last plugin.
    pub(super) fn ended(&mut self, status: &'static str) {
        if let Some(watch) = &mut self.0 {
            watch.status = status;
        }
    }
}

impl Drop for PluginTimer<'_> {
    fn drop(&mut self) {
        if let Some(watch) = &self.0 {
            watch.meter.note(Measurement::Point {
                profile: watch.profile,
                point: watch.point,
                status: watch.status,
                nanos: nanos(watch.began, Instant::now()),
            });
        }
    }
}

pub(super) fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn nanos_of(waited: SignedDuration) -> u64 {
    u64::try_from(waited.as_nanos()).unwrap_or(0)
}

fn code_status(code: Code) -> &'static str {
    match code {
        Code::Unschedulable => "Unschedulable",
        Code::Unresolvable => "UnschedulableAndUnresolvable",
        Code::Pending => "Pending",
        Code::Error => "Error",
    }
}

pub(super) fn verdict_status(verdict: &Verdict) -> &'static str {
    match verdict {
        Ok(()) => "Success",
        Err(rejection) => code_status(rejection.code),
    }
}

pub(super) fn pre_filter_status(answer: &PreFilterResult) -> &'static str {
    match answer {
        PreFilterResult::Ready { .. } => "Success",
        PreFilterResult::Skip => "Skip",
        PreFilterResult::Reject(rejection) => code_status(rejection.code),
    }
}

pub(super) fn pre_score_status(answer: &PreScoreResult) -> &'static str {
    match answer {
        PreScoreResult::Ready(_) => "Success",
        PreScoreResult::Skip => "Skip",
    }
}

pub(super) fn permit_status(answer: &PermitResult) -> &'static str {
    match answer {
        PermitResult::Allow => "Success",
        PermitResult::Wait(_) => "Wait",
        PermitResult::Reject(rejection) => code_status(rejection.code),
    }
}
