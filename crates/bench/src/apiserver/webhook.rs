//! Cost of a webhook in this process for a write.

use super::load::{self, Owner};
use super::{BenchError, BenchOptions, config};
use koord_apiserver::{ApiServer, Storage, WebhookRequest, WebhookResponse};
use koord_app::Clock;
use koord_app::flags::Selection;
use serde_json::json;
use std::sync::Arc;

/// Turns that each of the two servers has.
const ROUNDS: u32 = 10;
/// URL under which the webhook is registered.
const URL: &str = "https://webhook.default.svc:443/mutate";

/// Starts a server with or without a mutating webhook for pods.
async fn start(asks: bool, clock: &Clock) -> Result<(Arc<ApiServer>, Owner), BenchError> {
    let mut config = config(Storage::Memory, clock);
    config.controllers = Selection::none();
    let server = ApiServer::open(config).await?;
    if asks {
        let label = |_: &WebhookRequest<'_>| {
            Ok(WebhookResponse {
                allowed: true,
                patch: json!([{"op": "add", "path": "/metadata/labels/asked", "value": "yes"}]),
                ..WebhookResponse::default()
            })
        };
        server.api().register_webhook(URL, Arc::new(label));
        let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
        let service = json!({"namespace": "default", "name": "webhook", "path": "/mutate"});
        let configuration = json!({
            "metadata": {"name": "bench"},
            "webhooks": [{
                "name": "pods.bench.example.com",
                "clientConfig": {"service": service},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
                    "resources": ["pods"]}],
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        });
        load::post(&server.service(), path, configuration.to_string().into()).await?;
    }
    let owner = Owner::create(server.service()).await?;
    Ok((server, owner))
}

/// Measures the microseconds that a mutating webhook, which adds a label, adds to a create of a pod: dry runs
/// by one task, from a server with it and one without, in turns.
pub(super) async fn measure(options: &BenchOptions, clock: &Clock) -> Result<f64, BenchError> {
    let servers = [start(false, clock).await?, start(true, clock).await?];
    let mut sums = [0.0; 2];
    // The first turn of each warms it up.
    for round in 0..=ROUNDS {
        for ((server, owner), sum) in servers.iter().zip(&mut sums) {
            let time = options.measure / ROUNDS;
            let throughput = load::dry_creates(server.service(), owner, time).await?;
            if round > 0 {
                *sum += 1e6 / throughput.per_s.max(1.0) / f64::from(ROUNDS);
            }
        }
    }
    for (server, _) in servers {
        server.close().await;
    }
    let [plain, asked] = sums;
    Ok(asked - plain)
}
