//! Charges pods to quotas that have room for them, under concurrent requests on every replica.
//!
//! Requests for one quota are decided in batches, one batch at a time. Each batch is one write of the quota,
//! which fails if another client wrote the quota since it was read, so that any number of replicas stays
//! below the limit. The usage is never lowered here; the scheduler recomputes it.

mod access;
mod batch;
#[cfg(test)]
mod tests;

pub(crate) use access::{ClusterQuotas, QuotaAccess};
pub use batch::Retries;

use super::check::Refusal;
use batch::{BatchRequest, ChargeBatch};
use koord_api::quantity::ResourceList;
use koord_kube::ObjectKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Number of quotas that are processed concurrently.
const WORKERS: usize = 16;
/// Maximum time that a request waits.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a pod is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    /// The quota is exceeded, or cannot be read or written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The evaluation timed out.
    #[error("Internal error occurred: elastic quota evaluation timed out")]
    TimedOut,
}

struct Waiter {
    request: ResourceList,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

/// Waiting requests by quota. A quota that is being processed has an entry, even an empty one.
type Queues = Arc<Mutex<HashMap<ObjectKey, Vec<Waiter>>>>;

/// Batches and decides quota requests, as described in the module documentation. Clones share the queues.
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

    /// Charges `request` to a quota if it fits.
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

    /// Checks that `request` fits now, without charging it.
    pub(crate) async fn would_fit(
        &self,
        quota: &ObjectKey,
        request: ResourceList,
    ) -> Result<(), Denial> {
        let check = async {
            let quota = self.access.get(quota).await?;
            let mut requests = [BatchRequest::new(request)];
            ChargeBatch::default().decide(&quota, &mut requests);
            let [entry] = requests;
            entry.verdict.unwrap_or(Ok(()))
        };
        let result = tokio::time::timeout(TIMEOUT, check).await;
        result.map_err(|_| Denial::TimedOut)?.map_err(Into::into)
    }

    /// Processes the requests for a quota until none is waiting.
    async fn work(self, quota: ObjectKey) {
        let mut guard = QueueGuard {
            queues: self.queues.clone(),
            quota: Some(quota.clone()),
        };
        loop {
            // Requests that arrive while this waits for a worker join the batch.
            let Ok(_worker) = self.workers.acquire().await else {
                return;
            };
            let waiters = {
                let mut queues = self.queues.lock();
                let waiting = queues.get_mut(&quota).map(std::mem::take);
                let waiting = waiting.unwrap_or_default();
                if waiting.is_empty() {
                    queues.remove(&quota);
                    // From here on the entry may belong to another worker.
                    guard.quota = None;
                    return;
                }
                waiting
            };
            // A request that was given up must not be charged.
            let waiters = waiters
                .into_iter()
                .filter(|waiter| !waiter.answer.is_closed());
            let (mut requests, answers): (Vec<_>, Vec<_>) = waiters
                .map(|waiter| (BatchRequest::new(waiter.request), waiter.answer))
                .unzip();
            self.process_batch(&quota, &mut requests).await;
            for (entry, answer) in requests.into_iter().zip(answers) {
                // A request given up in the meantime stays charged until the scheduler recomputes the usage.
                let _ = answer.send(entry.verdict.unwrap_or(Ok(())));
            }
        }
    }

    /// Decides a batch and writes the quota. Requests that are still open afterwards are granted.
    async fn process_batch(&self, key: &ObjectKey, requests: &mut [BatchRequest]) {
        let refuse_open = |requests: &mut [BatchRequest], refusal: &Refusal| {
            for entry in requests.iter_mut().filter(|entry| entry.verdict.is_none()) {
                entry.verdict = Some(Err(refusal.clone()));
            }
        };
        let mut batch = ChargeBatch::default();
        let mut retries_left = self.retries.max_retries();
        let mut paused = Duration::ZERO;
        let mut quota = match self.access.get(key).await {
            Ok(quota) => quota,
            Err(refusal) => return refuse_open(requests, &refusal),
        };
        while let Some(charge) = batch.decide(&quota, requests) {
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

/// Removes the entry of a quota if its processing is aborted, so that the next request starts it again.
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
