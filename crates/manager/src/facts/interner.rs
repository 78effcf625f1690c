//! Values that many objects have, kept once.

use parking_lot::Mutex;
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// With fewer values it is not looked whether they are used.
const FEW: usize = 64;

/// The values that are in use, and some that were.
#[derive(Debug)]
pub(crate) struct Interner<T: ?Sized>(Mutex<Known<T>>);

#[derive(Debug)]
struct Known<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// With so many values, those that nobody else has are dropped.
    most: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self(Mutex::new(Known {
            values: HashSet::new(),
            most: FEW,
        }))
    }
}

impl<T: ?Sized + Eq + Hash> Interner<T> {
    /// `value`, or an equal one that is kept already.
    pub(crate) fn share<V: Borrow<T> + Into<Arc<T>>>(&self, value: V) -> Arc<T> {
        let mut known = self.0.lock();
        if let Some(shared) = known.values.get(value.borrow()) {
            return shared.clone();
        }
        if known.values.len() >= known.most {
            known.values.retain(|value| Arc::strong_count(value) > 1);
            known.most = (known.values.len() * 2).max(FEW);
            let most = known.most;
            known.values.shrink_to(most);
        }
        let shared: Arc<T> = value.into();
        known.values.insert(shared.clone());
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
        let kept: Vec<_> = (0..100).map(|n| all.share(format!("kept {n}"))).collect();
        for n in 0..10_000 {
            assert_eq!(*all.share(format!("{n}")), *n.to_string());
        }
        let known = all.0.lock().values.len();
        assert!(
            (kept.len() + 2..=2 * (kept.len() + 2)).contains(&known),
            "{known}"
        );
        assert!(Arc::ptr_eq(&a, &all.share("a")));
    }
}
