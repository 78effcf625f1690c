//! Frees what nobody needs any more, somewhere else than where decisions are made.
//!
//! The last to hold an object that was replaced is the task that digests the change: to free a pod with
//! its maps and texts takes it longer than to book one. So it hands such objects to whoever has time.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many objects are freed by one task: a task of its own for each would cost what it saves.
const TOGETHER: usize = 64;
/// So many tasks may have objects to free. Where more come than can be freed, whoever has them frees them.
const UNDER_WAY: usize = 16;

type Object = Arc<dyn Any + Send + Sync>;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Discard {
    objects: Vec<Object>,
    under_way: Arc<AtomicUsize>,
}

impl Discard {
    /// Takes an object that the caller does not need any more.
    pub(super) fn take(&mut self, object: Object) {
        self.objects.push(object);
        if self.objects.len() >= TOGETHER {
            self.hand_over();
        }
    }

    /// Keeps nothing that it has.
    pub(super) fn hand_over(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        // Nobody else adds to it: it is never exceeded.
        if self.under_way.load(Ordering::Acquire) >= UNDER_WAY {
            self.objects.clear();
            return;
        }
        let objects = std::mem::replace(&mut self.objects, Vec::with_capacity(TOGETHER));
        let under_way = UnderWay::one(&self.under_way);
        tokio::spawn(async move {
            drop(objects);
            drop(under_way);
        });
    }
}

/// Counts as long as it lives: a runtime that ends drops tasks before they ran.
struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn one(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive(object: &Arc<String>) -> usize {
        Arc::strong_count(object) - 1
    }

    #[tokio::test]
    async fn objects_are_freed_by_others_and_only_so_many_wait_for_it() {
        let object = Arc::new("pod".to_owned());
        let mut discard = Discard::default();
        let mut take = |many: usize| {
            for _ in 0..many {
                discard.take(object.clone());
            }
            discard.objects.len()
        };
        // On this runtime of one thread nobody frees anything before we wait.
        let most = TOGETHER * UNDER_WAY;
        assert_eq!(take(most - 1), TOGETHER - 1);
        assert_eq!(alive(&object), most - 1);
        assert_eq!((take(1), alive(&object)), (0, most));
        // Nobody has time for more.
        assert_eq!((take(TOGETHER), alive(&object)), (0, most));
        while alive(&object) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((take(3), alive(&object)), (3, 3));
        discard.hand_over();
        while alive(&object) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(discard.under_way.load(Ordering::Acquire), 0);
    }
}
