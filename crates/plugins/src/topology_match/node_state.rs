//! State of one node: the accepted report, and the pods that it has not counted yet.

use super::args::{InformerMode, OverReserve, ResyncMethod, ResyncScope};
use super::pod::PodFingerprint;
use super::report::Report;
use jiff::Timestamp;
use koord_model::alignment::{Config, FreeZones, fingerprint};
use koord_model::resources::{Amounts, ResourceTable};
use koord_scheduler::framework::View;
use koord_scheduler::state::{NodeIndex, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The pods that an exporter would count on a node.
struct ExporterPods {
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
struct ForeignPod {
    since: Timestamp,
    needs: Amounts,
}

/// Topology state of one node.
#[derive(Debug, Default)]
pub(super) struct NodeTopologyState {
    /// The accepted report; `None` if the node has no report.
    report: Option<Arc<Report>>,
    /// The newest report; differs from `report` only while uncounted pods are held or the node is doubtful.
    newest: Option<Arc<Report>>,
    /// The kubelet's alignment configuration.
    pub(super) config: Config,
    /// Requests of own pods that `report` has not counted, by uid.
    uncounted: FxHashMap<Arc<str>, Amounts>,
    /// Sum of `uncounted`, plus the pods of other schedulers if `timed_out`.
    uncounted_sum: Amounts,
    /// True if pods of other schedulers left and no report has counted that.
    foreign_left: bool,
    /// Pods of other schedulers that no report has counted, by uid.
    foreign: FxHashMap<Arc<str>, ForeignPod>,
    /// Since when `foreign` is not empty or `foreign_left` is set.
    doubtful_from: Option<Timestamp>,
    /// True if the wait for a matching report timed out. The requests of foreign pods are then subtracted
    /// like those of own pods, until a report matches.
    timed_out: bool,
    /// Pods that are about to be bound; used only by the cache mode that closes the node meanwhile.
    pub(super) binding: FxHashSet<Arc<str>>,
    /// Pods that have ended but still exist, by uid.
    pub(super) ended: FxHashMap<Arc<str>, PodFingerprint>,
    /// Since when pods are held or the node is doubtful.
    pub(super) since: Option<Timestamp>,
    /// True if the timeout of the wait that began at `since` was reported as a problem.
    pub(super) problem_reported: bool,
}

impl NodeTopologyState {
    /// Returns the accepted report.
    pub(super) fn report(&self) -> Option<&Report> {
        self.report.as_deref()
    }

    /// Returns the accepted report as a shared pointer.
    pub(super) fn accepted_report(&self) -> Option<Arc<Report>> {
        self.report.clone()
    }

    /// Returns the newest report.
    pub(super) fn newest(&self) -> Option<&Report> {
        self.newest.as_deref()
    }

    /// Returns the zones' free resources less `uncounted`, which is [`NodeTopologyState::uncounted_sum`] or
    /// smaller; `None` without a report.
    pub(super) fn free<'a>(&'a self, uncounted: &'a Amounts) -> Option<FreeZones<'a>> {
        let report = self.report.as_deref()?;
        Some(FreeZones::new(&report.zones, uncounted))
    }

    /// Returns true if the node's reports have a fingerprint of the pods that they counted.
    pub(super) fn has_fingerprint(&self) -> bool {
        let newest = self.newest.as_deref();
        newest.is_some_and(|report| report.fingerprint.is_some())
    }

    /// Returns the amounts to subtract from every zone.
    pub(super) fn uncounted_sum(&self) -> &Amounts {
        &self.uncounted_sum
    }

    /// Returns the amounts that are subtracted because of the pod `uid`.
    pub(super) fn uncounted_by(&self, uid: &str) -> Option<&Amounts> {
        let foreign = || self.foreign.get(uid).filter(|_| self.timed_out);
        let uncounted = self.uncounted.get(uid);
        uncounted.or_else(|| foreign().map(|foreign_pod| &foreign_pod.needs))
    }

    /// Returns true if pods came or left that the accepted report has not counted.
    pub(super) fn is_dirty(&self) -> bool {
        self.has_foreign() || !self.uncounted.is_empty()
    }

    /// Returns true if pods of other schedulers came or left that no report has counted.
    fn has_foreign(&self) -> bool {
        self.foreign_left || !self.foreign.is_empty()
    }

    /// Returns true while the node waits for a report that counts the pods of other schedulers.
    pub(super) fn is_doubtful(&self) -> bool {
        self.has_foreign() && !self.timed_out
    }

    /// Returns since when the node is doubtful; `None` if it is not.
    pub(super) fn doubtful_since(&self) -> Option<Timestamp> {
        self.doubtful_from.filter(|_| self.is_doubtful())
    }

    /// Stops waiting for a matching report. The accepted report less the requests of all pods that came since
    /// is still a safe estimate: a pod that leaves takes nothing.
    pub(super) fn give_up(&mut self) {
        self.timed_out = true;
        self.recompute_sum();
    }

    /// Records a pod of another scheduler that came to the node or starts.
    pub(super) fn add_foreign(&mut self, uid: &Arc<str>, needs: &Amounts, now: Timestamp) {
        let foreign_pod = ForeignPod {
            since: now,
            needs: needs.clone(),
        };
        self.foreign.insert(uid.clone(), foreign_pod);
        self.foreign_changed(now);
    }

    /// Records that a pod of another scheduler left the node.
    pub(super) fn remove_foreign(&mut self, uid: &str, now: Timestamp) {
        self.foreign.remove(uid);
        self.foreign_left = true;
        self.foreign_changed(now);
    }

    fn foreign_changed(&mut self, now: Timestamp) {
        self.since.get_or_insert(now);
        self.doubtful_from.get_or_insert(now);
        if self.timed_out {
            self.recompute_sum();
        }
    }

    /// Returns since when each uncounted pod of another scheduler is on the node.
    pub(super) fn foreign_since(&self) -> impl Iterator<Item = Timestamp> {
        self.foreign.values().map(|foreign_pod| foreign_pod.since)
    }

    /// Subtracts a pod's requests until a report has counted it. Returns false without a report, or if the
    /// pod is held already.
    pub(super) fn hold(&mut self, uid: &Arc<str>, needs: &Amounts, now: Timestamp) -> bool {
        if self.report.is_none() || self.uncounted.contains_key(uid) {
            return false;
        }
        self.uncounted_sum.add_all(needs);
        self.uncounted.insert(uid.clone(), needs.clone());
        self.since.get_or_insert(now);
        true
    }

    /// Stops holding a pod that left; no accepted report has counted it. Returns true if it was held.
    pub(super) fn release(&mut self, uid: &str) -> bool {
        let Some(needs) = self.uncounted.remove(uid) else {
            return false;
        };
        self.uncounted_sum.sub_all(&needs);
        self.clear_if_complete();
        true
    }

    /// Stores a new report; `None` means that it was deleted. Returns true if the accepted report or
    /// configuration changed.
    pub(super) fn receive_report(
        &mut self,
        report: Option<Arc<Report>>,
        scope: ResyncScope,
    ) -> bool {
        self.newest = report;
        let Some(newest) = self.newest.clone().filter(|_| self.report.is_some()) else {
            // The first report, or the deletion of the last.
            return self.accept_report();
        };
        if !self.is_dirty() {
            return self.accept_report();
        }
        let other = scope == ResyncScope::All && self.config != newest.config;
        if other {
            self.config = newest.config;
        }
        other
    }

    fn accept_report(&mut self) -> bool {
        let changed = self.report != self.newest;
        self.report = self.newest.clone();
        self.config = self.report.as_ref().map(|it| it.config).unwrap_or_default();
        if self.report.is_none() {
            self.uncounted.clear();
            self.uncounted_sum = Amounts::new();
            self.foreign_left = false;
            self.foreign.clear();
        }
        self.clear_if_complete();
        changed
    }

    fn clear_if_complete(&mut self) {
        if self.uncounted.is_empty() {
            // Repeated subtraction can leave remainders, so the sum is computed again.
            self.recompute_sum();
        }
        if !self.is_dirty() {
            (self.since, self.problem_reported) = (None, false);
            (self.doubtful_from, self.timed_out) = (None, false);
            self.report = self.newest.clone();
            self.config = self.report.as_ref().map(|it| it.config).unwrap_or_default();
        }
    }

    fn recompute_sum(&mut self) {
        self.uncounted_sum = Amounts::new();
        let foreign = self.foreign.values().filter(|_| self.timed_out);
        let foreign = foreign.map(|foreign_pod| &foreign_pod.needs);
        for needs in self.uncounted.values().chain(foreign) {
            self.uncounted_sum.add_all(needs);
        }
    }

    /// Returns the pods that an exporter would count now, with their fingerprints.
    fn exporter_pods(
        &self,
        node: NodeIndex,
        view: View<'_>,
        mode: &OverReserve,
        only_exclusive: bool,
    ) -> ExporterPods {
        let mut uids = FxHashSet::default();
        let newest = self.newest.as_deref();
        let lists = |id| newest.is_some_and(|report| report.lists(id));
        let hash = |print: &PodFingerprint| {
            (!only_exclusive || print.is_exclusive(lists)).then_some(print.hash)
        };
        let mut hashes = Vec::new();
        for pod in view.nodes.pods(node) {
            if is_counted(pod, mode.informer) {
                uids.insert(pod.uid.clone());
                hashes.extend(hash(&PodFingerprint::from_pod(pod, view.resources)));
            }
        }
        let active = fingerprint::from_hashes(hashes.iter().copied());
        let with_ended = (mode.informer == InformerMode::Dedicated).then(|| {
            hashes.extend(self.ended.values().filter_map(hash));
            fingerprint::from_hashes(hashes)
        });
        ExporterPods {
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
        mode: &OverReserve,
        too_long: impl Fn(Timestamp) -> bool,
    ) -> bool {
        let Some(newest) = self.newest.clone().filter(|_| self.is_dirty()) else {
            return false;
        };
        let Some(stated) = &newest.fingerprint else {
            return false;
        };
        let exporter_pods =
            self.exporter_pods(node, view, mode, is_exclusive(&newest, mode.method));
        if exporter_pods.active != *stated && exporter_pods.with_ended.as_ref() != Some(stated) {
            return false;
        }
        // A pod placed after the exporter looked is in no fingerprint, so it stays held.
        self.uncounted
            .retain(|uid, _| !exporter_pods.uids.contains(uid));
        let was_doubtful = self.is_doubtful();
        (self.foreign).retain(|uid, it| !exporter_pods.uids.contains(uid) && !too_long(it.since));
        (self.foreign_left, self.timed_out) = (false, false);
        self.doubtful_from = self.foreign_since().min();
        self.recompute_sum();
        (self.since, self.problem_reported) = (None, false);
        if self.is_dirty() {
            self.since = Some(view.now);
        }
        self.report = Some(newest.clone());
        self.config = newest.config;
        !(was_doubtful && self.is_doubtful())
    }

    /// Returns the problem message about a report that does not match the node's pods.
    pub(super) fn problem_message(
        &self,
        node: NodeIndex,
        view: View<'_>,
        mode: &OverReserve,
    ) -> String {
        let newest = self.newest.as_deref();
        let difference = match newest.and_then(|report| report.fingerprint.as_deref()) {
            None => "has no attribute nodeTopologyPodsFingerprint".to_owned(),
            Some(stated) => {
                let only = newest.is_some_and(|report| is_exclusive(report, mode.method));
                let exporter_pods = self.exporter_pods(node, view, mode, only);
                let ended = exporter_pods.with_ended.as_ref().map(|it| {
                    let count = self.ended.len();
                    format!(", or {it:?} with the {count} that have ended")
                });
                format!(
                    "states fingerprint {stated:?} of its pods, and the {} pods known here make {:?}{}",
                    exporter_pods.uids.len(),
                    exporter_pods.active,
                    ended.unwrap_or_default()
                )
            }
        };
        let effect = if self.is_doubtful() {
            "the node takes no pod that must be aligned".to_owned()
        } else {
            format!(
                "what {} pods need is missing in each of its NUMA nodes",
                self.uncounted_pods()
            )
        };
        format!("NodeResourceTopology of the node {difference}: {effect} until they agree")
    }

    /// Returns the number of pods whose requests are subtracted from each zone.
    fn uncounted_pods(&self) -> usize {
        let foreign = if self.timed_out {
            self.foreign.len()
        } else {
            0
        };
        self.uncounted.len() + foreign
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
            "missingInEach": amounts(&self.uncounted_sum),
            "uncountedPods": self.uncounted_pods(),
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
