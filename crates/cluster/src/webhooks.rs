//! The manager's webhooks, called by the embedded API server without a socket.

use anyhow::{Context as _, Result};
use futures::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use koord_apiserver::{
    ApiServer, InProcessWebhook, WebhookKind, WebhookRequest, WebhookResource, WebhookResponse,
};
use koord_app::features::Gates;
use koord_kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use koord_kube::webhook::configuration::Service;
use koord_kube::webhook::{Kind, Operation, Request, Resource, User, Verdict, Webhook};
use koord_kube::{Api, Client};
use koord_manager::webhook::{self, MUTATING, ServeMode, VALIDATING};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Timeout of a call; the API server's own limit is never longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

type Handlers = BTreeMap<&'static str, Webhook>;

/// Registers the manager's webhooks with `server` for calls without a socket, and installs their webhook
/// configurations. Calls wait until a manager that was started with the returned mode serves them.
///
/// # Errors
/// The configurations cannot be written.
pub async fn connect(server: &ApiServer, client: &Client, gates: &Gates) -> Result<ServeMode> {
    let service = Service {
        namespace: koord_api::configmap::NAMESPACE.to_owned(),
        name: "koordinator-webhook-service".to_owned(),
    };
    let (sender, handlers) = watch::channel(Arc::new(Handlers::new()));
    for path in webhook::paths(gates) {
        let handlers = handlers.clone();
        let url = service.url(path);
        server
            .api()
            .register_webhook(&url, Arc::new(DeferredWebhook { path, handlers }));
    }
    for configuration in webhook::configurations(gates, &service) {
        install(client, configuration).await?;
    }
    Ok(ServeMode::InProcess(Arc::new(move |webhooks| {
        let webhooks = webhooks.into_iter();
        let handlers = webhooks.map(|webhook| (webhook.path, webhook)).collect();
        sender.send_replace(Arc::new(handlers));
    })))
}

/// Deletes the configurations of an earlier start: until the manager runs, calls to their webhooks would wait
/// or fail.
///
/// # Errors
/// They cannot be deleted.
pub async fn disconnect(client: &Client) -> Result<()> {
    let params = DeleteParams::default();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let mutating = mutating.delete(MUTATING, &params).await.map(drop);
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let validating = validating.delete(VALIDATING, &params).await.map(drop);
    for deleted in [mutating, validating] {
        match deleted {
            Err(error) if !koord_kube::patch::is_not_found(&error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Creates a webhook configuration, or overwrites the existing one, including changes by other clients.
async fn install(client: &Client, configuration: Value) -> Result<()> {
    let mut object: DynamicObject =
        serde_json::from_value(configuration).context("webhook configuration")?;
    let types = object.types.clone().unwrap_or_default();
    let name = object.metadata.name.clone().unwrap_or_default();
    let kind = koord_kube::kube_core::GroupVersionKind::try_from(&types)?;
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let params = PostParams::default();
    let written = match api.get_opt(&name).await? {
        None => api.create(&params, &object).await,
        Some(old) => {
            object.metadata.resource_version = old.metadata.resource_version;
            api.replace(&name, &params, &object).await
        }
    };
    written
        .map(drop)
        .with_context(|| format!("{} {name}", types.kind))
}

/// A webhook whose calls wait until the manager has started.
struct DeferredWebhook {
    path: &'static str,
    handlers: watch::Receiver<Arc<Handlers>>,
}

impl InProcessWebhook for DeferredWebhook {
    fn review<'a>(
        &'a self,
        request: &'a WebhookRequest<'a>,
    ) -> BoxFuture<'a, Result<WebhookResponse, String>> {
        Box::pin(async move {
            let mut handlers = self.handlers.clone();
            let webhook = {
                let ready = handlers.wait_for(|handlers| handlers.contains_key(self.path));
                let handlers = ready.await;
                let handlers = handlers.map_err(|_| "the manager has stopped".to_owned())?;
                handlers.get(self.path).cloned().ok_or("no such webhook")?
            };
            let verdict = webhook.review(to_request(request), ANSWER_WITHIN).await;
            verdict
                .map(to_response)
                .map_err(|failure| failure.to_string())
        })
    }
}

/// Converts a review of the embedded API server to a request of the webhook library.
fn to_request(request: &WebhookRequest<'_>) -> Request {
    let WebhookKind {
        group,
        version,
        kind,
    } = &request.kind;
    let kind = Kind {
        group: group.to_string(),
        version: version.to_string(),
        kind: kind.to_string(),
    };
    let WebhookResource {
        group,
        version,
        resource,
    } = &request.resource;
    let user = request.user_info;
    Request {
        uid: request.uid.clone(),
        kind,
        resource: Resource {
            group: group.to_string(),
            version: version.to_string(),
            resource: resource.to_string(),
        },
        sub_resource: request.sub_resource.to_owned(),
        name: request.name.to_owned(),
        namespace: request.namespace.to_owned(),
        operation: match request.operation {
            koord_apiserver::Operation::Create => Operation::Create,
            koord_apiserver::Operation::Update => Operation::Update,
            koord_apiserver::Operation::Delete => Operation::Delete,
        },
        user: User {
            name: user.name.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone().into_iter().collect(),
        },
        object: request.object.cloned(),
        old_object: request.old_object.cloned(),
        dry_run: request.dry_run,
    }
}

/// Converts the verdict of a webhook to a response of the embedded API server.
fn to_response(verdict: Verdict) -> WebhookResponse {
    let status = if verdict.allowed {
        Value::Null
    } else {
        json!({ "code": verdict.code, "reason": verdict.reason, "message": verdict.message })
    };
    let patch = if verdict.patch.is_empty() {
        Value::Null
    } else {
        verdict.patch.into()
    };
    WebhookResponse {
        allowed: verdict.allowed,
        status,
        patch,
        warnings: verdict.warnings,
        ..WebhookResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use koord_api::config::ClusterColocationProfile;
    use koord_apiserver::{Config, Storage};
    use koord_app::{Clock, Context};

    fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn pod(name: &str) -> Pod {
        typed(
            json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i",
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn api_server_calls_manager_in_process() {
        let clock = Clock::following_tokio("2026-01-01T00:00:00Z".parse().unwrap());
        let config = Config::new(Storage::Memory, clock.clone());
        let server = ApiServer::open(config).await.unwrap();
        server.install_crds(koord_api::crd_values()).await.unwrap();
        let client = koord_kube::client::in_process(server.service());
        // Settings of a start before there was a webhook.
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "koordinator-system");
        let older = json!({"metadata": {"name": "slo-controller-config"}, "data": {"kept": "yes"}});
        maps.create(&PostParams::default(), &typed(older))
            .await
            .unwrap();
        crate::objects::first_objects(&client, &json!({}))
            .await
            .unwrap();
        let config_map = maps.get("slo-controller-config").await.unwrap();
        assert_eq!(config_map.data.unwrap()["kept"], "yes");
        let mut options = koord_manager::Options::default();
        // Like after a restart: no webhook answers yet, and the first objects are checked again.
        connect(&server, &client, &options.gates).await.unwrap();
        disconnect(&client).await.unwrap();
        crate::objects::first_objects(&client, &json!({}))
            .await
            .unwrap();
        options.webhooks = connect(&server, &client, &options.gates).await.unwrap();

        let profile: ClusterColocationProfile = typed(json!({
            "apiVersion": "config.koordinator.sh/v1alpha1", "kind": "ClusterColocationProfile",
            "metadata": {"name": "batch"},
            "spec": {"selector": {"matchLabels": {}}, "qosClass": "BE",
                "priorityClassName": "koord-batch"},
        }));
        let profiles: Api<ClusterColocationProfile> = Api::all(client.clone());
        profiles
            .create(&PostParams::default(), &profile)
            .await
            .unwrap();
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        // A call before the manager exists is answered by it later.
        let early = tokio::spawn({
            let pods = pods.clone();
            async move { pods.create(&PostParams::default(), &pod("early")).await }
        });
        tokio::task::yield_now().await;
        assert!(!early.is_finished());
        let context = Context::with_clock(clock);
        let stop = context.shutdown.clone();
        let manager = tokio::spawn(koord_manager::run(options, client.clone(), context));
        let created = early.await.unwrap().unwrap();
        let labels = created.metadata.labels.unwrap();
        assert_eq!(labels["koordinator.sh/qosClass"], "BE");
        let spec = created.spec.unwrap();
        assert_eq!(spec.priority, Some(5000));
        let requests = spec.containers[0]
            .resources
            .clone()
            .unwrap()
            .requests
            .unwrap();
        assert_eq!(requests["kubernetes.io/batch-cpu"].0, "1k");
        assert!(!requests.contains_key("cpu"), "{requests:?}");

        let bad = json!({"data": {"colocation-config": r#"{"cpuReclaimThresholdPercent": -5}"#}});
        let refused = koord_kube::patch::merge(&maps, "slo-controller-config", &bad).await;
        let refused = refused.unwrap_err().to_string();
        for part in [
            "vconfigmap.koordinator.sh",
            "cpuReclaimThresholdPercent",
            "-5",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
        stop.cancel();
        manager.await.unwrap().unwrap();
    }
}
