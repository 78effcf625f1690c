//! The daemon: one task owns the engine; everything reaches it through one ordered channel.

mod binder;
mod condition;
mod desk;
mod discard;
mod evict;
mod extender;
mod follower;
mod gate;
mod monitor;
mod nearest;
mod placement;
mod send;
mod takeover;
mod transform;
mod watch;
mod written;

pub use follower::Follower;
pub(crate) use monitor::Attempt;
pub(crate) use watch::Message;
use watch::Source;
#[cfg(test)]
pub(crate) use watch::trim_pod;
pub use watch::{Trim, Watch, trim_pod_spec};

use crate::config::{ConfigError, Configuration};
use crate::debug::{DebugHandle, Question};
use crate::engine::{Engine, EngineOptions, Failure, Near, Outcome, Output};
use crate::framework::{BuildContext, ObjectChange, ProfileError, Profiles, Registry};
use crate::guard::guarded;
use crate::metrics::{Digested, Metrics, PluginMetrics};
use crate::state::{Alike, SeenPod};
use binder::Writer;
use desk::{Desk, Notes, Refused};
use discard::Discard;
use extender::Extenders;
use futures::FutureExt;
use futures::future::BoxFuture;
use gate::Gate;
use koord_app::Context;
use koord_kube::events::{EventClient, Recorder};
use koord_kube::lease::{Election, ElectionError, LeaderElector};
use koord_kube::{Change, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long decisions are made before events are looked at again.
const SLICE: Duration = Duration::from_millis(5);
/// How often to say which initial lists are missing.
const COMPLAIN_EVERY: Duration = Duration::from_secs(15);
const NODES: &str = "nodes.v1";
const PODS: &str = "pods.v1";
/// How long writes that are under way may take when the leadership is given up.
const WRITES_END: Duration = Duration::from_secs(5);

/// How to run the scheduler.
#[derive(Debug, Clone)]
pub struct Options {
    /// The plugins that exist.
    pub registry: Registry,
    /// A configuration file's content; without it, every koord plugin runs under each of
    /// `profile_names`.
    pub config: Option<Configuration>,
    /// `spec.schedulerName`s that are handled, without a configuration file.
    pub profile_names: Vec<String>,
    /// Whether to wait for leadership.
    pub leader_elect: bool,
    /// What overrides the configuration's `leaderElection`.
    pub election: ElectionFlags,
    /// What was asked for and is not done: said at start.
    pub notes: Vec<String>,
    /// Who contends for leadership; made unique when empty.
    pub identity: String,
    /// What events are sent with, as upstream has it; without it, what all else is sent with.
    pub events: Option<EventClient>,
    /// Bindings and status writes under way at a time.
    pub write_concurrency: usize,
    /// Ties and memory of the engine.
    pub engine: EngineOptions,
    /// Whether annotations ride on the binding, where nothing else has to be patched.
    pub bind_annotations_with_binding: bool,
    /// Whether conditions end with the nearest nodes and what they lack.
    pub nearest_in_conditions: bool,
    /// How often to look for a decision that takes too long, and how long that is.
    pub monitor_period: Duration,
    /// See `monitor_period`.
    pub scheduling_timeout: Duration,
    /// How often gauges are set, and what was only counted is handed to the metrics.
    pub gauge_period: Duration,
    /// Feature gates and the like for plugins.
    pub build: BuildContext,
    /// A window into the running scheduler.
    pub debug: DebugHandle,
}

/// What flags say about the election; each overrides the configuration.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs, reason = "the configuration's fields by their names")]
pub struct ElectionFlags {
    pub resource_name: Option<String>,
    pub resource_namespace: Option<String>,
    pub lease_duration: Option<koord_api::GoDuration>,
    pub renew_deadline: Option<koord_api::GoDuration>,
    pub retry_period: Option<koord_api::GoDuration>,
}

impl ElectionFlags {
    fn apply(&self, section: &mut crate::config::LeaderElection) {
        fn set<T: Clone>(field: &mut T, flag: Option<&T>) {
            if let Some(value) = flag {
                field.clone_from(value);
            }
        }
        set(&mut section.resource_name, self.resource_name.as_ref());
        let namespace = self.resource_namespace.as_ref();
        set(&mut section.resource_namespace, namespace);
        set(&mut section.lease_duration, self.lease_duration.as_ref());
        set(&mut section.renew_deadline, self.renew_deadline.as_ref());
        set(&mut section.retry_period, self.retry_period.as_ref());
    }
}

impl Options {
    /// Upstream's defaults, with the plugins of `registry` under the name `koord-scheduler`.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            config: None,
            profile_names: vec!["koord-scheduler".to_owned()],
            leader_elect: true,
            election: ElectionFlags::default(),
            notes: Vec::new(),
            identity: String::new(),
            events: None,
            write_concurrency: 64,
            engine: EngineOptions::default(),
            bind_annotations_with_binding: false,
            nearest_in_conditions: true,
            monitor_period: Duration::from_secs(10),
            scheduling_timeout: Duration::from_secs(30),
            gauge_period: Duration::from_secs(5),
            build: BuildContext::default(),
            debug: DebugHandle::default(),
        }
    }

    /// The configuration that applies: the file's, or the built-in one.
    fn resolve(&self) -> Result<(Configuration, Profiles), Error> {
        let koord = self.config.is_none();
        let mut config = self
            .config
            .clone()
            .unwrap_or_else(|| Configuration::koord(&self.profile_names));
        self.election.apply(&mut config.leader_election);
        config.validate()?;
        let profiles = Profiles::build(&config, &self.registry, &self.build, koord)?;
        Ok((config, profiles))
    }
}

/// Why the scheduler does not run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The profiles cannot be built.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// An extender's address or files cannot be used.
    #[error("extenders: {0}")]
    Extender(#[from] koord_kube::client::ClientError),
    /// Metrics could not be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// There is no election, or leadership was lost.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// `--write-config-to` has nothing to write.
    #[error("the configuration cannot be written: {0}")]
    Written(String),
    /// A setting of the election.
    #[error("leaderElection.{field}: {value} is negative")]
    Duration {
        /// Which.
        field: &'static str,
        /// Its value.
        value: String,
    },
}

/// Schedules pods until `ctx.shutdown`.
///
/// Nothing is decided before every informer has delivered its initial list and the engine has
/// digested it: what is bound is booked first, also after a restart.
pub fn run(
    options: Options,
    client: Client,
    ctx: Context,
) -> BoxFuture<'static, Result<(), Error>> {
    async move {
        let (config, profiles) = options.resolve()?;
        let metrics = Metrics::register(&ctx.metrics)?;
        Metrics::identify(&ctx.metrics, &options.build.gates)?;
        koord_app::metrics::register_process(&ctx.metrics)?;
        let resets = metrics.resets();
        options.debug.on_reset(move || resets.run());
        let extenders = Extenders::new(&config.extenders).await?;
        let notes = config.notes();
        for warning in options.notes.iter().chain(&notes).chain(&profiles.warnings) {
            tracing::warn!("{warning}");
        }
        let described = describe(&profiles);
        for profile in &described {
            tracing::info!(plugins = %profile, "profile");
        }
        options.debug.set_plugins(described);
        options
            .debug
            .set_config(serde_json::to_value(&config).unwrap_or_default());
        let elector = if options.leader_elect {
            let election = election(&config, &options.identity)?;
            let name = election.name.clone();
            metrics.leads(&name, false);
            let elector = LeaderElector::new(client.clone(), election, ctx.clock.clone())?;
            Some((elector, name))
        } else {
            None
        };
        let daemon = Daemon {
            options,
            config,
            extenders,
            profiles,
            metrics,
            client,
            ctx: ctx.clone(),
        };
        match elector {
            None => daemon.lead(None, ctx.shutdown.clone()).await,
            Some((elector, name)) => {
                let metrics = daemon.metrics.clone();
                let leads = CancellationToken::new();
                let warm = !daemon.config.delay_cache_until_active;
                let warm = warm.then(|| daemon.watch(leads.clone(), ctx.shutdown.child_token()));
                let led = elector.run(ctx.shutdown.clone(), |token| {
                    metrics.leads(&name, true);
                    leads.cancel();
                    daemon.lead(warm, token)
                });
                let led = Box::pin(led).await;
                metrics.leads(&name, false);
                led?;
            }
        }
        Ok(())
    }
    .boxed()
}

fn election(config: &Configuration, identity: &str) -> Result<Election, Error> {
    let section = &config.leader_election;
    let identity = if identity.is_empty() {
        koord_kube::lease::unique_identity()
    } else {
        identity.to_owned()
    };
    let name =
        if section.resource_name == "kube-scheduler" && config.profiles.iter().any(koord_name) {
            // Never contend with a cluster's kube-scheduler by default.
            "koord-scheduler"
        } else {
            &section.resource_name
        };
    let duration = |field, value: koord_api::GoDuration| {
        value.to_std().ok_or_else(|| Error::Duration {
            field,
            value: value.to_string(),
        })
    };
    Ok(Election {
        lease_duration: duration("leaseDuration", section.lease_duration)?,
        renew_deadline: duration("renewDeadline", section.renew_deadline)?,
        retry_period: duration("retryPeriod", section.retry_period)?,
        ..Election::new(section.resource_namespace.clone(), name, identity)
    })
}

fn koord_name(profile: &crate::config::ProfileConfig) -> bool {
    profile.scheduler_name.as_deref() == Some("koord-scheduler")
}

/// The resolved plugins per profile and extension point.
fn describe(profiles: &Profiles) -> Vec<serde_json::Value> {
    let name = |instance: &usize| profiles.instances[*instance].name();
    let list = |instances: &[usize]| instances.iter().map(name).collect::<Vec<_>>();
    let describe = |profile: &crate::framework::Profile| {
        let score: Vec<String> = profile
            .score
            .iter()
            .map(|(instance, weight)| format!("{}={weight}", name(instance)))
            .collect();
        serde_json::json!({
            "schedulerName": profile.name,
            "preEnqueue": list(&profile.pre_enqueue),
            "preFilter": list(&profile.pre_filter),
            "filter": list(&profile.filter),
            "postFilter": list(&profile.post_filter),
            "preScore": list(&profile.pre_score),
            "score": score,
            "reserve": list(&profile.reserve),
            "permit": list(&profile.permit),
            "preBind": list(&profile.pre_bind),
            "bind": list(&profile.bind),
            "postBind": list(&profile.post_bind),
        })
    };
    profiles.profiles.iter().map(describe).collect()
}

struct Daemon {
    options: Options,
    config: Configuration,
    extenders: Extenders,
    profiles: Profiles,
    metrics: Metrics,
    client: Client,
    ctx: Context,
}

impl Daemon {
    fn watch(&self, leads: CancellationToken, shutdown: CancellationToken) -> Watching {
        let gates = &self.options.build.gates;
        watch_all(
            &self.config,
            gates,
            &self.profiles,
            &self.client,
            leads,
            shutdown,
        )
    }

    async fn lead(self, watching: Option<Watching>, shutdown: CancellationToken) {
        let watching = watching.unwrap_or_else(|| {
            let now = CancellationToken::new();
            now.cancel();
            self.watch(now, shutdown.child_token())
        });
        let Self {
            options,
            config,
            extenders,
            profiles,
            metrics,
            client,
            ctx,
        } = self;
        let names: Vec<String> = profiles.profiles.iter().map(|p| p.name.clone()).collect();
        let mut engine = Engine::new(&config, profiles, options.engine);
        let Watching {
            sender,
            messages,
            kinds,
            _stop,
        } = watching;
        let component = names.first().cloned().unwrap_or_default();
        let instance = format!("{component}-{}", koord_kube::lease::host_name());
        let recorder = Recorder::start(
            options
                .events
                .map_or_else(|| client.clone(), |events| events.0),
            &component,
            &instance,
            ctx.clock.clone(),
            shutdown.clone(),
        );
        let limits = monitor::Limits {
            period: options.monitor_period,
            timeout: options.scheduling_timeout,
        };
        let monitor = monitor::Monitor::start(limits, metrics.clone(), shutdown.clone());
        let concurrency = options.write_concurrency;
        let writer = Writer::new(Desk {
            client,
            recorder,
            clock: ctx.clock.clone(),
            gate: Gate::new(concurrency),
            sender,
            metrics: metrics.clone(),
            monitor: monitor.clone(),
            names: names.clone(),
            extenders,
            annotate_bindings: options.bind_annotations_with_binding,
            notes: Notes::default(),
        });
        let gate = writer.gate();
        // This future is dropped when the leadership is lost.
        let _closed = gate.guard();
        let told = monitor.clone();
        engine.observe(Box::new(move |started| told.begin(Attempt::new(started))));
        let plugin_metrics = PluginMetrics::new(&ctx.metrics, metrics.resets());
        let questions = options.debug.attach();
        let debug = options.debug.clone();
        let task = Owner {
            engine,
            writer,
            digested: metrics.digested(),
            metrics,
            plugin_metrics,
            gauge_period: options.gauge_period.max(Duration::from_millis(1)),
            ctx,
            debug,
            names,
            concurrency,
            monitor,
            nearest: options.nearest_in_conditions,
            next_nearest: Instant::now(),
            discard: Discard::default(),
        };
        task.run(messages, questions, kinds, shutdown).await;
        options.debug.set_ready(false);
        gate.close(WRITES_END).await;
    }
}

/// Starts the informers. Until `leads` is cancelled they only gather what there is; with
/// `delayCacheUntilActive` they do not even begin before.
fn watch_all(
    config: &Configuration,
    gates: &BTreeMap<String, bool>,
    profiles: &Profiles,
    client: &Client,
    leads: CancellationToken,
    shutdown: CancellationToken,
) -> Watching {
    let (sender, messages) = mpsc::channel(4096);
    let watches = profiles.watches();
    let node = |change| match change {
        Change::Synced => Message::Synced(NODES),
        change => Message::Node(change),
    };
    let pod = |change| match change {
        Change::Synced => Message::Synced(PODS),
        change => Message::Pod(change),
    };
    let source = Source {
        client: client.clone(),
        sender: sender.clone(),
        leads,
        shutdown: shutdown.clone(),
        whole: !config.extenders.is_empty(),
    };
    // Extenders that do not know the nodes themselves are shown them, and pods, as they are.
    let shown = !config.extenders.is_empty();
    let nodes_shown = config.extenders.iter().any(|it| !it.node_cache_capable);
    let slim = move |mut node| {
        if !nodes_shown {
            watch::trim_node(&mut node);
        }
        node
    };
    watch::forward(source.clone(), slim, false, node);
    let transform = transform::pods(gates);
    let resources = profiles.resources.clone();
    let alike = Alike::default();
    let victims_shown = config.shows_victims();
    let read = move |mut pod| {
        if !shown {
            watch::trim_pod(&mut pod);
        }
        transform(&mut pod);
        if victims_shown {
            SeenPod::whole(pod, &resources)
        } else {
            alike.read(pod, &resources)
        }
    };
    watch::forward(source.clone(), read, false, pod);
    for watch in &watches {
        watch.start(source.clone());
    }
    let kinds = watches.iter().map(Watch::kind);
    Watching {
        sender,
        messages,
        kinds: kinds.chain([NODES, PODS]).collect(),
        _stop: shutdown.drop_guard(),
    }
}

/// Running informers and their one channel.
struct Watching {
    sender: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    kinds: BTreeSet<&'static str>,
    _stop: DropGuard,
}

/// Whether the pod says where it is.
fn is_bound(pod: &SeenPod) -> bool {
    pod.node().is_some()
}

/// The task that owns the engine.
struct Owner {
    engine: Engine,
    writer: Writer,
    metrics: Metrics,
    digested: Digested,
    plugin_metrics: PluginMetrics,
    gauge_period: Duration,
    ctx: Context,
    debug: DebugHandle,
    names: Vec<String>,
    concurrency: usize,
    monitor: monitor::Monitor,
    /// Whether conditions name the nearest nodes, and when that is worth its time again.
    nearest: bool,
    next_nearest: Instant,
    discard: Discard,
}

impl Owner {
    async fn run(
        mut self,
        mut messages: mpsc::Receiver<Message>,
        mut questions: mpsc::Receiver<Question>,
        mut unseen: BTreeSet<&'static str>,
        shutdown: CancellationToken,
    ) {
        let mut complain = Instant::now() + COMPLAIN_EVERY;
        let mut next_gauges = Instant::now();
        loop {
            // Everything that has arrived comes before the next decision.
            let mut budget = 4096;
            while budget > 0
                && let Ok(message) = messages.try_recv()
            {
                if let Message::Synced(kind) = message {
                    unseen.remove(kind);
                }
                self.digest(message);
                budget -= 1;
            }
            while let Ok(question) = questions.try_recv() {
                question.answer(&mut self.engine, self.ctx.clock.now());
            }
            if unseen.is_empty() {
                self.debug.set_ready(true);
            } else if Instant::now() >= complain {
                tracing::warn!(kinds = ?unseen, "waiting for initial lists; no pod is placed before");
                complain = Instant::now() + COMPLAIN_EVERY;
            }
            let busy = unseen.is_empty() && self.decide();
            self.dispatch();
            if Instant::now() >= next_gauges {
                self.measure();
                next_gauges = Instant::now() + self.gauge_period;
            } else if self.engine.has_measured_much() {
                self.metrics
                    .measured(self.engine.take_measures(), &self.names);
            }
            if busy || budget == 0 {
                tokio::task::yield_now().await;
                if shutdown.is_cancelled() {
                    return;
                }
                continue;
            }
            self.discard.hand_over();
            let pause = self.pause().min(next_gauges.duration_since(Instant::now()));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                message = messages.recv() => match message {
                    Some(message) => {
                        if let Message::Synced(kind) = message {
                            unseen.remove(kind);
                        }
                        self.digest(message);
                    }
                    None => return,
                },
                Some(question) = questions.recv() => question.answer(&mut self.engine, self.ctx.clock.now()),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Hands what the engine and its plugins measured to the metrics.
    fn measure(&mut self) {
        self.digested.hand_over();
        self.metrics.binding(self.writer.binding);
        self.metrics.gauges(&mut self.engine);
        self.metrics
            .measured(self.engine.take_measures(), &self.names);
        let now = self.ctx.clock.now();
        self.plugin_metrics.take(self.engine.read(now));
        self.plugin_metrics.take(self.writer.take_timings());
    }

    /// Until time alone makes something ready.
    fn pause(&mut self) -> Duration {
        let now = self.ctx.clock.now();
        let until = self.engine.next_deadline().map(|at| at.duration_since(now));
        let wait = until.and_then(|wait| Duration::try_from(wait).ok());
        // A deadline in the past: not now, but not in a hurry either.
        let floor = Duration::from_millis(1);
        match (until, wait) {
            (None, _) => Duration::from_secs(60),
            (Some(_), Some(wait)) => wait.max(floor),
            (Some(_), None) => floor,
        }
    }

    fn digest(&mut self, message: Message) {
        guarded("over an event; the event is dropped", || {
            self.digest_one(message);
        });
    }

    fn digest_one(&mut self, message: Message) {
        let now = self.ctx.clock.now();
        let started = Instant::now();
        let label = match message {
            Message::Synced(_) => return,
            Message::Pod(Change::Applied { old, new }) => {
                let bound = is_bound(&new);
                let was_bound = old.as_deref().is_some_and(is_bound);
                let uid = new.uid();
                if bound && !was_bound {
                    self.debug.settled(uid);
                }
                self.engine.pod_seen(&new, now);
                let label = match (bound, old.is_some()) {
                    (true, false) => "AssignedPodAdd",
                    (true, true) => "AssignedPodUpdate",
                    (false, false) => "UnschedulablePodAdd",
                    (false, true) => "UnschedulablePodUpdate",
                };
                self.done_with(old);
                label
            }
            Message::Pod(Change::Deleted(last)) => {
                let uid = last.uid();
                self.debug.settled(uid);
                self.writer.gone(uid);
                self.engine.pod_left(uid, now);
                // Whatever became of it, nobody places it any more.
                self.monitor.end(uid);
                let label = if is_bound(&last) {
                    "AssignedPodDelete"
                } else {
                    "UnschedulablePodDelete"
                };
                self.done_with(Some(last));
                label
            }
            Message::Node(Change::Applied { old, new }) => {
                self.engine.node_applied(new, now);
                let label = if old.is_some() {
                    "NodeUpdate"
                } else {
                    "NodeAdd"
                };
                self.done_with(old);
                label
            }
            Message::Node(Change::Deleted(last)) => {
                let name = last.metadata.name.clone().unwrap_or_default();
                self.engine.node_deleted(&name, now);
                self.done_with(Some(last));
                "NodeDelete"
            }
            Message::Pod(Change::Synced) | Message::Node(Change::Synced) => return,
            Message::Object(change) => {
                self.engine.object_changed(&change, now);
                let label = self.engine.name_of(&change);
                let ObjectChange { old, new, .. } = change;
                for object in old.into_iter().chain([new]) {
                    self.discard.take(object);
                }
                label
            }
            Message::Consulted {
                uid,
                ticket,
                advice,
            } => {
                self.engine.consulted(&uid, ticket, advice);
                "Consulted"
            }
            Message::NotEvicted(uid) => {
                self.engine.eviction_failed(&uid);
                "NotEvicted"
            }
            Message::Bound { uid, result } => {
                self.writer.binding = self.writer.binding.saturating_sub(1);
                self.engine.bind_finished(&uid, result, now);
                "Bound"
            }
        };
        self.digested.note(label, started.elapsed().as_secs_f64());
    }

    /// Frees `object`, which was replaced or deleted, elsewhere.
    fn done_with<K: Send + Sync + 'static>(&mut self, object: Option<Arc<K>>) {
        if let Some(object) = object {
            self.discard.take(object);
        }
    }

    /// Decides about ready pods for a while. Returns whether more may be ready.
    fn decide(&mut self) -> bool {
        let slice = Instant::now();
        while slice.elapsed() < SLICE {
            // The API is slower than the engine: keep what is assumed ahead of it bounded.
            if self.writer.binding >= self.concurrency.saturating_mul(16) {
                return false;
            }
            let now = self.ctx.clock.now();
            let started = Instant::now();
            let Some(outcome) = self.engine.schedule_one(now) else {
                return false;
            };
            self.metrics
                .decided(&outcome, started.elapsed().as_secs_f64());
            self.log_scores(&outcome);
            tracing::debug!(pod = %outcome.pod, node = ?outcome.node, "decided");
            self.dispatch();
        }
        true
    }

    /// The nearest nodes, for a condition that is about to change. Looking at all nodes
    /// takes at most a twentieth of the time: in a storm of refusals most go without.
    fn nearest(&mut self, failure: &Failure) -> Vec<Near> {
        let now = Instant::now();
        if !self.nearest || now < self.next_nearest || !self.writer.has_news(failure) {
            return Vec::new();
        }
        let look = || self.engine.nearest(&failure.pod, 3, self.ctx.clock.now());
        let near = guarded("over the nearest nodes", look).unwrap_or_default();
        self.next_nearest = Instant::now() + now.elapsed() * 20;
        near
    }

    fn log_scores(&self, outcome: &Outcome) {
        let top = self.debug.flags().scores.load(Ordering::Relaxed);
        if top > 0
            && let Some(table) = self
                .engine
                .decision(&outcome.pod.uid)
                .and_then(|decision| decision.table.as_ref())
        {
            let ranking = &table.ranking[..top.min(table.ranking.len())];
            tracing::info!(pod = %outcome.pod, feasible = table.feasible, ?ranking, "scores");
        }
    }

    fn log_refusal(&self, failure: &Failure) {
        let flags = self.debug.flags();
        if flags.filters.load(Ordering::Relaxed) {
            tracing::info!(pod = %failure.pod, message = %failure.message, "refused");
        }
        if flags.diagnosis.load(Ordering::Relaxed)
            && let Some(diagnosis) = &failure.diagnosis
        {
            let dump = serde_json::json!({
                "timestamp": self.ctx.clock.now(),
                "questionedKey": failure.pod.to_string(),
                "nominatedNode": diagnosis.nominated,
                "preFilterMessage": diagnosis.pre_filter_message,
                "scheduleDiagnosis": {"schedulingMode": "Pod", "nodeFailedDetails": diagnosis.refusals},
                "preemptionDiagnosis": {"failedMessage": diagnosis.post_filter_message},
            });
            tracing::info!(diagnosis = %dump, "diagnosis");
        }
    }

    fn dispatch(&mut self) {
        for output in self.engine.take_outputs() {
            match output {
                Output::Bind(request) => {
                    self.debug.settled(&request.pod.uid);
                    self.writer.bind(request);
                }
                Output::Consult(asked) => self.writer.consult(asked),
                Output::Failed(failure) => {
                    tracing::debug!(pod = %failure.pod, message = %failure.message, "not placed");
                    let attempt = self.monitor.end(&failure.pod.uid);
                    let profile = failure.pod.scheduler_name();
                    let error = failure.reason != "Unschedulable";
                    self.metrics.failed(error, profile, attempt.as_ref());
                    self.log_refusal(&failure);
                    let nearest = self.nearest(&failure);
                    let (failure, time) = (Arc::new(failure), self.ctx.clock.now());
                    let before = self.debug.failed(failure.clone(), time);
                    self.done_with(before);
                    self.writer.report(Refused {
                        failure,
                        nearest,
                        time,
                    });
                }
                Output::Problem(problem) => self.writer.problem(&problem),
                Output::Write(write) => self.writer.write(write),
                Output::Expect { pod, node } => self.writer.expect(pod, node),
                Output::Explain { pod, message } => self.writer.explain(pod, message),
                Output::Evict {
                    preemptor,
                    node,
                    victims,
                } => {
                    self.metrics.preempted(victims.len());
                    self.writer.evict(preemptor, node, victims);
                }
            }
        }
    }
}
