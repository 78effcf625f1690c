//! The scheduler daemon. One task owns the engine; all events reach it through one ordered channel.

mod condition;
mod config_dump;
mod decode;
mod deferred_drop;
mod evict;
mod extender;
mod follower;
mod gate;
mod monitor;
mod nearest;
mod options;
mod owner;
mod placement;
mod send;
mod shadow;
mod takeover;
mod transform;
mod watch;
mod writer;
mod writer_context;

pub use follower::Follower;
pub use options::{Error, Options};
#[cfg(test)]
pub(crate) use watch::trim_pod;
pub use watch::trim_pod_spec;

use crate::config::Configuration;
use crate::engine::Engine;
use crate::framework::{Message, Profiles, Source, Watch};
use crate::metrics::{Attempt, Metrics, PluginMetrics, ShadowMetrics};
use crate::state::{ParsedPod, PodInterner};
use decode::DecodedPod;
use deferred_drop::DeferredDrop;
use extender::Extenders;
use futures::FutureExt;
use futures::future::BoxFuture;
use gate::Gate;
use koord_app::Context;
use koord_kube::client::read_only;
use koord_kube::events::Recorder;
use koord_kube::lease::{Election, LeaderElector};
use koord_kube::{Change, Client};
use owner::Owner;
use shadow::Shadow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use writer::Writer;
use writer_context::{WriterContext, WriterState};

const NODES: &str = "nodes.v1";
const PODS: &str = "pods.v1";
/// The timeout for pending writes when the leadership is given up.
const WRITES_END: Duration = Duration::from_secs(5);
/// The timeout for sending their events after that.
const EVENTS_END: Duration = Duration::from_secs(2);

/// Schedules pods until `ctx.shutdown`.
///
/// No decision is made before every informer has delivered its initial list and the engine has handled it:
/// existing bindings are accounted for first, also after a restart.
pub fn run(
    options: Options,
    client: Client,
    ctx: Context,
) -> BoxFuture<'static, Result<(), Error>> {
    async move {
        let (options, client) = match options.shadow {
            Some(_) => (options.without_writes(), read_only(client)),
            None => (options, client),
        };
        let (config, profiles) = options.resolve()?;
        let metrics = Metrics::register(&ctx.metrics)?;
        Metrics::identify(&ctx.metrics, &options.build.gates)?;
        koord_app::metrics::register_process(&ctx.metrics)?;
        let shadow_metrics = match options.shadow {
            Some(_) => Some(ShadowMetrics::new(&ctx.metrics, metrics.resets())?),
            None => None,
        };
        let resets = metrics.resets();
        options.debug.on_reset(move || resets.run());
        let extenders = Extenders::new(&config.extenders).await?;
        let notes = config.notes();
        for warning in options.notes.iter().chain(&notes).chain(&profiles.warnings) {
            tracing::warn!(%warning, "ignoring a setting");
        }
        let described = describe(&profiles);
        for profile in &described {
            tracing::info!(plugins = %profile, "profile loaded");
        }
        options.debug.set_plugins(described);
        options
            .debug
            .set_config(serde_json::to_value(&config).unwrap_or_default());
        let elector = if options.leader_elect {
            let election = election(&config, &options.identity);
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
            shadow_metrics,
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

fn election(config: &Configuration, identity: &str) -> Election {
    let identity = if identity.is_empty() {
        koord_kube::lease::unique_identity()
    } else {
        identity.to_owned()
    };
    let mut election = Election::from_config(&config.leader_election, identity);
    if election.name == "kube-scheduler" && config.profiles.iter().any(koord_name) {
        // Never contend with a cluster's kube-scheduler by default.
        "koord-scheduler".clone_into(&mut election.name);
    }
    election
}

fn koord_name(profile: &crate::config::ProfileConfig) -> bool {
    profile.scheduler_name.as_deref() == Some("koord-scheduler")
}

/// Returns the resolved plugins per profile and extension point.
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
    shadow_metrics: Option<ShadowMetrics>,
    client: Client,
    ctx: Context,
}

impl Daemon {
    fn watch(&self, leads: CancellationToken, shutdown: CancellationToken) -> InformerSet {
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

    /// Schedules pods until `shutdown`, with the informers of a standby if there are any.
    async fn lead(self, watching: Option<InformerSet>, shutdown: CancellationToken) {
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
            shadow_metrics,
            client,
            ctx,
        } = self;
        let names: Vec<String> = profiles.profiles.iter().map(|p| p.name.clone()).collect();
        let mut engine = Engine::new(&config, profiles, options.engine);
        let InformerSet {
            sender,
            messages,
            kinds,
            _stop,
        } = watching;
        let component = names.first().cloned().unwrap_or_default();
        let instance = format!("{component}-{}", koord_kube::lease::host_name());
        let recorder = match options.shadow {
            Some(_) => Recorder::silent(),
            None => Recorder::start(
                options
                    .events
                    .map_or_else(|| client.clone(), |events| events.0),
                &component,
                &instance,
                ctx.clock.clone(),
                shutdown.clone(),
            ),
        };
        let limits = monitor::Limits {
            period: options.monitor_period,
            timeout: options.scheduling_timeout,
        };
        let monitor = monitor::Monitor::start(limits, metrics.clone(), shutdown.clone());
        let concurrency = options.write_concurrency;
        let writer = Writer::new(WriterContext {
            client,
            recorder: recorder.clone(),
            clock: ctx.clock.clone(),
            gate: Gate::new(concurrency),
            sender,
            metrics: metrics.clone(),
            monitor: monitor.clone(),
            names: names.clone(),
            extenders,
            annotate_bindings: options.bind_annotations_with_binding,
            state: WriterState::default(),
        });
        let gate = writer.gate();
        // This future is dropped when the leadership is lost.
        let _closed = gate.guard();
        let attempts = monitor.clone();
        engine.telemetry.observe(Box::new(move |started| {
            attempts.begin(Attempt::new(started))
        }));
        let plugin_metrics = PluginMetrics::new(&ctx.metrics, metrics.resets());
        let shadow = options.shadow.zip(shadow_metrics);
        let shadow = shadow.map(|(patience, counts)| {
            tracing::info!(
                ?patience,
                "shadow mode: decisions are compared, nothing is written"
            );
            Shadow::new(patience, counts, options.debug.clone(), monitor.clone())
        });
        let questions = options.debug.attach();
        let debug = options.debug.clone();
        let task = Owner {
            engine,
            writer,
            event_histograms: metrics.event_histograms(),
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
            deferred_drop: DeferredDrop::default(),
            shadow,
        };
        task.run(messages, questions, kinds, shutdown).await;
        options.debug.set_ready(false);
        gate.close(WRITES_END).await;
        // Events report writes, so they end after them.
        let _ = tokio::time::timeout(EVENTS_END, recorder.finished()).await;
    }
}

/// Starts the informers. Until `leads` is cancelled they only collect objects; with `delayCacheUntilActive`
/// they do not start before.
fn watch_all(
    config: &Configuration,
    gates: &BTreeMap<String, bool>,
    profiles: &Profiles,
    client: &Client,
    leads: CancellationToken,
    shutdown: CancellationToken,
) -> InformerSet {
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
    // Extenders without a node cache are sent untrimmed nodes and pods.
    let shown = !config.extenders.is_empty();
    let nodes_shown = config.extenders.iter().any(|it| !it.node_cache_capable);
    let trim = move |mut node| {
        if !nodes_shown {
            watch::trim_node(&mut node);
        }
        node
    };
    watch::forward(source.clone(), trim, false, node);
    let transform = transform::pods(gates);
    let resources = profiles.resources.clone();
    let interner = PodInterner::default();
    let victims_shown = config.shows_victims();
    let read = move |DecodedPod(mut pod)| {
        if !shown {
            watch::trim_pod(&mut pod);
        }
        transform(&mut pod);
        if victims_shown {
            ParsedPod::untrimmed(pod, &resources)
        } else {
            interner.read(pod, &resources)
        }
    };
    watch::forward(source.clone(), read, false, pod);
    for watch in &watches {
        watch.start(source.clone());
    }
    let kinds = watches.iter().map(Watch::kind);
    InformerSet {
        sender,
        messages,
        kinds: kinds.chain([NODES, PODS]).collect(),
        _stop: shutdown.drop_guard(),
    }
}

/// Running informers with their channel.
struct InformerSet {
    sender: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    kinds: BTreeSet<&'static str>,
    _stop: DropGuard,
}
