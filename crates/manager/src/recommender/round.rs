//! One round: who is meant, what was used, what is recommended, what is written.

use super::checkpoints::{self, Loaded, Support};
use super::learn::{self, Details, Entry, Known};
use super::pods::{Common, PodFacts};
use super::sources::{self, Measured};
use super::status::{self, Cause, Findings, Verdict, Write};
use crate::Error;
use crate::facts::{self, RecommendationFacts, Target};
use crate::replica::Replica;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use koord_api::Uid;
use koord_api::analysis::{DISTRIBUTION, Recommendation, RecommendationStatus};
use koord_kube::events::Severity;
use koord_kube::owners::{Owner, Owners};
use koord_kube::{Api, Informer, Mirrored, ObjectKey, Scope, Store, patch};
use koord_model::histogram::UnixMillis;
use koord_model::recommend::Percentiles;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Writes at once.
const WRITERS: usize = 8;
/// Recommendations that are decided about before the first of them is written.
const DECIDED: usize = 256;
/// The longest pause between two tries to write what the API server refuses, in minutes.
const LONGEST_PAUSE: u32 = 16;

/// What lasts from round to round.
pub(super) struct Rounds {
    entries: HashMap<ObjectKey, Entry>,
    owners: Owners,
    /// Followed while there is a Recommendation.
    pods: Option<(Store<PodFacts>, DropGuard)>,
    /// `None` until they are read.
    checkpoints: Option<Support>,
    /// Histories whose Recommendation was not seen yet.
    loaded: Loaded,
    /// When the API server is asked again for what it did not have.
    ask_again: UnixMillis,
}

/// A Recommendation in a round.
struct Case {
    facts: Arc<RecommendationFacts>,
    pods: Vec<Arc<PodFacts>>,
    /// Why the API server has no such target.
    unknown: Option<String>,
    /// Something was wrong with looking for the target.
    trouble: Option<Cause>,
}

impl Case {
    fn key(&self) -> &ObjectKey {
        &self.facts.key
    }

    /// What it is about, or why that cannot be used.
    fn target(&self) -> Result<&Target, &String> {
        let target = self.facts.target.as_ref()?;
        self.unknown.as_ref().map_or(Ok(target), Err)
    }
}

impl Rounds {
    pub(super) fn new(replica: &Replica) -> Self {
        Self {
            entries: HashMap::new(),
            owners: Owners::new(replica.client.clone()),
            pods: None,
            checkpoints: None,
            loaded: Loaded::new(),
            ask_again: UnixMillis::MIN,
        }
    }

    pub(super) async fn round(&mut self, replica: &Arc<Replica>) -> Result<(), Error> {
        let now = replica.clock.now().as_millisecond();
        let objects = replica.caches.recommendations.list();
        self.forget(&objects);
        if objects.is_empty() {
            self.pods = None;
            return Ok(());
        }
        self.load(replica, now).await?;
        let Some(pods) = self.pods(replica).await else {
            return Ok(());
        };
        self.adopt(&objects);
        let cases = self.cases(objects, &pods).await?;
        let namespaces: BTreeSet<&str> = cases
            .iter()
            .filter(|case| !case.pods.is_empty())
            .map(|case| case.key().namespace.as_str())
            .collect();
        let namespaces: Vec<&str> = namespaces.into_iter().collect();
        let mut measured = Measured::default();
        if !namespaces.is_empty() {
            let source = replica.options.recommender.source;
            let metrics = replica.caches.node_metrics.list();
            measured = sources::measure(&replica.client, source, &namespaces, &metrics, now).await;
        }
        self.learn(replica, &cases, &measured, now);
        self.write(replica, &cases, &measured, now).await;
        self.save(replica, now).await;
        self.owners.tidy();
        Ok(())
    }

    /// Drops what was learned for Recommendations that are no more. The garbage collector takes
    /// their checkpoints.
    fn forget(&mut self, objects: &[Arc<RecommendationFacts>]) {
        let uids: HashMap<ObjectKey, &Uid> = objects
            .iter()
            .map(|object| (object.key(), &object.uid))
            .collect();
        self.entries
            .retain(|key, entry| uids.get(key).is_some_and(|uid| **uid == entry.uid));
    }

    /// Reads the checkpoints, once there are any to read.
    async fn load(&mut self, replica: &Replica, now: UnixMillis) -> Result<(), Error> {
        let settled = match &self.checkpoints {
            Some(Support::Kept) => true,
            Some(Support::No(_)) => now < self.ask_again,
            None => false,
        };
        if settled {
            return Ok(());
        }
        let settings = &replica.options.recommender.settings;
        let (support, loaded) = checkpoints::load(&replica.client, settings, now).await?;
        if self.checkpoints.as_ref() != Some(&support) {
            match &support {
                Support::Kept => tracing::info!(targets = loaded.len(), "histories loaded"),
                Support::No(why) => tracing::warn!(why, "histories are not kept over restarts"),
            }
        }
        self.checkpoints = Some(support);
        self.loaded = loaded;
        let pause = replica.options.recommender.checkpoint_interval;
        self.ask_again = now.saturating_add(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX));
        Ok(())
    }

    /// The pods, in sync; `None` when the manager ends first.
    async fn pods(&mut self, replica: &Replica) -> Option<Store<PodFacts>> {
        let (store, _) = self.pods.get_or_insert_with(|| {
            let stop: CancellationToken = replica.stop.child_token();
            let client = replica.client.clone();
            let common = Common::default();
            let of = move |pod: Pod| PodFacts::shared(&pod, &common);
            let Informer {
                store, mut changes, ..
            } = Informer::start_kept(client, Scope::default(), of, stop.clone());
            tokio::spawn(async move { while changes.recv().await.is_some() {} });
            (store, stop.drop_guard())
        });
        let store = store.clone();
        store.wait_synced().await.then_some(store)
    }

    /// An entry for each Recommendation, with its history where there is one.
    fn adopt(&mut self, objects: &[Arc<RecommendationFacts>]) {
        for object in objects {
            let key = object.key();
            let uid = &object.uid;
            let entry = self
                .entries
                .entry(key.clone())
                .or_insert_with(|| Entry::new(uid));
            for (owner, container, kept) in self.loaded.remove(&key).into_iter().flatten() {
                if owner == *uid {
                    entry.containers.or_insert_with(&container, || kept);
                }
            }
        }
    }

    /// Which pods each Recommendation is about.
    async fn cases(
        &mut self,
        objects: Vec<Arc<RecommendationFacts>>,
        pods: &Store<PodFacts>,
    ) -> Result<Vec<Case>, Error> {
        let mut cases: Vec<Case> = objects
            .into_iter()
            .map(|facts| Case {
                facts,
                pods: Vec::new(),
                unknown: None,
                trouble: None,
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
        let wanted = |namespace: &str, owner: &Owner| {
            let members = by_namespace.get(namespace).into_iter().flatten();
            let none = BTreeMap::new();
            let mut targets = members.filter_map(|at| cases[*at].target().ok());
            targets.any(|target| match target {
                Target::Workload { .. } => target.matches(&none, &[owner]),
                Target::Selector(_) => false,
            })
        };
        let has_workloads = |namespace: &String| {
            let members = by_namespace.get(namespace).into_iter().flatten();
            let mut targets = members.map(|at| cases[*at].target());
            targets.any(|target| matches!(target, Ok(Target::Workload { .. })))
        };
        let starts: HashSet<(String, Arc<Owner>)> = pods
            .iter()
            .filter(|pod| has_workloads(&pod.key.namespace))
            .filter_map(|pod| Some((pod.key.namespace.clone(), pod.owner.clone()?)))
            .collect();
        let chains = self
            .owners
            .chains(starts.into_iter().collect(), wanted)
            .await?;
        for pod in pods {
            let chain = pod.owner.as_ref().and_then(|owner| chains.get(owner));
            let chain = chain.map_or(&[][..], Vec::as_slice);
            let labels = pod.labels();
            for at in by_namespace.get(&pod.key.namespace).into_iter().flatten() {
                let case = &mut cases[*at];
                let matches = |target: &Target| target.matches(&labels, chain);
                if case.target().is_ok_and(matches) {
                    case.pods.push(pod.clone());
                }
            }
        }
        for case in &mut cases {
            if case.pods.is_empty() {
                self.explain(case).await;
            }
        }
        Ok(cases)
    }

    /// Why a Recommendation has no pods.
    async fn explain(&mut self, case: &mut Case) {
        let none = |message: String| Cause {
            reason: "NoPods",
            message,
        };
        let (api_version, kind, name) = match case.target() {
            Err(_) => return,
            Ok(Target::Selector(_)) => {
                case.trouble = Some(none("no pod has these labels".to_owned()));
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
                case.trouble = Some(match objects.get_metadata_opt(&name).await {
                    Ok(None) => Cause {
                        reason: "TargetMissing",
                        message: format!("there is no {kind} {name:?}"),
                    },
                    Ok(Some(_)) => none(format!("{kind} {name:?} has no pods")),
                    Err(error) => none(format!("no pod of {kind} {name:?} is known: {error}")),
                });
            }
            Ok(None) => {
                case.unknown = Some(format!(
                    "spec.target.workload.kind {kind:?}: the API server has no such kind in \
                     {api_version:?}, or it is in no namespace"
                ));
            }
            Err(error) => {
                let message = format!("no pod of {kind} {name:?} is known: {error}");
                case.trouble = Some(none(message));
            }
        }
    }

    fn learn(&mut self, replica: &Replica, cases: &[Case], measured: &Measured, now: UnixMillis) {
        let settings = &replica.options.recommender.settings;
        for case in cases {
            let Some(entry) = self.entries.get_mut(case.key()) else {
                continue;
            };
            for pod in &case.pods {
                entry.learn(settings, pod, measured.pods.get(&pod.key), now);
            }
        }
    }

    /// Writes what is due. A refusal of the API server is tried again after a growing pause.
    async fn write(
        &mut self,
        replica: &Arc<Replica>,
        cases: &[Case],
        measured: &Measured,
        now: UnixMillis,
    ) {
        // A few at a time: all of them at once are many times what is kept.
        for cases in cases.chunks(DECIDED) {
            self.write_some(replica, cases, measured, now).await;
        }
    }

    async fn write_some(
        &mut self,
        replica: &Arc<Replica>,
        cases: &[Case],
        measured: &Measured,
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
            let support = self.checkpoints.as_ref();
            let status = case.facts.status();
            let decided = decide(replica, case, status.as_ref(), entry, measured, support);
            if let Some((write, details)) = decided {
                let old = status.unwrap_or_default();
                writes.push((case.facts.clone(), old, write, details));
            }
        }
        let done: Vec<_> = stream::iter(writes)
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
        for (key, result) in done {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            match result {
                Ok(()) => entry.failures = 0,
                Err(error) => {
                    let minutes = (1 << entry.failures.min(4)).min(LONGEST_PAUSE);
                    entry.retry_at = now.saturating_add(i64::from(minutes) * 60_000);
                    // With growing pauses; one line says it all.
                    if entry.failures == 0 {
                        tracing::warn!(recommendation = %key, %error, "not written; it is tried again");
                    } else {
                        tracing::debug!(recommendation = %key, %error, minutes, "not written again");
                    }
                    entry.failures = entry.failures.saturating_add(1);
                }
            }
        }
    }

    /// Saves the histories that have waited longest, and removes those out of date.
    async fn save(&mut self, replica: &Replica, now: UnixMillis) {
        let options = &replica.options.recommender;
        let kept = self.checkpoints == Some(Support::Kept);
        let mut gone = Vec::new();
        let interval = i64::try_from(options.checkpoint_interval.as_millis()).unwrap_or(i64::MAX);
        let mut due = Vec::new();
        for (key, entry) in &mut self.entries {
            let names = entry.expire(&options.settings, now);
            gone.extend(names.into_iter().map(|name| (key.clone(), name)));
            for (name, one) in entry.containers.iter() {
                if one.dirty && now.saturating_sub(one.saved) >= interval {
                    due.push((one.saved, key.clone(), name.to_owned()));
                }
            }
        }
        if !kept {
            return;
        }
        for (key, name) in gone {
            if let Err(error) = checkpoints::remove(&replica.client, &key, &name).await {
                tracing::warn!(recommendation = %key, container = name, %error, "an old history stays");
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
            // One that cannot be written must not keep the others from their turn.
            one.saved = now;
            match saved {
                Ok(version) => {
                    one.version = version.map(Box::from);
                    one.dirty = false;
                }
                Err(error) => {
                    tracing::warn!(recommendation = %key, container = name, %error, "its history is not saved");
                }
            }
        }
    }
}

/// What to write about one Recommendation that has the status `before`: its new status, and the details.
fn decide(
    replica: &Replica,
    case: &Case,
    before: Option<&RecommendationStatus>,
    entry: &mut Entry,
    measured: &Measured,
    checkpoints: Option<&Support>,
) -> Option<(Write, Option<Details>)> {
    let options = &replica.options.recommender;
    let wanted = facts::percentiles(
        case.facts.percentiles.as_deref(),
        options.settings.percentiles,
    );
    let percentiles: Percentiles = match &wanted {
        Ok(percentiles) => *entry.percentiles.insert(*percentiles),
        Err(_) => entry.percentiles.unwrap_or(options.settings.percentiles),
    };
    let refusals: Vec<&str> = [case.target().err(), wanted.as_ref().err()]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let refused = (!refusals.is_empty()).then(|| status::refused(refusals.join("; ")));
    let mut findings = Findings {
        config_unsupported: refused.into(),
        ..Findings::default()
    };
    let mut known = None;
    if case.target().is_ok() {
        findings.no_objects_matched = case.trouble.clone().into();
        if !case.pods.is_empty() {
            let pods: Vec<&PodFacts> = case.pods.iter().map(|pod| &**pod).collect();
            let found = entry.known(&options.settings, percentiles, &pods);
            let cause = status::low_confidence(&found, measured.problem.as_deref());
            findings.low_confidence = Verdict::from(cause);
            known = Some(found);
        }
    }
    if let Some(Support::No(why)) = checkpoints {
        findings.remark = Some(format!("not kept over restarts of the manager: {why}"));
    }
    let old = before.and_then(|status| status.pod_status.as_ref());
    let old = old.map_or(&[][..], |status| &status.container_statuses);
    let days = |name: &str| case.facts.days(name);
    let containers = known
        .as_ref()
        .map(|known: &Known| learn::statuses(known, old, |name| days(name).unwrap_or(0.0)));
    let write = status::plan(
        before,
        case.facts.generation,
        containers,
        &findings,
        replica.clock.now(),
        options.update_interval,
    )?;
    Some((write, known.map(|known| Details::of(&known, days))))
}

async fn apply(
    replica: &Replica,
    facts: &RecommendationFacts,
    old: &RecommendationStatus,
    write: &Write,
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
        // Few need the old annotation, and it is large: it is not kept. A write brings it back, one of
        // nothing, too.
        Some(details) if details.wants_old() => {
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
        if let Some(news) = &write.news {
            replica
                .recorder
                .event(about(), Severity::Normal, "Recommended", news.clone());
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
