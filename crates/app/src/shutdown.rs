//! Converts termination signals to a [`CancellationToken`].

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancels `shutdown` on the first SIGINT or SIGTERM and ends the process on the second. Must be
/// called inside a tokio runtime.
///
/// # Errors
///
/// When the handlers cannot be installed.
pub fn on_signals(shutdown: CancellationToken) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        let name = next(&mut interrupt, &mut terminate).await;
        tracing::info!(signal = name, "stopping; a second signal stops at once");
        shutdown.cancel();
        let name = next(&mut interrupt, &mut terminate).await;
        tracing::warn!(signal = name, "stopping at once");
        std::process::exit(130);
    });
    Ok(())
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> &'static str {
    tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    }
}
