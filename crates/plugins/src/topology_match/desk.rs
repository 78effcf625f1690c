//! State of one node: the accepted report, and the pods that it has not counted yet.

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

/// The pods that an exporter would count on a node.
struct Counted {
    /// Pods that have not ended, including those that a fingerprint leaves out because they have no exclusive
    /// resources.
    uids: FxHashSet<Arc<str>>,
    /// Fingerprint of the pods that have not ended.
    active: String,
    /// Fingerprint that also includes ended pods, if it differs: kubelets before 1.34 list these too. A match
    /// of either means that all pods with exclusive resources were counted.
    with_ended: Option<String>,
}

/// A pod of another scheduler that no report has counted yet.
#[derive(Debug)]
struct Awaited {
    since: Timestamp,
    needs: Amounts,
}

/// Topology state of one node.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The accepted report; `None` if the node has no report.
    report: Option<Arc<Report>>,
    /// The newest report; differs from `report` only while uncounted pods are held or the node is doubtful.
    newest: Option<Arc<Report>>,
    /// The kubelet's alignment configuration.
    pub(super) config: Config,
    /// Requests of own pods that `report` has not counted, by uid.
    held: FxHashMap<Arc<str>, Amounts>,
    /// Sum of `held`, plus the pods of other schedulers if `unheard`.
    sum: Amounts,
    /// True if pods of other schedulers left and no report has counted that.
    left: bool,
    /// Pods of other schedulers that no report has counted, by uid.
    foreign: FxHashMap<Arc<str>, Awaited>,
    /// Since when `foreign` is not empty or `left` is set.
    doubt: Option<Timestamp>,
    /// True if the wait for a matching report timed out. The requests of foreign pods are then subtracted
    /// like those of own pods, until a report matches.
    unheard: bool,
    /// Pods that are about to be bound; used only by the cache mode that closes the node meanwhile.
    pub(super) binding: FxHashSet<Arc<str>>,
    /// Pods that have ended but still exist, by uid.
    pub(super) ended: FxHashMap<Arc<str>, Print>,
    /// Since when pods are held or the node is doubtful.
    pub(super) since: Option<Timestamp>,
    /// True if a problem was reported for the current wait.
    pub(super) told: bool,
}

impl Desk {
    /// Returns the accepted report.
    pub(super) fn report(&self) -> Option<&Report> {
        self.report.as_deref()
    }

    /// Returns the accepted report as a shared pointer.
    pub(super) fn believed(&self) -> Option<Arc<Report>> {
        self.report.clone()
    }

    /// Returns the newest report.
    pub(super) fn newest(&self) -> Option<&Report> {
        self.newest.as_deref()
    }

    /// Returns the zones' free resources less `held`, which is [`Desk::held`] or smaller; `None` without a
    /// report.
    pub(super) fn free<'a>(&'a self, held: &'a Amounts) -> Option<Free<'a>> {
        let report = self.report.as_deref()?;
        Some(Free::new(&report.zones, held))
    }

    /// Returns true if the node's reports have a fingerprint of the pods that they counted.
    pub(super) fn can_tell(&self) -> bool {
        let newest = self.newest.as_deref();
        newest.is_some_and(|report| report.fingerprint.is_some())
    }

    /// Returns the amounts to subtract from every zone.
    pub(super) fn held(&self) -> &Amounts {
        &self.sum
    }

    /// Returns the amounts that are subtracted because of the pod `uid`.
    pub(super) fn held_by(&self, uid: &str) -> Option<&Amounts> {
        let foreign = || self.foreign.get(uid).filter(|_| self.unheard);
        let held = self.held.get(uid);
        held.or_else(|| foreign().map(|awaited| &awaited.needs))
    }

    /// Returns true if pods came or left that the accepted report has not counted.
    pub(super) fn is_dirty(&self) -> bool {
        self.has_foreign() || !self.held.is_empty()
    }

    /// Returns true if pods of other schedulers came or left that no report has counted.
    fn has_foreign(&self) -> bool {
        self.left || !self.foreign.is_empty()
    }

    /// Returns true while the node waits for a report that counts the pods of other schedulers.
    pub(super) fn is_doubtful(&self) -> bool {
        self.has_foreign() && !self.unheard
    }

    /// Returns since when the node is doubtful; `None` if it is not.
    pub(super) fn doubtful_since(&self) -> Option<Timestamp> {
        self.doubt.filter(|_| self.is_doubtful())
    }

    /// Stops waiting for a matching report. The accepted report less the requests of all pods that came since
    /// is still a safe estimate: a pod that leaves takes nothing.
    pub(super) fn give_up(&mut self) {
        self.unheard = true;
        self.recount();
    }

    /// Records a pod of another scheduler that came to the node or starts.
    pub(super) fn await_foreign(&mut self, uid: &Arc<str>, needs: &Amounts, now: Timestamp) {
        let awaited = Awaited {
            since: now,
            needs: needs.clone(),
        };
        self.foreign.insert(uid.clone(), awaited);
        self.foreign_moved(now);
    }

    /// Records that a pod of another scheduler left the node.
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

    /// Returns since when each uncounted pod of another scheduler is on the node.
    pub(super) fn awaited(&self) -> impl Iterator<Item = Timestamp> {
        self.foreign.values().map(|awaited| awaited.since)
    }

    /// Subtracts a pod's requests until a report has counted it. Returns false without a report, or if the
    /// pod is held already.
    pub(super) fn hold(&mut self, uid: &Arc<str>, needs: &Amounts, now: Timestamp) -> bool {
        if self.report.is_none() || self.held.contains_key(uid) {
            return false;
        }
        self.sum.add_all(needs);
        self.held.insert(uid.clone(), needs.clone());
        self.since.get_or_insert(now);
        true
    }

    /// Stops holding a pod that left; no accepted report has counted it. Returns true if it was held.
    pub(super) fn let_go(&mut self, uid: &str) -> bool {
        let Some(needs) = self.held.remove(uid) else {
            return false;
        };
        self.sum.sub_all(&needs);
        self.settle();
        true
    }

    /// Stores a new report; `None` means that it was deleted. Returns true if the accepted report or
    /// configuration changed.
    pub(super) fn reported(&mut self, report: Option<Arc<Report>>, scope: ResyncScope) -> bool {
        self.newest = report;
        let Some(newest) = self.newest.clone().filter(|_| self.report.is_some()) else {
            // The first report, or the deletion of the last.
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
            // Repeated subtraction can leave remainders, so the sum is computed again.
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

    /// Returns the pods that an exporter would count now, with their fingerprints.
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

    /// Compares the newest report with the pods on the node. If its fingerprint is that of these pods, it is
    /// accepted and they are no longer held. Foreign pods that are not running yet stay uncounted unless
    /// `too_long` is true for them, because a report from before they came has the same fingerprint. Returns
    /// true if pods may now fit that did not before.
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
        // A pod placed after the exporter looked is in no fingerprint, so it stays held.
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

    /// Returns the problem message about a report that does not match the node's pods.
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

    /// Returns the number of pods whose requests are subtracted from each zone.
    fn uncounted(&self) -> usize {
        let foreign = if self.unheard { self.foreign.len() } else { 0 };
        self.held.len() + foreign
    }

    /// Returns the state as JSON for the inspection API.
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
    // The annotation of old exporters always covers all pods.
    match method {
        ResyncMethod::All => false,
        ResyncMethod::OnlyExclusiveResources => report.attributed,
        ResyncMethod::Autodetect => report.only_exclusive,
    }
}

/// Returns true if an exporter in this informer mode includes the pod in its fingerprint.
pub(super) fn is_counted(pod: &PodInfo, informer: InformerMode) -> bool {
    let phase = pod.status().and_then(|status| status.phase.as_deref());
    pod.node.is_some()
        && match informer {
            InformerMode::Shared => phase == Some("Running"),
            InformerMode::Dedicated => !matches!(phase, None | Some("Pending")),
        }
}
