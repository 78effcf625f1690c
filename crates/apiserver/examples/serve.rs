//! The API server by itself, in memory and without controllers, as client libraries' own tests start
//! a kube-apiserver: `serve DIR` writes DIR/kubeconfig and serves until SIGINT or SIGTERM.

use koord_apiserver::{ApiServer, Config};
use koord_app::Clock;
use koord_app::flags::Selection;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: serve DIR")?;
    let mut config = Config::memory(Clock::system());
    config.bind = "127.0.0.1:0".parse()?;
    config.controllers = Selection::none();
    let server = ApiServer::open(config).await?;
    let listener = server.listen().await?;
    server.write_kubeconfig(&PathBuf::from(dir).join("kubeconfig"))?;
    let stop = CancellationToken::new();
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    tokio::spawn({
        let stop = stop.clone();
        async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            stop.cancel();
        }
    });
    server.serve(listener, stop).await?;
    server.close().await;
    Ok(())
}
