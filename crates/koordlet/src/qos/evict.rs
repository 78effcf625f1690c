//! Shared parts of the evicting strategies: the planner of a list of features, the conversion of pods, and
//! one eviction pass.
//!
//! The features, their thresholds and their orders are in [`koord_model::evict`].

use crate::collect::needs::Needs;
use crate::gates::Gate;
use crate::health::State;
use crate::log_on_change::LogOnChange;
use crate::qos::{Eviction, Facts, Plan, Planner, PodView, View};
use crate::states::pod::Batch;
use crate::states::{ContainerInfo, PodInfo};
use koord_api::PriorityClass;
use koord_api::resources;
use koord_model::evict::config::{AllocatableThreshold, ConfigError};
use koord_model::evict::plan::{
    Dimension, DimensionAmounts, EvictionPod, EvictionState, EvictionTask, Measure, by_priority,
    choose, is_batch_candidate, is_labeled_candidate, requested,
};
use std::collections::BTreeMap;

/// The task of a feature with its reason; `None` if no pod has to be evicted for it.
pub type EvictionNeed = Option<(EvictionTask, String)>;

/// The pods that a feature may evict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidates {
    /// Pods of the QoS class BE.
    Batch,
    /// Pods with the label `koordinator.sh/eviction-enabled`.
    Labeled,
}

impl Candidates {
    /// Returns whether `pod` is one of them and allows `feature`.
    fn includes(self, pod: &EvictionPod, feature: &str) -> bool {
        match self {
            Self::Batch => is_batch_candidate(pod, feature),
            Self::Labeled => is_labeled_candidate(pod, feature),
        }
    }

    /// Returns why `feature` has nothing to evict; `None` if one of `pods` is eligible.
    fn missing(self, pods: &[EvictionPod], feature: &str) -> Option<String> {
        if pods.iter().any(|pod| self.includes(pod, feature)) {
            return None;
        }
        let needed = match self {
            Self::Batch => "QoS class BE",
            Self::Labeled => "label koordinator.sh/eviction-enabled=true",
        };
        Some(format!(
            "{feature}: no pod is eligible (needs {needed}, and no eviction policy against it)"
        ))
    }
}

/// A reason to evict, with a feature gate of its own.
#[derive(Debug, Clone, Copy)]
pub struct Feature {
    /// Name as listed in the annotation `koordinator.sh/eviction-policy`.
    pub name: &'static str,
    /// Feature gate.
    pub gate: Gate,
    /// Pods that it may evict.
    pub candidates: Candidates,
    /// Checks whether pods have to be evicted.
    pub find: fn(&'static str, &mut EvictionPass, &View<'_>, &[EvictionPod]) -> EvictionNeed,
}

/// An evicting strategy: its features are checked in order and share one eviction pass.
#[derive(Debug)]
pub struct Evict {
    features: &'static [Feature],
    pass: EvictionPass,
    /// True if the first samples of a new agent must not cause an eviction.
    initial_cooldown: bool,
}

impl Evict {
    /// Creates the strategy of `features`, with a cooldown between two evictions, in milliseconds.
    #[must_use]
    pub fn new(features: &'static [Feature], cool_down_ms: u64) -> Self {
        Self {
            features,
            pass: EvictionPass::new(cool_down_ms),
            initial_cooldown: false,
        }
    }

    /// Creates a planner like [`Evict::new`], with a cooldown before the first eviction, too.
    #[must_use]
    pub fn with_initial_cooldown(features: &'static [Feature], cool_down_ms: u64) -> Self {
        Self {
            initial_cooldown: true,
            ..Self::new(features, cool_down_ms)
        }
    }
}

impl Planner for Evict {
    fn needs(&self, facts: &Facts<'_>) -> Needs {
        let of_batch = |feature: &Feature| feature.gate == Gate::BECPUEvict;
        let asks = self.features.iter().any(of_batch);
        Needs {
            batch_limit: asks && facts.slo.enabled && facts.settings.gates.is_on(Gate::BECPUEvict),
            ..Needs::default()
        }
    }

    fn plan(&mut self, view: &View<'_>, plan: &mut Plan) {
        if self.initial_cooldown && self.pass.is_new() {
            self.pass.start_cooldown(view.now.ms());
        }
        let idle = match (view.facts.slo.enabled, view.pods) {
            (false, _) => Some("the NodeSLO does not enable it"),
            (true, None) => Some("the pods are not known yet"),
            (true, Some(_)) => None,
        };
        if let Some(why) = idle {
            plan.report_state(State::Idle, why);
            return;
        }
        let pods = pods(view);
        let gates = &view.facts.settings.gates;
        let open = self.features.iter().filter(|f| gates.is_on(f.gate));
        let pass = &mut self.pass;
        let needs = open.filter_map(|f| (f.find)(f.name, pass, view, &pods));
        let (tasks, why): (Vec<_>, Vec<_>) = needs.unzip();
        let missing = |name: &str| {
            let feature = self.features.iter().find(|feature| feature.name == name)?;
            feature.candidates.missing(&pods, name)
        };
        let (state, text) = self.pass.take_state(missing);
        plan.report_state(state, text);
        self.pass.evict(view, &pods, &tasks, &why, plan);
    }

    fn evicted(&mut self, eviction: &Eviction, now_ms: u64) {
        if self.features.iter().any(|f| f.name == eviction.feature) {
            self.pass.start_cooldown(now_ms);
        }
    }
}

/// Returns the task of an allocatable feature if requests exceed the allocatable amount.
pub(super) fn by_allocatable(
    feature: &'static str,
    limits: &AllocatableThreshold,
    view: &View<'_>,
    pods: &[EvictionPod],
    dimension: Dimension,
) -> EvictionNeed {
    let node = view.facts.node?;
    let allocatable = |resource: &str| match resource {
        resources::CPU => Some(node.allocatable.cpu),
        resources::MEMORY => Some(node.allocatable.memory),
        other => node.extended.get(other).copied(),
    };
    let mut releases = BTreeMap::new();
    let mut why = Vec::new();
    for (resource, amount) in requested(pods, limits.priority, dimension) {
        let have = allocatable(resource);
        let release = limits.release(amount, have);
        if release > 0 {
            releases.insert(resource, release);
            let have = have.unwrap_or(0);
            why.push(format!(
                "{amount} of {resource} requested over {have} allocatable"
            ));
        }
    }
    let measure = Measure::Request(dimension);
    let task = EvictionTask {
        feature,
        measure,
        wanted: releases,
        candidates: by_priority(pods, feature, limits.priority, measure),
    };
    (!task.wanted.is_empty()).then(|| (task, why.join(", ")))
}

/// Returns the pods of a tick as input of the eviction rules, in the order of the view.
#[must_use]
pub fn pods(view: &View<'_>) -> Vec<EvictionPod> {
    view.pods().map(|pod| to_candidate(view, pod)).collect()
}

/// Converts a pod to a candidate of the eviction rules.
fn to_candidate(view: &View<'_>, pod: &PodView<'_>) -> EvictionPod {
    let info = pod.info;
    let request = request(info);
    EvictionPod {
        name: info.name.clone(),
        qos: info.qos,
        class: info.priority_class,
        priority: info.priority,
        priority_value: info.priority_value,
        sub_priority: i64::from(info.sub_priority.unwrap_or(info.priority_value)),
        eviction_priority: info.eviction_priority,
        active: info.is_active(),
        enabled: info.eviction_enabled,
        evictable_by: info.evictable_by.clone(),
        standing: if info.deleting {
            EvictionState::Leaving
        } else {
            view.eviction_history.standing(&info.uid, view.now.ms())
        },
        cpu: DimensionAmounts {
            used: pod.cpu,
            request: request.0,
        },
        memory: DimensionAmounts {
            used: pod.memory,
            request: request.1,
        },
        batch_cpu_request: info.batch_cpu_request(),
    }
}

/// Returns the CPU in milli-cores and the memory in bytes that the pod requests, of the resources of its
/// priority class.
fn request(pod: &PodInfo) -> (i64, i64) {
    let sum = |of: fn(&ContainerInfo) -> Option<Batch>| {
        pod.resident_containers()
            .filter_map(of)
            .fold((0_i64, 0_i64), |(cpu, memory), batch| {
                let at_least_0 = |amount: Option<i64>| amount.unwrap_or(0).max(0);
                (
                    cpu.saturating_add(at_least_0(batch.cpu_request)),
                    memory.saturating_add(at_least_0(batch.memory_request)),
                )
            })
    };
    match pod.priority_class {
        PriorityClass::Batch => sum(|container| container.batch),
        PriorityClass::Mid => sum(|container| container.mid.as_deref().copied()),
        _ => (pod.cpu_request, pod.memory_request),
    }
}

/// State of one evicting strategy: its cooldown and the log of its settings.
#[derive(Debug)]
pub struct EvictionPass {
    cool_down_ms: u64,
    last_ms: Option<u64>,
    log: LogOnChange,
    /// Invalid settings of the features in this pass.
    wrong: Vec<String>,
    /// Features without a threshold in this pass.
    unset: Vec<String>,
    /// Features with usable settings in this pass.
    set: Vec<&'static str>,
}

impl EvictionPass {
    /// Creates a pass with this cooldown between two evictions, in milliseconds.
    #[must_use]
    pub fn new(cool_down_ms: u64) -> Self {
        Self {
            cool_down_ms,
            last_ms: None,
            log: LogOnChange::default(),
            wrong: Vec::new(),
            unset: Vec::new(),
            set: Vec::new(),
        }
    }

    /// Starts the cooldown.
    pub fn start_cooldown(&mut self, now_ms: u64) {
        self.last_ms = Some(now_ms);
    }

    /// Returns whether no cooldown was ever started.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.last_ms.is_none()
    }

    /// Returns whether the cooldown has not ended yet.
    #[must_use]
    pub fn is_cooling_down(&self, now_ms: u64) -> bool {
        self.last_ms
            .is_some_and(|last| now_ms.saturating_sub(last) < self.cool_down_ms)
    }

    /// Returns the settings of a feature; `None` if they are missing or invalid, which is logged once.
    pub fn settings<T>(
        &mut self,
        feature: &'static str,
        read: Result<T, ConfigError>,
    ) -> Option<T> {
        match read {
            Ok(settings) => {
                if !self.set.contains(&feature) {
                    self.set.push(feature);
                }
                Some(settings)
            }
            Err(error) => {
                let list = match error {
                    // The default: nothing is wrong.
                    ConfigError::Missing(_) => {
                        self.log.log_unset(feature, &error);
                        &mut self.unset
                    }
                    _ => {
                        self.log.log_off(feature, &error);
                        &mut self.wrong
                    }
                };
                list.push(format!("{feature}: {error}"));
                None
            }
        }
    }

    /// Returns the state of the checked features for the status page, and clears it. A feature without a
    /// threshold is disabled, which is no failure; `missing` returns why a feature has nothing to evict.
    fn take_state(&mut self, missing: impl Fn(&str) -> Option<String>) -> (State, String) {
        let wrong = std::mem::take(&mut self.wrong);
        let unset = std::mem::take(&mut self.unset);
        let set = std::mem::take(&mut self.set);
        if !wrong.is_empty() {
            return (State::Failing, wrong.join("; "));
        }
        if set.is_empty() && !unset.is_empty() {
            return (State::Idle, unset.join("; "));
        }
        let missing: Vec<_> = set.iter().filter_map(|feature| missing(feature)).collect();
        if !missing.is_empty() && missing.len() == set.len() {
            return (State::Idle, missing.join("; "));
        }
        let mut text = vec!["evictions by threshold".to_owned()];
        text.extend(missing);
        (State::Active, text.join("; "))
    }

    /// Chooses the victims of `tasks` and adds them to the plan. `why` has the reason of each task.
    pub fn evict(
        &mut self,
        view: &View<'_>,
        pods: &[EvictionPod],
        tasks: &[EvictionTask],
        why: &[String],
        plan: &mut Plan,
    ) {
        if tasks.is_empty() || self.is_cooling_down(view.now.ms()) {
            return;
        }
        let views = view.pods.unwrap_or_default();
        for victim in choose(pods, tasks).victims {
            let (Some(pod), Some(task)) = (views.get(victim.pod), tasks.get(victim.task)) else {
                continue;
            };
            let why = why.get(victim.task).map_or("", String::as_str);
            let used = pod.memory.unwrap_or(0);
            plan.evict(Eviction {
                uid: pod.info.uid.clone(),
                namespace: pod.info.namespace.clone(),
                name: pod.info.name.clone(),
                feature: task.feature,
                message: format!(
                    "trigger by koordlet feature {}, kill pod: {}; {why}; pod uses {}m CPU, {used} bytes",
                    task.feature,
                    pod.info.name,
                    pod.cpu.unwrap_or(0),
                ),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_on_change::tests::Warnings;

    #[test]
    fn unset_threshold_is_no_warning() {
        let warnings = Warnings::default();
        let field = "cpuEvictThresholdPercent";
        tracing::subscriber::with_default(warnings.clone(), || {
            let mut pass = EvictionPass::new(0);
            for _ in 0..2 {
                pass.settings::<()>("BECPUEvict", Err(ConfigError::Missing(field)));
            }
            assert_eq!(warnings.targets(), [""; 0]);
            assert!(pass.unset[0].starts_with("BECPUEvict"), "{:?}", pass.unset);
        });
    }

    /// A strategy that is on, but may evict no pod, is not active.
    #[test]
    fn state_tells_that_no_pod_is_eligible() {
        let state = |pods: &[EvictionPod]| {
            let mut pass = EvictionPass::new(0);
            pass.settings("BECPUEvict", Ok::<_, ConfigError>(()));
            pass.settings("CPUEvict", Ok::<_, ConfigError>(()));
            pass.take_state(|feature| {
                let candidates = match feature {
                    "CPUEvict" => Candidates::Labeled,
                    _ => Candidates::Batch,
                };
                candidates.missing(pods, feature)
            })
        };
        let unlabeled = EvictionPod {
            active: true,
            ..EvictionPod::default()
        };
        let labeled = EvictionPod {
            enabled: true,
            ..unlabeled.clone()
        };
        let batch = EvictionPod {
            qos: koord_api::qos::QosClass::Be,
            ..unlabeled.clone()
        };
        let against = EvictionPod {
            evictable_by: Some(Vec::new()),
            ..labeled.clone()
        };
        for pods in [vec![], vec![unlabeled.clone()], vec![against]] {
            let (state, text) = state(&pods);
            assert_eq!(state, State::Idle, "{text}");
            assert!(text.contains("eviction-enabled=true"), "{text}");
            assert!(text.contains("BECPUEvict: no pod is eligible"), "{text}");
        }
        let (all, text) = state(&[labeled.clone(), batch.clone()]);
        assert_eq!(
            (all, text.as_str()),
            (State::Active, "evictions by threshold")
        );
        // One of two features has pods.
        for (pod, without) in [(labeled, "BECPUEvict"), (batch, "; CPUEvict")] {
            let (state, text) = state(&[pod]);
            assert_eq!(state, State::Active, "{text}");
            assert!(text.contains(&format!("{without}: no pod")), "{text}");
        }
    }

    use crate::states::{Driver, Layout};
    use koord_api::resources;
    use koord_host::CgroupPath;
    use koord_model::evict::plan::{Dimension, resource_of};
    use serde_json::{Value, json};

    /// Returns the requests of a pod with these labels, priority and spec, and the resource they count for.
    fn requested(labels: &Value, spec: &Value, dimension: Dimension) -> (&'static str, i64) {
        let pod = json!({"metadata": {"uid": "u", "labels": labels}, "spec": spec});
        let layout = Layout::new(Driver::Cgroupfs, CgroupPath::root());
        let info = PodInfo::from_pod(&serde_json::from_value(pod).unwrap(), &layout).unwrap();
        let (cpu, memory) = request(&info);
        let amount = match dimension {
            Dimension::Cpu => cpu,
            Dimension::Memory => memory,
        };
        (resource_of(info.priority_class, dimension), amount)
    }

    /// Upstream: `Test_GetRequestFromPod`.
    #[test]
    fn requests_of_the_class() {
        let container = |resource: &str, amount: &str| json!({"name": "c", "resources": {"requests": {resource: amount}}});
        let be = json!({"koordinator.sh/qosClass": "BE"});
        let ls = json!({"koordinator.sh/qosClass": "LS"});
        let lsr = json!({"koordinator.sh/qosClass": "LSR"});
        let mid = Some(7500);
        let (cpu, memory) = (Dimension::Cpu, Dimension::Memory);
        for (name, labels, priority, containers, dimension, want) in [
            (
                "batch pod - cpu request",
                &be,
                None,
                json!([container(resources::BATCH_CPU, "2000")]),
                cpu,
                (resources::BATCH_CPU, 2000),
            ),
            (
                "batch pod - memory request",
                &be,
                None,
                json!([container(resources::BATCH_MEMORY, "1Gi")]),
                memory,
                (resources::BATCH_MEMORY, 1 << 30),
            ),
            (
                "batch pod - multiple containers cpu",
                &be,
                None,
                json!([
                    container(resources::BATCH_CPU, "1000"),
                    container(resources::BATCH_CPU, "500")
                ]),
                cpu,
                (resources::BATCH_CPU, 1500),
            ),
            (
                "mid pod - cpu request",
                &ls,
                mid,
                json!([container(resources::MID_CPU, "3000")]),
                cpu,
                (resources::MID_CPU, 3000),
            ),
            (
                "mid pod - memory request",
                &ls,
                mid,
                json!([container(resources::MID_MEMORY, "2Gi")]),
                memory,
                (resources::MID_MEMORY, 2 << 30),
            ),
            (
                "prod pod - cpu request",
                &lsr,
                None,
                json!([container(resources::CPU, "4")]),
                cpu,
                (resources::CPU, 4000),
            ),
            (
                "prod pod - memory request",
                &lsr,
                None,
                json!([container(resources::MEMORY, "8Gi")]),
                memory,
                (resources::MEMORY, 8 << 30),
            ),
            (
                "batch pod - zero cpu request",
                &be,
                None,
                json!([{"name": "c"}]),
                cpu,
                (resources::BATCH_CPU, 0),
            ),
            (
                "batch pod - negative cpu treated as zero",
                &be,
                None,
                json!([container(resources::BATCH_CPU, "-100")]),
                cpu,
                (resources::BATCH_CPU, 0),
            ),
            (
                "pod without priority class - cpu",
                &json!({}),
                None,
                json!([container(resources::CPU, "2")]),
                cpu,
                (resources::CPU, 2000),
            ),
        ] {
            let spec = json!({"priority": priority, "containers": containers});
            assert_eq!(requested(labels, &spec, dimension), want, "{name}");
        }
        // The row with sidecars: they run concurrently with the containers, other init containers do not.
        let mut sidecar = container(resources::BATCH_CPU, "300");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({
            "containers": [container(resources::BATCH_CPU, "1000")],
            "initContainers": [sidecar, container(resources::BATCH_CPU, "9000")],
        });
        assert_eq!(requested(&be, &spec, cpu), (resources::BATCH_CPU, 1300));
    }
}
