//! Indexes of objects that several plugins read: one shared index per kind of content.

use super::{Effects, ObjectChange};
#[cfg(doc)]
use super::{Inputs, View};
use crate::state::PodInfo;
use std::any::{Any, TypeId};
use std::sync::Arc;

/// An index of cluster objects that several plugins read. The engine owns it and updates it on every change
/// before any plugin is notified ([`ObjectEvents::on_object`](super::ObjectEvents::on_object)); plugins read
/// it through [`View::index`].
pub trait Index: Any + Send + Sync {
    /// Handles a change of an object of any watched kind. Plugins declare the kinds to watch
    /// ([`Inputs::watches`]).
    fn on_object(&mut self, change: &ObjectChange, fx: &mut Effects);
    /// Handles a pod or holder that was added or changed: pending, on a node or finished
    /// ([`PodEvents::on_pod`](super::PodEvents::on_pod)).
    fn on_pod(&mut self, _pod: &Arc<PodInfo>) {}
    /// Handles the end of the pod with this uid: it was deleted, or can no longer be decoded.
    fn on_pod_gone(&mut self, _uid: &str) {}
}

/// The type of an [`Index`], with its constructor.
#[derive(Debug, Clone, Copy)]
pub struct IndexKind {
    id: TypeId,
    build: fn() -> Box<dyn Index>,
}

impl IndexKind {
    /// Returns the kind of index `T`; its indexes start empty.
    #[must_use]
    pub fn new<T: Index + Default>() -> Self {
        Self {
            id: TypeId::of::<T>(),
            build: || Box::new(T::default()),
        }
    }
}

/// All indexes of an engine, one of each type.
#[derive(Default)]
pub struct Indexes(Vec<(TypeId, Box<dyn Index>)>);

impl std::fmt::Debug for Indexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Indexes({})", self.0.len())
    }
}

impl Indexes {
    /// Creates one empty index of each of `kinds`; duplicates are ignored.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = IndexKind>) -> Self {
        let mut out = Self::default();
        for kind in kinds {
            if out.0.iter().all(|(id, _)| *id != kind.id) {
                out.0.push((kind.id, (kind.build)()));
            }
        }
        out
    }

    /// Passes a change to all indexes.
    pub fn on_object(&mut self, change: &ObjectChange, fx: &mut Effects) {
        for (_, index) in &mut self.0 {
            index.on_object(change, fx);
        }
    }

    pub(crate) fn on_pod(&mut self, pod: &Arc<PodInfo>) {
        for (_, index) in &mut self.0 {
            index.on_pod(pod);
        }
    }

    pub(crate) fn on_pod_gone(&mut self, uid: &str) {
        for (_, index) in &mut self.0 {
            index.on_pod_gone(uid);
        }
    }

    /// Returns the index `T`, or `None` if no plugin declared it.
    #[must_use]
    pub fn get<T: Index>(&self) -> Option<&T> {
        let (_, index) = self.0.iter().find(|(id, _)| *id == TypeId::of::<T>())?;
        let index: &dyn Any = &**index;
        index.downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Action;

    #[derive(Default)]
    struct RecordingIndex(Vec<&'static str>);

    impl Index for RecordingIndex {
        fn on_object(&mut self, change: &ObjectChange, _fx: &mut Effects) {
            self.0.push(change.kind);
        }
    }

    #[derive(Default)]
    struct Other;

    impl Index for Other {
        fn on_object(&mut self, _change: &ObjectChange, _fx: &mut Effects) {}
    }

    #[test]
    fn index_is_built_once_and_receives_each_object_once() {
        let kinds = [
            IndexKind::new::<RecordingIndex>(),
            IndexKind::new::<RecordingIndex>(),
        ];
        let mut all = Indexes::new(kinds);
        let change = ObjectChange {
            kind: "widgets.v1.",
            action: Action::ADD,
            old: None,
            new: Arc::new(()),
        };
        all.on_object(&change, &mut Effects::default());
        assert_eq!(all.get::<RecordingIndex>().unwrap().0, ["widgets.v1."]);
        assert!(all.get::<Other>().is_none());
    }
}
