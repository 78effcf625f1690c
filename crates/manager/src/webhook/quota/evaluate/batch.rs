//! Pods that ask one quota for room, judged together.
//!
//! Source: Koordinator `pkg/webhook/quotaevaluate/evaluator.go`.

use crate::webhook::quota::check::Refusal;
use koord_api::quantity::ResourceList;
use koord_api::requests::Total;
use koord_api::scheduling::ElasticQuota;
use koord_api::{annotations, resources};
use koord_model::list;
use std::collections::BTreeSet;
use std::time::Duration;

/// A quota that limits none of these limits no pods.
const POD_RESOURCES: [&str; 14] = [
    resources::CPU,
    resources::MEMORY,
    resources::EPHEMERAL_STORAGE,
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    resources::BATCH_CPU,
    resources::BATCH_MEMORY,
    resources::MID_CPU,
    resources::MID_MEMORY,
    resources::GPU,
    resources::NVIDIA_GPU,
    resources::GPU_SHARED,
    resources::GPU_MEMORY_RATIO,
];

/// How writes of quotas that meet another writer are repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// The most repetitions for one batch of pods; less than three count as three.
    pub max: u32,
    /// The longest pause before a repetition, half of which is random; zero is none.
    pub jitter: Duration,
    /// The most that the pauses of one batch may take together.
    pub max_total_jitter: Duration,
    /// Whether the quota is read from the API server after a conflict even if a newer one is cached.
    pub fresh_get: bool,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            max: 3,
            jitter: Duration::ZERO,
            max_total_jitter: Duration::from_secs(1),
            fresh_get: false,
        }
    }
}

impl Retries {
    /// The fewest repetitions.
    const MIN: u32 = 3;

    /// The most repetitions for any batch.
    pub(super) fn max_retries(&self) -> u32 {
        self.max.max(Self::MIN)
    }

    /// The repetitions for a batch of which `pods` were let in: one more with every doubling.
    pub(super) fn for_batch(&self, pods: usize) -> u32 {
        let doublings = pods.max(1).ilog2();
        Self::MIN.saturating_add(doublings).min(self.max_retries())
    }

    /// The longest pause after the next write, if it fails and `left` repetitions remain, and after
    /// pauses of `spent`.
    pub(super) fn pause(&self, spent: Duration, left: u32) -> Duration {
        let fits = spent.saturating_add(self.jitter) <= self.max_total_jitter;
        if left > 0 && fits {
            self.jitter
        } else {
            Duration::ZERO
        }
    }
}

/// A pod's request and what became of it; `None` while it is open.
#[derive(Debug)]
pub(super) struct BatchRequest {
    pub(super) request: ResourceList,
    pub(super) verdict: Option<Result<(), Refusal>>,
}

impl BatchRequest {
    pub(super) fn new(request: ResourceList) -> Self {
        Self {
            request,
            verdict: None,
        }
    }
}

/// What shall be written so that the open requests are granted.
#[derive(Debug, PartialEq)]
pub(super) struct Charge {
    /// The new `child-request`.
    pub(super) used: ResourceList,
    /// How many pods it has room for; `None` when they were not judged one by one again.
    pub(super) pods: Option<usize>,
}

/// What is carried from one attempt at a batch to the next.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// What the granted pods take together.
    delta: ResourceList,
    /// The resources of the maximum at that time.
    limited: BTreeSet<String>,
}

impl Batch {
    /// Judges the open requests by what the quota says now. `None` when nothing is left to write.
    pub(super) fn judge(
        &mut self,
        quota: &ElasticQuota,
        requests: &mut [BatchRequest],
    ) -> Option<Charge> {
        let (mut used, limit) = match read(quota) {
            Ok(read) => read,
            Err(refusal) => {
                for entry in requests.iter_mut().filter(|entry| entry.verdict.is_none()) {
                    entry.verdict = Some(Err(refusal.clone()));
                }
                return None;
            }
        };
        let max = &quota.spec.max;
        if !max.keys().eq(self.limited.iter()) {
            self.limited = max.keys().cloned().collect();
            self.delta.clear();
        }
        if !self.delta.is_empty() {
            // The same pods as before: if they fit together, they fit one by one.
            let mut then = used.clone();
            then.add(&self.delta);
            let then = list::masked(&then, |name| self.delta.contains_key(name));
            if list::above(&then, &limit).is_empty() {
                used.add(&self.delta);
                return Some(Charge { used, pods: None });
            }
            self.delta.clear();
        }
        let limits_pods = POD_RESOURCES.iter().any(|name| max.contains_key(*name));
        let mut pods = 0;
        for entry in requests.iter_mut().filter(|entry| entry.verdict.is_none()) {
            let counts = |name: &str| max.contains_key(name);
            let mut request = list::masked(&entry.request, counts);
            request.retain(|_, amount| !amount.is_zero());
            if !limits_pods || request.is_empty() {
                entry.verdict = Some(Ok(()));
                continue;
            }
            let mut then = list::masked(&used, |name| request.contains_key(name));
            then.add(&request);
            let over = list::above(&then, &limit);
            if over.is_empty() {
                used.add(&request);
                self.delta.add(&request);
                pods += 1;
            } else {
                entry.verdict = Some(Err(exceeded(quota, &over, &request, &used, &limit)));
            }
        }
        (pods > 0).then_some(Charge {
            used,
            pods: Some(pods),
        })
    }
}

/// What is used of a quota, and the most that may be: the annotation if it lists anything, else the
/// maximum.
fn read(quota: &ElasticQuota) -> Result<(ResourceList, ResourceList), Refusal> {
    let amounts = |key| {
        let read = quota.amounts(key);
        read.map_err(|error| Refusal(format!("elastic quota {}: {error}", key_of(quota))))
    };
    let used = amounts(annotations::QUOTA_CHILD_REQUEST)?;
    let admission = amounts(annotations::QUOTA_ADMISSION)?;
    let limit = if admission.is_empty() {
        quota.spec.max.clone()
    } else {
        admission
    };
    Ok((used, limit))
}

fn key_of(quota: &ElasticQuota) -> koord_kube::ObjectKey {
    koord_kube::ObjectKey::of(quota)
}

fn exceeded(
    quota: &ElasticQuota,
    over: &[&str],
    request: &ResourceList,
    used: &ResourceList,
    limit: &ResourceList,
) -> Refusal {
    let text = |all: &ResourceList| {
        let shown = all.iter().filter(|(name, _)| over.contains(&name.as_str()));
        let shown: Vec<_> = shown
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect();
        shown.join(",")
    };
    Refusal(format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        key_of(quota),
        text(request),
        text(used),
        text(limit)
    ))
}
