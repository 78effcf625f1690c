//! The reservations and their owners, kept exact by every event, in whatever order events come.

use super::NAME;
use super::owners::{Owners, SpecId};
use super::pod::{Phase, Terms};
use super::side::{Affinity, PodSide, Unmatched};
use crate::common::restricted::{self, AllocatePolicy};
use jiff::Timestamp;
use koord_api::GoDuration;
use koord_api::extension::AnnotationError;
use koord_api::scheduling::Reservation;
use koord_model::resources::Amounts;
use koord_scheduler::framework::{Effects, Problem, ReportedProblems, View};
use koord_scheduler::state::{NodeIndex, NodeStore, PodInfo};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::sync::Arc;

/// One reservation.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) object: Arc<Reservation>,
    pub(super) name: Arc<str>,
    pub(super) uid: Arc<str>,
    pub(super) terms: Terms,
    /// Its owners' list; none when that, or something else, was not understood.
    pub(super) spec: Option<SpecId>,
    /// Where the pod that stands for it is booked.
    pub(super) row: Option<NodeIndex>,
    /// That pod, as it is booked.
    pub(super) pod: Arc<PodInfo>,
    /// What its owners request.
    pub(super) taken: Amounts,
    /// How many owners it has.
    pub(super) pods: i64,
    /// The last status this process wrote, until the informer shows it.
    pub(super) sent: super::control::Sent,
    /// The last valid `spec.ttl`.
    pub(super) ttl: Option<GoDuration>,
    /// When this process saw it first. It was not created later, whatever the clock of who created it.
    pub(super) seen: Timestamp,
    /// When this process saw first that it is over.
    pub(super) over: Option<Timestamp>,
}

impl Record {
    /// Whether pods may use it now.
    pub(super) fn is_matchable(&self) -> bool {
        self.terms.phase == Phase::Available
            && self.spec.is_some()
            && !(self.terms.once && self.pods > 0)
    }

    /// Whether it is not placed, and may be.
    pub(super) fn may_still_come(&self) -> bool {
        self.terms.phase == Phase::Pending
    }

    /// What its owners use of the resources that it gives alone. What they use of others may be
    /// listed, too.
    pub(super) fn allocated(&self) -> Cow<'_, Amounts> {
        if self.terms.resources.len() >= self.terms.allocatable.iter().count() {
            return Cow::Borrowed(&self.taken);
        }
        let listed = |(id, _): &(_, i64)| self.terms.resources.contains(id);
        Cow::Owned(self.taken.iter().filter(listed).collect())
    }
}

/// What of a reservation decides most cases, side by side with its neighbours on the node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    at: u32,
    /// Its owners' list while it is open to them, else 0.
    spec: SpecId,
    /// Whether it is closed to those who do not insist.
    closed: bool,
}

/// A pod that uses a reservation.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) pod: Arc<PodInfo>,
    pub(super) node: Arc<str>,
    /// Whether the API says so; else it is only assumed.
    pub(super) confirmed: bool,
    /// Whether it ran already when the reservation was placed over it.
    pub(super) ahead: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Table {
    records: Vec<Option<Record>>,
    free: Vec<u32>,
    by_uid: FxHashMap<Arc<str>, u32>,
    by_name: FxHashMap<Arc<str>, u32>,
    /// Per row of the node store, the reservations booked there.
    by_row: Vec<Vec<Seat>>,
    /// By uid of the reservation, which may not be known (yet, or any more), then of the pod.
    owners: FxHashMap<Arc<str>, FxHashMap<Arc<str>, Owner>>,
    owner_of: FxHashMap<Arc<str>, Arc<str>>,
    /// By uid of a reservation that is being placed: who is on its node and was told of it before, and is
    /// not taken in this time.
    pub(super) left_out: FxHashMap<Arc<str>, Vec<Arc<PodInfo>>>,
    specs: Owners,
    /// Reservations, by uid, whose status may have to be written.
    pub(super) dirty: FxHashSet<Arc<str>>,
    reported: ReportedProblems,
}

impl Table {
    pub(super) fn find(&self, uid: &str) -> Option<u32> {
        self.by_uid.get(uid).copied()
    }

    pub(super) fn named(&self, name: &str) -> Option<&Record> {
        self.record(*self.by_name.get(name)?)
    }

    pub(super) fn record(&self, at: u32) -> Option<&Record> {
        self.records.get(at as usize)?.as_ref()
    }

    pub(super) fn record_mut(&mut self, at: u32) -> Option<&mut Record> {
        self.records.get_mut(at as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().flatten()
    }

    /// The reservations booked on `node`.
    pub(super) fn on(&self, node: NodeIndex) -> impl Iterator<Item = (u32, &Record)> {
        let listed = self.by_row.get(node.row()).into_iter().flatten();
        listed.filter_map(|seat| Some((seat.at, self.record(seat.at)?)))
    }

    /// The reservations on `node` that `pod` may use now.
    pub(super) fn usable<'a>(
        &'a self,
        pod: &PodInfo,
        side: &PodSide,
        node: NodeIndex,
        view: View<'_>,
        node_labels: bool,
    ) -> Vec<(u32, &'a Record)> {
        let mut out = Vec::new();
        for seat in self.by_row.get(node.row()).into_iter().flatten() {
            if seat.spec == 0 || !(side.ignores || side.owner_of.contains(&seat.spec)) {
                continue;
            }
            // Nothing but the owners' list and this flag is asked for by most pods.
            if side.is_simple() && seat.closed && !side.ignores {
                continue;
            }
            let Some(record) = self.record(seat.at) else {
                continue;
            };
            let usable = side.ignores
                || side.is_simple()
                || self
                    .check(pod, side, record, view.nodes, node_labels)
                    .is_ok();
            if usable {
                out.push((seat.at, record));
            }
        }
        out
    }

    /// Brings the seat of a reservation up to date with its record.
    fn reseat(&mut self, at: u32) {
        let Some(record) = self.record(at) else {
            return;
        };
        let Some(row) = record.row else { return };
        let fresh = Seat {
            at,
            spec: record.spec.filter(|_| record.is_matchable()).unwrap_or(0),
            closed: record.terms.unschedulable,
        };
        let listed = self.by_row.get_mut(row.row()).into_iter().flatten();
        for seat in listed.filter(|seat| seat.at == at) {
            *seat = fresh;
        }
    }

    /// The owners of the reservation with this uid, wherever they are.
    pub(super) fn owners(&self, uid: &str) -> impl Iterator<Item = &Owner> {
        self.owners.get(uid).into_iter().flat_map(FxHashMap::values)
    }

    /// The uid of the reservation that the pod with this uid uses.
    pub(super) fn used_by(&self, pod: &str) -> Option<&Arc<str>> {
        self.owner_of.get(pod)
    }

    /// The pods on `node` of which the API says that they use the reservation with this uid.
    pub(super) fn confirmed_on(
        &self,
        uid: &str,
        node: &str,
    ) -> impl Iterator<Item = &Arc<PodInfo>> {
        let owners = self.owners(uid);
        owners
            .filter(move |owner| owner.confirmed && *owner.node == *node)
            .map(|owner| &owner.pod)
    }

    /// Whether the API says that `pod` uses the reservation with this uid.
    pub(super) fn is_confirmed(&self, uid: &str, pod: &str) -> bool {
        let owner = self.owners.get(uid).and_then(|all| all.get(pod));
        owner.is_some_and(|owner| owner.confirmed)
    }

    /// Whether the word of a pod on `node`, that it uses the reservation with this uid, is what a placement
    /// left behind that came to nothing: that reservation is not there, or never will be on the node.
    pub(super) fn is_void(&self, uid: &str, node: &str) -> bool {
        let Some(record) = self.find(uid).and_then(|at| self.record(at)) else {
            return true;
        };
        !record.may_still_come() && record.terms.node.as_deref() != Some(node)
    }

    /// The uid of the reservation that is being placed over the pod with this uid.
    fn taken_ahead(&self, pod: &str) -> Option<Arc<str>> {
        let uid = self.used_by(pod)?;
        let owner = self.owners.get(uid)?.get(pod)?;
        (owner.ahead && !owner.confirmed).then(|| uid.clone())
    }

    /// The owner lists that `pod` matches.
    pub(super) fn matching(&self, pod: &PodInfo) -> Vec<SpecId> {
        self.specs.matching(pod)
    }

    /// The reservations that `side` owns and that are open, on whatever node.
    pub(super) fn owned<'a>(&'a self, side: &'a PodSide) -> impl Iterator<Item = &'a Record> {
        let lists = side.owner_of.iter();
        lists
            .flat_map(|id| self.specs.users(*id))
            .filter_map(|at| self.record(at))
            .filter(|record| record.is_matchable() && record.row.is_some())
    }

    /// Whether `pod` may use `record`.
    pub(super) fn check(
        &self,
        pod: &PodInfo,
        side: &PodSide,
        record: &Record,
        nodes: &NodeStore,
        node_labels: bool,
    ) -> Result<(), Unmatched> {
        let owner = record
            .spec
            .is_some_and(|spec| side.owner_of.contains(&spec));
        if !owner {
            return Err(Unmatched::Owner);
        }
        let node = record
            .row
            .filter(|_| node_labels)
            .and_then(|row| nodes.info(row));
        side.check(pod, &record.name, &record.terms, node.map(|info| &**info))
    }

    /// The one node that a pod which names a reservation can go to.
    pub(super) fn named_row(&self, affinity: &Affinity) -> Option<NodeIndex> {
        self.named(affinity.name.as_deref()?)?.row
    }

    /// A Reservation appeared or changed. Returns why it is ignored, if it is.
    pub(super) fn apply(
        &mut self,
        object: Arc<Reservation>,
        view: View<'_>,
        fx: &mut Effects,
    ) -> Option<String> {
        let meta = &object.metadata;
        let (Some(name), Some(uid)) = (meta.name.as_deref(), meta.uid.as_deref()) else {
            return None;
        };
        let problem = |message: String| Problem {
            kind: "Reservation",
            namespace: String::new(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            message,
        };
        // Deleted and made again under the same name between two looks.
        let stale = self
            .named(name)
            .filter(|old| *old.uid != *uid)
            .map(|old| old.uid.clone());
        if let Some(stale) = stale {
            self.reported.forget(&stale);
            self.delete(&stale, fx);
        }
        let known = self.find(uid);
        let terms = match Terms::new(&object, view.resources) {
            Ok(terms) => terms,
            Err(error) => {
                let why = format!("the reservation is ignored: {error}");
                // What is placed stays in the books as it was.
                let placed = |at| self.record(at).is_some_and(|r| r.terms.node.is_some());
                if !known.is_some_and(placed) {
                    self.delete(uid, fx);
                }
                self.reported.update(uid, vec![problem(why.clone())], fx);
                return Some(why);
            }
        };
        let at = known.unwrap_or_else(|| {
            self.free.pop().unwrap_or_else(|| {
                self.records.push(None);
                u32::try_from(self.records.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let old = self.records.get_mut(at as usize).and_then(Option::take);
        let added = match &terms.error {
            None => self.specs.add(&object.spec.owners, at),
            Some(error) => Err(error.clone()),
        };
        // After the list was looked up: an unchanged one keeps its number.
        if let Some(spec) = old.as_ref().and_then(|old| old.spec)
            && added != Ok(spec)
        {
            self.specs.remove(spec, at);
        }
        let mut found = Vec::new();
        let spec = match added {
            Ok(spec) => Some(spec),
            Err(reason) => {
                found.push(problem(format!("no pod can use the reservation: {reason}")));
                None
            }
        };
        found.extend(terms.ignored.iter().cloned().map(problem));
        self.reported.update(uid, found, fx);
        let was = old.as_ref().map(|old| old.terms.phase);
        let uid: Arc<str> = uid.into();
        let row = old.as_ref().and_then(|old| old.row);
        let valid = |ttl: &GoDuration| *ttl >= GoDuration::ZERO;
        let last = || old.as_ref().and_then(|old| old.ttl);
        let over = old.as_ref().and_then(|old| old.over).unwrap_or(view.now);
        let mut record = Record {
            ttl: object
                .spec
                .ttl
                .filter(valid)
                .or_else(|| object.spec.ttl.and_then(|_| last())),
            seen: old.as_ref().map_or(view.now, |old| old.seen),
            over: (terms.phase == Phase::Over).then_some(over),
            name: name.into(),
            uid: uid.clone(),
            spec,
            row,
            pod: Arc::new(terms.pod.clone()),
            taken: Amounts::new(),
            pods: 0,
            sent: old.map(|old| old.sent).unwrap_or_default(),
            object,
            terms,
        };
        if let Some(node) = &record.terms.node {
            for owner in self
                .owners
                .get(&uid)
                .into_iter()
                .flat_map(FxHashMap::values)
            {
                if owner.node == *node {
                    record.taken.add_all(&owner.pod.requests);
                    record.pods += 1;
                }
            }
        }
        self.by_uid.insert(uid.clone(), at);
        self.by_name.insert(record.name.clone(), at);
        let placed = |phase| matches!(phase, Phase::Available | Phase::Waiting);
        match record.terms.phase {
            Phase::Over => fx.remove.push(uid.clone()),
            Phase::Pending => {
                if was.is_some_and(placed) {
                    fx.remove.push(uid.clone());
                }
                fx.apply.push(record.pod.clone());
            }
            Phase::Available | Phase::Waiting => {
                record.pod = Arc::new(record.terms.reduced(&record.taken));
                fx.apply.push(record.pod.clone());
            }
        }
        fx.touched.extend(row);
        self.dirty.insert(uid);
        if let Some(slot) = self.records.get_mut(at as usize) {
            *slot = Some(record);
        }
        self.reseat(at);
        None
    }

    /// Forgets what was reported of a Reservation that is gone.
    pub(super) fn forget_reported(&mut self, uid: &str) {
        self.reported.forget(uid);
    }

    /// A Reservation is gone, or cannot be read any more.
    pub(super) fn delete(&mut self, uid: &str, fx: &mut Effects) {
        let Some(at) = self.by_uid.remove(uid) else {
            return;
        };
        let Some(record) = self.records.get_mut(at as usize).and_then(Option::take) else {
            return;
        };
        if let Some(spec) = record.spec {
            self.specs.remove(spec, at);
        }
        if self.by_name.get(&record.name) == Some(&at) {
            self.by_name.remove(&record.name);
        }
        if let Some(row) = record.row {
            self.leave(at, row);
            fx.touched.push(row);
        }
        self.dirty.remove(uid);
        self.left_out.remove(uid);
        self.free.push(at);
        fx.remove.push(record.uid);
    }

    /// The pod that stands for a reservation was booked.
    pub(super) fn booked(&mut self, uid: &str, node: NodeIndex) {
        let Some(at) = self.find(uid) else { return };
        if let Some(old) = self.record(at).and_then(|record| record.row) {
            self.leave(at, old);
        }
        if let Some(record) = self.record_mut(at) {
            record.row = Some(node);
        }
        if self.by_row.len() <= node.row() {
            self.by_row.resize_with(node.row() + 1, Vec::new);
        }
        self.by_row[node.row()].push(Seat {
            at,
            spec: 0,
            closed: false,
        });
        self.reseat(at);
        self.dirty.insert(uid.into());
    }

    /// It was taken off its node.
    pub(super) fn unbooked(&mut self, uid: &str, node: NodeIndex) {
        let Some(at) = self.find(uid) else { return };
        self.leave(at, node);
        if let Some(record) = self.record_mut(at) {
            record.row = None;
        }
    }

    fn leave(&mut self, at: u32, row: NodeIndex) {
        if let Some(listed) = self.by_row.get_mut(row.row()) {
            listed.retain(|seat| seat.at != at);
        }
    }

    /// `pod` uses the reservation with this uid.
    pub(super) fn own(&mut self, uid: &str, owner: Owner, fx: &mut Effects) {
        let pod = owner.pod.uid.clone();
        if let Some(old) = self.owner_of.get(&pod).cloned()
            && *old == *uid
            && let Some(known) = self.owners.get_mut(&old).and_then(|all| all.get_mut(&pod))
            && known.node == owner.node
            && known.pod.requests == owner.pod.requests
        {
            if known.confirmed != owner.confirmed {
                self.dirty.insert(old);
            }
            *known = owner;
            return;
        }
        self.disown(&pod, fx);
        let uid: Arc<str> = uid.into();
        let (node, requests) = (owner.node.clone(), owner.pod.requests.clone());
        self.owner_of.insert(pod.clone(), uid.clone());
        self.owners
            .entry(uid.clone())
            .or_default()
            .insert(pod, owner);
        self.count(&uid, &node, &requests, 1, fx);
    }

    /// The pod with this uid uses no reservation, or is gone.
    pub(super) fn disown(&mut self, pod: &str, fx: &mut Effects) {
        let Some(uid) = self.owner_of.remove(pod) else {
            return;
        };
        let Some(all) = self.owners.get_mut(&uid) else {
            return;
        };
        let owner = all.remove(pod);
        if all.is_empty() {
            self.owners.remove(&uid);
        }
        if let Some(owner) = owner {
            self.count(&uid, &owner.node, &owner.pod.requests, -1, fx);
        }
    }

    fn count(
        &mut self,
        uid: &Arc<str>,
        node: &Arc<str>,
        requests: &Amounts,
        sign: i64,
        fx: &mut Effects,
    ) {
        let Some(at) = self.find(uid) else { return };
        let Some(record) = self.record_mut(at) else {
            return;
        };
        if record.terms.node.as_ref() != Some(node) {
            return;
        }
        record.pods += sign;
        if sign > 0 {
            record.taken.add_all(requests);
        } else {
            record.taken.sub_all(requests);
        }
        if record.terms.phase == Phase::Available {
            record.pod = Arc::new(record.terms.reduced(&record.taken));
            fx.apply.push(record.pod.clone());
            // Whether it is open to others may have changed with no change of what it holds.
            fx.touched.extend(record.row);
        }
        self.reseat(at);
        self.dirty.insert(uid.clone());
    }

    /// What the API says about a pod on `node`: whose owner it is.
    pub(super) fn observe(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        view: View<'_>,
        fx: &mut Effects,
    ) {
        let name = view.nodes.name(node);
        let owner = |ahead: bool| Owner {
            pod: pod.clone(),
            node: name.clone(),
            confirmed: !ahead,
            ahead,
        };
        match restricted::allocated(pod) {
            Ok(said) => {
                let said = said.map(|said| said.uid.clone());
                // As long as it does not know yet, it says nothing, or what is void.
                let counts = said.as_ref().is_some_and(|uid| !self.is_void(uid, name));
                let taken = self.taken_ahead(&pod.uid).filter(|_| !counts);
                match (taken, said) {
                    (Some(uid), _) => self.own(&uid, owner(true), fx),
                    (None, Some(uid)) => self.own(&uid, owner(false), fx),
                    (None, None) => self.disown(&pod.uid, fx),
                }
            }
            Err(error) => {
                let AnnotationError {
                    key,
                    value,
                    problem,
                } = error;
                fx.problems.push(Problem {
                    kind: "Pod",
                    namespace: pod.namespace.to_string(),
                    name: pod.name.to_string(),
                    uid: pod.uid.to_string(),
                    message: format!("{NAME}: annotation {key} is ignored: {problem}: {value:?}"),
                });
                self.disown(&pod.uid, fx);
            }
        }
    }

    /// Whether a reservation of `policy` may be placed beside those on `node`: one of the default
    /// policy only beside its like.
    pub(super) fn tolerates(
        &self,
        policy: AllocatePolicy,
        node: NodeIndex,
        view: View<'_>,
    ) -> bool {
        self.on(node)
            .filter(|(_, record)| record.is_matchable())
            .map(|(_, record)| restricted::policy(view, &record.uid))
            .all(|other| {
                other == policy
                    || (other != AllocatePolicy::Default && policy != AllocatePolicy::Default)
            })
    }
}
