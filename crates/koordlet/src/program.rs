//! Entry points of koordlet and of the NodeResourceTopology exporter: they parse flags and create the client.

use crate::exporter::{Exporter, FIELD_MANAGER, Metrics, args::Args as ExporterArgs};
use anyhow::{Context as _, Result};
use koord_app::{Context, admin, daemon};
use koord_kube::client::{Connection, RestMetrics};
use koord_kube::events::Recorder;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

/// Returns the command line of `koordlet`.
#[must_use]
pub fn command() -> clap::Command {
    koord_app::flags::command::<crate::Args>()
}

/// Runs koordlet. The first element of `argv` is the program's name.
#[must_use]
pub fn run(argv: Vec<OsString>) -> ExitCode {
    // A node pays for this process once per node: one heap, and one thread next to the loop's own.
    koord_host::memory::one_heap();
    daemon::start_on(
        daemon::one_thread,
        argv,
        |args: crate::Args, context| async move {
            let options = args.options()?;
            let connection = Connection {
                kubeconfig: non_empty_path(&args.kubeconfig),
                server: "",
                qps: args.kube_api_qps,
                burst: args.kube_api_burst,
                name: "koordlet",
            };
            let measured = RestMetrics::register(&context.metrics)?;
            let client = connection.open(Some(measured)).await?;
            crate::run(options, client, context)
                .await
                .map_err(Into::into)
        },
    )
}

/// Returns the command line of `koord-topology-exporter`.
#[must_use]
pub fn exporter_command() -> clap::Command {
    koord_app::flags::command::<ExporterArgs>()
}

/// Runs the exporter of NodeResourceTopology. The first element of `argv` is the program's name.
#[must_use]
pub fn run_exporter(argv: Vec<OsString>) -> ExitCode {
    koord_host::memory::one_heap();
    daemon::start_on(daemon::one_thread, argv, export)
}

/// Runs the standalone exporter, once or until shutdown.
async fn export(args: ExporterArgs, context: Context) -> Result<()> {
    let (settings, root) = args.settings()?;
    let connection = Connection {
        kubeconfig: non_empty_path(&args.kubeconfig),
        server: "",
        qps: 20.0,
        burst: 30,
        name: FIELD_MANAGER,
    };
    koord_app::metrics::register_process(&context.metrics)?;
    let measured = RestMetrics::register(&context.metrics)?;
    let client = connection.open(Some(measured)).await?;
    let (clock, stop) = (context.clock.clone(), context.shutdown.clone());
    let node = settings.node.clone();
    let recorder = Recorder::start(client.clone(), FIELD_MANAGER, &node, clock, stop);
    let metrics = Metrics::new(&context.metrics).context("metrics")?;
    let exporter = Exporter::new(settings, root, client, recorder, metrics);
    if args.oneshot {
        let published = exporter.once().await?;
        tracing::info!(node, ?published, "published once");
        return Ok(());
    }
    if args.port != 0 {
        let address = SocketAddr::from(([0, 0, 0, 0], args.port));
        let admin = admin::Admin::new(context.metrics.clone());
        let admin = admin.ready_when("published", exporter.health());
        let stop = context.shutdown.clone();
        admin
            .serve(address, daemon::exposure(address), stop)
            .await?;
    }
    exporter.run(context.shutdown).await;
    Ok(())
}

/// Returns the path of a flag whose empty value means that it is not set.
fn non_empty_path(path: &str) -> Option<&Path> {
    Some(Path::new(path)).filter(|path| !path.as_os_str().is_empty())
}
