//! Serves the webhooks of a replica.

use super::settings::Settings;
use super::{Deps, QuotaAdmission, WebhookMetrics, WebhookSpec, enabled};
use crate::Error;
use crate::cache::ObjectKind;
use crate::replica::Replica;
use futures::future::BoxFuture;
use koord_app::Context;
use koord_kube::webhook::run::Readiness;
use koord_kube::webhook::{Answer, Handler, Operation, Page, Request, Webhook};
use serde_json::Value;
use std::sync::Arc;

/// Transport of the webhooks.
#[derive(Clone, Default)]
pub enum ServeMode {
    /// The webhooks are not served.
    #[default]
    Disabled,
    /// HTTPS, for any API server.
    Https(Settings),
    /// Calls in this process: the callback receives the webhooks.
    InProcess(Arc<dyn Fn(Vec<Webhook>) + Send + Sync>),
}

impl std::fmt::Debug for ServeMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disabled => f.write_str("Disabled"),
            Self::Https(settings) => f.debug_tuple("Https").field(settings).finish(),
            Self::InProcess(_) => f.write_str("InProcess"),
        }
    }
}

impl Deps {
    fn from_replica(replica: &Arc<Replica>, ctx: &Context) -> Result<Self, Error> {
        let quotas = QuotaAdmission::from_replica(replica);
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

/// Creates and serves the handlers of a replica, and starts the caches that they read. Returns `None` if no
/// webhook is served over HTTPS.
pub(crate) async fn start(
    replica: &Arc<Replica>,
    ctx: &Context,
) -> Result<Option<Readiness>, Error> {
    let serve = &replica.options.webhooks;
    let rows: Vec<&'static WebhookSpec> = enabled(&replica.options.gates).collect();
    if matches!(serve, ServeMode::Disabled) || rows.is_empty() {
        return Ok(None);
    }
    let mut deps = Deps::from_replica(replica, ctx)?;
    super::lookup::report_profiles(replica);
    for row in &rows {
        replica.start(row.caches);
    }
    if let Some(report) = &replica.dry_run {
        // A pod that exists is counted already.
        deps.quotas = None;
        super::dry_run::start(replica, &deps, &rows, report.clone());
        return Ok(None);
    }
    let webhooks = rows.iter().filter_map(|row| {
        Some(Webhook {
            path: row.path,
            mutating: row.mutating,
            handler: Arc::new(SyncedHandler {
                replica: replica.clone(),
                row,
                handler: row.handler?(&deps),
            }),
        })
    });
    let webhooks = webhooks.collect();
    match serve {
        ServeMode::Disabled => Ok(None),
        ServeMode::InProcess(receive) => {
            receive(webhooks);
            Ok(None)
        }
        ServeMode::Https(settings) => {
            let served = rows.iter().map(|row| row.path).collect();
            let mut server = settings.server(&replica.client, served, pages(replica, &deps));
            server.expiry = Some(replica.metrics.certificate_expiry.clone());
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

/// Gate of `/elasticQuota`, the quota topology of this replica. Upstream always serves it.
const DUMP: &str = "ElasticQuotaDump";

fn pages(replica: &Arc<Replica>, deps: &Deps) -> Vec<Page> {
    let shown = deps.admission.clone();
    let shown = shown.filter(|_| replica.options.gates.enabled(DUMP));
    let page = shown.map(|admission| {
        replica.start(&[ObjectKind::Quotas]);
        Page {
            path: "/elasticQuota",
            content: Arc::new(move || admission.dump()),
        }
    });
    page.into_iter().collect()
}

/// A handler that waits for its caches. The timeout of the request ends the wait, and then the failure policy
/// decides.
struct SyncedHandler {
    replica: Arc<Replica>,
    row: &'static WebhookSpec,
    handler: Arc<dyn Handler>,
}

impl Handler for SyncedHandler {
    fn handle(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            if let Some(problem) = request_problem(self.row, &request) {
                return Answer::deny(400, problem);
            }
            self.replica.wait_for(&[], self.row.caches).await;
            self.handler.handle(request).await
        })
    }
}

/// Returns why a request about the webhook's objects is invalid, which upstream fails to decode; `None` if it
/// is valid. Requests about other objects are left to the handler, which allows them.
fn request_problem(row: &WebhookSpec, request: &Request) -> Option<String> {
    let about_them = row.registrations.iter().any(|entry| {
        let (resource, sub) = entry
            .resource
            .split_once('/')
            .unwrap_or((entry.resource, ""));
        let resource_ref = &request.resource;
        (entry.group, resource, sub)
            == (
                &*resource_ref.group,
                &*resource_ref.resource,
                &*request.sub_resource,
            )
    });
    if !about_them {
        return None;
    }
    let (new, old) = match request.operation {
        Operation::Create => (true, false),
        Operation::Update => (true, true),
        Operation::Delete | Operation::Connect => (false, false),
    };
    let objects = [
        ("object", new, &request.object),
        ("oldObject", old, &request.old_object),
    ];
    objects.into_iter().find_map(|(name, needed, object)| {
        let Some(object) = object else {
            return needed.then(|| format!("request.{name}: missing"));
        };
        let problem = metadata_problem(object, &request.kind.kind)?;
        Some(format!("request.{name}.{problem}"))
    })
}

/// Returns the problem in kind and metadata that no object of `kind` can have; `None` if there is none.
fn metadata_problem(object: &Value, kind: &str) -> Option<String> {
    let actual = object.get("kind").filter(|actual| !actual.is_null());
    if let Some(actual) = actual
        && !kind.is_empty()
        && actual != kind
    {
        return Some(format!("kind: {actual}: expected {kind:?}"));
    }
    let metadata = object.get("metadata").filter(|value| !value.is_null())?;
    if !metadata.is_object() {
        return Some(format!("metadata: {metadata}: expected an object"));
    }
    ["labels", "annotations"].into_iter().find_map(|name| {
        let map = metadata.get(name).filter(|value| !value.is_null())?;
        let Some(entries) = map.as_object() else {
            return Some(format!("metadata.{name}: {map}: expected an object"));
        };
        let wrong = |(_, value): &(&String, &Value)| !(value.is_string() || value.is_null());
        let (key, value) = entries.iter().find(wrong)?;
        Some(format!("metadata.{name}[{key}]: {value}: expected a text"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::TABLE;
    use koord_kube::webhook::{Kind, Resource, User};
    use serde_json::json;

    fn request(operation: Operation, object: Option<Value>, old: Option<Value>) -> Request {
        Request {
            uid: "u".to_owned(),
            kind: Kind {
                kind: "Pod".to_owned(),
                ..Kind::default()
            },
            resource: Resource {
                resource: "pods".to_owned(),
                ..Resource::default()
            },
            sub_resource: String::new(),
            name: "pod".to_owned(),
            namespace: "default".to_owned(),
            operation,
            user: User::anonymous(),
            object,
            old_object: old,
            dry_run: false,
        }
    }

    fn problem(request: &Request) -> Option<String> {
        let row = TABLE
            .iter()
            .find(|row| row.path == "/validate-pod")
            .unwrap();
        request_problem(row, request)
    }

    #[test]
    fn invalid_objects_are_named() {
        use Operation::{Create, Delete, Update};
        let good = json!({"kind": "Pod", "metadata": {"labels": {"a": "b"}, "annotations": null}});
        let pod = || Some(good.clone());
        let passes = [
            request(Create, pod(), None),
            request(Update, pod(), pod()),
            request(Delete, None, pod()),
            request(Delete, None, None),
            request(Create, Some(json!({})), None),
        ];
        for request in passes {
            assert_eq!(problem(&request), None, "{request:?}");
        }
        let wrong = |object: Value| request(Create, Some(object), None);
        for (request, says) in [
            (request(Create, None, None), "request.object: missing"),
            (request(Update, None, pod()), "request.object: missing"),
            (request(Update, pod(), None), "request.oldObject: missing"),
            (
                request(Update, pod(), Some(json!({"kind": "Node"}))),
                "request.oldObject.kind: \"Node\": expected \"Pod\"",
            ),
            (
                wrong(json!({"metadata": "x"})),
                "request.object.metadata: \"x\": expected an object",
            ),
            (
                wrong(json!({"metadata": {"labels": ["a"]}})),
                "request.object.metadata.labels: [\"a\"]: expected an object",
            ),
            (
                wrong(json!({"metadata": {"annotations": {"a": 1}}})),
                "request.object.metadata.annotations[a]: 1: expected a text",
            ),
        ] {
            assert_eq!(problem(&request).as_deref(), Some(says));
        }
        // Another resource, which the handlers allow.
        let mut other = request(Create, Some(json!({"kind": "Eviction"})), None);
        other.sub_resource = "eviction".to_owned();
        assert_eq!(problem(&other), None);
    }
}
