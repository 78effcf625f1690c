//! The engine without an API server: the cost of a decision.
//!
//! The objects are those that informers would deliver, bindings succeed at once and are confirmed at once.
//! The JSON has the fields of upstream's performance results, and more.

mod api;
mod objects;
mod openb;
mod scenario;
mod storage;
mod stream;
mod workload;

pub use api::{ApiObjects, api_objects, api_report};
pub use objects::NAMESPACE;
pub use scenario::{Scenario, UnknownScenario};

use crate::meter::{cpu_time, rss_mib};
use jiff::{SignedDuration, Timestamp};
use koord_api::scheduling::Reservation;
use koord_scheduler::config::{Configuration, PluginArgs};
use koord_scheduler::engine::{BindRequest, Engine, EngineOptions, Output};
use koord_scheduler::framework::{
    BindPlan, BuildContext, ObjectChange, ProfileError, Profiles, Registry, Verb, Write,
};
use koord_scheduler::state::{PodInfo, PodInterner};
use koord_workload::statistics::time_percentile;
use rustc_hash::FxHashMap;
use scenario::{Fixture, Step};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stream::Exporters;

/// Time limit of the baseline's measurement.
const BASELINE_LIMIT: Duration = Duration::from_secs(5);

/// Settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Cluster and pods.
    pub scenario: Scenario,
    /// Nodes.
    pub nodes: usize,
    /// Pods to be placed.
    pub pods: usize,
    /// Pods that are on the nodes before.
    pub bound: usize,
    /// True if each bound pod has unique fields, so that the scheduler shares none of their values.
    pub distinct: bool,
    /// The profile with all Koordinator plugins, rather than kube-scheduler's.
    pub koord: bool,
    /// True if the exhaustive engine is measured, too.
    pub baseline: bool,
}

/// The figures of a run; the first block has the names of upstream's results.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "names and units say it")]
pub struct EngineFigures {
    pub name: String,
    #[serde(rename = "runID")]
    pub run_id: String,
    pub timestamp: String,
    pub koordinator_version: String,
    pub node_count: usize,
    pub pod_count: usize,
    pub throughput_pods_per_sec: f64,
    pub api_creation_duration_sec: f64,
    pub total_duration_sec: f64,
    #[serde(rename = "latencyP50Sec")]
    pub latency_p50_sec: f64,
    #[serde(rename = "latencyP90Sec")]
    pub latency_p90_sec: f64,
    #[serde(rename = "latencyP99Sec")]
    pub latency_p99_sec: f64,
    pub threshold_breached: bool,
    pub timed_out: bool,
    pub scheduling_failure_count: usize,
    pub scheduling_failure_rate: f64,
    #[serde(
        rename = "gangCompletionP50Sec",
        skip_serializing_if = "Option::is_none"
    )]
    pub gang_completion_p50_sec: Option<f64>,
    #[serde(
        rename = "gangCompletionP99Sec",
        skip_serializing_if = "Option::is_none"
    )]
    pub gang_completion_p99_sec: Option<f64>,

    /// `engine` or `api`.
    pub path: String,
    /// `plain` or `koord`.
    pub profile: String,
    pub cpus: usize,
    pub pods_bound_before: usize,
    /// Scheduling cycles, including those that rejected the pod or preempted others.
    pub attempts: usize,
    /// Cached results that the pod's own check of the chosen node rejected: 0, or a plugin's signature is
    /// incomplete.
    pub mismatches: u64,
    pub cpu_seconds_per_1000_pods: f64,
    pub rss_mib: f64,
    /// The engine that evaluates every node for every pod, in the same process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    /// The scenario without the updates that come meanwhile, in the same process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
}

/// The scenario without the updates that come while pods do: run before it and after it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "names and units say it")]
pub struct Control {
    /// The mean of both.
    pub throughput_pods_per_sec: f64,
    /// Throughput lost to the updates, in percent of the throughput without them.
    pub cost_percent: f64,
    /// Time of informers to parse the updates, in percent of the engine's time, which does not include it:
    /// informers have threads of their own.
    pub reading_percent: f64,
    /// Decisions in the run less those without updates: needless retries that updates caused.
    pub more_attempts: i64,
}

/// The exhaustive engine on the same scenario.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "names and units say it")]
pub struct Baseline {
    pub throughput_pods_per_sec: f64,
    /// Number of pods that were placed: fewer than in the run if that takes too long.
    pub placed: usize,
    pub sampled: bool,
    /// Throughput of the run divided by this one.
    pub speedup: f64,
}

/// Runs a scenario.
///
/// # Errors
/// The registry's plugins cannot be built with their defaults.
pub fn run(registry: &Registry, options: &Options) -> Result<EngineFigures, ProfileError> {
    let Options {
        scenario,
        nodes,
        pods,
        ..
    } = *options;
    let building = Instant::now();
    let fixture = Fixture::from_options(options);
    let creation = building.elapsed().as_secs_f64();
    let still = || Fixture::from_options(options).without_updates();
    let still = (scenario == Scenario::NrtStream).then(still);
    let first = still
        .as_ref()
        .map(|still| control(registry, options, still));
    let first = first.transpose()?;
    let mut run = EngineRun::new(registry, options.koord, true, &fixture)?;
    let before = cpu_time();
    run.run_steps(&fixture, None);
    let cpu = cpu_time().saturating_sub(before).as_secs_f64();
    let rss = rss_mib();
    let placed = run.placed.len();
    let failed = pods.saturating_sub(run.arrived_and_placed());
    let throughput = rate(placed, run.busy);
    let of = |values: &mut [Duration], percent| time_percentile(values, percent).as_secs_f64();
    let mut gangs = std::mem::take(&mut run.gangs);
    let is_gang = scenario == Scenario::Gang && !gangs.is_empty();
    let mut report = EngineFigures {
        name: scenario.name().to_owned(),
        run_id: format!("{}-{nodes}n-{pods}p", scenario.name()),
        timestamp: Timestamp::now().to_string(),
        koordinator_version: concat!("koord-", env!("CARGO_PKG_VERSION")).to_owned(),
        node_count: nodes,
        pod_count: pods,
        throughput_pods_per_sec: throughput,
        api_creation_duration_sec: creation,
        total_duration_sec: run.busy.as_secs_f64(),
        latency_p50_sec: of(&mut run.latencies, 50),
        latency_p90_sec: of(&mut run.latencies, 90),
        latency_p99_sec: of(&mut run.latencies, 99),
        timed_out: run.gave_up,
        scheduling_failure_count: failed,
        scheduling_failure_rate: ratio(failed, pods),
        gang_completion_p50_sec: is_gang.then(|| of(&mut gangs, 50)),
        gang_completion_p99_sec: is_gang.then(|| of(&mut gangs, 99)),
        path: "engine".to_owned(),
        profile: if options.koord { "koord" } else { "plain" }.to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        pods_bound_before: options.bound,
        attempts: run.attempts,
        mismatches: run.engine.classes().mismatches(),
        cpu_seconds_per_1000_pods: 1000.0 * cpu / as_f64(placed.max(1)),
        rss_mib: rss,
        ..EngineFigures::default()
    };
    let reading = run.exporters.as_ref().map(|it| it.reading);
    let reading = reading.unwrap_or_default().as_secs_f64() / run.busy.as_secs_f64().max(1e-9);
    drop(run);
    if let (Some(still), Some((before, attempts))) = (&still, first) {
        let (after, _) = control(registry, options, still)?;
        let mean = f64::midpoint(before, after);
        let count = |attempts: usize| i64::try_from(attempts).unwrap_or(i64::MAX);
        report.control = Some(Control {
            throughput_pods_per_sec: mean,
            cost_percent: 100.0 * (1.0 - throughput / mean.max(1e-9)),
            reading_percent: 100.0 * reading,
            more_attempts: count(report.attempts) - count(attempts),
        });
    }
    if options.baseline {
        let mut run = EngineRun::new(registry, options.koord, false, &fixture)?;
        let sampled = run.run_steps(&fixture, Some(BASELINE_LIMIT));
        let slow = rate(run.placed.len(), run.busy);
        report.baseline = Some(Baseline {
            throughput_pods_per_sec: slow,
            placed: run.placed.len(),
            sampled,
            speedup: throughput / slow.max(1e-9),
        });
    }
    Ok(report)
}

/// Measures throughput and attempts without updates.
fn control(
    registry: &Registry,
    options: &Options,
    still: &Fixture,
) -> Result<(f64, usize), ProfileError> {
    let mut run = EngineRun::new(registry, options.koord, true, still)?;
    run.run_steps(still, None);
    Ok((rate(run.placed.len(), run.busy), run.attempts))
}

/// An engine with the cluster of a fixture, and its measurements.
struct EngineRun {
    engine: Engine,
    now: Timestamp,
    /// Time spent in the engine.
    busy: Duration,
    /// Arrival times of pods, by `busy`.
    arrived: FxHashMap<Arc<str>, Duration>,
    latencies: Vec<Duration>,
    gangs: Vec<Duration>,
    /// The nodes' numbers.
    numbers: FxHashMap<String, usize>,
    reservations: FxHashMap<String, Reservation>,
    exporters: Option<Exporters>,
    /// Uids, in order.
    placed: Vec<Arc<str>>,
    alike: PodInterner,
    attempts: usize,
    gave_up: bool,
}

impl EngineRun {
    /// Builds the engine, and adds the objects, nodes and bound pods of the fixture.
    fn new(
        registry: &Registry,
        koord: bool,
        cached: bool,
        fixture: &Fixture,
    ) -> Result<Self, ProfileError> {
        let mut config = Configuration::koord(&["koord-scheduler".to_owned()]);
        if let (Some((plugin, args)), Some(profile)) = (&fixture.extra, config.profiles.first_mut())
        {
            let enabled = json!({"multiPoint": {"enabled": [{"name": plugin, "weight": 1}]}});
            profile.plugins = serde_json::from_value(enabled).unwrap_or_default();
            let args = json!([{"name": plugin, "args": args}]);
            let args: Vec<PluginArgs> = serde_json::from_value(args).unwrap_or_default();
            profile.plugin_config.extend(args);
        }
        let profiles = Profiles::build(&config, registry, &BuildContext::default(), koord)?;
        let mut engine = Engine::new(&config, profiles, EngineOptions::default());
        engine.set_caching(cached);
        let now = objects::epoch();
        for node in &fixture.nodes {
            engine.node_applied(node.clone(), now);
        }
        let mut exporters = fixture.exporters.then(Exporters::default);
        if let Some(exporters) = &mut exporters {
            fixture.bound().for_each(|pod| exporters.add_pod(&pod));
        }
        for object in &fixture.objects {
            let object = match &mut exporters {
                Some(exporters) => {
                    exporters.report(object, |change| engine.plugins().as_delivered(change))
                }
                None => engine.plugins().as_delivered(object.clone()),
            };
            engine.object_changed(&object, now);
        }
        if let Some(exporters) = &mut exporters {
            exporters.reading = Duration::ZERO;
        }
        let alike = PodInterner::default();
        for mut pod in fixture.bound() {
            if exporters.is_some() {
                stream::set_running(&mut pod);
            }
            let pod = alike.read(pod, engine.cluster().resources());
            engine.apply_parsed_pod(&pod, now);
        }
        let mut run = Self {
            engine,
            now,
            busy: Duration::ZERO,
            arrived: FxHashMap::default(),
            latencies: Vec::new(),
            gangs: Vec::new(),
            numbers: fixture.numbers(),
            reservations: FxHashMap::default(),
            exporters,
            placed: Vec::new(),
            alike,
            attempts: 0,
            gave_up: false,
        };
        // Handles the engine's requests before any pod comes, such as pods that represent reservations.
        run.run_until_idle();
        run.busy = Duration::ZERO;
        run.attempts = 0;
        Ok(run)
    }

    /// Applies all steps; returns true if it stopped early.
    fn run_steps(&mut self, fixture: &Fixture, limit: Option<Duration>) -> bool {
        let most = 20 * fixture.steps.len() + 100_000;
        for step in &fixture.steps {
            if limit.is_some_and(|limit| self.busy > limit) {
                return true;
            }
            if self.attempts > most {
                self.gave_up = true;
                return true;
            }
            self.apply_step(step);
        }
        false
    }

    /// Applies one event of the scenario, and lets the engine handle it.
    fn apply_step(&mut self, step: &Step) {
        let micros = SignedDuration::from_micros(100);
        self.now = self.now.saturating_add(micros).unwrap_or(self.now);
        let now = self.now;
        match step {
            Step::Pods(pods) => {
                let before = self.busy;
                for pod in pods {
                    if let Some(uid) = pod.metadata.uid.as_deref() {
                        self.arrived.insert(uid.into(), self.busy);
                    }
                    self.timed(|engine| engine.pod_applied(pod.clone(), now));
                }
                self.run_until_idle();
                if pods.len() > 1 {
                    self.gangs.push(self.busy.saturating_sub(before));
                }
                return;
            }
            Step::Node(node) => self.timed(|engine| engine.node_applied(node.clone(), now)),
            Step::NodeGone(name) => self.timed(|engine| engine.node_deleted(name, now)),
            Step::Leaves(pod) => self.timed(|engine| engine.pod_deleted(pod, now)),
            Step::Object(change) => self.apply_object(change),
            Step::PodGone(number) => {
                if let Some(uid) = self.placed.get(*number).cloned() {
                    self.timed(|engine| engine.pod_left(&uid, now));
                }
            }
        }
        self.run_until_idle();
    }

    /// Runs `work` and adds its time to the time spent in the engine.
    fn timed<T>(&mut self, work: impl FnOnce(&mut Engine) -> T) -> T {
        let started = Instant::now();
        let out = work(&mut self.engine);
        self.busy += started.elapsed();
        out
    }

    /// Decides until no pod is ready, and handles the engine's requests.
    fn run_until_idle(&mut self) {
        let now = self.now;
        let mut idle = 0;
        while idle < 2 {
            let decided = self.timed(|engine| engine.schedule_one(now)).is_some();
            self.attempts += usize::from(decided);
            let outputs = self.timed(Engine::take_outputs);
            idle = if decided || !outputs.is_empty() {
                0
            } else {
                idle + 1
            };
            for output in outputs {
                match output {
                    Output::Bind(request) => self.confirm_binding(&request),
                    Output::Evict { victims, .. } => self.evict(&victims),
                    Output::Write(write) => self.apply_write(&write),
                    _ => {}
                }
            }
            if self.attempts > 10_000_000 {
                return;
            }
        }
    }

    /// Passes a change of an object to the engine.
    fn apply_object(&mut self, change: &ObjectChange) {
        if let Some(reservation) = change.new_as::<Reservation>() {
            let name = reservation.metadata.name.clone().unwrap_or_default();
            self.reservations.insert(name, reservation.clone());
        }
        let now = self.now;
        // Informers do this, so it does not count as the engine's time.
        let change = match &mut self.exporters {
            Some(exporters) => {
                exporters.report(change, |change| self.engine.plugins().as_delivered(change))
            }
            None => self.engine.plugins().as_delivered(change.clone()),
        };
        self.timed(|engine| engine.object_changed(&change, now));
    }

    /// Passes the changes that follow a write to the engine.
    fn apply_write(&mut self, write: &Write) {
        for change in storage::provision(write, &self.numbers) {
            self.apply_object(&change);
        }
        if let ("reservations", Verb::PatchStatus(patch) | Verb::Patch(patch)) =
            (write.plural, &write.verb)
            && let Some(old) = self.reservations.get(&write.name)
        {
            let change = objects::patched_reservation(old, patch);
            self.apply_object(&change);
        }
    }

    /// Confirms a binding, and returns the bound pod to the engine like an informer.
    fn confirm_binding(&mut self, request: &BindRequest) {
        let (now, uid) = (self.now, request.pod.uid.clone());
        if let Some(at) = self.arrived.remove(&uid) {
            self.latencies.push(self.busy.saturating_sub(at));
        }
        self.timed(|engine| engine.bind_finished(&uid, Ok(()), now));
        if let BindPlan::Writes(writes) = &request.plan {
            for write in writes {
                self.apply_write(write);
            }
        }
        if !matches!(request.plan, BindPlan::Binding) || request.pod.is_holder() {
            return;
        }
        let mut pod = objects::bound(&request.pod.object.pod, &request.node);
        let extend = |into: &mut Option<BTreeMap<String, String>>, more: &BTreeMap<_, _>| {
            if !more.is_empty() {
                into.get_or_insert_default().extend(more.clone());
            }
        };
        extend(&mut pod.metadata.annotations, &request.patch.annotations);
        extend(&mut pod.metadata.labels, &request.patch.labels);
        if let Some(exporters) = &mut self.exporters {
            stream::set_running(&mut pod);
            exporters.add_pod(&pod);
        }
        self.placed.push(uid);
        // Parsed like in the daemon's informers.
        let pod = self.alike.read(pod, self.engine.cluster().resources());
        self.timed(|engine| engine.apply_parsed_pod(&pod, now));
    }

    fn evict(&mut self, victims: &[Arc<PodInfo>]) {
        let now = self.now;
        for victim in victims {
            self.timed(|engine| engine.pod_left(&victim.uid, now));
        }
    }

    /// Returns the number of arrived pods that were placed.
    fn arrived_and_placed(&self) -> usize {
        self.latencies.len()
    }
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn as_f64(number: usize) -> f64 {
    number as f64
}

fn rate(count: usize, time: Duration) -> f64 {
    as_f64(count) / time.as_secs_f64().max(1e-9)
}

fn ratio(part: usize, whole: usize) -> f64 {
    as_f64(part) / as_f64(whole.max(1))
}
