//! The scheduler's second server: what the plain one shows, over TLS, to those who may see it.

mod material;
#[cfg(test)]
mod tests;

use anyhow::{Context as _, Result};
use axum::extract::Request;
use axum::middleware::map_request;
use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use koord_kube::client::{ClientOptions, from_kubeconfig, from_pod};
use koord_kube::guard::{Guard, GuardOptions, Peer};
use koord_scheduler::Args;
use material::{Authorities, Source};
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::future::ready;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// What clients may take of this server, who need not be anybody to connect to it.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// At a time; for one more, the oldest has to go. Thus nobody who merely holds connections
    /// keeps a probe out.
    clients: usize,
    /// To agree on TLS.
    handshake: Duration,
    /// To send the head of a request.
    head: Duration,
    /// Between two requests over HTTP/2.
    idle: Duration,
    /// To take the last answers, after that.
    grace: Duration,
}

const LIMITS: Limits = Limits {
    clients: 256,
    handshake: Duration::from_secs(10),
    head: Duration::from_secs(30),
    idle: Duration::from_secs(180),
    grace: Duration::from_secs(10),
};
/// Before another attempt to accept, when there is for example no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);
/// How often certificates are looked at anew.
const RELOAD: Duration = Duration::from_secs(60);

/// Serves `routes` on `address` until `shutdown`, as the flags in `args` say. Returns the address
/// really used.
///
/// # Errors
/// A file or kubeconfig cannot be used, or the address is not free.
pub(crate) async fn serve(
    args: &Args,
    routes: Router,
    address: SocketAddr,
    shutdown: CancellationToken,
) -> Result<SocketAddr> {
    crate::cluster::install_crypto_provider();
    let auth = &args.auth;
    let flag = "authentication-kubeconfig";
    let authentication = delegate(flag, auth.authentication_kubeconfig.as_deref()).await?;
    let flag = "authorization-kubeconfig";
    let authorization = delegate(flag, auth.authorization_kubeconfig.as_deref()).await?;
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
    let options = GuardOptions {
        always_allow_paths: auth.authorization_always_allow_paths.clone(),
        token_ttl: auth.authentication_token_webhook_cache_ttl,
        authorized_ttl: auth.authorization_webhook_cache_authorized_ttl,
        unauthorized_ttl: auth.authorization_webhook_cache_unauthorized_ttl,
    };
    let guard = Guard::new(&options, authentication, authorization)?;
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
    tokio::spawn(accept(listener, routes, configs, shutdown, LIMITS));
    Ok(local)
}

/// A client for questions about callers: of the kubeconfig that the flag names, or of this pod.
async fn delegate(flag: &str, path: Option<&Path>) -> Result<Option<koord_kube::Client>> {
    let options = ClientOptions {
        qps: 200.0,
        burst: 400,
        user_agent: "koord-scheduler".to_owned(),
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

async fn accept(
    listener: TcpListener,
    routes: Router,
    configs: watch::Receiver<Arc<ServerConfig>>,
    shutdown: CancellationToken,
    limits: Limits,
) {
    let mut clients: VecDeque<AbortHandle> = VecDeque::new();
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a TLS client was not accepted");
                shutdown
                    .run_until_cancelled(tokio::time::sleep(PAUSE))
                    .await;
                continue;
            }
        };
        if clients.len() >= limits.clients {
            clients.retain(|client| !client.is_finished());
        }
        if clients.len() >= limits.clients
            && let Some(oldest) = clients.pop_front()
        {
            oldest.abort();
        }
        let acceptor = TlsAcceptor::from(configs.borrow().clone());
        let routes = routes.clone();
        let stop = shutdown.clone();
        let client = tokio::spawn(async move {
            stop.run_until_cancelled(talk(stream, acceptor, routes, limits))
                .await;
        });
        clients.push_back(client.abort_handle());
    }
}

async fn talk(stream: TcpStream, acceptor: TlsAcceptor, routes: Router, limits: Limits) {
    let stream = match tokio::time::timeout(limits.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake");
            return;
        }
        Err(_) => return,
    };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let peer = Peer::of(certificate.map(|certificate| certificate.as_ref()));
    let begun = Arc::new(Notify::new());
    let begins = begun.clone();
    let routes = routes
        .layer(Extension(peer))
        .layer(map_request(move |request: Request| {
            begins.notify_one();
            ready(request)
        }));
    // The version is agreed upon: waiting for bytes that tell it would be under no time limit.
    let builder = Builder::new(TokioExecutor::new());
    let mut builder = if session.alpn_protocol() == Some(b"h2") {
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.head)
        .keep_alive_timeout(limits.head);
    let service = TowerToHyperService::new(routes);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut patience = limits.head;
    // A client that answers pings may be idle all the same.
    let ended = loop {
        tokio::select! {
            ended = served.as_mut() => break Some(ended),
            () = begun.notified() => patience = limits.idle,
            () = tokio::time::sleep(patience) => break None,
        }
    };
    let ended = match ended {
        Some(ended) => Some(ended),
        None => {
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(limits.grace, served).await.ok()
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, "TLS client");
    }
}
