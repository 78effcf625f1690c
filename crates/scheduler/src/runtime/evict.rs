//! Eviction of the victims of a preemption: condition `DisruptionTarget`, deletion, event.

use super::condition::seconds;
use super::writer::reference;
use super::writer_context::WriterContext;
use crate::framework::Message;
use crate::metrics::Metrics;
use crate::state::PodInfo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use koord_kube::api::{DeleteParams, Preconditions};
use koord_kube::events::Severity;
use koord_kube::{Api, patch};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The evictions of one preemption; recorded in the metrics when the last of them has ended.
pub(super) struct Evictions {
    metrics: Metrics,
    started: tokio::time::Instant,
    failed: AtomicBool,
    preemptor: Arc<PodInfo>,
    node: Arc<str>,
    /// The time of the decision.
    time: Timestamp,
}

impl Evictions {
    /// Creates the evictions that make room for `preemptor` on `node`.
    pub(super) fn new(
        metrics: Metrics,
        preemptor: Arc<PodInfo>,
        node: Arc<str>,
        time: Timestamp,
    ) -> Self {
        Self {
            metrics,
            started: tokio::time::Instant::now(),
            failed: AtomicBool::new(false),
            preemptor,
            node,
            time,
        }
    }
}

impl Drop for Evictions {
    fn drop(&mut self) {
        let ok = !self.failed.load(Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        self.metrics.evicted(ok, seconds);
    }
}

impl WriterContext {
    /// Records the event about the eviction of `victim`.
    pub(super) fn record_eviction(&self, victim: &PodInfo, by: &Evictions) {
        let message = format!("Preempted by pod {} on node {}", by.preemptor.uid, by.node);
        let about = reference(victim);
        self.recorder.event_with_action(
            about,
            Severity::Normal,
            "Preempted",
            "Preempting",
            message,
        );
    }

    /// Evicts one of the victims.
    pub(super) async fn evict(&self, victim: &PodInfo, by: &Evictions) {
        self.gate.pass(self.send_eviction(victim, by)).await;
    }

    /// Marks `victim` as disrupted and deletes it.
    async fn send_eviction(&self, victim: &PodInfo, by: &Evictions) {
        let scheduler = by.preemptor.scheduler_name();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &victim.namespace);
        let status = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!("{scheduler}: preempting to accommodate a higher priority pod"),
            "observedGeneration": victim.object.pod.metadata.generation,
            "lastProbeTime": null,
            "lastTransitionTime": seconds(by.time),
        }]}});
        let marked = patch::strategic_status(&api, &victim.name, &status).await;
        let deleted = match marked {
            Ok(_) => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: Some(victim.uid.to_string()),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                api.delete(&victim.name, &params).await.map(drop)
            }
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) => {}
            Err(error) if patch::is_not_found(&error) => {}
            Err(error) => {
                by.failed.store(true, Ordering::Relaxed);
                tracing::warn!(pod = %victim, %error, "failed to evict a preemption victim");
                let failed = Message::NotEvicted(victim.uid.clone());
                let _ = self.sender.send(failed).await;
            }
        }
    }
}
