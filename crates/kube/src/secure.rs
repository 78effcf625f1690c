//! A daemon's second server: what the plain one shows, over TLS, to those who may see it.

mod material;
#[cfg(test)]
mod tests;

use crate::client::{ClientOptions, from_kubeconfig, from_pod};
use crate::guard::{AuthArgs, Guard};
use crate::tls;
use anyhow::{Context as _, Result};
use axum::Router;
use material::{Authorities, Source};
use rustls::ServerConfig;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often certificates are looked at anew.
const RELOAD: Duration = Duration::from_secs(60);

/// The flags of a daemon's TLS server, except for its address.
#[derive(Debug, Clone, clap::Args)]
pub struct SecureServingArgs {
    /// Its certificate; one is made at start without it.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// The certificate's private key.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Which callers are allowed.
    #[command(flatten)]
    pub auth: AuthArgs,
}

/// Serves `routes` on `address` until `shutdown`, as `args` say; `name` is the daemon's. Returns the address really
/// used.
///
/// # Errors
/// A file or kubeconfig cannot be used, or the address is not free.
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
    let authentication = delegate(name, flag, auth.authentication_kubeconfig.as_deref()).await?;
    let flag = "authorization-kubeconfig";
    let authorization = delegate(name, flag, auth.authorization_kubeconfig.as_deref()).await?;
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
    let mut source = Source::new(files, authorities)?;
    let config = source.first().await?;
    let guard = Guard::new(&auth.guard(), authentication, authorization)?;
    let routes = guard.protect(routes);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("--secure-port: cannot listen on {address}"))?;
    let local = listener.local_addr()?;
    let (sender, configs) = watch::channel(config);
    let stop = shutdown.clone();
    tokio::spawn(async move {
        stop.run_until_cancelled(keep_fresh(source, sender)).await;
    });
    tokio::spawn(tls::serve(listener, routes, configs, shutdown, tls::LIMITS));
    Ok(local)
}

/// A client for questions about callers: of the kubeconfig that the flag names, or of this pod.
async fn delegate(name: &str, flag: &str, path: Option<&Path>) -> Result<Option<crate::Client>> {
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
        tracing::warn!(%error, "--{flag} is not given, and the pod's own account is unusable");
        None
    }))
}

/// Takes up certificates that were renewed.
async fn keep_fresh(mut source: Source, configs: watch::Sender<Arc<ServerConfig>>) {
    loop {
        tokio::time::sleep(RELOAD).await;
        match source.renewed().await {
            Ok(Some(config)) => {
                tracing::info!("certificates of the TLS server were renewed");
                configs.send_replace(config);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "the TLS server keeps its certificates");
            }
        }
    }
}
