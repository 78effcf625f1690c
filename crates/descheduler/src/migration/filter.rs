//! Rules about the pods that may be migrated, and limits that may delay it.
//!
//! Source: Koordinator `pkg/descheduler/controllers/migration/arbitrator/filter.go`.

use super::args::{Gate, MigrationControllerArgs, RESERVATION_FIRST};
use super::limits::max_affected_pods;
use crate::rules::{Evictable, Namespaces, SkipReason, overrides};
use crate::state::{Owner, PodInfo, Snapshot, Workload};
use koord_api::annotations;
use koord_api::extension::parse_eviction_cost;
use koord_api::scheduling::PodMigrationJob;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rule that keeps pods whose workload size cannot be determined at the moment.
pub const WORKLOAD_UNKNOWN: &str = "WorkloadUnknown";

/// Namespace and name.
type Name = (Arc<str>, Arc<str>);
/// Number of jobs by the UID of their pod.
type Counts = FxHashMap<Arc<str>, usize>;
/// Pods by name, each with the UIDs under which jobs refer to it.
type UidsByName = BTreeMap<Name, FxHashSet<Arc<str>>>;

/// The pods of a snapshot by the UID of their owners.
#[derive(Debug, Clone, Default)]
pub struct PodsByOwner(FxHashMap<Arc<str>, Vec<Arc<PodInfo>>>);

impl PodsByOwner {
    /// Builds the index of all owners.
    #[must_use]
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut by_owner = FxHashMap::<_, Vec<_>>::default();
        for pod in &snapshot.pods {
            for owner in &pod.owners {
                by_owner
                    .entry(owner.uid.clone())
                    .or_default()
                    .push(pod.clone());
            }
        }
        Self(by_owner)
    }

    /// Returns the pods that have one of `owners` as an owner.
    pub fn by<'a>(&'a self, owners: &'a [Arc<str>]) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        owners.iter().filter_map(|uid| self.0.get(uid)).flatten()
    }
}

/// Counts of migrating pods for the limits.
#[derive(Debug, Clone, Default)]
pub struct MigrationCounts {
    /// Number of jobs.
    jobs: usize,
    of_pod: Counts,
    of_name: FxHashSet<Name>,
    /// Number of jobs by namespace, and the number per pod.
    of_namespace: FxHashMap<Arc<str>, (usize, Counts)>,
    /// UIDs of the pods with a job, by node.
    on_node: FxHashMap<Arc<str>, FxHashSet<Arc<str>>>,
    /// Migrating pods by namespace and controller.
    of_workload: FxHashMap<(Arc<str>, Arc<str>), UidsByName>,
}

impl MigrationCounts {
    /// Counts the jobs of `snapshot` for which `counts` returns true.
    #[must_use]
    pub fn new(snapshot: &Snapshot, counts: impl Fn(&PodMigrationJob) -> bool) -> Self {
        let mut migration_counts = Self::default();
        let uids = snapshot.jobs.iter().filter(|job| counts(job));
        let uids: FxHashSet<&str> = uids
            .filter_map(|job| job.spec.pod_ref.uid.as_deref())
            .collect();
        // A job may refer to a pod by its UID alone.
        let named = snapshot.pods.iter().filter(|pod| uids.contains(&*pod.uid));
        let by_uid: FxHashMap<&str, &Arc<PodInfo>> = named.map(|pod| (&*pod.uid, pod)).collect();
        for job in snapshot.jobs.iter().filter(|job| counts(job)) {
            let text = |text: &Option<String>| Arc::from(text.as_deref().unwrap_or_default());
            let named = &job.spec.pod_ref;
            let name: Name = (text(&named.namespace), text(&named.name));
            let uid: Arc<str> = text(&named.uid);
            let pod = snapshot.pod(&name.0, &name.1);
            migration_counts.add(name, uid.clone(), pod);
            if let Some(pod) = by_uid.get(&*uid) {
                migration_counts.add_on_node(pod);
            }
        }
        migration_counts
    }

    fn add_on_node(&mut self, pod: &PodInfo) {
        if let Some(node) = &pod.node {
            let on = self.on_node.entry(node.clone()).or_default();
            on.insert(pod.uid.clone());
        }
    }

    fn add(&mut self, name: Name, uid: Arc<str>, pod: Option<&Arc<PodInfo>>) {
        self.jobs += 1;
        *self.of_pod.entry(uid.clone()).or_default() += 1;
        let (all, each) = self.of_namespace.entry(name.0.clone()).or_default();
        *all += 1;
        *each.entry(uid.clone()).or_default() += 1;
        if let Some(pod) = pod {
            self.add_on_node(pod);
            if let Some(owner) = pod.controller() {
                let key = (name.0.clone(), owner.uid.clone());
                let pods = self.of_workload.entry(key).or_default();
                pods.entry(name.clone()).or_default().insert(uid);
            }
        }
        self.of_name.insert(name);
    }

    /// Counts `pod` as migrating, unless it is counted already.
    pub fn count(&mut self, pod: &Arc<PodInfo>) {
        if !self.of_pod.contains_key(&pod.uid) {
            let name = (pod.namespace.clone(), pod.name.clone());
            self.add(name, pod.uid.clone(), Some(pod));
        }
    }

    /// Returns true if there is a job for `pod`, by its UID or its name.
    #[must_use]
    pub fn has(&self, pod: &PodInfo) -> bool {
        let name = (pod.namespace.clone(), pod.name.clone());
        self.of_pod.contains_key(&pod.uid) || self.of_name.contains(&name)
    }

    /// Returns the number of jobs for pods other than `pod`.
    #[must_use]
    pub fn others(&self, pod: &PodInfo) -> usize {
        self.jobs - self.of_pod.get(&pod.uid).copied().unwrap_or(0)
    }

    /// Returns the number of jobs for other pods in its namespace.
    #[must_use]
    pub fn others_of_namespace(&self, pod: &PodInfo) -> usize {
        let Some((all, each)) = self.of_namespace.get(&pod.namespace) else {
            return 0;
        };
        all - each.get(&pod.uid).copied().unwrap_or(0)
    }

    /// Returns the number of other pods on its node that have a job.
    #[must_use]
    pub fn others_on_node(&self, pod: &PodInfo, node: &str) -> usize {
        let on = self.on_node.get(node);
        on.map_or(0, |on| on.len() - usize::from(on.contains(&pod.uid)))
    }

    /// Returns the names of other pods of its controller that have a job.
    pub fn others_of_workload<'a>(
        &'a self,
        pod: &'a PodInfo,
        owner: &Owner,
    ) -> impl Iterator<Item = &'a Name> {
        let key = (pod.namespace.clone(), owner.uid.clone());
        let pods = self.of_workload.get(&key).into_iter().flatten();
        let other = move |(_, uids): &(&Name, &FxHashSet<Arc<str>>)| {
            uids.len() > usize::from(uids.contains(&pod.uid))
        };
        pods.filter(other).map(|(name, _)| name)
    }
}

/// The rules that follow from `MigrationControllerArgs`.
#[derive(Debug, Clone)]
pub struct Rules {
    args: Arc<MigrationControllerArgs>,
    evictable: Evictable,
    namespaces: Option<Namespaces>,
    /// Name of a configured PriorityClass that does not exist.
    unknown_class: Option<String>,
}

impl Rules {
    /// Builds the rules of `args`; priorities are looked up in `classes`.
    #[must_use]
    pub fn new(args: Arc<MigrationControllerArgs>, classes: &BTreeMap<String, i32>) -> Self {
        let threshold = args.priority_threshold.as_ref();
        let threshold = threshold.filter(|_| !args.skips(Gate::PriorityThreshold));
        let value = threshold.and_then(|threshold| threshold.value);
        let name = threshold.map(|threshold| threshold.name.as_str());
        let name = name.filter(|name| value.is_none() && !name.is_empty());
        let class_value = name.and_then(|name| classes.get(name).copied());
        let bare = args.skips(Gate::BarePods);
        let labels = args.label_selector.clone();
        Self {
            evictable: Evictable {
                evict_daemon_set_pods: false,
                evict_failed_bare_pods: args.evict_failed_bare_pods || bare,
                evict_all_bare_pods: args.evict_all_bare_pods || bare,
                evict_system_critical_pods: args.evict_system_critical_pods
                    || args.skips(Gate::SystemCritical),
                evict_local_storage_pods: args.evict_local_storage_pods
                    || args.skips(Gate::LocalStorage),
                ignore_pvc_pods: args.ignore_pvc_pods && !args.skips(Gate::Pvc),
                priority_threshold: value.or(class_value),
                label_selector: labels.filter(|_| !args.skips(Gate::LabelSelector)),
            },
            namespaces: args
                .namespaces
                .clone()
                .filter(|_| !args.skips(Gate::Namespaces)),
            unknown_class: name.filter(|_| class_value.is_none()).map(str::to_owned),
            args,
        }
    }

    /// Checks that `pod` has no job yet.
    ///
    /// # Errors
    /// Returns an error if it has one.
    pub fn has_no_job(
        &self,
        migration_counts: &MigrationCounts,
        pod: &PodInfo,
    ) -> Result<(), SkipReason> {
        if migration_counts.has(pod) {
            return Err(SkipReason::new(
                "ExistingJob",
                "a PodMigrationJob moves it already",
            ));
        }
        Ok(())
    }

    /// Checks that the scheduler of `pod` supports reservations, if jobs need one.
    ///
    /// # Errors
    /// Returns an error if it does not.
    pub fn is_reservable(&self, pod: &PodInfo) -> Result<(), SkipReason> {
        let scheduler = &pod.shape.scheduler_name;
        let args = &self.args;
        if args.default_job_mode != RESERVATION_FIRST || args.scheduler_names.contains(scheduler) {
            return Ok(());
        }
        let supported = args.scheduler_names.join(", ");
        let detail =
            format!("nothing can be reserved: its scheduler is {scheduler}, not {supported}");
        Err(SkipReason::new("SchedulerName", detail))
    }

    /// Checks whether `pod` may be moved at all. A refusal is permanent, except for [`WORKLOAD_UNKNOWN`].
    ///
    /// # Errors
    /// Returns the rule that forbids it.
    pub fn is_movable(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        if overrides(pod) {
            return Ok(());
        }
        if let Some(namespaces) = &self.namespaces
            && !namespaces.allow(&pod.namespace)
        {
            let detail = format!("namespaces leave {} out", pod.namespace);
            return Err(SkipReason::new("Namespaces", detail));
        }
        let cost = pod.annotation(annotations::EVICTION_COST);
        let cost = cost.and_then(|cost| parse_eviction_cost(cost).ok());
        if cost == Some(i32::MAX) {
            let detail = format!("its {} says never", annotations::EVICTION_COST);
            return Err(SkipReason::new("MaxEvictionCost", detail));
        }
        if let (Some(name), false) = (
            &self.unknown_class,
            self.evictable.evict_system_critical_pods,
        ) {
            let detail = format!("priorityThreshold: there is no PriorityClass {name}");
            return Err(SkipReason::new("PriorityThreshold", detail));
        }
        self.evictable.check(pod)?;
        self.has_spare_replicas(snapshot, pod)
    }

    /// Checks whether its workload is large enough for one pod to be unavailable.
    fn has_spare_replicas(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        const RULE: &str = "ExpectedReplicas";
        let Some(owner) = pod.controller() else {
            return Ok(());
        };
        if self.args.skips(Gate::ExpectedReplicas) {
            return Ok(());
        }
        let replicas = replicas(snapshot, owner)?;
        let migrating = max_affected_pods(replicas, self.args.max_migrating_per_workload.as_ref())?;
        let unavailable =
            max_affected_pods(replicas, self.args.max_unavailable_per_workload.as_ref())?;
        if self.args.skip_check_expected_replicas == Some(true) {
            return Ok(());
        }
        let (kind, name) = (&owner.kind, &owner.name);
        let detail = match replicas {
            0 => match snapshot.workloads.get(&owner.uid) {
                Some(Workload::Known { .. }) => format!("{kind} {name} wants no replica"),
                _ => format!("nobody can say how many replicas {kind} {name} wants"),
            },
            1 => format!("it is the only replica of {kind} {name}"),
            all if all == migrating => {
                format!("maxMigratingPerWorkload would let all {all} replicas of {name} go")
            }
            all if all == unavailable => {
                format!("maxUnavailablePerWorkload would let all {all} replicas of {name} go")
            }
            _ => return Ok(()),
        };
        Err(SkipReason::new(RULE, detail))
    }

    /// Checks whether limits allow to move `pod` now, in addition to the pods in `migration_counts`.
    ///
    /// # Errors
    /// Returns the limit that is reached.
    pub fn is_within_limits(
        &self,
        snapshot: &Snapshot,
        owned: &PodsByOwner,
        migration_counts: &MigrationCounts,
        pod: &PodInfo,
    ) -> Result<(), SkipReason> {
        if overrides(pod) {
            return Ok(());
        }
        let limit = |limit: Option<i32>, gate: Gate| {
            let on = limit.filter(|limit| *limit > 0 && !self.args.skips(gate));
            on.and_then(|limit| usize::try_from(limit).ok())
        };
        let args = &self.args;
        let reached = |rule: &'static str, count: usize, limit: Option<usize>, scope: &str| {
            let limit = limit.filter(|limit| count >= *limit);
            limit.map_or(Ok(()), |limit| {
                let detail = format!("{count} pods {scope} move already, {limit} may");
                Err(SkipReason::new(rule, detail))
            })
        };
        let global = limit(args.max_migrating_globally, Gate::MaxMigratingGlobally);
        let count = migration_counts.others(pod);
        reached("MaxMigratingGlobally", count, global, "of the cluster")?;
        if let Some(node) = &pod.node {
            let of_node = limit(args.max_migrating_per_node, Gate::MaxMigratingPerNode);
            let count = migration_counts.others_on_node(pod, node);
            let scope = format!("of node {node}");
            reached("MaxMigratingPerNode", count, of_node, &scope)?;
        }
        let gate = Gate::MaxMigratingPerNamespace;
        let of_namespace = limit(args.max_migrating_per_namespace, gate);
        let count = migration_counts.others_of_namespace(pod);
        let scope = format!("of namespace {}", pod.namespace);
        reached("MaxMigratingPerNamespace", count, of_namespace, &scope)?;
        self.is_within_workload_limits(snapshot, owned, migration_counts, pod)
    }

    /// Checks the limits on migrating and unavailable pods of the workload of `pod`.
    fn is_within_workload_limits(
        &self,
        snapshot: &Snapshot,
        owned: &PodsByOwner,
        migration_counts: &MigrationCounts,
        pod: &PodInfo,
    ) -> Result<(), SkipReason> {
        let args = &self.args;
        let skips = [
            Gate::MaxMigratingPerWorkload,
            Gate::MaxUnavailablePerWorkload,
        ]
        .map(|gate| args.skips(gate));
        let Some(owner) = pod.controller() else {
            return Ok(());
        };
        if skips == [true; 2] {
            return Ok(());
        }
        let replicas = replicas(snapshot, owner)?;
        let exceeds = |count: usize, most: i64| i64::try_from(count).unwrap_or(i64::MAX) >= most;
        let (kind, name) = (&owner.kind, &owner.name);
        let mut away: FxHashSet<Name> = migration_counts
            .others_of_workload(pod, owner)
            .cloned()
            .collect();
        if !skips[0] {
            let most = max_affected_pods(replicas, args.max_migrating_per_workload.as_ref())?;
            // The first pod of a workload passes: whether it may be moved at all is checked elsewhere.
            if !away.is_empty() && exceeds(away.len(), most) {
                let count = away.len();
                let detail = format!("{count} pods of {kind} {name} move already, {most} may");
                return Err(SkipReason::new("MaxMigratingPerWorkload", detail));
            }
        }
        if skips[1] {
            return Ok(());
        }
        let most = max_affected_pods(replicas, args.max_unavailable_per_workload.as_ref())?;
        if let Some(Workload::Known { controllers, .. }) = snapshot.workloads.get(&owner.uid) {
            let idle = owned.by(controllers);
            let idle = idle.filter(|other| other.namespace == pod.namespace);
            let idle = idle.filter(|other| !(is_at_work(other) && other.is_ready()));
            away.extend(idle.map(|pod| (pod.namespace.clone(), pod.name.clone())));
        }
        if exceeds(away.len(), most) {
            let count = away.len();
            let detail =
                format!("{count} pods of {kind} {name} move or are not ready, {most} may be so");
            return Err(SkipReason::new("MaxUnavailablePerWorkload", detail));
        }
        Ok(())
    }
}

/// Returns true if the pod has not ended and is not being deleted.
fn is_at_work(pod: &PodInfo) -> bool {
    pod.is_active() && !pod.deleting
}

/// Returns the desired replicas of `owner`; 0 if they cannot be determined.
fn replicas(snapshot: &Snapshot, owner: &Owner) -> Result<i64, SkipReason> {
    match snapshot.workloads.get(&owner.uid) {
        Some(Workload::Known { replicas, .. }) => Ok(*replicas),
        Some(Workload::Error(error)) => {
            let detail = format!("{} {}: {error}", owner.kind, owner.name);
            Err(SkipReason::new(WORKLOAD_UNKNOWN, detail))
        }
        Some(Workload::Unresolved) | None => Ok(0),
    }
}
