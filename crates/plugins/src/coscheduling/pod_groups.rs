//! Controller of PodGroup statuses: writes only changes, one at a time per object.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use koord_api::scheduling::{PodGroup, PodGroupStatus};
use koord_model::gang::Gangs;
use koord_model::gang::status::{advance, patch};
use koord_scheduler::framework::{Verb, Write};
use rustc_hash::FxHashMap;
use serde_json::json;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Timeout after which a write whose effect was not observed is sent again.
const WRITE_TIMEOUT: SignedDuration = SignedDuration::from_secs(5);

/// PodGroup fields that its status depends on.
#[derive(Debug)]
struct PodGroupState {
    namespace: String,
    name: String,
    uid: String,
    min: i32,
    created: Option<Time>,
    status: PodGroupStatus,
}

/// PodGroups with the state of their status writes.
#[derive(Debug, Default)]
pub(super) struct PodGroups {
    groups: FxHashMap<Arc<str>, PodGroupState>,
    /// Deadlines of writes whose effect was not observed yet, by PodGroup id.
    pending: FxHashMap<Arc<str>, Timestamp>,
    /// Deadlines in order of time. Entries that `pending` does not have belong to writes that were observed.
    deadlines: VecDeque<(Timestamp, Arc<str>)>,
    /// PodGroups to compare with their gang.
    dirty: BTreeSet<Arc<str>>,
}

impl PodGroups {
    /// Stores an added or changed PodGroup, and marks it dirty.
    pub(super) fn apply(&mut self, id: &Arc<str>, group: &PodGroup) {
        let group_state = PodGroupState {
            namespace: group.metadata.namespace.clone().unwrap_or_default(),
            name: group.metadata.name.clone().unwrap_or_default(),
            uid: group.metadata.uid.clone().unwrap_or_default(),
            min: group.spec.min_member.unwrap_or(0),
            created: group.metadata.creation_timestamp.clone(),
            status: group.status.clone().unwrap_or_default(),
        };
        self.groups.insert(id.clone(), group_state);
        self.pending.remove(id);
        self.dirty.insert(id.clone());
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.groups.remove(id);
        self.pending.remove(id);
    }

    /// Returns the next deadline of a write.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.front().map(|(until, _)| *until)
    }

    /// Appends the status writes that are due.
    pub(super) fn sync(&mut self, gangs: &mut Gangs, now: Timestamp, writes: &mut Vec<Write>) {
        self.dirty.append(&mut gangs.take_changed());
        while let Some((until, id)) = self.deadlines.pop_front_if(|(until, _)| *until <= now) {
            if self.pending.get(&id) == Some(&until) {
                self.pending.remove(&id);
                self.dirty.insert(id);
            }
        }
        for id in std::mem::take(&mut self.dirty) {
            // The effect of the last write has to be observed first; that marks the object dirty again.
            if self.pending.contains_key(&id) {
                continue;
            }
            let Some(group_state) = self.groups.get(&id) else {
                continue;
            };
            let PodGroupState { min, status, .. } = group_state;
            let members = gangs.members(&id);
            let Some(new) = advance(
                *min,
                group_state.created.as_ref(),
                status,
                &members,
                &Time(now),
            ) else {
                continue;
            };
            let mut body = patch(status, &new);
            if !group_state.uid.is_empty() {
                body["metadata"] = json!({"uid": group_state.uid});
            }
            writes.push(Write {
                group: "scheduling.sigs.k8s.io",
                version: "v1alpha1",
                plural: "podgroups",
                namespace: group_state.namespace.clone(),
                name: group_state.name.clone(),
                verb: Verb::Patch(body),
                timed: None,
            });
            let until = now.saturating_add(WRITE_TIMEOUT).unwrap_or(Timestamp::MAX);
            self.deadlines.push_back((until, id.clone()));
            self.pending.insert(id, until);
        }
    }
}
