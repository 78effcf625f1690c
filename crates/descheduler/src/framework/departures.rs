//! Pods that are leaving their nodes while a strategy runs.

use crate::migration::{JobStage, stage};
use crate::state::{PodInfo, Snapshot};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Pods that leave their nodes: those that the plan of this cycle moves, and those of migration jobs that
/// have not ended. Strategies do not count them on their current nodes.
#[derive(Debug, Clone, Default)]
pub struct Departures {
    /// UIDs of planned pods; the value is the profile that only shows the move, if it is not carried out.
    planned: FxHashMap<Arc<str>, Option<Arc<str>>>,
    /// UIDs of pods with a job.
    migrating: FxHashSet<Arc<str>>,
}

impl Departures {
    /// Collects the pods of the jobs in `snapshot`. A paused job moves nothing for now.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        let moves = |job: &&_| stage(job) != JobStage::Ended;
        let jobs = snapshot.jobs.iter().map(|job| &**job).filter(moves);
        let running = jobs.filter(|job| job.spec.paused != Some(true));
        let uids = running.filter_map(|job| {
            let pod = &job.spec.pod_ref;
            if let Some(uid) = pod.uid.as_deref().filter(|uid| !uid.is_empty()) {
                return Some(Arc::from(uid));
            }
            let named = snapshot.pod(pod.namespace.as_deref()?, pod.name.as_deref()?)?;
            Some(named.uid.clone())
        });
        Self {
            planned: FxHashMap::default(),
            migrating: uids.collect(),
        }
    }

    /// Adds `pod`, which the plan moves; `shown_by` is the profile if the move is only shown.
    pub(super) fn add(&mut self, pod: &PodInfo, shown_by: Option<&Arc<str>>) {
        self.planned.insert(pod.uid.clone(), shown_by.cloned());
    }

    /// Returns the departures that count for `profile`: all except moves that another profile only shows.
    #[must_use]
    pub fn for_profile<'a>(&'a self, profile: &'a str) -> ProfileDepartures<'a> {
        ProfileDepartures {
            departures: self,
            profile,
        }
    }
}

/// The departures that count for one profile.
#[derive(Debug, Clone, Copy)]
pub struct ProfileDepartures<'a> {
    departures: &'a Departures,
    profile: &'a str,
}

impl ProfileDepartures<'_> {
    /// Returns true if the plan moves `pod`.
    #[must_use]
    pub fn is_planned(&self, pod: &PodInfo) -> bool {
        let shown_by = self.departures.planned.get(&pod.uid);
        shown_by.is_some_and(|profile| {
            profile
                .as_deref()
                .is_none_or(|profile| profile == self.profile)
        })
    }

    /// Returns true if `pod` leaves its node: by the plan, by a job, or because it is being deleted.
    #[must_use]
    pub fn is_leaving(&self, pod: &PodInfo) -> bool {
        pod.deleting || self.departures.migrating.contains(&pod.uid) || self.is_planned(pod)
    }
}
