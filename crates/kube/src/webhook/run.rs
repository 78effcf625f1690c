//! A whole webhook server: certificates, TLS and configurations.

use super::configuration::{ConflictDetector, Injector};
use super::{Page, Webhook, serve};
use crate::certs::{Artifacts, CertManager, CertsError};
use crate::informer::{Change, Informer, Scope};
use crate::tls;
use futures::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use koord_app::Clock;
use prometheus::IntGaugeVec;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Interval at which certificates and configurations are checked without a change.
const RESYNC: Duration = Duration::from_secs(60);
/// Minimum time between two syncs after a change, so that replicas with different settings do not trigger
/// each other in a tight loop.
const SETTLE: Duration = Duration::from_secs(2);
/// First delay after a failure; doubled each time, up to `RESYNC`.
const RETRY: Duration = Duration::from_secs(1);

/// Whether API servers can reach the webhooks; `Err` has the reason why they cannot yet.
pub type Readiness = watch::Receiver<Result<(), String>>;

/// Settings of a webhook server.
#[derive(Debug)]
pub struct Server {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Storage of the certificates.
    pub keeper: CertManager,
    /// Writer of the webhook configurations.
    pub injector: Injector,
    /// Further pages of the server.
    pub pages: Vec<Page>,
    /// Gauge without labels that is set to the time at which the certificate expires.
    pub expiry: Option<IntGaugeVec>,
}

impl Server {
    /// Listens, and serves `webhooks` from the time when certificates exist until `shutdown`. Returns the
    /// address that is in use, and the readiness: `Ok` once the configurations are written. Later failures
    /// are logged and retried; until the server was ready once, the readiness shows them.
    ///
    /// # Errors
    /// Fails if the server cannot listen on the address.
    pub fn start(
        mut self,
        webhooks: Vec<Webhook>,
        client: kube::Client,
        clock: Clock,
        shutdown: CancellationToken,
    ) -> BoxFuture<'static, std::io::Result<(SocketAddr, Readiness)>> {
        Box::pin(async move {
            let listener = TcpListener::bind(self.address).await?;
            let address = listener.local_addr()?;
            if let Some((_, port)) = &mut self.injector.host
                && *port == 0
            {
                *port = address.port();
            }
            let (state, readiness) = watch::channel(Err("no certificates yet".to_owned()));
            let server_loop = ServerLoop {
                server: self,
                client,
                clock,
                state,
                current: Artifacts::default(),
                conflicts: ConflictDetector::default(),
            };
            let serving = Serving {
                listener,
                webhooks,
                pages: server_loop.server.pages.clone(),
                shutdown: shutdown.clone(),
            };
            let run = async move { server_loop.run(serving, &shutdown.clone()).await };
            tokio::spawn(run);
            Ok((address, readiness))
        })
    }
}

/// The state that serving needs, kept until certificates exist.
struct Serving {
    listener: TcpListener,
    webhooks: Vec<Webhook>,
    pages: Vec<Page>,
    shutdown: CancellationToken,
}

struct ServerLoop {
    server: Server,
    client: kube::Client,
    clock: Clock,
    state: watch::Sender<Result<(), String>>,
    current: Artifacts,
    conflicts: ConflictDetector,
}

impl ServerLoop {
    /// Keeps certificates and configurations up to date until `shutdown`; failures are retried with back-off.
    async fn run(mut self, serving: Serving, shutdown: &CancellationToken) {
        let mut changes = self.changes(shutdown);
        let mut serving = Some(serving);
        let mut configs: Option<watch::Sender<Arc<rustls::ServerConfig>>> = None;
        let mut retry = RETRY;
        loop {
            let begun = tokio::time::Instant::now();
            let result = self.sync(&mut serving, &mut configs).await;
            let next = match result {
                Ok(()) => {
                    retry = RETRY;
                    RESYNC
                }
                Err(problem) => {
                    tracing::warn!(problem, "failed to set up webhooks, retrying in {retry:?}");
                    self.state.send_if_modified(|state| {
                        let first = state.is_err();
                        if first {
                            *state = Err(problem);
                        }
                        first
                    });
                    let next = retry;
                    retry = (retry * 2).min(RESYNC);
                    next
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(next) => {
                    if next == RESYNC {
                        self.conflicts.record_quiet_resync();
                    }
                    continue;
                }
                () = changes.next() => {}
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep_until(begun + SETTLE) => {}
            }
        }
    }

    /// Updates the certificates, starts the server if it is not running, and updates the configurations.
    async fn sync(
        &mut self,
        serving: &mut Option<Serving>,
        configs: &mut Option<watch::Sender<Arc<rustls::ServerConfig>>>,
    ) -> Result<(), String> {
        let certs = self.server.keeper.ensure(self.clock.now()).await;
        let certs = certs.map_err(|error: CertsError| error.to_string())?;
        if certs != self.current {
            let config = certs.server_config()?;
            match configs {
                Some(configs) => drop(configs.send_replace(config)),
                None => {
                    let (sender, receiver) = watch::channel(config);
                    if let Some(serving) = serving.take() {
                        tokio::spawn(tls::serve(
                            serving.listener,
                            serve::routes(serving.webhooks, &serving.pages),
                            receiver,
                            serving.shutdown,
                            tls::WEBHOOK_LIMITS,
                        ));
                    }
                    *configs = Some(sender);
                }
            }
            if let (Some(gauge), Some(seconds)) = (&self.server.expiry, certs.expires_at()) {
                gauge.with_label_values(&[] as &[&str]).set(seconds);
            }
            self.current = certs;
        }
        let injected =
            self.server
                .injector
                .ensure(&self.client, &self.current.ca_cert, &mut self.conflicts);
        injected.await.map_err(|error| error.to_string())?;
        self.state.send_if_modified(|state| {
            let first = state.is_err();
            *state = Ok(());
            first
        });
        Ok(())
    }

    /// Starts to watch the Secret and both configurations.
    fn changes(&self, shutdown: &CancellationToken) -> Changes {
        let named = |name: &str| Scope {
            fields: Some(format!("metadata.name={name}")),
            ..Scope::default()
        };
        let Server {
            keeper, injector, ..
        } = &self.server;
        let client = || self.client.clone();
        Changes {
            secret: keeper.secret().map(|(namespace, name)| {
                Informer::start_in_namespace(client(), namespace, named(name), shutdown.clone())
            }),
            mutating: Informer::start(client(), named(&injector.mutating), shutdown.clone()),
            validating: Informer::start(client(), named(&injector.validating), shutdown.clone()),
        }
    }
}

struct Changes {
    secret: Option<Informer<Secret>>,
    mutating: Informer<MutatingWebhookConfiguration>,
    validating: Informer<ValidatingWebhookConfiguration>,
}

impl Changes {
    /// Waits for the next change.
    async fn next(&mut self) {
        async fn wait_for<K>(informer: Option<&mut Informer<K>>) {
            let Some(informer) = informer else {
                return std::future::pending().await;
            };
            loop {
                match informer.changes.recv().await {
                    // The initial state was handled by the first sync.
                    Some(Change::Synced) => {}
                    Some(_) => return,
                    // The informer ends with the shutdown.
                    None => std::future::pending().await,
                }
            }
        }
        tokio::select! {
            () = wait_for(self.secret.as_mut()) => {}
            () = wait_for(Some(&mut self.mutating)) => {}
            () = wait_for(Some(&mut self.validating)) => {}
        }
    }
}
