//! The program `koord-descheduler`: flags, clients and servers around [`daemon::run`].

use crate::config::ConfigError;
use crate::framework::Placement;
use crate::registry::Registry;
use crate::{Args, daemon};
use anyhow::{Context as _, Result};
use koord_app::daemon::{exposure, start, write_private};
use koord_app::{Context, admin};
use koord_kube::Client;
use koord_kube::client::{Connection, RestMetrics};
use koord_kube::events::EventClient;
use koord_kube::secure;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

/// Builds the [`Placement`] for `--find-targets` from the file of `--scheduler-config`, if one is given.
pub type PlacementMaker =
    fn(config: Option<&Path>, &Client, &Context) -> Result<Box<dyn Placement>>;

/// Returns the command line of `koord-descheduler`.
#[must_use]
pub fn command() -> clap::Command {
    koord_app::flags::command::<Args>()
}

/// Runs koord-descheduler with the placement that `place` builds. The first element of `argv` is the
/// program's name.
#[must_use]
pub fn run(argv: Vec<OsString>, place: PlacementMaker) -> ExitCode {
    start(argv, |args, context| serve(args, place, context))
}

/// Starts the descheduler and its servers, and runs it until shutdown.
async fn serve(args: Args, place: PlacementMaker, context: Context) -> Result<()> {
    let resolved = args.resolve()?;
    let completed = Registry::in_tree()
        .complete(resolved.config)
        .map_err(|error| with_config_path(&args, error))?;
    for note in resolved.notes.iter().chain(&completed.notes) {
        tracing::warn!("{note}");
    }
    let config = completed.config.clone();
    let mut framework = completed
        .build()
        .map_err(|error| with_config_path(&args, error))?;
    framework.without_claims = resolved.gates.enabled("DisablePVCReservation");
    if let Some(path) = args
        .write_config_to
        .as_deref()
        .filter(|path| *path != Path::new(""))
    {
        let shown = path.display();
        write_private(path, &config.written()?)
            .with_context(|| format!("--write-config-to: {shown}"))?;
        tracing::info!(file = %shown, "wrote the configuration");
        return Ok(());
    }
    let mut options = daemon::Options::new(&config);
    let measured = RestMetrics::register(&context.metrics)?;
    let reset = measured.clone();
    options.last.on_reset(move || reset.reset());
    let path = args.client_kubeconfig(&config);
    let connection = Connection {
        kubeconfig: path.as_deref(),
        server: "",
        qps: config.client_connection.qps,
        burst: u32::try_from(config.client_connection.burst)?,
        name: "koord-descheduler",
    };
    options.events = Some(EventClient(connection.open(Some(measured.clone())).await?));
    let client = connection.open(Some(measured)).await?;
    if args.find_targets && framework.has_strategies() {
        let placement = place(args.scheduler_config.as_deref(), &client, &context)?;
        framework.placement = Some(placement);
    }
    let last = options.last.clone();
    let admin = admin::Admin::new(context.metrics.clone())
        .ready_when("cluster", move || last.readiness())
        .with_routes(options.last.routes(&config));
    let mut plain = vec![("healthzBindAddress", &config.healthz_bind_address)];
    if config.metrics_bind_address != config.healthz_bind_address {
        plain.push(("metricsBindAddress", &config.metrics_bind_address));
    }
    for (field, address) in plain {
        let address = resolve_address(address).await.with_context(|| field)?;
        if address.port() != 0 {
            let stop = context.shutdown.clone();
            admin.serve(address, exposure(address), stop).await?;
        }
    }
    if let Some(address) = args.secure_address()? {
        let (routes, stop) = (admin.router(), context.shutdown.clone());
        secure::serve("koord-descheduler", &args.secure, routes, address, stop).await?;
    }
    daemon::run(options, framework, client, context)
        .await
        .map_err(Into::into)
}

/// Converts `error` and adds the configuration file's path if there is one.
fn with_config_path(args: &Args, error: ConfigError) -> anyhow::Error {
    let error = anyhow::Error::new(error);
    match &args.config {
        Some(path) => error.context(format!("--config: {}", path.display())),
        None => error,
    }
}

/// Resolves `address` (`host:port`) and returns the first result.
async fn resolve_address(address: &str) -> Result<SocketAddr> {
    let mut addresses = tokio::net::lookup_host(address)
        .await
        .with_context(|| format!("failed to resolve {address:?}"))?;
    addresses
        .next()
        .with_context(|| format!("{address:?} resolves to no address"))
}
