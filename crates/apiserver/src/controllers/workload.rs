//! Common structure of the workload controllers: each reconciles objects of one kind, which control objects
//! of another.

use super::adoption;
use super::pods;
use super::queue::{Reconcile, ReconcileFuture, Source};
use super::recorder::EventSubject;
use crate::rest::Api;
use crate::store::Key;
use futures::FutureExt as _;

/// The reconcile function of a workload.
type SyncFn = for<'a> fn(EventSubject<'a>, &'a Key) -> ReconcileFuture<'a>;

/// A controller of one kind, which it reads at version v1.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    /// Group and plural of the dependents.
    pub(super) owns: (&'static str, &'static str),
    /// True if it adopts objects that its selector matches and that have no controller.
    pub(super) adopts: bool,
    /// Returns another source to watch, if any.
    pub(super) also: fn() -> Option<Source>,
    pub(super) sync: SyncFn,
}

/// Returns a source over the dependents `of` (group, plural), whose keys are those of the `owner` (group,
/// plural, kind) that controls an entry or, if it `adopts`, could adopt it.
pub(super) fn owned(
    of: (&str, &str),
    (group, plural, kind): (&'static str, &'static str, &'static str),
    adopts: bool,
) -> Source {
    Source::new(of.0, of.1, move |api, entry| {
        let mut keys = pods::controller_key(entry, kind);
        if adopts {
            keys.extend(adoption::candidates(api, entry, group, plural));
        }
        keys
    })
}

impl Reconcile for Workload {
    fn name(&self) -> &'static str {
        self.name
    }

    fn sources(&self) -> Vec<Source> {
        let owner = (self.group, self.plural, self.kind);
        let own = Source::from_own_entries(self.group, self.plural);
        let owned = owned(self.owns, owner, self.adopts);
        [own, owned].into_iter().chain((self.also)()).collect()
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> ReconcileFuture<'a> {
        async move {
            let resource = api.builtin(self.group, "v1", self.plural)?;
            let Some(entry) = api.store().get(&resource.table, key) else {
                return Ok(None);
            };
            let subject = EventSubject {
                api,
                resource: &resource,
                object: &entry.value(),
                component: self.name,
            };
            (self.sync)(subject, key).await
        }
        .boxed()
    }
}
