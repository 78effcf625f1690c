//! Selection of eviction victims and accounting of the released amounts.
//!
//! Several features may request evictions at once. Each is a [`EvictionTask`] with its candidates in order; the
//! amount that a victim releases counts for all of them, once per resource and basis (usage or request), so
//! that no pod is evicted for an amount that another task has freed already.

use koord_api::priority::PriorityClass;
use koord_api::qos::QosClass;
use koord_api::resources;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Basis on which an amount is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// Usage.
    Used,
    /// Requests.
    Request,
}

/// Resource kinds that eviction frees. CPU is in milli-cores, memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// CPU.
    Cpu,
    /// Memory.
    Memory,
}

/// Returns the resource name that pods of `class` use for `dimension`: batch and mid pods use their extended
/// resources, all others the native one.
#[must_use]
pub fn resource_of(class: PriorityClass, dimension: Dimension) -> &'static str {
    match (class, dimension) {
        (PriorityClass::Batch, Dimension::Cpu) => resources::BATCH_CPU,
        (PriorityClass::Batch, Dimension::Memory) => resources::BATCH_MEMORY,
        (PriorityClass::Mid, Dimension::Cpu) => resources::MID_CPU,
        (PriorityClass::Mid, Dimension::Memory) => resources::MID_MEMORY,
        (_, Dimension::Cpu) => resources::CPU,
        (_, Dimension::Memory) => resources::MEMORY,
    }
}

/// State of a pod with respect to earlier evictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictionState {
    /// No eviction was requested.
    #[default]
    Present,
    /// Terminating: its amounts count as released, and it is not evicted again.
    Leaving,
    /// An eviction was recently refused, for instance by a PodDisruptionBudget: the pod is skipped.
    Refused,
}

/// Usage and request of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DimensionAmounts {
    /// Usage of the newest sample; `None` without a sample.
    pub used: Option<i64>,
    /// Request for the resource that [`resource_of`] names.
    pub request: i64,
}

/// Properties of a pod that eviction considers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EvictionPod {
    /// `metadata.name`, which breaks ties in the order of pods.
    pub name: String,
    /// QoS class of the pod's label, without a default.
    pub qos: QosClass,
    /// Priority class, with default.
    pub class: PriorityClass,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// Priority with default (see [`koord_api::priority::pod_priority_value`]).
    pub priority_value: i32,
    /// The label `koordinator.sh/priority`, or `priority_value`.
    pub sub_priority: i64,
    /// The annotation `koordinator.sh/eviction-priority`, or 0.
    pub eviction_priority: i32,
    /// True if the phase is Pending or Running.
    pub active: bool,
    /// True if the label `koordinator.sh/eviction-enabled` is `true`.
    pub enabled: bool,
    /// Features that may evict the pod: `None` means all, an invalid annotation none.
    pub evictable_by: Option<Vec<String>>,
    /// State with respect to earlier evictions.
    pub standing: EvictionState,
    /// CPU.
    pub cpu: DimensionAmounts,
    /// Memory.
    pub memory: DimensionAmounts,
    /// Requested batch CPU, regardless of the priority class.
    pub batch_cpu_request: i64,
}

impl EvictionPod {
    fn amounts(&self, dimension: Dimension) -> DimensionAmounts {
        match dimension {
            Dimension::Cpu => self.cpu,
            Dimension::Memory => self.memory,
        }
    }

    fn allows(&self, feature: &str) -> bool {
        self.evictable_by
            .as_ref()
            .is_none_or(|list| list.iter().any(|name| name == feature))
    }
}

/// Amount that a task counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Usage of a native resource.
    Used(Dimension),
    /// Requests of the resource of each pod's class.
    Request(Dimension),
    /// Requests of batch CPU.
    BatchCpu,
}

impl Measure {
    fn basis(self) -> Basis {
        match self {
            Self::Used(_) => Basis::Used,
            Self::Request(_) | Self::BatchCpu => Basis::Request,
        }
    }

    /// Returns the resource and amount that `pod` would release; an amount of `None` is unknown.
    fn released_amount(self, pod: &EvictionPod) -> (&'static str, Option<i64>) {
        match self {
            Self::Used(dimension) => (
                resource_of(PriorityClass::Prod, dimension),
                pod.amounts(dimension).used,
            ),
            Self::Request(dimension) => (
                resource_of(pod.class, dimension),
                Some(pod.amounts(dimension).request.max(0)),
            ),
            Self::BatchCpu => (resources::BATCH_CPU, Some(pod.batch_cpu_request.max(0))),
        }
    }
}

/// Eviction request of one feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionTask {
    /// Name of the feature, as listed by `koordinator.sh/eviction-policy`.
    pub feature: &'static str,
    /// Amount that the task counts.
    pub measure: Measure,
    /// Resource to the amount to release.
    pub wanted: BTreeMap<&'static str, i64>,
    /// Candidates as indices into the list of pods, in order of eviction.
    pub candidates: Vec<usize>,
}

/// One eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// Index of the pod in the list.
    pub pod: usize,
    /// Index of the task that the pod is evicted for.
    pub task: usize,
}

/// Planned evictions and the amounts they do not cover.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Pods to evict now, in order.
    pub victims: Vec<Victim>,
    /// Released amounts by basis and resource, including those of terminating pods.
    pub released: Released,
    /// Amounts still missing after all candidates are evicted, by task.
    pub missing: Vec<BTreeMap<&'static str, i64>>,
}

/// Released amounts by basis and resource.
pub type Released = BTreeMap<(Basis, &'static str), i64>;

impl Plan {
    fn count(&mut self, released: Released) {
        for (key, amount) in released {
            let sum = self.released.entry(key).or_insert(0);
            *sum = sum.saturating_add(amount);
        }
    }
}

/// Selects the victims of all tasks, in the order of the tasks.
///
/// The amounts of terminating candidates are counted first. A candidate that is known to release nothing of
/// the missing amounts is not evicted.
#[must_use]
pub fn choose(pods: &[EvictionPod], tasks: &[EvictionTask]) -> Plan {
    let mut plan = Plan::default();
    let mut counted = BTreeSet::new();
    for &place in tasks.iter().flat_map(|task| &task.candidates) {
        let leaving = |pod: &&EvictionPod| pod.standing == EvictionState::Leaving;
        if let Some(pod) = pods.get(place).filter(leaving)
            && counted.insert(place)
        {
            plan.count(releases(pod, tasks));
        }
    }
    for (number, task) in tasks.iter().enumerate() {
        for &place in &task.candidates {
            if missing(task, &plan.released).is_empty() {
                break;
            }
            let present = |pod: &&EvictionPod| pod.standing == EvictionState::Present;
            if let Some(pod) = pods.get(place).filter(present)
                && helps(task, pod, &plan.released)
                && counted.insert(place)
            {
                plan.victims.push(Victim {
                    pod: place,
                    task: number,
                });
                plan.count(releases(pod, tasks));
            }
        }
    }
    plan.missing = tasks
        .iter()
        .map(|task| missing(task, &plan.released))
        .collect();
    plan
}

/// Returns the requested amounts that are not released yet.
fn missing(task: &EvictionTask, released: &Released) -> BTreeMap<&'static str, i64> {
    let basis = task.measure.basis();
    let missing = task.wanted.iter().map(|(resource, wanted)| {
        let got = released.get(&(basis, *resource)).copied().unwrap_or(0);
        (*resource, wanted.saturating_sub(got))
    });
    missing.filter(|(_, missing)| *missing > 0).collect()
}

fn helps(task: &EvictionTask, pod: &EvictionPod, released: &Released) -> bool {
    let (resource, amount) = task.measure.released_amount(pod);
    amount != Some(0) && missing(task, released).contains_key(resource)
}

/// Returns the amounts that `pod` releases for all tasks together: the largest amount by basis and resource.
fn releases(pod: &EvictionPod, tasks: &[EvictionTask]) -> Released {
    let mut sum = BTreeMap::new();
    for task in tasks.iter().filter(|task| !task.wanted.is_empty()) {
        let (resource, amount) = task.measure.released_amount(pod);
        let entry = sum.entry((task.measure.basis(), resource)).or_insert(0);
        *entry = amount.unwrap_or(0).max(*entry);
    }
    sum
}

/// Returns the candidates of the features with a priority threshold in order of eviction: active pods,
/// allowed by their policy and label, with a priority of at most `priority` and a usage sample.
///
/// Order: eviction priority, priority, sub-priority, all ascending; then usage or request descending; then
/// the name.
#[must_use]
pub fn by_priority(
    pods: &[EvictionPod],
    feature: &str,
    priority: i32,
    measure: Measure,
) -> Vec<usize> {
    let dimension = match measure {
        Measure::Used(dimension) | Measure::Request(dimension) => dimension,
        Measure::BatchCpu => Dimension::Cpu,
    };
    let mut places = places(pods, |pod| {
        is_labeled_candidate(pod, feature)
            && pod.priority_value <= priority
            && pod.amounts(dimension).used.is_some()
    });
    places.sort_by(|(_, a), (_, b)| {
        let rank =
            |pod: &EvictionPod| (pod.eviction_priority, pod.priority_value, pod.sub_priority);
        let weight = |pod: &EvictionPod| measure.released_amount(pod).1.unwrap_or(0);
        rank(a)
            .cmp(&rank(b))
            .then_with(|| weight(b).cmp(&weight(a)))
            .then_with(|| a.name.cmp(&b.name))
    });
    places.into_iter().map(|(place, _)| place).collect()
}

/// Returns the candidates of BECPUEvict: active BE pods that the feature may evict, by `spec.priority`
/// ascending, then by usage over batch request descending, then by name. A missing sample counts as no usage.
#[must_use]
pub fn by_batch_cpu(pods: &[EvictionPod], feature: &str) -> Vec<usize> {
    let mut places = places(pods, |pod| is_batch_candidate(pod, feature));
    places.sort_by(|(_, a), (_, b)| {
        by_spec_priority(a, b)
            .then_with(|| ratio_order(b, a))
            .then_with(|| a.name.cmp(&b.name))
    });
    places.into_iter().map(|(place, _)| place).collect()
}

/// Returns the candidates of BEMemoryEvict: active BE pods that the feature may evict, by `spec.priority`
/// ascending, then by memory usage descending; pods without a sample last, by name descending.
#[must_use]
pub fn by_batch_memory(pods: &[EvictionPod], feature: &str) -> Vec<usize> {
    let mut places = places(pods, |pod| is_batch_candidate(pod, feature));
    places.sort_by(|(_, a), (_, b)| match (a.memory.used, b.memory.used) {
        (Some(x), Some(y)) => by_spec_priority(a, b)
            .then_with(|| y.cmp(&x))
            .then_with(|| a.name.cmp(&b.name)),
        (None, None) => b.name.cmp(&a.name),
        (x, y) => x.is_none().cmp(&y.is_none()),
    });
    places.into_iter().map(|(place, _)| place).collect()
}

/// Returns whether features by priority may evict `pod`, if its priority is low enough: its label allows it.
#[must_use]
pub fn is_labeled_candidate(pod: &EvictionPod, feature: &str) -> bool {
    pod.active && pod.enabled && pod.allows(feature)
}

/// Returns whether features of batch pods may evict `pod`, which needs no label.
#[must_use]
pub fn is_batch_candidate(pod: &EvictionPod, feature: &str) -> bool {
    pod.qos == QosClass::Be && pod.active && pod.allows(feature)
}

fn places(
    pods: &[EvictionPod],
    wanted: impl Fn(&EvictionPod) -> bool,
) -> Vec<(usize, &EvictionPod)> {
    pods.iter()
        .enumerate()
        .filter(|(_, pod)| wanted(pod))
        .collect()
}

/// Compares by `spec.priority`. A pod without one has the cluster's default, 0.
fn by_spec_priority(a: &EvictionPod, b: &EvictionPod) -> Ordering {
    a.priority.unwrap_or(0).cmp(&b.priority.unwrap_or(0))
}

/// Compares usage over batch request without division; a pod that requests nothing has ratio 0.
fn ratio_order(a: &EvictionPod, b: &EvictionPod) -> Ordering {
    let parts = |pod: &EvictionPod| match pod.batch_cpu_request {
        request if request > 0 => (i128::from(pod.cpu.used.unwrap_or(0)), i128::from(request)),
        _ => (0, 1),
    };
    let ((a_used, a_request), (b_used, b_request)) = (parts(a), parts(b));
    (a_used * b_request).cmp(&(b_used * a_request))
}

/// Returns the requests that `CPUAllocatableEvict` and `MemoryAllocatableEvict` compare with allocatable: the
/// sums over active pods with a priority of at most `priority`, by the resource of their priority class.
#[must_use]
pub fn requested(
    pods: &[EvictionPod],
    priority: i32,
    dimension: Dimension,
) -> BTreeMap<&'static str, i64> {
    let mut sum = BTreeMap::new();
    for pod in pods
        .iter()
        .filter(|pod| pod.active && pod.priority_value <= priority)
    {
        let (resource, amount) = Measure::Request(dimension).released_amount(pod);
        let entry = sum.entry(resource).or_insert(0_i64);
        *entry = entry.saturating_add(amount.unwrap_or(0));
    }
    sum
}
