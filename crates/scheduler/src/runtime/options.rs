//! Options of the scheduler, and the errors that keep it from running.

use crate::config::{ConfigError, Configuration};
use crate::debug::DebugHandle;
use crate::engine::EngineOptions;
use crate::framework::{BuildContext, ProfileError, Profiles, Registry};
use koord_kube::events::EventClient;
use koord_kube::lease::{ElectionArgs, ElectionError};
use std::time::Duration;

/// Options of the scheduler.
#[derive(Debug, Clone)]
pub struct Options {
    /// The available plugins.
    pub registry: Registry,
    /// The configuration; without it, every Koordinator plugin runs under each of `profile_names`.
    pub config: Option<Configuration>,
    /// The `spec.schedulerName`s to handle if there is no configuration.
    pub profile_names: Vec<String>,
    /// True if the scheduler waits for leadership before it schedules.
    pub leader_elect: bool,
    /// Overrides of the configuration's `leaderElection`.
    pub election: ElectionArgs,
    /// Warnings about requested settings that have no effect; logged at start.
    pub notes: Vec<String>,
    /// The identity for leader election; a unique one is generated if empty.
    pub identity: String,
    /// A separate client for events, as in upstream; `None` to use the common client.
    pub events: Option<EventClient>,
    /// The maximum number of pending bindings and status writes.
    pub write_concurrency: usize,
    /// Seed and cache limits of the engine.
    pub engine: EngineOptions,
    /// True if annotations are sent with the binding if nothing else has to be patched.
    pub bind_annotations_with_binding: bool,
    /// True if conditions end with the nearest nodes and what they lack.
    pub nearest_in_conditions: bool,
    /// Runs in shadow mode: nothing is written, and decisions are compared with those of the cluster's scheduler,
    /// which has this time to bind a pod. `None` schedules.
    pub shadow: Option<Duration>,
    /// The interval of the check for scheduling attempts that take too long.
    pub monitor_period: Duration,
    /// The time after which a scheduling attempt takes too long.
    pub scheduling_timeout: Duration,
    /// The interval at which gauges are set and buffered counts are added to the metrics.
    pub gauge_period: Duration,
    /// The context in which plugins are built, with feature gates.
    pub build: BuildContext,
    /// A handle to the state of the running scheduler.
    pub debug: DebugHandle,
}

impl Options {
    /// Returns upstream's defaults, with the plugins of `registry` under the name `koord-scheduler`.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            config: None,
            profile_names: vec!["koord-scheduler".to_owned()],
            leader_elect: true,
            election: ElectionArgs::default(),
            notes: Vec::new(),
            identity: String::new(),
            events: None,
            write_concurrency: 64,
            engine: EngineOptions::default(),
            bind_annotations_with_binding: false,
            nearest_in_conditions: true,
            shadow: None,
            monitor_period: Duration::from_secs(10),
            scheduling_timeout: Duration::from_secs(30),
            gauge_period: Duration::from_secs(5),
            build: BuildContext::default(),
            debug: DebugHandle::default(),
        }
    }

    /// Returns these options without leader election, for a scheduler that writes nothing.
    pub(super) fn without_writes(mut self) -> Self {
        self.leader_elect = false;
        self
    }

    /// Returns the effective configuration, from the file or built in, and its profiles.
    pub(super) fn resolve(&self) -> Result<(Configuration, Profiles), Error> {
        let koord = self.config.is_none();
        let mut config = self
            .config
            .clone()
            .unwrap_or_else(|| Configuration::koord(&self.profile_names));
        self.election.apply(&mut config.leader_election);
        config.leader_election.leader_elect = self.leader_elect;
        config.validate()?;
        let profiles = Profiles::build(&config, &self.registry, &self.build, koord)?;
        Ok((config, profiles))
    }
}

/// Errors that keep the scheduler from running, or that stopped it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The profiles cannot be built.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// An extender's address or files are invalid.
    #[error("extenders: {0}")]
    Extender(#[from] koord_kube::client::ClientError),
    /// Metrics could not be registered.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// Leader election failed to start, or leadership was lost.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The configuration for `--write-config-to` could not be serialized.
    #[error("failed to serialize the configuration: {0}")]
    Written(String),
}
