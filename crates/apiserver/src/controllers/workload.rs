//! The frame of the workload controllers: objects of one kind, each of which controls objects of another.

use super::adoption;
use super::pods;
use super::queue::{Reconcile, Source, Work};
use super::recorder::About;
use crate::rest::Api;
use crate::store::Key;
use futures::FutureExt as _;

/// What brings the world of one object to what it should be.
type Sync = for<'a> fn(About<'a>, &'a Key) -> Work<'a>;

/// A controller of the kind of a group, of which v1 is read.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    /// Group and plural of what it controls.
    pub(super) owns: (&'static str, &'static str),
    /// It takes over what its selector matches and nobody controls.
    pub(super) adopts: bool,
    /// What it watches besides.
    pub(super) also: fn() -> Option<Source>,
    pub(super) sync: Sync,
}

/// The objects of a group and plural, which concern the `owner` (group, plural, kind) that controls them, or,
/// where it `adopts`, could.
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
        let own = Source::own(self.group, self.plural);
        let owned = owned(self.owns, owner, self.adopts);
        [own, owned].into_iter().chain((self.also)()).collect()
    }

    fn reconcile<'a>(&'a self, api: &'a Api, key: &'a Key) -> Work<'a> {
        async move {
            let resource = api.builtin(self.group, "v1", self.plural)?;
            let Some(entry) = api.store().get(&resource.table, key) else {
                return Ok(None);
            };
            let about = About {
                api,
                resource: &resource,
                object: &entry.value(),
                component: self.name,
            };
            (self.sync)(about, key).await
        }
        .boxed()
    }
}
