//! `DefaultEvictor`: filters pods by many rules, most of which can be disabled, and evicts pods through the
//! API server.

mod args;

pub(super) use args::{Args, check};

use super::free_capacity::FreeCapacity;
use crate::framework::{EvictionRequest, Evictor, Filter, Intent, SkipReason};
use crate::rules::{Budgets, Evictable, overrides};
use crate::state::{NodeInfo, PodInfo, Snapshot};
use args::{Protection, Threshold};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use koord_api::selector;
use koord_object::selector::LabelSelector as NodeSelector;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const NAME: &str = "DefaultEvictor";

/// Annotation of pods that should not be evicted; any value counts.
pub(super) const PREFER_NO_EVICTION: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";

/// The filter of `DefaultEvictor`.
#[derive(Debug)]
pub(super) struct DefaultEvictorFilter {
    args: Args,
    protections: Vec<Protection>,
    evictable: Evictable,
    nodes: Option<NodeSelector>,
    cycle: CycleState,
}

/// State since the cycle began.
#[derive(Debug, Default)]
struct CycleState {
    /// Name of the PriorityClass in `priorityThreshold.name`, if it does not exist.
    unknown_class: Option<String>,
    /// Number of pods by the UID of their owner.
    replicas: FxHashMap<Arc<str>, u64>,
    /// Nodes to consider and their free capacity; `None` without `nodeFit`.
    capacity: Option<(Vec<Arc<NodeInfo>>, FreeCapacity)>,
}

impl DefaultEvictorFilter {
    /// Creates the filter.
    ///
    /// # Errors
    ///
    /// Returns an error if `nodeSelector` cannot be parsed.
    pub(super) fn new(args: Args) -> Result<Self, String> {
        let protections = args.protections();
        let off = |protection| !protections.contains(&protection);
        let storage_classes = !args.protected_storage_classes().is_empty();
        let evictable = Evictable {
            evict_failed_bare_pods: off(Protection::FailedBarePods),
            evict_all_bare_pods: false,
            evict_system_critical_pods: off(Protection::SystemCriticalPods),
            evict_local_storage_pods: off(Protection::PodsWithLocalStorage),
            evict_daemon_set_pods: off(Protection::DaemonSetPods),
            ignore_pvc_pods: protections.contains(&Protection::PodsWithPVC) && !storage_classes,
            priority_threshold: args.threshold().value,
            label_selector: args.label_selector.clone(),
        };
        Ok(Self {
            nodes: args.node_selector()?,
            protections,
            evictable,
            args,
            cycle: CycleState::default(),
        })
    }

    fn protects(&self, protection: Protection) -> bool {
        self.protections.contains(&protection)
    }

    fn storage_class(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        let protected = self.args.protected_storage_classes();
        if !self.protects(Protection::PodsWithPVC) || protected.is_empty() {
            return Ok(());
        }
        for claim in &pod.shape.volumes.claims {
            let key = (pod.namespace.clone(), Arc::from(&**claim));
            let class = snapshot.storage_classes.get(&key);
            let Some(class) = class.filter(|class| !class.is_empty()) else {
                let detail =
                    format!("the storage class of PersistentVolumeClaim {claim} is not known");
                return Err(SkipReason::new("PVC", detail));
            };
            if protected.contains(&&**class) {
                let detail = format!("PersistentVolumeClaim {claim} has storage class {class}");
                return Err(SkipReason::new("PVC", detail));
            }
        }
        Ok(())
    }

    fn min_replicas(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        // Like in upstream, pods with several owners are not checked.
        let (least, [owner]) = (self.args.min_replicas, &pod.owners[..]) else {
            return Ok(());
        };
        let count = self.cycle.replicas.get(&owner.uid).copied().unwrap_or(0);
        if least > 1 && count < least {
            let (kind, name) = (&owner.kind, &owner.name);
            let detail = format!("{kind} {name} has {count} pods, which are fewer than {least}");
            return Err(SkipReason::new("MinReplicas", detail));
        }
        Ok(())
    }

    fn min_pod_age(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        let Some(least) = self.args.min_pod_age else {
            return Ok(());
        };
        let age = pod
            .started
            .map(|started| snapshot.now.duration_since(started).as_nanos());
        match age {
            Some(age) if age >= i128::from(least.as_nanos()) => Ok(()),
            Some(age) => {
                let age = age / 1_000_000_000;
                let detail = format!("it runs for {age} s, which is less than {least}");
                Err(SkipReason::new("MinPodAge", detail))
            }
            None => Err(SkipReason::new(
                "MinPodAge",
                format!("it has not run for {least}"),
            )),
        }
    }
}

impl Filter for DefaultEvictorFilter {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads_storage_classes(&self) -> bool {
        self.protects(Protection::PodsWithPVC) && !self.args.protected_storage_classes().is_empty()
    }

    fn begin(&mut self, snapshot: &Snapshot) {
        let mut cycle = CycleState::default();
        if let Threshold { value: None, name } = self.args.threshold()
            && !name.is_empty()
        {
            self.evictable.priority_threshold = snapshot.priority_classes.get(name).copied();
            let unknown = self.evictable.priority_threshold.is_none();
            cycle.unknown_class = unknown.then(|| name.to_owned());
        }
        if self.args.min_replicas > 1 {
            for owner in snapshot.pods.iter().flat_map(|pod| &pod.owners) {
                *cycle.replicas.entry(owner.uid.clone()).or_default() += 1;
            }
        }
        if self.args.node_fit {
            let ready = snapshot.nodes.iter().filter(|node| node.ready);
            let selected = |node: &&Arc<NodeInfo>| {
                self.nodes
                    .as_ref()
                    .is_none_or(|selector| selector.matches_labels(|key| node.label(key)))
            };
            let nodes = ready.filter(selected).cloned().collect();
            cycle.capacity = Some((nodes, FreeCapacity::new(snapshot)));
        }
        self.cycle = cycle;
    }

    fn moved(&mut self, _: &Snapshot, pod: &Arc<PodInfo>) {
        if let Some((_, capacity)) = &mut self.cycle.capacity {
            capacity.release(pod);
        }
    }

    fn filter(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        if overrides(pod) {
            return Ok(());
        }
        if self.args.is_mandatory() && pod.annotation(PREFER_NO_EVICTION).is_some() {
            let detail = format!("it has annotation {PREFER_NO_EVICTION}");
            return Err(SkipReason::new("NoEviction", detail));
        }
        self.evictable.check(pod)?;
        if let Some(name) = &self.cycle.unknown_class
            && self.protects(Protection::SystemCriticalPods)
        {
            let detail = format!("PriorityClass {name} of priorityThreshold does not exist");
            return Err(SkipReason::new("PriorityThreshold", detail));
        }
        self.storage_class(snapshot, pod)?;
        if self.protects(Protection::PodsWithoutPDB) && !has_budget(snapshot, pod) {
            return Err(SkipReason::new(
                "PodsWithoutPDB",
                "no PodDisruptionBudget selects it",
            ));
        }
        if self.protects(Protection::PodsWithResourceClaims) && pod.shape.resource_claims {
            return Err(SkipReason::new(
                "PodsWithResourceClaims",
                "it has resource claims",
            ));
        }
        self.min_replicas(pod)?;
        self.min_pod_age(snapshot, pod)
    }

    fn pre_evict(
        &self,
        snapshot: &Snapshot,
        _: &[Arc<NodeInfo>],
        pod: &PodInfo,
    ) -> Result<(), SkipReason> {
        if let Some((nodes, capacity)) = &self.cycle.capacity
            && !capacity.fits_any_other(snapshot, pod, nodes)
        {
            let detail = format!(
                "no other node has room: {}",
                capacity.obstacles(snapshot, pod, nodes)
            );
            return Err(SkipReason::new("NodeFit", detail));
        }
        let Some(wanted) = self
            .args
            .namespace_label_selector
            .as_ref()
            .filter(|it| !is_empty(it))
        else {
            return Ok(());
        };
        let none = BTreeMap::new();
        let labels = snapshot.namespaces.get(&pod.namespace).unwrap_or(&none);
        let exists = snapshot.namespaces.contains_key(&pod.namespace);
        if exists && selector::matches(wanted, labels).unwrap_or(false) {
            return Ok(());
        }
        let detail = format!(
            "namespaceLabelSelector does not select namespace {}",
            pod.namespace
        );
        Err(SkipReason::new("NamespaceLabelSelector", detail))
    }
}

fn is_empty(selector: &LabelSelector) -> bool {
    let labels = selector.match_labels.iter().flatten().count();
    labels + selector.match_expressions.iter().flatten().count() == 0
}

fn has_budget(snapshot: &Snapshot, pod: &PodInfo) -> bool {
    let mut budgets = snapshot.budgets.iter();
    budgets.any(|budget| {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        budget.metadata.namespace.as_deref() == Some(&*pod.namespace)
            && selector.is_some_and(|selector| {
                selector::matches(selector, &pod.shape.labels).unwrap_or(false)
            })
    })
}

/// The evictor of `DefaultEvictor`.
#[derive(Debug, Default)]
pub(super) struct DefaultEvictor {
    /// Pods whose eviction the API server would refuse must not use up the limits of a cycle.
    budgets: Budgets,
}

impl Evictor for DefaultEvictor {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&mut self, snapshot: &Snapshot) {
        self.budgets = Budgets::new(snapshot);
    }

    fn admits(&self, _: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        self.budgets.check(pod)
    }

    fn moved(&mut self, _: &Snapshot, pod: &PodInfo) {
        self.budgets.count(pod);
    }

    fn evict(&mut self, _: &Snapshot, request: &EvictionRequest<'_>) -> Result<Intent, SkipReason> {
        self.budgets.count(request.pod);
        Ok(Intent::Evict(request.delete_options.cloned()))
    }
}
