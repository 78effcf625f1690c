//! The TLS server of a daemon: serves the content of the plain HTTP server to authorized clients.

mod material;
#[cfg(test)]
mod tests;

use crate::client::{ClientOptions, from_kubeconfig, from_pod};
use crate::guard::{AuthArgs, Guard};
use crate::tls;
use anyhow::{Context as _, Result};
use axum::Router;
use material::{Authorities, CertificateSource};
use rustls::ServerConfig;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Interval at which certificates are read again.
const RELOAD: Duration = Duration::from_secs(60);

/// The flags of a daemon's TLS server, except for its address.
#[derive(Debug, Clone, clap::Args)]
pub struct SecureServingArgs {
    /// Certificate of the TLS server. Default: one that is generated at start.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of the certificate of the TLS server.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Flags for authentication and authorization.
    #[command(flatten)]
    pub auth: AuthArgs,
}

/// Serves `routes` on `address` with the settings in `args` until `shutdown`; `name` is that of the daemon.
/// Returns the address that is in use.
///
/// # Errors
/// Fails if a file or kubeconfig cannot be used, or the address is in use.
pub async fn serve(
    name: &str,
    args: &SecureServingArgs,
    routes: Router,
    address: SocketAddr,
    shutdown: CancellationToken,
) -> Result<SocketAddr> {
    tls::install_crypto_provider();
    let auth = &args.auth;
    let flag = "authentication-kubeconfig";
    let authentication =
        create_client(name, flag, auth.authentication_kubeconfig.as_deref()).await?;
    let flag = "authorization-kubeconfig";
    let authorization = create_client(name, flag, auth.authorization_kubeconfig.as_deref()).await?;
    let authorities = match (&auth.client_ca_file, &authentication) {
        (Some(path), _) => Authorities::File(path.clone()),
        (None, Some(client)) if !auth.authentication_skip_lookup => Authorities::Cluster {
            client: client.clone(),
            tolerant: auth.authentication_tolerate_lookup_failure,
        },
        _ => Authorities::None,
    };
    let files = match (&args.tls_cert_file, &args.tls_private_key_file) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (None, None) => None,
        _ => anyhow::bail!("--tls-cert-file and --tls-private-key-file need each other"),
    };
    let mut source = CertificateSource::new(files, authorities)?;
    let config = source.initial_config().await?;
    let guard = Guard::new(&auth.guard(), authentication, authorization)?;
    let routes = guard.protect(routes);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--secure-port: cannot listen on {address}"))?;
    let local = listener.local_addr()?;
    let (sender, configs) = watch::channel(config);
    let stop = shutdown.clone();
    tokio::spawn(async move {
        stop.run_until_cancelled(reload_on_change(source, sender))
            .await;
    });
    tokio::spawn(tls::serve(listener, routes, configs, shutdown, tls::LIMITS));
    Ok(local)
}

/// Creates the client for authentication or authorization: from the kubeconfig of the flag, or from this
/// pod's account.
async fn create_client(
    name: &str,
    flag: &str,
    path: Option<&Path>,
) -> Result<Option<crate::Client>> {
    let options = ClientOptions {
        qps: 200.0,
        burst: 400,
        user_agent: name.to_owned(),
        ..ClientOptions::default()
    };
    if let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) {
        let client = from_kubeconfig(Some(path), &options).await;
        return client.map(Some).with_context(|| format!("--{flag}"));
    }
    Ok(from_pod(&options).unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to use the pod's own account, and --{flag} is not given");
        None
    }))
}

/// Reloads the certificates when they change.
async fn reload_on_change(
    mut source: CertificateSource,
    configs: watch::Sender<Arc<ServerConfig>>,
) {
    loop {
        tokio::time::sleep(RELOAD).await;
        match source.reload().await {
            Ok(Some(config)) => {
                tracing::info!("reloaded certificates of the TLS server");
                configs.send_replace(config);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "failed to reload certificates of the TLS server, keeping the previous ones");
            }
        }
    }
}
