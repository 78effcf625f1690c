//! Whom eviction takes, and the books of what that releases.
//!
//! Several features may ask at once. Each is a [`Task`] with its candidates in order; what a victim
//! releases counts for all of them, once per resource and basis (use or request), so that nobody is
//! evicted for what another task has freed already.

use koord_api::priority::PriorityClass;
use koord_api::qos::QosClass;
use koord_api::resources;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// What a resource is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// What is in use.
    Used,
    /// What is requested.
    Request,
}

/// The kinds of resource that eviction frees. CPU is milli-cores, memory bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// CPU.
    Cpu,
    /// Memory.
    Memory,
}

/// What a pod of this class requests when it requests `dimension`: batch and mid pods their own
/// extended resources, every other pod the native one.
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

/// How a pod stands to earlier evictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// Nobody has asked it to go.
    #[default]
    Present,
    /// On its way out: what it holds counts as released, and it is not evicted again.
    Leaving,
    /// An eviction was refused lately, for instance by a disruption budget: it is passed over.
    Refused,
}

/// Amounts of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// In use, from the newest sample.
    pub used: Option<i64>,
    /// Requested of the resource that [`resource_of`] names.
    pub request: i64,
}

/// A pod as eviction sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// `metadata.name`, which orders pods that are equal otherwise.
    pub name: String,
    /// The class its label gives, without a default.
    pub qos: QosClass,
    /// Its priority class, with default.
    pub class: PriorityClass,
    /// `spec.priority`.
    pub priority: Option<i32>,
    /// Its priority with default (see [`koord_api::priority::value_of_pod`]).
    pub priority_value: i32,
    /// The label `koordinator.sh/priority`, or `priority_value`.
    pub sub_priority: i64,
    /// The annotation `koordinator.sh/eviction-priority`, or 0.
    pub eviction_priority: i32,
    /// Whether its phase is Pending or Running.
    pub active: bool,
    /// Whether the label `koordinator.sh/eviction-enabled` is `true`.
    pub enabled: bool,
    /// The features that may evict it: `None` is all, an unreadable annotation is none.
    pub evictable_by: Option<Vec<String>>,
    /// Its earlier evictions.
    pub standing: Standing,
    /// CPU.
    pub cpu: Amounts,
    /// Memory.
    pub memory: Amounts,
    /// Batch CPU it requests, whatever its priority class.
    pub batch_cpu_request: i64,
}

impl Pod {
    fn amounts(&self, dimension: Dimension) -> Amounts {
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

/// What a task counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The use of a native resource.
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

    /// What `pod` would release; `None` as amount is unknown.
    fn of(self, pod: &Pod) -> (&'static str, Option<i64>) {
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

/// What a feature asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The feature, by the name that `koordinator.sh/eviction-policy` lists.
    pub feature: &'static str,
    /// What it counts.
    pub measure: Measure,
    /// Resource to the amount that has to be released.
    pub wanted: BTreeMap<&'static str, i64>,
    /// Candidates by their place in the list of pods, first to go first.
    pub candidates: Vec<usize>,
}

/// One eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Victim {
    /// The pod's place in the list.
    pub pod: usize,
    /// The place of the task it goes for.
    pub task: usize,
}

/// What to do, and what it does not achieve.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Whom to evict now, in order.
    pub victims: Vec<Victim>,
    /// What is released, by basis and resource, with what leaving pods hold.
    pub released: Released,
    /// By task: what stays missing although every candidate goes.
    pub missing: Vec<BTreeMap<&'static str, i64>>,
}

/// Amounts by basis and resource.
pub type Released = BTreeMap<(Basis, &'static str), i64>;

impl Plan {
    fn count(&mut self, released: Released) {
        for (key, amount) in released {
            let sum = self.released.entry(key).or_insert(0);
            *sum = sum.saturating_add(amount);
        }
    }
}

/// Chooses the victims of all tasks, in the order of the tasks.
///
/// What leaving candidates hold is counted before anybody is chosen. A candidate that is known to
/// release nothing of what is still missing stays.
#[must_use]
pub fn choose(pods: &[Pod], tasks: &[Task]) -> Plan {
    let mut plan = Plan::default();
    let mut counted = BTreeSet::new();
    for &place in tasks.iter().flat_map(|task| &task.candidates) {
        let leaving = |pod: &&Pod| pod.standing == Standing::Leaving;
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
            let present = |pod: &&Pod| pod.standing == Standing::Present;
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

/// What of the wanted amounts is not released yet.
fn missing(task: &Task, released: &Released) -> BTreeMap<&'static str, i64> {
    let basis = task.measure.basis();
    let left = task.wanted.iter().map(|(resource, wanted)| {
        let got = released.get(&(basis, *resource)).copied().unwrap_or(0);
        (*resource, wanted.saturating_sub(got))
    });
    left.filter(|(_, left)| *left > 0).collect()
}

fn helps(task: &Task, pod: &Pod, released: &Released) -> bool {
    let (resource, amount) = task.measure.of(pod);
    amount != Some(0) && missing(task, released).contains_key(resource)
}

/// What `pod` releases for all tasks together: the largest amount by basis and resource.
fn releases(pod: &Pod, tasks: &[Task]) -> Released {
    let mut sum = BTreeMap::new();
    for task in tasks.iter().filter(|task| !task.wanted.is_empty()) {
        let (resource, amount) = task.measure.of(pod);
        let entry = sum.entry((task.measure.basis(), resource)).or_insert(0);
        *entry = amount.unwrap_or(0).max(*entry);
    }
    sum
}

/// The candidates of the features that go by a priority threshold, first to go first: active, allowed
/// by their policy and label, at or below `priority`, with a sample of their use.
///
/// Order: eviction priority, priority, sub-priority, all rising; then what they use or request
/// falling; then the name.
#[must_use]
pub fn by_priority(pods: &[Pod], feature: &str, priority: i32, measure: Measure) -> Vec<usize> {
    let dimension = match measure {
        Measure::Used(dimension) | Measure::Request(dimension) => dimension,
        Measure::BatchCpu => Dimension::Cpu,
    };
    let mut places = places(pods, |pod| {
        pod.active
            && pod.enabled
            && pod.priority_value <= priority
            && pod.allows(feature)
            && pod.amounts(dimension).used.is_some()
    });
    places.sort_by(|(_, a), (_, b)| {
        let rank = |pod: &Pod| (pod.eviction_priority, pod.priority_value, pod.sub_priority);
        let weight = |pod: &Pod| measure.of(pod).1.unwrap_or(0);
        rank(a)
            .cmp(&rank(b))
            .then_with(|| weight(b).cmp(&weight(a)))
            .then_with(|| a.name.cmp(&b.name))
    });
    places.into_iter().map(|(place, _)| place).collect()
}

/// The candidates for BECPUEvict: active BE pods that the feature may evict, by `spec.priority`
/// rising, then by use over batch request falling, then by name. No sample counts as no use.
#[must_use]
pub fn by_batch_cpu(pods: &[Pod], feature: &str) -> Vec<usize> {
    let mut places = places(pods, |pod| is_batch_candidate(pod, feature));
    places.sort_by(|(_, a), (_, b)| {
        by_spec_priority(a, b)
            .then_with(|| ratio_order(b, a))
            .then_with(|| a.name.cmp(&b.name))
    });
    places.into_iter().map(|(place, _)| place).collect()
}

/// The candidates for BEMemoryEvict: active BE pods that the feature may evict, by `spec.priority`
/// rising, then by memory in use falling; pods without a sample last, by name falling.
#[must_use]
pub fn by_batch_memory(pods: &[Pod], feature: &str) -> Vec<usize> {
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

fn is_batch_candidate(pod: &Pod, feature: &str) -> bool {
    pod.qos == QosClass::Be && pod.active && pod.allows(feature)
}

fn places(pods: &[Pod], wanted: impl Fn(&Pod) -> bool) -> Vec<(usize, &Pod)> {
    pods.iter()
        .enumerate()
        .filter(|(_, pod)| wanted(pod))
        .collect()
}

/// A pod without a priority has the cluster's default, 0.
fn by_spec_priority(a: &Pod, b: &Pod) -> Ordering {
    a.priority.unwrap_or(0).cmp(&b.priority.unwrap_or(0))
}

/// Compares use over batch request without dividing; a pod that requests nothing has ratio 0.
fn ratio_order(a: &Pod, b: &Pod) -> Ordering {
    let parts = |pod: &Pod| match pod.batch_cpu_request {
        request if request > 0 => (i128::from(pod.cpu.used.unwrap_or(0)), i128::from(request)),
        _ => (0, 1),
    };
    let ((a_used, a_request), (b_used, b_request)) = (parts(a), parts(b));
    (a_used * b_request).cmp(&(b_used * a_request))
}

/// The requests that count for the allocatable features: those of active pods at or below `priority`,
/// by the resource of their class.
#[must_use]
pub fn requested(pods: &[Pod], priority: i32, dimension: Dimension) -> BTreeMap<&'static str, i64> {
    let mut sum = BTreeMap::new();
    for pod in pods
        .iter()
        .filter(|pod| pod.active && pod.priority_value <= priority)
    {
        let (resource, amount) = Measure::Request(dimension).of(pod);
        let entry = sum.entry(resource).or_insert(0_i64);
        *entry = entry.saturating_add(amount.unwrap_or(0));
    }
    sum
}
