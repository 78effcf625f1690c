//! Checks the requests of several pods for one quota together.
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

/// Resources of pods: a quota that limits none of them does not limit pods.
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

/// Retry policy of quota writes that conflict with another writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of retries for one batch of pods; less than three count as three.
    pub max: u32,
    /// Maximum delay before a retry, of which half is random; zero disables it.
    pub jitter: Duration,
    /// Maximum total delay of one batch.
    pub max_total_jitter: Duration,
    /// True if the quota is read from the API server after a conflict even if a newer one is cached.
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
    /// Minimum number of retries.
    const MIN: u32 = 3;

    /// Returns the maximum number of retries for any batch.
    pub(super) fn max_retries(&self) -> u32 {
        self.max.max(Self::MIN)
    }

    /// Returns the number of retries for a batch that grants `pods` pods: one more with every doubling.
    pub(super) fn for_batch(&self, pods: usize) -> u32 {
        let doublings = pods.max(1).ilog2();
        Self::MIN.saturating_add(doublings).min(self.max_retries())
    }

    /// Returns the maximum delay after the next write if it fails, with `retries_left` retries and delays of
    /// `spent` so far.
    pub(super) fn pause(&self, spent: Duration, retries_left: u32) -> Duration {
        let fits = spent.saturating_add(self.jitter) <= self.max_total_jitter;
        if retries_left > 0 && fits {
            self.jitter
        } else {
            Duration::ZERO
        }
    }
}

/// The request of a pod and its verdict; `None` while it is open.
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

/// The write that grants the open requests.
#[derive(Debug, PartialEq)]
pub(super) struct Charge {
    /// The new value of the annotation `child-request`.
    pub(super) used: ResourceList,
    /// Number of pods that it grants; `None` if they were not checked one by one again.
    pub(super) pods: Option<usize>,
}

/// State carried from one attempt at a batch to the next.
#[derive(Debug, Default)]
pub(super) struct ChargeBatch {
    /// Sum of the granted requests.
    delta: ResourceList,
    /// The resources in the maximum at that time.
    limited: BTreeSet<String>,
}

impl ChargeBatch {
    /// Decides the open requests by the current quota. Returns `None` if there is nothing to write.
    pub(super) fn decide(
        &mut self,
        quota: &ElasticQuota,
        requests: &mut [BatchRequest],
    ) -> Option<Charge> {
        let (mut used, limit) = match usage_and_limit(quota) {
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
            // The pods are unchanged: if they fit together, each fits.
            let mut sum = used.clone();
            sum.add(&self.delta);
            let sum = list::masked(&sum, |name| self.delta.contains_key(name));
            if list::above(&sum, &limit).is_empty() {
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
            let mut sum = list::masked(&used, |name| request.contains_key(name));
            sum.add(&request);
            let over = list::above(&sum, &limit);
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

/// Returns usage and limit of a quota; the limit is the admission annotation if it is not empty, otherwise
/// the maximum.
fn usage_and_limit(quota: &ElasticQuota) -> Result<(ResourceList, ResourceList), Refusal> {
    let amounts = |key| {
        let read = quota.amounts(key);
        read.map_err(|error| Refusal(format!("elastic quota {}: {error}", quota_key(quota))))
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

fn quota_key(quota: &ElasticQuota) -> koord_kube::ObjectKey {
    koord_kube::ObjectKey::from_object(quota)
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
        quota_key(quota),
        text(request),
        text(used),
        text(limit)
    ))
}
