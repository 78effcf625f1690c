//! `ElasticQuota`: hierarchical quotas that lend each other what they do not use.
//!
//! Every pod is charged to one quota: its request as soon as the pod exists, its use once it is placed. A pod
//! is admitted if it fits the runtime quota, which is divided again whenever requests or the cluster change.
//! The decision depends only on the pod's quota, not on nodes, so pods of different quotas share cached node
//! results.

mod admission;
mod args;
mod invalid;
mod ledger;
mod metrics;
mod objects;
mod revoke;
mod status;
#[cfg(test)]
mod tests;
mod totals;

use crate::common::budgets::{self, is_non_preemptible, is_protected};
use admission::{QuotaDelta, Request, Rules};
use args::{Args, Gates};
use jiff::{SignedDuration, Timestamp};
use koord_api::quota::{DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA};
use koord_api::scheduling::ElasticQuota;
use koord_model::quota::{Options, QuotaForest, QuotaSpec};
use koord_model::resources::{Amounts, ResourceTable};
use koord_scheduler::framework::{
    Action, Admission, BoxedPlugin, BuildContext, BuildError, ClusterEvent, Cycle, Effects,
    Explain, IndexKind, Inputs, Interest, MetricSamples, MetricSource, NotShown, ObjectChange,
    ObjectEvents, PerProfile, Plugin, PodEvents, Points, Pool, PostFilter, PostFilterResult,
    PostFilterTransformer, PreFilterResult, Preemption, Preparation, QueueHints, QueueingHint,
    Roles, Sign, Signable, Signature, State, Subject, Tick, Verdict, View,
};
use koord_scheduler::framework::{Diagnosis, PreFilter};
use koord_scheduler::state::{NodeIndex, PodInfo};
use koord_scheduler::{Watch, event_names};
use ledger::{Charge, Ledger};
use objects::{Objects, key_of};
use revoke::Revoker;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};
use status::StatusWriter;
use std::collections::BTreeMap;
use std::sync::Arc;
use totals::Totals;

const NAME: &str = "ElasticQuota";
const ELASTIC_QUOTAS: &str = "elasticquotas.v1alpha1.scheduling.sigs.k8s.io";

/// Minimum time between two checks of rejected pods against their quotas.
const RETRY_EVERY: SignedDuration = SignedDuration::from_secs(1);

/// State of the `ElasticQuota` plugin.
#[derive(Debug)]
pub(crate) struct ElasticQuotas {
    /// Arguments for the quota trees, which apply to the pods of all profiles.
    args: Args,
    profile_rules: PerProfile<ProfileRules>,
    objects: Objects,
    ledger: Ledger,
    budgets: budgets::BudgetChecks,
    started: bool,
    /// Runtime quotas are divided on demand, for quotas that are about to be checked or displayed; rules read
    /// them as they are.
    trees: QuotaForest,
    /// Total resources of nodes and root quotas.
    totals: Totals,
    writer: StatusWriter,
    revoker: Revoker,
    /// True if this process writes statuses and annotations of the ElasticQuota objects.
    controls: bool,
    /// Pods that were rejected because of their quota.
    rejected: FxHashSet<Arc<str>>,
    /// True if requests, use or quotas changed since rejected pods were last checked.
    changed: bool,
    retried: Timestamp,
    reports: invalid::Reports,
    times: metrics::OperationTimes,
}

/// Quota rules for the pods of one profile.
#[derive(Debug, Clone, Copy)]
struct ProfileRules {
    rules: Rules,
    /// True if pods of the default quota are not preempted for each other.
    protect_default: bool,
}

impl ProfileRules {
    fn from_args(args: &Args) -> Self {
        Self {
            rules: Rules {
                runtime: args.enable_runtime_quota,
                ancestors: args.enable_check_parent_quota,
            },
            protect_default: args.disable_default_quota_preemption,
        }
    }
}

/// Builds the plugin.
pub(crate) fn build(
    value: Option<&Value>,
    context: &BuildContext,
) -> Result<BoxedPlugin, BuildError> {
    let gates = Gates::from_context(context);
    let args = Args::read(value)?;
    let trees = QuotaForest::new(Options {
        scale_min: args.enable_min_quota_scale,
        guarantee_used: gates.guarantee_used,
    });
    let controls = context.controllers.enabled(NAME);
    Ok(Box::new(ElasticQuotas {
        profile_rules: PerProfile::new(ProfileRules::from_args(&args)),
        revoker: Revoker::from_args(&args, controls),
        args,
        objects: Objects::new(gates.multi_tree),
        budgets: budgets::BudgetChecks::from_gates(context),
        started: false,
        ledger: Ledger::new(gates),
        trees,
        totals: Totals::default(),
        writer: StatusWriter::default(),
        controls,
        rejected: FxHashSet::default(),
        changed: false,
        retried: Timestamp::UNIX_EPOCH,
        reports: invalid::Reports::default(),
        times: metrics::OperationTimes::default(),
    }))
}

impl ElasticQuotas {
    /// Marks requests, use or quotas as changed.
    fn mark_changed(&mut self) {
        self.changed = true;
        self.writer.dirty = true;
        self.revoker.dirty = true;
    }

    /// Returns the spec of quota `name`: from its object, or from the arguments for built-in quotas. `None`
    /// if there is neither.
    fn spec(&self, name: &str, table: &ResourceTable) -> Option<QuotaSpec> {
        if let Some(object) = self.objects.get(name) {
            return Some(object.spec.clone());
        }
        let max = match name {
            SYSTEM_QUOTA => objects::amounts(&self.args.system_quota_group_max, table),
            DEFAULT_QUOTA => objects::amounts(&self.args.default_quota_group_max, table),
            ROOT_QUOTA => Amounts::new(),
            _ => return None,
        };
        Some(QuotaSpec {
            lendable: name != ROOT_QUOTA,
            is_parent: name == ROOT_QUOTA,
            max,
            ..QuotaSpec::default()
        })
    }

    /// Updates quota `name` in its tree from the objects.
    fn update_quota(&mut self, name: &str, table: &ResourceTable) {
        let spec = self.spec(name, table);
        let object = self.objects.get(name);
        let tree = object.map_or("", |object| &object.tree);
        let root = object.and_then(|object| object.root.clone());
        let trees = &mut self.trees;
        let before = trees.tree_of(name).to_owned();
        match spec {
            Some(spec) => trees.set(name, tree, spec),
            None => trees.remove(name),
        }
        if self.totals.set_root(name, root) {
            trees.set_total("", self.totals.tree_total(""));
        }
        for id in [before.as_str(), tree] {
            if !id.is_empty() {
                trees.set_total(id, self.totals.tree_total(id));
            }
        }
    }

    /// Creates the built-in quotas from the arguments, before anything is charged.
    fn start(&mut self, table: &ResourceTable) {
        if !std::mem::replace(&mut self.started, true) {
            for name in [SYSTEM_QUOTA, DEFAULT_QUOTA] {
                self.update_quota(name, table);
            }
        }
    }

    /// Returns whether `quota` has enough free for `pod`, with the reason if it has not. Its runtime must
    /// have been divided before.
    fn admit(
        &self,
        pod: &PodInfo,
        quota: &str,
        delta: &QuotaDelta,
        table: &ResourceTable,
    ) -> Verdict {
        let amounts = self.ledger.amounts(pod, table);
        let request = Request {
            quota,
            amounts: &amounts,
            non_preemptible: is_non_preemptible(pod),
        };
        let ProfileRules { rules, .. } = self.profile_rules.for_pod(pod);
        rules.admit(&request, delta, &self.trees, Some(table))
    }

    /// Returns true if `quota` has enough free for a charged pod. Like [`Self::admit`], without the reason.
    fn fits(&self, charge: &Charge, quota: &str, delta: &QuotaDelta) -> bool {
        let request = Request {
            quota,
            amounts: &charge.amounts,
            non_preemptible: charge.non_preemptible,
        };
        let ProfileRules { rules, .. } = self.profile_rules.for_pod(&charge.info);
        rules.admit(&request, delta, &self.trees, None).is_ok()
    }

    /// Returns the change of `quota`'s use when `victims` are evicted, including victims of other quotas
    /// below the same ancestors.
    fn delta_without(&self, quota: &str, victims: &[Arc<PodInfo>]) -> QuotaDelta {
        let mut delta = QuotaDelta::for_pods(quota, victims, &[], &self.ledger);
        let charges = victims.iter().filter_map(|pod| self.ledger.get(&pod.uid));
        for charge in charges.filter(|charge| charge.placed) {
            if let Some(other) = charge.quota.as_deref().filter(|other| *other != quota) {
                delta.add_other(other, &charge.amounts, true, &self.trees);
            }
        }
        delta
    }

    /// Returns true if any profile limits pods by the runtime quota.
    fn uses_runtime(&self) -> bool {
        self.profile_rules
            .all()
            .any(|profile| profile.rules.runtime)
    }

    /// Returns the quota that `pod` is charged to, or would be.
    fn quota_of(&self, pod: &PodInfo) -> Option<Arc<str>> {
        match self.ledger.get(&pod.uid) {
            Some(charge) => charge.quota.clone(),
            None => self.ledger.resolve(pod, &self.objects, &self.trees),
        }
    }

    /// Returns the pods that may be preempted for a pod of `quota`: none for the default quota if that is
    /// protected. `None` if they are not indexed.
    fn preemptable_pods(&self, quota: Option<Arc<str>>, protect_default: bool) -> Option<Pool<'_>> {
        let quota = quota?;
        if protect_default && *quota == *DEFAULT_QUOTA {
            return Some(Box::new(|_| {}));
        }
        let placed = self.ledger.placed_pods(&quota)?;
        Some(Box::new(move |name| {
            for uid in placed.into_iter().flatten() {
                name(uid);
            }
        }))
    }

    /// Activates rejected pods that fit now, as many as fit together, highest priority first.
    fn retry(&mut self, view: View<'_>, fx: &mut Effects) {
        if !self.changed || view.now.duration_since(self.retried) < RETRY_EVERY {
            return;
        }
        self.changed = false;
        self.retried = view.now;
        let ledger = &self.ledger;
        self.rejected
            .retain(|uid| ledger.get(uid).is_some_and(|charge| !charge.placed));
        let mut pods: Vec<&Charge> = self
            .rejected
            .iter()
            .filter_map(|uid| self.ledger.get(uid))
            .collect();
        pods.sort_by(|a, b| {
            let (a, b) = (&a.info, &b.info);
            let order = b.priority.cmp(&a.priority);
            order
                .then(a.created.cmp(&b.created))
                .then(a.uid.cmp(&b.uid))
        });
        for charge in &pods {
            if let Some(quota) = &charge.quota {
                let ProfileRules { rules, .. } = self.profile_rules.for_pod(&charge.info);
                rules.refresh(quota, &mut self.trees);
            }
        }
        let mut planned: FxHashMap<&str, QuotaDelta> = FxHashMap::default();
        let mut woken = Vec::new();
        for charge in pods {
            let Some(quota) = charge.quota.as_deref() else {
                woken.push(charge.info.uid.clone());
                continue;
            };
            let delta = planned.entry(quota).or_default();
            if self.fits(charge, quota, delta) {
                delta.add(&charge.amounts, charge.non_preemptible, false);
                woken.push(charge.info.uid.clone());
            }
        }
        for uid in woken {
            self.rejected.remove(&uid);
            fx.activate.push(uid);
        }
    }
}

impl Plugin for ElasticQuotas {
    const ROLES: Roles<Self> = Roles::none()
        .inputs()
        .queue_hints()
        .sign()
        .pre_filter()
        .post_filter()
        .explain()
        .object_events()
        .pod_events()
        .preparation()
        .tick()
        .post_filter_transformer()
        .metric_source();

    fn name(&self) -> &'static str {
        NAME
    }
    fn join(
        &mut self,
        profile: &str,
        args: Option<&Value>,
        _context: &BuildContext,
    ) -> Option<Result<(), BuildError>> {
        let args = Args::read(args).map(|args| {
            args.warn_differences(&self.args, profile);
            self.profile_rules
                .join(profile, ProfileRules::from_args(&args));
        });
        Some(args)
    }
    fn points(&self) -> Points {
        Points::PRE_FILTER
            .or(Points::POST_FILTER)
            .or(Points::RESERVE)
    }
}

impl Sign for ElasticQuotas {
    fn sign(&self, _: &PodInfo, _: &ResourceTable, _: &mut Signature) -> Signable {
        Signable::Yes
    }
}

impl Inputs for ElasticQuotas {
    fn watches(&self) -> Vec<Watch> {
        let mut watches = vec![
            Watch::trimmed::<ElasticQuota, crate::common::trim::Trimmer>(ELASTIC_QUOTAS)
                .counted_as(event_names!(
                    "elasticquotas.v1alpha1.scheduling.sigs.k8s.io"
                )),
        ];
        watches.extend(self.budgets.watch());
        watches
    }
    fn indexes(&self) -> Vec<IndexKind> {
        self.budgets.index().into_iter().collect()
    }
}

impl PreFilter for ElasticQuotas {
    fn pre_filter(&self, cycle: &Cycle<'_>) -> PreFilterResult {
        let Some(quota) = self.quota_of(cycle.pod) else {
            return PreFilterResult::Skip;
        };
        let overlay = cycle.overlay;
        let delta = QuotaDelta::for_pods(&quota, overlay.removed, overlay.added, &self.ledger);
        match self.admit(cycle.pod, &quota, &delta, cycle.view.resources) {
            Ok(()) => PreFilterResult::Ready {
                state: State::default(),
                nodes: None,
            },
            Err(rejection) => PreFilterResult::Reject(rejection),
        }
    }
}

impl QueueHints for ElasticQuotas {
    fn interests(&self) -> Vec<Interest> {
        let any = Action::ADD.or(Action::UPDATE).or(Action::DELETE);
        let node = Action::ADD.or(Action::DELETE).or(Action::NODE_ALLOCATABLE);
        [
            (
                Subject::AssignedPod,
                Action::DELETE.or(Action::POD_SCALE_DOWN),
            ),
            (Subject::Object(ELASTIC_QUOTAS), any),
            (Subject::Node, node),
        ]
        .map(|(subject, actions)| Interest { subject, actions })
        .into()
    }
    fn hint(&self, pod: &PodInfo, _event: &ClusterEvent<'_>, _view: View<'_>) -> QueueingHint {
        if self.rejected.contains(&pod.uid) {
            // The next tick activates as many pods as fit.
            return QueueingHint::Skip;
        }
        QueueingHint::Queue
    }
}

impl PostFilter for ElasticQuotas {
    fn post_filter<'a>(
        &'a self,
        cycle: &Cycle<'a>,
        _diagnosis: &Diagnosis,
    ) -> PostFilterResult<'a> {
        let quota = self.quota_of(cycle.pod);
        let (same, own) = (quota.clone(), quota.clone());
        let protect_default = self.profile_rules.for_pod(cycle.pod).protect_default;
        let pool = self.preemptable_pods(quota.clone(), protect_default);
        let (pod, view, table) = (cycle.pod, cycle.view, cycle.view.resources);
        PostFilterResult::Preempt(Preemption {
            prefix: "preemption: ",
            min_candidate_percentage: 100,
            min_candidate_absolute: 0,
            may_evict: Box::new(move |victim| {
                let victim_quota = self.quota_of(victim);
                let spared = protect_default && victim_quota.as_deref() == Some(DEFAULT_QUOTA);
                !is_protected(victim)
                    && !is_non_preemptible(victim)
                    && !spared
                    && victim_quota == same
            }),
            awaits: Some(Box::new(move |other| {
                other.deleting && self.quota_of(other) == own
            })),
            suffices: Box::new(move |victims| {
                let Some(quota) = &quota else { return true };
                let delta = QuotaDelta::for_pods(quota, victims, &[], &self.ledger);
                match self.ledger.get(&pod.uid) {
                    Some(charge) => self.fits(charge, quota, &delta),
                    None => self.admit(pod, quota, &delta, table).is_ok(),
                }
            }),
            budgets: Box::new(move |pod| budgets::covering(view, pod)),
            for_holders: false,
            besides: String::new(),
            pool,
        })
    }
    fn admission(&self) -> Option<&dyn Admission> {
        Some(self)
    }
}

/// Quota check for groups of pods. Upstream checks one pod of a gang at a time, and only in its own
/// PostFilter.
impl Admission for ElasticQuotas {
    fn admits(&self, pods: &[Arc<PodInfo>], victims: &[Arc<PodInfo>], view: View<'_>) -> bool {
        let table = view.resources;
        let mut deltas: BTreeMap<Arc<str>, QuotaDelta> = BTreeMap::new();
        for quota in pods.iter().filter_map(|pod| self.quota_of(pod)) {
            deltas
                .entry(quota.clone())
                .or_insert_with(|| self.delta_without(&quota, victims));
        }
        pods.iter().all(|pod| {
            let Some(quota) = self.quota_of(pod) else {
                return true;
            };
            let Some(delta) = deltas.get(&quota) else {
                return false;
            };
            let admitted = match self.ledger.get(&pod.uid) {
                Some(charge) => self.fits(charge, &quota, delta),
                None => self.admit(pod, &quota, delta, table).is_ok(),
            };
            let amounts = self.ledger.amounts(pod, table);
            for (other, delta) in &mut deltas {
                match *other == quota {
                    true => delta.add(&amounts, is_non_preemptible(pod), false),
                    false => delta.add_other(&quota, &amounts, false, &self.trees),
                }
            }
            admitted
        })
    }
    fn blocking_pods(&self, pods: &[Arc<PodInfo>], _view: View<'_>, name: &mut dyn FnMut(&str)) {
        let spares = |pod: &PodInfo| self.profile_rules.for_pod(pod).protect_default;
        let quotas: BTreeMap<Arc<str>, bool> = pods
            .iter()
            .filter_map(|pod| Some((self.quota_of(pod)?, spares(pod))))
            .collect();
        for (quota, protect_default) in quotas {
            if protect_default && *quota == *DEFAULT_QUOTA {
                continue;
            }
            for charge in self.ledger.placed_charges(&quota) {
                name(&charge.info.uid);
            }
        }
    }
}

impl Explain for ElasticQuotas {
    fn explain(&self, pod: &PodInfo, view: View<'_>) -> Option<Value> {
        let name = self.quota_of(pod)?;
        let verdict = self.admit(pod, &name, &QuotaDelta::default(), view.resources);
        // A built-in quota is only worth showing when it rejects the pod.
        if verdict.is_ok() && [DEFAULT_QUOTA, SYSTEM_QUOTA].contains(&&*name) {
            return None;
        }
        Some(json!({
            "quota": self.summary(&name, false, view.resources)?,
            "placed": self.ledger.get(&pod.uid).is_some_and(|charge| charge.placed),
            "refusal": verdict.err().map(|rejection| rejection.message()),
        }))
    }
    fn inspections(&self) -> &'static [&'static str] {
        &["quotas", "quotas/:name"]
    }
    fn inspect(
        &self,
        path: &[&str],
        query: &BTreeMap<String, String>,
        view: View<'_>,
    ) -> Result<Value, NotShown> {
        let pods = query
            .get("includePods")
            .is_some_and(|value| value == "true");
        match path {
            ["quotas", name] => {
                let quota = self.summary(name, pods, view.resources);
                quota.ok_or_else(|| NotShown::missing(format_args!("quota {name}")))
            }
            ["quotas"] => {
                let mut out = serde_json::Map::new();
                let tree = query.get("tree").map_or("", String::as_str);
                let mut names = self.trees.names();
                names.retain(|name| tree.is_empty() || self.trees.tree_of(name) == tree);
                for name in &names {
                    if **name != *ROOT_QUOTA
                        && let Some(summary) = self.summary(name, pods, view.resources)
                    {
                        out.insert(name.to_string(), summary);
                    }
                }
                Ok(Value::Object(out))
            }
            _ => Err(NotShown::NoSuchPath),
        }
    }
}

impl MetricSource for ElasticQuotas {
    fn read(&mut self, view: View<'_>, out: &mut MetricSamples) {
        self.report_metrics(view.resources, out);
    }
}

impl Preparation for ElasticQuotas {
    fn prepare(&mut self, cycle: &Cycle<'_>) {
        if let Some(quota) = self.quota_of(cycle.pod) {
            let ProfileRules { rules, .. } = self.profile_rules.for_pod(cycle.pod);
            rules.refresh(&quota, &mut self.trees);
        }
    }
    fn prepare_explain(&mut self, _view: View<'_>) {
        self.trees.rebuild();
        if self.uses_runtime() {
            for name in self.trees.names() {
                self.trees.refresh(&name);
            }
        }
    }
}

impl ObjectEvents for ElasticQuotas {
    fn on_object(&mut self, change: &ObjectChange, view: View<'_>, fx: &mut Effects) {
        let Ok(object) = change.new.clone().downcast::<ElasticQuota>() else {
            return;
        };
        let table = view.resources;
        self.start(table);
        let began = Some(std::time::Instant::now());
        let before = self.objects.parent_and_tree(&key_of(&object));
        let (key, mut namespaces) = if change.action == Action::DELETE {
            let key = key_of(&object);
            let last = self.objects.remove(&key);
            self.reports.remove(&object);
            (key, last.map_or_else(Vec::new, |last| last.namespaces))
        } else {
            self.reports.values(&object, self.objects.has_trees(), fx);
            self.objects.apply(&object, table, &mut fx.problems)
        };
        if self.objects.parent_and_tree(&key) != before {
            self.reports.parents_changed(view.now);
        }
        self.update_quota(&key.1, table);
        if key.0 == key.1 {
            namespaces.push(key.0);
        }
        let trees = &mut self.trees;
        let namespaces = namespaces.iter().map(String::as_str);
        self.ledger
            .move_pods(&key.1, namespaces, &self.objects, trees);
        self.mark_changed();
        let operation = if change.action == Action::DELETE {
            "DeleteQuota"
        } else {
            "UpdateQuota"
        };
        self.times.record(operation, began);
    }
    fn on_node(&mut self, node: NodeIndex, view: View<'_>, _fx: &mut Effects) {
        let now = view.nodes.info(node).map(|info| &info.allocatable);
        if self.totals.set_node(node, now) {
            self.trees.set_total("", self.totals.tree_total(""));
            self.mark_changed();
        }
    }
}

impl PodEvents for ElasticQuotas {
    fn on_pod(&mut self, pod: &Arc<PodInfo>, view: View<'_>, _fx: &mut Effects) {
        self.start(view.resources);
        let began = self.times.sample();
        let operation = if began.is_some() && self.ledger.get(&pod.uid).is_some() {
            "OnPodUpdate"
        } else {
            "OnPodAdd"
        };
        let trees = &mut self.trees;
        let changed = self
            .ledger
            .apply(pod, view.resources, &self.objects, trees, view.now);
        self.times.record(operation, began);
        if changed {
            self.mark_changed();
        }
    }
    fn on_pod_gone(&mut self, uid: &str, _view: View<'_>, _fx: &mut Effects) {
        self.rejected.remove(uid);
        let began = self.times.sample();
        let trees = &mut self.trees;
        let removed = self.ledger.remove(uid, trees);
        self.times.record("OnPodDelete", began);
        if removed {
            self.mark_changed();
        }
    }
    fn on_assigned(
        &mut self,
        pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        self.rejected.remove(&pod.uid);
        let began = self.times.sample();
        let trees = &mut self.trees;
        let placed = self.ledger.set_placed(&pod.uid, true, trees);
        self.times.record("ReservePod", began);
        if placed {
            self.mark_changed();
        }
    }
    fn on_unassigned(
        &mut self,
        pod: &Arc<PodInfo>,
        _node: NodeIndex,
        _view: View<'_>,
        _fx: &mut Effects,
    ) {
        let began = self.times.sample();
        let trees = &mut self.trees;
        let released = self.ledger.set_placed(&pod.uid, false, trees);
        self.times.record("UnreservePod", began);
        if released {
            self.mark_changed();
        }
    }
}

impl Tick for ElasticQuotas {
    fn tick(&mut self, view: View<'_>, fx: &mut Effects) {
        self.start(view.resources);
        let trees = &mut self.trees;
        if self.ledger.remove_ended(trees, view.now) {
            self.mark_changed();
        }
        self.report_parents(view.now, fx);
        self.create_built_ins(view.now, fx);
        self.write_statuses(view, fx);
        self.revoke(view, fx);
        self.retry(view, fx);
    }
    fn next_tick(&self) -> Option<Timestamp> {
        let retry = self.changed && !self.rejected.is_empty();
        let retry = retry.then(|| {
            let next = self.retried.saturating_add(RETRY_EVERY);
            next.unwrap_or(Timestamp::MAX)
        });
        let write = self.writer.next_check(self.is_missing_built_ins());
        let end = self.ledger.next_end();
        let revoke = self.revoker.next_check();
        let report = self.reports.next_check();
        let all = retry.into_iter().chain(write).chain(end).chain(revoke);
        all.chain(report).min()
    }
}

impl PostFilterTransformer for ElasticQuotas {
    fn after_post_filter(
        &mut self,
        cycle: &Cycle<'_>,
        diagnosis: &mut Diagnosis,
        _fx: &mut Effects,
    ) {
        let uid = &cycle.pod.uid;
        if diagnosis.plugins.contains(&NAME) && self.ledger.get(uid).is_some() {
            self.rejected.insert(cycle.pod.uid.clone());
        }
    }
}
