//! What pods of a workload have in common, kept once.
//!
//! The type of a pod's object takes 2.4 KB before it says anything, and pods of one workload say the same but
//! for what [`PodInfo`](super::PodInfo) holds by itself. Of a hundred thousand pods that run, a few thousand
//! objects are left.

use hashbrown::HashTable;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::{Arc, Weak};

/// So many may be new before it is looked for those that nobody has any more.
const FEW: usize = 64;

/// What pods share that are read with it. Clones share it, too.
#[derive(Debug, Clone, Default)]
pub struct Alike {
    known: Arc<Mutex<Known>>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Known {
    objects: HashTable<(u64, Weak<Pod>)>,
    names: FxHashSet<Arc<str>>,
    /// How many are new since it was last looked for those that nobody has.
    new: usize,
}

impl Alike {
    /// The object that says what `object` does: one that others have, or it.
    pub(super) fn object(&self, object: Arc<Pod>) -> Arc<Pod> {
        let mut hashed = Hashed(self.hasher.build_hasher());
        if serde_json::to_writer(&mut hashed, &*object).is_err() {
            return object;
        }
        let hash = hashed.0.finish();
        let mut known = self.known.lock();
        let same = known.objects.iter_hash(hash);
        let same = same.filter(|(other, _)| *other == hash);
        let mut same = same.filter_map(|(_, pod)| pod.upgrade());
        if let Some(found) = same.find(|pod| **pod == *object) {
            return found;
        }
        drop(same);
        known.make_room();
        let entry = (hash, Arc::downgrade(&object));
        known.objects.insert_unique(hash, entry, |(hash, _)| *hash);
        object
    }

    /// `name`, as all have it who say the same.
    pub(super) fn name(&self, name: Arc<str>) -> Arc<str> {
        let mut known = self.known.lock();
        if let Some(name) = known.names.get(&name) {
            return name.clone();
        }
        known.make_room();
        known.names.insert(name.clone());
        name
    }

    /// How many objects are known, those included that nobody has any more.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.lock().objects.len()
    }
}

impl Known {
    /// Forgets what nobody has any more, now and then: even an object that is gone takes its room as long as
    /// it is known.
    fn make_room(&mut self) {
        self.new += 1;
        if self.new <= FEW.max((self.objects.len() + self.names.len()) / 4) {
            return;
        }
        self.new = 0;
        self.objects.retain(|(_, pod)| pod.strong_count() > 0);
        self.names.retain(|name| Arc::strong_count(name) > 1);
    }
}

/// Hashes what is written.
struct Hashed<H>(H);

impl<H: Hasher> io::Write for Hashed<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(app: &str) -> Arc<Pod> {
        let pod = json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": []}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn what_says_the_same_is_kept_once() {
        let alike = Alike::default();
        let [a, b, c] = ["x", "x", "y"].map(|app| alike.object(pod(app)));
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!((&c, alike.len()), (&pod("y"), 2));
        let [a, b] = [(); 2].map(|()| alike.name("n".into()));
        assert!(Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn what_nobody_has_any_more_is_forgotten() {
        let alike = Alike::default();
        let kept = alike.object(pod("kept"));
        for at in 0..10 * FEW {
            drop(alike.object(pod(&format!("{at}"))));
            drop(alike.name(format!("{at}").into()));
        }
        assert!(alike.len() <= FEW + 2, "{}", alike.len());
        assert!(alike.known.lock().names.len() <= FEW + 2);
        assert!(Arc::ptr_eq(&kept, &alike.object(pod("kept"))));
    }
}
