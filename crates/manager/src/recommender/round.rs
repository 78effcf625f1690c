//! A round of the recommender: finds the pods of each Recommendation, measures them, updates the histories
//! and writes the results.

use super::checkpoints::{self, CheckpointSupport, LoadedHistories};
use super::learn::{self, ContainerEstimates, Details, RecommendationState};
use super::pods::{PodInterners, RecommenderPod};
use super::sources::{self, Measurements};
use super::status::{self, ConditionCause, ConditionState, Findings, StatusWrite};
use crate::Error;
use crate::facts::{self, RecommendationFacts, Target};
use crate::replica::Replica;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use koord_api::Uid;
use koord_api::analysis::{DISTRIBUTION, Recommendation, RecommendationStatus};
use koord_kube::events::Severity;
use koord_kube::owners::{Owner, Owners};
use koord_kube::{Api, Cacheable, Informer, ObjectKey, Scope, Store, patch};
use koord_model::histogram::UnixMillis;
use koord_model::recommend::Percentiles;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Number of concurrent writes.
const WRITERS: usize = 8;
/// Recommendations that are planned before the first of them is written.
const WRITE_BATCH: usize = 256;
/// Longest delay in minutes between two attempts of a write that fails.
const MAX_RETRY_MINUTES: u32 = 16;

/// State kept from round to round.
pub(super) struct Recommender {
    entries: HashMap<ObjectKey, RecommendationState>,
    owners: Owners,
    /// Pod informer, running while there is a Recommendation.
    pods: Option<(Store<RecommenderPod>, DropGuard)>,
    /// `None` until checkpoints are loaded.
    checkpoints: Option<CheckpointSupport>,
    /// Loaded histories whose Recommendation was not observed yet.
    loaded: LoadedHistories,
    /// Time of the next request for unavailable checkpoints, in Unix milliseconds.
    recheck_at: UnixMillis,
}

/// A Recommendation in a round.
struct RecommendationCase {
    facts: Arc<RecommendationFacts>,
    pods: Vec<Arc<RecommenderPod>>,
    /// Reason why the API server cannot have such a target.
    unknown_kind: Option<String>,
    /// Reason why the target has no pods; `None` if it has some.
    no_pods_cause: Option<ConditionCause>,
}

impl RecommendationCase {
    fn key(&self) -> &ObjectKey {
        &self.facts.key
    }

    /// Returns the target, or why it cannot be used.
    fn target(&self) -> Result<&Target, &String> {
        let target = self.facts.target.as_ref()?;
        self.unknown_kind.as_ref().map_or(Ok(target), Err)
    }
}

impl Recommender {
    pub(super) fn new(replica: &Replica) -> Self {
        Self {
            entries: HashMap::new(),
            owners: Owners::new(replica.client.clone()),
            pods: None,
            checkpoints: None,
            loaded: LoadedHistories::new(),
            recheck_at: UnixMillis::MIN,
        }
    }

    /// Runs one round over all Recommendations.
    pub(super) async fn round(&mut self, replica: &Arc<Replica>) -> Result<(), Error> {
        let now = replica.clock.now().as_millisecond();
        let objects = replica.caches.recommendations.list();
        self.remove_deleted(&objects);
        if objects.is_empty() {
            self.pods = None;
            return Ok(());
        }
        self.load(replica, now).await?;
        let Some(pods) = self.pods(replica).await else {
            return Ok(());
        };
        self.create_entries(&objects);
        let cases = self.cases(objects, &pods).await?;
        let namespaces: BTreeSet<&str> = cases
            .iter()
            .filter(|case| !case.pods.is_empty())
            .map(|case| case.key().namespace.as_str())
            .collect();
        let namespaces: Vec<&str> = namespaces.into_iter().collect();
        let mut measurements = Measurements::default();
        if !namespaces.is_empty() {
            let source = replica.options.recommender.source;
            let metrics = replica.caches.node_metrics.list();
            measurements =
                sources::measure(&replica.client, source, &namespaces, &metrics, now).await;
        }
        self.learn(replica, &cases, &measurements, now);
        self.write(replica, &cases, &measurements, now).await;
        self.save(replica, now).await;
        self.owners.tidy();
        Ok(())
    }

    /// Drops the state of deleted Recommendations. The garbage collector deletes their checkpoints.
    fn remove_deleted(&mut self, objects: &[Arc<RecommendationFacts>]) {
        let uids: HashMap<ObjectKey, &Uid> = objects
            .iter()
            .map(|object| (object.key(), &object.uid))
            .collect();
        self.entries
            .retain(|key, entry| uids.get(key).is_some_and(|uid| **uid == entry.uid));
    }

    /// Loads the checkpoints unless that is done.
    async fn load(&mut self, replica: &Replica, now: UnixMillis) -> Result<(), Error> {
        let settled = match &self.checkpoints {
            Some(CheckpointSupport::Available) => true,
            Some(CheckpointSupport::Unavailable(_)) => now < self.recheck_at,
            None => false,
        };
        if settled {
            return Ok(());
        }
        let settings = &replica.options.recommender.settings;
        let (support, loaded) = checkpoints::load(&replica.client, settings, now).await?;
        if self.checkpoints.as_ref() != Some(&support) {
            match &support {
                CheckpointSupport::Available => {
                    tracing::info!(targets = loaded.len(), "loaded histories from checkpoints")
                }
                CheckpointSupport::Unavailable(why) => {
                    tracing::warn!(
                        why,
                        "checkpoints unavailable, histories will be lost on restart"
                    )
                }
            }
        }
        self.checkpoints = Some(support);
        self.loaded = loaded;
        let pause = replica.options.recommender.checkpoint_interval;
        self.recheck_at = now.saturating_add(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Returns the synced pod store; `None` if the manager stops first.
    async fn pods(&mut self, replica: &Replica) -> Option<Store<RecommenderPod>> {
        let (store, _) = self.pods.get_or_insert_with(|| {
            let stop: CancellationToken = replica.stop.child_token();
            let client = replica.client.clone();
            let interners = PodInterners::default();
            let convert = move |pod: Pod| RecommenderPod::with_interners(&pod, &interners);
            let Informer {
                store, mut changes, ..
            } = Informer::start_mapped(client, Scope::default(), convert, stop.clone());
            tokio::spawn(async move { while changes.recv().await.is_some() {} });
            (store, stop.drop_guard())
        });
        let store = store.clone();
        store.wait_synced().await.then_some(store)
    }

    /// Creates the state of each new Recommendation, with its loaded history.
    fn create_entries(&mut self, objects: &[Arc<RecommendationFacts>]) {
        for object in objects {
            let key = object.key();
            let uid = &object.uid;
            let entry = self
                .entries
                .entry(key.clone())
                .or_insert_with(|| RecommendationState::new(uid));
            for (owner, container, history) in self.loaded.remove(&key).into_iter().flatten() {
                if owner == *uid {
                    entry.containers.or_insert_with(&container, || history);
                }
            }
        }
    }

    /// Finds the pods of each Recommendation.
    async fn cases(
        &mut self,
        objects: Vec<Arc<RecommendationFacts>>,
        pods: &Store<RecommenderPod>,
    ) -> Result<Vec<RecommendationCase>, Error> {
        let mut cases: Vec<RecommendationCase> = objects
            .into_iter()
            .map(|facts| RecommendationCase {
                facts,
                pods: Vec::new(),
                unknown_kind: None,
                no_pods_cause: None,
            })
            .collect();
        cases.sort_by(|a, b| a.key().cmp(b.key()));
        let mut by_namespace: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, case) in cases.iter().enumerate() {
            if case.target().is_ok() {
                let namespace = case.key().namespace.clone();
                by_namespace.entry(namespace).or_default().push(at);
            }
        }
        let pods: Vec<_> = pods
            .list()
            .into_iter()
            .filter(|pod| by_namespace.contains_key(&pod.key.namespace))
            .collect();
        let is_target = |namespace: &str, owner: &Owner| {
            let members = by_namespace.get(namespace).into_iter().flatten();
            let none = BTreeMap::new();
            let mut targets = members.filter_map(|index| cases[*index].target().ok());
            targets.any(|target| match target {
                Target::Workload { .. } => target.matches(&none, &[owner]),
                Target::Selector(_) => false,
            })
        };
        let has_workloads = |namespace: &String| {
            let members = by_namespace.get(namespace).into_iter().flatten();
            let mut targets = members.map(|index| cases[*index].target());
            targets.any(|target| matches!(target, Ok(Target::Workload { .. })))
        };
        let starts: HashSet<(String, Arc<Owner>)> = pods
            .iter()
            .filter(|pod| has_workloads(&pod.key.namespace))
            .filter_map(|pod| Some((pod.key.namespace.clone(), pod.owner.clone()?)))
            .collect();
        let chains = self
            .owners
            .chains(starts.into_iter().collect(), is_target)
            .await?;
        for pod in pods {
            let chain = pod.owner.as_ref().and_then(|owner| chains.get(owner));
            let chain = chain.map_or(&[][..], Vec::as_slice);
            let labels = pod.labels();
            for index in by_namespace.get(&pod.key.namespace).into_iter().flatten() {
                let case = &mut cases[*index];
                let matches = |target: &Target| target.matches(&labels, chain);
                if case.target().is_ok_and(matches) {
                    case.pods.push(pod.clone());
                }
            }
        }
        for case in &mut cases {
            if case.pods.is_empty() {
                self.explain_no_pods(case).await;
            }
        }
        Ok(cases)
    }

    /// Finds out why a Recommendation has no pods.
    async fn explain_no_pods(&mut self, case: &mut RecommendationCase) {
        let no_pods = |message: String| ConditionCause {
            reason: "NoPods",
            message,
        };
        let (api_version, kind, name) = match case.target() {
            Err(_) => return,
            Ok(Target::Selector(_)) => {
                case.no_pods_cause = Some(no_pods("no pod has these labels".to_owned()));
                return;
            }
            Ok(Target::Workload {
                api_version,
                kind,
                name,
            }) => (api_version.clone(), kind.clone(), name.clone()),
        };
        match self.owners.resource(&api_version, &kind).await {
            Ok(Some(resource)) => {
                let client = self.owners.client();
                let objects: Api<koord_kube::kube_core::DynamicObject> =
                    Api::namespaced_with(client, &case.key().namespace, &resource);
                case.no_pods_cause = Some(match objects.get_metadata_opt(&name).await {
                    Ok(None) => ConditionCause {
                        reason: "TargetMissing",
                        message: format!("there is no {kind} {name:?}"),
                    },
                    Ok(Some(_)) => no_pods(format!("{kind} {name:?} has no pods")),
                    Err(error) => no_pods(format!("no pod of {kind} {name:?} is known: {error}")),
                });
            }
            Ok(None) => {
                case.unknown_kind = Some(format!(
                    "spec.target.workload.kind {kind:?}: the API server has no such kind in \
                     {api_version:?}, or it is in no namespace"
                ));
            }
            Err(error) => {
                let message = format!("no pod of {kind} {name:?} is known: {error}");
                case.no_pods_cause = Some(no_pods(message));
            }
        }
    }

    fn learn(
        &mut self,
        replica: &Replica,
        cases: &[RecommendationCase],
        measurements: &Measurements,
        now: UnixMillis,
    ) {
        let settings = &replica.options.recommender.settings;
        for case in cases {
            let Some(entry) = self.entries.get_mut(case.key()) else {
                continue;
            };
            for pod in &case.pods {
                entry.learn(settings, pod, measurements.pods.get(&pod.key), now);
            }
        }
    }

    /// Writes what is due. A failed write is retried with exponential backoff.
    async fn write(
        &mut self,
        replica: &Arc<Replica>,
        cases: &[RecommendationCase],
        measurements: &Measurements,
        now: UnixMillis,
    ) {
        // In batches, because plans take many times the memory of the stored state.
        for cases in cases.chunks(WRITE_BATCH) {
            self.write_batch(replica, cases, measurements, now).await;
        }
    }

    /// Plans and writes the statuses of some Recommendations and records failures for a retry.
    async fn write_batch(
        &mut self,
        replica: &Arc<Replica>,
        cases: &[RecommendationCase],
        measurements: &Measurements,
        now: UnixMillis,
    ) {
        let mut writes = Vec::new();
        for case in cases {
            let Some(entry) = self.entries.get_mut(case.key()) else {
                continue;
            };
            if now < entry.retry_at {
                continue;
            }
            let checkpoint_support = self.checkpoints.as_ref();
            let status = case.facts.status();
            let planned = decide(
                replica,
                case,
                status.as_ref(),
                entry,
                measurements,
                checkpoint_support,
            );
            if let Some((write, details)) = planned {
                let old = status.unwrap_or_default();
                writes.push((case.facts.clone(), old, write, details));
            }
        }
        let results: Vec<_> = stream::iter(writes)
            .map(|(facts, old, write, details)| {
                let replica = replica.clone();
                async move {
                    let result = apply(&replica, &facts, &old, &write, details).await;
                    (facts.key(), result)
                }
            })
            .buffer_unordered(WRITERS)
            .collect()
            .await;
        for (key, result) in results {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            match result {
                Ok(()) => entry.failures = 0,
                Err(error) => {
                    let minutes = (1 << entry.failures.min(4)).min(MAX_RETRY_MINUTES);
                    entry.retry_at = now.saturating_add(i64::from(minutes) * 60_000);
                    // Retried with backoff: one warning is enough.
                    if entry.failures == 0 {
                        tracing::warn!(recommendation = %key, %error, "failed to write recommendation, retrying with backoff");
                    } else {
                        tracing::debug!(recommendation = %key, %error, minutes, "failed to write recommendation again");
                    }
                    entry.failures = entry.failures.saturating_add(1);
                }
            }
        }
    }

    /// Saves the histories whose last save is longest ago, and deletes the checkpoints of expired ones.
    async fn save(&mut self, replica: &Replica, now: UnixMillis) {
        let options = &replica.options.recommender;
        let history = self.checkpoints == Some(CheckpointSupport::Available);
        let mut removed = Vec::new();
        let interval = i64::try_from(options.checkpoint_interval.as_millis()).unwrap_or(i64::MAX);
        let mut due = Vec::new();
        for (key, entry) in &mut self.entries {
            let names = entry.expire(&options.settings, now);
            removed.extend(names.into_iter().map(|name| (key.clone(), name)));
            for (name, one) in entry.containers.iter() {
                if one.dirty && now.saturating_sub(one.saved) >= interval {
                    due.push((one.saved, key.clone(), name.to_owned()));
                }
            }
        }
        if !history {
            return;
        }
        for (key, name) in removed {
            if let Err(error) = checkpoints::remove(&replica.client, &key, &name).await {
                tracing::warn!(recommendation = %key, container = name, %error, "failed to delete checkpoint of an expired history");
            }
        }
        due.sort_unstable();
        due.truncate(options.checkpoints_per_round);
        let objects: Vec<_> = due
            .into_iter()
            .filter_map(|(_, key, name)| {
                let entry = self.entries.get(&key)?;
                let object =
                    checkpoints::object(&key, &entry.uid, &name, entry.containers.get(&name)?, now);
                Some((key, name, object))
            })
            .collect();
        let saved: Vec<_> = stream::iter(objects)
            .map(|(key, name, object)| {
                let client = replica.client.clone();
                async move {
                    let saved = checkpoints::save(&client, object).await;
                    (key, name, saved)
                }
            })
            .buffer_unordered(WRITERS)
            .collect()
            .await;
        for (key, name, saved) in saved {
            let entry = self.entries.get_mut(&key);
            let Some(one) = entry.and_then(|entry| entry.containers.get_mut(&name)) else {
                continue;
            };
            // A history that cannot be written must not block the others.
            one.saved = now;
            match saved {
                Ok(version) => {
                    one.version = version.map(Box::from);
                    one.dirty = false;
                }
                Err(error) => {
                    tracing::warn!(recommendation = %key, container = name, %error, "failed to save checkpoint");
                }
            }
        }
    }
}

/// Returns what to write to one Recommendation that has the status `before`: its new status and the details.
fn decide(
    replica: &Replica,
    case: &RecommendationCase,
    before: Option<&RecommendationStatus>,
    entry: &mut RecommendationState,
    measurements: &Measurements,
    checkpoints: Option<&CheckpointSupport>,
) -> Option<(StatusWrite, Option<Details>)> {
    let options = &replica.options.recommender;
    let targets = facts::percentiles(
        case.facts.percentiles.as_deref(),
        options.settings.percentiles,
    );
    let percentiles: Percentiles = match &targets {
        Ok(percentiles) => *entry.percentiles.insert(*percentiles),
        Err(_) => entry.percentiles.unwrap_or(options.settings.percentiles),
    };
    let refusals: Vec<&str> = [case.target().err(), targets.as_ref().err()]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let refused = (!refusals.is_empty()).then(|| status::refused(refusals.join("; ")));
    let mut findings = Findings {
        config_unsupported: refused.into(),
        ..Findings::default()
    };
    let mut estimates = None;
    if case.target().is_ok() {
        findings.no_objects_matched = case.no_pods_cause.clone().into();
        if !case.pods.is_empty() {
            let pods: Vec<&RecommenderPod> = case.pods.iter().map(|pod| &**pod).collect();
            let current = entry.estimates(&options.settings, percentiles, &pods);
            let cause = status::low_confidence(&current, measurements.problem.as_deref());
            findings.low_confidence = ConditionState::from(cause);
            estimates = Some(current);
        }
    }
    if let Some(CheckpointSupport::Unavailable(reason)) = checkpoints {
        findings.remark = Some(format!("not kept over restarts of the manager: {reason}"));
    }
    let old = before.and_then(|status| status.pod_status.as_ref());
    let old = old.map_or(&[][..], |status| &status.container_statuses);
    let days = |name: &str| case.facts.days(name);
    let containers = estimates.as_ref().map(|estimates: &ContainerEstimates| {
        learn::statuses(estimates, old, |name| days(name).unwrap_or(0.0))
    });
    let write = status::plan(
        before,
        case.facts.generation,
        containers,
        &findings,
        replica.clock.now(),
        options.update_interval,
    )?;
    Some((
        write,
        estimates.map(|estimates| Details::new(&estimates, days)),
    ))
}

/// Writes a status and its details, and records the event.
async fn apply(
    replica: &Replica,
    facts: &RecommendationFacts,
    old: &RecommendationStatus,
    write: &StatusWrite,
    details: Option<Details>,
) -> Result<(), Error> {
    let ObjectKey { namespace, name } = facts.key();
    let api: Api<Recommendation> = Api::namespaced(replica.client.clone(), &namespace);
    let written = match patch::diff(old, &write.status)? {
        Some(change) => Some(patch::merge_status(&api, &name, &json!({ "status": change })).await?),
        None => None,
    };
    let changed = written.is_some();
    let details = match details {
        // Few need the old annotation, which is large and therefore not cached. A write returns the object,
        // an empty patch does, too.
        Some(details) if details.needs_old() => {
            let object: Recommendation = match written {
                Some(object) => object,
                None => patch::merge(&api, &name, &json!({})).await?,
            };
            let annotations = object.metadata.annotations.as_ref();
            let text = annotations.and_then(|all| all.get(DISTRIBUTION));
            Some(details.with(facts::distributions(text.map(String::as_str))))
        }
        details => details.map(|details| details.with(BTreeMap::new())),
    };
    let details = details.filter(|all| !all.is_empty());
    if let Some(text) = details.and_then(|all| serde_json::to_string(&all).ok()) {
        let change = json!({"metadata": {"annotations": {DISTRIBUTION: text}}});
        patch::merge(&api, &name, &change).await?;
    }
    if changed {
        let about = || facts.reference();
        if let Some(change_summary) = &write.change_summary {
            replica.recorder.event(
                about(),
                Severity::Normal,
                "Recommended",
                change_summary.clone(),
            );
        }
        if let Some(refusal) = &write.refusal {
            replica.recorder.event(
                about(),
                Severity::Warning,
                "ConfigUnsupported",
                refusal.clone(),
            );
        }
    }
    Ok(())
}
