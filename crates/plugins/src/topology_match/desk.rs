//! What is known of a node: the report that is believed, and what it has not counted yet.

use super::args::{InformerMode, OverReserve, ResyncMethod, ResyncScope};
use super::pod::Print;
use super::report::Report;
use jiff::Timestamp;
use koord_model::alignment::{Config, Free, fingerprint};
use koord_model::resources::{Amounts, ResourceTable};
use koord_scheduler::framework::View;
use koord_scheduler::state::{NodeIndex, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The pods that an exporter would count.
struct Counted {
    /// Those that have not ended, with those that no fingerprint has, as they have nothing of their own.
    uids: FxHashSet<Arc<str>>,
    /// The fingerprint of those.
    active: String,
    /// The same with those that have ended, where that is another: kubelets before 1.34 list these, too.
    /// Either way, all that have something were counted.
    with_ended: Option<String>,
}

/// A pod of another scheduler that no report has counted.
#[derive(Debug)]
struct Awaited {
    since: Timestamp,
    needs: Amounts,
}

/// One node.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// What is believed; `None` where nobody reports.
    report: Option<Arc<Report>>,
    /// The newest; another one than `report` only while something is held or doubtful.
    newest: Option<Arc<Report>>,
    /// How the kubelet aligns.
    pub(super) config: Config,
    /// What pods need that `report` has not counted, by uid.
    held: FxHashMap<Arc<str>, Amounts>,
    /// Their sum, with the pods of other schedulers if `unheard`.
    sum: Amounts,
    /// Pods of other schedulers left, and no report has counted that.
    left: bool,
    /// Pods of other schedulers that no report has counted, by uid.
    foreign: FxHashMap<Arc<str>, Awaited>,
    /// Since when there are such, or `left`.
    doubt: Option<Timestamp>,
    /// That lasted too long. Nobody waits any more: what the pods of other schedulers need counts as what
    /// ours do, until a report agrees.
    unheard: bool,
    /// Pods that are about to be bound, where these keep others away.
    pub(super) binding: FxHashSet<Arc<str>>,
    /// Pods that have ended and are still there, by uid.
    pub(super) ended: FxHashMap<Arc<str>, Print>,
    /// Since when something is held or doubtful.
    pub(super) since: Option<Timestamp>,
    /// Whether it was complained about that it lasts.
    pub(super) told: bool,
}

impl Desk {
    /// The report that is believed.
    pub(super) fn report(&self) -> Option<&Report> {
        self.report.as_deref()
    }

    /// The same, to be kept.
    pub(super) fn believed(&self) -> Option<Arc<Report>> {
        self.report.clone()
    }

    /// The newest report.
    pub(super) fn newest(&self) -> Option<&Report> {
        self.newest.as_deref()
    }

    /// What the zones have for pods; `held` is [`Desk::held`] or less.
    pub(super) fn free<'a>(&'a self, held: &'a Amounts) -> Option<Free<'a>> {
        let report = self.report.as_deref()?;
        Some(Free::new(&report.zones, held))
    }

    /// Whether reports say which pods they have counted.
    pub(super) fn can_tell(&self) -> bool {
        let newest = self.newest.as_deref();
        newest.is_some_and(|report| report.fingerprint.is_some())
    }

    /// What is missing in every zone.
    pub(super) fn held(&self) -> &Amounts {
        &self.sum
    }

    /// What is missing because of the pod `uid`.
    pub(super) fn held_by(&self, uid: &str) -> Option<&Amounts> {
        let foreign = || self.foreign.get(uid).filter(|_| self.unheard);
        let held = self.held.get(uid);
        held.or_else(|| foreign().map(|awaited| &awaited.needs))
    }

    /// Whether the believed report may not be all there is to know.
    pub(super) fn is_dirty(&self) -> bool {
        self.has_foreign() || !self.held.is_empty()
    }

    /// Whether pods of other schedulers came or went, and no report has counted that.
    fn has_foreign(&self) -> bool {
        self.left || !self.foreign.is_empty()
    }

    /// Whether such a report is waited for.
    pub(super) fn is_doubtful(&self) -> bool {
        self.has_foreign() && !self.unheard
    }

    /// Since when, if so.
    pub(super) fn doubtful_since(&self) -> Option<Timestamp> {
        self.doubt.filter(|_| self.is_doubtful())
    }

    /// Waits no longer. What was free by the believed report, without what any pod needs that came since,
    /// is free still: a pod that leaves takes nothing.
    pub(super) fn give_up(&mut self) {
        self.unheard = true;
        self.recount();
    }

    /// A pod of another scheduler came, or starts.
    pub(super) fn await_foreign(&mut self, uid: &Arc<str>, needs: &Amounts, now: Timestamp) {
        let awaited = Awaited {
            since: now,
            needs: needs.clone(),
        };
        self.foreign.insert(uid.clone(), awaited);
        self.foreign_moved(now);
    }

    /// A pod of another scheduler left.
    pub(super) fn foreign_left(&mut self, uid: &str, now: Timestamp) {
        self.foreign.remove(uid);
        self.left = true;
        self.foreign_moved(now);
    }

    fn foreign_moved(&mut self, now: Timestamp) {
        self.since.get_or_insert(now);
        self.doubt.get_or_insert(now);
        if self.unheard {
            self.recount();
        }
    }

    /// Since when each of the pods of other schedulers is waited for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = Timestamp> {
        self.foreign.values().map(|awaited| awaited.since)
    }

    /// Counts a pod until a report has. `false` where nobody reports.
    pub(super) fn hold(&mut self, uid: &Arc<str>, needs: &Amounts, now: Timestamp) -> bool {
        if self.report.is_none() || self.held.contains_key(uid) {
            return false;
        }
        self.sum.add_all(needs);
        self.held.insert(uid.clone(), needs.clone());
        self.since.get_or_insert(now);
        true
    }

    /// A pod is gone: whatever it needed, no report that is believed has counted it.
    pub(super) fn let_go(&mut self, uid: &str) -> bool {
        let Some(needs) = self.held.remove(uid) else {
            return false;
        };
        self.sum.sub_all(&needs);
        self.settle();
        true
    }

    /// A report came, or `None` for its end. Whether what is believed changed.
    pub(super) fn reported(&mut self, report: Option<Arc<Report>>, scope: ResyncScope) -> bool {
        self.newest = report;
        let Some(newest) = self.newest.clone().filter(|_| self.report.is_some()) else {
            // The first, or none any more.
            return self.believe();
        };
        if !self.is_dirty() {
            return self.believe();
        }
        let other = scope == ResyncScope::All && self.config != newest.config;
        if other {
            self.config = newest.config;
        }
        other
    }

    fn believe(&mut self) -> bool {
        let changed = self.report != self.newest;
        self.report = self.newest.clone();
        self.config = self.report.as_ref().map(|it| it.config).unwrap_or_default();
        if self.report.is_none() {
            self.held.clear();
            self.sum = Amounts::new();
            self.left = false;
            self.foreign.clear();
        }
        self.settle();
        changed
    }

    fn settle(&mut self) {
        if self.held.is_empty() {
            // Sums of what is gone are nothing.
            self.recount();
        }
        if !self.is_dirty() {
            (self.since, self.told) = (None, false);
            (self.doubt, self.unheard) = (None, false);
            self.report = self.newest.clone();
            self.config = self.report.as_ref().map(|it| it.config).unwrap_or_default();
        }
    }

    fn recount(&mut self) {
        self.sum = Amounts::new();
        let foreign = self.foreign.values().filter(|_| self.unheard);
        let foreign = foreign.map(|awaited| &awaited.needs);
        for needs in self.held.values().chain(foreign) {
            self.sum.add_all(needs);
        }
    }

    /// The pods that an exporter would count.
    fn counted(
        &self,
        node: NodeIndex,
        view: View<'_>,
        how: &OverReserve,
        only_exclusive: bool,
    ) -> Counted {
        let mut uids = FxHashSet::default();
        let newest = self.newest.as_deref();
        let lists = |id| newest.is_some_and(|report| report.lists(id));
        let hash =
            |print: &Print| (!only_exclusive || print.is_exclusive(lists)).then_some(print.hash);
        let mut hashes = Vec::new();
        for pod in view.nodes.pods(node) {
            if is_counted(pod, how.informer) {
                uids.insert(pod.uid.clone());
                hashes.extend(hash(&Print::of(pod, view.resources)));
            }
        }
        let active = fingerprint::of(hashes.iter().copied());
        let with_ended = (how.informer == InformerMode::Dedicated).then(|| {
            hashes.extend(self.ended.values().filter_map(hash));
            fingerprint::of(hashes)
        });
        Counted {
            uids,
            with_ended: with_ended.filter(|it| *it != active),
            active,
        }
    }

    /// Compares the newest report with the pods on the node. If it has counted them, and no others, it
    /// is believed, and none of them is held any longer. Pods of other schedulers that are not counted
    /// yet stay in doubt unless `too_long`: a report from before they came agrees, too, until they run.
    /// Whether that changed anything.
    pub(super) fn resync(
        &mut self,
        node: NodeIndex,
        view: View<'_>,
        how: &OverReserve,
        too_long: impl Fn(Timestamp) -> bool,
    ) -> bool {
        let Some(newest) = self.newest.clone().filter(|_| self.is_dirty()) else {
            return false;
        };
        let Some(stated) = &newest.fingerprint else {
            return false;
        };
        let known = self.counted(node, view, how, is_exclusive(&newest, how.method));
        if known.active != *stated && known.with_ended.as_ref() != Some(stated) {
            return false;
        }
        // A pod that was placed after the exporter looked is in no fingerprint, and stays held.
        self.held.retain(|uid, _| !known.uids.contains(uid));
        let was_doubtful = self.is_doubtful();
        (self.foreign).retain(|uid, it| !known.uids.contains(uid) && !too_long(it.since));
        (self.left, self.unheard) = (false, false);
        self.doubt = self.awaited().min();
        self.recount();
        (self.since, self.told) = (None, false);
        if self.is_dirty() {
            self.since = Some(view.now);
        }
        self.report = Some(newest.clone());
        self.config = newest.config;
        !(was_doubtful && self.is_doubtful())
    }

    /// Why nothing is believed any more, for people.
    pub(super) fn complaint(&self, node: NodeIndex, view: View<'_>, how: &OverReserve) -> String {
        let newest = self.newest.as_deref();
        let why = match newest.and_then(|report| report.fingerprint.as_deref()) {
            None => "has no attribute nodeTopologyPodsFingerprint".to_owned(),
            Some(stated) => {
                let only = newest.is_some_and(|report| is_exclusive(report, how.method));
                let known = self.counted(node, view, how, only);
                let ended = known.with_ended.as_ref().map(|it| {
                    let count = self.ended.len();
                    format!(", or {it:?} with the {count} that have ended")
                });
                format!(
                    "states fingerprint {stated:?} of its pods, and the {} pods known here make {:?}{}",
                    known.uids.len(),
                    known.active,
                    ended.unwrap_or_default()
                )
            }
        };
        let effect = if self.is_doubtful() {
            "the node takes no pod that must be aligned".to_owned()
        } else {
            format!(
                "what {} pods need is missing in each of its NUMA nodes",
                self.uncounted()
            )
        };
        format!("NodeResourceTopology of the node {why}: {effect} until they agree")
    }

    /// Pods whose needs are missing in each zone.
    fn uncounted(&self) -> usize {
        let foreign = if self.unheard { self.foreign.len() } else { 0 };
        self.held.len() + foreign
    }

    /// For people: what is believed and what is in doubt.
    pub(super) fn describe(&self, table: &ResourceTable) -> serde_json::Value {
        let amounts = |amounts: &Amounts| {
            let pairs = amounts.iter().map(|(id, amount)| {
                let name = table.name(id).to_string();
                (name, serde_json::Value::from(amount))
            });
            serde_json::Value::Object(pairs.collect())
        };
        let zones = self.report.iter().flat_map(|report| &report.zones);
        let zones = zones.map(|zone| {
            let name = koord_api::topology::zone_name(zone.id);
            (name, amounts(&zone.available))
        });
        serde_json::json!({
            "policy": format!("{:?}", self.config.policy),
            "scope": format!("{:?}", self.config.scope),
            "available": serde_json::Value::Object(zones.collect()),
            "missingInEach": amounts(&self.sum),
            "uncountedPods": self.uncounted(),
            "foreignPodsUncounted": self.has_foreign(),
            "waitsForReport": self.is_doubtful(),
            "binding": self.binding.len(),
            "fingerprint": self.newest.as_ref().and_then(|report| report.fingerprint.clone()),
            "since": self.since.map(|since| since.to_string()),
        })
    }
}

fn is_exclusive(report: &Report, method: ResyncMethod) -> bool {
    // The old annotation is always about all pods.
    match method {
        ResyncMethod::All => false,
        ResyncMethod::OnlyExclusiveResources => report.attributed,
        ResyncMethod::Autodetect => report.only_exclusive,
    }
}

/// Whether the fingerprint of the pods that are there has this one.
pub(super) fn is_counted(pod: &PodInfo, informer: InformerMode) -> bool {
    let phase = pod.status().and_then(|status| status.phase.as_deref());
    pod.node.is_some()
        && match informer {
            InformerMode::Shared => phase == Some("Running"),
            InformerMode::Dedicated => !matches!(phase, None | Some("Pending")),
        }
}
