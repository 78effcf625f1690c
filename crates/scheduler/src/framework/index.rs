//! What is known of objects that more than one plugin reads: one index for all of them.

use super::{Effects, ObjectChange};
#[cfg(doc)]
use super::{Inputs, View};
use crate::state::PodInfo;
use std::any::{Any, TypeId};
use std::sync::Arc;

/// What several plugins read of the cluster. The engine owns it, and tells it of every change before any
/// plugin hears of it ([`ObjectEvents::on_object`](super::ObjectEvents::on_object)); plugins read it through [`View::index`].
pub trait Index: Any + Send + Sync {
    /// An object of a watched kind changed, of whatever kind: which are watched is for plugins to say
    /// ([`Inputs::watches`]).
    fn on_object(&mut self, change: &ObjectChange, fx: &mut Effects);
    /// A pod or holder appeared or changed: pending, on a node or finished ([`PodEvents::on_pod`](super::PodEvents::on_pod)).
    fn on_pod(&mut self, _pod: &Arc<PodInfo>) {}
    /// The pod with this uid does not exist any more, or cannot be read any more.
    fn on_pod_gone(&mut self, _uid: &str) {}
}

/// Names an [`Index`], and says how it begins.
#[derive(Debug, Clone, Copy)]
pub struct IndexKind {
    id: TypeId,
    build: fn() -> Box<dyn Index>,
}

impl IndexKind {
    /// The index `T`, which begins empty.
    #[must_use]
    pub fn of<T: Index + Default>() -> Self {
        Self {
            id: TypeId::of::<T>(),
            build: || Box::new(T::default()),
        }
    }
}

/// The indexes of one engine, each once.
#[derive(Default)]
pub struct Indexes(Vec<(TypeId, Box<dyn Index>)>);

impl std::fmt::Debug for Indexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Indexes({})", self.0.len())
    }
}

impl Indexes {
    /// Those that are named, however often, with nothing in them.
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

    /// Tells all of a change.
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

    /// The index `T`, if a plugin named it.
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
    struct Seen(Vec<&'static str>);

    impl Index for Seen {
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
    fn each_is_built_once_and_hears_of_each_object_once() {
        let kinds = [IndexKind::of::<Seen>(), IndexKind::of::<Seen>()];
        let mut all = Indexes::new(kinds);
        let change = ObjectChange {
            kind: "widgets.v1.",
            action: Action::ADD,
            old: None,
            new: Arc::new(()),
        };
        all.on_object(&change, &mut Effects::default());
        assert_eq!(all.get::<Seen>().unwrap().0, ["widgets.v1."]);
        assert!(all.get::<Other>().is_none());
    }
}
