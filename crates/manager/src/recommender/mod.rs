//! Recommends container requests from measured usage.
//!
//! ```text
//! Recommendation ─► target ──┐
//! Pod, its owners ───────────┼─► learn ─► status ─► Recommendation.status, annotation, event
//! metrics.k8s.io, NodeMetric ┘     │  ▲
//!                         checkpoints: RecommendationCheckpoint
//! ```
//!
//! One round a minute covers all Recommendations; a new one starts a round early. Without Recommendations
//! only they are watched. Upstream defines the Recommendation resource and has no controller for it.

mod args;
mod checkpoints;
mod learn;
mod pods;
mod round;
mod sources;
mod status;

pub use args::{RecommenderArgs, RecommenderOptions};
pub(crate) use pods::RecommenderPod;

use crate::cache::ObjectKind;
use crate::controller::{Action, Controller, ControllerSpec};
use crate::facts::RecommendationFacts;
use crate::replica::Replica;
use koord_kube::queue::WorkQueue;
use koord_kube::{Change, ObjectKey};
use parking_lot::Mutex;
use round::Recommender;
use std::sync::Arc;
use std::time::Duration;

/// The controller. It works in rounds, so its queue has one key.
pub(crate) const SPEC: ControllerSpec = ControllerSpec {
    name: "recommender",
    gate: Some("Recommender"),
    needs: &[],
    wants: &[ObjectKind::Recommendations, ObjectKind::NodeMetrics],
    build,
};

/// Delay over which changes are batched into one round.
const BATCH_DELAY: Duration = Duration::from_secs(1);

fn build(replica: &Arc<Replica>) -> Controller {
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let everything = ObjectKey::new("", "recommendations");
    let (waker, key) = (queue.clone(), everything.clone());
    replica.caches.recommendations.on_change(move |change| {
        if is_user_change(change) {
            waker.add_after(key.clone(), BATCH_DELAY);
        }
    });
    queue.add(everything);
    // A round takes the state out and puts it back: after a panic, the next round starts from checkpoints.
    let recommender: Arc<Mutex<Option<Recommender>>> = Arc::default();
    let own = replica.clone();
    SPEC.controller(replica, queue, move |_| {
        let (recommender, replica) = (recommender.clone(), own.clone());
        async move {
            let recommender_state = recommender.lock().take();
            let mut current = recommender_state.unwrap_or_else(|| Recommender::new(&replica));
            let result = current.round(&replica).await;
            *recommender.lock() = Some(current);
            result?;
            Ok(Action::RequeueAfter(replica.options.recommender.interval))
        }
    })
}

/// Returns true if a Recommendation was changed by a user; the status is written by the recommender itself.
fn is_user_change(change: &Change<RecommendationFacts>) -> bool {
    match change {
        Change::Applied { old: None, .. } => true,
        Change::Applied {
            old: Some(old),
            new,
        } => old.target != new.target || old.percentiles != new.percentiles,
        Change::Deleted(_) | Change::Synced => false,
    }
}
