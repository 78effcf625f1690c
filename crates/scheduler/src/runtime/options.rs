//! How to run the scheduler, and why it does not run.

use crate::config::{ConfigError, Configuration};
use crate::debug::DebugHandle;
use crate::engine::EngineOptions;
use crate::framework::{BuildContext, ProfileError, Profiles, Registry};
use koord_kube::events::EventClient;
use koord_kube::lease::{ElectionArgs, ElectionError};
use std::time::Duration;

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
    pub election: ElectionArgs,
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

impl Options {
    /// Upstream's defaults, with the plugins of `registry` under the name `koord-scheduler`.
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
            monitor_period: Duration::from_secs(10),
            scheduling_timeout: Duration::from_secs(30),
            gauge_period: Duration::from_secs(5),
            build: BuildContext::default(),
            debug: DebugHandle::default(),
        }
    }

    /// The configuration that applies: the file's, or the built-in one.
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
}
