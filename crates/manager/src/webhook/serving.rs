//! How a replica's webhooks come to be asked.

use super::settings::Settings;
use super::{Deps, QuotaAdmission, Row, WebhookMetrics, enabled};
use crate::Error;
use crate::cache::Kind;
use crate::replica::Replica;
use futures::future::BoxFuture;
use koord_app::Context;
use koord_kube::webhook::run::Readiness;
use koord_kube::webhook::{Answer, Handler, Page, Request, Webhook};
use std::sync::Arc;

/// Where the webhooks are asked.
#[derive(Clone, Default)]
pub enum Serve {
    /// Nowhere.
    #[default]
    Nowhere,
    /// Over HTTPS, by any API server.
    Https(Settings),
    /// In this process, by whoever is given them.
    InProcess(Arc<dyn Fn(Vec<Webhook>) + Send + Sync>),
}

impl std::fmt::Debug for Serve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nowhere => f.write_str("Nowhere"),
            Self::Https(settings) => f.debug_tuple("Https").field(settings).finish(),
            Self::InProcess(_) => f.write_str("InProcess"),
        }
    }
}

impl Deps {
    fn of(replica: &Arc<Replica>, ctx: &Context) -> Result<Self, Error> {
        let quotas = QuotaAdmission::of(replica);
        Ok(Self {
            client: replica.client.clone(),
            gates: replica.options.gates.clone(),
            metrics: WebhookMetrics::new(&ctx.metrics)?,
            lookup: Arc::new(replica.clone()),
            admission: Some(quotas.clone()),
            quotas: Some(quotas),
            pods: replica.options.pods.clone(),
            settings: Arc::new(replica.clone()),
        })
    }
}

/// Makes the handlers of a replica and serves them; they watch what they need from now on. `None`
/// where none is to be served.
pub(crate) async fn start(
    replica: &Arc<Replica>,
    ctx: &Context,
) -> Result<Option<Readiness>, Error> {
    let serve = &replica.options.webhooks;
    let rows: Vec<&'static Row> = enabled(&replica.options.gates).collect();
    if matches!(serve, Serve::Nowhere) || rows.is_empty() {
        return Ok(None);
    }
    let deps = Deps::of(replica, ctx)?;
    super::lookup::report_profiles(replica);
    for row in &rows {
        replica.start(row.caches);
    }
    let webhooks = rows.iter().filter_map(|row| {
        Some(Webhook {
            path: row.path,
            mutating: row.mutating,
            handler: Arc::new(Synced {
                replica: replica.clone(),
                row,
                handler: row.handler?(&deps),
            }),
        })
    });
    let webhooks = webhooks.collect();
    match serve {
        Serve::Nowhere => Ok(None),
        Serve::InProcess(receive) => {
            receive(webhooks);
            Ok(None)
        }
        Serve::Https(settings) => {
            let served = rows.iter().map(|row| row.path).collect();
            let server = settings.server(&replica.client, served, pages(replica, &deps));
            let (client, clock) = (replica.client.clone(), replica.clock.clone());
            let started = server.start(webhooks, client, clock, replica.stop.clone());
            let (address, readiness) = started.await.map_err(|source| Error::Listen {
                address: settings.address,
                source,
            })?;
            tracing::info!(%address, "serving webhooks");
            Ok(Some(readiness))
        }
    }
}

/// `/elasticQuota`: what this replica knows of quotas. Upstream shows it always; here who wants it says so.
const DUMP: &str = "ElasticQuotaDump";

fn pages(replica: &Arc<Replica>, deps: &Deps) -> Vec<Page> {
    let shown = deps.admission.clone();
    let shown = shown.filter(|_| replica.options.gates.enabled(DUMP));
    let page = shown.map(|admission| {
        replica.start(&[Kind::Quotas]);
        Page {
            path: "/elasticQuota",
            content: Arc::new(move || admission.dump()),
        }
    });
    page.into_iter().collect()
}

/// A handler that is asked once what it looks at is there. The question's time limit ends the wait,
/// and then the failure policy decides.
struct Synced {
    replica: Arc<Replica>,
    row: &'static Row,
    handler: Arc<dyn Handler>,
}

impl Handler for Synced {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            self.replica.wait_for(&[], self.row.caches).await;
            self.handler.handle(request).await
        })
    }
}
