//! `koord dashboard`: serves the dashboard on this machine for a browser, which has no credentials of a cluster.

use crate::cluster_args::ClusterArgs;
use crate::{http_get, running};
use anyhow::{Result, bail};
use koord_app::admin::{Admin, Exposure};
use koord_app::daemon::runtime;
use koord_app::local::RouteServer;
use koord_app::{Context, console, shutdown};
use koord_kube::tls::install_crypto_provider;
use koord_manager::dashboard;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use tokio::sync::mpsc;

const KUBECONFIG_HELP: &str = "Kubeconfig of the cluster [default: the `koord up` cluster of this machine, else \
                               KUBECONFIG, else ~/.kube/config]";

/// Arguments of `koord dashboard`.
#[derive(Debug, Clone, clap::Args)]
#[command(mut_arg("kubeconfig", |it| it.help(KUBECONFIG_HELP)))]
pub struct Args {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Port on 127.0.0.1; 0 selects a free one.
    #[arg(long, default_value_t = 8009)]
    pub port: u16,
    /// Do not open a browser.
    #[arg(long)]
    pub no_open: bool,
}

/// Serves until Ctrl-C.
///
/// # Errors
/// The port is in use, or there is no cluster.
pub(crate) fn main(args: &Args) -> Result<()> {
    runtime()?.block_on(run(args))
}

async fn run(args: &Args) -> Result<()> {
    install_crypto_provider();
    let ctx = Context::new();
    shutdown::on_signals(ctx.shutdown.clone())?;
    let local = !args.cluster.is_named();
    if let Some(manager) = running::manager().filter(|_| local) {
        let routes = dashboard::forwarded_routes(move |path| {
            Box::pin(async move {
                let server = manager.to_string();
                let answer = http_get::get(&server, "the manager", &path).await;
                answer.map_err(|error| format!("{error:#}\n"))
            })
        });
        let admin = Admin::new(ctx.metrics.clone()).with_routes(routes);
        serve(args, &admin, &ctx, "the cluster of koord up").await?;
        ctx.shutdown.cancelled().await;
        return Ok(());
    }
    let client = args.cluster.connect().await?;
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let server = RouteServer::new(move |routes| {
        // The receiver is gone only if the program ends.
        let _ = sender.send(routes);
    });
    let running = tokio::spawn(dashboard::run(client, server, ctx.clone()));
    let Some(routes) = receiver.recv().await else {
        running.await??;
        bail!("the dashboard ended before it started");
    };
    let admin = Admin::new(ctx.metrics.clone()).with_routes(routes);
    serve(args, &admin, &ctx, "the cluster of the kubeconfig").await?;
    Ok(running.await??)
}

/// Serves `admin` on the port of the flags, and shows how to open it.
async fn serve(args: &Args, admin: &Admin, ctx: &Context, cluster: &str) -> Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let stop = ctx.shutdown.clone();
    let address = admin.serve(address, Exposure::Loopback, stop).await?;
    let url = format!("http://{address}/dashboard/");
    console::print_line(format_args!("Dashboard of {cluster}: {url}"));
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"]
        .into_iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    if args.no_open || !has_display || !open(&url) {
        console::print_line(hint(address.port()));
    }
    console::print_line("Ctrl-C stops it. Other users of this machine can open it, too.");
    Ok(())
}

/// Returns how to open the page from another machine.
fn hint(port: u16) -> String {
    format!(
        "To open it in a browser on another machine, run there: ssh -L {port}:127.0.0.1:{port} HOST"
    )
}

/// Opens `url` in a browser; returns false if there is none.
fn open(url: &str) -> bool {
    Command::new("xdg-open")
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_keeps_the_port() {
        // The server refuses requests for another host and port than its own.
        assert!(hint(8009).contains("ssh -L 8009:127.0.0.1:8009"));
    }
}
