//! Gang members whose gang has no description: they are not scheduled, and get a condition with the reason.

use super::Coscheduling;
use jiff::{SignedDuration, Timestamp};
use koord_model::gang::Blocked;
use koord_scheduler::framework::Effects;
use std::collections::VecDeque;
use std::sync::Arc;

/// Delay before a pod's condition reports a missing PodGroup, which may be created after its pods.
const GRACE: SignedDuration = SignedDuration::from_secs(1);

/// Members to check again, by uid, in order of time.
#[derive(Debug, Default)]
pub(super) struct Orphans(VecDeque<(Timestamp, Arc<str>)>);

impl Orphans {
    /// Schedules a check of a member whose gang is missing.
    pub(super) fn add(&mut self, uid: &Arc<str>, now: Timestamp) {
        let due = now.saturating_add(GRACE).unwrap_or(Timestamp::MAX);
        self.0.push_back((due, uid.clone()));
    }

    /// Returns the time of the next check.
    pub(super) fn next_check(&self) -> Option<Timestamp> {
        self.0.front().map(|(due, _)| *due)
    }
}

impl Coscheduling {
    /// Returns why a member waits, where that is because nothing describes its gang.
    pub(super) fn missing_gang(&self, uid: &str) -> Option<Blocked> {
        let blocked = self.gangs.admit(uid).err()?;
        matches!(
            blocked,
            Blocked::NotFound { .. } | Blocked::NotDescribed { .. }
        )
        .then_some(blocked)
    }

    /// Sets a condition on members whose gang is still missing.
    pub(super) fn explain_orphans(&mut self, now: Timestamp, fx: &mut Effects) {
        while let Some((_, uid)) = self.orphans.0.pop_front_if(|(due, _)| *due <= now) {
            if let Some(blocked) = self.missing_gang(&uid) {
                let text = format!(
                    "{blocked}: expected a PodGroup of that name, or a member that sets the minimum"
                );
                fx.explain.push((uid, text));
            }
        }
    }
}
