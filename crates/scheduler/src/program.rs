//! The program `koord-scheduler`: flags, clients and servers around [`run`](crate::run).

use crate::Args;
use crate::framework::Registry;
use anyhow::{Context as _, Result};
use koord_app::{Context, admin, daemon};
use koord_kube::client::{Connection, RestMetrics};
use koord_kube::events::EventClient;
use koord_kube::secure;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;

/// Returns the command line of `koord-scheduler`.
#[must_use]
pub fn command() -> clap::Command {
    koord_app::flags::command::<Args>()
}

/// Runs koord-scheduler with the plugins of `registry`. The first element of `argv` is the program's name.
#[must_use]
pub fn run(argv: Vec<OsString>, registry: fn() -> Registry) -> ExitCode {
    daemon::start(argv, |args, context| serve(args, registry(), context))
}

/// Starts the scheduler and its servers, and runs it until shutdown.
async fn serve(args: Args, registry: Registry, context: Context) -> Result<()> {
    let mut options = args.options(registry)?;
    if let Some(path) = args
        .write_config_to
        .as_deref()
        .filter(|path| *path != Path::new(""))
    {
        let shown = path.display();
        daemon::write_private(path, &options.written()?)
            .with_context(|| format!("--write-config-to: {shown}"))?;
        tracing::info!(file = %shown, "wrote the configuration");
        return Ok(());
    }
    let (qps, burst) = args.client_limits(&options);
    let measured = RestMetrics::register(&context.metrics)?;
    let reset = measured.clone();
    options.debug.on_reset(move || reset.reset());
    let path = args.client_kubeconfig(&options);
    let connection = Connection {
        kubeconfig: path.as_deref(),
        server: &args.master,
        qps,
        burst,
        name: "koord-scheduler",
    };
    options.events = Some(EventClient(connection.open(Some(measured.clone())).await?));
    let client = connection.open(Some(measured)).await?;
    let admin = admin::Admin::new(context.metrics.clone()).with_routes(options.debug.router());
    let parse = |flag: &str, address: &str| {
        address
            .parse::<IpAddr>()
            .with_context(|| format!("--{flag}: {address:?} is not an IP address"))
    };
    if args.port != 0 {
        let address = SocketAddr::new(parse("address", &args.address)?, args.port);
        let stop = context.shutdown.clone();
        admin
            .serve(address, daemon::exposure(address), stop)
            .await?;
    }
    if args.secure_port != 0 {
        let address = parse("bind-address", &args.bind_address)?;
        let address = SocketAddr::new(address, args.secure_port);
        let (routes, stop) = (admin.router(), context.shutdown.clone());
        secure::serve("koord-scheduler", &args.secure, routes, address, stop).await?;
    }
    crate::run(options, client, context)
        .await
        .map_err(Into::into)
}
