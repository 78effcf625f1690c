//! The program `koord-manager`: flags and client around [`run`](crate::run).

use crate::Args;
use koord_app::local::RouteServer;
use koord_app::{Context, daemon};
use koord_kube::client::from_kubeconfig;
use koord_kube::secure;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;

/// Returns the command line of `koord-manager`.
#[must_use]
pub fn command() -> clap::Command {
    koord_app::flags::command::<Args>()
}

/// Runs koord-manager. The first element of `argv` is the program's name.
#[must_use]
pub fn run(argv: Vec<OsString>) -> ExitCode {
    daemon::start(argv, |args: Args, context| async move {
        let mut options = args.options()?;
        options.secure_server = secure_server(&args, &context);
        koord_kube::tls::install_crypto_provider();
        let client =
            from_kubeconfig(args.kubeconfig(), &args.client_options(&context.metrics)?).await?;
        crate::run(options, client, context)
            .await
            .map_err(Into::into)
    })
}

/// Returns the TLS server of the flags; `None` without a port. If it fails to start, the program stops.
fn secure_server(args: &Args, context: &Context) -> Option<RouteServer> {
    let address = SocketAddr::new(args.bind_address, args.secure_port);
    let (flags, stop) = (args.secure.clone(), context.shutdown.clone());
    (args.secure_port != 0).then(|| {
        RouteServer::new(move |routes| {
            let (flags, stop) = (flags.clone(), stop.clone());
            tokio::spawn(async move {
                let served = secure::serve("koord-manager", &flags, routes, address, stop.clone());
                if let Err(error) = served.await {
                    tracing::error!(error = %format!("{error:#}"), "failed to start the TLS server");
                    stop.cancel();
                }
            });
        })
    })
}
