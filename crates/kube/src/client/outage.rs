//! Logs failures that last over all requests of a client: the server is unreachable, or an RBAC rule is
//! missing.

use super::forbidden::MissingRule;
use super::transport::HttpResponse;
use crate::failure_log::{FailureLog, causes};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use kube::client::Body;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;

/// Maximum size of a refusal that is read, in bytes.
const LONGEST_REFUSAL: usize = 1 << 20;
/// Maximum number of missing rules that are logged.
const MOST_RULES: usize = 256;

/// The error of a request that got no response.
#[derive(Debug, thiserror::Error)]
#[error("failed to reach {server}: {cause}")]
pub struct Unreachable {
    /// URL of the server.
    pub server: String,
    /// Text of the error and its causes.
    pub cause: String,
}

impl Unreachable {
    /// Returns whether `error` is of this type. If so, the client has logged it.
    #[must_use]
    pub fn is(error: &kube::Error) -> bool {
        matches!(error, kube::Error::Service(error) if error.is::<Self>())
    }
}

/// Observes the requests of one client, and logs a lasting failure once instead of per request.
#[derive(Debug, Clone)]
pub(super) struct OutageReporter(Arc<ServerState>);

#[derive(Debug)]
struct ServerState {
    server: String,
    /// True while `outage` is set, so that a successful request takes no lock.
    is_down: AtomicBool,
    outage: Mutex<Outage>,
    missing_rules: Mutex<BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct Outage {
    since: Option<Instant>,
    /// Time of the last log line, about this or an earlier outage.
    logged: Option<Instant>,
    failed_requests: u64,
}

impl OutageReporter {
    pub(super) fn new(server: String) -> Self {
        Self(Arc::new(ServerState {
            server,
            is_down: AtomicBool::new(false),
            outage: Mutex::default(),
            missing_rules: Mutex::default(),
        }))
    }

    /// Sends `request` with `send`. The error contains server and cause.
    pub(super) async fn send<F>(
        self,
        request: Request<Body>,
        send: impl FnOnce(Request<Body>) -> F,
    ) -> Result<HttpResponse, kube::Error>
    where
        F: Future<Output = Result<HttpResponse, kube::Error>>,
    {
        match send(request).await {
            Ok(response) => {
                if self.0.is_down.load(Ordering::Relaxed) {
                    self.end();
                }
                if response.status() == StatusCode::FORBIDDEN {
                    return self.refused(response).await;
                }
                Ok(response)
            }
            Err(error) => Err(self.begin(&error)),
        }
    }

    /// Records a failed request, logs the outage at most once per interval, and returns the error for the
    /// caller.
    fn begin(&self, error: &kube::Error) -> kube::Error {
        let ServerState { server, .. } = &*self.0;
        let cause = causes(error);
        let now = Instant::now();
        let mut outage = self.0.outage.lock();
        self.0.is_down.store(true, Ordering::Relaxed);
        let since = *outage.since.get_or_insert(now);
        outage.failed_requests += 1;
        let due = outage
            .logged
            .is_none_or(|logged_at| now - logged_at >= FailureLog::INTERVAL);
        if due {
            outage.logged = Some(now);
            let failed_requests = outage.failed_requests;
            drop(outage);
            let lasting = now - since;
            tracing::warn!(
                server,
                error = cause,
                ?lasting,
                failed_requests,
                "failed to reach the server"
            );
        }
        let server = server.clone();
        kube::Error::Service(Box::new(Unreachable { server, cause }))
    }

    fn end(&self) {
        let mut outage = self.0.outage.lock();
        self.0.is_down.store(false, Ordering::Relaxed);
        outage.failed_requests = 0;
        if let Some(since) = outage.since.take() {
            // The end of an outage is logged only if its beginning was.
            let was_logged = outage.logged.is_some_and(|logged_at| logged_at >= since);
            drop(outage);
            if was_logged {
                let server = &self.0.server;
                tracing::info!(server, lasting = ?since.elapsed(), "server is reachable again");
            }
        }
    }

    /// Logs the missing rule of a refusal once. Informers log theirs themselves.
    async fn refused(&self, response: HttpResponse) -> Result<HttpResponse, kube::Error> {
        let (head, body) = response.into_parts();
        let read = Limited::new(body, LONGEST_REFUSAL).collect().await;
        let text = read.map_err(kube::Error::Service)?.to_bytes();
        let message = serde_json::from_slice::<serde_json::Value>(&text).unwrap_or_default();
        let message = message["message"].as_str().unwrap_or_default();
        if let Some(rule) = MissingRule::parse(message)
            && !rule.is_of_informers()
        {
            let rule = rule.to_string();
            let mut logged = self.0.missing_rules.lock();
            if logged.len() < MOST_RULES && logged.insert(rule.clone()) {
                drop(logged);
                tracing::warn!(rule, error = message, "access denied: a role lacks a rule");
            }
        }
        let body = Full::new(text).map_err(|never| match never {});
        Ok(Response::from_parts(head, body.boxed_unsync()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::in_process;
    use crate::testing::{LogLines, answer};
    use crate::{Informer, Scope};
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;
    use tower::{BoxError, ServiceExt};

    fn reported(service: kube::Client) -> kube::Client {
        let reporter = OutageReporter::new("https://10.0.0.1:6443/".to_owned());
        in_process(tower::service_fn(move |request| {
            let service = service.clone();
            let send = |request| async move {
                let answer = service.send(request).await?;
                Ok(answer.map(BodyExt::boxed_unsync))
            };
            reporter.clone().send(request, send)
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn outage_of_25_kinds_is_one_line_a_minute() {
        let (log, _guard) = LogLines::capture();
        let is_up = Arc::new(AtomicBool::new(false));
        let up = is_up.clone();
        let list = answer(|_| {
            let metadata = json!({"resourceVersion": "1"});
            let list = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata, "items": []});
            (StatusCode::OK, list)
        });
        let client = reported(in_process(tower::service_fn(
            move |request: Request<Body>| {
                let (up, list) = (up.load(Ordering::SeqCst), list.clone());
                let watches = request
                    .uri()
                    .query()
                    .is_some_and(|it| it.contains("watch=true"));
                async move {
                    if !up {
                        let cause = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                        return Err(BoxError::from(cause));
                    }
                    if watches {
                        std::future::pending::<()>().await;
                    }
                    list.oneshot(request).await
                }
            },
        )));
        let stop = CancellationToken::new();
        let start = || Informer::<ConfigMap>::start(client.clone(), Scope::default(), stop.clone());
        let informers: Vec<_> = (0..25).map(|_| start()).collect();
        tokio::time::sleep(Duration::from_secs(310)).await;
        let lines = log.lines();
        assert!((5..=6).contains(&lines.len()), "{lines:#?}");
        for line in lines {
            let is_complete =
                line.contains("https://10.0.0.1:6443/") && line.contains("connection refused");
            assert!(is_complete && line.contains("WARN"), "{line}");
        }
        is_up.store(true, Ordering::SeqCst);
        let before = log.lines().len();
        for informer in &informers {
            assert!(informer.store.wait_synced().await);
        }
        let lines = log.lines().split_off(before);
        assert!(
            lines.len() == 1 && lines[0].contains("reachable again"),
            "{lines:#?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn refused_write_names_the_missing_rule_once() {
        let (log, _guard) = LogLines::capture();
        let client = reported(in_process(answer(|_| {
            let message = "configmaps \"c\" is forbidden: User \"u\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"n\"";
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": message});
            (StatusCode::FORBIDDEN, status)
        })));
        let api = crate::Api::<ConfigMap>::namespaced(client, "n");
        for _ in 0..20 {
            let error = api.get("c").await.unwrap_err();
            assert!(
                matches!(&error, kube::Error::Api(status) if status.code == 403),
                "{error}"
            );
        }
        let lines = log.lines();
        let rule = "{apiGroups: [\\\"\\\"], resources: [configmaps], verbs: [get]} in namespace n";
        assert!(lines.len() == 1 && lines[0].contains(rule), "{lines:#?}");
    }
}
