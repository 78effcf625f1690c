//! Interning of values that many objects share.

use parking_lot::Mutex;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Smallest size at which unused values are dropped.
const MIN_CAPACITY: usize = 64;

/// An intern pool. It may still hold some values that are no longer used.
#[derive(Debug)]
pub(crate) struct Interner<T: ?Sized>(Mutex<InternSet<T>>);

#[derive(Debug)]
struct InternSet<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Size at which values without other references are dropped.
    capacity: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self(Mutex::new(InternSet {
            values: HashSet::new(),
            capacity: MIN_CAPACITY,
        }))
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    /// Returns an interned value equal to `value`, which is added if there is none.
    pub(crate) fn share<V: Borrow<T> + Into<Arc<T>>>(&self, value: V) -> Arc<T> {
        let mut set = self.0.lock();
        if let Some(shared) = set.values.get(value.borrow()) {
            return shared.clone();
        }
        if set.values.len() >= set.capacity {
            set.values.retain(|value| Arc::strong_count(value) > 1);
            set.capacity = (set.values.len() * 2).max(MIN_CAPACITY);
            let capacity = set.capacity;
            set.values.shrink_to(capacity);
        }
        let shared: Arc<T> = value.into();
        set.values.insert(shared.clone());
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once_and_unused_ones_are_dropped() {
        let all = Interner::<str>::default();
        let (a, again, b) = (all.share("a"), all.share("a"), all.share("b"));
        assert!(Arc::ptr_eq(&a, &again) && !Arc::ptr_eq(&a, &b));
        let used: Vec<_> = (0..100).map(|n| all.share(format!("used {n}"))).collect();
        for n in 0..10_000 {
            assert_eq!(*all.share(format!("{n}")), *n.to_string());
        }
        let count = all.0.lock().values.len();
        assert!(
            (used.len() + 2..=2 * (used.len() + 2)).contains(&count),
            "{count}"
        );
        assert!(Arc::ptr_eq(&a, &all.share("a")));
    }
}
