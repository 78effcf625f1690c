//! The plugin MigrationController: filters the pods that strategies may move, and creates the jobs that move
//! them.

use crate::framework::{EvictionRequest, Evictor, Filter, Intent, PluginHandles, SkipReason};
use crate::migration::args::{Gate, MigrationControllerArgs};
use crate::migration::evict::Policy;
use crate::migration::filter::{MigrationCounts, PodsByOwner, Rules};
use crate::migration::{
    CONTROLLER, CREATED_BY, EVICT_REASON, EVICT_TRIGGER, JobStage, Migrations, PROFILE, stage,
};
use crate::rules::{Budgets, Fit};
use crate::state::{NodeInfo, PodInfo, Snapshot};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use koord_api::scheduling::{
    PodMigrationJob, PodMigrationJobMode, PodMigrationJobPhase, PodMigrationJobSpec,
    PodMigrationJobStatus,
};
use koord_object::selector::LabelSelector;
use parking_lot::Mutex;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The plugin's name.
pub const NAME: &str = "MigrationController";

/// State cached for one snapshot.
#[derive(Debug, Default)]
struct CycleCache {
    /// The snapshot that the cache is for.
    snapshot: Option<SnapshotId>,
    rules: Option<Rules>,
    owned: PodsByOwner,
    migration_counts: MigrationCounts,
    budgets: Budgets,
    fit: Option<Fit>,
    /// Pods that the plan moves.
    moved: Vec<Arc<PodInfo>>,
}

/// Identifies a snapshot by address and time.
type SnapshotId = (usize, Timestamp);

fn snapshot_id(snapshot: &Snapshot) -> SnapshotId {
    (std::ptr::from_ref(snapshot).addr(), snapshot.now)
}

/// The plugin at both of its extension points. Clones share their state.
#[derive(Debug, Clone)]
struct MigrationController {
    shared: Arc<Migrations>,
    cache: Arc<Mutex<CycleCache>>,
}

/// Builds the plugin.
pub(crate) fn build(args: MigrationControllerArgs, profile: &str) -> PluginHandles {
    let process = uuid::Uuid::new_v4().to_string();
    let plugin = MigrationController {
        shared: Arc::new(Migrations::new(profile, &process, args.completed())),
        cache: Arc::default(),
    };
    PluginHandles {
        evict: Some(Box::new(plugin.clone())),
        filter: Some(Box::new(plugin)),
        ..PluginHandles::default()
    }
}

impl MigrationController {
    fn with<T>(
        &self,
        snapshot: &Snapshot,
        evaluate: impl FnOnce(&mut CycleCache, &Rules) -> T,
    ) -> T {
        let mut cache = self.cache.lock();
        if cache.snapshot != Some(snapshot_id(snapshot)) {
            *cache = CycleCache {
                snapshot: Some(snapshot_id(snapshot)),
                rules: None,
                owned: PodsByOwner::new(snapshot),
                // Waiting jobs count like running ones.
                migration_counts: MigrationCounts::new(snapshot, |job| {
                    stage(job) != JobStage::Ended
                }),
                budgets: Budgets::new(snapshot),
                fit: None,
                moved: Vec::new(),
            };
        }
        let args = &self.shared.args;
        let rules = cache.rules.take();
        let rules = rules.unwrap_or_else(|| Rules::new(args.clone(), &snapshot.priority_classes));
        let answer = evaluate(&mut cache, &rules);
        cache.rules = Some(rules);
        answer
    }

    fn judge(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        self.with(snapshot, |cache, rules| {
            rules.has_no_job(&cache.migration_counts, pod)?;
            rules.is_reservable(pod)?;
            rules.is_movable(snapshot, pod)?;
            rules.is_within_limits(snapshot, &cache.owned, &cache.migration_counts, pod)?;
            // The job could only retry until its time to live is over.
            if self.evicts(pod) {
                cache.budgets.check(pod)?;
            }
            Ok(())
        })?;
        self.shared.allows(pod, snapshot.now)
    }

    fn count(&self, snapshot: &Snapshot, pod: &Arc<PodInfo>) {
        let evicts = self.evicts(pod);
        self.with(snapshot, |cache, _| {
            cache.migration_counts.count(pod);
            if evicts {
                cache.budgets.count(pod);
            }
        });
    }

    /// Returns true if `pod` would be evicted by a policy that budgets can block.
    fn evicts(&self, pod: &PodInfo) -> bool {
        let by_default = Policy::named(&self.shared.args.eviction_policy);
        let by_default = by_default.unwrap_or(Policy::Eviction);
        Policy::resolve(Some(&pod.shape.labels), None, by_default) == Policy::Eviction
    }
}

/// Returns the requests per node in `snapshot` without the pods in `moved`.
fn without(snapshot: &Snapshot, moved: &[Arc<PodInfo>]) -> Fit {
    let mut fit = Fit::new(snapshot);
    for pod in moved {
        if let Some(node) = &pod.node {
            fit.remove(pod, node);
        }
    }
    fit
}

impl Filter for MigrationController {
    fn name(&self) -> &'static str {
        NAME
    }

    fn begin(&mut self, _: &Snapshot) {
        *self.cache.lock() = CycleCache::default();
    }

    fn filter(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        self.judge(snapshot, pod)
    }

    fn pre_evict(
        &self,
        snapshot: &Snapshot,
        nodes: &[Arc<NodeInfo>],
        pod: &PodInfo,
    ) -> Result<(), SkipReason> {
        let args = &self.shared.args;
        if !args.node_fit || args.skips(Gate::NodeFit) {
            return Ok(());
        }
        let selector = LabelSelector::parse(&args.node_selector);
        let selector = selector
            .map_err(|error| SkipReason::new("NodeFit", format!("nodeSelector: {error}")))?;
        let chosen = nodes.iter().filter(|node| {
            let labels = serde_json::json!({"metadata": {"labels": node.labels}});
            selector.is_everything() || selector.matches_object(&labels)
        });
        let mut other_nodes = chosen.filter(|node| pod.node.as_ref() != Some(&node.name));
        self.with(snapshot, |cache, _| {
            let moved = &cache.moved;
            let fit = cache.fit.get_or_insert_with(|| without(snapshot, moved));
            if other_nodes.any(|node| fit.can_place(pod, node)) {
                return Ok(());
            }
            Err(SkipReason::new("NodeFit", "it fits no other node"))
        })
    }

    fn moved(&mut self, snapshot: &Snapshot, pod: &Arc<PodInfo>) {
        self.count(snapshot, pod);
        self.with(snapshot, |cache, _| {
            if let (Some(fit), Some(node)) = (&mut cache.fit, &pod.node) {
                fit.remove(pod, node);
            }
            cache.moved.push(pod.clone());
        });
    }

    fn migrations(&self) -> Option<Arc<Migrations>> {
        Some(self.shared.clone())
    }
}

impl Evictor for MigrationController {
    fn name(&self) -> &'static str {
        NAME
    }

    fn admits(&self, snapshot: &Snapshot, pod: &PodInfo) -> Result<(), SkipReason> {
        if self.shared.args.dry_run {
            return Ok(());
        }
        // Repeats the check: other pods may have been planned since the strategy called the filter.
        self.judge(snapshot, pod)
    }

    fn evict(
        &mut self,
        snapshot: &Snapshot,
        request: &EvictionRequest<'_>,
    ) -> Result<Intent, SkipReason> {
        if self.shared.args.dry_run {
            return Ok(Intent::Nothing);
        }
        self.count(snapshot, request.pod);
        Ok(Intent::Job(Box::new(self.shared.job(snapshot, request))))
    }

    fn migrations(&self) -> Option<Arc<Migrations>> {
        Some(self.shared.clone())
    }
}

impl Migrations {
    /// Builds the job that moves a pod.
    #[must_use]
    pub fn job(&self, snapshot: &Snapshot, request: &EvictionRequest<'_>) -> PodMigrationJob {
        let (pod, args) = (request.pod, &self.args);
        let annotations = [
            (EVICT_REASON, request.reason),
            (EVICT_TRIGGER, request.strategy),
            (CREATED_BY, &self.process),
            (PROFILE, &self.profile),
        ];
        let owner = pod.controller().map(|owner| (CONTROLLER, &*owner.uid));
        let annotations = annotations.into_iter().chain(owner);
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let by_default = args.default_delete_options.as_ref();
        PodMigrationJob {
            metadata: ObjectMeta {
                name: Some(name(snapshot, pod)),
                annotations: Some(annotations.collect()),
                ..ObjectMeta::default()
            },
            spec: PodMigrationJobSpec {
                paused: None,
                ttl: Some(args.default_job_ttl),
                mode: Some(PodMigrationJobMode::from(args.default_job_mode.as_str())),
                pod_ref: ObjectReference {
                    namespace: Some(pod.namespace.to_string()),
                    name: Some(pod.name.to_string()),
                    uid: Some(pod.uid.to_string()),
                    ..ObjectReference::default()
                },
                reservation_options: None,
                delete_options: request.delete_options.or(by_default).cloned(),
            },
            status: Some(PodMigrationJobStatus {
                phase: Some(PodMigrationJobPhase::Pending),
                ..PodMigrationJobStatus::default()
            }),
        }
    }
}

/// Returns a job name in the form of a UUID. It is derived from the pod and its earlier jobs, so that the
/// same decision made twice, by a process that has not seen its own job yet or by two leaders, creates the
/// job once.
fn name(snapshot: &Snapshot, pod: &PodInfo) -> String {
    let before = snapshot.jobs.iter();
    let before = before.filter(|job| job.spec.pod_ref.uid.as_deref() == Some(&*pod.uid));
    let before: Vec<_> = before
        .filter_map(|job| job.metadata.uid.as_deref())
        .collect();
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &*pod.uid, &before).hash(&mut hasher);
        hasher.finish()
    };
    let all = (u128::from(half(0)) << 64) | u128::from(half(1));
    uuid::Builder::from_random_bytes(all.to_be_bytes())
        .into_uuid()
        .to_string()
}

#[cfg(test)]
mod tests;
