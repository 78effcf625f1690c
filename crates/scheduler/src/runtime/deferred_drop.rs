//! Deferred drop: frees unused objects outside the task that makes decisions.
//!
//! The last owner of a replaced object is the task that handles the change. Freeing a pod with its maps and
//! strings takes longer than adding one to a node, so this task passes such objects to others.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of objects that one task frees: one task per object would cost what it saves.
const BATCH: usize = 64;
/// The maximum number of pending tasks. Beyond it, objects are freed by the caller.
const MAX_PENDING: usize = 16;

type Object = Arc<dyn Any + Send + Sync>;

/// Collects unused objects and frees them in separate tasks.
#[derive(Default)]
pub(super) struct DeferredDrop {
    objects: Vec<Object>,
    pending: Arc<AtomicUsize>,
}

impl DeferredDrop {
    /// Takes an object that the caller no longer needs.
    pub(super) fn take(&mut self, object: Object) {
        self.objects.push(object);
        if self.objects.len() >= BATCH {
            self.hand_over();
        }
    }

    /// Passes all collected objects on to a task.
    pub(super) fn hand_over(&mut self) {
        if self.objects.is_empty() {
            return;
        }
        // Only this value increments the count, so the limit is never exceeded.
        if self.pending.load(Ordering::Acquire) >= MAX_PENDING {
            self.objects.clear();
            return;
        }
        let objects = std::mem::replace(&mut self.objects, Vec::with_capacity(BATCH));
        let pending = PendingDrop::new(&self.pending);
        tokio::spawn(async move {
            drop(objects);
            drop(pending);
        });
    }
}

/// Counts one pending task as long as it lives: a runtime that shuts down drops tasks that never ran.
struct PendingDrop(Arc<AtomicUsize>);

impl PendingDrop {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for PendingDrop {
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
    async fn dropped_objects_are_freed_in_bounded_tasks() {
        let object = Arc::new("pod".to_owned());
        let mut deferred_drop = DeferredDrop::default();
        let mut take = |many: usize| {
            for _ in 0..many {
                deferred_drop.take(object.clone());
            }
            deferred_drop.objects.len()
        };
        // On this single-threaded runtime nothing is freed before the test yields.
        let most = BATCH * MAX_PENDING;
        assert_eq!(take(most - 1), BATCH - 1);
        assert_eq!(alive(&object), most - 1);
        assert_eq!((take(1), alive(&object)), (0, most));
        // There are no free tasks left.
        assert_eq!((take(BATCH), alive(&object)), (0, most));
        while alive(&object) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((take(3), alive(&object)), (3, 3));
        deferred_drop.hand_over();
        while alive(&object) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(deferred_drop.pending.load(Ordering::Acquire), 0);
    }
}
