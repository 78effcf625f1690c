//! Whether a quota has room for a pod, asked by many at once on every replica.
//!
//! Requests for one quota are judged in batches, one batch at a time, and each batch is one write of
//! the quota, which fails if anybody else wrote it since it was read: so no number of replicas lets in
//! more than the limit. What is used is never lowered here; the scheduler counts anew.

mod access;
mod batch;
#[cfg(test)]
mod tests;

pub(crate) use access::{ClusterQuotas, QuotaAccess};
pub use batch::Retries;

use super::check::Refusal;
use batch::{Batch, BatchRequest};
use koord_api::quantity::ResourceList;
use koord_kube::ObjectKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// How many quotas are worked on at once.
const WORKERS: usize = 16;
/// How long a request waits at most.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a pod is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    /// The quota has no room, cannot be read or cannot be written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There was no answer in time.
    #[error("Internal error occurred: elastic quota evaluation timed out")]
    TimedOut,
}

struct Waiter {
    request: ResourceList,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

/// The requests that wait for a quota. A quota that is worked on is listed, if only with none.
type Queues = Arc<Mutex<HashMap<ObjectKey, Vec<Waiter>>>>;

/// See the module documentation. Clones share the queues.
#[derive(Clone)]
pub(crate) struct Evaluator {
    access: Arc<dyn QuotaAccess>,
    retries: Arc<Retries>,
    queues: Queues,
    workers: Arc<Semaphore>,
}

impl Evaluator {
    pub(crate) fn new(access: Arc<dyn QuotaAccess>, retries: Retries) -> Self {
        Self {
            access,
            retries: Arc::new(retries),
            queues: Queues::default(),
            workers: Arc::new(Semaphore::new(WORKERS)),
        }
    }

    /// Charges `request` to a quota, if there is room.
    pub(crate) async fn evaluate(
        &self,
        quota: ObjectKey,
        request: ResourceList,
    ) -> Result<(), Denial> {
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter { request, answer };
        let first = {
            let mut queues = self.queues.lock();
            let waiting = queues.get_mut(&quota);
            let first = waiting.is_none();
            match waiting {
                Some(waiting) => waiting.push(waiter),
                None => drop(queues.insert(quota.clone(), vec![waiter])),
            }
            first
        };
        if first {
            tokio::spawn(self.clone().work(quota));
        }
        match tokio::time::timeout(TIMEOUT, answered).await {
            Ok(Ok(verdict)) => Ok(verdict?),
            Ok(Err(_)) | Err(_) => Err(Denial::TimedOut),
        }
    }

    /// Whether there is room for `request` now; charges nothing.
    pub(crate) async fn would_fit(
        &self,
        quota: &ObjectKey,
        request: ResourceList,
    ) -> Result<(), Denial> {
        let check = async {
            let quota = self.access.get(quota).await?;
            let mut requests = [BatchRequest::new(request)];
            Batch::default().judge(&quota, &mut requests);
            let [entry] = requests;
            entry.verdict.unwrap_or(Ok(()))
        };
        let result = tokio::time::timeout(TIMEOUT, check).await;
        result.map_err(|_| Denial::TimedOut)?.map_err(Into::into)
    }

    /// Works on a quota until nobody waits for it.
    async fn work(self, quota: ObjectKey) {
        let mut guard = QueueGuard {
            queues: self.queues.clone(),
            quota: Some(quota.clone()),
        };
        loop {
            // Those who come while this waits for a worker join the batch.
            let Ok(_worker) = self.workers.acquire().await else {
                return;
            };
            let waiters = {
                let mut queues = self.queues.lock();
                let waiting = queues.get_mut(&quota).map(std::mem::take);
                let waiting = waiting.unwrap_or_default();
                if waiting.is_empty() {
                    queues.remove(&quota);
                    // From here on the entry may be another worker's.
                    guard.quota = None;
                    return;
                }
                waiting
            };
            // Who has given up must not be charged.
            let waiters = waiters
                .into_iter()
                .filter(|waiter| !waiter.answer.is_closed());
            let (mut requests, answers): (Vec<_>, Vec<_>) = waiters
                .map(|waiter| (BatchRequest::new(waiter.request), waiter.answer))
                .unzip();
            self.process_batch(&quota, &mut requests).await;
            for (entry, answer) in requests.into_iter().zip(answers) {
                // Whoever went away meanwhile stays charged until the scheduler counts anew.
                let _ = answer.send(entry.verdict.unwrap_or(Ok(())));
            }
        }
    }

    /// Judges a batch and writes the quota. What is open then is granted.
    async fn process_batch(&self, key: &ObjectKey, requests: &mut [BatchRequest]) {
        let refuse_open = |requests: &mut [BatchRequest], refusal: &Refusal| {
            for entry in requests.iter_mut().filter(|entry| entry.verdict.is_none()) {
                entry.verdict = Some(Err(refusal.clone()));
            }
        };
        let mut batch = Batch::default();
        let mut retries_left = self.retries.max_retries();
        let mut paused = Duration::ZERO;
        let mut quota = match self.access.get(key).await {
            Ok(quota) => quota,
            Err(refusal) => return refuse_open(requests, &refusal),
        };
        while let Some(charge) = batch.judge(&quota, requests) {
            if let Some(pods) = charge.pods {
                retries_left = retries_left.min(self.retries.for_batch(pods));
            }
            let pause = self.retries.pause(paused, retries_left);
            paused += pause;
            let Err(refusal) = self.access.charge(&quota, &charge.used, pause).await else {
                return;
            };
            if retries_left == 0 {
                return refuse_open(requests, &refusal);
            }
            retries_left -= 1;
            quota = match self.access.get(key).await {
                Ok(quota) => quota,
                Err(_) => return refuse_open(requests, &refusal),
            };
        }
    }
}

/// Takes a quota off the list if the work on it breaks off, so that the next request starts anew.
struct QueueGuard {
    queues: Queues,
    quota: Option<ObjectKey>,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        if let Some(quota) = &self.quota {
            self.queues.lock().remove(quota);
        }
    }
}
