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
const PATIENCE: SignedDuration = SignedDuration::from_secs(5);

#[derive(Debug)]
struct Known {
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
    known: FxHashMap<Arc<str>, Known>,
    /// Deadlines of writes whose effect was not observed yet, by PodGroup id.
    asked: FxHashMap<Arc<str>, Timestamp>,
    /// Deadlines in order of time. Entries that `asked` does not have belong to writes that were observed.
    doubts: VecDeque<(Timestamp, Arc<str>)>,
    /// PodGroups to compare with their gang.
    dirty: BTreeSet<Arc<str>>,
}

impl PodGroups {
    pub(super) fn applied(&mut self, id: &Arc<str>, group: &PodGroup) {
        let known = Known {
            namespace: group.metadata.namespace.clone().unwrap_or_default(),
            name: group.metadata.name.clone().unwrap_or_default(),
            uid: group.metadata.uid.clone().unwrap_or_default(),
            min: group.spec.min_member.unwrap_or(0),
            created: group.metadata.creation_timestamp.clone(),
            status: group.status.clone().unwrap_or_default(),
        };
        self.known.insert(id.clone(), known);
        self.asked.remove(id);
        self.dirty.insert(id.clone());
    }

    pub(super) fn deleted(&mut self, id: &str) {
        self.known.remove(id);
        self.asked.remove(id);
    }

    /// Returns the next deadline of a write.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.doubts.front().map(|(until, _)| *until)
    }

    /// Appends the status writes that are due.
    pub(super) fn sync(&mut self, gangs: &mut Gangs, now: Timestamp, writes: &mut Vec<Write>) {
        self.dirty.append(&mut gangs.take_changed());
        while let Some((until, id)) = self.doubts.pop_front_if(|(until, _)| *until <= now) {
            if self.asked.get(&id) == Some(&until) {
                self.asked.remove(&id);
                self.dirty.insert(id);
            }
        }
        for id in std::mem::take(&mut self.dirty) {
            // The effect of the last write has to be observed first; that marks the object dirty again.
            if self.asked.contains_key(&id) {
                continue;
            }
            let Some(known) = self.known.get(&id) else {
                continue;
            };
            let Known { min, status, .. } = known;
            let members = gangs.members(&id);
            let Some(new) = advance(*min, known.created.as_ref(), status, &members, &Time(now))
            else {
                continue;
            };
            let mut body = patch(status, &new);
            if !known.uid.is_empty() {
                body["metadata"] = json!({"uid": known.uid});
            }
            writes.push(Write {
                group: "scheduling.sigs.k8s.io",
                version: "v1alpha1",
                plural: "podgroups",
                namespace: known.namespace.clone(),
                name: known.name.clone(),
                verb: Verb::Patch(body),
                timed: None,
            });
            let until = now.saturating_add(PATIENCE).unwrap_or(Timestamp::MAX);
            self.doubts.push_back((until, id.clone()));
            self.asked.insert(id, until);
        }
    }
}
