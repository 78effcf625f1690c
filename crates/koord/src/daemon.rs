//! The components as daemons of their own, against any cluster, with upstream's flags.

use crate::cluster::{install_crypto_provider, runtime};
use crate::placement::Targets;
use anyhow::{Context as _, Result};
use koord_app::Context;
use koord_app::flags::{self, FlagError, Parsed};
use koord_kube::client::{ClientOptions, RestMetrics, from_kubeconfig};
use koord_kube::events::EventClient;
use koord_kube::events::Recorder;
use std::ffi::OsString;
use std::future::Future;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use tokio::runtime::Runtime;

/// Writes a file that holds secrets: a new one is for this user only.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

/// Runs koord-scheduler. The first element of `argv` is the program's name.
#[must_use]
pub fn scheduler(argv: Vec<OsString>) -> ExitCode {
    start(argv, |args: koord_scheduler::Args, context| async move {
        let mut options = args.options(koord_plugins::registry())?;
        if let Some(path) = args
            .write_config_to
            .as_deref()
            .filter(|path| *path != Path::new(""))
        {
            let shown = path.display();
            write_private(path, &options.written()?)
                .with_context(|| format!("--write-config-to: {shown}"))?;
            tracing::info!(file = %shown, "wrote the configuration");
            return Ok(());
        }
        let (qps, burst) = args.client_limits(&options);
        let measured = RestMetrics::register(&context.metrics)?;
        let reset = measured.clone();
        options.debug.on_reset(move || reset.reset());
        let path = args.client_kubeconfig(&options);
        let connect = |measured| {
            let path = path.as_deref();
            koord_client(path, &args.master, qps, burst, "koord-scheduler", measured)
        };
        options.events = Some(EventClient(connect(Some(measured.clone())).await?));
        let client = connect(Some(measured)).await?;
        let admin = koord_app::admin::Admin::new(context.metrics.clone())
            .with_routes(options.debug.router());
        let parse = |flag: &str, address: &str| {
            address
                .parse::<IpAddr>()
                .with_context(|| format!("--{flag}: {address:?} is not an IP address"))
        };
        if args.port != 0 {
            let address = SocketAddr::new(parse("address", &args.address)?, args.port);
            admin
                .serve(address, exposure(address), context.shutdown.clone())
                .await?;
        }
        if args.secure_port != 0 {
            let address = parse("bind-address", &args.bind_address)?;
            let address = SocketAddr::new(address, args.secure_port);
            let stop = context.shutdown.clone();
            crate::secure::serve(&args, admin.router(), address, stop).await?;
        }
        koord_scheduler::run(options, client, context)
            .await
            .map_err(Into::into)
    })
}

/// Runs koord-descheduler.
#[must_use]
pub fn descheduler(argv: Vec<OsString>) -> ExitCode {
    start(argv, |args: koord_descheduler::Args, context| async move {
        use koord_descheduler::daemon;
        let settled = args.settle()?;
        let completed = koord_descheduler::registry::Registry::in_tree()
            .complete(settled.config)
            .map_err(|error| in_file(&args, error))?;
        for note in settled.notes.iter().chain(&completed.notes) {
            tracing::warn!("{note}");
        }
        let config = completed.config.clone();
        let mut framework = completed.build().map_err(|error| in_file(&args, error))?;
        framework.without_claims = settled.gates.enabled("DisablePVCReservation");
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
        let connection = &config.client_connection;
        let (qps, burst) = (connection.qps, u32::try_from(connection.burst)?);
        let path = args.client_kubeconfig(&config);
        let connect = |measured| {
            let path = path.as_deref();
            koord_client(path, "", qps, burst, "koord-descheduler", measured)
        };
        options.events = Some(EventClient(connect(Some(measured.clone())).await?));
        let client = connect(Some(measured)).await?;
        if args.find_targets && framework.has_strategies() {
            let config = args.scheduler_config.as_deref().map(scheduler_config);
            let targets = Targets::follow(config.transpose()?, &client, &context)?;
            framework.placement = Some(Box::new(targets));
        }
        let last = options.last.clone();
        let admin = koord_app::admin::Admin::new(context.metrics.clone())
            .ready_when("cluster", move || last.readiness())
            .with_routes(options.last.routes(&config));
        let mut plain = vec![("healthzBindAddress", &config.healthz_bind_address)];
        if config.metrics_bind_address != config.healthz_bind_address {
            plain.push(("metricsBindAddress", &config.metrics_bind_address));
        }
        for (field, address) in plain {
            let address = resolved(address).await.with_context(|| field)?;
            if address.port() != 0 {
                let stop = context.shutdown.clone();
                admin.serve(address, exposure(address), stop).await?;
            }
        }
        if let Some(address) = args.secure_address()? {
            let stop = context.shutdown.clone();
            crate::secure::serve(&args, admin.router(), address, stop).await?;
        }
        daemon::run(options, framework, client, context)
            .await
            .map_err(Into::into)
    })
}

/// An error of the descheduler's configuration, with its file if there is one.
fn in_file(
    args: &koord_descheduler::Args,
    error: koord_descheduler::config::ConfigError,
) -> anyhow::Error {
    let error = anyhow::Error::new(error);
    match &args.config {
        Some(path) => error.context(format!("--config: {}", path.display())),
        None => error,
    }
}

/// Reads the file of `--scheduler-config`.
fn scheduler_config(path: &Path) -> Result<koord_scheduler::config::Configuration> {
    let flag = || format!("--scheduler-config: {}", path.display());
    let text = std::fs::read_to_string(path).with_context(flag)?;
    koord_scheduler::config::Configuration::parse(&text).with_context(flag)
}

/// The first address that `address` (`host:port`) stands for.
async fn resolved(address: &str) -> Result<SocketAddr> {
    let mut found = tokio::net::lookup_host(address)
        .await
        .with_context(|| format!("{address:?} cannot be resolved"))?;
    found
        .next()
        .with_context(|| format!("{address:?} stands for no address"))
}

/// Runs koord-manager.
#[must_use]
pub fn manager(argv: Vec<OsString>) -> ExitCode {
    start(argv, |args: koord_manager::Args, context| async move {
        let options = args.options()?;
        install_crypto_provider();
        let client =
            from_kubeconfig(args.kubeconfig(), &args.client_options(&context.metrics)?).await?;
        koord_manager::run(options, client, context)
            .await
            .map_err(Into::into)
    })
}

/// Runs koordlet.
#[must_use]
pub fn koordlet(argv: Vec<OsString>) -> ExitCode {
    // A node pays for this process once per node: one heap, and one thread beside the loop's own.
    koord_host::memory::one_heap();
    start_on(
        one_thread,
        argv,
        |args: koordlet::Args, context| async move {
            let options = args.options()?;
            let path =
                Some(Path::new(&args.kubeconfig)).filter(|path| !path.as_os_str().is_empty());
            let client = koord_client(
                path,
                "",
                args.kube_api_qps,
                args.kube_api_burst,
                "koordlet",
                None,
            )
            .await?;
            koordlet::run(options, client, context)
                .await
                .map_err(Into::into)
        },
    )
}

/// Runs the exporter of NodeResourceTopology.
#[must_use]
pub fn topology_exporter(argv: Vec<OsString>) -> ExitCode {
    koord_host::memory::one_heap();
    start_on(
        one_thread,
        argv,
        |args: koordlet::exporter::args::Args, context| async move {
            use koordlet::exporter::{Exporter, FIELD_MANAGER, Metrics};
            let (settings, root) = args.settings()?;
            let path =
                Some(Path::new(&args.kubeconfig)).filter(|path| !path.as_os_str().is_empty());
            let client = koord_client(path, "", 20.0, 30, FIELD_MANAGER, None).await?;
            let (clock, stop) = (context.clock.clone(), context.shutdown.clone());
            let node = settings.node.clone();
            let recorder = Recorder::start(client.clone(), FIELD_MANAGER, &node, clock, stop);
            let metrics = Metrics::new(&context.metrics).context("metrics")?;
            let exporter = Exporter::new(settings, root, client, recorder, metrics);
            if args.oneshot {
                let published = exporter.once().await?;
                tracing::info!(node, ?published, "looked once");
                return Ok(());
            }
            if args.port != 0 {
                let address = SocketAddr::from(([0, 0, 0, 0], args.port));
                let admin = koord_app::admin::Admin::new(context.metrics.clone());
                let admin = admin.ready_when("published", exporter.health());
                let stop = context.shutdown.clone();
                admin.serve(address, exposure(address), stop).await?;
            }
            exporter.run(context.shutdown).await;
            Ok(())
        },
    )
}

/// Runs koord-runtime-proxy.
#[must_use]
pub fn runtime_proxy(argv: Vec<OsString>) -> ExitCode {
    start_on(
        one_thread,
        argv,
        |args: koord_runtime_proxy::Args, context| async move {
            let options = args.options()?;
            Ok(koord_runtime_proxy::run(options, context, || {}).await?)
        },
    )
}

/// What a node's own daemons run on. A call is a handful of steps of different tasks: on several threads
/// most of its time would go into waking them.
pub(crate) fn one_thread() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("tokio runtime")
}

async fn koord_client(
    kubeconfig: Option<&Path>,
    server: &str,
    qps: f64,
    burst: u32,
    name: &str,
    metrics: Option<RestMetrics>,
) -> Result<koord_kube::Client> {
    install_crypto_provider();
    let options = ClientOptions {
        qps,
        burst,
        user_agent: name.to_owned(),
        server: Some(server.to_owned()).filter(|server| !server.is_empty()),
        context: None,
        metrics,
    };
    Ok(from_kubeconfig(kubeconfig, &options).await?)
}

/// Upstream serves health and metrics in plain HTTP on the pod network by default; so do we when
/// the flag names such an address.
fn exposure(address: SocketAddr) -> koord_app::admin::Exposure {
    if address.ip().is_loopback() {
        koord_app::admin::Exposure::Loopback
    } else {
        koord_app::admin::Exposure::Anyone
    }
}

/// Parses, sets up logging and signals, and runs until told to stop. Exit code 2 for bad flags, 1
/// for a failure.
fn start<A, F>(argv: Vec<OsString>, run: impl FnOnce(A, Context) -> F) -> ExitCode
where
    A: clap::Parser,
    F: Future<Output = Result<()>>,
{
    start_on(runtime, argv, run)
}

fn start_on<A, F>(
    runtime: impl FnOnce() -> Result<Runtime>,
    argv: Vec<OsString>,
    run: impl FnOnce(A, Context) -> F,
) -> ExitCode
where
    A: clap::Parser,
    F: Future<Output = Result<()>>,
{
    let Parsed { args, logging } = match flags::parse::<A>(argv) {
        Ok(parsed) => parsed,
        Err(FlagError::Clap(error)) => error.exit(),
        Err(error) => {
            crate::console::warn(error);
            return ExitCode::from(2);
        }
    };
    let outcome = (|| {
        koord_app::logging::init(&logging)?;
        runtime()?.block_on(async {
            let context = Context::new();
            koord_app::shutdown::on_signals(context.shutdown.clone()).context("signal handlers")?;
            Box::pin(run(args, context)).await
        })
    })();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::console::warn(crate::console::chain(&error));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_written_configuration_is_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        for text in ["longer", "short"] {
            write_private(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }
}
